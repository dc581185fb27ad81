"""Rule: known persons and released columns are recognised under other ids and other names.

Otherwise a person could be put into a second group, and a column released a second time: the
difference of two releases may concern a single person. Persons are recognised by their ids, and
by their values in the columns of the first table (signatures); columns by most persons' values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, IntArray, WordArray
from fedclust.protection.cohort import Cohort, CohortRefused
from fedclust.protection.columns import NumericColumn, SourceColumn, snap_to_grid, source_names
from fedclust.protection.fingerprints import (
    RowIds,
    column_seed,
    fingerprints,
    person_keys,
    signatures,
)

#: Each call starts a pass over a source. A block is the ids of persons, None if the source has
#: none, and their columns, the same in each block.
PersonBlocks: TypeAlias = Callable[
    [], Iterable[tuple[Sequence[str] | None, Sequence[SourceColumn]]]
]

#: Ids that are looked up at a time: mostly the first few tell which cohort it is.
_IDS = 10_000
#: Known persons whose values tell whether a new column is a pinned one under another name.
_SAMPLE = 2_000
#: Matches of different persons occur by chance; this many times their mean, and as many standard
#: deviations, do not.
_BEYOND_CHANCE = 3.0
#: Two lists of signatures of which this share agrees are of the same persons, however common their
#: values are.
_SAME_PERSONS = 0.99
#: A new column in which this share of persons have a pinned column's values is that column.
_SAME_COLUMN = 0.95


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
    apart : frozenset of str
        As in :func:`fedclust.protection.table.group_persons`.
    """

    blocks: PersonBlocks
    rules: Mapping[str, str]
    sample: Sequence[SourceColumn] | None = None
    n_persons: int = 0
    apart: frozenset[str] = frozenset()


def find_cohort(cohorts: Sequence[Cohort], secret: bytes, blocks: PersonBlocks) -> Cohort | None:
    """Return the cohort that holds a source's persons; None if they are new.

    Raises
    ------
    CohortRefused
        The ids are new, but the values are those of known persons; or the source has no ids and
        is not the file that a cohort without ids serves.
    """
    if not cohorts:
        return None
    for keys in _iterate_keys(secret, blocks):
        for cohort in cohorts:
            if (cohort.find(keys) >= 0).any():
                return cohort
    signed: list[list[WordArray]] = [[np.zeros(0, dtype=np.uint64)] for _ in cohorts]
    has_ids = True
    for ids, sources in blocks():
        has_ids = ids is not None
        for cohort, parts in zip(cohorts, signed, strict=True):
            parts.append(sign(cohort, sources, secret))
    for cohort, parts in zip(cohorts, signed, strict=True):
        own = np.concatenate(parts)
        if has_ids or cohort.has_ids:
            refuse_known_values(own, cohort, ~cohort.withdrawn)
            continue
        n_shared = _count_shared(own, cohort.signatures)
        if own.all() and n_shared == len(own) == len(cohort.keys):
            return cohort
        # Without the columns of that table nothing distinguishes the files.
        if not own.all() or n_shared * 2 >= min(len(own), len(cohort.keys)):
            raise other_file()
    return None


def _iterate_keys(secret: bytes, blocks: PersonBlocks) -> Iterator[NDArray[Any]]:
    for ids, _ in blocks():
        if ids is None:
            return
        for start in range(0, len(ids), _IDS):
            yield person_keys(secret, ids[start : start + _IDS])[0]


def find_new_names(cohort: Cohort, secret: bytes, blocks: PersonBlocks) -> dict[str, str]:
    """Return the new columns that are pinned ones under another name, and the pinned names."""
    pinned = {*cohort.rules(), *cohort.aliases}
    index, masks = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
    found: dict[str, SourceColumn] = {}
    for ids, sources in blocks():
        new = [each for each in sources if each.name not in pinned]
        if ids is None or not new:
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


def _find_same(
    cohort: Cohort, secret: bytes, source: SourceColumn, index: IntArray, masks: WordArray
) -> str | None:
    """Return the pinned column with the values that nearly all persons have in ``source``."""
    known = ~np.isnan(source.values)
    best, most = None, 0
    for pinned in cohort.columns:
        if source.n_levels is not None and isinstance(pinned.column, NumericColumn):
            continue
        for place, name in enumerate(source_names(pinned.column)):
            values = source.values
            if isinstance(pinned.column, NumericColumn):
                values = snap_to_grid(pinned.column, values)
            seed, last = column_seed(secret, name), pinned.prints[index, place, -1]
            agrees = (fingerprints(values, masks, seed) == last) & known
            telling = known
            distinct, counts = np.unique(values[known], return_counts=True)
            if len(distinct) > 1:
                # Persons with the commonest value in both columns do not count: two different rare
                # diseases agree in nearly everybody, who has neither.
                common = np.full(len(values), distinct[counts.argmax()])
                telling = known & ((values != common) | (fingerprints(common, masks, seed) != last))
            n, n_agree = int(telling.sum()), int(agrees[telling].sum())
            # Fewer than p persons who differ could be computed from the two releases.
            same = n_agree >= _SAME_COLUMN * n or n - n_agree < cohort.p
            if same and 2 * n_agree > n and int(agrees.sum()) > most:
                best, most = name, int(agrees.sum())
    return best


def sign(cohort: Cohort, sources: Sequence[SourceColumn], secret: bytes) -> WordArray:
    """Return the signatures (n,) in a cohort's base columns; 0 if the source lacks one."""
    given = {cohort.pinned_name(each.name): each for each in sources}
    given |= {each.name: each for each in sources}
    if not set(cohort.base) <= set(given):
        return np.zeros(len(sources[0].values), dtype=np.uint64)
    seeds = [column_seed(secret, name) for name in cohort.base]
    return signatures([given[name].values for name in cohort.base], seeds)


def person_rows(
    cohort: Cohort, secret: bytes, blocks: PersonBlocks
) -> Iterator[tuple[Sequence[SourceColumn], IntArray]]:
    """Yield persons by block, with the row (n,) of the cohort's table that each is part of.

    Persons who are part of none are left out.
    """
    row_ids = RowIds()
    for ids, sources in blocks():
        if ids is None:
            ids = row_ids.of(sign(cohort, sources, secret))
        rows = cohort.table_rows(secret, ids)
        kept = rows >= 0
        if not kept.all():
            sources = [replace(each, values=each.values[kept]) for each in sources]
        yield sources, rows[kept]


def refuse_known_values(signed: WordArray, cohort: Cohort, gone: BoolArray) -> None:
    """Refuse persons with new ids who have the values of known persons who are missing.

    ``signed`` (k,) are the signatures of the persons with new ids; ``gone`` (n,) marks the
    cohort's persons who are missing.
    """
    known = cohort.signatures
    if _are_same_persons(signed[signed > 0], known[gone & (known > 0)], known[known > 0]):
        raise CohortRefused(
            "other-ids",
            "persons with new ids have the values of known persons who are missing. Give all "
            f"persons the ids that they had when the groups of table {cohort.table_id} were "
            "formed, and name their column (id_column=, --id-column or person=, --person-column)",
        )


def _are_same_persons(newcomers: WordArray, gone: WordArray, everyone: WordArray) -> bool:
    if not len(newcomers) or not len(gone):
        return False
    # The chance that two persons have equal values, also from the newcomers: at a small site the
    # known persons are few. One pair more than was seen: few persons do not show it.
    n_equal, n_pairs = 1.0, 0.0
    for persons in (everyone, newcomers):
        counts = np.unique(persons, return_counts=True)[1]
        n_equal += float((counts * (counts - 1.0)).sum()) / 2.0
        n_pairs += len(persons) * (len(persons) - 1.0) / 2.0
    chance = n_equal / max(n_pairs, 1.0)
    expected = len(newcomers) * min(1.0, len(gone) * chance)
    if np.isin(newcomers, gone).sum() > _BEYOND_CHANCE * (expected + expected**0.5):
        return True
    n_shared = _count_shared(newcomers, gone)
    return n_shared >= _SAME_PERSONS * max(len(newcomers), len(everyone))


def _count_shared(first: WordArray, second: WordArray) -> int:
    """Return how many signatures two lists have in common, repeats counted."""
    distinct, counts = np.unique(first, return_counts=True)
    other_distinct, other_counts = np.unique(second, return_counts=True)
    _, here, there = np.intersect1d(
        distinct, other_distinct, assume_unique=True, return_indices=True
    )
    return int(np.minimum(counts[here], other_counts[there]).sum())


def other_file() -> CohortRefused:
    """Return the refusal of a second file without ids."""
    return CohortRefused(
        "other-file",
        "without ids the groups serve one file, and this one differs from it. Give the same "
        "file, or name an id column to begin with; for another site on this account set "
        "FEDCLUST_STATE_DIR to a directory of its own",
    )
