"""A site's rows as the session's features, checked before anything is sent."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.data.chunks import Origin
from fedclust.data.mapping import Dataset
from fedclust.data.persons import person_names
from fedclust.data.row_source import BLOCK, RowBlock, RowSource
from fedclust.schema.encoding import columns_of
from fedclust.schema.feature import Feature

#: An array (n, d) whose columns are the session's features in their order; a pandas or Dask
#: DataFrame or Dask array; the path of a CSV, Parquet or SQL file; a SqlQuery; or any of these in a
#: Dataset, which says how to read it.
Source: TypeAlias = Any


@dataclass(frozen=True)
class Table:
    """A site's rows.

    Attributes
    ----------
    X : (n, d) float64
        The session's columns, as ``schema.encoding.encode`` gives them: NaN where missing.
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
        for start in range(0, len(self.X), BLOCK):
            rows = self.X[start : start + BLOCK]
            # One NaN for all: what is missing is missing, however a source spelled it.
            digest.update(np.where(np.isnan(rows), np.nan, rows).astype("<f8").tobytes())
        if self.persons is not None:
            digest.update(b"persons" + self.persons.astype("<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class LabelRows:
    """Rows to label: read a block at a time whenever they are labelled, and not kept.

    Attributes
    ----------
    source : Source
    session : tuple of Feature
        The session's features.
    id_column : str or None
        Column that names the rows.
    lacking : bool
        Whether the source may lack features (``missing: mask``).
    held : tuple of str or None
        The features that decide the labels; None: all that the source has a column for.

    Raises
    ------
    DataError
        Names file, column, row and rule; never a value.
    """

    source: Source = field(repr=False)
    session: tuple[Feature, ...]
    id_column: str | None = None
    lacking: bool = False
    held: tuple[str, ...] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """The features that decide the labels."""
        return self._opened().columns if self.held is None else self.held

    def digest(self) -> str:
        """Return the SHA-256 that tells these rows from any others."""
        digest = hashlib.sha256(repr(self.session).encode())
        for X, _ in self.blocks():
            # One NaN for all: what is missing is missing, however a source spelled it.
            digest.update(np.where(np.isnan(X), np.nan, X).astype("<f8").tobytes())
        return digest.hexdigest()

    def blocks(self) -> Iterator[tuple[NDArray[np.float64], list[str] | None]]:
        """Yield rows (m, d) in the session's columns, NaN where missing, and their identifiers."""
        rows = self._opened()
        for block in rows.scan():
            yield rows.matrix(block), block.text.get(self.id_column or "")
        rows.refuse()

    def _opened(self) -> RowSource:
        text = () if self.id_column is None else (self.id_column,)
        return RowSource(self.source, self.session, text=text, lacking=self.lacking)


def load(
    source: Source,
    features: Sequence[Feature],
    *,
    person: str | Sequence[Any] | NDArray[Any] | None = None,
    id_column: str | None = None,
    lacking: bool = False,
    new: bool = False,
) -> Table:
    """Read rows and check them against a session's features.

    Parameters
    ----------
    source : Source
        An array's columns are the features, in the session's order; a table's are found by name,
        and others are left alone.
    features : sequence of Feature
    person : str or sequence of length n, optional
        Column that says which person a row belongs to, or its values.
    id_column : str, optional
        Column that names the rows in the label file.
    lacking : bool
        Whether the source may lack features (``missing: mask``), though not all of them: columns
        that are not there, hold no value, or hold fewer than the data set's ``min_present``.
    new : bool
        Whether these are rows to be labelled that took no part: ``min_present`` is not for them.

    Raises
    ------
    DataError
        Names file, column, row and rule; never a value.
    """
    person_column = person if isinstance(person, str) else None
    text = [column for column in (person_column, id_column) if column is not None]
    rows = RowSource(source, features, text=text, lacking=lacking)
    kept: dict[str, list[str]] = {name: [] for name in text}
    # Only persons are looked at when all rows were read; until then a block knows its lines.
    numbers = array("q") if person is not None else None
    present = np.zeros(len(rows.features), dtype=np.int64)

    def seen(block: RowBlock) -> RowBlock:
        nonlocal present
        here = rows.session_values(block)
        for name in kept:
            kept[name] += block.text[name]
        if numbers is not None:
            numbers.extend(block.numbers or ())
        given = (each >= 0 if each.dtype.kind == "i" else ~np.isnan(each) for each in here)
        present += np.array([np.count_nonzero(each) for each in given], dtype=np.int64)
        return block

    if isinstance(source, Dataset) and source.options.out_of_core:
        message = "with protection: none each row is sent for itself, and all are needed in memory"
        raise rows.origin.fault("out-of-core", f"{message}; leave --out-of-core away")
    X = np.concatenate([rows.matrix(seen(block)) for block in rows.scan()])
    rows.refuse()
    n = len(X)
    origin = Origin(rows.origin.source, rows.origin.unit, numbers or None)
    persons = None
    if person is not None:
        persons = _persons(origin, n, kept[person] if isinstance(person, str) else person)
    ids = tuple(kept[id_column]) if id_column is not None else None
    held = rows.held(present / n, lacking, 0.0 if new else rows.min_present)
    # What the site counts as lacking is nowhere to be found in what the methods get.
    absent = np.array([column.feature not in held for column in columns_of(rows.features)])
    X[:, absent] = np.nan
    return Table(X, held, persons, ids, rows.columns)


def _persons(origin: Origin, n: int, values: Any) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    keys = person_names(origin, n, values)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
