"""The command ``fedclust``, run in the test's process without a coordinator."""

from __future__ import annotations

import io
import shlex
import sys

import pytest

from fedclust.cli import main as cli


class Terminal(io.StringIO):
    """A terminal: somebody looks at it, or types what it holds."""

    def isatty(self) -> bool:
        return True


class CommandLine:
    """Runs ``fedclust``; ``out`` and ``err`` are what the last run printed."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = patch, capsys
        self.out = self.err = ""

    def run(self, *arguments: str) -> int:
        """Return the exit code."""
        self._patch.setattr(sys, "argv", ["fedclust", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        self.out, self.err = self._capsys.readouterr()
        return int(ended.value.code or 0)

    def run_script(self, script: str) -> None:
        """Run the lines of a page that call ``fedclust``; AssertionError where one fails."""
        for line in script.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["fedclust"]:
                assert self.run(*words[1:]) == 0, f"{line}: {self.err}"
