"""Table 1 of a manuscript: its numbers, its words and its files."""

import csv
import io
import sys
import zipfile
from pathlib import Path

import docx
import numpy as np
import openpyxl
import pytest

from fedclust import SessionResult, simulate
from fedclust.result.drawing import short
from fedclust.result.facts import Facts
from fedclust.result.table_one import FORMATS, TableOne, table_one
from fedclust.wire.errors import UsageError
from support.outcome_results import outcome_facts

RNG = np.random.default_rng(12)
LABELS = RNG.integers(0, 2, 600)
ROWS = np.column_stack(
    [
        RNG.normal(60, 8, 600) + 20 * LABELS,
        np.exp(RNG.normal(1, 0.3, 600)),
        RNG.random(600) < 0.3 + 0.4 * LABELS,
    ]
)
FEATURES = [
    {"name": "age", "unit": "years"},
    {"name": "crp", "transform": "log", "lower": 0.01},
    {"name": "female", "kind": "binary"},
]


def run(protection: str) -> SessionResult:
    sites = {name: ROWS[place::3] for place, name in enumerate(("berlin", "oslo", "porto"))}
    return simulate(
        "lloyd",
        sites,
        config={"n_clusters": 2},
        policy={"protection": protection},
        features=FEATURES,
        seed=1,
    )


def row(table: TableOne, name: str) -> tuple[str, ...]:
    (found,) = [line for line in table.rows if line[0].startswith(name)]
    return found


def test_without_protection_the_numbers_are_those_of_the_rows() -> None:
    found = run("none")
    table = table_one(found)
    labels = np.concatenate(list(found.labels_.values()))
    rows = np.concatenate([ROWS[place::3] for place in range(3)])
    assert table.header == ("", "All", "cluster 0", "cluster 1", "Difference")
    for k in range(2):
        own = rows[labels == k]
        assert row(table, "Persons")[2 + k] == f"{len(own)} ({100 * len(own) / 600:.0f} %)"
        assert row(table, "age [years], mean (SD)")[2 + k] == (
            f"{own[:, 0].mean():.1f} ({own[:, 0].std():.1f})"
        )
        log = np.log(own[:, 1])
        said = [f"{np.exp(log.mean() + step * log.std()):.3g}" for step in (0, -1, 1)]
        assert row(table, "crp, geometric mean")[2 + k] == f"{said[0]} ({said[1]} to {said[2]})"
        assert row(table, "female, %")[2 + k] == f"{100 * own[:, 2].mean():.1f}"
    means = [rows[labels == k, 0].mean() for k in range(2)]
    assert row(table, "age")[-1] == f"{abs(means[1] - means[0]) / rows[:, 0].std():.2f}"
    assert not any("groups" in note for note in table.footnotes)


def test_with_protection_it_says_what_the_numbers_are_of() -> None:
    found = run("groups")
    table = table_one(found)
    assert "groups of at least 5 persons at 3 sites" in table.footnotes[0]
    # Half of a site's groups or more hold one value: that is no share of persons.
    assert row(table, "female")[0] == "female, % of groups"
    # Nor do groups tell how far clusters differ.
    assert table.header == ("", "All", "cluster 0", "cluster 1")
    assert {len(line) for line in table.rows} == {4}
    said = "Typical value (* in a row of means), % of groups: "
    assert any(note.startswith(said) for note in table.footnotes)
    assert row(table, "crp")[0] == "crp, typical value"
    assert not any(note.startswith("Difference") for note in table.footnotes)


def test_a_value_that_may_not_be_the_mean_has_a_mark() -> None:
    found = run("groups")
    profile = found.result.profile

    def table(uncertain: list[bool]) -> TableOne:
        changed = profile.model_copy(
            update={"uncertain": np.outer(uncertain, [True, False, False])}
        )
        result = found.result.model_copy(update={"profile": changed})
        return table_one(Facts(result, found.definition))

    sure, one, both = (row(table(each), "age") for each in ([False] * 2, [False, True], [True] * 2))
    assert sure[0] == one[0] == "age [years], mean"
    assert sure[1:4] == both[1:4]
    assert one[1:] == (*sure[1:3], f"{short(profile.means[1, 0])} *")
    assert both[0] == "age [years], typical value"
    assert both[1:] == tuple(
        short(each) for each in (profile.overall_means[0], *profile.means[:, 0])
    )
    assert any("(* in a row of means)" in note for note in table([False, True]).footnotes)


def test_outcomes_stand_with_their_intervals_and_every_file_has_every_cell() -> None:
    facts = outcome_facts(n_clusters=3)
    table = table_one(facts)
    said = str(table)
    for found in facts.result.outcomes.results:
        assert any(line[0].startswith(found.name) for line in table.rows)
        assert any(found.name in note and "95 % intervals" in note for note in table.footnotes)
    assert "reference" in said
    assert "odds ratio" in said
    assert "within the cell" not in said
    assert all(len(line) == len(table.header) for line in table.rows)
    # Every file has every cell, and the same bytes again.
    cells = [*table.header, *(cell for line in table.rows for cell in line)]
    files = {ending: table.content(f"t{ending}") for ending in FORMATS}
    assert files == {ending: table_one(facts).content(f"t{ending}") for ending in FORMATS}
    (written,) = docx.Document(io.BytesIO(files[".docx"])).tables
    assert [cell.text for line in written.rows for cell in line.cells] == cells
    sheet = openpyxl.load_workbook(io.BytesIO(files[".xlsx"])).active
    lines = [[str(value or "") for value in line] for line in sheet.iter_rows(values_only=True)]
    assert [cell for line in lines[1 : 2 + len(table.rows)] for cell in line] == cells
    read = [*csv.reader(io.StringIO(files[".csv"].decode()))]
    assert [cell for line in read[: 1 + len(table.rows)] for cell in line] == cells
    assert [line[0] for line in read[1 + len(table.rows) :]] == list(table.footnotes)
    for ending in (".docx", ".xlsx"):
        with zipfile.ZipFile(io.BytesIO(files[ending])) as archive:
            assert {entry.date_time[:2] for entry in archive.infolist()} == {
                facts.completed_at.timetuple()[:2] if facts.completed_at else (1980, 1)
            }


def test_formulas_are_text_and_names_are_escaped() -> None:
    table = TableOne("Table 1. <b>", ("", "=1+1"), (("@x", "-2 (1)"),), ("=note",))
    assert "<b>" not in table.html()
    assert "'=1+1" in table.csv()
    sheet = openpyxl.load_workbook(io.BytesIO(table.content("t.xlsx"))).active
    assert all(cell.data_type == "s" for line in sheet.iter_rows() for cell in line if cell.value)


def test_a_wrong_ending_or_a_missing_package_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = TableOne("Table 1.", ("", "All"), (), ())
    with pytest.raises(UsageError, match=r"ends in \.docx, \.xlsx, \.csv, \.html"):
        table.content("t.pdf")
    for package, ending, extra in (("docx", ".docx", "docx"), ("openpyxl", ".xlsx", "excel")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UsageError, match=rf"pip install 'fedclust\[{extra}\]'"):
            table.content(f"t{ending}")
    with pytest.raises(UsageError, match="cannot be written"):
        run("none").save_table_one(tmp_path / "absent" / "t.csv")
