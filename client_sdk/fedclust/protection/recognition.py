"""Which cohort holds the persons of a source, and which new column is a known one renamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.protection.cohort import Cohort, CohortRefused
from fedclust.protection.columns import NumericColumn, SourceColumn, snap_to_grid, source_names
from fedclust.protection.fingerprints import (
    column_seed,
    fingerprints,
    numbered_rows,
    person_keys,
    signatures,
)

__all__ = [
    "PersonBlocks",
    "find_cohort",
    "find_new_names",
    "person_rows",
    "refuse_known_values",
    "sign",
]

IntArray = NDArray[np.int64]
WordArray = NDArray[np.uint64]

#: A source: each call starts a pass. A block is the ids of persons, or None where the source has
#: none, and their columns, the same in each block.
PersonBlocks: TypeAlias = Callable[
    [], Iterable[tuple[Sequence[str] | None, Sequence[SourceColumn]]]
]

#: Ids that are looked up at a time: mostly the first few say which cohort it is.
_IDS = 10_000
#: Persons that tell whether a new column is a known one under another name.
_SAMPLE = 2_000
#: So many times as many matches as strangers have on average, and as many standard deviations, are
#: no chance.
_BEYOND_CHANCE = 3.0
#: Lists of signatures that agree in this part are of the same persons, however common their values.
_SAME_PERSONS = 0.99
#: A column in which this share of persons have the values of a pinned one is that column.
_SAME_COLUMN = 0.95


def find_cohort(cohorts: Sequence[Cohort], secret: bytes, blocks: PersonBlocks) -> Cohort | None:
    """Return the cohort that holds a source's persons; None where they are new.

    Raises
    ------
    CohortRefused
        The ids are new, but the values are those of known persons; or the source has no ids and
        is not the file that a cohort without ids serves.
    """
    if not cohorts:
        return None
    for keys in _keys(secret, blocks):
        for cohort in cohorts:
            if (cohort.find(keys) >= 0).any():
                return cohort
    signed: list[list[WordArray]] = [[] for _ in cohorts]
    has_ids = True
    for ids, sources in blocks():
        has_ids = ids is not None
        for cohort, found in zip(cohorts, signed, strict=True):
            found.append(sign(cohort, sources, secret))
    for cohort, found in zip(cohorts, signed, strict=True):
        mine = np.concatenate([np.zeros(0, dtype=np.uint64), *found])
        if not has_ids and not cohort.has_ids:
            shared = _shared(mine, cohort.signatures)
            if mine.all() and shared == len(mine) == len(cohort.keys):
                return cohort
            # Without the columns of that table nothing tells the files apart.
            if not mine.all() or shared * 2 >= min(len(mine), len(cohort.keys)):
                raise other_file()
        else:
            refuse_known_values(mine, cohort, ~cohort.withdrawn)
    return None


def _keys(secret: bytes, blocks: PersonBlocks) -> Iterator[NDArray[Any]]:
    for ids, _ in blocks():
        if ids is None:
            return
        for start in range(0, len(ids), _IDS):
            yield person_keys(secret, ids[start : start + _IDS])[0]


def find_new_names(cohort: Cohort, secret: bytes, blocks: PersonBlocks) -> dict[str, str]:
    """Return the new columns that have the values of pinned ones, and the names of these.

    A column that nearly all of a sample of known persons have the same values in is the pinned
    one: releasing it again would tell the difference, which may concern single persons.
    """
    known = {*cohort.rules(), *cohort.aliases}
    places, masks = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
    found: dict[str, SourceColumn] = {}
    for ids, sources in blocks():
        new = [each for each in sources if each.name not in known]
        if ids is None or not new:
            return {}
        keys, all_masks = person_keys(secret, ids)
        at = cohort.find(keys)
        rows = np.flatnonzero(at >= 0)[: _SAMPLE - len(places)]
        places = np.concatenate([places, at[rows]])
        masks = np.concatenate([masks, all_masks[rows]])
        for each in new:
            earlier = found[each.name].values if each.name in found else each.values[:0]
            found[each.name] = replace(each, values=np.append(earlier, each.values[rows]))
        if len(places) == _SAMPLE:
            break
    names = {name: _same(cohort, secret, each, places, masks) for name, each in found.items()}
    return {name: old for name, old in names.items() if old is not None}


def _same(
    cohort: Cohort, secret: bytes, source: SourceColumn, places: IntArray, masks: WordArray
) -> str | None:
    """Return the pinned column with the values that nearly all persons have in ``source``."""
    values = source.values
    known = ~np.isnan(values)
    best, most = None, 0
    for pinned in cohort.columns:
        if source.n_levels is not None and isinstance(pinned.column, NumericColumn):
            continue
        for at, name in enumerate(source_names(pinned.column)):
            now = values
            if isinstance(pinned.column, NumericColumn):
                now = snap_to_grid(pinned.column, values)
            seed, last = column_seed(secret, name), pinned.prints[places, at, -1]
            alike = (fingerprints(now, masks, seed) == last) & known
            telling = known
            distinct, counts = np.unique(now[known], return_counts=True)
            if len(distinct) > 1:
                # Two rare conditions agree in most persons, who have neither. Of two conditions of
                # which one implies the other, those who have only one tell.
                common = np.full(len(now), distinct[counts.argmax()])
                other = (now != common) | (fingerprints(common, masks, seed) != last)
                telling = known & other
            n, agree = int(telling.sum()), int(alike[telling].sum())
            # Fewer than p persons who differ could be told apart.
            nearly = agree >= _SAME_COLUMN * n or n - agree < cohort.p
            if nearly and 2 * agree > n and int(alike.sum()) > most:
                best, most = name, int(alike.sum())
    return best


def sign(cohort: Cohort, sources: Sequence[SourceColumn], secret: bytes) -> WordArray:
    """Return the signatures (n,) in a cohort's base columns; 0 where the source lacks one."""
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
    signed = [np.zeros(0, dtype=np.uint64)]
    for ids, sources in blocks():
        if ids is None:
            own = sign(cohort, sources, secret)
            ids = numbered_rows(own, np.concatenate(signed))
            signed.append(own)
        rows = cohort.table_rows(secret, ids)
        there = rows >= 0
        if not there.all():
            sources = [replace(each, values=each.values[there]) for each in sources]
        yield sources, rows[there]


def refuse_known_values(mine: WordArray, cohort: Cohort, gone: NDArray[np.bool_]) -> None:
    """Refuse persons with new ids who have the values of known persons who are missing.

    Parameters
    ----------
    mine : (k,) uint64
        Signatures of the persons with new ids.
    cohort : Cohort
    gone : (n,) bool
        Which of its persons are missing.
    """
    known = cohort.signatures
    if _look_alike(mine[mine > 0], known[gone & (known > 0)], known[known > 0]):
        raise CohortRefused(
            "other-ids",
            "persons with new ids have the values of known persons who are missing. Give all "
            f"persons the ids that they had when the groups of table {cohort.table_id} were "
            "formed, and name their column (--id-column or --person-column)",
        )


def _look_alike(newcomers: WordArray, gone: WordArray, everyone: WordArray) -> bool:
    n = len(everyone)
    if not len(newcomers) or not len(gone):
        return False
    # How common values are, newcomers tell as well: at a small site the known persons are few.
    # One pair more than was seen: few persons do not show it.
    alike, pairs = 1.0, 0.0
    for persons in (everyone, newcomers):
        counts = np.unique(persons, return_counts=True)[1]
        alike += float((counts * (counts - 1.0)).sum()) / 2.0
        pairs += len(persons) * (len(persons) - 1.0) / 2.0
    chance = alike / max(pairs, 1.0)
    expected = len(newcomers) * min(1.0, len(gone) * chance)
    if np.isin(newcomers, gone).sum() > _BEYOND_CHANCE * (expected + expected**0.5):
        return True
    return _shared(newcomers, gone) >= _SAME_PERSONS * max(len(newcomers), n)


def _shared(first: WordArray, second: WordArray) -> int:
    """Return how many signatures two lists have in common, repeats counted."""
    kinds, counts = np.unique(first, return_counts=True)
    others, more = np.unique(second, return_counts=True)
    _, here, there = np.intersect1d(kinds, others, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[here], more[there]).sum())


def other_file() -> CohortRefused:
    """Return the refusal of a second file without ids."""
    return CohortRefused(
        "other-file",
        "without ids the groups serve one file, and this one differs from it. Give the same "
        "file, or name an id column to begin with; for another site on this account set "
        "FEDCLUST_STATE_DIR to a directory of its own",
    )
