"""Structlog's records in the standard library's logging, for pytest's ``caplog``."""

from __future__ import annotations

import structlog

from fedclust_service import logging


def through_logging() -> None:
    """Send structlog's records to the standard library's logging and its current handlers."""
    structlog.configure(
        processors=[*logging._shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
