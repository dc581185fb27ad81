"""Sessions that ask a trajectory, from files with a row for each value, over real HTTP."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from e2e.random_kills import shared
from fedclust import simulate
from fedclust.data import Dataset
from fedclust.schema.feature import Trajectory, clustered
from fedclust.site import Site
from fedclust.site.cohorts import CohortStore, Draft
from fedclust.site.prepare import SiteRows, draft_table
from fedclust.site.state import SiteState
from fedclust.wire.codec import to_tree
from support.command_line import CommandLine
from support.consortium import Consortium
from support.definitions import session_file
from support.server import running_server

SITES = ("ada", "brno", "cadiz")
MAPPING = {
    "features": {"crea": {"column": "wert", "time": "hour", "time_factor": 1 / 24, "person": "mrn"}}
}
GRID: dict[str, Any] = {
    "name": "crea",
    "kind": "trajectory",
    "unit": "mg/dl",
    "time_unit": "days",
    "grid": [0, 2, 4, 6],
    "window": 1.5,
}


def write_visits(path: Path, seed: int, n: int = 60) -> None:
    """Write patients with seven values each: falling, level or rising."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"{path.stem}-{person}", round(24 * day, 1), round(5 + (person % 3 - 1) * day / 2, 2))
        for person in range(n)
        for day in np.sort(rng.uniform(-0.5, 6.5, 7))
    ]
    table = pd.DataFrame(rows, columns=["mrn", "hour", "wert"])
    table.assign(wert=table["wert"] + rng.normal(0, 0.2, len(table)).round(2)).to_csv(
        path, index=False
    )


def visits(place: Path) -> tuple[dict[str, Dataset], dict[str, pd.Series]]:
    """Write the files of all sites, and return them with the person of each row."""
    files = {name: place / f"{name}.csv" for name in SITES}
    for seed, path in enumerate(files.values()):
        write_visits(path, seed)
    data = {name: Dataset(path, mapping=MAPPING) for name, path in files.items()}
    return data, {name: pd.read_csv(path)["mrn"] for name, path in files.items()}


def toml(path: Path, **rule: Any) -> str:
    """Write a mapping file for the visits, and return its path."""
    own = {"column": "wert", "time": "hour", "time_factor": 0.041666667, "person": "mrn", **rule}
    lines = [f"{name} = {json.dumps(value)}" for name, value in own.items()]
    path.write_text("\n".join(["[features.crea]", *lines, ""]), "utf-8")
    return str(path)


def define(path: Path) -> str:
    """Write a definition that asks the trajectory, and return its path."""
    asked = {"algorithm": "lloyd", "sites": [*SITES], "config": {"n_clusters": 3}}
    return session_file(path, GRID, **asked)


def test_simulate_from_the_command_line(tmp_path: Path, command_line: CommandLine) -> None:
    definition, mapping = define(tmp_path / "crea.json"), toml(tmp_path / "columns.toml")
    data, persons = visits(tmp_path)
    command = ["simulate", "lloyd", "--clusters", "3", "--definition", definition, "--seed", "7"]
    command += ["--mapping", mapping, "--person-column", "mrn", "--id-column", "mrn", "--json"]
    for name in SITES:
        command += ["--site", f"{name}={tmp_path / name}.csv"]
    assert command_line.run(*command, "--labels-dir", str(tmp_path / "labels")) == 0
    found = json.loads(command_line.out)
    assert found["columns"] == ["crea@0", "crea@2", "crea@4", "crea@6"]
    expected = simulate(
        "lloyd", data, config={"n_clusters": 3}, features=[GRID], seed=7, persons=persons
    )
    assert found["sizes"] == [*expected.sizes_]
    labels = pd.read_csv(tmp_path / "labels" / "ada.csv")
    assert labels["mrn"].tolist() == persons["ada"].tolist()
    assert labels["cluster"].tolist() == expected.labels_["ada"].tolist()


def test_what_simulate_refuses_of_a_trajectory(tmp_path: Path, command_line: CommandLine) -> None:
    write_visits(tmp_path / "a.csv", 0)
    definition = define(tmp_path / "crea.json")
    of = ("--person-column", "mrn")
    for options, message in (
        ((), "--person-column mrn"),
        (("--person-column", "hour"), "--person-column names 'hour'"),
        ((*of, "--policy", '{"protection": "none"}'), "a row for each person"),
        ((*of, "--features", "wert"), "either --features NAMES or --definition"),
    ):
        command = ["simulate", "lloyd", "--clusters", "3", "--definition", definition]
        command += ["--mapping", toml(tmp_path / "columns.toml"), f"--site=a={tmp_path / 'a.csv'}"]
        assert command_line.run(*command, *options) != 0
        assert message in command_line.said


def columns_asked(people: Consortium, rows: Dataset, place: Path) -> tuple[str, Any]:
    """Return what the consent screen says of the columns, and the request."""
    with Site(people.url, token=people.site_tokens["ada"], state_dir=place / "ada") as site:
        request = site.check("crea", rows, person="mrn")
    return dict(request.text())["columns"], request


def released(directory: Path) -> dict[str, str]:
    """Return what the one table of a site has released, by column."""
    (record,) = CohortStore(SiteState(directory)).records().values()
    return {each.column.name: str(each.released) for each in record.cohort.columns}


def test_a_session_from_long_files_and_another_grid_after_it(tmp_path: Path) -> None:
    data, persons = visits(tmp_path)
    with running_server(tmp_path / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, SITES)
        consortium.create("crea", 1, features=[GRID], config={"n_clusters": 3})
        said, request = columns_asked(consortium, data["ada"], tmp_path)
        assert "crea (mg/dl, trajectory at 0, 2, 4, 6 days" in said
        assert any("from column wert; a row for each value" in each for each in request.data.lines)
        assert request.persons == 60

        in_blocks = Dataset(tmp_path / "brno.csv", mapping=MAPPING, out_of_core=True)
        results = consortium.run("crea", {**data, "brno": in_blocks}, tmp_path, person="mrn")
        for name, found in results.items():
            labels = pd.Series(found.labels_).groupby(persons[name].to_numpy()).nunique()
            assert (labels == 1).all()
            kinds = pd.Series(found.labels_[: 7 * 60 : 7]).groupby(np.arange(60) % 3).nunique()
            assert (kinds == 1).all()
        expected = simulate(
            "lloyd", data, config={"n_clusters": 3}, features=[GRID], seed=7, persons=persons
        )
        assert shared(consortium.result("crea").result) == shared(to_tree(expected.result))

        # Two times of the new grid are columns that the table has released already.
        before = {name: released(tmp_path / name) for name in SITES}
        other = {**GRID, "grid": [0, 1, 2]}
        consortium.create("more", 1, features=[other], config={"n_clusters": 3})
        consortium.run("more", data, tmp_path, person="mrn")
        for name in SITES:
            after = released(tmp_path / name)
            assert {*after} - {*before[name]} == {"wert@1 (hour, days, mg/dl, linear, 1.5)"}
            assert {column: after[column] for column in before[name]} == before[name]


def test_a_session_of_summaries_finds_the_trends(tmp_path: Path) -> None:
    data, persons = visits(tmp_path)
    times = ("grid", "window")
    summed = {name: value for name, value in GRID.items() if name not in times}
    summed |= {"summary": ["slope", "curvature", "auc"]}
    options = {"features": [summed], "config": {"n_clusters": 3}}
    with running_server(tmp_path / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, SITES)
        consortium.create("crea", 1, algorithm="mixture", **options)
        said, _ = columns_asked(consortium, data["ada"], tmp_path)
        assert "crea (mg/dl, trajectory: slope, curvature, auc of each person)" in said
        in_blocks = Dataset(tmp_path / "brno.csv", mapping=MAPPING, out_of_core=True)
        results = consortium.run("crea", {**data, "brno": in_blocks}, tmp_path, person="mrn")
        found = consortium.result("crea").result
    expected = simulate("mixture", data, seed=7, persons=persons, **options)
    assert shared(found) == shared(to_tree(expected.result))
    for name, result in results.items():
        assert np.array_equal(result.labels_, expected.labels_[name])
        trends = result.labels_.reshape(60, 7)
        assert [len(np.unique(trends[kind::3])) for kind in range(3)] == [1, 1, 1]


def test_new_visits_change_nothing_that_was_released(tmp_path: Path) -> None:
    """Values until day 4, then a corrected one, visits on day 6, and a person without rows."""
    write_visits(tmp_path / "ada.csv", 0)
    table = pd.read_csv(tmp_path / "ada.csv")
    early = table[table["hour"] < 24 * 4.4]
    store = CohortStore(SiteState(tmp_path / "ada"))
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def read(rows: pd.DataFrame, wanted: Mapping[str, Any] = GRID) -> Draft:
        of = Trajectory.model_validate_json(json.dumps(wanted))
        given = SiteRows(Dataset(rows, mapping=MAPPING), person="mrn")
        found = draft_table(store, given, clustered([of]), 5, now)[1]
        store.keep(found)
        return found

    read(early)
    before = released(tmp_path / "ada")
    last = "wert@6 (hour, days, mg/dl, linear, 1.5)"
    corrected = early.assign(wert=early["wert"].where(early.index != early.index[0], 19.0))
    gone, visit = table["mrn"].iloc[-1], pd.DataFrame({"mrn": table["mrn"].unique(), "hour": 144.0})
    later = pd.concat([corrected, visit.assign(wert=4.0)])
    draft = read(later[later["mrn"] != gone])
    assert (draft.recognition.known, draft.recognition.missing) == (59, 1)
    after = released(tmp_path / "ada")
    assert {name: after[name] for name in before if name != last} == {
        name: released for name, released in before.items() if name != last
    }
    assert after[last] != before[last]
    # A group with the person who is gone still waits for that one.
    read(later)
    assert released(tmp_path / "ada") != after


def test_check_reads_rows_of_values_by_the_mapping_that_it_suggests(
    tmp_path: Path, command_line: CommandLine
) -> None:
    write_visits(tmp_path / "a.csv", 0)
    check = ("check", "--definition", define(tmp_path / "crea.json"), "--data")
    write = ("--write-mapping", str(tmp_path / "m.toml"))
    assert command_line.run(*check, str(tmp_path / "a.csv"), *write, "--json") == 0
    facts = json.loads(command_line.out)
    assert "read with --person-column mrn" in command_line.err
    assert "60 of 60 persons have values" in facts["trajectories"][0]
    given = ("--mapping", str(tmp_path / "m.toml"), "--person-column", "mrn", "--json")
    assert command_line.run(*check, str(tmp_path / "a.csv"), *given) == 0
    assert json.loads(command_line.out) == facts
    # A column that is made of rows has no text of its own in the file.
    assert command_line.run(*check, str(tmp_path / "a.csv"), *given, "--min-present", "1") == 3
    assert json.loads(command_line.out)["refused"]["rule"] == "too-few-present"
