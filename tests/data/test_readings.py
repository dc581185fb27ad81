"""From released values of a site's own columns to the session's features."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust.data import Dataset
from fedclust.data.persons import read_persons
from fedclust.data.readings import FeatureReading, session_points, values_of_rows
from fedclust.data.site_data import table_points
from fedclust.protection.table import ProtectedTable, form_table, within_shares
from fedclust.schema.feature import Feature
from fedclust.schema.task import Points
from fedclust.wire.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::fedclust.data.DataWarning")
N = 400


def _points(
    frame: pd.DataFrame, *features: Feature, pinned: Any = None, **mapping: dict[str, Any]
) -> tuple[Points, ProtectedTable]:
    """Return the points and the table of a frame, where ``pinned`` are features read before."""
    how = {"mapping": {"features": mapping}}
    known = {}
    if pinned is not None:
        known = {column.name: column for column in read_persons(frame, pinned).columns}
    persons = read_persons(Dataset(frame, **how), features, pinned=known)
    (block,) = persons.blocks()
    table = form_table(block.sources, 5).sorted_by_value()
    return table_points(persons, table), table


def _fault(frame: pd.DataFrame, *features: Feature, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        _points(frame, *features, **options)
    return caught.value


RNG = np.random.default_rng(5)
STATES = RNG.choice(["a", "b", "c"], N)


def test_units_apply_to_released_values_then_bounds_then_the_transform() -> None:
    frame = pd.DataFrame({"t": RNG.normal(100, 20, N)})
    warm = Feature(name="t", unit="°C", lower=30.0, upper=45.0, transform="log")

    points, table = _points(frame, warm, t={"factor": 5 / 9, "offset": -160 / 9, "to": "°C"})

    released = table.values("t") * 5 / 9 - 160 / 9
    np.testing.assert_allclose(points.X[:, 0], np.log(np.clip(released, 30, 45)))
    within = within_shares(points.X, table.sizes, table.neighbours)
    np.testing.assert_array_equal(points.within, within)
    assert points.n == N


def test_with_a_logarithm_a_record_of_0_is_a_quarter_of_its_step() -> None:
    """A lower bound far below the step would widen the logarithms' spread four times."""
    rng = np.random.default_rng(7)
    values = np.exp(1.5 * rng.normal(size=2_400))
    frame = pd.DataFrame({"t": values, "u": rng.normal(size=2_400)})
    log, other = Feature(name="t", unit="g", lower=1e-6, transform="log"), Feature(name="u")

    logs, table = _points(frame, log, other)
    released, (step, _) = table.values("t"), (column.step for column in table.columns)
    zero = released == 0.0
    assert 0.05 < zero.mean() < 0.5
    expected = np.log(np.where(zero, step / 4.0, released))
    np.testing.assert_allclose(logs.X[:, 0], expected, rtol=1e-12)
    spread = np.sqrt(logs.X[:, 0].var() / (1.0 - logs.within[0]))
    assert 0.85 < spread / np.log(values).std() < 1.2

    scaled, _ = _points(frame, log, other, t={"factor": 1000.0, "to": "g"})
    np.testing.assert_allclose(scaled.X[:, 0], expected + np.log(1000.0), rtol=1e-12)
    bound, _ = _points(frame, log.model_copy(update={"lower": step}), other)
    assert bound.X[:, 0].min() == np.log(step)
    plain, _ = _points(frame, Feature(name="t"), other)
    np.testing.assert_array_equal(plain.X[:, 0], released)
    counts, _ = _points(frame, Feature(name="t", lower=0.0, transform="log1p"), other)
    np.testing.assert_allclose(counts.X[:, 0], np.log1p(released))


def test_codes_become_levels_or_yes_and_no() -> None:
    frame = pd.DataFrame({"s": STATES, "x": RNG.normal(size=N)})
    levels = Feature(name="s", kind="categorical", levels=("one", "two"))

    points, table = _points(frame, levels, s={"levels": {"a": "one", "b": "two", "c": "two"}})
    codes = ("a", "b", "c")
    is_a = table.values("s") == codes.index("a")
    assert 0 < is_a.sum() < len(is_a)
    np.testing.assert_array_equal(points.X, np.column_stack([is_a, ~is_a]))

    yes = Feature(name="s", kind="binary")
    points, table = _points(frame, yes, s={"levels": {"a": 1, "b": 0, "c": 0}})
    np.testing.assert_array_equal(points.X[:, 0], table.values("s") == codes.index("a"))


def test_a_code_that_means_missing_makes_the_feature_missing_for_its_groups() -> None:
    frame = pd.DataFrame({"s": np.where(np.arange(N) < 100, "?", STATES)})
    levels = Feature(name="s", kind="categorical", levels=("a", "b", "c"))

    how = {"levels": {"?": ""}}

    points, table = _points(frame, levels, s=how)

    persons = read_persons(Dataset(frame, mapping={"features": {"s": how}}), (levels,))
    lost = table.values("s") == persons.codes()["s"].index("?")
    assert lost.any()
    np.testing.assert_array_equal(np.isnan(points.X).all(axis=1), lost)


def test_a_released_unknown_code_is_refused_with_the_remedy() -> None:
    frame = pd.DataFrame({"s": STATES})
    error = _fault(frame, Feature(name="s", kind="categorical", levels=("a", "b")))
    assert (error.rule, error.column) == ("unknown-level", "s")
    assert "levels" in str(error)


def test_a_rare_code_that_is_not_released_changes_nothing() -> None:
    one = pd.DataFrame({"s": np.where(np.arange(N) == 7, "x", "a"), "x": np.arange(N) // 2})
    levels = Feature(name="s", kind="categorical", levels=("a", "b"))
    points, _ = _points(one, levels, Feature(name="x"))
    np.testing.assert_array_equal(points.X[:, :2], np.tile([1.0, 0.0], (len(points.X), 1)))


def test_yes_and_no_by_other_numbers_need_the_mapping() -> None:
    frame = pd.DataFrame({"sex": RNG.integers(1, 3, N), "x": RNG.normal(size=N)})
    sex = Feature(name="sex", kind="binary")
    assert _fault(frame, sex).rule == "unknown-level"
    points, table = _points(frame, sex, sex={"levels": {"1": 0, "2": 1}})
    np.testing.assert_allclose(points.X[:, 0], table.values("sex"))


# --- columns that were pinned as something else ---------------------------------------------------


def test_two_numbers_can_be_asked_for_as_levels_later() -> None:
    frame = pd.DataFrame({"s": RNG.integers(0, 2, N), "x": RNG.normal(size=N)})
    levels = Feature(name="s", kind="categorical", levels=("1", "0"))
    points, table = _points(frame, levels, pinned=(Feature(name="s"),))
    np.testing.assert_allclose(
        points.X, np.column_stack([table.values("s"), 1 - table.values("s")])
    )


def test_more_numbers_are_no_levels_later_and_levels_that_are_numbers_may_be_numbers() -> None:
    frame = pd.DataFrame({"s": RNG.integers(1, 5, N)})
    levels = Feature(name="s", kind="categorical", levels=("1", "2", "3", "4"))
    error = _fault(frame, levels, pinned=(Feature(name="s"),))
    assert (error.rule, error.column) == ("pinned-kind", "s")
    assert "numeric" in str(error)

    points, table = _points(frame, Feature(name="s", unit="grade"), pinned=(levels,))
    np.testing.assert_array_equal(points.X[:, 0], 1.0 + table.values("s"))


def test_a_wrong_unit_is_recognised_from_the_table_alone() -> None:
    chol = Feature(name="chol", unit="mg/dl", lower=50.0, upper=700.0)
    values = RNG.normal(5, 1, N)
    error = _fault(pd.DataFrame({"chol": values}), chol)
    assert (error.rule, error.column) == ("bounds", "chol")
    points, _ = _points(pd.DataFrame({"chol": np.where(np.arange(N) < 100, 5, 200.0)}), chol)
    assert points.X.min() == 50


# --- rows -----------------------------------------------------------------------------------------


def test_rows_are_labelled_by_the_same_reading_and_bounds_change_nothing() -> None:
    nan = np.nan
    chol = FeatureReading(Feature(name="chol", lower=50.0, upper=70.0), "c", 10.0, 1.0)
    np.testing.assert_array_equal(
        values_of_rows(chol, np.array([1.0, nan, 9.0]), None), [11, nan, 91]
    )
    cp = Feature(name="cp", kind="categorical", levels=("a", "b"))
    reading = FeatureReading(cp, "c", meanings={"T": 1.0, "?": nan})
    found = values_of_rows(reading, np.array([0.0, 1, 2, 3, nan]), ("T", "?", "z", "a"))
    np.testing.assert_array_equal(found, [1, nan, nan, 0, nan])
    sex = FeatureReading(Feature(name="sex", kind="binary"), "c")
    np.testing.assert_array_equal(values_of_rows(sex, np.array([0.0, 1, 2]), None), [0, 1, nan])


@pytest.mark.parametrize(
    ("code", "meaning"), [("1", 1.0), ("true", 1.0), ("false", 0.0), ("0", 0.0), ("2", None)]
)
def test_truth_values_are_the_codes_0_and_1(code: str, meaning: float | None) -> None:
    assert FeatureReading(Feature(name="x", kind="binary"), "x").meaning(code) == meaning


# --- what a session may learn of rows -------------------------------------------------------------


@pytest.mark.parametrize(
    "feature",
    [
        Feature(name="x", lower=0.0, upper=1.0),
        Feature(name="x", lower=-3.0, transform="log1p"),
        Feature(name="x", lower=1e-9, transform="log"),
        Feature(name="x", lower=100.0),
        Feature(name="x", kind="binary"),
        Feature(name="x", kind="categorical", levels=("1", "2")),
    ],
)
def test_sites_with_the_same_table_give_the_same_answers(feature: Feature) -> None:
    """What is answered, or refused, follows from the table: rows that give the same change nothing.

    The second site's persons all have their group's record.
    """
    if feature.transform == "log1p":
        feature = feature.model_copy(update={"lower": -0.5})
    frame = pd.DataFrame({"x": np.round(RNG.normal(0, 1, N), 1), "y": RNG.normal(0, 1, N)})
    features = (Feature(name="x"), Feature(name="y"))
    persons = read_persons(frame, features)
    (block,) = persons.blocks()
    table = form_table(block.sources, 5)
    alike = pd.DataFrame({name: np.repeat(table.values(name), table.sizes) for name in "xy"})
    other = read_persons(alike, features)
    assert persons.columns == other.columns

    answers = []
    for source in (frame, alike):
        pinned = {column.name: column for column in persons.columns}
        read = read_persons(source, (feature, features[1]), pinned=pinned)
        try:
            answers.append(session_points(table, read.readings, read.codes()).X.tobytes())
        except DataError as error:
            answers.append(f"{error.rule} {error}".encode())
    assert answers[0] == answers[1]
