"""A terminal of a page: a shell that runs the page's commands one after another."""

import os
import re
import select
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from support.timeouts import TIMEOUT_S

# One shell runs all commands, so that a variable or a directory of one is there in the next. It
# ends at the first that fails.
_SHELL = """
while IFS= read -r step; do
    . "$step" >"$step.out" 2>&1 </dev/null
    echo done
done
"""


class Terminal:
    """Runs commands in a shell; AssertionError with the output where one fails."""

    def __init__(self, steps: Path, place: Path, env: Mapping[str, str]) -> None:
        steps.mkdir()
        self._steps = steps
        self._number = 0
        self._waiting: list[tuple[str, Path]] = []
        self._shell = subprocess.Popen(
            ["sh", "-ec", _SHELL],
            cwd=place,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """Run a command to its end, and return what it printed."""
        step = self._step(command)
        self._shell.stdin.write(f"{step}\n".encode())
        self._shell.stdin.flush()
        ended, _, _ = select.select([self._shell.stdout], [], [], TIMEOUT_S)
        printed = step.with_name(f"{step.name}.out").read_text("utf-8", "replace")
        assert ended, f"this does not end:\n{command}\n{printed}"
        assert self._shell.stdout.readline() == b"done\n", f"this failed:\n{command}\n{printed}"
        return printed

    def show(self, command: str) -> tuple[str, bool]:
        """Run a command that may fail; return what it printed, and whether it succeeded."""
        failed = self._steps / f"{self._number}.failed"
        printed = self.run(f"{{ {command}\n}} || : >{shlex.quote(str(failed))}")
        return printed, not failed.exists()

    def start(self, command: str, ends: bool) -> Path:
        """Start a command as in another terminal; return the file with what it prints."""
        name = f"started_{self._number}"
        printed = self._steps / f"{name}.out"
        self.run(f"{{ {command}\n}} >{shlex.quote(str(printed))} 2>&1 &\n{name}=$!")
        if ends:
            self._waiting.append((name, printed))
        return printed

    def wait(self) -> None:
        """Wait for the end of the commands that have one; AssertionError where one failed."""
        while self._waiting:
            name, printed = self._waiting.pop(0)
            _, succeeded = self.show(f'wait "${name}"')
            assert succeeded, f"a command in another terminal failed:\n{printed.read_text('utf-8')}"

    def close(self) -> None:
        """End the shell and all that it started."""
        for pipe in (self._shell.stdin, self._shell.stdout):
            pipe.close()
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(TIMEOUT_S)

    def _step(self, command: str) -> Path:
        step = self._steps / str(self._number)
        self._number += 1
        step.write_text(f"{command}\n", "utf-8")
        return step


_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


def commands(script: str) -> Iterator[tuple[int, str]]:
    """Yield each command of a script, with the number of its first line."""
    taken: list[str] = []
    end = None
    for number, line in enumerate(script.splitlines()):
        if not taken and (not line.strip() or line.lstrip().startswith("#")):
            continue
        taken.append(line)
        text = "\n".join(taken)
        if end is None and (heredoc := _HEREDOC.search(line)):
            end = heredoc[2]
        elif line == end:
            end = None
        if end is None and not line.endswith("\\") and _complete(text):
            yield number - len(taken) + 1, text
            taken = []
    assert not taken, f"this command has no end:\n{text}"


def _complete(text: str) -> bool:
    """Whether the shell can run a text as it stands."""
    if "\n" not in text and re.fullmatch(r"[\w ./:=@,*+-]+", text):
        return True
    return subprocess.run(["sh", "-nc", text], capture_output=True, check=False).returncode == 0


def transcript(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each command of a transcript, with the number of its line and the answer below it.

    Lines that continue a command begin with ``> ``, or stand in a here-document.
    """
    found: list[tuple[int, list[str], list[str]]] = []
    end = None
    for number, line in enumerate(text.splitlines()):
        if end is None and line.startswith("$ "):
            found.append((number, [line[2:]], []))
        else:
            assert found, "a transcript begins with a command: $ ..."
            continued = end is None and line.startswith("> ")
            part = found[-1][1 if continued or end is not None else 2]
            part.append(line[2:] if continued else line)
        if end is not None and line == end:
            end = None
        elif end is None and (heredoc := _HEREDOC.search(line)):
            end = heredoc[2]
    for number, command, answer in found:
        yield number, "\n".join(command), "\n".join(answer)


def fits(expected: str, actual: str) -> bool:
    """Whether an output is what a page shows; ``...`` stands for anything, blanks do not count."""
    first, *inner = ("".join(part.split()) for part in re.split(r"…|\.\.\.", expected))
    text = "".join(actual.split())
    if not inner:
        return text == first
    # Part by part: a regular expression would try all ways to divide an output that does not fit.
    *inner, last = inner
    place = len(first) if text.startswith(first) else -1
    for part in inner:
        found = text.find(part, place) if place >= 0 else -1
        place = found + len(part) if found >= 0 else -1
    return 0 <= place <= len(text) - len(last) and text.endswith(last)
