"""A larger p is served by unions of whole groups, whose records rest on the groups' records."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.protection.cohort import Cohort, Unions
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import TooFewPersons
from protection.drawn_sites import MAKERS, draw_columns, rows_of
from support import reference_table as reference
from support.cohorts import SECRET, Memory, given_groups, persons, sources_of

FloatArray = NDArray[np.float64]
NAN = np.nan


def _check_new(before: Cohort | None, after: Cohort, p: int) -> None:
    """Check the unions for p, and what they decided since ``before``, against the rules."""
    unions, least = _unions(after, p), -(-p // after.p)
    old = _unions(before, p) if before is not None else None
    for union in set(unions.labels.tolist()) - {-1}:
        groups = np.flatnonzero(unions.labels == union)
        assert len(groups) >= least
        assert after.used[groups].all()
    for place, pinned in enumerate(after.columns):
        known = after.used & ~np.isnan(pinned.released)
        records, sizes = pinned.released[known].tolist(), after.sizes[known].tolist()
        for union in set(unions.labels.tolist()) - {-1}:
            groups = np.flatnonzero(unions.labels == union)
            if old is not None and _is_decided(old, union, place):
                assert _same(unions.released[union, place], old.released[union, place])
                continue
            if not unions.decided[union, place]:
                assert not pinned.complete[groups].all()
                assert np.isnan(unions.released[union, place])
                continue
            assert pinned.complete[groups].all()
            own = pinned.released[groups].tolist(), after.sizes[groups].tolist(), least
            if pinned.column.n_levels is None:
                expected = reference.union_record(*own, records, sizes)
            else:
                n_levels = pinned.column.n_levels
                expected = reference.union_level(*own, records, sizes, n_levels)
            assert _same(unions.released[union, place], expected), (union, pinned.column.name)


def _unions(cohort: Cohort, p: int) -> Unions:
    return next(each for each in cohort.unions if each.p == p)


def _is_decided(unions: Unions, union: int, place: int) -> bool:
    rows, columns = unions.decided.shape
    return union < rows and place < columns and bool(unions.decided[union, place])


def _same(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=1e-12, atol=0.0, equal_nan=True))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_unions_release_what_the_rules_say(first: int) -> None:
    """Files come one after another: new columns, newcomers, absences and withdrawals."""
    for seed in range(first, first + 20):
        rng = np.random.default_rng(seed)
        p, n_all = int(rng.integers(3, 5)), 90
        larger = [p + 1, 2 * p, 3 * p + 1]
        memory, ids = Memory(p), [f"P{number}" for number in range(n_all)]
        everything = draw_columns(rng.choice(MAKERS, 4).tolist(), n_all, rng)
        n = int(rng.integers(2 * p, 60))
        for session in range(4):
            here = np.sort(rng.permutation(n)[: max(p, n - int(rng.integers(0, 3)))])
            if session == 2:
                somebody = str(rng.choice(np.array(ids)[memory.groups_of(ids) >= 0]))
                memory.cohorts = [memory.cohort.withdraw(SECRET, somebody)]
            columns = rows_of(everything[: 2 if session == 0 else None], here)
            for each in larger:
                before = memory.cohort if memory.cohorts else None
                known = before is not None and any(u.p == each for u in before.unions)
                chosen = [ids[row] for row in here]
                memory.update_sources(chosen, columns, p=each, any_persons=True)
                _check_new(before if known else None, memory.cohort, each)
                _check_table(memory.cohort, ids, each)
            n = min(n_all, n + int(rng.integers(0, 12)))


def _check_table(cohort: Cohort, ids: Sequence[str], p: int) -> None:
    """Check that the table for p serves whole unions, and says who is in which of them."""
    names, unions = list(cohort.rules()), _unions(cohort, p)
    served = sorted(set(unions.labels.tolist()) - {-1})
    rows = cohort.table_rows(SECRET, ids, p)
    if not served:
        with pytest.raises(TooFewPersons):
            cohort.table(names, p)
        assert set(rows.tolist()) == {-1}
        return
    table = cohort.table(names, p)
    assert table.sizes.tolist() == np.bincount(rows[rows >= 0]).tolist()
    assert table.sizes.min() >= p
    for place, released in enumerate(table.released):
        np.testing.assert_array_equal(released, unions.released[served, place])


# --- by hand --------------------------------------------------------------------------------------


def _site(
    groups: Sequence[tuple[int, float]], larger_p: int, n_levels: int | None = None
) -> tuple[Memory, list[str]]:
    """Return a site with groups of these sizes and records of "x", and a column that all have.

    Groups that are next to each other are near to each other in it. A record of NaN is not
    released. Steps are small.
    """
    memory = Memory(3)
    labels = np.repeat(np.arange(len(groups)), [size for size, _ in groups])
    ids = [f"P{number}" for number in range(len(labels))]
    sources = [
        SourceColumn("x", np.array([record for _, record in groups])[labels], n_levels),
        SourceColumn("place", labels.astype(np.float64)),
    ]
    with given_groups(lambda _: labels, 3):
        memory.update_sources(ids, sources, p=larger_p)
    return memory, ids


@pytest.mark.parametrize(("larger_p", "least"), [(4, 2), (6, 2), (7, 3), (9, 3), (10, 4)])
def test_a_union_needs_groups_not_persons(larger_p: int, least: int) -> None:
    memory, _ = _site([(5, 1)] * (least - 1), larger_p)
    with pytest.raises(TooFewPersons):
        memory.cohort.table(["x"], larger_p)
    memory, _ = _site([(3, 1)] * least, larger_p)
    assert memory.cohort.table(["x"], larger_p).sizes.tolist() == [3 * least]


# --- once, for ever -------------------------------------------------------------------------------


def _with_new(
    memory: Memory,
    ids: Sequence[str],
    new: FloatArray,
    p: int,
    rows: Callable[[int], bool] = lambda _: True,
) -> None:
    """Give a file with a new column "y" of these persons."""
    groups = memory.groups_of(ids).astype(np.float64)
    chosen = [row for row in range(len(ids)) if rows(row)]
    sources = rows_of([SourceColumn("place", groups), SourceColumn("y", new)], np.array(chosen))
    memory.update_sources([ids[row] for row in chosen], sources, p=p, any_persons=True)


def test_a_union_decides_when_all_its_persons_were_there_and_then_for_ever() -> None:
    memory, ids = _site([(3, 1), (3, 2), (3, 3), (3, 4)], 6)
    groups = memory.groups_of(ids)
    unions = _unions(memory.cohort, 6).labels[groups]
    first, second = np.flatnonzero(unions == 0), np.flatnonzero(unions == 1)
    y = np.where(groups % 2 == 0, 10.0, 20.0)
    lacking = y.copy()
    lacking[first[0]] = NAN  # one group of the first union cannot release it yet
    absent = int(second[0])

    _with_new(memory, ids, lacking, 6, lambda row: row != absent)
    table = memory.cohort.table(["y"], 6)
    assert np.isnan(table.values("y")).all()
    assert (~np.isnan(memory.cohort.table(["y"]).values("y"))).sum() == 2

    _with_new(memory, ids, y, 6)
    groups_now = memory.cohort.table(["y"]).values("y")
    assert not np.isnan(groups_now).any(), "the groups release it later"
    assert np.isnan(memory.cohort.table(["y"], 6).values("y")).tolist() == [True, False]
    _with_new(memory, ids, y, 6)
    assert np.isnan(memory.cohort.table(["y"], 6).values("y")).tolist() == [True, False]


def test_a_later_p_finds_what_groups_have_released() -> None:
    memory, ids = _site([(3, 10), (3, 20), (3, 30), (3, 40)], 0)
    assert memory.cohort.unions == ()
    with pytest.raises(TooFewPersons):
        memory.cohort.table(["x"], 6)
    # The file has only one person, and not the column.
    memory.update_sources(ids[:1], [SourceColumn("place", np.zeros(1))], p=6)

    assert sorted(memory.cohort.table(["x"], 6).values("x")) == [20.0, 30.0]


def test_a_withdrawal_ends_the_union_and_its_other_groups_wait() -> None:
    memory, ids = _site([(3, record) for record in (1, 2, 11, 12, 21, 22)], 6)
    unions = _unions(memory.cohort, 6).labels[memory.groups_of(ids)]
    members = np.flatnonzero(unions == unions[0])
    before = memory.cohort.table(["x"], 6)

    memory.cohorts = [memory.cohort.withdraw(SECRET, ids[0])]

    after = memory.cohort.table(["x"], 6)
    assert len(after.sizes) == len(before.sizes) - 1
    rows = memory.cohort.table_rows(SECRET, ids, 6)
    assert np.flatnonzero(rows < 0).tolist() == members.tolist()
    assert set(after.values("x")) < set(before.values("x"))
    assert len(memory.cohort.table(["x"]).sizes) == 5, "only one group of it ends"

    # Another group comes: it joins the one that waits, and no other.
    x = np.append(np.array([1, 2, 11, 12, 21, 22.0]).repeat(3), [7.0] * 3)
    newcomers = [f"N{number}" for number in range(3)]
    everybody = [SourceColumn("x", x), SourceColumn("place", np.arange(7.0).repeat(3))]
    memory.update_sources([*ids, *newcomers], everybody, p=6, any_persons=True)
    rows = memory.cohort.table_rows(SECRET, [*ids, *newcomers], 6)
    assert members[0] == 0
    assert np.flatnonzero(rows < 0).tolist() == [0, 1, 2], "those left over are in no other group"
    assert len(set(rows[3:])) == 3
    assert set(rows[members[3:]]) == set(rows[-3:]), "their union's other group is with the new one"


def test_unions_do_not_depend_on_the_order_of_persons() -> None:
    people = persons(90, 3)
    memories = [Memory(3), Memory(3)]
    memories[0].update(people, p=10)
    memories[1].update(dict(reversed(people.items())), p=10)

    one, other = (memory.cohort.table(["x0", "x1"], 10).sorted_by_value() for memory in memories)
    np.testing.assert_array_equal(one.sizes, other.sizes)
    for mine, theirs in zip(one.released, other.released, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_groups_of_all_parts_are_united_by_what_they_released() -> None:
    """Groups that lack a column are at its mean: they join the nearest by the other columns."""
    memory = Memory(3)
    labels = np.repeat(np.arange(4), 3)
    rows = [[0.0, 0.0], [0.1, NAN], [10.0, 0.0], [10.1, NAN]]
    ids = [f"P{number}" for number in range(12)]
    with given_groups(lambda _: labels, 3):
        memory.update_sources(ids, sources_of(np.array(rows)[labels]), p=6)

    united = _unions(memory.cohort, 6).labels
    assert united[0] == united[1] != united[2] == united[3]
