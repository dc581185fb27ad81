"""Structured logs on stderr: ids, states and times; never a payload, a token or a query."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

#: Uvicorn's own lines repeat ours, or name addresses and raw paths.
_QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "alembic", "sqlalchemy.engine")


def configure(level: str = "info", form: str = "json") -> None:
    """Send structlog's and the standard library's records to stderr in one form.

    Parameters
    ----------
    level : {"debug", "info", "warning", "error"}
    form : {"json", "console"}
    """
    through_logging()
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def through_logging() -> None:
    """Hand structlog's records to the standard library's logging, handlers as they are."""
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


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
    """Replace a traceback by where it was raised: an exception's text may repeat a value.

    SQLAlchemy's errors, for one, carry the statement's parameters.
    """
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["exception"] = exception_chain(error)
    return event


def exception_chain(error: BaseException) -> list[str]:
    """Return type and place of an exception and of each one it came from; no message."""
    chain: list[str] = []
    current: BaseException | None = error
    while current is not None and len(chain) < 10:
        place, trace = "", current.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            module = trace.tb_frame.f_globals.get("__name__", "?")
            place = f" at {module}.{code.co_name}:{trace.tb_lineno}"
            trace = trace.tb_next
        chain.append(type(current).__name__ + place)
        current = current.__cause__ or current.__context__
    return chain
