"""Registered data sources: what is stored, what is refused, and what replaces what."""

import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedclust.data.mapping import read_options
from fedclust.site import DataSource, DataSources, data_source
from fedclust.site.state import SiteState, seal
from fedclust.wire.errors import DataError, StateDamaged, UsageError


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    path = tmp_path / "cohort.csv"
    path.write_text("mrn;age;note\nSECRET;40;x\n", "utf-8")
    return path


def source(path: Path | str, **options: Any) -> DataSource:
    columns = {
        name: options.pop(name) for name in ("id_column", "person_column") if name in options
    }
    return DataSource(data=str(path), reading=read_options(options), **columns)


def test_a_source_is_stored_privately_with_absolute_paths(
    cohort: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cohort.parent)
    Path("columns.toml").write_text('missing = ["?"]\n', "utf-8")
    given = source("cohort.csv", mapping="columns.toml", delimiter=";", id_column="mrn")
    assert DataSources().add("cohort", given) == ["mrn", "age", "note"]
    found = data_source("cohort")
    assert found.files == (cohort, cohort.parent / "columns.toml")
    assert found.reading.delimiter == ";"
    assert found.row_options == {"person": None, "id_column": "mrn", "id_map": None}
    stored = SiteState().path
    assert b"SECRET" not in stored.read_bytes()
    if sys.platform != "win32":
        assert stat.S_IMODE(stored.stat().st_mode) == 0o600


def test_a_link_that_moves_to_another_file_stays_a_link(cohort: Path) -> None:
    link = cohort.with_name("current.csv")
    link.symlink_to(cohort)
    DataSources().add("current", source(link))
    assert data_source("current").data == str(link)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("cohort", {"id_column": "MRN"}, "column 'MRN'"),
        ("cohort", {"person_column": "patient"}, "column 'patient'"),
        ("cohort", {"encoding": "klingon"}, "no such encoding"),
        ("cohort", {"mapping": "absent.toml"}, "absent.toml"),
        ("Cohort 1", {}, "small letters"),
        ("@cohort", {}, "small letters"),
        ("", {}, "small letters"),
    ],
)
def test_what_cannot_be_used_is_not_registered(
    name: str, options: dict[str, Any], says: str, cohort: Path
) -> None:
    with pytest.raises((UsageError, DataError), match=says):
        DataSources().add(name, source(cohort, **options))
    assert DataSources().read() == {}
    with pytest.raises(DataError, match="No such file"):
        DataSources().add("cohort", source(cohort.with_name("absent.csv")))
    with pytest.raises(UsageError, match="give a file"):
        DataSources().add("cohort", source("@other"))


def test_a_first_row_of_values_is_no_header(tmp_path: Path) -> None:
    """Its values would be shown as the names of columns."""
    path = tmp_path / "rows.csv"
    path.write_text("SECRET,2026-01-02,x\nP2,2026-01-03,y\n", "utf-8")
    with pytest.raises(DataError, match="--columns") as refused:
        DataSources().add("rows", source(path))
    assert "SECRET" not in str(refused.value)
    named = source(path, columns=("mrn", "seen", "kind"), id_column="mrn")
    assert DataSources().add("rows", named) == ["mrn", "seen", "kind"]
    path.write_text("mrn,2025,2026\nP1,1,2\n", "utf-8")
    assert DataSources().add("years", source(path, id_column="mrn")) == ["mrn", "2025", "2026"]


def test_another_source_of_the_name_needs_replace(cohort: Path) -> None:
    sources = DataSources()
    for _again in range(2):
        sources.add("cohort", source(cohort, id_column="mrn"))
    with pytest.raises(UsageError, match="--replace"):
        sources.add("cohort", source(cohort, id_column="note"))
    assert sources.get("cohort").id_column == "mrn"
    sources.add("cohort", source(cohort, id_column="note"), replace=True)
    assert sources.get("cohort").id_column == "note"
    sources.add("b-side", source(cohort))
    assert list(sources.read()) == ["b-side", "cohort"]
    sources.remove("cohort")
    with pytest.raises(
        UsageError, match=r"no data source @cohort \(registered: @b-side\): fedclust data add"
    ):
        sources.remove("cohort")
    sources.remove("b-side")
    with pytest.raises(UsageError, match="none is registered"):
        data_source("cohort")


def test_options_that_are_given_replace_those_of_the_source(cohort: Path) -> None:
    mapping = cohort.with_name("columns.toml")
    mapping.write_text("", "utf-8")
    stored = source(cohort, mapping=str(mapping), missing=("?",), delimiter=";", id_column="mrn")
    DataSources().add("cohort", stored)
    stored = stored.model_copy(update={"given": "@cohort"})
    assert source("@cohort").resolved() == data_source("cohort") == stored
    changed = source("@cohort", missing=("x",), out_of_core=True, person_column="mrn").resolved()
    reading = stored.reading.model_copy(update={"missing": ("x",), "out_of_core": True})
    assert changed == stored.model_copy(update={"reading": reading, "person_column": "mrn"})
    assert source(cohort, missing=("x",)).resolved() == source(cohort, missing=("x",))


def test_the_columns_that_a_mapping_names_are_compared(cohort: Path) -> None:
    mapping = cohort.with_name("columns.toml")
    mapping.write_text(
        '[features.age]\ncolumn = "age"\n[features.chol]\ncolumn = "chol_mmol"\n'
        '[features.sex]\nlacking = true\ncolumn = "sex"\n',
        "utf-8",
    )
    found = source(cohort, mapping=str(mapping))
    with pytest.raises(DataError, match=r"column 'chol_mmol': .* it has mrn, age, note") as caught:
        DataSources().add("cohort", found)
    assert caught.value.rule == "missing-column"
    assert found.unmatched(["age"]) == ["chol_mmol"]


def test_many_processes_may_register_at_once(cohort: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: DataSources().add(f"s{n}", source(cohort)), range(24)))
    assert len(DataSources().read()) == 24


def test_a_damaged_list_says_what_to_do(cohort: Path) -> None:
    DataSources().add("cohort", source(cohort))
    with SiteState().write() as connection:
        content = seal(b'{"sources": {"cohort": {"data": 1}}}')
        connection.execute(
            "UPDATE documents SET content = ? WHERE name = 'data-sources'", (content,)
        )
    for act in (DataSources().read, lambda: DataSources().add("other", source(cohort))):
        with pytest.raises(StateDamaged, match="fedclust restore"):
            act()
