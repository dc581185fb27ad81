"""Processes that change groups: one until it is killed, one together with others."""

from __future__ import annotations

import contextlib
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


def begin(directory: Path) -> None:
    """Form groups when the others are ready, and print the table."""
    from test_cohorts import Hospital, mixed

    from fedclust.site.cohorts import Overtaken

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    while True:
        with contextlib.suppress(Overtaken):
            sys.stdout.write(Hospital(directory).update(mixed(80)).table_id)
            return
