"""A process that changes a store until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path


def main(directory: Path) -> None:
    """Let newcomers come, ten at a time."""
    from test_cohorts import Hospital, mixed

    hospital, people = Hospital(directory), mixed(80)
    for turn in range(10_000):
        people |= mixed(10, 1_000 + 10 * turn)
        hospital.update(people)
        sys.stdout.write("written\n")
        sys.stdout.flush()
