"""The ordinary ways in which a site comes with another file: each is accepted or refused.

Each file is read three times: for a session that asks for nothing new, for one that asks for a new
column, and with ten newcomers. docs/cohorts.md says what is refused.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedclust import errors
from fedclust.schema.feature import Feature
from fedclust.site.cohorts import CohortStore, Draft
from fedclust.site.prepare import SiteRows, draft_table
from fedclust.site.state import SiteState

NOW = datetime(2026, 3, 1, tzinfo=UTC)
RELEASED, NEW = ("age", "chol", "sbp", "smoker", "rare"), "bmi"
UNKNOWN = r"{} of the {} persons in this source are not known, and {} known persons are missing"


def patients(n: int, first: int = 0) -> pd.DataFrame:
    """Return the rows of a hospital's patients; the first ids are 0000, 0001, ..."""
    rng = np.random.default_rng(first)
    return pd.DataFrame(
        {
            "mrn": [f"{first + row:04d}" for row in range(n)],
            "age": rng.integers(20, 90, n),
            "chol": rng.normal(220, 40, n).round(1),
            "sbp": rng.normal(130, 15, n).round(1),
            "smoker": (rng.random(n) < 0.3).astype(int),
            "rare": (rng.random(n) < 0.04).astype(int),
            "bmi": rng.normal(26, 4, n).round(2),
        }
    )


class Hospital:
    """A site that has released the columns of 200 patients."""

    def __init__(self, place: Path, id_column: str | None = "mrn") -> None:
        self.place, self.id_column = place, id_column
        self.store = CohortStore(SiteState(place / "state"))
        self.store.keep(self.come(patients(200)))

    def come(self, file: pd.DataFrame, *more: str, outcome: str | None = None) -> Draft:
        """Come with a file to a session that asks for the released columns and more."""
        path = self.place / "cohort.csv"
        file.to_csv(path, index=False)
        asked = [Feature(name=name) for name in (*RELEASED, *more) if name in file.columns]
        if outcome is not None:
            asked.append(Feature(name=outcome, role="outcome"))
        return draft_table(self.store, SiteRows(path, id_column=self.id_column), asked, 5, NOW)[1]

    def said(self, come: Callable[[], Draft]) -> str:
        """Return why a file is refused, or the columns about which a site is warned."""
        try:
            return ", ".join(come().recognition.most_differ(5))
        except errors.DataError as error:
            refused = error
        todo = {
            "unknown-persons": ("--id-map", "--other-persons", "wrong file"),
            "other-values": ("right file", "swapped", "--later"),
            "persons": ("--person-column",),
        }
        assert all(each in str(refused) for each in todo[refused.rule])
        assert "0007" not in str(refused), "no id"
        return str(refused)

    def each_way(self, file: pd.DataFrame, newcomers: pd.DataFrame) -> list[str]:
        more = pd.concat([file, newcomers.reindex(columns=file.columns)])
        ways = [
            self.said(lambda: self.come(file)),
            self.said(lambda: self.come(file, NEW)),
            self.said(lambda: self.come(more)),
        ]
        assert len(self.store.records()) == 1
        return ways


def new_ids(n: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(file: pd.DataFrame) -> pd.DataFrame:
        ids = [f"N{each}" if row < n else each for row, each in enumerate(file["mrn"])]
        return file.assign(mrn=ids)

    return change


def swapped(file: pd.DataFrame) -> pd.DataFrame:
    return file.assign(chol=file["sbp"], sbp=file["chol"])


ACCEPTED = ("", "", "")
NEWCOMERS = "new persons would release columns in which most values of known persons differ: {}"
WAYS: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], Sequence[str]]] = {
    "all new ids": (new_ids(200), [UNKNOWN.format(m, m, 200) for m in (200, 200, 210)]),
    "a year older": (
        lambda file: file.assign(age=file["age"] + 1),
        ("age", "age", NEWCOMERS.format(r"age \(\d+ of \d+\)")),
    ),
    "a column lacking": (lambda file: file.drop(columns="chol"), ACCEPTED),
    "half of the persons": (lambda file: file[100:], ("", "", UNKNOWN.format(10, 110, 100))),
    "sorted anew": (lambda file: file.sort_values("chol"), ACCEPTED),
    "doubled": (lambda file: pd.concat([file, file]), ["200 ids occur in several rows"] * 3),
    "40 of 200 re-registered": (
        new_ids(40),
        [UNKNOWN.format(m, n, 40) for m, n in ((40, 200), (40, 200), (50, 210))],
    ),
    "growth by 95 %": (lambda file: pd.concat([file, patients(190, 1_000)]), ACCEPTED),
    "growth by 120 %": (
        lambda file: pd.concat([file, patients(240, 1_000)]),
        [UNKNOWN.format(m, 200 + m, 0) for m in (240, 240, 250)],
    ),
    "swapped columns": (
        swapped,
        (
            "chol, sbp",
            r"\d+ of \d+ values of known persons differ .*: chol \(\d+ of \d+\); sbp \(",
            r"\d+ of \d+ values of known persons differ",
        ),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_ordinary_ways_to_come_with_another_file(tmp_path: Path, way: str) -> None:
    change, expected = WAYS[way]
    found = Hospital(tmp_path).each_way(change(patients(200)), patients(10, 5_000))
    for said, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, said), said
        assert bool(said) == bool(pattern), said


def test_rows_without_ids_may_only_be_appended(tmp_path: Path) -> None:
    site = Hospital(tmp_path, id_column=None)
    file, newcomers = patients(200), patients(20, 5_000)
    assert site.each_way(file, newcomers) == ["", "", ""]
    for other in (file.sort_values("chol"), file.drop(index=0), file[::-1]):
        printed, *refused = site.each_way(other, newcomers)
        assert printed.split(", ")[:3] == ["age", "chol", "sbp"]
        assert all("values of known persons differ" in each for each in refused)
    # Repeated rows at the end count as newcomers: docs/cohorts.md says so.
    assert site.come(pd.concat([file, file])).recognition.unknown == 200
