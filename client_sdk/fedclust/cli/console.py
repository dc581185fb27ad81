"""What commands print. Received text is never interpreted as markup."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NoReturn

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from fedclust import site
from fedclust.data import DataWarning
from fedclust.data.live_line import terminal_line
from fedclust.schema.display import aligned, as_table, row_of
from fedclust.site import Preview
from fedclust.site.approvals import APPROVAL, REVIEW, WITHDRAWAL, Approval
from fedclust.site.consent import ConsentRequest
from fedclust.site.progress import ProgressText
from fedclust.site.terminal import WIDEST, confirmed, consent_question, consent_text, printable
from fedclust.wire import codec, errors
from fedclust.wire.submissions import BINARY

#: Whether the command that runs prints JSON for a script.
JSON: ContextVar[bool] = ContextVar("JSON", default=False)
#: Standard error. A failure to write there (no reader, a full disk) is ignored.
err = Console(stderr=True, highlight=False, soft_wrap=True)
#: Standard output. The command ends when its reader closes the pipe (``| head``).
out = Console(highlight=False, soft_wrap=True)


def _end_quietly() -> NoReturn:
    _forget_output()
    raise SystemExit(0)


def _forget_output() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_out(content: str | bytes) -> None:
    """Write to standard output without any change."""
    try:
        if isinstance(content, str):
            out.file.write(content)
        else:
            sys.stdout.buffer.write(content)
    except BrokenPipeError:
        _end_quietly()


def flush_out() -> None:
    """Flush standard output; OSError for a full disk."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _end_quietly()
    except OSError:
        # Otherwise Python would flush again at exit and print its own message.
        _forget_output()
        raise


def show(console: Console, text: object = "", style: str | None = None) -> None:
    """Print text, with the style only on a terminal."""
    if console.is_terminal:
        console.print(Text(printable(text), style=style or ""))
    elif console is out:
        write_out(printable(text) + "\n")
    else:
        with contextlib.suppress(OSError):
            console.file.write(printable(text) + "\n")
            console.file.flush()


def show_table(
    headings: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    right: int | None = None,
    none: str = "",
) -> None:
    """Print rows under headings, a line each; nothing is cut or folded, and None is an empty cell.

    Columns from ``right`` on are aligned to the right. Without rows, standard error says ``none``.
    """
    lines = [
        ["" if cell is None else printable(cell).replace("\n", " ") for cell in cells]
        for cells in (headings, *rows)
    ]
    for number, line in enumerate(aligned(lines, right)):
        show(out, line, None if number else "bold")
    if len(lines) == 1 and none:
        show(err, none)


def show_records(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows that name their columns, without columns that hold nothing."""
    names, cells = as_table(rows)
    show_table([name.replace("_", " ") for name in names], cells)


def show_list(
    found: Sequence[Any], none: str, row: Callable[[Any], Mapping[str, object]] = row_of
) -> None:
    """Print what a command lists: a row for each, or JSON for a script."""
    if JSON.get():
        print_json(found)
    elif found:
        show_records([row(each) for each in found])
    else:
        show(err, none)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print a name and a value a line; those that are None or empty are left out."""
    for name, value in facts.items():
        if value not in (None, "", [], ()):
            show(out, f"{name.replace('_', ' '):<16} {printable(value)}")


def conclude(said: str, value: Any) -> None:
    """Say what was done on standard error, or print a value as JSON for a script."""
    if JSON.get():
        print_json(value)
    else:
        show(err, said)


def agreed(yes: bool, question: str) -> bool:
    """Return whether a person agrees, with ``--yes`` or when asked; say so if nothing is done."""
    if yes or confirmed(question, "--yes"):
        return True
    show(err, "nothing was changed")
    return False


def consented(
    request: ConsentRequest, approval: Approval | None, question: str, *, full: bool, yes: bool
) -> bool:
    """Show the consent screen; return whether there is an approval, ``--yes`` or a person's yes."""
    consent_screen(request, approval, full=full)
    asked = consent_question(request, question)
    return approval is not None or yes or confirmed(asked, "--yes")


def consent_screen(
    request: ConsentRequest, approval: Approval | None = None, *, full: bool = False
) -> None:
    """Show the consent screen, with ``full`` every field that leaves, and who approved it."""
    width = err.width - 1 if err.is_terminal else WIDEST
    hint = "" if full else "Show every field that leaves: --full"
    show(err, consent_text(request, width, full=full, hint=hint))
    if approval is not None:
        show(err, f"approved by {approval.approved_by} at {approval.time}, code {approval.code}")


#: Left out of lines about tables: the first two tell people nothing, the others are shown before.
_HASHES = frozenset({"key", "definition_sha256"})
_HIDDEN = _HASHES | {"event", "table", "table_id", "time", "line", "previous", "what", "change"}
_HIDDEN |= {"random"}
#: Lines about approvals: what is said first, and the key of what follows.
_EVENTS = {
    REVIEW: ("reviewed, page", "page_sha256"),
    APPROVAL: ("approved by", "approved_by"),
    WITHDRAWAL: ("approval withdrawn by", "withdrawn_by"),
}


def ledger_screen(line: dict[str, Any]) -> None:
    """Show a line of the ledger."""
    event = line.get("event")
    if event in _EVENTS:
        words, key = _EVENTS[event]
        account = f" (account {line['account']})" if "account" in line else ""
        head = f"{line.get('session')} {words} {line.get(key)}{account}"
        more = [f"code {line.get('code')}", f"definition {line.get('definition_sha256')}"]
    elif event is not None:
        head = f"table {line.get('table') or line.get('table_id')}"
        shown = (f"{n} {_flat(line[n])}" for n in sorted(line.keys() - _HIDDEN) if line[n])
        more = [f"{line.get('what') or event}: {', '.join(shown)}"]
    else:
        receipt = line.get("receipt") or {}
        outcome = f"received {receipt.get('received_at')}" if receipt else "in flight"
        if line.get("refused"):
            outcome = f"refused: {line['refused']}"
        fields = ", ".join(f"{name} {shape}" for name, shape in line.get("fields", {}).items())
        head = f"{line.get('session')} round {line.get('round')} ({line.get('phase')}), "
        head += f"{line.get('size')} bytes"
        counts = f"smallest count {line.get('smallest_count')}"
        more = [f"SHA-256 {line.get('sha256')}", f"{fields or 'empty'}; {counts}; {outcome}"]
    show(out, f"{line.get('line', '-')}  {line.get('time')}  {head}", "bold")
    for text in more:
        show(out, f"     {text}")


def _flat(value: Any) -> object:
    """Return a value of a line without brackets."""
    if isinstance(value, dict):
        return " ".join(f"{n} {_flat(each)}" for n, each in value.items() if n not in _HASHES)
    return " and ".join(str(_flat(each)) for each in value) if isinstance(value, list) else value


def preview_screen(preview: Preview) -> None:
    """Show a submission: a summary, its contents as JSON, its exact bytes."""
    if preview.round is None:
        show(err, preview.note)
        return
    show(err, f"round {preview.round}, phase {preview.phase}: {preview.media}", "bold")
    if preview.body is not None:
        show(err, f"  {len(preview.body)} bytes, SHA-256 {codec.sha256(preview.body)}")
        if preview.smallest_count is not None:
            show(err, f"  smallest count: {preview.smallest_count}")
    for name, shape in (preview.fields or {}).items():
        show(err, f"  {name}: {shape}")
    if preview.note:
        show(err, f"  {preview.note}")
    if preview.body is None:
        return
    if preview.media != BINARY:
        write_out(preview.body.decode() + "\n")
        return
    show(err, "contents")
    write_out(codec.to_json(codec.decode(preview.body)).decode() + "\n")
    show(err, "exact bytes")
    for start in range(0, len(preview.body), 32):
        write_out(f"{start:08x}  {preview.body[start : start + 32].hex(' ')}\n")


def timestamp(time: datetime | None = None) -> str:
    """Return a time in UTC, by default the present one, as at the beginning of a line."""
    return f"{time or datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


class Retries(logging.Handler):
    """Show repeated requests, each at most every ten minutes."""

    _QUIET_S = 600.0

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.INFO)
        self._monotonic = monotonic
        self._shown: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        what, now = text.rpartition(";")[0], self._monotonic()
        # Drop old entries: a session of weeks requests many addresses.
        self._shown = {k: at for k, at in self._shown.items() if now - at < self._QUIET_S}
        if what not in self._shown:
            self._shown[what] = now
            show(err, text)


def tell_retries() -> None:
    """Show when a request is repeated, so that people see why a command waits."""
    log = logging.getLogger("fedclust.http")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, Retries) for handler in log.handlers):
        log.addHandler(Retries())


def tell_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show a warning about data in one line; warnings of libraries are not shown."""
    if issubclass(category, DataWarning):
        show(err, f"warning: {message}")


class ProgressLine:
    """Show the progress of a session: one live line on a terminal, else a line for each event.

    The reading of a source is shown only on a terminal, and only when it takes a while.
    ``at_once``: whether to show "connecting" from the beginning.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, *, at_once: bool = True
    ) -> None:
        self._text = ProgressText(monotonic)
        self._said, self._at_once = "", at_once
        self._bar = terminal_line(self._text.parts, err)

    def __enter__(self) -> ProgressLine:
        if self._bar is not None and self._at_once:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Stop the line while a question is asked; the next event shows it again."""
        if self._bar is not None:
            self._bar.stop()

    def tell(self, event: site.Progress) -> None:
        """Show what has just happened."""
        self._text.tell(event)
        if self._bar is not None:
            self._bar.start()
            self._bar.update(event.answered or 0, event.addressed or None)
            return
        said, *more = self._text.parts()
        if said != self._said:
            show(err, f"{timestamp()} {said}{''.join(more)}")
        self._said = said

    def read(self, source: str, done: int, total: int | None) -> None:
        """Show how many rows of a source were read: see :class:`fedclust.data.Dataset`."""
        if self._bar is not None and self._text.read(source, done, total):
            self._bar.start()
            self._bar.update(done, total)


def print_json(value: Any) -> None:
    """Print one line of JSON for a script."""
    write_out(json.dumps(value, allow_nan=False, default=_plain_json) + "\n")


def _plain_json(value: object) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else vars(value)


def read_line(question: str, what: str) -> str:
    """Return a line that a person types, or the only line of standard input.

    UsageError if there is none, or if there are several.
    """
    lines: list[str] = []
    if sys.stdin is not None and sys.stdin.isatty():
        show(err, question)
        lines = [sys.stdin.readline()]
    elif sys.stdin is not None:
        lines = sys.stdin.read().splitlines()
    given = [line.strip() for line in lines if line.strip()]
    if len(given) != 1:
        raise errors.UsageError(f"give {what} on standard input, on one line, not {len(given)}")
    return given[0]
