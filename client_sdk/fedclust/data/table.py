"""A site's rows as the session's features, checked before anything is sent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Feature
from fedclust.data.csvfile import read_csv
from fedclust.data.frame import is_frame, read_frame
from fedclust.data.raw import MISSING, Origin, RawTable

#: An array (n, d) whose columns are the session's features in their order, a pandas DataFrame, or
#: the path of a CSV file.
Source: TypeAlias = Any
_BLOCK = 65_536


@dataclass(frozen=True)
class Table:
    """A site's rows.

    Attributes
    ----------
    X : (n, d) float64
        Own units, the session's order of features, NaN where a value is missing.
    features : tuple of str
        Those that the source has; the columns of the others are NaN.
    persons : (n,) int64 or None
        Which person a row belongs to, numbered by first appearance.
    ids : tuple of str or None
        Row identifiers for the label file. Never features, never sent.
    columns : tuple of str
        Those that the source has a column for, if only an empty one: what new rows are labelled
        by does not hang on which of them come together.
    """

    X: NDArray[np.float64] = field(repr=False)
    features: tuple[str, ...]
    persons: NDArray[np.int64] | None = field(default=None, repr=False)
    ids: tuple[str, ...] | None = field(default=None, repr=False)
    columns: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return the SHA-256 that tells these rows, persons and features from any others."""
        digest = hashlib.sha256(repr((self.features, self.X.shape)).encode())
        for start in range(0, len(self.X), _BLOCK):
            rows = self.X[start : start + _BLOCK]
            # One NaN for all: what is missing is missing, however a source spelled it.
            digest.update(np.where(np.isnan(rows), np.nan, rows).astype("<f8").tobytes())
        if self.persons is not None:
            digest.update(b"persons" + self.persons.astype("<i8").tobytes())
        return digest.hexdigest()


def load(
    source: Source,
    features: Sequence[Feature],
    *,
    person: str | Sequence[Any] | NDArray[Any] | None = None,
    id_column: str | None = None,
    lacking: bool = False,
) -> Table:
    """Read rows and check them against a session's features.

    Parameters
    ----------
    source : array (n, d), DataFrame or path of a CSV file
        An array's columns are the features, in the session's order; a table's are found by name,
        and others are left alone.
    features : sequence of Feature
    person : str or sequence of length n, optional
        Column that says which person a row belongs to, or its values.
    id_column : str, optional
        Column that names the rows in the label file.
    lacking : bool
        Whether the source may lack features (``missing: mask``), though not all of them: columns
        that are not there, or hold no value.

    Raises
    ------
    DataError
        Names file, column, row and rule; never a value.
    """
    names = [feature.name for feature in features]
    person_column = person if isinstance(person, str) else None
    text = list(dict.fromkeys(c for c in (person_column, id_column) if c is not None))
    for name in text:
        if name in names:
            message = "it identifies rows or persons and may not be a feature of the session"
            raise Origin(_describe(source)).fault("reserved-column", message, column=name)
    if isinstance(source, (str, os.PathLike)):
        raw = read_csv(Path(source), names, text, lacking=lacking)
    elif is_frame(source):
        raw = read_frame(source, names, text, lacking=lacking)
    else:
        raw = _read_array(source, names, text)
    for place, feature in enumerate(features):
        _check_column(raw.X[:, place], feature, raw.origin)
    persons = None
    if person is not None:
        persons = _persons(raw, raw.text[person] if isinstance(person, str) else person)
    ids = tuple(raw.text[id_column]) if id_column is not None else None
    held = tuple(names)
    if lacking:
        held = tuple(name for j, name in enumerate(names) if not np.isnan(raw.X[:, j]).all())
        if not held:
            raise raw.origin.fault("no-features", "it has none of the session's features")
    columns = tuple(names) if raw.columns is None else raw.columns
    return Table(np.ascontiguousarray(raw.X), held, persons, ids, columns)


def _describe(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return Path(source).name
    return "the DataFrame" if is_frame(source) else "the array"


def _read_array(source: Any, names: Sequence[str], text: Sequence[str]) -> RawTable:
    origin = Origin("the array")
    if text:
        message = "an array has no column names: give a table, or the persons themselves"
        raise origin.fault("missing-column", message, column=text[0])
    try:
        if isinstance(source, np.ma.MaskedArray):
            # As an array it would show the numbers under the mask.
            source = np.ma.filled(source.astype(np.float64), np.nan)
        X = np.asarray(source)
    except ValueError:
        raise origin.fault("shape", "the rows are not equally long") from None
    if X.dtype.kind not in "iufb":
        raise origin.fault("not-a-number", f"it holds {X.dtype.name}, not numbers")
    if X.ndim != 2 or X.shape[1] != len(names):
        message = f"its shape is {X.shape}; the session needs (n, {len(names)})"
        raise origin.fault("shape", message)
    if not len(X):
        raise origin.fault("no-rows", "there are no rows")
    return RawTable(X.astype(np.float64), origin)


def _check_column(values: NDArray[np.float64], feature: Feature, origin: Origin) -> None:
    """Refuse what the session does not allow in a column, with how many rows it concerns."""
    present = ~np.isnan(values)
    faults = [("not-finite", "infinite", np.isinf(values))]
    if feature.kind == "binary":
        outside = present & (values != 0) & (values != 1)
        faults.append(("not-binary", "neither 0 nor 1", outside))
    if feature.lower is not None:
        below = present & (values < feature.lower)
        faults.append(("bounds", f"below the session's lower bound {feature.lower:g}", below))
    if feature.upper is not None:
        above = present & (values > feature.upper)
        faults.append(("bounds", f"above the session's upper bound {feature.upper:g}", above))
    for rule, what, wrong in faults:
        count = int(wrong.sum())
        if count:
            rows = "1 row" if count == 1 else f"{count} rows, of which this is the first"
            message = f"{what}: {rows}"
            first = int(np.argmax(wrong))
            raise origin.fault(rule, message, column=feature.name, index=first, count=count)


def _persons(raw: RawTable, values: Any) -> NDArray[np.int64]:
    keys = [str(value).strip() for value in np.asarray(values).ravel().tolist()]
    if len(keys) != len(raw.X):
        message = f"{len(keys)} persons were given for {len(raw.X)} rows"
        raise raw.origin.fault("persons", message)
    numbers: dict[str, int] = {}
    for index, key in enumerate(keys):
        if key.lower() in MISSING:
            message = "no person is given; each row needs one"
            raise raw.origin.fault("persons", message, index=index)
        numbers.setdefault(key, len(numbers))
    return np.array([numbers[key] for key in keys], dtype=np.int64)
