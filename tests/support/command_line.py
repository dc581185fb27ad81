"""The command ``fedclust``, run in the test's process without a coordinator."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from fedclust.cli import main as cli
from fedclust.cli.options import Connection

if TYPE_CHECKING:
    from support.fake_coordinator import FakeCoordinator


class Terminal(io.StringIO):
    """A terminal: somebody looks at it, or types what it holds."""

    def isatty(self) -> bool:
        return True


class CommandLine:
    """Runs ``fedclust``; ``out`` and ``err`` are what the last run printed."""

    def __init__(
        self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path = Path()
    ) -> None:
        self._patch, self._capsys, self.place = patch, capsys, place
        self.out = self.err = ""
        self.open()

    def open(self) -> None:
        """Prepare what a kind of command line has before its first command."""

    def reach(self, fake: FakeCoordinator, directory: Path) -> None:
        """Let commands reach this coordinator as its site, which keeps its state there."""

        def site(_connection: Connection, _patience: float = 0.0, **options: Any) -> Any:
            return fake.site(directory, **options)

        self._patch.setattr(Connection, "site", site)
        self._patch.setattr(Connection, "client", lambda *_, **__: fake.site(directory)._client)

    @property
    def said(self) -> str:
        """Return all that the last run printed, in one line."""
        return " ".join((self.out + self.err).split())

    def run(self, *arguments: str) -> int:
        """Return the exit code."""
        self._patch.setattr(sys, "argv", ["fedclust", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        self.out, self.err = self._capsys.readouterr()
        return int(ended.value.code or 0)

    def ran(self, *arguments: str, code: int = 0, **how: Any) -> Self:
        """Return itself, with what a command printed that ended with this exit code."""
        assert self.run(*arguments, **how) == code, self.err
        return self

    def run_script(self, script: str) -> None:
        """Run the lines of a page that call ``fedclust``; AssertionError where one fails."""
        for line in script.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["fedclust"]:
                assert self.run(*words[1:]) == 0, f"{line}: {self.err}"


def at_desk(kind: type[CommandLine]) -> Any:
    """Return a fixture: this kind of command line, in the test's folder."""

    @pytest.fixture
    def desk(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> CommandLine:
        return kind(monkeypatch, capsys, tmp_path)

    return desk
