"""A page of the documentation whose examples are run: its directory, terminals and coordinator."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from docs.terminal import Terminal, commands, fits, transcript
from fedclust.client import Client
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.processes import clean_environment
from support.shell_commands import shell_commands

#: What pages call the coordinator; in an example the address of a temporary one takes their place.
ADDRESSES = ("https://coordinator.example", "http://127.0.0.1:8400")
#: Commands that ask somebody for consent.
_ASKS = re.compile(r"\bfedclust (participate|agent add)\b(?!.*--yes)", re.DOTALL)

#: Absolute paths in a command, and programs whose effects leave the page's directory.
_PATHS = re.compile(r"(?:^|[\s=\"'(:@<>])(/[^\s\"')/:]+/[^\s\"'):]*)")
_REACHING = re.compile(r"\b(?:sudo|systemctl|docker|apt|pip|make|git)\b(?= )")


class Person(io.StringIO):
    """A terminal with somebody who always says yes."""

    def isatty(self) -> bool:
        return True

    def readline(self, *_: Any) -> str:
        return "yes\n"


class Page:
    """What the examples of one page share.

    Attributes
    ----------
    place : Path
        The directory that they run in.
    names : dict
        The namespace of the page's Python.
    env : dict
        The environment of its commands.
    address : str or None
        Of the coordinator; None: the temporary one, which starts when an example needs it.
    """

    def __init__(self, title: str, place: Path, stack: ExitStack) -> None:
        self.title = title
        self.place = place / "here"
        self._outside = place
        self._stack = stack
        self.names: dict[str, Any] = {}
        self.address: str | None = None
        self._replaced: dict[str, str] = {}
        self._before: list[tuple[str, Callable[[], object]]] = []
        self._elsewhere: list[str] = []
        self._files: dict[str, str] = {}
        self.place.mkdir()
        (place / "home").mkdir()
        self.env = clean_environment({"HOME": str(place / "home"), "COLUMNS": "100"})
        for name in [name for name in self.env if name.startswith("XDG_")]:
            del self.env[name]

    # --- for the set-up of a page -----------------------------------------------------------------

    @cached_property
    def coordinator(self) -> LocalCoordinator:
        """A temporary coordinator, with driver and sweeper."""
        return self._stack.enter_context(local_coordinator(self._outside, threads=True))

    @property
    def url(self) -> str:
        """The coordinator's address."""
        return self.address or self.coordinator.base_url

    @cached_property
    def operator(self) -> Client:
        """A client with the operator's token."""
        return self._stack.enter_context(Client(self.url, self.coordinator.operator_token))

    def register(self, kind: Any, name: str, file: str | None = None) -> str:
        """Register a site or an analyst, and return a token; a file of this name gets it too."""
        self.operator.add(kind, name)
        token = self.operator.issue_token(kind, name).token
        if file is not None:
            self.save_token(token, file)
        return token

    def save_token(self, token: str, file: str) -> None:
        """Write a token to a file that only this account can read."""
        path = self.place / file
        path.write_text(f"{token}\n", "utf-8")
        path.chmod(0o600)

    def folder(self, name: str) -> Path:
        """Make a directory outside ``place`` that takes the place of ``name`` in examples."""
        path = self._outside / name.strip("/").replace("/", "-")
        path.mkdir()
        self.replace(name, str(path))
        return path

    def replace(self, text: str, other: str) -> None:
        """Let another text take the place of one, in Python and in commands."""
        self._replaced[text] = other

    def before(self, text: str, action: Callable[[], object]) -> None:
        """Do something once, before the first command or Python example that contains a text."""
        self._before.append((text, action))

    def file(self, name: str, text: str) -> None:
        """Write the block that contains a text to a file, as the page asks its reader to."""
        self._files[text] = name

    def in_another_terminal(self, text: str) -> None:
        """Start commands that contain a text, and go on; they have ended when the page has."""
        self._elsewhere.append(text)

    @cached_property
    def terminal(self) -> Terminal:
        """The terminal of the page."""
        folder = self._stack.enter_context(shell_commands(self._outside / "commands"))
        path = [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
        env = {**self.env, "PATH": os.pathsep.join(path)}
        terminal = Terminal(self._outside / "steps", self.place, env)
        self._stack.callback(terminal.close)
        return terminal

    # --- for the examples -------------------------------------------------------------------------

    def adapted(self, text: str) -> str:
        """Return an example as it can run here."""
        for mark, action in [each for each in self._before if each[0] in text]:
            self._before.remove((mark, action))
            action()
        for address in ADDRESSES:
            if address in text:
                text = text.replace(address, self.url)
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    def is_file(self, block: str) -> bool:
        """Whether a block of the page is a file; writes it then."""
        for text in [each for each in self._files if each in block]:
            path = self.place / self._files.pop(text)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block, "utf-8")
            return True
        return False

    def run_script(self, script: str, line: int) -> None:
        """Run the commands of a script, each of which has to succeed."""
        for number, command in commands(script):
            with self._place(line + number):
                elsewhere = any(each in command for each in self._elsewhere)
                here = self._command(command)
                (self.terminal.start if elsewhere else self.terminal.run)(here)

    def run_transcript(self, text: str, line: int) -> None:
        """Run the commands of a transcript, and compare what they print."""
        for number, command, expected in transcript(text):
            with self._place(line + number):
                actual, succeeded = self.terminal.show(self._command(command))
                assert fits(expected, actual), f"$ {command}\n{actual}\nand not\n{expected}"
                assert succeeded or expected, f"$ {command}\n{actual}"

    def finish(self) -> None:
        """Wait for commands in other terminals; AssertionError for set-up that nothing needed."""
        if "terminal" in vars(self):
            self.terminal.wait()
        unused = [*(text for text, _ in self._before), *self._files]
        assert not unused, f"no example of {self.title} contains {unused}"

    def _command(self, command: str) -> str:
        """Return a command as it can run here; AssertionError if it would change this machine."""
        here = _ASKS.sub(r"fedclust \1 --yes", self.adapted(command))
        inside = (str(self._outside), "/dev/")
        outside = [path for path in _PATHS.findall(here) if not path.startswith(inside)]
        assert not outside, f"{outside} are not the page's: see `Page.folder`, or skip this"
        reaching = _REACHING.findall(here)
        assert not reaching, f"{reaching} change this machine: skip this"
        return here

    @contextmanager
    def _place(self, line: int) -> Iterator[None]:
        """Say in an error at which line of the page it is."""
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{self.title}:{line}: {error}") from None


@contextmanager
def opened(title: str, place: Path, patch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Prepare a page; this process is in its directory and environment for the ``with`` block."""
    with ExitStack() as stack:
        page = Page(title, place, stack)
        patch.chdir(page.place)
        for name in set(os.environ) - page.env.keys():
            patch.delenv(name)
        for name, value in page.env.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", Person())
        patch.setattr(sys, "stderr", Person())
        yield page
