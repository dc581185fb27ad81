"""A process that dies while it writes to a site's state, and the files that it leaves."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from fedclust import durable_files
from fedclust.site.state import SiteState

_WRITES = ("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE", "COMMIT")


class Death(BaseException):
    """Nothing may catch this and carry on."""


class _Connection(sqlite3.Connection):
    """Tells ``tick`` before and after each statement that writes."""

    def __init__(self, *args: Any, tick: Callable[[], None], **named: Any) -> None:
        super().__init__(*args, **named)
        self._tick = tick

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        writes = statement.startswith(_WRITES)
        if writes:
            self._tick()
        done = super().execute(statement, *values)
        if writes:
            self._tick()
        return done


@contextmanager
def ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Call ``tick`` before and after each write to a state, and each sync of a file."""

    def sync(_descriptor: int) -> None:
        tick()
        tick()

    connect = partial(sqlite3.connect, factory=partial(_Connection, tick=tick))
    with (
        mock.patch.object(durable_files, "sync", sync),
        mock.patch("fedclust.site.state.sqlite3.connect", connect),
    ):
        yield


def each_moment(copies: Path, state: SiteState, write: Callable[[], object]) -> Iterator[Path]:
    """Yield the directory of a state as kill -9 leaves it, for each moment of ``write``."""
    found: list[Path] = []

    def tick() -> None:
        copy = copies / str(len(found))
        if state.directory.exists():
            shutil.copytree(state.directory, copy)
        found.append(copy)

    with ticking(tick):
        write()
    assert len(found) > 4, "no moment was seen"
    yield from found
