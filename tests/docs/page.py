"""A page of the documentation whose examples are run: its directory, terminals and coordinator."""

import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from docs.terminal import Terminal, commands, fits, transcript
from fedclust.client import Client
from support import command_line
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.processes import clean_environment
from support.server import lasting_port
from support.shell_commands import shell_commands
from support.timeouts import TIMEOUT_S, eventually

#: What pages call the coordinator; in an example the address of a temporary one takes their place.
ADDRESSES = ("https://coordinator.example", "http://127.0.0.1:8400")
#: Commands that ask somebody for consent.
_ASKS = re.compile(r"\bfedclust (participate|agent add)\b(?!.*--yes)", re.DOTALL)

#: Absolute paths in a command, and programs whose effects leave the page's directory.
_PATHS = re.compile(r"(?:^|[\s=\"'(:@<>])(/[^\s\"')/:]+/[^\s\"'):]*)")
_REACHING = re.compile(r"\b(?:sudo|systemctl|docker|apt|pip|make|git)\b(?= )")


class Page:
    """What the examples of one page share.

    Attributes
    ----------
    title, source : str
        Its path in the repository, and its text.
    place : Path
        The directory that they run in.
    names : dict
        The namespace of the page's Python.
    env : dict
        The environment of its commands.
    address : str or None
        Of the coordinator; None: the temporary one, which starts when an example needs it.
    """

    def __init__(self, title: str, source: str, place: Path, stack: ExitStack) -> None:
        self.title, self.source = title, source
        self.place = place / "here"
        self._outside = place
        self._stack = stack
        self.names: dict[str, Any] = {}
        self.address: str | None = None
        self._replaced: dict[str, str] = {}
        self._before: list[tuple[str, Callable[[], object]]] = []
        self._elsewhere: list[tuple[str, Callable[[], object], bool]] = []
        self._printed: list[tuple[str, Callable[[], str]]] = []
        self._threads: list[threading.Thread] = []
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

    @property
    def operator_token(self) -> str:
        """The operator's token; where the page itself serves, that of its ``operator.token``."""
        if self.address is None:
            return self.coordinator.operator_token
        return (self.place / "operator.token").read_text("ascii").strip()

    @cached_property
    def operator(self) -> Client:
        """A client with the operator's token."""
        return self._stack.enter_context(Client(self.url, self.operator_token))

    def register(self, kind: Any, name: str, file: str | None = None) -> str:
        """Register a site or an analyst, and return a token; a file of this name gets it too."""
        self.operator.add(kind, name)
        token = self.operator.issue_token(kind, name).token
        if file is not None:
            self.save_token(token, file)
        return token

    def save_token(self, token: str, file: str) -> None:
        """Write a token, or another secret, to a file that only this account can read."""
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

    def in_another_terminal(
        self, pattern: str, until: Callable[[], object] = object, ends: bool = True
    ) -> None:
        """Start the command that a pattern is found in, and go on with the page.

        Parameters
        ----------
        pattern : str
            A regular expression.
        until : callable
            Go on when this holds.
        ends : bool
            Whether the command has to end with success before the page is done.
        """
        self._elsewhere.append((pattern, until, ends))

    def serve_here(self) -> None:
        """Let ``fedclust-service serve`` in a command be the coordinator of this page."""
        port = lasting_port()
        self.address = f"http://127.0.0.1:{port}"
        self.env["FEDCLUST_PORT"] = str(port)

        def answers() -> bool:
            with suppress(httpx.TransportError):
                return httpx.get(f"{self.address}/healthz", trust_env=False).is_success
            return False

        self.in_another_terminal(r"fedclust-service serve\b", answers, ends=False)

    def block(self, language: str, text: str) -> str:
        """Return the only code block of the page in a language that contains a text."""
        pattern = rf"^( *)```{language}\n(.*?)^\1```"
        found = re.findall(pattern, self.source, re.DOTALL | re.MULTILINE)
        (only,) = [block for _, block in found if text in block]
        return textwrap.dedent(only)

    def said(self, text: str) -> str:
        """Return what the last command of the page printed that contains a text."""
        *_, read = [read for command, read in self._printed if text in command]
        return read()

    def wait_for(self, thread: threading.Thread) -> None:
        """Wait for the end of a thread when all examples have run."""
        self._threads.append(thread)

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
        """Return an example as it can run here; do what has to come before it."""
        for mark, action in [each for each in self._before if each[0] in text]:
            self._before.remove((mark, action))
            action()
        return self._with_replacements(text)

    def _with_replacements(self, text: str) -> str:
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
                here = self._command(command)
                for each in self._elsewhere:
                    if re.search(each[0], command):
                        self._elsewhere.remove(each)
                        printed = self.terminal.start(here, ends=each[2])
                        read = partial(printed.read_text, "utf-8")
                        eventually(each[1], read)
                        break
                else:
                    read = partial(str, self.terminal.run(here))
                self._printed.append((command, read))

    def run_transcript(self, text: str, line: int) -> None:
        """Run the commands of a transcript, and compare what they print."""
        for number, command, expected in transcript(text):
            with self._place(line + number):
                expected = self._with_replacements(expected)
                actual, succeeded = self.terminal.show(self._command(command))
                assert fits(expected, actual), f"$ {command}\n{actual}\nand not:\n{expected}"
                assert succeeded or expected, f"$ {command}\n{actual}"

    def finish(self) -> None:
        """Wait for what was started; AssertionError for set-up that nothing needed."""
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        if "terminal" in vars(self):
            self.terminal.wait()
        unused = [text for text, _ in self._before] + [each[0] for each in self._elsewhere]
        unused += self._files
        assert not unused, f"no example of {self.title} contains {unused}"

    def _command(self, command: str) -> str:
        """Return a command as it can run here; AssertionError if it would change this machine."""
        # Nobody answers: what asks whether to go on is told yes, and other questions are left out.
        here = _ASKS.sub(r"fedclust \1 --yes", self.adapted(command))
        asked = r"fedclust check (\S+) (.*)--ask$"
        alone = r"fedclust check \1 \2--write-mapping columns.toml\n"
        alone += r"fedclust data add \1 \2--mapping columns.toml --id-column visit "
        alone += "--person-column mrn"
        here = re.sub(asked, alone, here, flags=re.MULTILINE)
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
def opened(title: str, source: str, place: Path, patch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Prepare a page; this process is in its directory and environment for the ``with`` block."""
    with ExitStack() as stack:
        page = Page(title, source, place, stack)
        patch.chdir(page.place)
        for name in set(os.environ) - page.env.keys():
            patch.delenv(name)
        for name, value in page.env.items():
            patch.setenv(name, value)
        # Somebody says yes to each question.
        patch.setattr(sys, "stdin", command_line.Terminal("yes\n" * 100))
        patch.setattr(sys, "stderr", command_line.Terminal())
        yield page
