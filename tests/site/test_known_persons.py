"""Known persons are compared with what they released, whatever columns a session asks for."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import errors
from fedclust.data import Dataset
from fedclust.schema.feature import Feature
from fedclust.site.cohorts import CohortStore, Draft
from fedclust.site.prepare import SiteRows, draft_table
from fedclust.site.settings import settings_path
from fedclust.site.state import SiteState

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def file(seed: int) -> pd.DataFrame:
    """Return the rows of a hospital."""
    numbers = np.random.default_rng(seed).normal(size=(60, 4))
    ids = {"mrn": [f"{row:04d}" for row in range(60)], "nhs": [f"N{row}" for row in range(60)]}
    return pd.DataFrame(numbers, columns=list("abcd")).assign(**ids)


FILE, LATER = file(0), file(1)


class Site:
    """One that has taken part in a session of two columns."""

    def __init__(self, directory: Path) -> None:
        self.store = CohortStore(SiteState(directory))
        self.store.keep(self.draft("a b"))

    def draft(self, features: str, rows: pd.DataFrame = FILE, **options: Any) -> Draft:
        """Read the rows for another session."""
        asked = [Feature(name=name) for name in features.split()]
        return draft_table(
            self.store, SiteRows(rows, **{"id_column": "mrn", **options}), asked, 5, NOW
        )[1]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("features", ["c d", "a c"])
@pytest.mark.parametrize("id_column", ["nhs", None])
def test_known_persons_get_no_second_groups_real_record(
    site: Site, features: str, id_column: str | None
) -> None:
    with pytest.raises(errors.PersonsRefused, match="60 of the 60 persons"):
        site.draft(features, id_column=id_column)


def test_released_columns_are_compared_and_only_those_asked_are_added(site: Site) -> None:
    added = site.store.keep(site.draft("c", FILE.drop(columns="b")))
    assert set(added.rules()) == {"a", "b", "c"}
    assert site.draft("d", FILE.drop(columns="b")).recognition.differing.keys() == {"a", "c"}
    nothing_common = LATER.drop(columns=["a", "b", "c"])
    assert site.draft("d", nothing_common).recognition.differing == {}


def test_a_site_with_permanent_ids_says_so_in_its_settings(site: Site) -> None:
    some_new = {f"{row:04d}": f"new {row}" for row in range(20)}
    with pytest.raises(errors.PersonsRefused, match=r'ids = "permanent" in site\.toml'):
        site.draft("a b", id_map=some_new)
    settings_path(site.store.state.directory).write_text('ids = "permanent"\n')
    assert site.draft("a b", id_map=some_new).recognition.unknown == 20


def test_later_measurements_have_names_of_their_own(site: Site) -> None:
    later = site.store.keep(site.draft("a b c", LATER.drop(columns="d"), later="_2027"))
    assert set(later.rules()) == {"a", "b", "a_2027", "b_2027", "c_2027"}
    again = site.draft("a b c", LATER, later="_2027")
    assert (again.change.columns, again.recognition.persons_differing) == (0, 0)
    for later in ("", " ", "_2027 ", "\n"):
        with pytest.raises(errors.UsageError, match="such as _2027"):
            site.draft("a b", later=later)


@pytest.mark.parametrize("name", ["a\tb", "Gro\u0308\u00dfe", "a\u00a0b"])
def test_columns_may_have_names_that_no_feature_may_have(tmp_path: Path, name: str) -> None:
    """They are read again with every later session."""
    rows = pd.DataFrame({name: range(60), "sex": [name, "w"] * 30})
    rows["b"] = rows[name] ** 2 % 7
    levels = {name: "male", "w": "female"}
    mapping = {"features": {"size": {"column": name}, "sex": {"levels": levels}}}
    ids, source = [f"{row}" for row in range(60)], Dataset(rows, mapping=mapping)
    sex = Feature(name="sex", kind="categorical", levels=("male", "female"))
    store = CohortStore(SiteState(tmp_path))
    for asked in ([Feature(name="size"), sex], [Feature(name="b")]):
        draft = draft_table(store, SiteRows(source, person=ids), asked, 5, NOW)[1]
        cohort = store.keep(draft)
    assert set(cohort.rules()) == {name, "sex", "b"}
    assert draft.recognition.differing.keys() == {name, "sex"}
