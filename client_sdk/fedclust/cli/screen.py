"""What the commands show to people. Plain text: nothing that was received is read as markup."""

from __future__ import annotations

import json
import logging
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from fedclust import errors, site
from fedclust.algorithms.base import Feature
from fedclust.consent import ConsentRequest
from fedclust.site import Preview
from fedclust.wire import codec
from fedclust.wire.submissions import BINARY

err = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False, soft_wrap=True)


def plain(text: object) -> str:
    """Return text without control characters, which could rewrite what a terminal shows."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))


def show(console: Console, text: object = "", style: str | None = None) -> None:
    """Print text as it is."""
    console.print(Text(plain(text), style=style or ""))


def table(*headings: str) -> tuple[Table, Callable[..., None]]:
    """Return a table and the function that adds a row of plain cells to it."""
    grid = Table(*headings, box=None, header_style="bold", pad_edge=False)

    def add(*cells: object) -> None:
        grid.add_row(*(Text("" if cell is None else plain(cell)) for cell in cells))

    return grid, add


def consent_screen(request: ConsentRequest) -> None:
    """Show all that consent is asked for."""
    definition, method = request.definition, request.plan.method
    policy = definition.policy
    show(err, f"Session {request.session}", "bold")
    lines = {
        "coordinator": request.coordinator,
        "this site": request.site,
        "defined by": request.analyst,
        "definition": f"SHA-256 {request.definition_sha256}",
        "method": f"{definition.algorithm} version {method.version}: {method.title}",
        "options": json.dumps(definition.config, sort_keys=True),
        "features": ", ".join(map(_feature, definition.features)),
        "sites": ", ".join(definition.sites),
        "smallest count": f"{request.p} persons (session {policy.min_cluster_size})",
        "guard": "differencing guard " + ("off" if request.differencing_off else "on"),
        "rows here": f"{request.rows} usable (joining declares the band {request.size_band})",
        "needs": f"{policy.min_sites} sites at least in every round",
        "policy": json.dumps(policy.model_dump(), sort_keys=True),
        "seed": str(definition.seed),
    }
    for name, value in lines.items():
        show(err, _wrapped(value, f"  {name:<16}", " " * 18))
    show(err, "\nWhat leaves this site", "bold")
    for phase in request.phases:
        show(err, _wrapped(f"{phase.name}: {phase.summary}", "  ", "    "))
        for line in phase.discloses:
            show(err, _wrapped(f"{line.field}, {line.shape}: {line.meaning}", "    - ", "      "))
            show(err, _wrapped(f"Can identify: {line.identifies}", "      ", "      "))
    show(err, "\nWhat protects the rows, and what remains possible", "bold")
    for note in request.notes:
        show(err, _wrapped(note, "  - ", "    "))
    show(err)


def _feature(feature: Feature) -> str:
    text = feature.name + (f" [{feature.unit}]" if feature.unit else "")
    if feature.lower is not None or feature.upper is not None:
        low = "" if feature.lower is None else f"{feature.lower:g}"
        text += f" {low}..{'' if feature.upper is None else f'{feature.upper:g}'}"
    return text if feature.kind == "numeric" else f"{text} ({feature.kind})"


def ledger_screen(line: dict[str, Any]) -> None:
    """Show a line of the ledger."""
    receipt = line.get("receipt") or {}
    outcome = f"received {receipt.get('received_at')}" if receipt else "in flight"
    if line.get("refused"):
        outcome = f"refused: {line['refused']}"
    fields = ", ".join(f"{name} {shape}" for name, shape in line.get("fields", {}).items())
    head = f"{line.get('line', '-')}  {line.get('time')}  {line.get('session')} round "
    head += f"{line.get('round')} ({line.get('phase')}), {line.get('size')} bytes"
    show(out, head, "bold")
    show(out, f"     SHA-256 {line.get('sha256')}")
    show(out, f"     {fields or 'empty'}; smallest count {line.get('smallest_count')}; {outcome}")


def preview_screen(preview: Preview) -> None:
    """Show a submission: what it is, its contents readable, its exact bytes."""
    if preview.body is None:
        show(err, preview.note)
        return
    show(err, f"round {preview.round}, phase {preview.phase}: {preview.media}", "bold")
    show(err, f"  {len(preview.body)} bytes, SHA-256 {codec.sha256(preview.body)}")
    show(err, f"  smallest count: {preview.smallest_count}")
    for name, shape in (preview.fields or {}).items():
        show(err, f"  {name}: {shape}")
    if preview.note:
        show(err, f"  {preview.note}")
    if preview.media != BINARY:
        out.file.write(preview.body.decode() + "\n")
        return
    show(err, "contents")
    out.file.write(codec.to_json(codec.decode(preview.body)).decode() + "\n")
    show(err, "exact bytes")
    for start in range(0, len(preview.body), 32):
        out.file.write(f"{start:08x}  {preview.body[start : start + 32].hex(' ')}\n")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _wrapped(text: str, first: str, rest: str) -> str:
    return textwrap.fill(text, 98, initial_indent=first, subsequent_indent=rest)


class _Retries(logging.Handler):
    """Shows that something is tried again; the same thing every ten minutes at most."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._shown: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        what = text.rpartition(";")[0]
        if record.created - self._shown.get(what, 0.0) > 600.0:
            self._shown[what] = record.created
            show(err, text)


def tell_retries() -> None:
    """Let people see why nothing happens: the connection is being tried again."""
    log = logging.getLogger("fedclust.http")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, _Retries) for handler in log.handlers):
        log.addHandler(_Retries())


class ProgressLine:
    """Shows how a session goes on: a bar on a terminal, a line for each event elsewhere."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bar: Progress | None = None
        self._last = ""
        self._monotonic = monotonic
        #: Since the first round that this run saw, and which that was.
        self._began: tuple[float, int] | None = None
        if err.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20))
            self._bar = Progress(*columns, console=err, transient=True)
            self._task = self._bar.add_task("connecting", total=None)

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Give the terminal to a question; the next event takes it back."""
        if self._bar is not None:
            self._bar.stop()

    def tell(self, event: site.Progress) -> None:
        """Show what has just happened."""
        text: str = event.event
        if event.round is not None:
            text = f"round {event.round} {event.phase or ''}: {text}".replace(" :", ":")
        if event.addressed and event.event == "waiting":
            missing = event.addressed - (event.answered or 0)
            text += f" for {missing} of {event.addressed} sites"
        said = text
        text += self._times(event)
        if self._bar is not None:
            self._bar.start()
            total = event.addressed or None
            self._bar.update(
                self._task, description=plain(text), total=total, completed=event.answered or 0
            )
        elif said != self._last:
            show(err, text)
        self._last = said

    def _times(self, event: site.Progress) -> str:
        """Return how long the rounds have taken, and at most will."""
        if event.round is None or event.most_rounds is None:
            return ""
        now = self._monotonic()
        began, first = self._began or (now, event.round)
        self._began = began, first
        text, done = f", {_duration(now - began)}", event.round - first
        if done > 0:
            left = (event.most_rounds - event.round + 1) * (now - began) / done
            text += f", at most {_duration(left)} more"
        return f"{text} (of at most {event.most_rounds} rounds)"


def print_json(value: Any) -> None:
    """Print one line of JSON for a script."""
    out.file.write(json.dumps(value, allow_nan=False, default=_plain_json) + "\n")


def _plain_json(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(type(value).__name__)


def confirmed(question: str, instead: str) -> bool:
    """Ask a person; ConsentNeeded, with what to give ``instead``, where there is none."""
    if not sys.stdin.isatty():
        raise errors.ConsentNeeded(f"nobody can be asked here: give {instead}", ("consent",))
    # Not typer.confirm: it makes a failure of Ctrl-C, which is 130, and of Ctrl-D, which is a no.
    while True:
        show(err, f"{question} [y/N]")
        answer = sys.stdin.readline().strip().casefold()
        if answer in ("", "n", "no", "y", "yes"):
            return answer in ("y", "yes")
