"""A cohort answers for known persons, and a group releases a column once."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.protection.cohort import CohortRefused, person_keys, row_ids
from fedclust.protection.table import TooFewPersons, find_neighbours
from support.cohorts import SECRET, Memory, given_groups, persons, sources_of

NAMES = ["x0", "x1", "x2"]


def with_groups(n: int = 60, d: int = 3) -> tuple[Memory, dict[str, NDArray[np.float64]]]:
    """Return a site that has formed groups, and its persons."""
    site, people = Memory(), persons(n, d)
    site.update(people)
    return site, people


def test_fewer_than_p_persons_leave_no_cohort() -> None:
    site = Memory()
    with pytest.raises(TooFewPersons):
        site.update(persons(4))
    assert site.cohorts == []


def test_absence_and_corrections_change_no_release_real_record() -> None:
    site, people = with_groups()
    before = site.cohort

    site.update({name: people[name] for name in list(people)[:31]})

    assert (site.recognition.known, site.recognition.missing) == (31, 29)
    assert site.cohort is before

    site.update({name: row + np.array([5.0, 0.0, 0.0]) for name, row in people.items()})

    assert site.cohort is before
    assert site.recognition.differing["x0"] == (60, 60)
    assert site.recognition.differing["x1"][0] == 0


def test_newcomers_wait_until_there_are_enough() -> None:
    site, people = with_groups()

    assert site.update(people | persons(4, first=100)).waiting == 4
    assert len(site.cohort.keys) == 60
    change = site.update(people | persons(5, first=100))

    assert (change.persons, change.groups, change.waiting) == (5, 1, 0)
    assert site.cohort.sizes[-1] == 5
    assert len({site.group_of(f"P{100 + i}") for i in range(5)}) == 1


def test_a_group_releases_a_column_once_all_are_there_and_p_have_it_real_record() -> None:
    site, people = with_groups()
    rng = np.random.default_rng(1)
    whole = {name: np.append(row, rng.normal()) for name, row in people.items()}
    lacking = {name: row.copy() for name, row in whole.items()}
    of_first = [name for name in people if site.group_of(name) == site.group_of("P7")]
    for name in of_first[4:]:
        lacking[name][3] = np.nan
    absent = {name: row for name, row in lacking.items() if name != "P8"}
    first, second = site.group_of("P7"), site.group_of("P8")
    assert first != second

    site.update(absent)
    released = site.cohort.table(["x3"]).values("x3")
    assert set(np.flatnonzero(np.isnan(released))) == {first, second}
    site.update(lacking)
    again = site.cohort.table(["x3"]).values("x3")
    assert np.flatnonzero(np.isnan(again)).tolist() == [first], "four persons have a value"
    site.update(whole)

    at_last = site.cohort.table(["x3"]).values("x3")
    assert not np.isnan(at_last).any(), "it may release it later"
    np.testing.assert_array_equal(np.delete(at_last, first), np.delete(again, first))
    was_there = ~np.isnan(released)
    np.testing.assert_array_equal(at_last[was_there], released[was_there])


def test_p_persons_with_a_value_are_enough_real_record() -> None:
    site, people = with_groups(9)
    more = {
        name: np.append(row, 7.0 if i < 5 else np.nan)
        for i, (name, row) in enumerate(people.items())
    }

    site.update(more)

    assert site.cohort.table(["x3"]).values("x3").tolist() == [7.0]
    assert site.cohort.table(["x3"]).sizes.tolist() == [9], "all persons of the group"


@pytest.mark.parametrize("n_changed", [0, 1, 4])
def test_a_column_under_another_name_moves_by_one_rank_a_person_real_record(n_changed: int) -> None:
    """A later measurement of a few: the two records are a person's values at most by their rank."""
    site, people = with_groups()
    both = {name: np.append(row, row[1]) for name, row in people.items()}
    for i in range(n_changed):
        both[f"P{i}"][3] += 1e9

    site.update(both, [*NAMES, "systolic"])

    table = site.cohort.table(["x1", "systolic"])
    groups = site.groups_of(list(people))
    changed = np.bincount(groups[:n_changed], minlength=len(table.sizes))
    first, second = (column.step for column in table.columns)
    for group, (before, after) in enumerate(zip(*table.released, strict=True)):
        own = np.sort([row[1] for name, row in people.items() if site.group_of(name) == group])
        lowest, highest = (len(own) - 1) // 2, len(own) // 2 + changed[group]
        assert own[lowest] - second / 2 <= after <= own[min(highest, len(own) - 1)] + second / 2
        assert changed[group] or abs(after - before) <= (first + second) / 2


def test_a_row_without_an_id_is_withdrawn_by_its_number() -> None:
    site = Memory()
    site.update(dict(zip(row_ids(1, 60), persons(60).values(), strict=True)))
    left = replace(site.cohort, has_ids=False).withdraw(SECRET, "7")
    (row,) = left.find(person_keys(SECRET, row_ids(7, 1))[0])
    np.testing.assert_array_equal(np.flatnonzero(left.withdrawn), row)
    with pytest.raises(CohortRefused):
        site.cohort.withdraw(SECRET, "7")


@pytest.mark.parametrize("size", [5, 6])
def test_those_left_over_by_a_withdrawal_join_no_other_group(size: int) -> None:
    people = persons(90)
    site = Memory()
    site.update(people)
    group = next(g for g in range(len(site.cohort.sizes)) if site.cohort.sizes[g] == size)
    fellows = [name for name in people if site.group_of(name) == group]
    before = site.cohort.table(NAMES)
    site.cohorts = [site.cohort.withdraw(SECRET, fellows[0])]
    left = site.cohort
    # Overlapping groups would tell on which side of the record the person was.
    assert site.update({name: people[name] for name in people if name != fellows[0]}).groups == 0
    assert site.cohort is left
    # Nor do newcomers complete them, however similar they are.
    near = {f"N{place}": people[name] for place, name in enumerate(fellows[1:5])}
    assert site.update(people | near).waiting == 4

    change = site.update(people | near | persons(1, first=100))

    assert (change.persons, change.groups, change.waiting) == (5, 1, 0)
    assert {site.group_of(name) for name in fellows} == {-1}
    after = site.cohort.table(NAMES)
    kept = np.delete(np.arange(len(before.sizes)), group)
    for name in NAMES:
        assert after.values(name)[:-1].tolist() == before.values(name)[kept].tolist()


def test_a_withdrawn_person_is_in_no_table_again_real_record() -> None:
    site, people = with_groups()
    for person in ("P7", "P30", "P7"):
        site.cohorts = [site.cohort.withdraw(SECRET, person)]
        everybody = people | persons(20, first=100)
        site.update(everybody, any_persons=True)
        site.update({name: np.append(row, row[0]) for name, row in everybody.items()})
    assert site.group_of("P7") == site.group_of("P30") == -1
    rows = site.cohort.table_rows(SECRET, list(everybody))
    sizes = site.cohort.table(NAMES).sizes
    np.testing.assert_array_equal(np.bincount(rows[rows >= 0], minlength=len(sizes)), sizes)


def test_neighbours_are_those_of_all_columns_whichever_are_asked_for() -> None:
    site = Memory()
    site.update(persons(60))

    every = site.cohort.table(NAMES).neighbours

    np.testing.assert_array_equal(site.cohort.table(["x1"]).neighbours, every)
    columns, sizes = site.cohort.columns, site.cohort.sizes
    alone = find_neighbours([columns[1].column], [columns[1].released], sizes)
    assert not np.array_equal(alone, every)


def test_a_column_that_is_read_by_another_rule_is_refused() -> None:
    site, people = with_groups()
    with pytest.raises(CohortRefused, match="by another rule") as refused:
        site.update(people, rules={"x1": "yes/no"})
    assert refused.value.rule == "other-rule"


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


# --- who is who -----------------------------------------------------------------------------------


def other(people: dict[str, np.ndarray], n: int) -> dict[str, np.ndarray]:
    """Give n persons new ids."""
    return {f"new-{name}" if i < n else name: row for i, (name, row) in enumerate(people.items())}


@pytest.mark.parametrize(
    ("file", "refused"),
    [
        (other(persons(60), 60), "60 of the 60 persons .* not known, and 60 known persons"),
        (other(persons(60), 31), "31 of the 60 persons"),
        (other(persons(60), 5), '5 of the 60 persons .* 5 known .* ids = "permanent"'),
        (other(persons(60), 4), None),
        (dict(list(persons(60).items())[:20]), None),
        (persons(60) | persons(57, first=100), None),
        (persons(60) | persons(61, first=100), "61 of the 121 persons .* and 0 known"),
        (dict(list(persons(60).items())[4:]) | persons(50, first=100), None),
        (dict(list(persons(60).items())[5:]) | persons(50, first=100), "50 of the 105 persons"),
    ],
)
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_file_is_refused_by_who_is_known(
    file: dict[str, np.ndarray], refused: str | None, blocks: int
) -> None:
    site = Memory()
    site.update(persons(60))
    before = site.cohort

    if refused is None:
        site.update(file, blocks=blocks)
        assert len(site.cohorts) == 1
        return
    with pytest.raises(CohortRefused, match=refused) as said:
        site.update(file, blocks=blocks)
    assert said.value.rule == "unknown-persons"
    assert all(each in str(said.value) for each in ("--id-map", "--other-persons", "wrong file"))
    assert "STATE_DIR" not in str(said.value)
    assert site.cohorts == [before]
    assert site.update(file, blocks=blocks, any_persons=True).persons > 0


def test_permanent_ids_allow_new_and_missing_persons_at_once() -> None:
    site = Memory()
    site.update(persons(60))
    assert site.update(other(persons(60), 30), permanent_ids=True).persons == 30
    with pytest.raises(CohortRefused, match="known") as said:
        site.update(persons(60, first=500), permanent_ids=True)
    assert "permanent" not in str(said.value)


def test_other_persons_are_another_cohort_and_both_together_are_refused() -> None:
    site, here, there = Memory(), persons(60), persons(60, first=100)
    site.update(here)
    site.update(there, any_persons=True)
    assert len(site.cohorts) == 2
    assert site.update(there).persons == 0, "they are known now"
    with pytest.raises(CohortRefused, match="of the tables") as refused:
        site.update(here | there, any_persons=True)
    assert refused.value.rule == "two-cohorts"


def people_of_levels(n: int, seed: int, d: int = 8) -> dict[str, np.ndarray]:
    """Draw yes/no columns, most of them rare."""
    rng = np.random.default_rng(seed)
    shares = np.linspace(0.02, 0.4, d)
    return {f"P{i}": (rng.random(d) < shares).astype(float) for i in range(n)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("levels", [False, True])
def test_other_people_under_the_known_ids_are_refused(seed: int, levels: bool) -> None:
    def draw(seed: int) -> dict[str, np.ndarray]:
        return people_of_levels(200, seed) if levels else persons(200, 8, seed)

    site, new = Memory(), np.random.default_rng(seed).normal(size=200)
    site.update(draw(0))
    before = site.cohort

    def with_column(people: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: np.append(row, x) for (n, row), x in zip(people.items(), new, strict=True)}

    site.update(draw(seed + 1))
    assert site.cohort is before, "nothing new: only printed"
    for column in (with_column(draw(seed + 1)), draw(seed + 1) | persons(20, 8, first=500)):
        with pytest.raises(CohortRefused, match="swapped") as refused:
            site.update(column)
        assert refused.value.rule == "other-values"
    names = [f"x{column}" for column in range(8)]
    site.update_sources(list(draw(0)), sources_of([*draw(0).values()], names), counted=True)
    people = draw(seed + 1)
    with pytest.raises(CohortRefused, match="differ from those that were released"):
        site.update_sources(list(people), sources_of([*people.values()], names), counted=True)
    assert site.update(with_column(draw(0))).columns == 1, "an honest file"


def test_one_column_that_differs_is_refused_only_if_newcomers_would_release_it() -> None:
    site, people = with_groups(60, 5)
    unit = {name: row * [10.0, 1, 1, 1, 1] for name, row in people.items()}

    more = {name: np.append(row, row.sum() ** 2) for name, row in unit.items()}
    assert site.update(more).columns == 1
    assert site.recognition.most_differ(5) == ["x0"]
    with pytest.raises(CohortRefused, match=r"new persons would release .*: x0 \(\d+ of 60\)\."):
        site.update(more | persons(10, 6, first=100))


@pytest.mark.parametrize(("n_changed", "refused"), [(4, False), (5, True)])
def test_fewer_than_p_persons_with_other_values_are_no_other_file(
    n_changed: int, refused: bool
) -> None:
    """A column in which nearly all have the commonest value has few values to compare."""
    rare = {f"P{i}": np.array([float(i < 2)]) for i in range(60)}
    site = Memory()
    site.update(rare)
    new = {n: np.append(row, i**2) for i, (n, row) in enumerate(rare.items())}
    for i in range(n_changed):
        new[f"P{30 + i}"][0] = 1.0
    if refused:
        with pytest.raises(CohortRefused, match="differ"):
            site.update(new)
    else:
        assert site.update(new).columns == 1


def test_values_that_only_one_file_has_are_not_compared() -> None:
    site, first, second = Memory(), persons(60), persons(60)
    for i in range(8):
        (first if i % 2 else second)[f"P{i}"][0] = np.nan
    with given_groups(lambda n: np.arange(n) % 10, 5):
        site.update(first)

    site.update(second)

    # One person has the commonest value.
    assert site.recognition.differing["x0"] == (0, 51)


def test_without_ids_a_row_is_known_by_its_number() -> None:
    site, people = Memory(), persons(60)
    site.update(people, ids=False)
    before = site.cohort
    site.update(people, ids=False, blocks=4)
    assert site.cohort is before

    assert site.update(people | persons(10, first=90), ids=False).persons == 10
    longer = people | persons(10, first=90)
    shuffled = dict(sorted(longer.items(), key=lambda item: item[1][0]))
    with pytest.raises(CohortRefused, match="differ"):
        site.update(
            {name: np.append(row, row[0] ** 2) for name, row in shuffled.items()}, ids=False
        )
    with pytest.raises(CohortRefused, match="60 of the 60 persons in this source are not known"):
        site.update(people)
