"""A cohort as the bytes of its file: a JSON line, then its arrays."""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclust import errors
from fedclust.protection.cohort import ARRAYS, Cohort, PinnedColumn
from fedclust.protection.columns import LevelColumn, NumericColumn, source_names

RESTORE = "Bring the directory back from a backup (fedclust cohort backup)"
_FORMAT = 1


def key_check(secret: bytes) -> str:
    """Return a value that is the same for all files written with one key."""
    return hmac.digest(secret, b"fedclust cohort", "sha256")[:8].hex()


def encode_cohort(cohort: Cohort, history: Sequence[Mapping[str, Any]], check: str) -> bytes:
    """Return the contents of a cohort's file; ``check`` is :func:`key_check`."""
    header = {
        "format": _FORMAT,
        "key": check,
        "persons": len(cohort.keys),
        "groups": len(cohort.sizes),
        "table_id": cohort.table_id,
        "p": cohort.p,
        "fences": cohort.fences,
        "has_ids": cohort.has_ids,
        "base": cohort.base,
        "aliases": dict(cohort.aliases),
        "columns": [
            asdict(each.column)
            | {"rules": each.rules, "share": each.share, "versions": each.prints.shape[2]}
            for each in cohort.columns
        ],
        "history": history,
    }
    arrays = [np.asarray(getattr(cohort, name), dtype) for name, dtype in ARRAYS.items()]
    for each in cohort.columns:
        arrays += [each.released, each.decided, each.prints]
    return b"\n".join([json.dumps(header).encode(), b"".join(each.tobytes() for each in arrays)])


def decode_cohort(
    path: Path, data: bytes, check: str
) -> tuple[Cohort, tuple[Mapping[str, Any], ...]]:
    """Return the cohort in ``data``, read from ``path``, and its history.

    Raises
    ------
    CohortDamaged
    CohortForeign
        The file was written with another key.
    """
    head, _, body = data.partition(b"\n")
    try:
        header = json.loads(head)
        if header["format"] != _FORMAT:
            raise errors.CohortDamaged(
                f"{path} has format {header['format']}, which this version of fedclust does not "
                "know: pip install --upgrade fedclust"
            )
        if header["key"] != check:
            raise errors.CohortForeign(
                f"{path} was written with another key than {path.with_name('key')}. {RESTORE}, "
                "with the key that belongs to it"
            )
        n, m = int(header["persons"]), int(header["groups"])
        columns = [_column(each) for each in header["columns"]]
        shapes: list[tuple[str, tuple[int, ...]]] = [
            (dtype, (m,) if name in ("sizes", "used") else (n,)) for name, dtype in ARRAYS.items()
        ]
        for column, each in zip(columns, header["columns"], strict=True):
            width = () if isinstance(column, NumericColumn) else (column.n_levels,)
            prints = (n, len(source_names(column)), int(each["versions"]))
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
            base=tuple(header["base"]),
            aliases=header["aliases"],
            columns=tuple(pinned),
            **by_name,
        )
        return cohort, tuple(header["history"])
    except (ValueError, KeyError, TypeError) as error:
        raise errors.CohortDamaged(f"{path} cannot be read ({error}). {RESTORE}") from None


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
