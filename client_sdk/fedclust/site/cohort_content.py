"""A cohort as bytes, as the state stores it: a JSON line, then its arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedclust.protection.cohort import ARRAYS, Cohort, PinnedColumn
from fedclust.protection.columns import LevelColumn, NumericColumn, source_names

_FORMAT = 1


def encode_cohort(cohort: Cohort, head: str) -> bytes:
    """Return a cohort as bytes, with the head of its last change."""
    header = {
        "format": _FORMAT,
        "head": head,
        "persons": len(cohort.keys),
        "groups": len(cohort.sizes),
        "table_id": cohort.table_id,
        "p": cohort.p,
        "fences": cohort.fences,
        "has_ids": cohort.has_ids,
        "columns": [
            asdict(each.column) | {"rules": each.rules, "share": each.share}
            for each in cohort.columns
        ],
    }
    arrays = [np.asarray(getattr(cohort, name), dtype) for name, dtype in ARRAYS.items()]
    for each in cohort.columns:
        arrays += [each.released, each.decided, each.prints]
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
        columns = [_column(each) for each in header["columns"]]
        shapes: list[tuple[str, tuple[int, ...]]] = [
            (dtype, (m,) if name in ("sizes", "used") else (n,)) for name, dtype in ARRAYS.items()
        ]
        for column in columns:
            width = () if isinstance(column, NumericColumn) else (column.n_levels,)
            prints = (n, len(source_names(column)))
            shapes += [("float64", (m, *width)), ("bool", (m,)), ("uint8", prints)]
        arrays = iter(_split_arrays(body, shapes))
        by_name = {name: next(arrays) for name in ARRAYS}
        pinned = [
            PinnedColumn(
                column, tuple(each["rules"]), each["share"], *(next(arrays) for _ in range(3))
            )
            for column, each in zip(columns, header["columns"], strict=True)
        ]
        cohort = replace(
            Cohort.empty(header["table_id"], header["p"], fences=header["fences"]),
            has_ids=header["has_ids"],
            columns=tuple(pinned),
            **by_name,
        )
        return cohort, str(header["head"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"its first line is not what it should be: {error}") from None


def _column(raw: Mapping[str, Any]) -> NumericColumn | LevelColumn:
    if "step" in raw:
        fences, common = (raw["lower"], raw["upper"]), tuple(raw["values"])
        return NumericColumn(raw["name"], raw["step"], raw["origin"], *fences, common)
    values = tuple(tuple(each) for each in raw["values"])
    return LevelColumn(tuple(raw["names"]), raw["n_levels"], values)


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
