"""The first tutorial: its own coordinator, and north in a terminal of its own."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    page.file("make_files.py", "load_breast_cancer")
    page.serve_here()
    page.in_another_terminal("--token-file north.token --data")
    yield
    for name, n_rows in (("north", 280), ("south", 280), ("new", 9)):
        with (page.place / f"{name}-labels.csv").open(encoding="utf-8") as file:
            labels = list(csv.DictReader(file))
        assert len(labels) == n_rows
        assert {row["cluster"] for row in labels} == {"0", "1"}
        assert labels[0]["patient_id"].startswith(name)
    for name in ("north", "south"):
        other = "south" if name == "north" else "north"
        said = page.said(f"--token-file {name}.token --data")
        assert f"With two sites, {other} can subtract its own part" in said
        assert f"each row's cluster: {name}-labels.csv" in said
    # The block that the page shows.
    shown = page.block("text", "own sizes").splitlines()
    assert [line.split()[0] for line in shown] == [
        line.split()[0] for line in said.splitlines()[-len(shown) :]
    ]
