"""``fedclust data``, and ``--data @NAME`` in the commands that read rows."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import openpyxl
import pytest

from fedclust.data import Dataset
from fedclust.data.mapping import ReadOptions
from fedclust.site.data_sources import DataSource, DataSources
from fedclust.wire.errors import UsageError
from support.command_line import CommandLine, at_desk
from support.definitions import session_file

N = 60


class Office(CommandLine):
    """A site with a file, which is registered as ``cohort``."""

    def open(self) -> None:
        self._patch.chdir(self.place)
        self.write("cohort.csv")
        Path("columns.toml").write_text('[features.x]\ncolumn = "Ex"\nsentinels = [-9]\n', "utf-8")
        session_file(Path("heart.json"), "x", "y")
        named = ("--id-column", "mrn", "--mapping", "columns.toml", "--missing", "?")
        assert self.run("data", "add", "cohort", "--data", "cohort.csv", *named) == 0, self.err

    def write(self, name: str, n: int = N) -> None:
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(n, 2)) + 6 * rng.integers(0, 2, (n, 1))
        with Path(name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter=";")
            writer.writerow(["mrn", "Ex", "y"])
            writer.writerows([f"SECRET{i}", *row] for i, row in enumerate(rows.tolist()))
            writer.writerow(["SECRETlast", "-9", "?"])


office = at_desk(Office)


def test_sources_are_added_shown_and_removed(office: Office) -> None:
    assert "@cohort: 3 columns; now give other commands --data @cohort" in office.err
    assert "@cohort" in office.ran("data", "list").out
    assert office.run("data", "show", "cohort") == 0
    for text in ("cohort.csv", "mrn, Ex, y", "columns.toml", "missing          ?"):
        assert text in office.out
    facts = json.loads(office.ran("data", "show", "cohort", "--json").out)
    assert facts["columns"] == ["mrn", "Ex", "y"]
    assert set(facts["reading"]) == {"mapping", "missing"}
    assert "SECRET" not in office.out
    Path("cohort.csv").rename("moved.csv")
    assert "columns.toml" in office.ran("data", "show", "cohort", code=3).out
    assert "--replace" in office.ran("data", "add", "cohort", "--data", "moved.csv", code=2).err
    assert office.run("data", "add", "cohort", "--data", "moved.csv", "--replace", "--json") == 0
    assert json.loads(office.out)["id_column"] is None
    assert office.run("data", "remove", "cohort") == 0
    assert "no data sources; to register one" in office.ran("data", "list").err
    assert "fedclust data add NAME" in office.err


def test_columns_of_the_mapping_that_are_not_there_are_warned_of(office: Office) -> None:
    Path("columns.toml").write_text('[features.x]\ncolumn = "EX"\n', "utf-8")
    assert "not there: EX" in office.ran("data", "show", "cohort").err


def test_the_address_of_a_database_is_not_stored(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("rows.db").touch()
    Path("rows.sql").write_text("SELECT 1 AS x, 2 AS y", "utf-8")
    monkeypatch.setenv("FEDCLUST_SQL_URL", f"sqlite:///{Path('rows.db').absolute()}")
    add = ("data", "add", "rows", "--data", "rows.sql")
    assert "FEDCLUST_SQL_URL is not stored" in office.ran(*add).err
    Path("address.txt").write_text(f"sqlite:///{Path('rows.db').absolute()}", "utf-8")
    monkeypatch.delenv("FEDCLUST_SQL_URL")
    assert office.run("data", "show", "rows") == 3
    add = (*add, "--sql-url-file", "address.txt", "--replace")
    if sys.platform != "win32":
        Path("address.txt").chmod(0o644)
        assert "chmod 600" in office.ran(*add, code=2).err
        assert "rows.db" not in office.err
    Path("address.txt").chmod(0o600)
    assert json.loads(office.ran(*add, "--json").out)["columns"] == ["x", "y"]
    assert "rows.db" not in office.out + office.err
    assert "no rows" not in office.err
    Path("rows.sql").write_text("SELECT 1 AS x, 2 AS y WHERE 1 = 0", "utf-8")
    assert "warning: the query has no rows" in office.ran(*add).err


@pytest.mark.parametrize("where", ["--sql-url-file", "--data", "--mapping"])
@pytest.mark.parametrize(
    "address",
    [
        "postgresql+psycopg://reader:MARKER@db.example/cdm",
        "postgresql+psycopg://reader:MARKER@db.example",
        "sqlite:////srv/MARKER.db",
        "reader:MARK/MARKER@db.example",
    ],
)
def test_no_message_repeats_an_address_in_place_of_a_file(
    office: Office, where: str, address: str
) -> None:
    """An address given for a file is refused, by a file of any kind, and nothing is stored."""
    state = {path: path.read_bytes() for path in Path().rglob("*.json")}
    data = () if where == "--data" else ("--data", "cohort.csv")
    for command in (("data", "add", "other"), ("check", "--definition", "heart.json")):
        assert office.run(*command, *data, where, address) == 2
        assert "MARKER" not in office.out + office.err
        said = office.err.replace("\n", " ").replace("(", "").replace(")", "")
        assert f"{where} names a file" in said
        assert "FEDCLUST_SQL_URL" in office.err
    with pytest.raises(UsageError) as refused:
        Dataset(address)
    assert "MARKER" not in str(refused.value)
    named = {"data": "cohort.csv", "reading": ReadOptions(sql_url_file=address)}
    with pytest.raises(UsageError) as refused:
        DataSources().add("other", DataSource(**named))
    assert "MARKER" not in str(refused.value)
    assert {path: path.read_bytes() for path in Path().rglob("*.json")} == state


def test_a_simulation_names_rows_by_the_columns_of_its_sources(office: Office) -> None:
    """Columns of identifiers and persons are no features, and differ from site to site."""
    office.write("other.csv")
    head, *rows = Path("other.csv").read_text("utf-8").replace("mrn", "case", 1).splitlines()
    Path("other.csv").write_text("\n".join([head, *rows, *rows]), "utf-8")
    named = ("--person-column", "case", "--mapping", "columns.toml", "--missing", "?")
    assert office.run("data", "add", "other", "--data", "other.csv", *named) == 0
    sites = ("--site", "a=@cohort", "--site", "b=@other", "--labels-dir", "labels")
    policy = ("--policy", '{"min_sites": 2}', "--json")
    found = json.loads(office.ran("simulate", "lloyd", "--clusters=2", *sites, *policy).out)
    assert found["columns"] == ["x", "y"]
    assert sum(found["sizes"]) == 2 * (N + 1)
    heads = [Path("labels", f"{name}.csv").read_text("utf-8")[:12] for name in "ab"]
    assert heads == ["mrn,cluster\n", "row,cluster\n"]


def test_commands_read_a_registered_source(office: Office) -> None:
    assert office.run("check", "--definition", "heart.json", "--data", "@cohort", "--json") == 0
    facts = json.loads(office.out)
    assert facts["rows"] == N + 1
    assert [column["column"] for column in facts["columns"]] == ["Ex", "y"]
    assert [column["n"] for column in facts["columns"]] == [N, N]
    definition = ("--definition", "heart.json")
    assert office.run("cohort", "create", "--data", "@cohort", *definition, "--json") == 0
    assert json.loads(office.out)["ids"] is True
    assert office.run("doctor", "--data", "@cohort") != 0
    assert "cohort.csv: 3 columns" in office.said
    sites = [word for name in "ab" for word in ("--site", f"{name}=@cohort")]
    policy = ("--policy", '{"min_sites": 2}')
    assert office.run("simulate", "lloyd", "--clusters=2", "--features=x,y", *sites, *policy) == 0


def test_an_unknown_name_lists_the_known_ones_and_a_mark_is_part_of_none(office: Office) -> None:
    for command in (("check", "--definition", "heart.json"), ("doctor",)):
        assert office.run(*command, "--data", "@cohrt") != 0
        text = "no data source @cohrt (registered: @cohort). Did you mean @cohort?"
        assert text in office.said
    assert office.run("check", "--definition", "heart.json", "--data", "@other") == 2
    assert "no data source @other (registered: @cohort): fedclust data add other" in office.err
    Path("@cohort").write_text("mrn;Ex;y\na;1;2\n", "utf-8")
    assert office.run("check", "--definition", "heart.json", "--data", "./@cohort", "--json") == 3
    assert json.loads(office.out)["refused"]["message"].startswith("@cohort")
    assert office.run("data", "show", "@cohort") == 0
    assert "@second: 3 columns" in office.ran("data", "add", "@second", "--data", "cohort.csv").err
    assert office.run("data", "show", "@@cohort") == 2
    assert "@second is no longer registered" in office.ran("data", "remove", "@second").err

    check = ("check", "--definition", "heart.json", "--data")
    assert office.run(*check, "cohort") == 2
    assert "there is no file cohort here; for the registered source: @cohort" in office.err
    assert "@" not in office.ran(*check, "nothing", code=3).err


def test_columns_that_are_not_used_are_named(office: Office) -> None:
    assert office.run("check", "--definition", "heart.json", "--data", "@cohort") == 0
    assert "not used" not in office.out  # the id column is used
    wide = [f"note{i}" for i in range(12)]
    Path("wide.csv").write_text(",".join(["x", "y", *wide]) + "\n" + "1," * 13 + "1\n", "utf-8")
    office.run("check", "--definition", "heart.json", "--data", "wide.csv")
    named = ", ".join(wide[:10])
    assert f"columns that are not used (12): {named} and 2 more\n" in office.out


@pytest.mark.parametrize("text", ["My cohort 2026\n\nmrn;Ex;y\n", "My cohort;;\nmrn;Ex;y\n"])
def test_a_title_above_the_header_is_no_header(office: Office, text: str) -> None:
    Path("titled.csv").write_text(text + "a;1;2\nb;2;3\n", "utf-8")
    add = ("data", "add", "titled", "--data", "titled.csv")
    assert office.run(*add) == 3
    line = text.count("\n")
    assert f"line {line} looks like the header; give --header-row {line}" in office.err
    assert office.run(*add, "--header-row", f"{line}") == 0
    Path("one.csv").write_text("value\n1\n2\n", "utf-8")
    assert office.run("data", "add", "one", "--data", "one.csv") == 0


def test_a_title_above_the_header_of_a_sheet(office: Office) -> None:
    book = openpyxl.Workbook()
    for row in (["My cohort"], ["June 2026"], ["mrn", "Ex", "y"], ["a", 1, 2], ["b", None, 3]):
        book.active.append(row)
    book.save("titled.xlsx")
    add = ("data", "add", "titled", "--data", "titled.xlsx")
    assert office.run(*add) == 3
    assert "title, and row 3 looks like the header; give --header-row 3" in office.err
    assert office.run(*add, "--header-row", "3") == 0, office.err
    Path("titled.xlsx").rename("~$titled.xlsx")
    assert office.run("data", "add", "lock", "--data", "~$titled.xlsx") == 3
    assert "this is the lock file of Excel" in office.err
    assert "give titled.xlsx" in office.err
