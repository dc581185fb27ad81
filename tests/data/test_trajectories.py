"""Columns of trajectories, made of a table with a row for each value of a person."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline

from fedclust import simulate
from fedclust.data import Dataset, load
from fedclust.data.chunks import DataWarning
from fedclust.data.persons import read_persons
from fedclust.data.profile import profile
from fedclust.data.trajectories import Visits, trajectory_columns
from fedclust.definition import check_features
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature, Outcome, Trajectory, clustered
from fedclust.wire.errors import DataError

NAN = pytest.approx(np.nan, nan_ok=True)
GRID = (0.0, 1.0, 2.5, 7.0)


def declared(**fields: Any) -> Trajectory:
    return Trajectory(name="crea", kind="trajectory", unit="mg/dl", **fields)


def made(of: Trajectory, times: Any, values: Any, persons: Any = None) -> NDArray[np.float64]:
    persons = np.zeros(len(times), dtype=np.int64) if persons is None else np.asarray(persons)
    visits = Visits.of(
        np.asarray(values, dtype=float), np.asarray(times, dtype=float), persons, persons.max() + 1
    )
    return trajectory_columns(of, visits)


def random_visits(n: int = 40) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(3)
    persons = rng.permutation(np.repeat(np.arange(n), rng.integers(5, 9, n)))
    return rng.uniform(-1, 9, len(persons)), rng.normal(5, 2, len(persons)), persons


def by_person(times: Any, values: Any, persons: Any) -> list[tuple[Any, Any]]:
    found = []
    for person in range(persons.max() + 1):
        own = np.flatnonzero(persons == person)
        own = own[np.argsort(times[own])]
        found.append((times[own], values[own]))
    return found


def test_linear_within_a_wide_window_is_numpys_interpolation() -> None:
    times, values, persons = random_visits()
    wanted = [np.interp(GRID, t, v) for t, v in by_person(times, values, persons)]
    found = made(declared(grid=GRID, window=100), times, values, persons)
    np.testing.assert_allclose(found, wanted, rtol=1e-11)


def test_what_each_fill_takes_and_that_no_value_beyond_the_window_counts() -> None:
    times, values = [0.0, 2.0, 6.0], [10.0, 20.0, 40.0]
    grid = (-1.0, 0.5, 2.0, 4.0, 9.0)
    nan = np.nan
    for fill, wanted in {
        "linear": [10, 12.5, 20, nan, nan],
        "last": [nan, 10, 20, nan, nan],
        "none": [10, 10, 20, nan, nan],
    }.items():
        found = made(declared(grid=grid, window=1.5, fill=fill), times, values)
        np.testing.assert_array_equal(found[0], wanted, err_msg=fill)


def test_values_of_one_time_count_as_their_mean_and_missing_ones_not() -> None:
    found = made(
        declared(grid=(0.0, 3.0), window=0), [0, 0, 3, np.nan, 3], [1.0, 3.0, np.nan, 9.0, 5.0]
    )
    np.testing.assert_array_equal(found, [[2, 5]])


def test_summaries_are_those_of_numpy() -> None:
    times, values, persons = random_visits()
    wanted = [
        [v[0], np.polyfit(t, v, 1)[0], np.polyfit(t, v, 2)[0], v.max(), np.trapezoid(v, t)]
        for t, v in by_person(times, values, persons)
    ]
    of = declared(summary=("first", "slope", "curvature", "peak", "auc"))
    np.testing.assert_allclose(made(of, times, values, persons), wanted, rtol=1e-9)


def test_a_summary_of_a_person_with_too_few_times_is_missing() -> None:
    of = declared(summary=("first", "slope", "curvature", "peak", "auc"))
    found = made(
        of, [1, 2, 3, 3, 0, 1, 2], [4.0, 5.0, 6.0, 8.0, 0.0, 1.0, 4.0], [0] + 3 * [2] + 3 * [3]
    )
    nan = np.nan
    wanted = [[4, nan, nan, 4, nan], 5 * [nan], [5, 2, nan, 7, 6], [0, 2, 1, 4, 3]]
    np.testing.assert_array_equal(found, wanted)


def test_persons_without_a_trend_share_a_slope_and_a_curvature_of_zero() -> None:
    """Rounding alone would give each person another tiny number, of either sign."""
    times, _, persons = random_visits()
    of = declared(summary=("slope", "curvature"))
    same = 0.1 + persons / 3
    np.testing.assert_array_equal(made(of, times, same, persons), np.zeros((40, 2)))
    lines = same + (1 + persons / 7) * times
    slopes, curvatures = made(of, times, lines, persons).T
    np.testing.assert_allclose(slopes, 1 + np.arange(40) / 7, rtol=1e-11)
    np.testing.assert_array_equal(curvatures, 0)


def test_a_curvature_needs_no_times_of_a_certain_size() -> None:
    """Days since 1970 and a minute apart: a parabola through the origin would lose all digits."""
    times = 20_000 + np.arange(5) / 1440
    found = made(declared(summary=("curvature",)), times, 7 + (np.arange(5.0) - 2) ** 2)
    np.testing.assert_allclose(found, [[1440**2]], rtol=1e-6)


def test_a_spline_is_fitted_by_least_squares() -> None:
    times, values, persons = random_visits()
    knots = np.array([0.0, 4.0, 8.0])
    basis = make_interp_spline(knots, np.eye(3), k=3, bc_type="natural")
    found = made(declared(grid=tuple(knots), fill="spline", window=50), times, values, persons)
    for (t, v), own in zip(by_person(times, values, persons), found, strict=True):
        inside = np.clip(t, 0, 8)
        design = basis(inside) + (t - inside)[:, None] * basis(inside, 1)
        np.testing.assert_allclose(own, np.linalg.lstsq(design, v)[0], rtol=1e-8)


def test_too_few_times_for_a_spline_give_no_value() -> None:
    of = declared(grid=(0.0, 4.0, 8.0), fill="spline", window=9)
    assert np.isnan(made(of, [0, 1], [1.0, 2.0])).all()
    far = declared(grid=(0.0, 4.0, 8.0), fill="spline", window=1)
    assert np.isnan(made(far, [0, 1, 2, 3], [1.0, 2.0, 3.0, 5.0])[0, 2])


# --- a session's declaration ----------------------------------------------------------------------


def test_a_trajectory_is_a_column_for_each_time_and_counts_as_one_number() -> None:
    of = declared(grid=(0.0, 0.5, 2.0), window=1, lower=0.1, upper=9, transform="log", weight=3)
    columns = clustered([of])
    assert [each.name for each in columns] == ["crea@0", "crea@0.5", "crea@2"]
    assert {(c.unit, c.lower, c.upper, c.transform, c.weight) for c in columns} == {
        ("mg/dl", 0.1, 9.0, "log", 1.0)
    }


def test_slope_curvature_and_area_have_units_of_their_own_no_bounds_and_no_transform() -> None:
    summary = ("peak", "slope", "curvature", "auc")
    of = declared(summary=summary, time_unit="days", lower=1, upper=9, transform="log")
    peak, *others = ((each.unit, each.lower, each.upper, each.transform) for each in of.columns)
    assert peak == ("mg/dl", 1.0, 9.0, "log")
    units = ("mg/dl/days", "mg/dl/days²", "mg/dl x days")
    assert others == [(unit, None, None, "none") for unit in units]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either a grid"),
        ({"grid": (0.0,), "summary": ("peak",), "window": 1.0}, "either a grid"),
        ({"grid": (1.0, 1.0), "window": 1.0}, "ascend"),
        ({"grid": (), "window": 1.0}, "one or more times"),
        ({"grid": (0.0, 1.0)}, "how far"),
        ({"grid": (0.0, 1.0), "window": 1.0, "fill": "spline"}, "at least 3"),
        ({"summary": ()}, "at least one"),
        ({"summary": ("peak", "peak")}, "twice"),
        ({"summary": ("peak",), "window": 1.0}, "for a grid"),
        ({"grid": (0.0,), "window": 1.0, "transform": "log"}, "log needs a lower bound"),
        ({"grid": (0.0,), "window": 1.0, "lower": 2.0, "upper": 1.0}, "lower must be below"),
    ],
)
def test_a_declaration_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    errors = check_features((declared(**fields),))
    assert [message in str(error) for error in errors].count(True) == 1


@pytest.mark.parametrize("summary", ["slope", "curvature", "auc"])
def test_scaling_by_bounds_says_which_column_has_none(summary: Any) -> None:
    of = declared(summary=("peak", summary), lower=0.0, upper=9.0)
    (error,) = check_features((of,), "bounds")
    assert f"crea@{summary}" in str(error)


# --- a site's table -------------------------------------------------------------------------------

OF = declared(grid=(0.0, 2.0), window=1.0, lower=0.0, upper=20.0, time_unit="days")
MAPPING: dict[str, Any] = {"features": {"crea": {"column": "wert", "time": "tag", "person": "pid"}}}
VISITS = pd.DataFrame(
    {
        "pid": ["a", "b", "a", "b", "c"],
        "tag": [0.0, 0.0, 2.0, 1.5, 7.0],
        "wert": [1.0, 2.0, 3.0, 4.0, 5.0],
        "age": [30.0, 40.0, 30.0, 40.0, 50.0],
    }
)


def persons(source: Any, features: Any = None, person: str | None = "pid") -> dict[str, Any]:
    found = read_persons(source, features or clustered([OF]), person=person)
    (block,) = found.blocks()
    return {"names": block.keys, **{each.name: each.values.tolist() for each in block.sources}}


def test_persons_get_their_columns_and_what_they_have_else(tmp_path: Path) -> None:
    features = (*clustered([OF]), Feature(name="age"))
    found = persons(Dataset(VISITS, mapping=MAPPING), features)
    how = "(tag, days, mg/dl, linear, 1)"
    assert found == {
        "names": ("a", "b", "c"),
        f"wert@0 {how}": [1.0, 2.0, NAN],
        f"wert@2 {how}": [3.0, 4.0, NAN],
        "age": [30.0, 40.0, 50.0],
    }
    path = tmp_path / "visits.csv"
    VISITS.to_csv(path, sep=";", decimal=",", index=False)
    read = persons(Dataset(path, mapping=MAPPING, decimal=",", delimiter=";"), features)
    np.testing.assert_equal(read, found)


def test_without_protection_a_row_is_a_person_and_no_value_of_one() -> None:
    given = Dataset(VISITS, mapping=MAPPING)
    policy = {"protection": "none", "min_sites": 1}
    with pytest.raises(
        RuleViolation, match="are values of a person; give a table with a row for each"
    ):
        simulate("lloyd", {"a": given}, features=[OF], policy=policy, config={"n_clusters": 2})


def test_units_sentinels_and_times_are_converted() -> None:
    rule = {"unit": "umol/l", "to": "mg/dl", "factor": 0.01, "sentinels": [-9], "time_factor": 0.5}
    mapping = {"features": {"crea": {**MAPPING["features"]["crea"], **rule}}}
    table = VISITS.assign(wert=[100.0, -9.0, 300.0, 400.0, 500.0], tag=VISITS["tag"] * 2)
    found = persons(Dataset(table, mapping=mapping))
    assert [*found.values()][1:] == [[1.0, NAN, NAN], [3.0, 4.0, NAN]]
    by_option = Dataset(VISITS, mapping=MAPPING, sentinels={"crea": 3})
    assert [*persons(by_option).values()][2] == [NAN, 4.0, NAN]


@pytest.mark.parametrize("unit", [0.041666667, 1 / 24])
@pytest.mark.parametrize("fill", ["linear", "last", "none", "spline"])
def test_a_rounded_factor_of_times_loses_no_value(fill: Any, unit: float) -> None:
    """24 hours are 1.000000008 days by it, and 36 hours are within one and a half days of none."""
    table = pd.DataFrame({"pid": "a", "tag": [0, 24, 96, 132], "wert": [1.0, 2.0, 5.0, 9.0]})
    mapping = {"features": {"crea": {**MAPPING["features"]["crea"], "time_factor": unit}}}
    of = declared(grid=(0.0, 1.0, 4.0, 7.0), window=1.5, fill=fill)
    found = [*persons(Dataset(table, mapping=mapping), clustered([of])).values()][1:]
    assert [each[0] for each in found[:3]] == pytest.approx([1, 2, 5], abs=1e-6)
    assert fill == "spline" or found[3] == [9]
    (said,) = profile(Dataset(table, mapping=mapping), clustered([of])).trajectories
    assert fill == "spline" or "3 were measured at the time of the grid" in said


def test_two_values_that_a_rounded_factor_puts_on_one_time_count_as_their_mean() -> None:
    table = pd.DataFrame({"pid": "a", "tag": [1.0, 1.0 + 1e-8], "wert": [1.0, 2.0]})
    of = declared(grid=(0.0, 1.0), window=1.0)
    found = [*persons(Dataset(table, mapping=MAPPING), clustered([of])).values()][1:]
    assert found == [[1.5], [1.5]]


def visits(n: int) -> pd.DataFrame:
    """Return persons with three unsorted visits each, one after another."""
    rng = np.random.default_rng(2)
    days = rng.permuted(np.tile([0.0, 1.0, 2.0], (n, 1)), axis=1).ravel()
    pids = [f"p{i}" for i in np.repeat(np.arange(n), 3)]
    return pd.DataFrame({"pid": pids, "tag": days, "wert": rng.normal(5, 1, 3 * n).round(2)})


def test_a_source_larger_than_memory_gives_the_persons_of_one_in_memory(tmp_path: Path) -> None:
    """The rows of a person lie in two files of a directory; blocks are smaller than the source."""
    table = visits(6000)
    for part, rows in enumerate(np.array_split(np.arange(len(table)), 4)):
        table.iloc[rows].to_parquet(tmp_path / f"{part}.parquet")
    found = persons(Dataset(tmp_path, mapping=MAPPING, out_of_core=True))
    wanted = table.pivot_table(index="pid", columns="tag", values="wert", sort=False)
    assert [*found["names"]] == wanted.index.tolist()
    for time, values in zip((0.0, 2.0), [*found.values()][1:], strict=True):
        np.testing.assert_allclose(values, wanted[time], rtol=1e-11)


def test_rows_of_a_person_that_do_not_follow_each_other_are_read_in_memory_alone(
    tmp_path: Path,
) -> None:
    table = visits(50)
    table.sample(frac=1, random_state=1).to_csv(tmp_path / "t.csv", index=False)
    found = persons(Dataset(tmp_path / "t.csv", mapping=MAPPING))
    own = dict(zip(found["names"], [*found.values()][1], strict=True))
    first = table[table["tag"] == 0].set_index("pid")["wert"].to_dict()
    assert own == pytest.approx(first, rel=1e-11)
    with pytest.raises(DataError, match="sort them by person"):
        persons(Dataset(tmp_path / "t.csv", mapping=MAPPING, out_of_core=True))


def test_an_outcome_in_which_the_rows_of_a_person_differ_is_named() -> None:
    """A death in the row of the last visit alone is lost: the commonest value counts."""
    died, grade = (Outcome(name=name, role="outcome", kind="binary") for name in ("died", "sick"))
    died_in = Outcome(name="days", role="outcome", kind="time", edges=(1, 2, 3, 4))
    table = VISITS.assign(
        died=[0, 0, 1, 0, 0], sick=[1, 0, 1, np.nan, 0], days=[1, 2, 3, 2, 2], days_event=1
    )
    said = "the rows of a person differ in died .1.: .* the outcome yes"
    with pytest.warns(DataWarning, match=said):
        found = read_persons(
            Dataset(table, mapping=MAPPING),
            clustered([OF]),
            person="pid",
            outcomes=(died, grade, died_in),
        )
    assert len(found.warnings) == 1


def test_a_table_with_the_columns_needs_no_mapping() -> None:
    table = pd.DataFrame({"pid": ["a", "b"], "crea@0": [1.0, 2.0], "crea@2": [3.0, np.nan]})
    found = persons(table)
    assert found["crea@0"] == [1.0, 2.0]


def test_a_curvature_is_made_of_rows_or_is_a_column_in_a_unit_of_its_own() -> None:
    columns = clustered([declared(summary=("curvature",), time_unit="days")])
    rows = pd.DataFrame({"pid": "a", "tag": [0.0, 1.0, 2.0], "wert": [0.0, 1.0, 4.0]})
    found = persons(Dataset(rows, mapping=MAPPING), columns)
    assert found == {"names": ("a",), "wert@curvature (tag, days, mg/dl)": [1.0]}
    own = pd.DataFrame({"pid": ["a"], "bend": [0.5]})
    rule = {"column": "bend", "unit": "mg/dl/days2"}
    mapping = {"features": {"crea@curvature": rule}}
    assert persons(Dataset(own, mapping=mapping), columns)["bend"] == [0.5]
    mapping = {"features": {"crea@curvature": {**rule, "unit": "mg/dl/days"}}}
    with pytest.raises(DataError, match="the session's unit is 'mg/dl/days²'"):
        persons(Dataset(own, mapping=mapping), columns)


def test_another_grid_fill_or_unit_is_another_column_of_the_table() -> None:
    def names(of: Trajectory) -> set[str]:
        return {*persons(Dataset(VISITS, mapping=MAPPING), clustered([of]))} - {"names"}

    more = declared(grid=(0.0, 1.0), window=1.0, time_unit="days")
    assert len(names(OF) & names(more)) == 1
    for other in (
        {"fill": "last", "window": 1.0},
        {"window": 2.0},
        {"window": 1.0, "time_unit": "hours"},
    ):
        of = declared(**{"grid": (0.0, 2.0), "time_unit": "days", **other})
        assert not names(OF) & names(of)


def test_every_row_of_a_person_is_labelled_by_the_same_values() -> None:
    found = load(Dataset(VISITS, mapping=MAPPING), clustered([OF]))
    np.testing.assert_array_equal(found.X[:4], [[1, 3], [2, 4], [1, 3], [2, 4]])


def test_check_says_what_persons_have_and_what_was_filled() -> None:
    found = profile(Dataset(VISITS, mapping=MAPPING), clustered([OF]), text=["pid"])
    (said,) = found.trajectories
    assert "3 of 3 persons have values, 1 to 2 each" in said
    assert "3 were measured at the time of the grid, 1 are interpolated, and 2 are missing" in said
    assert found.ignored == ("age",)
    assert not found.unused


@pytest.mark.parametrize(
    ("change", "rule", "message"),
    [
        ({"time": None}, "mapping", "time and person"),
        ({"time": None, "person": None}, "mapping", "time and person"),
        ({"time": "day"}, "missing-column", "column 'day'"),
        ({"person": "who"}, "missing-column", "column 'who'"),
        ({"unit": "mmol/l"}, "unit", "mmol/l"),
    ],
)
def test_a_mapping_that_does_not_fit(change: dict[str, Any], rule: str, message: str) -> None:
    own = {k: v for k, v in {**MAPPING["features"]["crea"], **change}.items() if v is not None}
    with pytest.raises(DataError, match=message) as caught:
        persons(Dataset(VISITS, mapping={"features": {"crea": own}}))
    assert caught.value.rule == rule


def test_what_holds_for_the_rows_is_said_of_the_trajectory() -> None:
    """A column is made of rows: a missing code is one of theirs, not of the column."""
    data = Dataset(VISITS.assign(wert=[1.0, 2.0, 99.0, 4.0, 5.0]), mapping=MAPPING)
    with pytest.warns(DataWarning, match=r"give --sentinel crea=NUMBER .* \[features.crea\]"):
        persons(data)
    (_, column) = profile(data, clustered([OF])).columns
    assert "--sentinel crea=NUMBER" in " ".join(column.says)
    with pytest.raises(DataError, match=r"features.crea@2: it is made of the rows of 'crea'"):
        persons(Dataset(VISITS, mapping=MAPPING, sentinels={"crea@2": 99}))


def test_rows_that_do_not_fit() -> None:
    for table, person, rule, message in (
        (VISITS, None, "persons", "--person-column pid"),
        (VISITS.assign(pid2=list("abcde")), "pid2", "persons", "names 'pid2'; give .* pid"),
        (VISITS.assign(pid=["a", "", "a", "b", "c"]), "pid", "persons", "row 1.*no person"),
        (VISITS.assign(tag=["0", "x", "2", "3", "4"]), "pid", "not-a-number", "tag"),
        (VISITS.assign(tag=100.0), "pid", "trajectory", "within its window"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            persons(Dataset(table, mapping=MAPPING), person=person)
        assert caught.value.rule == rule


def test_persons_and_times_are_for_trajectories_alone() -> None:
    with pytest.raises(DataError, match="for a trajectory"):
        load(Dataset(VISITS, mapping=MAPPING), [Feature(name="crea")])


def test_a_site_that_lacks_it() -> None:
    features = clustered([OF, declared(grid=(0.0,), window=1.0).model_copy(update={"name": "y"})])
    table = VISITS.rename(columns={"wert": "y@0"})
    for mapping in ({"features": {"crea": {"lacking": True}}}, MAPPING):
        found = load(Dataset(table, mapping=mapping), features, lacking=True)
        assert found.features == ("y@0",)
