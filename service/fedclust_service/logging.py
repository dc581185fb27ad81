"""Structured logs on stderr: ids, states and times; never a payload, a token or a query.

Repeated lines are counted instead of written, so that a client cannot fill the disk.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import structlog

from fedclust.wire.errors import causes

#: How often the counts of repeated lines are written.
_INTERVAL_S = 10.0
#: Lines of one kind that are written in an interval: one warning or error, and of a caller's
#: requests with the same route and status more than any site needs (15 kB).
_MOST_FAILURES, _MOST_REQUESTS = 1, 50
_REQUEST_FIELDS = frozenset({"event", "level", "logger", "route", "status", "actor"})
_CHANGING_FIELDS = frozenset({"timestamp", "request_id"})
_Kind = frozenset[tuple[str, str]]
#: Uvicorn's lines repeat ours or contain addresses and raw paths. Those of httpx and httpcore
#: contain the webhook's whole address, which may be a secret.
_QUIET = (
    *("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "alembic", "sqlalchemy.engine"),
    *("httpx", "httpcore"),
)


def configure(level: str = "info", form: str = "json") -> None:
    """Send structlog's and the standard library's records to stderr, as json or for a console."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    repeats = Repeats()
    handler = _Handler(sys.stderr)
    handler.addFilter(functools.partial(_admitted, repeats))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    # Our lines bypass the standard library: making and formatting a record for each request takes
    # as long as reading the request.
    structlog.configure(
        processors=[*_shared(), functools.partial(_rendered, renderer, repeats)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=functools.partial(_Lines, handler),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    threading.excepthook = _thread_died
    warnings.showwarning = _warned


def _admitted(repeats: Repeats, record: logging.LogRecord) -> bool:
    """Whether to write a library's line. Lines from the same place count as one kind."""
    if record.levelno < logging.WARNING:
        return True
    place = f"{record.name}:{record.lineno}"
    return repeats.admits({"event": place, "level": record.levelname.lower()})


class _Handler(logging.StreamHandler[TextIO]):
    """Reports a line that could not be written, without its text."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Write the logger's name; the standard library would print traceback and arguments."""
        self.write(_lost(record.name))

    def write(self, line: str) -> None:
        """Write a complete line. Failures to write are ignored."""
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            self.stream.write(line + "\n")
            self.stream.flush()


class _Lines:
    """The logger that writes structlog's rendered lines."""

    def __init__(self, handler: _Handler, name: str = "") -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = handler.write


class Repeats:
    """Decides which lines are written and counts the others. Thread-safe.

    Lines are of one kind if they differ only in time and request id. For requests only route,
    status and caller are compared, because clients choose the rest.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._lock = monotonic, threading.Lock()
        self._seen: Counter[_Kind] = Counter()
        self._ends = monotonic() + _INTERVAL_S

    def admits(self, event: Mapping[str, Any]) -> bool:
        """Whether to write this line."""
        requested = event["event"] == "request"
        if not requested and event["level"] == "info":
            return True
        names = _REQUEST_FIELDS & event.keys() if requested else event.keys() - _CHANGING_FIELDS
        kind = frozenset((name, str(event[name])) for name in names)
        with self._lock:
            self._seen[kind] += 1
            return self._seen[kind] <= (_MOST_REQUESTS if requested else _MOST_FAILURES)

    def counted(self) -> list[dict[str, Any]]:
        """Return lines with the counts of omitted lines, once after each interval."""
        with self._lock:
            now = self._monotonic()
            if now < self._ends:
                return []
            seen, self._seen, self._ends = self._seen, Counter(), now + _INTERVAL_S
        lines = []
        for kind, count in seen.items():
            line: dict[str, Any] = dict(kind)
            event = line.pop("event")
            most = _MOST_REQUESTS if "route" in line else _MOST_FAILURES
            if count > most:
                lines.append({"event": "repeated", "of": event, "count": count - most, **line})
        return lines


def _rendered(
    renderer: structlog.typing.Processor,
    repeats: Repeats,
    logger: Any,
    name: str,
    event: structlog.typing.EventDict,
) -> str:
    try:
        counts = [{**line, "timestamp": event["timestamp"]} for line in repeats.counted()]
        lines = [*counts, event] if repeats.admits(event) else counts
        rendered = [str(renderer(logger, name, line)) for line in lines]
    except Exception:  # the error of a value that cannot be shown may repeat it
        return _lost(logger.name)
    if not rendered:
        raise structlog.DropEvent
    return "\n".join(rendered)


def _lost(name: str) -> str:
    return f'{{"event": "log_line_lost", "logger": "{name}"}}'


def _thread_died(died: threading.ExceptHookArgs) -> None:
    """Log that a thread has died; the interpreter's message could repeat a value."""
    name = None if died.thread is None else died.thread.name
    structlog.get_logger(__name__).error("thread_died", thread=name, exc_info=died.exc_value)


def _warned(
    message: Warning | str,  # noqa: ARG001
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Log the type and place of a library's warning; its text may repeat a value."""
    where = f"{Path(filename).name}:{lineno}"
    structlog.get_logger(__name__).warning("warned", kind=category.__name__, where=where)


def _shared() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _exception_type,
    ]


def _exception_type(
    _logger: Any, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Replace an exception by its type and place: its text may repeat a value.

    SQLAlchemy's errors, for example, contain the statement's parameters.
    """
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        # Not "exception": console renderers expect a traceback's text under that key.
        event["raised"] = exception_chain(error)
    return event


def exception_chain(error: BaseException) -> list[str]:
    """Return type and place, without messages, of an exception and of its causes."""
    chain = []
    for each in itertools.islice(causes(error), 10):
        place = ""
        for frame, line in traceback.walk_tb(each.__traceback__):
            module = frame.f_globals.get("__name__", "?")
            place = f" at {module}.{frame.f_code.co_name}:{line}"
        chain.append(type(each).__name__ + place)
    return chain
