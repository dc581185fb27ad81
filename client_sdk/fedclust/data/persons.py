"""Read a source: one value for each person and column, in the site's own units and codes.

The protected table is made from these values. They depend only on the source and the site's own
mapping; a session only chooses the columns.
"""

from __future__ import annotations

import hashlib
import shlex
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.data.advice import count_repeated, list_names, repeated_text
from fedclust.data.chunks import MISSING, Origin
from fedclust.data.decode import rule_differences
from fedclust.data.mapping import Dataset, same_unit
from fedclust.data.outcome_rows import CellArray, cells_of_persons, differing_outcomes
from fedclust.data.readings import FeatureReading, values_of_rows
from fedclust.data.row_source import RowBlock, RowSource, matrix_of
from fedclust.data.row_warnings import RowWarnings
from fedclust.numeric.array_types import FloatArray, IntArray, WordArray
from fedclust.protection.columns import SourceColumn
from fedclust.schema.feature import Feature, Outcome
from fedclust.wire.errors import DataError

#: A column with more codes than this is text, not levels.
_MOST_CODES: Final = 1_000
#: The beginning of what is said of such rows.
ROWS_DIFFER: Final = "the rows of a person differ"
#: Least number of persons in a block of a source larger than memory: just above the number up to
#: which groups are formed by Ward's tree, which takes longer.
_PERSONS: Final = 51_200
#: Rows of such a source that are read at a time.
_ROWS: Final = 16_384
#: Persons of a source that stays on disk whose missing values decide how all are grouped.
_SAMPLE: Final = 16_384


@dataclass(frozen=True)
class SiteColumn:
    """How a column of the site is read. Pinned with the first table that holds the column.

    Attributes
    ----------
    name : str
        The column's name at the site; of an array the feature's.
    codes : tuple of str or None
        The codes of its levels; other codes are missing values. None for numbers.
    by_vote : bool
        Whether a person's value is the commonest of the person's rows; else their mean.
    rule : str
        The missing markers, sentinels and decimal mark: the text of a
        :class:`fedclust.data.decode.ColumnRule`.
    unit : str
        Unit of the numbers at the site; "" if unknown.
    """

    name: str
    codes: tuple[str, ...] | None = field(repr=False)
    by_vote: bool
    rule: str
    unit: str

    def source(self, values: FloatArray) -> SourceColumn:
        """Return values as a column of the table; a column with two codes is a yes/no column."""
        coded = self.codes is not None and len(self.codes) != 2
        return SourceColumn(self.name, values, max(len(self.codes or ()), 1) if coded else None)


@dataclass(frozen=True)
class PersonBlock:
    """Some persons of a site: their ids, None if the source has none, and their values.

    ``cells`` (n, q) is each person's cell of each outcome that was read.
    """

    n: int
    keys: tuple[str, ...] | None = field(repr=False)
    sources: tuple[SourceColumn, ...] = field(repr=False)
    cells: CellArray = field(repr=False)


@dataclass(frozen=True)
class SitePersons:
    """The persons of a source.

    Attributes
    ----------
    rows : RowSource
        The source as it was read.
    columns : tuple of SiteColumn
        In the order of the session's features, without those that the site lacks.
    readings : tuple of FeatureReading
        How each of the session's features is derived from a column.
    n_rows, n_persons : int
    sample : tuple of SourceColumn
        All persons, or a sample of the whole source.
    warnings : tuple of str
        What about the rows is allowed but probably a mistake; without values.
    """

    rows: RowSource = field(repr=False)
    columns: tuple[SiteColumn, ...]
    readings: tuple[FeatureReading, ...]
    n_rows: int
    n_persons: int
    sample: tuple[SourceColumn, ...] = field(repr=False)
    _blocks: Callable[[], Iterator[PersonBlock]] = field(repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column of numbers at the site; that of a yes/no column is a text."""
        return {column.name: column.unit for column in self.columns if not column.by_vote}

    def blocks(self) -> Iterator[PersonBlock]:
        """Yield all persons: in one block, or in several if the source stays on disk.

        Raises
        ------
        DataError
            The source cannot be read any more, or has changed.
        """
        return self._blocks()

    def renamed(self, names: Mapping[str, str]) -> SitePersons:
        """Return these with other names of columns; a column without a new name keeps its own."""

        def sources(given: Sequence[SourceColumn]) -> tuple[SourceColumn, ...]:
            return tuple(replace(each, name=names.get(each.name, each.name)) for each in given)

        def blocks() -> Iterator[PersonBlock]:
            for block in self.blocks():
                yield replace(block, sources=sources(block.sources))

        return replace(
            self,
            columns=tuple(replace(c, name=names.get(c.name, c.name)) for c in self.columns),
            readings=tuple(
                replace(each, column=names.get(each.column or "", each.column))
                for each in self.readings
            ),
            sample=sources(self.sample),
            _blocks=blocks,
        )

    def matrix(self, block: PersonBlock) -> FloatArray:
        """Return persons in the session's columns (n, d), to label them; NaN where missing."""
        codes, given = self.codes(), {source.name: source.values for source in block.sources}
        values = []
        for reading in self.readings:
            own = np.full(block.n, np.nan)
            if reading.column is not None:
                own = values_of_rows(reading, given[reading.column], codes[reading.column])
            values.append(own)
        return matrix_of([reading.feature for reading in self.readings], values)

    def codes(self) -> dict[str, tuple[str, ...] | None]:
        """Return the codes of each column by name; None for numbers."""
        return {column.name: column.codes for column in self.columns}


def value_words(codes: Sequence[str] | None, values: FloatArray) -> WordArray:
    """Return values as words (n,) to hash; codes as hashes of their text."""
    if codes is None:
        # One NaN for all: missing values are equal, however a source spells them.
        return np.where(np.isnan(values), np.nan, values).view(np.uint64)
    own = np.array([*map(_hash_text, codes), 0], dtype=np.uint64)
    return np.asarray(own[np.where(np.isnan(values), len(codes), values).astype(np.int64)])


@lru_cache(maxsize=4096)
def _hash_text(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def join_blocks(blocks: Sequence[PersonBlock]) -> PersonBlock:
    if len(blocks) == 1:
        return blocks[0]
    keys = None
    if blocks[0].keys is not None:
        keys = tuple(key for block in blocks for key in block.keys or ())
    sources = tuple(
        replace(each[0], values=np.concatenate([source.values for source in each]))
        for each in zip(*(block.sources for block in blocks), strict=True)
    )
    cells = np.concatenate([block.cells for block in blocks])
    return PersonBlock(sum(block.n for block in blocks), keys, sources, cells)


def slice_block(block: PersonBlock, part: slice) -> PersonBlock:
    keys = None if block.keys is None else block.keys[part]
    sources = tuple(replace(each, values=each.values[part]) for each in block.sources)
    return PersonBlock(len(range(block.n)[part]), keys, sources, block.cells[part])


def spread(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return hashed numbers: the first half of the SplitMix64 finaliser."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)


class PersonSample:
    """The rows of some persons, drawn from the whole source."""

    def __init__(self, rows_of_person: str) -> None:
        self._rows_of_person = rows_of_person
        self._values: list[FloatArray] = []
        self._persons: list[IntArray] = []
        self._held, self._most = 0, np.uint64(2**64 - 1)

    def add(self, values: Sequence[FloatArray], persons: IntArray) -> None:
        """Keep those of the rows whose persons are drawn."""
        # Drawn by the person's number alone: with all rows, and the same in every pass.
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

    def sources(
        self,
        columns: Sequence[SiteColumn],
        renumber: Callable[[SiteColumn, FloatArray], FloatArray],
    ) -> tuple[SourceColumn, ...]:
        """Return the persons of the sample; ``renumber`` numbers codes as in their column."""
        persons = np.unique(np.concatenate(self._persons), return_inverse=True)[1]
        rows = zip(columns, np.concatenate(self._values, axis=1), strict=True)
        sources = [column.source(renumber(column, values)) for column, values in rows]
        return person_values(sources, persons, voted_columns(columns), self._rows_of_person)


def voted_columns(columns: Sequence[SiteColumn]) -> frozenset[str]:
    return frozenset(column.name for column in columns if column.by_vote)


# --- one value a person ---------------------------------------------------------------------------


def person_values(
    sources: Sequence[SourceColumn],
    persons: IntArray,
    by_vote: Collection[str] = (),
    rows: str = "all",
) -> tuple[SourceColumn, ...]:
    """Return one value for each person, given the person of each row (n rows,), from 0.

    The mean of the person's rows; for columns of levels, and the yes/no columns ``by_vote``, the
    commonest value, or the smallest of equally common ones. With ``rows`` of "first" or "last" what
    that row has.
    """
    if rows != "all":
        chosen = _one_row_each(persons, rows)
        return tuple(replace(source, values=source.values[chosen]) for source in sources)
    n_persons = int(persons.max(initial=-1)) + 1
    return tuple(
        _most_common(source, persons, n_persons)
        if source.n_levels is not None or source.name in by_vote
        else _person_means(source, persons, n_persons)
        for source in sources
    )


def _one_row_each(persons: IntArray, rows: str) -> IntArray:
    """Return the first or the last row of each person."""
    if rows == "first":
        return np.unique(persons, return_index=True)[1]
    return len(persons) - 1 - np.unique(persons[::-1], return_index=True)[1]


def _person_means(source: SourceColumn, persons: IntArray, n_persons: int) -> SourceColumn:
    present = ~np.isnan(source.values)
    kept = persons[present]
    sums = np.bincount(kept, weights=source.values[present], minlength=n_persons)
    rows = np.bincount(kept, minlength=n_persons)
    means = np.divide(sums, rows, out=np.full(n_persons, np.nan), where=rows > 0)
    return SourceColumn(source.name, means)


def _most_common(source: SourceColumn, persons: IntArray, n_persons: int) -> SourceColumn:
    present = ~np.isnan(source.values)
    distinct, codes = np.unique(source.values[present], return_inverse=True)
    width = max(len(distinct), 1)
    pairs, votes = np.unique(persons[present] * width + codes, return_counts=True)
    voters, choices = np.divmod(pairs, width)
    # The last entry of each person stays: the most votes; of equal votes the smallest value.
    order = np.lexsort((-choices, votes, voters))
    chosen = np.full(n_persons, np.nan)
    chosen[voters[order]] = distinct[choices[order]]
    return SourceColumn(source.name, chosen, source.n_levels)


# --- reading ------------------------------------------------------------------------------------


def read_persons(
    source: Any,
    features: Sequence[Feature],
    *,
    person: str | Sequence[Any] | NDArray[Any] | None = None,
    id_column: str | None = None,
    lacking: bool = False,
    pinned: Mapping[str, SiteColumn] | None = None,
    outcomes: Sequence[Outcome] = (),
) -> SitePersons:
    """Read the columns that a session asks for, one value a person.

    Parameters
    ----------
    source : Source
    features : sequence of Feature
        The session's. Columns are found by their names. If a column is read for the first time,
        the feature's kind decides whether it holds numbers or codes.
    person : str or sequence of length n, optional
        Column that says which person a row belongs to, or its values.
    id_column : str, optional
        Column that names rows; without ``person`` each row is a person of that name.
    lacking : bool
        Whether the source may lack columns (``missing: mask``).
    pinned : mapping of str to SiteColumn, optional
        How columns were read before, by name.
    outcomes : sequence of Outcome
        Those of which each person's cell is wanted too. They are no columns of the persons, so that
        nothing that a table is made from depends on them.

    Raises
    ------
    DataError
        The message names file, column, row and rule, but no value.
    """
    pinned = pinned or {}
    named = person if isinstance(person, str) else id_column if person is None else None
    text = [name for name in (named, id_column) if name is not None]
    codes = {name: column.codes for name, column in pinned.items()}
    rows = RowSource(source, features, text=text, lacking=lacking, codes=codes, outcomes=outcomes)
    for each in rows.long:
        column = each.sources[2]
        if person is None:
            message = f"the rows of {each.of.name!r} are values of a person, and each would count "
            message += "as a person"
        elif isinstance(person, str) and person != column:
            message = f"the mapping says that it holds the persons of {each.of.name!r}, and "
            message += f"--person-column names {person!r}"
        else:
            continue
        message += f"; give {shlex.join(['--person-column', column])} (person=)"
        raise rows.origin.fault("persons", message, column=column)
    _refuse_other_rules(rows, pinned)
    reader = _Reader(rows, person, named, pinned)
    if isinstance(source, Dataset) and source.options.out_of_core:
        return reader.by_blocks()
    return reader.at_once()


def person_names(origin: Origin, n: int, values: Any) -> list[str]:
    """Return the person of each row as text; DataError if a row has none."""
    keys = [_person_text(value) for value in np.asarray(values).ravel().tolist()]
    if len(keys) != n:
        raise origin.fault("persons", f"{len(keys)} persons were given for {n} rows")
    for index, key in enumerate(keys):
        if key.casefold() in MISSING:
            message = "no person is given; each row needs one"
            raise origin.fault("persons", message, index=index)
    return keys


def _person_text(value: Any) -> str:
    """Return a person as text; "" for pandas' missing date or duration, NaT."""
    key = str(value).strip()
    return "" if key == "NaT" and not isinstance(value, str) else key


def _differing_texts(found: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    named = [f"{name} ({n})" for name, n in found]
    said = (
        f"{ROWS_DIFFER} in {list_names(named)}: the commonest counts. If each is there once, the "
    )
    said += "first code counts, and the outcome yes or the highest. Of numbers the mean counts. To "
    said += (
        "count one row of each person, write rows_of_person = 'first' or 'last' into the mapping"
    )
    return (said,) if found else ()


def repeated_message(column: str | None, n_ids: int, n_rows: int) -> str:
    """Return what to do about ids that occur several times."""
    message = f"{repeated_text(n_ids, n_rows)}, and an id column names each row once; if they are "
    option = shlex.join(["--person-column", column or "COLUMN"])
    return message + f"rows of one person, give {option} (person=) too"


def _refuse_other_rules(rows: RowSource, pinned: Mapping[str, SiteColumn]) -> None:
    """Refuse columns that would be read by another rule or in another unit than before."""
    for reading in rows.readings[: rows.n_features]:
        before = pinned.get(reading.column or "")
        if before is None:
            continue
        name, unit = reading.feature.name, _unit(rows, reading)
        rule = rows.decoders[name].rule.text()
        if rule != before.rule:
            options = rule_differences(rule, before.rule) or "another kind of values"
            message = f"it was first read with {options}, and released values cannot change: give "
            message += "the same options as then"
            raise rows.origin.fault("pinned", message, column=before.name)
        if unit and before.unit and not same_unit(unit, before.unit):
            message = f"it was first read in {before.unit!r}, and would now be in {unit!r}; say "
            message += "factor, offset and to in the mapping file (mapping=, --mapping)"
            raise rows.origin.fault("unit", message, column=before.name)


def _unit(rows: RowSource, reading: FeatureReading) -> str:
    """Return the unit of a column's numbers at the site; "" if unknown."""
    rule = rows.rules[reading.feature.name]
    if rule.unit is not None:
        return rule.unit
    return "" if rule.to is not None else reading.feature.unit


class _Reader:
    """Reads a source into memory, or once for a description and again in blocks."""

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
        self.readings = rows.readings[: rows.n_features]
        self.places = [j for j, each in enumerate(self.readings) if each.column is not None]
        self.warnings: tuple[str, ...] = ()
        self._differing: list[tuple[str, int]] = []

    # --- in memory --------------------------------------------------------------------------------

    def at_once(self) -> SitePersons:
        """Read all rows into memory."""
        row_warnings, parts, cells, keys = RowWarnings(self.rows), [], [], []
        lines, n = array("q"), 0
        for block in self.rows.scan():
            row_warnings.add(block)
            parts.append([block.values[j] for j in self.places])
            cells.append(self.rows.cells(block))
            if self.named is not None:
                keys += block.text[self.named]
            lines.extend(block.numbers or ())
            n += len(block)
        self.rows.refuse()
        rows = [np.concatenate(each) for each in zip(*parts, strict=True)]
        columns = self._columns([len(_collect_distinct(np.empty(0), each)) == 2 for each in rows])
        values = [self._renumber(*each) for each in zip(columns, rows, strict=True)]
        origin = replace(self.origin, numbers=lines or None)
        if self.given is not None or self.named is not None:
            keys = person_names(origin, n, self.given if self.given is not None else keys)
        found = self._persons(columns, values, np.concatenate(cells), keys or None, origin)
        self.warnings = row_warnings.warn(_differing_texts(self._differing))
        people = found.n, found.sources, lambda: iter([found])
        return SitePersons(self.rows, columns, self.readings, n, *people, self.warnings)

    def _persons(
        self,
        columns: Sequence[SiteColumn],
        values: Sequence[FloatArray],
        cells: CellArray,
        keys: list[str] | None,
        origin: Origin,
    ) -> PersonBlock:
        """Return the persons of rows, in the order in which they appear first."""
        n = len(values[0]) if values else 0
        sources = tuple(column.source(each) for column, each in zip(columns, values, strict=True))
        if keys is None:
            return PersonBlock(n, None, sources, cells)
        numbers: dict[str, int] = {}
        persons = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
        if self.grouped:
            which = self.rows.file.rows_of_person
            rows, sources = sources, person_values(sources, persons, voted_columns(columns), which)
            if which == "all":
                self._differing = [
                    *self._differing_levels(columns, rows, persons),
                    *differing_outcomes(self.rows.outcomes, cells, persons),
                ]
                cells = cells_of_persons(self.rows.outcomes, cells, persons)
            else:
                cells = cells[_one_row_each(persons, which)]
        elif len(numbers) < n:
            first = int(np.flatnonzero(persons != np.arange(n))[0])
            message = repeated_message(self.named, *count_repeated(keys))
            raise origin.fault("persons", message, column=self.named, index=first)
        return PersonBlock(len(numbers), tuple(numbers), sources, cells)

    def _differing_levels(
        self, columns: Sequence[SiteColumn], sources: Sequence[SourceColumn], persons: IntArray
    ) -> list[tuple[str, int]]:
        """Return yes/no columns and levels in which rows of a person differ, and for how many."""
        found = []
        readings = (self.readings[place] for place in self.places)
        for column, reading, source in zip(columns, readings, sources, strict=True):
            if not column.by_vote:
                continue
            values = source.values.copy()
            for i, code in enumerate(column.codes or ()):
                meaning = reading.meaning(code)
                # A code that the session does not know differs from all levels.
                values[source.values == i] = -1.0 - i if meaning is None else meaning
            known = ~np.isnan(values)
            pairs = np.unique(np.stack([persons[known], values[known]]), axis=1)
            if n := int((np.bincount(pairs[0].astype(np.int64)) > 1).sum()):
                found.append((source.name, n))
        return found

    # --- larger than memory -----------------------------------------------------------------------

    def by_blocks(self) -> SitePersons:
        """Read all rows once to describe the columns; each use reads them again."""
        row_warnings, sample = RowWarnings(self.rows), PersonSample(self.rows.file.rows_of_person)
        distinct = [np.empty(0) for _ in self.places]
        seen, n_rows, last, mark = array("q"), 0, None, hashlib.blake2b()
        for block in self.rows.scan(_ROWS):
            row_warnings.add(block)
            values = [block.values[j] for j in self.places]
            distinct = [_collect_distinct(*each) for each in zip(distinct, values, strict=True)]
            self._mark(mark, block)
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
                raise self._scattered_error(seen)
        self.warnings = row_warnings.warn()
        columns = self._columns([len(each) == 2 for each in distinct])
        sampled = sample.sources(columns, self._renumber)
        for column in columns:
            if column.codes is not None:
                self.rows.decoders[self._feature_of(column)].close(column.codes)
        expected = n_rows, mark.digest(), n_persons
        people = n_persons, sampled, lambda: self._stream(columns, expected)
        return SitePersons(self.rows, columns, self.readings, n_rows, *people, self.warnings)

    def _stream(
        self, columns: Sequence[SiteColumn], expected: tuple[int, bytes, int]
    ) -> Iterator[PersonBlock]:
        """Yield the persons in blocks of nearly equal size."""
        count = max(1, expected[2] // _PERSONS)
        # The last block is yielded when the rows are known to be unchanged.
        ends = np.arange(1, count) * expected[2] // count
        sizes = np.diff(ends, prepend=0).tolist()
        waiting: list[PersonBlock] = []
        kept: tuple[list[FloatArray], CellArray, list[str]] | None = None
        n_rows, mark = 0, hashlib.blake2b()
        for block in self.rows.scan(_ROWS):
            self.rows.refuse()
            n_rows += len(block)
            self._mark(mark, block)
            values, cells = [block.values[j] for j in self.places], self.rows.cells(block)
            keys = self._keys(block)
            if self.grouped and keys is not None:
                if kept is not None:
                    values = [np.concatenate(each) for each in zip(kept[0], values, strict=True)]
                    cells = np.concatenate([kept[1], cells])
                    keys = kept[2] + keys
                # Rows of the last person may follow in the next block.
                end = len(keys) - 1
                while end and keys[end - 1] == keys[-1]:
                    end -= 1
                kept = [each[end:] for each in values], cells[end:], keys[end:]
                values, cells, keys = [each[:end] for each in values], cells[:end], keys[:end]
            waiting.append(self._persons(columns, values, cells, keys, self.origin))
            while sizes and sum(each.n for each in waiting) >= sizes[0]:
                joined, size = join_blocks(waiting), sizes.pop(0)
                waiting = [slice_block(joined, slice(size, None))]
                yield slice_block(joined, slice(0, size))
        if kept is not None:
            waiting.append(self._persons(columns, *kept, self.origin))
        if (n_rows, mark.digest()) != expected[:2]:
            message = "it holds other rows than when it was read first; run the command again when "
            message += "nothing writes to it. A query needs an ORDER BY that leaves no ties, and a "
            message += "Dask graph that draws or shuffles a persist()"
            raise self.origin.fault("changed", message)
        if waiting:
            yield join_blocks(waiting)

    def _mark(self, mark: hashlib.blake2b, block: RowBlock) -> None:
        """Hash the values of a block: another order of the rows, or other codes, differ."""
        for place in self.places:
            codes = self.rows.coded(self.rows.features[place].name)
            mark.update(value_words(codes, block.values[place]).tobytes())

    def _keys(self, block: RowBlock) -> list[str] | None:
        """Return the person of each row of a block; None if the source names none."""
        values: Any = None
        if self.given is not None:
            values = self.given[block.start : block.start + len(block)]
        elif self.named is not None:
            values = block.text[self.named]
        if values is None:
            return None
        lines = block.numbers or range(block.start, block.start + len(block))
        return person_names(replace(self.origin, numbers=lines), len(block), values)

    def _scattered_error(self, seen: array[int]) -> DataError:
        if not self.grouped:
            _, counts = np.unique(np.frombuffer(seen, dtype=np.int64), return_counts=True)
            repeated = counts[counts > 1]
            message = repeated_message(self.named, len(repeated), int(repeated.sum()))
            return self.origin.fault("persons", message, column=self.named)
        message = "rows of one person do not follow each other, as reading out of core needs; sort "
        message += "them by person, or omit out_of_core= (--out-of-core)"
        return self.origin.fault("persons", message, column=self.named)

    # --- columns ----------------------------------------------------------------------------------

    def _columns(self, two_valued: Sequence[bool]) -> tuple[SiteColumn, ...]:
        """Return how the columns are read, after all rows were read once."""
        found = []
        for place, two in zip(self.places, two_valued, strict=True):
            reading = self.readings[place]
            name, feature = str(reading.column), reading.feature.name
            if name in self.pinned:
                found.append(self.pinned[name])
                continue
            decoder = self.rows.decoders[feature]
            codes = None
            if decoder.rule.coded:
                # Sorted: the list depends neither on the order of the rows nor on the session's.
                codes = tuple(sorted(decoder.codes))
                if len(codes) > _MOST_CODES:
                    message = f"it holds {len(codes)} different codes, and levels are at most "
                    message += f"{_MOST_CODES}; is it text or an identifier?"
                    raise self.origin.fault("too-many-levels", message, column=name)
            rule, unit = decoder.rule.text(), _unit(self.rows, reading)
            found.append(SiteColumn(name, codes, codes is not None or two, rule, unit))
        return tuple(found)

    def _renumber(self, column: SiteColumn, values: FloatArray) -> FloatArray:
        """Return values with codes numbered as in the finished column."""
        if column.codes is None:
            return values
        met = self.rows.decoders[self._feature_of(column)].codes
        places = {code: float(place) for place, code in enumerate(column.codes)}
        moved = np.array([*(places[code] for code in met), np.nan])
        return np.asarray(moved[np.where(np.isnan(values), len(met), values).astype(np.int64)])

    def _feature_of(self, column: SiteColumn) -> str:
        return next(r.feature.name for r in self.readings if r.column == column.name)


def _collect_distinct(found: FloatArray, values: FloatArray) -> FloatArray:
    """Return up to three distinct values, sorted, of those ``found`` before and ``values`` (n,)."""
    # The first values of most columns are enough.
    for some in (values[:1_000], values):
        if len(found) > 2:
            break
        found = np.union1d(found, np.unique(some[~np.isnan(some)])[:3])[:3]
    return found
