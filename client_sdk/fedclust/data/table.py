"""A site's rows in the session's columns: in memory, or read when they are labelled."""

import hashlib
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.data.chunks import MISSING, Origin
from fedclust.data.decode import looks_like_a_value
from fedclust.data.known_names import is_id
from fedclust.data.mapping import Dataset, as_dataset
from fedclust.data.outcome_rows import CellArray
from fedclust.data.persons import person_names
from fedclust.data.row_source import BLOCK, RowSource, matrix_of
from fedclust.data.row_warnings import NewRowWarnings, RowWarnings, TypicalValues
from fedclust.data.sources import open_reader
from fedclust.schema.encoding import columns_of
from fedclust.schema.feature import Feature, Outcome
from fedclust.wire.errors import DataError

#: An array (n, d) whose columns are the session's features in order, then the columns of outcomes
#: that are no features (of a time the time, then the event); a pandas or Dask DataFrame or Dask
#: array; the path of a CSV, Excel, Parquet or SQL file; a SqlQuery; or one of these in a Dataset.
Source: TypeAlias = Any

#: Identifiers are known by so many rows; of these so many values differ, and this share of them.
_ID_ROWS: Final = 4_096
_LEAST_IDS: Final = 30
_IDS_DIFFER: Final = 0.95
_ID: Final = re.compile(r"[\w/-]*\d[\w/-]*")


@dataclass(frozen=True)
class Table:
    """A site's rows.

    Attributes
    ----------
    X : (n, d) float64
        The session's columns, as ``schema.encoding.encode_features`` gives them: NaN where missing.
    features : tuple of str
        Features that the source has, the columns of the others are NaN; and outcomes for which it
        has the columns.
    ids : tuple of str or None
        Row identifiers for the label file. Never features, never sent.
    columns : tuple of str
        Features with a column in the source, even an empty one. New rows are labelled by these, so
        that a row's label does not depend on the other rows.
    cells : (n, q) int8 or None
        The cell of each row in each outcome; None without outcomes.
    """

    X: NDArray[np.float64] = field(repr=False)
    features: tuple[str, ...]
    ids: tuple[str, ...] | None = field(default=None, repr=False)
    columns: tuple[str, ...] = ()
    cells: CellArray | None = field(default=None, repr=False)

    def blocks(self) -> Iterator[tuple[NDArray[np.float64], Sequence[str] | None]]:
        """Yield all rows and their identifiers, as :meth:`LabelRows.blocks` does."""
        yield self.X, self.ids

    def digest(self) -> str:
        """Return the SHA-256 of these rows and features."""
        digest = hashlib.sha256(repr((self.features, self.X.shape)).encode())
        for start in range(0, len(self.X), BLOCK):
            rows = self.X[start : start + BLOCK]
            digest.update(canonical_bytes(rows))
        if self.cells is not None:
            digest.update(self.cells.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class LabelRows:
    """Rows to label: read a block at a time when they are labelled, and not kept.

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
        The features that rows are labelled by; None for all with a column in the source.
    new : bool
        Whether the rows took no part, so that nobody has checked them: a DataWarning names each
        column with values outside the session's bounds, with values that seem to be in another
        unit, or with codes that the session does not know.
    typical : mapping of str to (float, float)
        For ``new``: of numbers, by feature, the mean of the session's persons and their standard
        deviation, after the feature's transform.
    outcomes : tuple of Outcome
        The session's. Rows are labelled without them, and the digest covers them.

    Raises
    ------
    DataError
        The message names file, column, row and rule, but no value.
    """

    source: Source = field(repr=False)
    session: tuple[Feature, ...]
    id_column: str | None = None
    lacking: bool = False
    held: tuple[str, ...] | None = None
    new: bool = False
    typical: TypicalValues = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The features that rows are labelled by, and the outcomes that the site answers."""
        if self.held is not None:
            return self.held
        rows = self._opened()
        rows.reader.close()
        return rows.declared(rows.own_columns)

    def digest(self) -> str:
        """Return the SHA-256 of these rows."""
        declared = "\n".join(each.model_dump_json() for each in (*self.session, *self.outcomes))
        digest = hashlib.sha256(declared.encode())
        rows = self._opened()
        for block in rows.scan():
            values = np.column_stack([rows.matrix(block), rows.cells(block)])
            digest.update(canonical_bytes(values))
        rows.refuse()
        return digest.hexdigest()

    def blocks(self) -> Iterator[tuple[NDArray[np.float64], list[str] | None]]:
        """Yield rows (m, d) in the session's columns, NaN where missing, and their identifiers."""
        rows = self._opened()
        checks = NewRowWarnings(rows, self.typical) if self.new else None
        for block in rows.scan():
            if checks is not None:
                checks.add(block)
            yield rows.matrix(block), block.text.get(self.id_column or "")
        rows.refuse()
        if checks is not None:
            checks.warn()

    def _opened(self) -> RowSource:
        text = () if self.id_column is None else (self.id_column,)
        return RowSource(
            self.source, self.session, text=text, lacking=self.lacking, outcomes=self.outcomes
        )


def canonical_bytes(X: NDArray[np.float64]) -> bytes:
    """Return rows as bytes with one NaN for all missing values, however a source spells them."""
    return np.where(np.isnan(X), np.nan, X).astype("<f8").tobytes()


def load(
    source: Source,
    features: Sequence[Feature],
    *,
    person: str | Sequence[Any] | NDArray[Any] | None = None,
    id_column: str | None = None,
    lacking: bool = False,
    new: bool = False,
    outcomes: Sequence[Outcome] = (),
) -> Table:
    """Read rows and check them against a session's features.

    Parameters
    ----------
    source : Source
        A table's columns are found by name, and others are ignored.
    features : sequence of Feature
    person : str or sequence of length n, optional
        Column that says which person a row belongs to, or its values: each row needs one.
    id_column : str, optional
        Column that names the rows in the label file.
    lacking : bool
        Whether the source may lack some features (``missing: mask``): columns that are absent, have
        no value, or have fewer than the data set's ``min_present``.
    new : bool
        Whether these are rows to label that took no part: ``min_present`` does not apply to them,
        and a DataWarning also counts the values outside the session's bounds.
    outcomes : sequence of Outcome
        To be read too; they are not columns of ``X``.

    Raises
    ------
    DataError
        The message names file, column, row and rule, but no value.
    """
    person_column = person if isinstance(person, str) else None
    text = [column for column in (person_column, id_column) if column is not None]
    rows = RowSource(source, features, text=text, lacking=lacking, outcomes=outcomes)
    if isinstance(source, Dataset) and source.options.out_of_core:
        message = "protection: none needs all rows in memory; omit out_of_core= (--out-of-core)"
        raise rows.origin.fault("out-of-core", message)
    kept: dict[str, list[str]] = {name: [] for name in text}
    numbers, parts = array("q"), []
    own_cells: list[CellArray] = []
    present = np.zeros(len(features), dtype=np.int64)
    checks = NewRowWarnings(rows, {}) if new else RowWarnings(rows, missing=True)
    for block in rows.scan():
        checks.add(block)
        for name, cells in kept.items():
            cells += block.text[name]
        if person is not None:
            numbers.extend(block.numbers or ())
        values = rows.session_values(block)[: len(features)]
        present += [np.count_nonzero(~np.isnan(each)) for each in values]
        parts.append(matrix_of(features, values))
        if outcomes:
            own_cells.append(rows.cells(block))
    rows.refuse()
    checks.warn()
    X = np.concatenate(parts)
    origin = Origin(rows.origin.source, rows.origin.unit, numbers or None)
    if person is not None:
        person_names(origin, len(X), kept[person] if isinstance(person, str) else person)
    ids = tuple(kept[id_column]) if id_column is not None else None
    held = rows.held(present / len(X), 0.0 if new else rows.min_present)
    # The methods must not see values of a feature that counts as lacking.
    X[:, [column.feature not in held for column in columns_of(tuple(features))]] = np.nan
    return Table(
        X,
        held,
        ids,
        rows.own_columns,
        np.concatenate(own_cells) if own_cells else None,
    )


def read_text_column(source: Source, column: str) -> tuple[str, ...]:
    """Return a column of a table as text, such as the identifiers of its rows; DataError."""
    dataset = as_dataset(source)
    reader = open_reader(dataset, dataset.options.resolved(), (), (column,), (column,))
    cells: list[str] = []
    for chunk in reader.chunks((), (column,), BLOCK):
        cells += chunk.text[column]
    return tuple(cells)


def likely_ids(source: Source, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of those of a table's columns that look like identifiers; DataError.

    Their names say so, or their values in the first rows: nearly all differ, and each is a whole
    number or a word with digits.
    """
    if not columns:
        return {}
    dataset = as_dataset(source)
    reader = open_reader(dataset, dataset.options.resolved(), (), columns, columns)
    first = next(iter(reader.chunks((), columns, _ID_ROWS)))
    ids = [name for name in columns if is_id(name) or are_ids(first.text[name])]
    cells = {name: read_text_column(source, name) for name in ids}
    # A "case" with few values is no id.
    return {name: each for name, each in cells.items() if len(set(each)) ** 2 >= len(each)}


def are_ids(cells: Sequence[str]) -> bool:
    """Return whether values look like identifiers: nearly all differ, and they have digits."""
    given = [cell for cell in map(str.strip, cells) if cell.casefold() not in MISSING]
    differ = len(set(given)) >= max(_LEAST_IDS, _IDS_DIFFER * len(given))
    return differ and all(
        each.isdecimal() or (_ID.fullmatch(each) and not looks_like_a_value(each)) for each in given
    )


#: A file with the columns ``new`` and ``old``, or the old id of each new one.
IdMap: TypeAlias = str | os.PathLike[str] | Mapping[str, str]


def read_id_map(given: IdMap | None) -> Mapping[str, str]:
    """Return the old id of each new one.

    Parameters
    ----------
    given : path, mapping of str to str, or None
        A file that :class:`fedclust.data.Dataset` reads, with the columns ``new`` and ``old``; or
        the old ids by new id.

    Raises
    ------
    DataError
        The file cannot be read, lacks an id, or has one twice. No message contains an id.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        name, pairs = "id_map", [(str(new), str(old)) for new, old in given.items()]
    else:
        path = Path(given)
        name = path.name
        columns = (read_text_column(path, each) for each in ("new", "old"))
        pairs = list(zip(*columns, strict=True))
    found: dict[str, str] = {}
    earlier: set[str] = set()
    for row, (new, old) in enumerate(((a.strip(), b.strip()) for a, b in pairs), start=1):
        if not new or not old:
            raise DataError(name, "id-map", "a new or an old id is missing", row=row)
        if new in found or old in earlier:
            which = "new" if new in found else "old"
            message = f"the {which} id is in an earlier row too; a person has one of each"
            raise DataError(name, "id-map", message, row=row)
        found[new] = old
        earlier.add(old)
    return found
