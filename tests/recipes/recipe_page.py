"""A page of docs/recipes: its files, its commands, and the persons that its table describes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust.data.persons import read_persons
from fedclust.schema.feature import Feature
from fedclust.site import data_source
from support.command_line import CommandLine

PAGES = Path(__file__).parents[2] / "docs" / "recipes"
NAMES = ("age", "female", "creatinine", "hba1c", "diabetes")


def block(page: str, language: str, containing: str = "") -> str:
    """Return the only code block of a page in a language that contains a text."""
    text = (PAGES / page).read_text("utf-8")
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (only,) = [each for each in found if containing in each]
    return str(only)


class Recipe(CommandLine):
    """Follows a page in the current directory, which has the study's ``kidney.json``."""

    def __init__(
        self, page: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__(patch, capsys)
        self.page, self.facts = page, {}
        Path("kidney.json").write_text(block("README.md", "json"), "utf-8")

    def save(self, name: str, language: str, containing: str = "") -> None:
        """Write a code block of the page to a file."""
        Path(name).write_text(block(self.page, language, containing), "utf-8")

    def follow(self) -> None:
        """Run the commands at the end of the page; AssertionError where one fails."""
        script = block(self.page, "sh")
        for line in script.splitlines():
            words = shlex.split(line)
            if words[0] == "python":
                done = subprocess.run(
                    [sys.executable, *words[1:]], capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, done.stderr
                self.out = done.stdout
        said = self.out
        self.run_script(script)
        assert "all 5 features" in self.out
        assert self.run("check", *shlex.split(script.splitlines()[-1])[2:], "--json") == 0
        self.facts, self.out = json.loads(self.out), said
        assert self.facts["refused"] is None
        assert min(column["n"] for column in self.facts["columns"]) > 10, self.facts


def persons(name: str) -> dict[str, list[float]]:
    """Return the values of each person in a registered source, in its own units and codes.

    Yes/no values are 0 and 1, whatever their codes are.
    """
    source = data_source(name)
    features = [Feature(**each) for each in json.loads(block("README.md", "json"))["features"]]
    person, id_column = source.row_options["person"], source.row_options["id_column"]
    found = read_persons(source.rows(), features, person=person, id_column=id_column)
    (whole,) = found.blocks()
    values: dict[str, Any] = {}
    for reading, column in zip(found.readings, whole.sources, strict=True):
        own = column.values
        codes = found.columns[len(values)].codes
        if codes is not None:
            meanings = [reading.meaning(code) for code in codes]
            own = [np.nan if np.isnan(k) else meanings[int(k)] for k in own]
        values[reading.feature.name] = own
    return {
        key: [float("nan") if v is None else float(v) for v in row]
        for key, row in zip(whole.keys, zip(*values.values(), strict=True), strict=True)
    }
