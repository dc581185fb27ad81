"""A table of its own records is itself, and those who are not behind a record change nothing."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection.cohort import Cohort, CohortRefused
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import ProtectedTable, form_table, within_shares
from protection.drawn_sites import MAKERS, draw_columns, rows_of, sites
from support import reference_table as reference
from support.cohorts import Memory, given_groups

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def _ids(n: int, first: int = 0) -> list[str]:
    return [f"P{first + number}" for number in range(n)]


def _form(
    sources: list[SourceColumn], p: int, groups: IntArray | None = None, least: int = 0
) -> Memory:
    memory, ids = Memory(p), _ids(len(sources[0].values))
    if groups is None:
        memory.update_sources(ids, sources)
        return memory
    with given_groups(lambda _: groups, least):
        memory.update_sources(ids, sources)
    return memory


def _assert_same(one: ProtectedTable, other: ProtectedTable) -> None:
    """Compare all that leaves of two tables, in no order of the groups."""
    one, other = one.sorted_by_value(), other.sorted_by_value()
    assert [each.step for each in one.columns] == [each.step for each in other.columns]
    np.testing.assert_array_equal(one.sizes, other.sizes)
    for mine, theirs in zip(one.released, other.released, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(_shares(one), _shares(other))


def _shares(table: ProtectedTable) -> FloatArray:
    return within_shares(np.column_stack(table.released), table.sizes, table.neighbours)


# --- idempotence ----------------------------------------------------------------------------------


@given(sites())
def test_a_table_of_the_middle_values_of_its_groups_is_itself(
    site: tuple[list[SourceColumn], int],
) -> None:
    """Steps, centres and the order of levels are found again, from persons without ties."""
    sources, p = site
    memory = _form(sources, p)
    cohort, groups = memory.cohort, memory.groups_of(_ids(len(sources[0].values)))
    middles = []
    for source, pinned in zip(sources, cohort.columns, strict=True):
        values = np.full(len(groups), np.nan)
        for group in np.flatnonzero(~np.isnan(pinned.released)):
            own = source.values[groups == group].tolist()
            values[groups == group] = (
                reference.common_level(own, pinned.column.order)
                if source.n_levels is not None
                else reference.middle_value(own, reference.exactly(pinned.column.centre))
                if pinned.column.step
                else 0.0
            )
        middles.append(replace(source, values=values))

    again = _form(middles, p, groups, cohort.least)

    names = list(cohort.rules())
    _assert_same(cohort.table(names), again.cohort.table(names))


@given(sites())
def test_with_the_same_steps_persons_with_a_groups_record_release_it(
    site: tuple[list[SourceColumn], int],
) -> None:
    """Each group comes a second time, as newcomers who all have its record."""
    sources, p = site
    memory = _form(sources, p)
    before = memory.cohort
    groups = memory.groups_of(_ids(len(sources[0].values)))
    copies = [
        replace(source, values=np.append(source.values, pinned.released[groups]))
        for source, pinned in zip(sources, before.columns, strict=True)
    ]
    n, m = len(groups), len(before.sizes)

    with given_groups(lambda _: groups, p):
        memory.cohorts = [replace(before, least=p)]
        memory.update_sources(_ids(2 * n), copies, any_persons=True)

    after = memory.cohort
    assert after.sizes.tolist() == [*before.sizes, *before.sizes]
    for old, new in zip(before.columns, after.columns, strict=True):
        np.testing.assert_array_equal(new.released[:m], old.released)
        np.testing.assert_array_equal(new.released[m:], old.released)
        if old.column.step:
            assert new.column == old.column


@given(sites())
def test_the_order_of_persons_does_not_matter(site: tuple[list[SourceColumn], int]) -> None:
    sources, p = site
    n = len(sources[0].values)
    order = np.random.default_rng(n).permutation(n)

    here, there = form_table(sources, p), form_table(rows_of(sources, order), p)

    assert here.columns == there.columns
    _assert_same(here, there)


def test_the_order_of_persons_who_are_equal_in_distances_does_not_matter() -> None:
    """Four wild values count as 1 in distances; they are a group's middle values if together."""
    values = np.array([0.0] * 15 + [1.0] * 11 + [100.0, 200.0, 300.0, 400.0])
    sources = [SourceColumn("x", values)]
    table = form_table(sources, 5)

    for seed in range(10):
        order = np.random.default_rng(seed).permutation(30)
        _assert_same(table, form_table(rows_of(sources, order), 5))


# --- those who are not behind a record ------------------------------------------------------------


def _site(seed: int) -> tuple[Memory, list[SourceColumn], int]:
    """Return a site whose table has some columns, all columns, and the number of its persons."""
    rng = np.random.default_rng(seed)
    memory = Memory(int(rng.integers(3, 7)))
    everything = draw_columns(rng.choice(MAKERS, int(rng.integers(2, 6))).tolist(), 120, rng)
    n = int(rng.integers(memory.p, 60))
    n_first = int(rng.integers(1, len(everything)))
    memory.update_sources(_ids(n), rows_of(everything[:n_first], np.arange(n)))
    return memory, everything, n


def _released(cohort: Cohort) -> list[object]:
    """Return all that a cohort holds of its columns."""
    names = list(cohort.rules())
    table = cohort.table(names)
    columns = [
        (each.column, each.released.tolist(), each.complete.tolist(), each.prints.tolist())
        for each in cohort.columns
    ]
    return [repr(columns), table.neighbours.tolist(), repr(_shares(table).tolist())]


def _anything(source: SourceColumn, n: int, rng: np.random.Generator) -> FloatArray:
    """Return any values that a column may have."""
    if source.n_levels is not None:
        return rng.choice([0.0, 1.0, 2.0, 3.0, np.nan], n)
    known = source.values[~np.isnan(source.values)]
    wild = rng.choice([-1e12, 1e12, 0.0, np.nan, 1e-9, *known[:5]], n)
    return wild * rng.choice([1.0, 1.0, 0.5, 3.0], n)


@pytest.mark.parametrize("first", range(0, 90, 30))
def test_persons_who_wait_change_nothing_beside_new_columns_real_record(first: int) -> None:
    """1 to L - 1 newcomers with any values, in a file with columns that are released first."""
    for seed in range(first, first + 30):
        memory, everything, n = _site(seed)
        rng = np.random.default_rng(seed)
        before = memory.cohort
        known = rows_of(everything, np.arange(n))
        memory.update_sources(_ids(n), known)
        expected = _released(memory.cohort)
        assert len(memory.cohort.columns) == len(everything)
        for n_waiting in {1, memory.cohort.least - 1, int(rng.integers(1, memory.cohort.least))}:
            memory.cohorts = [before]
            file = [
                replace(each, values=np.append(each.values, _anything(each, n_waiting, rng)))
                for each in known
            ]
            order = rng.permutation(n + n_waiting)
            ids = [*_ids(n), *_ids(n_waiting, first=1_000)]
            change = memory.update_sources(
                [ids[row] for row in order], rows_of(file, order), any_persons=True
            )
            assert (change.waiting, change.groups) == (n_waiting, 0)
            assert _released(memory.cohort) == expected


@pytest.mark.parametrize("first", range(0, 60, 30))
def test_groups_that_do_not_release_a_column_change_nothing_real_record(first: int) -> None:
    """Fewer than p persons of a group have a value of a new column, and it may be any."""
    for seed in range(first, first + 30):
        memory, everything, n = _site(seed)
        rng = np.random.default_rng(seed)
        before, groups = memory.cohort, memory.groups_of(_ids(n))
        known = rows_of(everything, np.arange(n))
        few = np.isin(groups, rng.choice(groups, 2)) & (groups > 0)
        new = known[-1]
        expected: list[object] = []
        for any_value in (False, True):
            memory.cohorts = [before]
            values = np.where(few, np.nan, new.values)
            for group in set(groups[few].tolist()) if any_value else ():
                some = rng.permutation(np.flatnonzero(groups == group))[: memory.p - 1]
                values[some] = _anything(new, len(some), rng)
            memory.update_sources(_ids(n), [replace(new, values=values)])
            pinned = memory.cohort.columns[-1]
            released = [repr(pinned.column), repr(pinned.released.tolist())]
            assert released == (expected or released)
            expected = released


@pytest.mark.parametrize("first", range(0, 60, 30))
def test_known_persons_who_changed_or_are_absent_change_no_record_real_record(first: int) -> None:
    for seed in range(first, first + 30):
        memory, everything, n = _site(seed)
        rng = np.random.default_rng(seed)
        known = rows_of(everything, np.arange(n))
        memory.update_sources(_ids(n), known)
        before, m = memory.cohort, len(memory.cohort.sizes)
        n_new = int(rng.integers(0, 2 * before.least))
        file = rows_of(everything, np.arange(n + n_new))
        for each in file:
            few = rng.permutation(n)[: max(1, n // 4)]
            each.values[few] = _anything(each, len(few), rng)
        here = rng.permutation(n + n_new)[: max(n_new + n // 2 + 1, 1)]
        ids = [_ids(n + n_new)[row] for row in here]
        # A file is refused if most values differ: where few can be compared, it may be.
        with contextlib.suppress(CohortRefused):
            memory.update_sources(ids, rows_of(file, here), any_persons=True)
        after = memory.cohort
        for old, new in zip(before.columns, after.columns, strict=True):
            was = ~np.isnan(old.released)
            np.testing.assert_array_equal(new.released[:m][was], old.released[was])
            if old.column.step:
                assert new.column == old.column
        np.testing.assert_array_equal(after.sizes[:m], before.sizes)


def test_changed_values_of_known_persons_do_not_change_the_step_of_newcomers_real_record() -> None:
    """Also while the step is open: what was released is zeros, whatever the file says now."""
    n = 35
    zeros = np.where(np.arange(n) % 5 == 0, 5.0, 0.0)
    # Values of known persons are read as long as a group has not released the column.
    zeros[30:] = np.nan
    columns = []
    for known in (zeros, np.where(np.arange(n) < 5, 1e6, zeros)):
        memory = _form([SourceColumn("x", zeros)], 3, np.arange(n) // 5, 3)
        assert memory.cohort.columns[0].column.step == 0.0
        values = np.append(known, [40.0, 40.0, 41.0])
        memory.update_sources(_ids(n + 3), [SourceColumn("x", values)], any_persons=True)
        columns.append(memory.cohort.columns[0])
    assert columns[0].column == columns[1].column
    assert columns[0].column.step > 0.0
    np.testing.assert_array_equal(columns[0].released, columns[1].released)


# --- one person -----------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from([-1e12, 1e12, -1.0, 0.0, np.nan]))
def test_one_person_moves_a_record_by_at_most_one_rank_real_record(seed: int, value: float) -> None:
    """The middle value before rounding goes at most to a neighbour of the group's middle values.

    A value that goes missing moves it from one middle value to the other at most.
    """
    rng = np.random.default_rng(seed)
    p, m = int(rng.integers(3, 6)), int(rng.integers(3, 8))
    sizes = rng.integers(p + 1, 2 * p + 1, m)
    groups = np.repeat(np.arange(m), sizes)
    (source,) = draw_columns(
        [str(rng.choice(["decimals", "costs", "skewed", "continuous"]))], 80, rng
    )
    values = np.nan_to_num(source.values[: len(groups)], nan=1.0)
    changed = values.copy()
    person = int(rng.integers(len(groups)))
    changed[person] = value

    released = _form([SourceColumn("x", changed)], p, groups, p).cohort.columns[0]

    for group in range(m):
        own = np.sort(values[groups == group])
        middle = len(own) // 2
        lowest, highest = own[(len(own) - 1) // 2], own[middle]
        if group == groups[person]:
            lowest, highest = own[(len(own) - 1) // 2 - 1], own[middle + 1]
            if np.isnan(value):
                lowest, highest = own[(len(own) - 1) // 2 - 1], own[min(middle + 1, len(own) - 1)]
        slack = released.column.step / 2 * (1 + 1e-9)
        assert lowest - slack <= released.released[group] <= highest + slack
    largest = np.abs(np.concatenate([_middle_ranks(values[groups == g]) for g in range(m)])).max()
    assert released.column.step <= max(largest / 5, 0.0), "the step does not follow one person"


def _middle_ranks(values: FloatArray) -> FloatArray:
    """Return the values that one person can make a middle one."""
    own, middle = np.sort(values), len(values) // 2
    return own[max(middle - 2, 0) : middle + 2]
