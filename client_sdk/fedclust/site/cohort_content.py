"""A cohort as bytes, as the state stores it: a JSON line, then its arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedclust.protection.cohort import ARRAYS, Cohort, PinnedColumn, Unions, pad
from fedclust.protection.columns import TableColumn

_FORMAT = 2


def encode_cohort(cohort: Cohort, head: str) -> bytes:
    """Return a cohort as bytes, with the head of its last change."""
    header = {
        "format": _FORMAT,
        "head": head,
        "persons": len(cohort.keys),
        "groups": len(cohort.sizes),
        "table_id": cohort.table_id,
        "p": cohort.p,
        "least": cohort.least,
        "has_ids": cohort.has_ids,
        "columns": [asdict(each.column) | {"rule": each.rule} for each in cohort.columns],
        "unions": [{"p": each.p, "shape": each.released.shape} for each in cohort.unions],
    }
    arrays = [np.asarray(getattr(cohort, name), dtype) for name, dtype in ARRAYS.items()]
    for each in cohort.columns:
        arrays += [each.released, each.complete, each.prints]
    for unions in cohort.unions:
        arrays += [pad(unions.labels, len(cohort.sizes), fill=-1), unions.released, unions.decided]
    return b"\n".join([json.dumps(header).encode(), b"".join(each.tobytes() for each in arrays)])


def decode_cohort(content: bytes) -> tuple[Cohort, str]:
    """Return the cohort and the head that :func:`encode_cohort` was given.

    Raises
    ------
    ValueError
        Says what is wrong.
    """
    first, _, body = content.partition(b"\n")
    try:
        header = json.loads(first)
        if header["format"] != _FORMAT:
            raise ValueError("another version of fedclust wrote it")
        n, m = int(header["persons"]), int(header["groups"])
        shapes: list[tuple[str, tuple[int, ...]]] = [
            (dtype, (m,) if name in ("sizes", "used") else (n,)) for name, dtype in ARRAYS.items()
        ]
        shapes += [("float64", (m,)), ("bool", (m,)), ("uint8", (n,))] * len(header["columns"])
        for each in header["unions"]:
            shape = tuple(each["shape"])
            shapes += [("int32", (m,)), ("float64", shape), ("bool", shape)]
        arrays = iter(_split_arrays(body, shapes))
        by_name = {name: next(arrays) for name in ARRAYS}
        pinned = [
            PinnedColumn(_column(each), rule, *(next(arrays) for _ in range(3)))
            for each in header["columns"]
            for rule in [each.pop("rule")]
        ]
        unions = [Unions(each["p"], *(next(arrays) for _ in range(3))) for each in header["unions"]]
        cohort = replace(
            Cohort.empty(header["table_id"], header["p"], has_ids=header["has_ids"]),
            least=header["least"],
            columns=tuple(pinned),
            unions=tuple(unions),
            **by_name,
        )
        return cohort, str(header["head"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"its first line is not what it should be: {error}") from None


def _column(raw: dict[str, Any]) -> TableColumn:
    return TableColumn(**{**raw, "order": tuple(raw["order"])})


def _split_arrays(body: bytes, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> list[Any]:
    """Return the arrays that ``body`` holds one after another."""
    lengths = [np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in shapes]
    # Checked before memory is allocated.
    if min(lengths) < 0 or sum(lengths) != len(body):
        raise ValueError("its arrays do not have the size that its first line says")
    starts = np.cumsum([0, *lengths]).tolist()
    return [
        np.frombuffer(body, dtype, math.prod(shape), start).reshape(shape)
        for (dtype, shape), start in zip(shapes, starts, strict=False)
    ]
