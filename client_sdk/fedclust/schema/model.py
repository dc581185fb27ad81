"""The base of everything that is stored or travels, its simplest fields, and its JSON."""

import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, model_serializer
from pydantic_core import PydanticCustomError

from fedclust.schema.display import html_fields, short_repr

#: What codecs carry: None, bool, int, float, str, bytes, arrays, and tuples and str-keyed dicts
#: of them.
Tree: TypeAlias = Any
Memory: TypeAlias = dict[str, Tree]

#: Characters that show nothing although Unicode counts them as letters, marks or symbols: joiners,
#: Hangul and Khmer fillers, variation selectors, the empty Braille cell.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


def _visible(text: str) -> str:
    """Refuse text that does not show what it is: people consent to what they read."""
    fault = None
    if text != text.strip():
        fault = "leave out the spaces at its beginning or end"
    elif any(c != " " and unicodedata.category(c)[0] in "CZ" for c in text) or _BLANK.search(text):
        fault = "use visible characters and plain spaces alone: one is invisible or unassigned"
    elif not unicodedata.is_normalized("NFC", text):
        fault = "write its accents in composed form (Unicode NFC)"
    if fault is not None:
        raise PydanticCustomError("visible", "{fault}", {"fault": fault})
    return text


#: For text that people read: two texts that look the same are the same.
Visible = AfterValidator(_visible)
SLUG = "[a-z0-9][a-z0-9-]{0,62}"
Slug = Annotated[str, StringConstraints(pattern=f"^{SLUG}$")]
#: An e-mail address as mail servers without extensions take it: no space, quote or line break. The
#: host has a dot, or is ``localhost``.
EmailAddress = Annotated[
    str,
    StringConstraints(
        max_length=254,
        pattern=r"^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
        r"@(localhost|[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
        r"(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+)$",
    ),
]
FeatureName = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$"), Visible
]


class Model(BaseModel):
    """Base of everything that is stored or travels: strict, closed, immutable.

    Sequences are tuples: the binary codec decodes arrays of things to tuples, and strict
    validation takes no list for one.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True
    )

    def __repr__(self) -> str:
        return short_repr(type(self).__name__, self._shown())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_fields(type(self).__name__, self._shown())

    def _shown(self) -> list[tuple[str, Any]]:
        """Return the fields that are shown: not those that are None."""
        shown = [name for name, field in type(self).model_fields.items() if field.repr]
        fields = [(name, getattr(self, name)) for name in shown]
        return [(name, value) for name, value in fields if value is not None]


class Written(Model):
    """Base of what people write.

    The text below a field, in Markdown, is its description in forms, in the API and in the
    reference.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)


def leave_out(**unsaid: Any) -> Any:
    """Return a serializer for a model's body, which leaves out fields that have these values.

    What does not name such a field keeps the canonical form, and the hash, of what knows none.
    """

    @model_serializer(mode="wrap")
    def written(self: Model, write: Any) -> dict[str, Any]:
        fields = write(self).items()
        return {name: value for name, value in fields if (name, value) not in unsaid.items()}

    return written


def json_value(value: Any) -> Any:
    """Return mappings, sequences, arrays, times and models as JSON has them."""
    if isinstance(value, Model):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple, range)):
        return [json_value(item) for item in value]
    return value
