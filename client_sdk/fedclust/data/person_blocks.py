"""The persons of a source: what is known of them, in memory or in blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from fedclust.data.outcome_rows import CellArray
from fedclust.data.readings import FeatureReading, values_of_rows
from fedclust.data.row_source import as_indices, matrix_of, spread
from fedclust.numeric.array_types import FloatArray, IntArray, WordArray
from fedclust.protection.columns import SourceColumn

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
    source : str
        Its name in messages.
    columns : tuple of SiteColumn
        In the order of the session's features, without those that the site lacks.
    readings : tuple of FeatureReading
        How each of the session's features is derived from a column.
    n_rows, n_persons : int
    marks : dict of str to int
        By column, a hash of the values in their order.
    min_present : float
        A feature that a smaller share of persons have counts as lacking.
    sample : tuple of SourceColumn
        All persons, or a sample of the whole source.
    warnings : tuple of str
        What about the rows is allowed but probably a mistake; without values.
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
    warnings: tuple[str, ...] = ()

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column at the site."""
        return {column.name: column.unit for column in self.columns}

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
            marks={names.get(name, name): mark for name, mark in self.marks.items()},
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
            values.append(as_indices(reading.feature, own))
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


class PersonSample:
    """The rows of some persons, drawn from the whole source."""

    def __init__(self) -> None:
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

    def values(self) -> FloatArray:
        """Return the rows (d, n)."""
        return np.concatenate(self._values, axis=1)

    def sources(
        self,
        columns: Sequence[SiteColumn],
        values: Sequence[FloatArray],
    ) -> tuple[SourceColumn, ...]:
        """Return the persons of the sample, given their rows' values in each column."""
        persons = np.unique(np.concatenate(self._persons), return_inverse=True)[1]
        sources = [c.source(v) for c, v in zip(columns, values, strict=True)]
        return person_values(sources, persons, voted_columns(columns))


def voted_columns(columns: Sequence[SiteColumn]) -> frozenset[str]:
    return frozenset(column.name for column in columns if column.by_vote)


# --- one value a person ---------------------------------------------------------------------------


def person_values(
    sources: Sequence[SourceColumn], persons: IntArray, by_vote: Collection[str] = ()
) -> tuple[SourceColumn, ...]:
    """Return one value for each person, given the person of each row (n rows,), from 0.

    The mean of the person's rows; for columns of levels, and the yes/no columns ``by_vote``, the
    commonest value, or the smallest of equally common ones.
    """
    n_persons = int(persons.max(initial=-1)) + 1
    return tuple(
        _most_common(source, persons, n_persons)
        if source.n_levels is not None or source.name in by_vote
        else _person_means(source, persons, n_persons)
        for source in sources
    )


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
