"""A cohort answers for known persons, and releases nothing that concerns fewer than p persons."""

from __future__ import annotations

import numpy as np
import pytest

from fedclust.protection.cohort import CohortRefused
from fedclust.protection.columns import LevelColumn, SourceColumn
from fedclust.protection.table import TooFewPersons, form_table, unite_groups
from support.cohorts import SECRET, Memory, persons, recoverable, sources_of

NAMES = ["x0", "x1", "x2"]


def test_the_first_table_holds_the_whole_source() -> None:
    site, people = Memory(), persons(200)

    change = site.update(people)

    table, direct = site.cohort.table(NAMES), form_table(sources_of(list(people.values())), 5)
    assert (change.persons, change.groups, change.columns) == (200, len(table.sizes), 3)
    assert table.columns == direct.columns
    np.testing.assert_array_equal(table.sizes, direct.sizes)
    for mine, theirs in zip(table.released, direct.released, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    assert table.shares == direct.shares


def test_fewer_than_p_persons_leave_no_cohort() -> None:
    site = Memory()
    with pytest.raises(TooFewPersons):
        site.update(persons(4))
    assert site.cohorts == []


def test_nothing_new_changes_nothing() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    before = site.cohort

    site.update(dict(reversed(people.items())))

    assert site.cohort is before


@pytest.mark.parametrize("blocks", [2, 7])
def test_blocks_release_what_one_pass_does_of_known_groups(blocks: int) -> None:
    one, many, people = Memory(), Memory(), persons(120)
    more = {name: np.append(row, i * 0.37 % 1) for i, (name, row) in enumerate(people.items())}
    for site in (one, many):
        site.update(people)
    one.update(more)
    many.update(more, blocks=blocks)

    for mine, theirs in zip(
        one.cohort.table(["x3"]).released, many.cohort.table(["x3"]).released, strict=True
    ):
        # The first block describes a new column; its step may be another one.
        np.testing.assert_allclose(mine, theirs, atol=0.1)


def test_a_first_table_of_many_blocks_holds_everybody() -> None:
    site, people = Memory(), persons(103)

    site.update(people, blocks=10)

    table = site.cohort.table(NAMES)
    assert table.sizes.sum() == 103
    assert table.sizes.min() >= 5
    assert site.update(people, blocks=3).persons == 0


def test_a_known_group_is_answered_from_the_store() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    before = site.cohort.table(NAMES)

    people["P7"] = people["P7"] + 1.0
    change = site.update(people)

    assert change.corrected == 0
    for old, new in zip(before.released, site.cohort.table(NAMES).released, strict=True):
        np.testing.assert_array_equal(old, new)


def test_absence_is_no_withdrawal() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    before = site.cohort

    change = site.update({name: people[name] for name in list(people)[:31]})

    assert change.absent == 29
    assert site.cohort is before


def test_newcomers_wait_until_there_are_enough() -> None:
    site, people = Memory(), persons(60)
    site.update(people)

    assert site.update(people | persons(4, first=100)).waiting == 4
    assert len(site.cohort.keys) == 60
    change = site.update(people | persons(5, first=100))

    assert (change.persons, change.groups, change.waiting) == (5, 1, 0)
    assert site.cohort.sizes[-1] == 5
    assert len({site.group_of(f"P{100 + i}") for i in range(5)}) == 1


def test_newcomers_with_yes_no_columns_wait_for_2p() -> None:
    def people(n: int, first: int = 0) -> dict[str, np.ndarray]:
        rows = persons(n, 2, first=first)
        return {name: np.append(row, i % 2) for i, (name, row) in enumerate(rows.items())}

    site = Memory()
    site.update(people(90))

    assert site.update(people(90) | people(9, 100)).waiting == 9
    assert site.update(people(90) | people(10, 100)).groups == 1


def test_newcomers_follow_the_pinned_rules() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    pinned = site.cohort.table(["x0"]).columns[0]

    site.update(people | {name: row * 5 for name, row in persons(20, first=100).items()})

    assert site.cohort.table(["x0"]).columns == (pinned,)
    released = site.cohort.table(["x0"]).released[0]
    assert released.max() <= pinned.upper + pinned.step


def test_a_new_column_is_released_for_the_same_groups() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    sizes = site.cohort.table(NAMES).sizes
    rng = np.random.default_rng(1)
    more = {name: np.append(row, rng.integers(0, 50)) for name, row in people.items()}

    change = site.update(more)

    table = site.cohort.table(["x3"])
    np.testing.assert_array_equal(table.sizes, sizes)
    assert (change.columns, change.groups) == (1, 0)
    groups = np.array([site.group_of(name) for name in people])
    sums = np.bincount(groups, weights=[row[3] for row in more.values()])
    np.testing.assert_allclose(table.released[0], np.rint(sums / sizes))


def test_a_group_that_lacks_one_value_never_releases_the_column_real_record() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    rng = np.random.default_rng(1)
    whole = {name: np.append(row, rng.normal()) for name, row in people.items()}
    lacking = {name: row.copy() for name, row in whole.items()}
    lacking["P7"][3] = np.nan
    absent = {name: row for name, row in lacking.items() if name != "P8"}
    first, second = site.group_of("P7"), site.group_of("P8")
    assert first != second

    site.update(absent)
    released = site.cohort.table(["x3"]).released[0]
    assert set(np.flatnonzero(np.isnan(released))) == {first, second}
    site.update(whole)

    released = site.cohort.table(["x3"]).released[0]
    assert np.flatnonzero(np.isnan(released)).tolist() == [first], "absence leaves a group open"


def test_a_column_of_other_persons_is_open_to_those_who_come_later() -> None:
    site, first, second = Memory(), persons(60, 4), persons(40, 4, first=100)
    site.update({name: row[:3] for name, row in first.items()})
    site.update(second | {"P1": first["P1"]})
    assert np.isnan(site.cohort.table(["x3"]).released[0]).sum() >= 1

    site.update({name: row for name, row in first.items() if name != "P1"} | second)

    released = site.cohort.table(["x3"]).released[0]
    assert np.flatnonzero(np.isnan(released)).tolist() == [site.group_of("P1")]


def test_a_renamed_column_releases_nothing_new() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    before = site.cohort.table(["x1"])
    people["P3"] = people["P3"] + 2.0

    change = site.update(people, ["x0", "systolic", "x2"])

    assert (change.columns, change.renamed) == (0, {"systolic": "x1"})
    assert site.cohort.pinned_name("systolic") == "x1"
    after = site.cohort.table(["systolic"])
    assert after.names() == ("systolic",)
    np.testing.assert_array_equal(after.released[0], before.released[0])


def test_a_corrected_copy_of_a_column_is_that_column_real_record() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    both = {name: np.append(row, row[1]) for name, row in people.items()}
    both["P3"][3] += 1.0  # the two sums of this group would differ by this person's correction

    change = site.update(both, [*NAMES, "x1_corrected"])

    assert (change.columns, change.renamed) == (0, {"x1_corrected": "x1"})
    with pytest.raises(CohortRefused, match="A session can use one of them"):
        site.cohort.table(["x1", "x1_corrected"])


def test_two_rare_conditions_are_two_columns() -> None:
    rng = np.random.default_rng(0)
    site, rows = Memory(), rng.normal(size=(400, 2))
    rare = np.zeros((400, 2))
    rare[:8, 0] = rare[20:28, 1] = 1.0
    ids = [f"P{i}" for i in range(400)]
    site.update_sources(ids, sources_of([*np.column_stack([rows, rare[:, 0]])]))

    change = site.update_sources(ids, sources_of([*np.column_stack([rows, rare])]))

    assert (change.columns, change.renamed) == (1, {})


@pytest.mark.parametrize("implied", [True, False])
def test_a_condition_is_not_taken_for_a_common_one(implied: bool) -> None:
    rng = np.random.default_rng(0)
    first = (rng.random(400) < 0.5).astype(float)
    second = (rng.random(400) < 0.4).astype(float) * (first if implied else 1.0)
    rows, ids = rng.normal(size=(400, 2)), [f"P{i}" for i in range(400)]
    site = Memory()
    site.update_sources(ids, sources_of([*np.column_stack([rows, first])], ["a", "b", "icu"]))

    change = site.update_sources(
        ids, sources_of([*np.column_stack([rows, second])], ["a", "b", "sepsis"])
    )

    assert (change.columns, change.renamed, change.corrected) == (1, {}, 0)


def test_a_renamed_column_with_fewer_than_p_other_values_gives_no_real_record() -> None:
    site, people = Memory(), persons(20)
    site.update(people)
    for name in ("P1", "P2", "P3", "P4"):
        people[name] = people[name] + [0.0, 3.0, 0.0]
    assert site.update(people, ["x0", "late", "x2"]).renamed == {"late": "x1"}


def test_a_pinned_column_is_not_corrected_under_another_name() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    site.update(people, ["x0", "late", "x2"])
    for name in people:
        if site.group_of(name) == 0:
            people[name] = people[name] + [0.0, 3.0, 0.0]

    assert site.update(people, ["x0", "late", "x2"]).corrected == 0
    assert site.update(people).corrected == 1


def test_fewer_decimals_do_not_carry_a_correction_real_record() -> None:
    rng = np.random.default_rng(3)
    people = {f"P{i}": rng.normal(50.0, 10.0, 4).round(5) for i in range(60)}
    site = Memory()
    site.update(people)
    released = site.cohort.table(["x0"]).released[0]

    exported = {name: row.round(3) for name, row in people.items()}
    exported["P7"] = exported["P7"] + [30.0, 0.0, 0.0, 0.0]

    assert site.update(exported).corrected == 0
    np.testing.assert_array_equal(site.cohort.table(["x0"]).released[0], released)


def test_yes_no_columns_may_all_be_renamed() -> None:
    rng = np.random.default_rng(0)
    kinds, ids = rng.integers(0, 3, 300), [f"P{i}" for i in range(300)]
    onehot = [SourceColumn(f"blood={k}", (kinds == k).astype(float)) for k in range(3)]
    renamed = [SourceColumn(each.name.upper(), each.values) for each in onehot]
    site = Memory()
    site.update_sources(ids, onehot)
    assert isinstance(site.cohort.columns[0].column, LevelColumn)

    change = site.update_sources(ids, renamed)

    assert change.columns == 0
    assert change.renamed == {each.name.upper(): each.name for each in onehot}


def test_a_correction_of_fewer_than_p_persons_waits_real_record() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    group = [name for name in people if site.group_of(name) == 0]
    before = site.cohort.table(["x0"]).released[0].copy()

    for name in group[:4]:
        people[name] = people[name] + [5.0, 0.0, 0.0]
    assert site.update(people).corrected == 0
    np.testing.assert_array_equal(site.cohort.table(["x0"]).released[0], before)
    people[group[4]] = people[group[4]] + [5.0, 0.0, 0.0]
    assert site.update(people).corrected == 1

    after = site.cohort.table(["x0"]).released[0]
    assert np.flatnonzero(after != before).tolist() == [0]
    assert site.update(people).corrected == 0


def test_a_correction_that_is_taken_back_gives_no_real_record() -> None:
    """Six change and five change back: the first sum minus the third would be the sixth alone."""
    site, people = Memory(p=6), persons(60)
    site.update(people)
    group = [name for name in people if site.group_of(name) == 0][:6]
    changed = people | {name: people[name] + [3.1, 0.0, 0.0] for name in group}
    assert site.update(changed).corrected == 1

    back = people | {group[0]: changed[group[0]]}

    assert site.update(back).corrected == 0
    assert site.update(people).corrected == 0, "nor the other way round"


def test_a_wrong_read_is_refused_and_cannot_be_undone() -> None:
    """Two of five columns are swapped: what is released of it stays, whatever is read later."""
    site, people = Memory(), persons(60, 5)
    site.update(people)
    before = site.cohort
    swapped = {name: values[[1, 0, 2, 3, 4]] for name, values in people.items()}

    with pytest.raises(CohortRefused, match=r"x0 \(\d+% of 60 persons\); x1 .*accept-corr") as said:
        site.update(swapped)

    assert said.value.rule == "many-corrections"
    assert "x2" not in str(said.value)
    assert site.cohort is before
    change = site.update(swapped, accept_corrections=True)
    assert change.accepted_columns == 2
    assert change.corrected > 0
    wrong = site.cohort.table(["x0"]).released[0]
    change = site.update(people)
    assert (change.accepted_columns, change.corrected) == (0, 0)
    np.testing.assert_array_equal(site.cohort.table(["x0"]).released[0], wrong)


@pytest.mark.parametrize(("n_changed", "refused"), [(15, False), (19, False), (20, True)])
def test_few_corrections_are_not_refused(n_changed: int, refused: bool) -> None:
    """At least 4p persons and more than a quarter of them."""
    site, people = Memory(), persons(60)
    site.update(people)
    for name in list(people)[:n_changed]:
        people[name] = people[name] + [5.0, 0.0, 0.0]
    if refused:
        with pytest.raises(CohortRefused, match="read wrongly"):
            site.update(people)
    else:
        assert site.update(people).accepted_columns == 0


def test_a_value_beyond_a_fence_that_stays_beyond_it_is_no_correction_real_record() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=60)
    values[:5] = 1e6 + np.arange(5)
    people = {f"P{i}": np.array([value, rng.normal()]) for i, value in enumerate(values)}
    site = Memory()
    site.update(people)
    assert len({site.group_of(f"P{i}") for i in range(5)}) == 1

    for i in range(4):
        people[f"P{i}"] = people[f"P{i}"] * [2.0, 1.0]
    people["P4"] = people["P4"] * [0.0, 1.0]

    assert site.update(people).corrected == 0


def test_withdrawal_ends_the_use_of_a_group() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    group = site.group_of("P7")
    fellows = [name for name in people if site.group_of(name) == group and name != "P7"]
    sizes = site.cohort.table(NAMES).sizes

    site.cohorts = [site.cohort.withdraw(SECRET, "P7")]

    np.testing.assert_array_equal(site.cohort.table(NAMES).sizes, np.delete(sizes, group))
    assert all(site.group_of(name) == -1 for name in ["P7", *fellows])
    assert site.update(people).persons == 0, "neither the person nor the others come back alone"


def test_those_left_over_join_groups_of_p_newcomers_real_record() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    group = site.group_of("P7")
    fellows = [name for name in people if site.group_of(name) == group and name != "P7"]
    site.cohorts = [site.cohort.withdraw(SECRET, "P7")]

    change = site.update(people | persons(12, first=100))

    assert change.persons == 12
    assert site.group_of("P7") == -1
    assert all(site.group_of(name) >= 0 for name in fellows)
    rows = {name: site.group_of(name) for name in [*fellows, *persons(12, first=100)]}
    for row in {rows[name] for name in fellows}:
        assert sum(1 for name, at in rows.items() if at == row and name not in fellows) >= 5
    assert site.cohort.table(NAMES).sizes.sum() == 60 - len(fellows) - 1 + 12 + len(fellows)


def test_withdrawal_of_an_unknown_person_is_refused() -> None:
    site = Memory()
    site.update(persons(60))
    with pytest.raises(CohortRefused, match="no group holds this person"):
        site.cohort.withdraw(SECRET, "P60")


def test_a_larger_p_takes_unions_and_a_smaller_one_changes_nothing() -> None:
    site = Memory()
    site.update(persons(100))
    table = site.cohort.table(NAMES)

    united, same = site.cohort.table(NAMES, 12), site.cohort.table(NAMES, 3)

    np.testing.assert_array_equal(united.sizes, unite_groups(table, 12).sizes)
    assert united.sizes.min() >= 12
    np.testing.assert_array_equal(same.sizes, table.sizes)
    with pytest.raises(TooFewPersons):
        site.cohort.table(NAMES, 101)
    with pytest.raises(KeyError):
        site.cohort.table(["x9"])


def test_a_column_that_is_read_by_another_rule_is_refused() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    with pytest.raises(CohortRefused, match="by another rule") as refused:
        site.update(people, rules={"x1": "yes/no"})
    assert refused.value.rule == "other-rule"


def test_a_numeric_column_of_two_values_releases_no_counts_of_newcomers_real_record() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    newcomers = persons(20, first=100)
    for i, row in enumerate(newcomers.values()):
        row[1] = i % 2

    site.update(people | newcomers)

    table = site.cohort.table(["x0", "x1"])
    new = [site.group_of(name) for name in newcomers]
    assert np.isnan(table.released[1][new]).all()
    assert not np.isnan(table.released[0]).any()


def test_repeated_ids_are_refused() -> None:
    rows = list(persons(60).values())
    for repeated in (["P0", *(f"P{i}" for i in range(59))], ["P0"] * 60):
        with pytest.raises(CohortRefused, match="twice") as refused:
            Memory().update_sources(repeated, sources_of(rows))
        assert refused.value.rule == "ids-repeat"
    site = Memory()
    site.update(persons(60))
    with pytest.raises(CohortRefused, match="twice"):
        site.update_sources(["P0", *(f"P{i}" for i in range(59))], sources_of(rows), blocks=3)


@pytest.mark.parametrize("levels", [False, True])
def test_ids_that_all_change_are_refused(levels: bool) -> None:
    people = persons(60)
    if levels:
        people = {name: (row > 0).astype(float) for name, row in people.items()}
    site = Memory()
    site.update(people)
    with pytest.raises(CohortRefused, match="ids that they had") as refused:
        site.update({f"new-{name}": row for name, row in people.items()})
    assert refused.value.rule == "other-ids"


def test_other_ids_are_refused_at_a_small_site_as_well() -> None:
    """Two of twelve persons have changed and three have come since the groups were formed."""
    site, people = Memory(p=3), persons(12, d=2)
    site.update(people)
    later = people | {name: people[name] + 1.0 for name in ("P0", "P1")} | persons(3, d=2, first=12)
    with pytest.raises(CohortRefused, match="ids that they had"):
        site.update({f"new-{name}": row for name, row in later.items()})


@pytest.mark.parametrize("n", [1, 2, 15])
def test_newcomers_who_differ_from_missing_persons_are_accepted(n: int) -> None:
    site, people = Memory(p=3), persons(12, d=2)
    site.update(people)
    site.update(persons(n, d=2, first=12) | {name: people[name] for name in ("P0", "P1")})
    assert len(site.cohorts) == 1


def test_newcomers_with_the_values_of_missing_persons_are_refused() -> None:
    site, people = Memory(), persons(60)
    site.update(people)
    people["other"] = people.pop("P7")
    with pytest.raises(CohortRefused, match="ids that they had"):
        site.update(people)


def test_strangers_who_share_common_values_are_welcome() -> None:
    rng = np.random.default_rng(0)
    site = Memory()
    for first in (0, 1_000):
        people = {f"P{first + i}": rng.integers(0, 3, 3).astype(float) for i in range(300)}
        site.update(people)
    assert len(site.cohorts) == 2, "another site on this account"


def test_ids_of_other_persons_are_refused() -> None:
    site = Memory()
    site.update(persons(60))
    with pytest.raises(CohortRefused, match="FEDCLUST_STATE_DIR") as refused:
        site.update(persons(60, seed=9))
    assert refused.value.rule == "other-values"


def test_other_persons_are_another_cohort_and_both_together_are_refused() -> None:
    site, here, there = Memory(), persons(60), persons(60, first=100)
    site.update(here)
    site.update(there)
    assert len(site.cohorts) == 2
    with pytest.raises(CohortRefused, match="of the tables") as refused:
        site.update(here | there)
    assert refused.value.rule == "two-cohorts"


def test_without_ids_one_file_is_served() -> None:
    site, people = Memory(), persons(60)
    twice = people | {"again": people["P3"]}
    site.update(twice, ids=False)
    before = site.cohort

    site.update(dict(reversed(twice.items())), ids=False, blocks=4)
    assert site.cohort is before

    rng = np.random.default_rng(0)
    site.update({name: np.append(row, rng.normal()) for name, row in twice.items()}, ids=False)
    assert site.cohort.table(["x3"]).sizes.sum() == 61


def test_without_ids_another_file_is_refused_and_a_stranger_is_another_cohort() -> None:
    site, people = Memory(), persons(60)
    site.update(people, ids=False)
    for other in (people | persons(1, first=90), dict(list(people.items())[1:])):
        with pytest.raises(CohortRefused, match="one file") as refused:
            site.update(other, ids=False)
        assert refused.value.rule == "other-file"
    with pytest.raises(CohortRefused, match="one file"):
        site.update({name: row[:2] for name, row in people.items()}, ids=False)
    with pytest.raises(CohortRefused, match="ids that they had"):
        site.update(people)

    site.update(persons(60, first=100), ids=False)
    assert len(site.cohorts) == 2


def test_constant_and_empty_columns_and_equal_rows() -> None:
    site = Memory()
    values = np.column_stack([np.ones(40), np.full(40, np.nan), np.repeat([0.0, 1.0], 20)])
    ids = [f"P{i}" for i in range(40)]
    site.update_sources(ids, sources_of([*values], ["one", "nobody", "half"]))
    assert site.update_sources(ids, sources_of([*values], ["one", "nobody", "half"])).columns == 0

    table = site.cohort.table(["one", "nobody", "half"])
    assert set(table.values("one")) == {1.0}
    assert np.isnan(table.values("nobody")).all()

    alike = Memory()
    alike.update_sources(ids, sources_of([np.ones(2)] * 40))
    assert alike.cohort.table(["x0"]).sizes.sum() == 40


def test_the_check_of_combinations_finds_a_difference_of_one_person() -> None:
    """The attack of the state machine works: two sums that differ in one person are found."""
    groups = np.array([[1.0, 1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    assert recoverable(groups, range(5), 3)
    assert not recoverable(groups[:1], range(5), 3)
    assert not recoverable(np.array([[1.0] * 3 + [0.0] * 3, [0.0] * 3 + [1.0] * 3]), range(6), 3)
