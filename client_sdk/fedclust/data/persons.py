"""A site's persons: one value for each person and column, in the site's own units and codes.

This is what the protected table is made from. The values depend on the source and the site's own
mapping alone; a session only says which columns it asks for.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.data.chunks import MISSING, Origin
from fedclust.data.mapping import Dataset
from fedclust.data.readings import FeatureReading
from fedclust.data.remarks import Remarks
from fedclust.data.row_source import RowBlock, RowSource, column_mark, spread
from fedclust.errors import DataError
from fedclust.protection.columns import (
    SourceColumn,
    TableColumn,
    collect_distinct,
    describe_columns,
)
from fedclust.protection.table import person_values
from fedclust.schema.feature import Feature

__all__ = ["PersonBlock", "SiteColumn", "SitePersons", "person_names", "read_persons"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: A column with more codes than this is text, not levels.
_MOST_CODES: Final = 1_000
#: Persons in a block, at least, where a source is larger than memory: just above the number up to
#: which groups are formed by slower means.
_PERSONS: Final = 51_200
#: Rows that are read at a time from such a source.
_ROWS: Final = 16_384
_REPEATED: Final = (
    "an earlier row has the same identifier; where it names persons, give it as --person-column"
)
#: Persons whose rows describe the columns of such a source.
_SAMPLE: Final = 16_384


@dataclass(frozen=True)
class SiteColumn:
    """How a column of the site is read. Pinned with the first table that holds it.

    Attributes
    ----------
    name : str
        Its name at the site; of an array the feature's.
    codes : tuple of str or None
        The codes of its levels; other codes are missing values. None for numbers.
    by_vote : bool
        Whether a person's value is the commonest of the person's rows; else their mean.
    rule : str
        Digest of the missing markers, sentinels and decimal mark.
    unit : str
        Unit of its numbers at the site, as far as it is known.
    """

    name: str
    codes: tuple[str, ...] | None = field(repr=False)
    by_vote: bool
    rule: str
    unit: str

    def source(self, values: FloatArray) -> SourceColumn:
        """Return values as a column of the table; two codes are a yes/no column."""
        coded = self.codes is not None and len(self.codes) != 2
        return SourceColumn(self.name, values, len(self.codes or ()) if coded else None)


@dataclass(frozen=True)
class PersonBlock:
    """Some persons of a site: their keys, None without a column of them, and their values."""

    n: int
    keys: tuple[str, ...] | None = field(repr=False)
    sources: tuple[SourceColumn, ...] = field(repr=False)


@dataclass(frozen=True)
class SitePersons:
    """The persons of a source.

    Attributes
    ----------
    source : str
        What messages call it.
    columns : tuple of SiteColumn
        In the order of the session's features; those that there is a column for.
    readings : tuple of FeatureReading
        How each of the session's features follows from a column.
    n_rows, n_persons : int
    marks : dict of str to int
        By column a number that tells its values, row by row, from others.
    min_present : float
        The share of persons with a value below which a feature counts as lacking.
    sample : tuple of SourceColumn
        The persons that tell how the columns are released: all, or some from the whole source.
    """

    source: str
    columns: tuple[SiteColumn, ...]
    readings: tuple[FeatureReading, ...]
    n_rows: int
    n_persons: int
    marks: Mapping[str, int]
    min_present: float
    sample: tuple[SourceColumn, ...] = field(repr=False)
    _blocks: Callable[[], Iterator[PersonBlock]] = field(repr=False)

    def blocks(self) -> Iterator[PersonBlock]:
        """Yield all persons: in one block, or in several of a source that stays on disk.

        Raises
        ------
        DataError
            The source cannot be read any more, or holds other rows than before.
        """
        return self._blocks()

    def describe(self, p: int, *, fences: bool = True) -> tuple[TableColumn, ...]:
        """Return how a table of these persons releases its columns.

        Of a source that stays on disk a sample spread over all of it decides.
        """
        return describe_columns(self.sample, p, fences=fences)

    def codes(self) -> dict[str, tuple[str, ...] | None]:
        """Return the codes of each column by name; None for numbers."""
        return {column.name: column.codes for column in self.columns}


def read_persons(
    source: Any,
    features: Sequence[Feature],
    *,
    person: str | Sequence[Any] | NDArray[Any] | None = None,
    id_column: str | None = None,
    lacking: bool = False,
    pinned: Mapping[str, SiteColumn] | None = None,
) -> SitePersons:
    """Read the columns that a session asks for, one value a person.

    Parameters
    ----------
    source : Source
    features : sequence of Feature
        The session's. Their names find the columns; where a column is read for the first time,
        their kind says whether it holds numbers or codes.
    person : str or sequence of length n, optional
        Column that says which person a row belongs to, or its values.
    id_column : str, optional
        Column that names rows; without ``person`` each row is a person of that name.
    lacking : bool
        Whether the source may lack columns (``missing: mask``).
    pinned : mapping of str to SiteColumn, optional
        By column name: how it was read before.

    Raises
    ------
    DataError
        Names file, column, row and rule; never a value.
    """
    pinned = pinned or {}
    named = person if isinstance(person, str) else id_column if person is None else None
    text = [name for name in (named, id_column) if name is not None]
    codes = {name: column.codes for name, column in pinned.items()}
    rows = RowSource(source, features, text=text, lacking=lacking, codes=codes)
    _refuse_other_rules(rows, pinned)
    reading = _Reading(rows, person, named, pinned)
    if isinstance(source, Dataset) and source.options.out_of_core:
        return reading.by_blocks()
    return reading.at_once()


def person_names(origin: Origin, n: int, values: Any) -> list[str]:
    """Return persons as text, one for each row; DataError where a row has none."""
    keys = [_key(value) for value in np.asarray(values).ravel().tolist()]
    if len(keys) != n:
        raise origin.fault("persons", f"{len(keys)} persons were given for {n} rows")
    for index, key in enumerate(keys):
        if key.casefold() in MISSING:
            message = "no person is given; each row needs one"
            raise origin.fault("persons", message, index=index)
    return keys


def _key(value: Any) -> str:
    """Return a person as text; "" for no date and no duration, which pandas calls NaT."""
    key = str(value).strip()
    return "" if key == "NaT" and not isinstance(value, str) else key


def _refuse_other_rules(rows: RowSource, pinned: Mapping[str, SiteColumn]) -> None:
    """Refuse columns that would be read in another way than before."""
    for reading in rows.readings:
        before = pinned.get(reading.column or "")
        if before is None:
            continue
        name, unit = reading.feature.name, _unit(rows, reading)
        if rows.rule(name).digest() != before.rule:
            message = "it was first read with other missing markers, sentinels or decimal mark, "
            message += "and what was released cannot change: give the same options as then"
            raise rows.origin.fault("pinned", message, column=before.name)
        if unit and before.unit and unit != before.unit:
            message = f"it was first read in {before.unit!r}, and would now be in {unit!r}; say "
            message += "factor, offset and to in the mapping file"
            raise rows.origin.fault("unit", message, column=before.name)


def _unit(rows: RowSource, reading: FeatureReading) -> str:
    """Return the unit of a column's numbers here; "" where it is not known."""
    rule = rows.rules[reading.feature.name]
    if rule.unit is not None:
        return rule.unit
    return "" if rule.to is not None else reading.feature.unit


class _Reading:
    """One reading of a source: what its passes have in common."""

    def __init__(
        self,
        rows: RowSource,
        person: Any,
        named: str | None,
        pinned: Mapping[str, SiteColumn],
    ) -> None:
        self.rows, self.pinned, self.named = rows, pinned, named
        self.origin = rows.origin
        #: Whether several rows may belong to one person.
        self.grouped = person is not None
        self.given = None if person is None or isinstance(person, str) else person
        self.places = [j for j, each in enumerate(rows.readings) if each.column is not None]

    # --- in memory --------------------------------------------------------------------------------

    def at_once(self) -> SitePersons:
        """Read all rows into memory."""
        remarks, parts, keys = Remarks(self.rows), [], []
        lines, n = array("q"), 0
        for block in self.rows.scan():
            remarks.add(block)
            parts.append([block.values[j] for j in self.places])
            if self.named is not None:
                keys += block.text[self.named]
            lines.extend(block.numbers or ())
            n += len(block)
        self.rows.refuse()
        remarks.warn()
        whole = [np.concatenate(each) for each in zip(*parts, strict=True)]
        columns = self._columns([len(collect_distinct(np.empty(0), each)) == 2 for each in whole])
        values = [self._final(*each) for each in zip(columns, whole, strict=True)]
        marks = {
            column.name: column_mark(0, _marked(column.codes, each))
            for column, each in zip(columns, values, strict=True)
        }
        origin = replace(self.origin, numbers=lines or None)
        if self.given is not None or self.named is not None:
            keys = person_names(origin, n, self.given if self.given is not None else keys)
        found = self._persons(columns, values, keys or None, origin)
        return self._found(columns, n, found.n, marks, found.sources, lambda: iter([found]))

    def _persons(
        self,
        columns: Sequence[SiteColumn],
        values: Sequence[FloatArray],
        keys: list[str] | None,
        origin: Origin,
    ) -> PersonBlock:
        """Return the persons of rows, in the order in which they appear first."""
        n = len(values[0]) if values else 0
        sources = tuple(column.source(each) for column, each in zip(columns, values, strict=True))
        if keys is None:
            return PersonBlock(n, None, sources)
        numbers: dict[str, int] = {}
        persons = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
        if self.grouped:
            sources = person_values(sources, persons, _voted(columns))
        elif len(numbers) < n:
            first = int(np.flatnonzero(persons != np.arange(n))[0])
            raise origin.fault("persons", _REPEATED, column=self.named, index=first)
        return PersonBlock(len(numbers), tuple(numbers), sources)

    # --- larger than memory -----------------------------------------------------------------------

    def by_blocks(self) -> SitePersons:
        """Read all rows once to describe the columns; they are read again for each use."""
        remarks, sample = Remarks(self.rows), _Sample()
        distinct = [np.empty(0) for _ in self.places]
        marks = [0] * len(self.places)
        seen, n_rows, last = array("q"), 0, None
        for block in self.rows.scan(_ROWS):
            remarks.add(block)
            values = [block.values[j] for j in self.places]
            distinct = [collect_distinct(*each) for each in zip(distinct, values, strict=True)]
            marks = self._added(marks, block)
            keys = self._keys(block)
            persons = np.arange(n_rows, n_rows + len(block))
            if keys is not None:
                begins = [key != before for key, before in zip(keys, [last, *keys], strict=False)]
                if not self.grouped:
                    begins = [True] * len(keys)
                persons = len(seen) - 1 + np.cumsum(begins)
                seen.extend(hash(key) for key, new in zip(keys, begins, strict=True) if new)
                last = keys[-1]
            sample.add(values, persons)
            n_rows += len(block)
        self.rows.refuse()
        n_persons = n_rows
        if self.named is not None or self.given is not None:
            n_persons = len(seen)
            if len(np.unique(np.frombuffer(seen, dtype=np.int64))) < n_persons:
                raise self._scattered()
        remarks.warn()
        columns = self._columns([len(each) == 2 for each in distinct])
        sampled = sample.sources(
            columns,
            [self._final(*each) for each in zip(columns, sample.values(), strict=True)],
            [self._final(*each) for each in zip(columns, distinct, strict=True)],
        )
        for column in columns:
            if column.codes is not None:
                self.rows.decoders[self._feature(column)].close(column.codes)
        expected = n_rows, marks, n_persons

        def blocks() -> Iterator[PersonBlock]:
            return self._stream(columns, expected)

        by_name = {column.name: mark for column, mark in zip(columns, marks, strict=True)}
        return self._found(columns, n_rows, n_persons, by_name, sampled, blocks)

    def _stream(
        self, columns: Sequence[SiteColumn], expected: tuple[int, list[int], int]
    ) -> Iterator[PersonBlock]:
        """Yield the persons in blocks of nearly one size."""
        count = max(1, expected[2] // _PERSONS)
        # The last block is what is left, when all rows are known to be the same.
        ends = np.arange(1, count) * expected[2] // count
        sizes = np.diff(ends, prepend=0).tolist()
        waiting: list[PersonBlock] = []
        kept: tuple[list[FloatArray], list[str]] | None = None
        n_rows, marks = 0, [0] * len(columns)
        for block in self.rows.scan(_ROWS):
            self.rows.refuse()
            n_rows += len(block)
            marks = self._added(marks, block)
            values = [block.values[j] for j in self.places]
            keys = self._keys(block)
            if self.grouped and keys is not None:
                if kept is not None:
                    values = [np.concatenate(each) for each in zip(kept[0], values, strict=True)]
                    keys = kept[1] + keys
                # The rows of the last person may go on in the next block.
                end = len(keys) - 1
                while end and keys[end - 1] == keys[-1]:
                    end -= 1
                kept = [each[end:] for each in values], keys[end:]
                values, keys = [each[:end] for each in values], keys[:end]
            waiting.append(self._persons(columns, values, keys, self.origin))
            while sizes and sum(each.n for each in waiting) >= sizes[0]:
                whole, size = _joined(waiting), sizes.pop(0)
                waiting = [_part(whole, slice(size, None))]
                yield _part(whole, slice(0, size))
        if kept is not None:
            waiting.append(self._persons(columns, *kept, self.origin))
        if (n_rows, marks) != expected[:2]:
            message = "it holds other rows than when it was read first; run the command again when "
            message += "nothing writes to it. A query needs an ORDER BY that leaves no ties, and a "
            message += "Dask graph that draws or shuffles a persist()"
            raise self.origin.fault("changed", message)
        if waiting:
            yield _joined(waiting)

    def _added(self, marks: list[int], block: RowBlock) -> list[int]:
        found = []
        for mark, place in zip(marks, self.places, strict=True):
            codes = self.rows.coded(self.rows.features[place].name)
            own = column_mark(block.start, _marked(codes, block.values[place]))
            found.append((mark + own) % 2**64)
        return found

    def _keys(self, block: RowBlock) -> list[str] | None:
        """Return the person of each row of a block; None where there are none."""
        values: Any = None
        if self.given is not None:
            values = self.given[block.start : block.start + len(block)]
        elif self.named is not None:
            values = block.text[self.named]
        if values is None:
            return None
        lines = block.numbers or range(block.start, block.start + len(block))
        return person_names(replace(self.origin, numbers=lines), len(block), values)

    def _scattered(self) -> DataError:
        if not self.grouped:
            return self.origin.fault("persons", _REPEATED, column=self.named)
        message = "rows of one person do not follow each other, as reading out of core needs; sort "
        message += "them by person, or leave --out-of-core away"
        return self.origin.fault("persons", message, column=self.named)

    # --- columns ----------------------------------------------------------------------------------

    def _columns(self, two_valued: Sequence[bool]) -> tuple[SiteColumn, ...]:
        """Return how the columns are read from now on, once all rows were seen."""
        found = []
        for place, two in zip(self.places, two_valued, strict=True):
            reading = self.rows.readings[place]
            name, feature = str(reading.column), reading.feature.name
            if name in self.pinned:
                found.append(self.pinned[name])
                continue
            decoder = self.rows.decoders[feature]
            codes = None
            if decoder.rule.coded:
                # Sorted: the list does not depend on the order of the rows.
                declared = decoder.codes[: decoder.n_declared]
                codes = (*declared, *sorted(decoder.codes[decoder.n_declared :]))
                if len(codes) > _MOST_CODES:
                    message = f"it holds {len(codes)} different codes, and levels are at most "
                    message += f"{_MOST_CODES}; is it text or an identifier?"
                    raise self.origin.fault("too-many-levels", message, column=name)
            rule, unit = decoder.rule.digest(), _unit(self.rows, reading)
            found.append(SiteColumn(name, codes, codes is not None or two, rule, unit))
        return tuple(found)

    def _final(self, column: SiteColumn, values: FloatArray) -> FloatArray:
        """Return values with the places of codes as the column has them in the end."""
        if column.codes is None:
            return values
        met = self.rows.decoders[self._feature(column)].codes
        places = {code: float(place) for place, code in enumerate(column.codes)}
        moved = np.array([*(places[code] for code in met), np.nan])
        return np.asarray(moved[np.where(np.isnan(values), len(met), values).astype(np.int64)])

    def _feature(self, column: SiteColumn) -> str:
        return next(r.feature.name for r in self.rows.readings if r.column == column.name)

    def _found(
        self,
        columns: tuple[SiteColumn, ...],
        n_rows: int,
        n_persons: int,
        marks: dict[str, int],
        sample: tuple[SourceColumn, ...],
        blocks: Callable[[], Iterator[PersonBlock]],
    ) -> SitePersons:
        return SitePersons(
            self.origin.source,
            columns,
            self.rows.readings,
            n_rows,
            n_persons,
            marks,
            self.rows.min_present,
            sample,
            blocks,
        )


def _marked(codes: Sequence[str] | None, values: FloatArray) -> NDArray[np.uint64]:
    """Return what stands for values in a column's mark; of codes what they are, not where."""
    if codes is None:
        # One NaN for all: what is missing is missing, however a source spelled it.
        return np.where(np.isnan(values), np.nan, values).view(np.uint64)
    own = np.array([*map(_spread_text, codes), 0], dtype=np.uint64)
    return np.asarray(own[np.where(np.isnan(values), len(codes), values).astype(np.int64)])


@lru_cache(maxsize=4096)
def _spread_text(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _joined(blocks: Sequence[PersonBlock]) -> PersonBlock:
    if len(blocks) == 1:
        return blocks[0]
    keys = None
    if blocks[0].keys is not None:
        keys = tuple(key for block in blocks for key in block.keys or ())
    sources = tuple(
        replace(each[0], values=np.concatenate([source.values for source in each]))
        for each in zip(*(block.sources for block in blocks), strict=True)
    )
    return PersonBlock(sum(block.n for block in blocks), keys, sources)


def _part(block: PersonBlock, part: slice) -> PersonBlock:
    keys = None if block.keys is None else block.keys[part]
    sources = tuple(replace(each, values=each.values[part]) for each in block.sources)
    return PersonBlock(len(range(block.n)[part]), keys, sources)


class _Sample:
    """The rows of some persons, spread over the whole source."""

    def __init__(self) -> None:
        self._values: list[FloatArray] = []
        self._persons: list[IntArray] = []
        self._held, self._most = 0, np.uint64(2**64 - 1)

    def add(self, values: Sequence[FloatArray], persons: IntArray) -> None:
        """Look at rows, and keep those of the persons that were drawn."""
        # A person is drawn by its number alone: with all its rows, and the same in every pass.
        drawn = spread(persons.astype(np.uint64)) <= self._most
        self._values.append(np.stack([each[drawn] for each in values]))
        self._persons.append(persons[drawn])
        self._held += int(drawn.sum())
        if self._held <= 2 * _SAMPLE:
            return
        persons, rows = np.concatenate(self._persons), np.concatenate(self._values, axis=1)
        order = spread(persons.astype(np.uint64))
        self._most = np.partition(order, _SAMPLE)[_SAMPLE]
        kept = order <= self._most
        self._values, self._persons = [rows[:, kept]], [persons[kept]]
        self._held = int(kept.sum())

    def values(self) -> FloatArray:
        """Return the rows (d, n)."""
        return np.concatenate(self._values, axis=1)

    def sources(
        self,
        columns: Sequence[SiteColumn],
        values: Sequence[FloatArray],
        distinct: Sequence[FloatArray],
    ) -> tuple[SourceColumn, ...]:
        """Return the persons of the sample, from their rows' values in each column.

        Up to three values of each column stand beside them: a column of three values is not taken
        for one of two because the third is rare.
        """
        persons = np.unique(np.concatenate(self._persons), return_inverse=True)[1]
        sources = [c.source(v) for c, v in zip(columns, values, strict=True)]
        found = person_values(sources, persons, _voted(columns))
        n, d = len(found[0].values), len(found)
        whole = []
        for place, (source, few) in enumerate(zip(found, distinct, strict=True)):
            more = np.full(3 * d, np.nan)
            more[3 * place : 3 * place + len(few)] = few
            whole.append(replace(source, values=np.append(source.values[:n], more)))
        return tuple(whole)


def _voted(columns: Sequence[SiteColumn]) -> frozenset[str]:
    return frozenset(column.name for column in columns if column.by_vote)
