"""What a request's log line will say, gathered while the request is answered."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.types import Scope

from fedclust_service.domain.access import Actor

_KEY = "fedclust.trace"


@dataclass
class Trace:
    """One request: its id, and who sent it once that is known."""

    request_id: str
    actor: Actor | None = None


def attach(scope: Scope, trace: Trace) -> None:
    """Tie a trace to a request's scope."""
    scope[_KEY] = trace


def trace_of(request: HTTPConnection) -> Trace:
    """Return the request's trace."""
    trace: Trace = request.scope[_KEY]
    return trace
