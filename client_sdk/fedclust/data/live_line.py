"""A line that shows what takes long, on a terminal or in a notebook, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from html import escape
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from fedclust.schema.display import cut

if TYPE_CHECKING:
    from rich.console import Console

#: Seconds after which work is shown.
SLOW_S = 2.0
#: Set to 0, no work in Python is shown.
VARIABLE = "FEDCLUST_PROGRESS"
#: Columns of the bar, and the least width of a terminal that shows it.
_BAR, _BAR_FROM = 10, 60
#: Seconds between two updates of a notebook.
_EVERY_S = 0.5
#: Texts of a line, the most important first.
Parts: TypeAlias = Callable[[], list[str]]


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rows_read(source: str, done: int, total: int | None) -> str:
    """Return how far a source has been read."""
    of_all = "" if total in (None, done) else f" of {total:,}"
    return f"{cut(source, 60)}: {done:,}{of_all} rows read"


def terminal_line(parts: Parts, console: Console) -> _TerminalLine | None:
    """Return a line on a terminal; None where a line cannot be drawn again."""
    # FORCE_COLOR does not make a pipe a terminal, and TERM=dumb cannot redraw a line.
    if not console.file.isatty() or not console.is_terminal or console.is_dumb_terminal:
        return None
    return _TerminalLine(parts, console)


class _TerminalLine:
    """A line that is drawn again and again, so that a clock in it runs.

    ``start`` shows it if it is not shown, ``stop`` removes it until it is started again, and
    ``refresh`` draws it now.
    """

    def __init__(self, parts: Parts, console: Console) -> None:
        from rich.cells import cell_len
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn
        from rich.text import Text

        def fitting() -> str:
            """Return as many parts as fit on the terminal."""
            room = console.width - (_BAR + 4 if console.width >= _BAR_FROM else 3)
            text, *more = parts()
            for part in more:
                if cell_len(text + part) > room:
                    break
                text += part
            return text

        class LiveText(ProgressColumn):
            def render(self, task: Any) -> Text:  # noqa: ARG002  # the signature is rich's
                return Text(fitting(), no_wrap=True, overflow="crop")

        # "line" is ASCII, which every terminal can show.
        columns: list[ProgressColumn] = [SpinnerColumn("line"), LiveText()]
        if console.width >= _BAR_FROM:
            columns.append(BarColumn(_BAR))
        self._bar = Progress(*columns, console=console, transient=True, refresh_per_second=4)
        self._task = self._bar.add_task("", total=None)
        self.start, self.stop, self.refresh = self._bar.start, self._bar.stop, self._bar.refresh

    def update(self, done: int, total: int | None) -> None:
        """Set how far the bar is; without ``total`` it has no end."""
        self._bar.update(self._task, completed=done, total=total)


class _NotebookLine:
    """The same as a display of IPython that is updated; it needs no widgets."""

    def __init__(self, parts: Parts, display: Callable[..., Any]) -> None:
        self._parts, self._display = parts, display
        self._done = 0
        self._total: int | None = None
        self._place = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._ended.clear()
            # The kernel finds the cell that a thread writes to by the context.
            context = contextvars.copy_context()
            self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
            self.refresh()
            self._thread.start()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            thread.join()
            self._show("", "")

    def update(self, done: int, total: int | None) -> None:
        self._done, self._total = done, total

    def refresh(self) -> None:
        text = "".join(self._parts())
        bar = "" if not self._total else f'<progress value="{self._done}" max="{self._total}">'
        self._show(text, f"<div>{bar}{'</progress> ' if bar else ''}{escape(text)}</div>")

    def _show(self, text: str, html: str) -> None:
        again = {"update": True} if self._place else {}
        self._place = self._place or uuid.uuid4().hex
        shown = {"text/plain": text, "text/html": html}
        self._display(shown, raw=True, display_id=self._place, **again)

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.refresh()


class SlowWork:
    """Shows work in Python once it has taken two seconds.

    It is shown on a terminal and in a notebook: not in pipes, not in other processes and threads
    than the main ones, and not where FEDCLUST_PROGRESS is 0.

    Parameters
    ----------
    what : str
        What is being done, until :meth:`say` says more.
    shown : bool
        Whether to show anything.
    monotonic, timer : callable
        The clock, and what calls after some seconds; for tests.
    """

    def __init__(
        self,
        what: str = "",
        *,
        shown: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        timer: Callable[..., Any] = threading.Timer,
    ) -> None:
        self._what, self._monotonic, self._new_timer = what, monotonic, timer
        self._shown = shown and _is_watched()
        self._began = monotonic()
        self._bar: tuple[int, int | None] = (0, None)
        self._timer: Any = None
        self._line: _TerminalLine | _NotebookLine | None = None
        self._active, self._lock = False, threading.Lock()

    def __enter__(self) -> Self:
        self._began = self._monotonic()
        if self._shown:
            self._active = True
            context = contextvars.copy_context()
            self._timer = self._new_timer(SLOW_S, context.run, (self._show,))
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._active = False
            if self._line is not None:
                self._line.stop()

    def say(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Say what is being done now, and how much of it is done."""
        self._what = what
        self.advance(done, total)

    def advance(self, done: int, total: int | None) -> None:
        """Set how far the bar is."""
        self._bar = done, total
        if self._line is not None:
            self._line.update(done, total)

    def read(self, source: str, done: int, total: int | None) -> None:
        """Say how far a source is read: see :class:`fedclust.data.Dataset`."""
        self.say(rows_read(source, done, total), done, total)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Show nothing while a person is asked."""
        with self._lock:
            was, self._active = self._active, False
            if self._line is not None:
                self._line.stop()
        yield
        with self._lock:
            self._active = was
        if was and self._monotonic() - self._began >= SLOW_S:
            self._show()

    def parts(self) -> list[str]:
        """Return the texts of the line, the most important first."""
        return [self._what, f", {duration(self._monotonic() - self._began)}"]

    def _show(self) -> None:
        with self._lock:
            if not self._active:
                return
            self._line = self._line or _open_line(self.parts)
            if self._line is not None:
                self._line.update(*self._bar)
                self._line.start()


def _is_watched() -> bool:
    if os.environ.get(VARIABLE) == "0" or current_process().name != "MainProcess":
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    return _kernel() is not None or (sys.stderr is not None and sys.stderr.isatty())


def _kernel() -> Any:
    """Return the kernel of a notebook; None elsewhere. IPython is not imported for it."""
    shell = sys.modules.get("IPython")
    return None if shell is None else getattr(shell.get_ipython(), "kernel", None)


def _open_line(parts: Parts) -> _TerminalLine | _NotebookLine | None:
    if _kernel() is not None:
        return _NotebookLine(parts, importlib.import_module("IPython.display").display)
    from rich.console import Console

    return terminal_line(parts, Console(stderr=True, highlight=False, soft_wrap=True))
