"""Whatever a site releases could also come from groups of identical persons.

A site has files in which persons come, stay away, are withdrawn and get new columns. In the world
of identical persons the same persons are in the same groups, but each of them has the middle value
of the group, before it is rounded, in each column that the group releases, and no value of the
others. Persons who wait have any values. Everything that is released has to be equal.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.protection.cohort import Cohort
from fedclust.protection.columns import SourceColumn
from protection.drawn_sites import MAKERS, draw_columns, rows_of
from support.cohorts import SECRET, Memory, given_groups, groups_of
from support.reference_table import common_level, middle_value

IntArray = NDArray[np.int64]


@dataclass
class File:
    """A site's file, and the larger p of the session that asks for it."""

    ids: list[str]
    sources: list[SourceColumn]
    larger_p: int
    withdrawn: str = ""


@dataclass
class Identical:
    """The values that the persons of a world of identical persons have.

    Attributes
    ----------
    middles : dict of (column, group) to float
        Of the columns that the group has released.
    """

    middles: dict[tuple[str, int], float] = field(default_factory=dict)

    def file(self, cohort: Cohort, file: File, rng: np.random.Generator) -> File:
        """Return the file that such persons have, given what ``cohort`` has released by it."""
        groups = groups_of(cohort, file.ids)
        pinned = {each.column.name: each for each in cohort.columns}
        sources = []
        for source in file.sources:
            column, released = pinned[source.name].column, pinned[source.name].released
            values = np.full(len(groups), np.nan)
            for group in range(len(cohort.sizes)):
                if np.isnan(released[group]):
                    continue
                key, of = (source.name, group), groups == group
                if key not in self.middles:
                    own = source.values[of].tolist()
                    self.middles[key] = (
                        float(common_level(own, column.order))
                        if source.n_levels is not None
                        # The step is open as long as all middle values are 0.
                        else middle_value(own, Fraction(column.centre if column.step else 0))
                    )
                values[of] = self.middles[key]
            waiting = groups < 0
            if source.n_levels is None and rng.random() < 0.5:
                values[waiting] = rng.choice([-1e12, 0.0, 1e12], int(waiting.sum()))
            sources.append(SourceColumn(source.name, values, source.n_levels))
        return File(file.ids, sources, file.larger_p, file.withdrawn)


def draw_files(p: int, rng: np.random.Generator) -> Iterator[File]:
    """Yield the files of a site, one session after the other."""
    n = int(rng.integers(p, 10 * p))
    kinds = rng.choice(MAKERS, int(rng.integers(1, 6))).tolist()
    everything = draw_columns(kinds, 12 * p, rng)
    first = int(rng.integers(1, len(everything) + 1))
    ids = [f"P{number}" for number in range(12 * p)]
    here = np.arange(n)
    for session in range(int(rng.integers(1, 4))):
        columns = everything[:first] if session == 0 else everything
        larger_p = int(rng.choice([0, p + 1, 2 * p, 3 * p]))
        withdrawn = ids[here[0]] if session and rng.random() < 0.3 else ""
        yield File([ids[i] for i in here], rows_of(columns, here), larger_p, withdrawn)
        n = min(12 * p, n + int(rng.integers(0, 3 * p)))
        away = rng.random(n) < rng.choice([0.0, 0.0, 0.05])
        here = rng.permutation(np.flatnonzero(~away)) if not away.all() else np.arange(n)


def draw_partition(n: int, least: int, rng: np.random.Generator) -> IntArray:
    """Return groups of at least ``least`` persons, or one of all if these are fewer."""
    ends = np.cumsum(rng.integers(least, 2 * least, n))
    labels = np.searchsorted(ends[ends <= n - least], np.arange(n), "right")
    return rng.permutation(labels)


def take(memory: Memory, file: File, groups: AbstractContextManager[None]) -> None:
    """Let a site bring its table up to date."""
    if file.withdrawn and (groups_of(memory.cohort, [file.withdrawn]) >= 0).all():
        memory.cohorts = [memory.cohort.withdraw(SECRET, file.withdrawn)]
    with groups:
        memory.update_sources(file.ids, file.sources, p=file.larger_p, any_persons=True)


def new_groups(before: IntArray, after: IntArray) -> Callable[[int], IntArray]:
    """Return the groups of those who came into one, in the order of the source."""
    labels = after[after != before]
    return lambda _: labels - labels.min()


def assert_same(one: Cohort, other: Cohort) -> None:
    """Compare everything that two tables release."""
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_array_equal(one.groups, other.groups)
    np.testing.assert_array_equal(one.sizes, other.sizes)
    np.testing.assert_array_equal(one.used, other.used)
    assert one.least == other.least
    for mine, theirs in zip(one.columns, other.columns, strict=True):
        assert (mine.column.name, mine.column.step) == (theirs.column.name, theirs.column.step)
        np.testing.assert_array_equal(mine.released, theirs.released, mine.column.name)
    for first, second in zip(one.unions, other.unions, strict=True):
        assert first.p == second.p
        np.testing.assert_array_equal(first.labels, second.labels)
        np.testing.assert_array_equal(first.released, second.released)
    if one.used.any():
        names = list(one.rules())
        np.testing.assert_array_equal(one.table(names).neighbours, other.table(names).neighbours)


def compare_worlds(seed: int, *, drawn: bool) -> int:
    """Play both worlds, and return how many records they have released."""
    rng = np.random.default_rng(seed)
    p = int(rng.choice([3, 5, 10], p=[0.6, 0.3, 0.1]))
    true, identical, values = Memory(p), Memory(p), Identical()
    least = int(rng.integers(p, 3 * p + 1))
    for file in draw_files(p, rng):
        known = groups_of(true.cohort, file.ids) if true.cohorts else np.full(len(file.ids), -1)
        any_groups = given_groups(lambda n: draw_partition(n, p, rng), least)
        # Fewer than p persons would be one group of them.
        take(true, file, any_groups if drawn and len(file.ids) >= least else nullcontext())
        groups = new_groups(known, groups_of(true.cohort, file.ids))
        alike = values.file(true.cohort, file, rng)
        take(identical, alike, given_groups(groups, true.cohort.least))
        assert_same(true.cohort, identical.cohort)
    return sum(int((~np.isnan(each.released)).sum()) for each in true.cohort.columns)


@pytest.mark.parametrize(
    "first",
    [
        *range(0, 200, 100),
        *(pytest.param(n, marks=pytest.mark.long) for n in range(200, 1000, 100)),
    ],
)
def test_identical_persons_release_the_same_real_record(first: int) -> None:
    released = sum(compare_worlds(seed, drawn=True) for seed in range(first, first + 100))
    assert released > 500


def test_identical_persons_in_groups_of_similar_ones_release_the_same_real_record() -> None:
    released = sum(compare_worlds(seed, drawn=False) for seed in range(2_000, 2_100))
    assert released > 500
