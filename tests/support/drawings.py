"""A figure that is kept in the repository, compared with what the code draws today."""

from __future__ import annotations

import re

from diagrams import FIGURES

#: In pixels: on another processor the last digit of a drawn result may differ.
TOLERANCE = 0.3
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def check_current(name: str, drawn: str) -> None:
    """AssertionError if the kept figure of a name is not what was drawn."""
    kept = (FIGURES / f"{name}.svg").read_text("utf-8").rstrip("\n")
    assert _NUMBER.sub("0", drawn) == _NUMBER.sub("0", kept), "run `make docs`"
    pairs = zip(_NUMBER.findall(drawn), _NUMBER.findall(kept), strict=True)
    assert all(abs(float(new) - float(old)) <= TOLERANCE for new, old in pairs), "run `make docs`"
