"""Several numbers of clusters on the command line, and a sweep's result at each of them."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust import errors, simulate
from fedclust.cli.session_options import read_clusters
from support.command_line import CommandLine

SITES = {name: np.random.default_rng(i).normal(size=(40, 2)) for i, name in enumerate("abc")}


def site_options(place: Path, header: list[str], rows: dict[str, Any]) -> list[str]:
    """Write a file for each site, and return the options that name them."""
    given = []
    for name, lines in rows.items():
        path = place / f"{name}.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header, *lines])
        given += ["--site", f"{name}={path}"]
    return given


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("4", 4),
        ("2-5", [2, 3, 4, 5]),
        ("3,2,7", [3, 2, 7]),
        (" 2-3 ", [2, 3]),
        ("3-3", [3]),
        ("2 - 3", [2, 3]),
        ("2, 3", [2, 3]),
    ],
)
def test_clusters_as_they_are_written(text: str, asked: Any) -> None:
    assert read_clusters(text) == asked


@pytest.mark.parametrize("text", ["", "0", "x", "5-2", "2-", "2,,3", "-2", "1.5", "10001", "²"])
def test_clusters_that_are_none(text: str) -> None:
    with pytest.raises(errors.UsageError, match="2-10"):
        read_clusters(text)


def test_simulate_prints_every_k_and_which_is_recommended(
    tmp_path: Path, command_line: CommandLine
) -> None:
    given = site_options(tmp_path, ["x", "y"], SITES)

    def run(*arguments: str) -> str:
        command = ["simulate", "lloyd", *given, "--features", "x,y", *arguments]
        return command_line.ran(*command).out

    facts = json.loads(run("--clusters", "2-3", "--json"))
    assert [entry["n_clusters"] for entry in facts["sweep"]] == [2, 3]
    shown = run("--clusters", "2-3")
    assert "simplified silhouette" in shown
    assert facts["recommendation"] in " ".join(shown.split())
    assert facts["one_cloud"]["n_draws"] > 0


def test_simulate_clusters_the_columns_of_numbers_and_never_the_id_column(
    tmp_path: Path, command_line: CommandLine
) -> None:
    lines = {
        name: [[i, f"ward {i % 2}", *row] for i, row in enumerate(rows.tolist(), start=500)]
        for name, rows in SITES.items()
    }
    given = site_options(tmp_path, ["number", "ward", "x", "y"], lines)
    labels = tmp_path / "labels"
    run = partial(command_line.run, "simulate", "lloyd", *given, "--clusters", "2")
    assert run("--json", "--id-column", "number", "--labels-dir", str(labels)) == 0
    assert json.loads(command_line.out)["columns"] == ["x", "y"]
    assert command_line.err.splitlines() == [
        "warning: columns left out: ward (not numeric); to use others, name the features"
    ]
    first = next(iter(SITES))
    with (labels / f"{first}.csv").open(newline="") as file:
        head, *written = csv.reader(file)
    assert head == ["number", "cluster"]
    assert [line[0] for line in written] == [str(500 + i) for i in range(len(SITES[first]))]
    expected = simulate("lloyd", SITES, config={"n_clusters": 2}, features=["x", "y"])
    assert [int(line[1]) for line in written] == expected.labels_[first].tolist()
    assert run("--json") == 0
    assert json.loads(command_line.out)["columns"] == ["x", "y"]
    assert "number (looks like an identifier)" in command_line.err
    assert run("--features", "x,number", "--id-column", "number") == 2
    assert run("--id-column", "mrn") == 3
    assert "'mrn'" in command_line.err


def test_a_simulation_of_too_few_persons_says_why_it_failed(
    tmp_path: Path, command_line: CommandLine
) -> None:
    given = site_options(tmp_path, ["x", "y"], dict.fromkeys(SITES, ((1, 2), (3, 4))))
    assert command_line.run("simulate", "lloyd", *given, "--clusters=2", "--features=x,y") == 7
    assert "0 sites answered round 1 with something" in command_line.err
    assert "unexpected" not in command_line.err
