"""`fedclust check`: rows that are far out, and columns whose absence equals a yes/no column."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust.data.profile import RowsFarOut, SourceProfile, profile
from fedclust.schema.feature import Feature, Outcome

RNG = np.random.default_rng(4)
NUMBERS = tuple(Feature(name=f"x{j}") for j in range(5))


def profile_of(rows: Any, features: tuple[Feature, ...] = NUMBERS) -> SourceProfile:
    names = [feature.name for feature in features]
    return profile(pd.DataFrame(rows, columns=names), features)


# --- far out --------------------------------------------------------------------------------------


def test_small_parts_of_a_file_change_no_median(tmp_path: Path) -> None:
    """The first ten of these rows, sorted by one column, would put most others far out."""
    rows = pd.DataFrame(RNG.normal(50.0, 10.0, (300, 5)), columns=[each.name for each in NUMBERS])
    rows = rows.sort_values("x0", ignore_index=True)
    rows.loc[7] = 1e6
    rows.to_parquet(tmp_path / "rows.parquet", row_group_size=10)
    stored = profile(tmp_path / "rows.parquet", NUMBERS)
    assert stored.far_out == RowsFarOut(1, 5, "row", (7,))
    assert stored.columns == profile(rows, NUMBERS).columns


@pytest.mark.parametrize(("zeros", "found"), [(0.8, True), (0.97, False)])
def test_where_the_quartiles_are_equal_the_spread_is_that_of_further_ones(
    zeros: float, found: bool
) -> None:
    values = np.exp(RNG.normal(size=(400, 2))) * (np.arange(400) >= zeros * 400)[:, None]
    values[399] = 1e6
    assert (profile_of(values, NUMBERS[:2]).far_out is not None) is found


def test_a_number_with_a_transform_is_judged_after_it() -> None:
    """Lognormal costs are far out as they are, and ordinary as logarithms."""
    costs = np.repeat(np.exp(1.5 * RNG.normal(size=(1_000, 1))), 2, axis=1)
    logarithms = tuple(Feature(name=f"x{j}", lower=1e-6, transform="log") for j in range(2))
    assert profile_of(costs, NUMBERS[:2]).far_out is not None
    assert profile_of(costs, logarithms).far_out is None


@pytest.mark.parametrize(("columns", "found"), [(5, True), (3, True), (2, False)])
def test_rows_far_out_in_half_of_the_numbers_are_named(
    columns: int, found: bool, tmp_path: Path
) -> None:
    rows = RNG.normal(size=(80, 5))
    rows[[10, 20, 79], :columns] = 1e6
    pd.DataFrame(rows, columns=["x0", "x1", "x2", "x3", "x4"]).to_csv(tmp_path / "a.csv")
    far = profile(tmp_path / "a.csv", NUMBERS).far_out
    # The header is line 1.
    assert far == (RowsFarOut(3, 5, "line", (12, 22, 81)) if found else None)


def test_one_column_alone_makes_no_row_far_out() -> None:
    """In one or two columns it is an ordinary value of a skewed measurement."""
    rows = RNG.normal(size=(80, 2))
    rows[7, 0] = rows[8, 1] = 1e6
    assert profile_of(rows, NUMBERS[:2]).far_out is None
    assert profile_of(rows[:, :1], NUMBERS[:1]).far_out is None
    rows[7] = 1e6
    assert profile_of(rows, NUMBERS[:2]).far_out == RowsFarOut(1, 2, "row", (7,))


@pytest.mark.parametrize("values", ["normal", "lognormal", "t"])
def test_ordinary_rows_are_not_far_out(values: str) -> None:
    normal = RNG.normal(size=(2_000, 5))
    drawn = {
        "normal": normal,
        "lognormal": np.exp(normal),
        "t": RNG.standard_t(2.5, size=(2_000, 5)),
    }[values]
    assert profile_of(drawn).far_out is None


def test_rows_of_later_blocks_are_counted_and_at_most_five_named() -> None:
    rows = RNG.normal(size=(70_000, 2))
    # Most of the second block, which does not change what is far.
    wild = [5, *range(66_000, 70_000)]
    rows[wild] = -999.0
    far = profile_of(rows, NUMBERS[:2]).far_out
    assert far == RowsFarOut(4_001, 2, "row", tuple(wild[:5]))


# --- absence that equals a yes/no column ----------------------------------------------------------

LAB, OTHER = Feature(name="lab"), Feature(name="other")
YES_NO = Feature(name="dialysis", kind="binary")
SEX = Feature(name="sex", kind="categorical", levels=("female", "male"))
PAIN = Feature(name="pain", kind="categorical", levels=("none", "some", "much"))
DIED = Outcome(name="died", role="outcome", kind="binary", points=10)


def rows_of(n: int = 200) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "lab": RNG.normal(size=n),
            "other": RNG.normal(size=n),
            "pain": RNG.choice(["none", "some", "much"], n),
            "sex": RNG.choice(["female", "male"], n),
            "dialysis": (RNG.random(n) < 0.2).astype(float),
            "died": (RNG.random(n) < 0.3).astype(float),
        }
    )


def absences(rows: pd.DataFrame) -> list[tuple[tuple[str, ...], str, str]]:
    found = profile(rows, (LAB, OTHER, YES_NO, SEX, PAIN), outcomes=(DIED,)).absences
    return [(each.features, each.column, each.value) for each in found]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("dialysis", 1.0, "1"),
        ("dialysis", 0.0, "0"),
        ("sex", "male", "male"),
        # A column that is no feature, and counted with noise: its cells would be readable here.
        ("died", 1.0, "1"),
    ],
)
def test_columns_that_are_missing_where_a_yes_no_column_holds_are_named(
    column: str, value: Any, said: str
) -> None:
    rows = rows_of()
    where = rows[column] == value
    rows.loc[where, "lab"] = np.nan
    assert absences(rows) == [(("lab",), column, said)]
    rows.loc[where, "pain"] = None
    assert absences(rows) == [(("lab", "pain"), column, said)]


@pytest.mark.parametrize(("others", "named"), [(0, True), (1, True), (12, False)])
def test_a_few_values_missing_for_another_reason_change_nothing(others: int, named: bool) -> None:
    rows = rows_of()
    rows["dialysis"] = (np.arange(200) < 40).astype(float)
    rows.loc[40 - others :, "lab"] = np.nan
    rows.loc[199, "dialysis"] = np.nan
    assert absences(rows) == ([(("lab",), "dialysis", "0")] if named else [])


@pytest.mark.parametrize("share", [0.02, 0.2, 0.8, 0.98])
def test_values_missing_at_random_equal_no_column(share: float) -> None:
    """Also where nearly all are missing, and nearly all are no."""
    rows = rows_of(2_000)
    rows.loc[RNG.random(2_000) < share, "lab"] = np.nan
    rows["dialysis"] = (RNG.random(2_000) > share).astype(float)
    assert absences(rows) == []


def test_a_chance_of_two_rows_is_not_named() -> None:
    rows = rows_of()
    for n_yes, found in ((2, []), (3, [(("lab",), "dialysis", "1")])):
        rows["dialysis"] = (np.arange(200) < n_yes).astype(float)
        rows["lab"] = np.where(np.arange(200) < n_yes, np.nan, 1.5)
        assert absences(rows) == found


def test_blocks_are_counted_together() -> None:
    n = 70_000
    yes = np.arange(n) % 7 == 0
    rows = pd.DataFrame({"lab": np.where(yes, np.nan, 1.0), "dialysis": yes.astype(float)})
    rows.loc[n - 4_000 :, "dialysis"] = 1.0 - rows.loc[n - 4_000 :, "dialysis"]
    assert profile(rows, (LAB, YES_NO)).absences == ()
    rows.loc[n - 4_000 :, "dialysis"] = 1.0 - rows.loc[n - 4_000 :, "dialysis"]
    (found,) = profile(rows, (LAB, YES_NO)).absences
    assert (found.features, found.column, found.value) == (("lab",), "dialysis", "1")
