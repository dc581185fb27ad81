"""Rows that do not fit a session or the site's groups: an error that says what to do, or a result.

What the store and its rules refuse is in ``test_cohorts.py`` and ``protection/test_cohort.py``.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fedclust import errors
from fedclust.data import Dataset
from fedclust.site.cohorts import CohortStore
from fedclust.site.state import SiteState
from support.fake_coordinator import FakeCoordinator, three_clusters

IDS = [f"p{i}" for i in range(60)]


MINE = three_clusters(60, 3)


def frame(values: NDArray[np.float64], ids: list[str] | None = None) -> pd.DataFrame:
    found = pd.DataFrame(values, columns=["x", "y"])
    return found if ids is None else found.assign(id=ids)


def test_a_site_without_usable_rows_learns_so_before_consent(tmp_path: Path) -> None:
    site = FakeCoordinator(policy={"missing": "drop"}).site(tmp_path)
    request = site.check("heart", MINE * [1.0, np.nan])
    assert (request.persons, request.p) == (0, 5)
    assert any("sends only empty submissions" in note for note in request.notes)
    whole = FakeCoordinator().site(tmp_path).check("heart", MINE)
    assert not any("empty" in note for note in whole.notes)


def test_a_column_that_becomes_yes_no_stays_what_it_was_real_record(tmp_path: Path) -> None:
    """Means of noughts and ones on the step of numbers would be counts of fewer than p persons."""
    FakeCoordinator().site(tmp_path).participate(
        "heart", frame(MINE, IDS), id_column="id", consent=True
    )
    (before,) = CohortStore(SiteState(tmp_path)).records().values()
    yes = MINE[:, 1] > MINE[:, 1].mean()
    changed = frame(np.column_stack([MINE[:, 0], yes]), IDS)
    result = (
        FakeCoordinator(policy={"max_rounds": 5})
        .site(tmp_path)
        .participate("heart", changed, id_column="id", consent=True)
    )
    assert result.labels_ is not None
    (after,) = CohortStore(SiteState(tmp_path)).records().values()
    for name in ("x", "y"):
        released = before.cohort.table([name]).values(name)
        np.testing.assert_array_equal(after.cohort.table([name]).values(name), released)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_file_that_changes_between_two_passes_is_refused_out_of_core(
    number: int, tmp_path: Path
) -> None:
    path, passes = tmp_path / "rows.csv", []
    frame(MINE, IDS).to_csv(path, index=False)

    def change(_: str, done: int, __: int | None) -> None:
        if done == 0:
            passes.append(path)
        if done == 0 and len(passes) == number:
            frame(np.where(MINE[3] == MINE, MINE + 9, MINE), IDS).to_csv(path, index=False)

    fake, data = FakeCoordinator(), Dataset(path, out_of_core=True, on_read=change)
    if number < 4:
        with pytest.raises(errors.DataError, match="run the command again") as refused:
            fake.site(tmp_path).participate("heart", data, id_column="id", consent=True)
        assert refused.value.rule == "changed"
        assert fake.puts == []
        return
    # The table was formed: labels are of the rows as they are at the end.
    result = fake.site(tmp_path).participate("heart", data, id_column="id", consent=True)
    assert result.labels_ is not None
    now = result.predict(Dataset(path))
    np.testing.assert_array_equal(result.labels_, now)
