"""Array types for payloads, tasks and states: strict, finite, of a declared rank.

JSON carries nested lists; the binary form carries :class:`numpy.ndarray`. Both become read-only,
C-contiguous arrays of one dtype, so a method cannot tell which form a site used.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray

_DTYPES: dict[str, Any] = {"f": np.float64, "i": np.int64, "b": np.bool_}
#: Element types: their name in a JSON schema, and in messages.
_NAMES = {"f": ("number", "floats"), "i": ("integer", "integers"), "b": ("boolean", "booleans")}


@dataclass(frozen=True)
class _ArrayOf:
    """Pydantic annotation: an array with ``ndim`` axes of float64, int64 or bool."""

    ndim: int
    kind: Literal["f", "i", "b"] = "f"

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        items: core_schema.CoreSchema
        if self.kind == "i":
            items = core_schema.int_schema(strict=True, ge=-(2**63), le=2**63 - 1)
        elif self.kind == "b":
            items = core_schema.bool_schema(strict=True)
        else:
            items = core_schema.float_schema(strict=True, allow_inf_nan=False)
        for _ in range(self.ndim):
            # fail_fast: report one wrong number, not millions.
            items = core_schema.list_schema(items, strict=True, fail_fast=True)
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_after_validator_function(self._from_lists, items),
            python_schema=core_schema.no_info_plain_validator_function(self._from_array),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda array: array.tolist(), when_used="json"
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        items: JsonSchemaValue = {"type": _NAMES[self.kind][0]}
        for _ in range(self.ndim):
            items = {"type": "array", "items": items}
        # A list of integers may also be a list: the digest of a task differs.
        return {**items, "x-fedclust-array": True}

    def _from_lists(self, values: list[Any]) -> NDArray[Any]:
        try:
            array = np.array(values, dtype=_DTYPES[self.kind])
        except ValueError:
            raise PydanticCustomError("ragged_array", "rows must be equally long") from None
        if array.size == 0 and array.ndim < self.ndim:
            array = array.reshape((0,) * self.ndim)
        return self._from_array(array)

    def _from_array(self, value: Any) -> NDArray[Any]:
        if not isinstance(value, np.ndarray):
            raise PydanticCustomError("array_type", "an array is needed here")
        if value.dtype.kind not in ("iu" if self.kind == "i" else self.kind):
            wanted = _NAMES[self.kind][1]
            raise PydanticCustomError("array_dtype", "the array must hold {w}", {"w": wanted})
        if value.ndim != self.ndim:
            raise PydanticCustomError(
                "array_rank", "the array must have {n} axes", {"n": self.ndim}
            )
        if self.kind == "f" and not np.isfinite(value).all():
            raise PydanticCustomError("finite_number", "every number must be finite")
        array = value.astype(_DTYPES[self.kind], order="C")
        array.flags.writeable = False
        return array


FloatVector = Annotated[FloatArray, _ArrayOf(1)]
FloatMatrix = Annotated[FloatArray, _ArrayOf(2)]
FloatTensor3 = Annotated[FloatArray, _ArrayOf(3)]
IntVector = Annotated[IntArray, _ArrayOf(1, "i")]
IntMatrix = Annotated[IntArray, _ArrayOf(2, "i")]
IntTensor3 = Annotated[IntArray, _ArrayOf(3, "i")]
BoolVector = Annotated[BoolArray, _ArrayOf(1, "b")]
BoolMatrix = Annotated[BoolArray, _ArrayOf(2, "b")]
