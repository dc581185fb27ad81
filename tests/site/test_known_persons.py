"""Persons are known by their values as well, whatever columns a session asks for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from fedclust import errors
from fedclust.protection.cohort import Cohort
from fedclust.schema.feature import Feature
from fedclust.site.cohorts import CohortStore
from fedclust.site.ledger import Ledger
from fedclust.site.prepare import SiteRows, draft_table

NOW = datetime(2026, 3, 1, tzinfo=UTC)
COLUMNS = ("mrn", "nhs", "a", "b", "c", "d")


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = CohortStore(patience_s=0.0)

    def join(
        self,
        features: str,
        id_column: str | None,
        *,
        seed: int = 0,
        left_out: str = "",
        separate: str | None = None,
    ) -> Cohort:
        """Take part in a session with the file of a hospital."""
        rng = np.random.default_rng(seed)
        kept = [place for place, name in enumerate(COLUMNS) if name not in left_out.split()]
        lines = [",".join(COLUMNS[place] for place in kept)]
        for row in range(60):
            cells = [f"{row:04d}", f"N{row}", *(f"{x:.3f}" for x in rng.normal(size=4))]
            lines.append(",".join(cells[place] for place in kept))
        path = self.directory / "cohort.csv"
        path.write_text("\n".join(lines) + "\n")
        asked = [Feature(name=name) for name in features.split()]
        reading = SiteRows(path, id_column=id_column, separate_groups=separate)
        ledger = Ledger(self.directory)
        return self.store.keep(draft_table(self.store, reading, asked, 5, NOW, ledger)[1], ledger)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("features", ["c d", "a c"])
@pytest.mark.parametrize("id_column", ["nhs", None])
def test_known_persons_get_no_second_groups_real_record(
    site: Site, features: str, id_column: str | None
) -> None:
    site.join("a b", "mrn")
    with pytest.raises(errors.PersonsRefused, match="ids that they had"):
        site.join(features, id_column)
    if id_column is not None:
        with pytest.raises(errors.PersonsRefused, match="ids that they had"):
            site.join(features, id_column, separate="board 7")


def test_ids_of_other_persons_are_refused_whatever_is_asked(site: Site) -> None:
    site.join("a b", "mrn")
    with pytest.raises(errors.PersonsRefused, match="most values"):
        site.join("c", "mrn", seed=1)


def test_only_columns_that_a_session_asks_for_are_added(site: Site) -> None:
    first = site.join("a b", "mrn")
    site.join("c", "mrn", left_out="b")
    assert set(site.store.records()[first.table_id].cohort.rules()) == {"a", "b", "c"}

    other = site.join("d", "nhs", seed=1)
    assert other.base == ("d",), "a second site on the account"


def test_without_common_columns_nothing_is_compared(site: Site) -> None:
    site.join("a b", "mrn")
    site.join("c", "nhs", left_out="a b")
    assert len(site.store.records()) == 2
