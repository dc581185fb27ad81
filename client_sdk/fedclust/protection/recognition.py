"""Rule: persons are recognised by their ids only, and a file that is not the known persons' stops.

Otherwise a person could be put into a second group: the difference of two releases may concern a
single person. A file of other people under the known ids is noticed by its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, ByteArray, FloatArray, IntArray, WordArray
from fedclust.protection.cohort import Cohort, CohortRefused, PinnedColumn
from fedclust.protection.columns import NumericColumn, SourceColumn, snap_to_grid, source_names
from fedclust.protection.fingerprints import column_seed, fingerprints, person_keys
from fedclust.protection.releases import is_released

#: Each call starts a pass over a source. A block is the ids of persons and their columns, the same
#: in each block.
PersonBlocks: TypeAlias = Callable[[], Iterable[tuple[Sequence[str], Sequence[SourceColumn]]]]

#: Ids that are looked up at a time: mostly the first few tell which cohort it is.
_IDS = 10_000
#: Known persons whose values tell whether a new column is a pinned one under another name.
_SAMPLE = 2_000
#: A new column in which this share of persons have a pinned column's values is that column.
_SAME_COLUMN = 0.95
#: What to do about persons who are not known; the first sentence of the message gives the numbers.
_CHOICES: Final = (
    "If they are the same persons under new ids, give the list of new and old ids (id_map=, "
    "--id-map). If they are other persons, say who approves that they take part (other_persons=, "
    "--other-persons). Otherwise this is the wrong file"
)


@dataclass(frozen=True)
class PersonSource:
    """A site's persons, as an update reads them.

    Attributes
    ----------
    blocks : PersonBlocks
    rules : mapping of str to str
        How each source column is read.
    sample : sequence of SourceColumn, optional
        Persons from all of the source, by which new columns are described; by default the first
        block.
    n_persons : int
        Approximate number of persons in all blocks.
    later : mapping of str to str
        Columns of a later measurement, and the released columns that they measure again.
    counted : bool
        Whether these rows will be counted by their outcomes: those of other people under the known
        ids would be counted as theirs, even if no group releases anything new.
    """

    blocks: PersonBlocks
    rules: Mapping[str, str]
    sample: Sequence[SourceColumn] | None = None
    n_persons: int = 0
    later: Mapping[str, str] = field(default_factory=dict)
    counted: bool = False


@dataclass(frozen=True)
class Recognition:
    """How many persons of a source are known.

    Attributes
    ----------
    known, unknown : int
        Persons in the source.
    missing : int
        Known persons who are not in the source.
    differing : dict of str to (int, int)
        By released column, how many of the known persons' values differ from those released, and of
        how many. The column's commonest value does not count where it is the same.
    persons_differing : int
        Known persons with a value that differs.
    """

    known: int
    unknown: int
    missing: int
    differing: dict[str, tuple[int, int]] = field(default_factory=dict)
    persons_differing: int = 0

    def refuse_unknown(self, p: int, *, permanent: bool) -> None:
        """Refuse a source in which too many persons are not known.

        Parameters
        ----------
        p : int
        permanent : bool
            Whether nobody's id changes at this site.

        Raises
        ------
        CohortRefused
        """
        n = self.known + self.unknown
        few = 2 * self.known < n
        replaced = not permanent and self.unknown >= p and self.missing >= p
        if not few and not replaced:
            return
        said = (
            f"{self.unknown} of the {n} persons in this source are not known, and {self.missing} "
            f"known persons are missing in it. {_CHOICES}"
        )
        if not few:
            said += '. If ids never change at this site, set ids = "permanent" in site.toml'
        raise CohortRefused("unknown-persons", said)

    def refuse_other_values(self, p: int, *, newcomers: bool) -> None:
        """Refuse a source whose known persons have other values than those released.

        Parameters
        ----------
        p : int
        newcomers : bool
            Whether newcomers would release values of these columns.

        Raises
        ------
        CohortRefused
        """
        differ = sum(n for n, _ in self.differing.values())
        of = sum(n for _, n in self.differing.values())
        columns = self.most_differ(p)
        if 2 * differ > of and self.persons_differing >= p:
            what = f"{differ} of {of} values of known persons differ from those that were released"
        elif newcomers and columns:
            what = "new persons would release columns in which most values of known persons differ"
        else:
            return
        listed = "; ".join(
            f"{name} ({self.differing[name][0]} of {self.differing[name][1]})" for name in columns
        )
        raise CohortRefused(
            "other-values",
            f"{what}{': ' + listed if listed else ''}. Nothing was stored or sent. Check that this "
            "is the right file, and check the query, the mapping and the units, for example "
            "whether two columns are swapped. If these are later measurements, give them new names "
            "(later=, --later)",
        )

    def most_differ(self, p: int) -> list[str]:
        """Return the columns in which most values differ, those of at least p persons."""
        return [name for name, (n, of) in self.differing.items() if 2 * n > of and n >= p]


class ValueComparison:
    """Compares the known persons' values in one pinned column with those that were released.

    Parameters
    ----------
    pinned : PinnedColumn
    common : sequence of float
        The commonest value of each of its source columns in this source.
    """

    def __init__(self, pinned: PinnedColumn, common: Sequence[float]) -> None:
        self._pinned, self._common = pinned, common
        self._released = is_released(pinned.released)
        self.counts = dict.fromkeys(source_names(pinned.column), (0, 0))

    def add(
        self, values: Sequence[FloatArray], prints: ByteArray, index: IntArray, groups: IntArray
    ) -> BoolArray:
        """Add known persons (n,), and return whose value differs.

        ``prints`` (n, source columns) are the fingerprints of ``values``.
        """
        differs = np.zeros(len(index), dtype=np.bool_)
        for place, (name, (n_differ, n)) in enumerate(self.counts.items()):
            same = prints[:, place] == self._pinned.prints[index, place]
            counted = self._released[groups] & ~np.isnan(values[place])
            # Two rare diseases agree in nearly everybody, who has neither.
            counted &= ~(same & (values[place] == self._common[place]))
            other = counted & ~same
            self.counts[name] = n_differ + int(other.sum()), n + int(counted.sum())
            differs |= other
        return differs


def commonest(values: FloatArray) -> float:
    """Return the commonest of values (n,), the smallest of equally common ones; NaN for none."""
    distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    return float(distinct[counts.argmax()]) if len(distinct) else float("nan")


def find_cohort(cohorts: Sequence[Cohort], secret: bytes, blocks: PersonBlocks) -> Cohort | None:
    """Return the cohort that holds the first known person of a source; None if nobody is known."""
    if not cohorts:
        return None
    for keys in _iterate_keys(secret, blocks):
        for cohort in cohorts:
            if (cohort.find(keys) >= 0).any():
                return cohort
    return None


def _iterate_keys(secret: bytes, blocks: PersonBlocks) -> Iterator[NDArray[Any]]:
    for ids, _ in blocks():
        for start in range(0, len(ids), _IDS):
            yield person_keys(secret, ids[start : start + _IDS])[0]


def find_same_columns(cohort: Cohort, secret: bytes, blocks: PersonBlocks) -> dict[str, str]:
    """Return the new columns that have the values of pinned ones, and the pinned names."""
    if not cohort.columns:
        return {}
    pinned = cohort.rules()
    index, masks = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
    found: dict[str, SourceColumn] = {}
    for ids, sources in blocks():
        new = [each for each in sources if each.name not in pinned]
        if not new:
            return {}
        keys, all_masks = person_keys(secret, ids)
        block_index = cohort.find(keys)
        rows = np.flatnonzero(block_index >= 0)[: _SAMPLE - len(index)]
        index = np.concatenate([index, block_index[rows]])
        masks = np.concatenate([masks, all_masks[rows]])
        for each in new:
            earlier = found[each.name].values if each.name in found else each.values[:0]
            found[each.name] = replace(each, values=np.append(earlier, each.values[rows]))
        if len(index) == _SAMPLE:
            break
    names = {name: _find_same(cohort, secret, each, index, masks) for name, each in found.items()}
    return {name: old for name, old in names.items() if old is not None}


def refuse_same_columns(cohort: Cohort, secret: bytes, blocks: PersonBlocks) -> None:
    """Refuse new columns that have the values of pinned ones: both sums could be subtracted.

    Raises
    ------
    CohortRefused
    """
    for new, old in sorted(find_same_columns(cohort, secret, blocks).items()):
        raise CohortRefused(
            "same-column",
            f"column {new!r} has the values of {old!r}, which was released, in nearly all known "
            f"persons, and would be released a second time. Read it as {old!r}: name the column "
            "in the mapping file (mapping=, --mapping)",
        )


def _find_same(
    cohort: Cohort, secret: bytes, source: SourceColumn, index: IntArray, masks: WordArray
) -> str | None:
    """Return the pinned column with the values that nearly all persons have in ``source``."""
    best, most = None, 0
    for pinned in cohort.columns:
        if source.n_levels is not None and isinstance(pinned.column, NumericColumn):
            continue
        known = ~np.isnan(source.values) & pinned.decided[cohort.groups[index]]
        for place, name in enumerate(source_names(pinned.column)):
            values = source.values
            if isinstance(pinned.column, NumericColumn):
                values = snap_to_grid(pinned.column, values)
            seed, last = column_seed(secret, name), pinned.prints[index, place]
            agrees = (fingerprints(values, masks, seed) == last) & known
            telling = known
            if len(np.unique(values[known])) > 1:
                common = np.full(len(values), commonest(values[known]))
                telling = known & ((values != common) | (fingerprints(common, masks, seed) != last))
            n, n_agree = int(telling.sum()), int(agrees[telling].sum())
            # Fewer than p persons who differ could be computed from the two releases.
            same = n_agree >= _SAME_COLUMN * n or n - n_agree < cohort.p
            if same and 2 * n_agree > n and int(agrees.sum()) > most:
                best, most = name, int(agrees.sum())
    return best


def person_rows(
    cohort: Cohort, secret: bytes, blocks: PersonBlocks
) -> Iterator[tuple[Sequence[SourceColumn], IntArray]]:
    """Yield persons by block, with the row (n,) of the cohort's table that each is part of.

    Persons who are part of none are left out.
    """
    for ids, sources in blocks():
        rows = cohort.table_rows(secret, ids)
        kept = rows >= 0
        if not kept.all():
            sources = [replace(each, values=each.values[kept]) for each in sources]
        yield sources, rows[kept]
