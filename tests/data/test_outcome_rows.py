"""Outcomes of rows and persons: one cell for each person, and no part of the table."""

import itertools
import math
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust.data import Dataset, DataWarning, load
from fedclust.data import persons as person_blocks
from fedclust.data.outcome_rows import Staying, cells_of_persons, cells_of_rows, measure_staying
from fedclust.data.persons import read_persons
from fedclust.data.profile import profile
from fedclust.data.site_data import session_rows, site_data
from fedclust.definition import freeze, plan_of
from fedclust.rounds import Plan
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.task import Points
from fedclust.wire.errors import DataError
from support.definitions import session_request

DIED = Outcome(name="died", role="outcome", kind="binary")
WARD = Outcome(name="ward", role="outcome", kind="categorical", levels=("a", "b", "c"))
STAY = Outcome(name="stay", role="outcome", kind="ordered", edges=(2.0, 5.0), unit="days")
TIME = Outcome(name="t", role="outcome", kind="time", edges=(1.0, 2.0, 3.0, 4.0), event="died")
ALL = (DIED, WARD, STAY, TIME)
FEATURES = (Feature(name="x"), Feature(name="y"))
NAN = math.nan


def rows(seed: int, n: int = 300) -> pd.DataFrame:
    """Persons of two clusters; a tenth of the first and four tenths of the second die."""
    rng = np.random.default_rng(seed)
    sick = rng.integers(0, 2, n)
    found = pd.DataFrame(
        {
            "died": (rng.random(n) < 0.1 + 0.3 * sick).astype(float),
            "x": rng.normal(size=n) + 6 * sick,
            "ward": rng.choice(["a", "b", "c", None], n),
            "y": rng.normal(size=n),
            "stay": rng.gamma(2.0, 3.0 + sick, n),
            "t": rng.exponential(3.0, n),
        }
    )
    for name in ("died", "stay", "t"):
        found.loc[rng.random(n) < 0.1, name] = NAN
    return found


def plan(*outcomes: Outcome, features: Any = FEATURES, **policy: Any) -> Plan:
    asked = [each.model_dump(mode="json") for each in (*features, *outcomes)]
    given = {"algorithm": "lloyd", "sites": ["a"], "policy": {"min_sites": 1, **policy}}
    return plan_of(freeze(session_request(*asked, **given), 0, simulated=True))


# --- cells ----------------------------------------------------------------------------------------


def named_cells(outcome: Outcome, *values: list[float]) -> list[str]:
    columns = (np.array(each, dtype=float) for each in values)
    return [outcome.cells[cell] for cell in cells_of_rows(outcome, *columns)]


def test_an_edge_belongs_to_the_cell_that_begins_there() -> None:
    first, second, third = (named_cells(STAY, pair) for pair in ([-1, 1.999], [2, 4.999], [5, 1e9]))
    assert (first, second) == (["below 2"] * 2, ["2 to below 5"] * 2)
    assert [*third, *named_cells(STAY, [NAN])] == ["5 and more", "5 and more", "no value"]
    assert named_cells(DIED, [0, 1, NAN]) == ["no", "yes", "no value"]
    assert named_cells(WARD, [0, 2, NAN]) == ["a", "c", "no value"]


def test_an_event_at_an_edge_is_before_it_and_who_leaves_there_after_it() -> None:
    times = [0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 4.5]
    events = ["0 to 1", "0 to 1", "0 to 1", "1 to 2", "1 to 2", "3 to 4"]
    assert named_cells(TIME, times, [1] * 7) == [*(f"event {each}" for each in events), "past 4"]
    left = ["0 to 1", "0 to 1", "1 to 2", "1 to 2", "2 to 3"]
    assert named_cells(TIME, times, [0] * 7) == [
        *(f"left {each}" for each in left),
        *["past 4"] * 2,
    ]
    odd = named_cells(TIME, [NAN, NAN, -0.1, -0.1, 1, 1], [0, 1, 0, 1, NAN, 2])
    assert odd == ["no value"] * 6


def test_each_person_is_in_one_cell_for_all_patterns_of_missing_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All persons of up to three rows, each with any value or none, and some in two blocks."""
    monkeypatch.setattr(person_blocks, "_PERSONS", 8)
    monkeypatch.setattr(person_blocks, "_ROWS", 5)
    given: dict[str, list[Any]] = {"x": [0.0], "died": [0.0, 1.0, NAN], "t": [0.5, 9.0, -1.0, NAN]}
    each_row = list(itertools.product(*given.values()))
    visits, person = [], 0
    for n in (1, 2, 3):
        for chosen in itertools.islice(itertools.product(each_row, repeat=n), 400):
            visits += [(person, *row) for row in chosen]
            person += 1
    frame = pd.DataFrame(visits, columns=["who", *given])
    for out_of_core in (False, True):
        source = Dataset(frame, out_of_core=out_of_core)
        persons = read_persons(source, FEATURES[:1], person="who", outcomes=(DIED, TIME))
        cells = np.concatenate([block.cells for block in persons.blocks()])
        assert cells.shape == (person, 2)
        expected = [
            (_commonest_death(own.died.tolist()), _last_cell(own.t.tolist(), own.died.tolist()))
            for _, own in frame.groupby("who")
        ]
        assert [(DIED.cells[died], TIME.cells[time]) for died, time in cells.tolist()] == expected


def _commonest_death(values: list[float]) -> str:
    votes = Counter(value for value in values if not math.isnan(value))
    if not votes:
        return "no value"
    return "yes" if votes[1.0] >= votes[0.0] else "no"


def _last_cell(times: list[float], died: list[float]) -> str:
    for time, event in reversed(list(zip(times, died, strict=True))):
        if time >= 0 and not math.isnan(event):
            return "past 4" if time > 4 else f"{'event' if event else 'left'} 0 to 1"
    return "no value"


def test_the_commonest_cell_of_a_person_counts_of_equally_common_ones_the_last() -> None:
    cells = cells_of_rows(STAY, np.array([9.0, 3.0, 4.0, NAN, 9.0, 1.0, NAN]))[:, None]
    persons = np.array([0, 0, 0, 1, 2, 2, 2])
    found = cells_of_persons((STAY,), cells, persons)[:, 0]
    assert [STAY.cells[cell] for cell in found] == ["2 to below 5", "no value", "5 and more"]


# --- reading --------------------------------------------------------------------------------------


def test_an_array_has_the_columns_of_outcomes_after_the_features() -> None:
    given = rows(2).drop(columns="ward")[["x", "y", "t", "died", "stay"]]
    outcomes = (TIME, STAY)
    from_array = load(given.to_numpy(), FEATURES, outcomes=outcomes)
    from_frame = load(given, FEATURES, outcomes=outcomes)
    np.testing.assert_array_equal(from_array.cells, from_frame.cells)
    assert from_array.digest() == from_frame.digest()


def test_a_column_may_be_a_feature_and_an_outcome() -> None:
    given = rows(3)
    stay = Feature(name="stay", unit="days", lower=0, upper=60, transform="log1p")
    table = load(given, (*FEATURES, stay), outcomes=(STAY,))
    plain = load(given, FEATURES, outcomes=(STAY,))
    np.testing.assert_array_equal(table.cells, plain.cells)
    np.testing.assert_allclose(table.X[:, 2], np.log1p(given["stay"]))
    assert table.features == ("x", "y", "stay")


def test_an_outcome_that_is_a_feature_which_the_site_has_too_seldom_is_not_answered() -> None:
    given = rows(5)
    given.loc[3:, "stay"] = NAN
    stay = Feature(name="stay", unit="days")
    source = Dataset(given, min_present=0.5)
    assert load(source, (*FEATURES, stay), outcomes=(STAY,), lacking=True).features == ("x", "y")
    assert load(source, FEATURES, outcomes=(STAY,), lacking=True).features == ("x", "y", "stay")


def test_faults_in_outcomes_are_found_before_anything_is_sent() -> None:
    given = rows(6).astype({"stay": object})
    given.loc[7, "stay"] = "long"
    asked = plan(STAY)
    with pytest.raises(DataError, match="stay"):
        session_rows(asked, given).digest()
    with pytest.raises(DataError, match="stay"):
        session_rows(plan(STAY, protection="none"), given)


def test_outcomes_without_values_and_unknown_codes_are_said() -> None:
    given = rows(7).assign(died=NAN)
    given.loc[:4, "ward"] = "other"
    with pytest.warns(DataWarning) as said:
        persons = read_persons(given, FEATURES, outcomes=(DIED, WARD))
    texts = [str(each.message) for each in said]
    assert len(texts) == len(persons.warnings) == 2
    assert "column 'ward': 5 values that the session does not know" in texts[0]
    assert "outcome 'died': no row has a value" in texts[1]
    with pytest.warns(DataWarning, match="outcome 'died': no row has a value"):
        load(given, FEATURES, outcomes=(DIED,))


@pytest.mark.parametrize("protection", ["groups", "none"])
def test_the_digest_covers_the_cells_of_outcomes(protection: str) -> None:
    asked, given = plan(DIED, STAY, protection=protection), rows(8)
    other = given.assign(stay=given["stay"] + 1)
    digests = [session_rows(asked, each).digest() for each in (given, given.copy(), other)]
    assert digests[0] == digests[1] != digests[2]


# --- the table ------------------------------------------------------------------------------------


def test_no_outcome_shapes_a_group() -> None:
    """Not even rare ones: the points are equal with and without them, and with other values."""
    given = rows(9)
    given["died"] = (np.arange(300) % 50 == 0).astype(float)
    others = given.assign(died=given["died"][::-1].to_numpy(), stay=NAN, t=1.0, ward="a")

    def points(asked: Plan, source: Any) -> bytes:
        found, *_ = site_data(asked, source, session_rows(asked, source), 5)
        return found.X.tobytes() + found.sizes.tobytes() + found.within.tobytes()

    without = points(plan(), given)
    assert points(plan(*ALL), given) == without
    with pytest.warns(DataWarning, match="no row has a value"):
        assert points(plan(*ALL), others) == without


def test_what_stays_is_in_shares_of_groups_and_persons() -> None:
    X = np.array([[1.0, NAN], [2.0, 3.0], [NAN, NAN], [4.0, 5.0]])
    points = Points(X, np.array([5, 6, 7, 14]), np.zeros(2))
    features = (Feature(name="x"), Feature(name="y"))
    assert measure_staying(plan(features=features, missing="drop"), points) == Staying(0.5, 20 / 32)
    assert measure_staying(plan(features=features), points) is None
    whole = replace(points, X=np.nan_to_num(X))
    assert measure_staying(plan(features=features, missing="drop"), whole) is None
    # Of rows `check` counts the complete ones.
    exact = plan(features=features, missing="drop", protection="none")
    assert measure_staying(exact, points) is None


# --- check ----------------------------------------------------------------------------------------


def test_outcomes_are_profiled_by_cell() -> None:
    given = rows(12)
    given.loc[:4, "ward"] = "other"
    found = profile(given, FEATURES, outcomes=ALL)
    assert [(each.feature, each.role) for each in found.columns] == [
        ("x", "feature"),
        ("y", "feature"),
        *((name, "outcome") for name in ("died", "ward", "stay", "t")),
    ]
    died, ward, stay, time = found.columns[2:]
    assert died.levels == {"no": (given.died == 0).sum(), "yes": (given.died == 1).sum()}
    assert died.missing == pytest.approx(given.died.isna().mean())
    assert (ward.unknown, ward.state) == (5, "warning")
    assert stay.levels["5 and more"] == (given.stay >= 5).sum()
    assert (stay.minimum, stay.maximum) == (given.stay.min(), given.stay.max())
    assert time.column == "t, died"
    assert time.n == (given.died.notna() & given.t.notna()).sum() == sum(time.levels.values())
    assert found.complete_rows == 300
    assert found.refused is None


def test_an_outcome_that_is_wholly_missing_warns_and_one_without_a_column_is_lacking() -> None:
    given = rows(13).assign(stay=NAN).drop(columns="died")
    found = profile(given, FEATURES, outcomes=(DIED, STAY))
    died, stay = found.columns[2:]
    assert (stay.state, stay.says) == (
        "warning",
        ("no row has a value: nobody would be counted in any other cell",),
    )
    assert (died.state, died.says) == ("lacking", ("no column died: takes part without it",))
    assert found.refused is None
    # A feature that is missing too is refused as before.
    found = profile(given.drop(columns="x"), FEATURES, outcomes=(DIED, STAY))
    assert [each.state for each in found.columns] == ["refused", "ok", "lacking", "warning"]
    assert found.refused is not None


@pytest.mark.parametrize("lacking", [False, True])
def test_a_site_without_the_column_of_an_outcome_answers_the_others(lacking: bool) -> None:
    given = rows(13).drop(columns="died")
    said = "outcome 'died': there is no column died, and this site takes part without it"
    with pytest.warns(DataWarning, match=said):
        table = load(given, FEATURES, outcomes=(DIED, STAY), lacking=lacking)
    assert table.features == ("x", "y", "stay")
    assert set(table.cells[:, 0]) == {len(DIED.cells) - 1}
    # The column's name here stands in the warning; a mapping that says so needs none.
    there = Dataset(given, mapping={"features": {"died": {"column": "dead"}}})
    with pytest.warns(DataWarning, match="there is no column dead,"):
        load(there, FEATURES, outcomes=(DIED,), lacking=lacking)
    there = Dataset(given, mapping={"features": {"died": {"lacking": True}}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(there, FEATURES, outcomes=(DIED,), lacking=lacking).features == ("x", "y")


def test_a_feature_that_is_an_outcome_too_needs_the_event_of_its_time() -> None:
    """Joining names both once, so a site that has the feature answers the outcome."""
    given, t = rows(13), Feature(name="t", unit="years")
    load(given, (*FEATURES, t), outcomes=(TIME,))
    with pytest.raises(DataError, match="died") as refused:
        load(given.drop(columns="died"), (*FEATURES, t), outcomes=(TIME,))
    assert refused.value.rule == "missing-column"
