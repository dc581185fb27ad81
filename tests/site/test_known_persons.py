"""Known persons are compared with what they released, whatever columns a session asks for."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import errors
from fedclust.data import Dataset
from fedclust.protection.cohort import Cohort
from fedclust.schema.feature import Feature
from fedclust.site.cohorts import CohortStore, Draft
from fedclust.site.prepare import SiteRows, draft_table
from fedclust.site.settings import settings_path
from fedclust.site.state import SiteState

NOW = datetime(2026, 3, 1, tzinfo=UTC)
COLUMNS = ("mrn", "nhs", "a", "b", "c", "d")


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = CohortStore(SiteState(directory / "state"))

    def join(self, features: str, id_column: str | None, **options: Any) -> Cohort:
        """Take part in a session."""
        return self.store.keep(self.draft(features, id_column, **options))

    def draft(
        self,
        features: str,
        id_column: str | None,
        *,
        seed: int = 0,
        left_out: str = "",
        **options: Any,
    ) -> Draft:
        """Read the file of a hospital for a session."""
        rng = np.random.default_rng(seed)
        kept = [place for place, name in enumerate(COLUMNS) if name not in left_out.split()]
        lines = [",".join(COLUMNS[place] for place in kept)]
        for row in range(60):
            cells = [f"{row:04d}", f"N{row}", *(f"{x:.3f}" for x in rng.normal(size=4))]
            lines.append(",".join(cells[place] for place in kept))
        path = self.directory / "cohort.csv"
        path.write_text("\n".join(lines) + "\n")
        asked = [Feature(name=name) for name in features.split()]
        reading = SiteRows(path, id_column=id_column, **options)
        return draft_table(self.store, reading, asked, 5, NOW)[1]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("features", ["c d", "a c"])
@pytest.mark.parametrize("id_column", ["nhs", None])
def test_known_persons_get_no_second_groups_real_record(
    site: Site, features: str, id_column: str | None
) -> None:
    site.join("a b", "mrn")
    with pytest.raises(errors.PersonsRefused, match="60 of the 60 persons"):
        site.join(features, id_column)


def test_released_columns_are_compared_and_only_those_asked_are_added(site: Site) -> None:
    first = site.join("a b", "mrn")
    site.join("c", "mrn", left_out="b")
    assert set(site.store.records()[first.table_id].cohort.rules()) == {"a", "b", "c"}
    assert site.draft("d", "mrn", left_out="b").recognition.differing.keys() == {"a", "c"}


def test_without_common_columns_nothing_is_compared(site: Site) -> None:
    site.join("a b", "mrn")
    assert site.draft("c", "mrn", left_out="a b", seed=1).recognition.differing == {}


def test_a_site_with_permanent_ids_says_so_in_its_settings(site: Site) -> None:
    site.join("a b", "mrn")
    some_new = {f"{row:04d}": f"new {row}" for row in range(20)}
    with pytest.raises(errors.PersonsRefused, match=r'ids = "permanent" in site\.toml'):
        site.draft("a b", "mrn", id_map=some_new)
    settings_path(site.store.state.directory).write_text('ids = "permanent"\n')
    assert site.draft("a b", "mrn", id_map=some_new).recognition.unknown == 20


def test_later_measurements_have_names_of_their_own(site: Site) -> None:
    site.join("a b", "mrn")
    later = site.join("a b c", "mrn", left_out="d", seed=1, later="_2027")
    assert set(later.rules()) == {"a", "b", "a_2027", "b_2027", "c_2027"}
    again = site.draft("a b c", "mrn", seed=1, later="_2027")
    assert (again.change.columns, again.recognition.persons_differing) == (0, 0)


@pytest.mark.parametrize("later", ["", " ", "_2027 ", "\n"])
def test_a_suffix_that_nobody_sees_is_refused(site: Site, later: str) -> None:
    with pytest.raises(errors.UsageError, match="such as _2027"):
        site.join("a b", "mrn", later=later)
    assert not site.store.state.path.exists()


@pytest.mark.parametrize("name", ["a\tb", "Gro\u0308\u00dfe", "a\u00a0b"])
def test_columns_may_have_names_that_no_feature_may_have(site: Site, name: str) -> None:
    """They are read again with every later session."""
    rows = pd.DataFrame({name: range(60), "sex": [name, "w"] * 30})
    rows["b"] = rows[name] ** 2 % 7
    levels = {name: "male", "w": "female"}
    mapping = {"features": {"size": {"column": name}, "sex": {"levels": levels}}}
    ids, source = [f"{row}" for row in range(60)], Dataset(rows, mapping=mapping)
    sex = Feature(name="sex", kind="categorical", levels=("male", "female"))
    for asked in ([Feature(name="size"), sex], [Feature(name="b")]):
        given = SiteRows(source, person=ids)
        draft = draft_table(site.store, given, asked, 5, NOW)[1]
        cohort = site.store.keep(draft)
    assert set(cohort.rules()) == {name, "sex", "b"}
    assert draft.recognition.differing.keys() == {name, "sex"}
