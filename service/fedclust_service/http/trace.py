"""What a request's log line will say, gathered while the request is answered."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.types import Scope

from fedclust_service.domain.access import Actor

_KEY = "fedclust.trace"


@dataclass
class Trace:
    """One request.

    Attributes
    ----------
    request_id : str
    head : bool
        Whether only the head of the answer is asked for: routes see a GET.
    actor : Actor or None
        Who sent it, once that is known.
    stream : bool
        Whether the answer goes on for as long as its reader stays: its time is no answer's time.
    """

    request_id: str
    head: bool = False
    actor: Actor | None = None
    stream: bool = False


def attach(scope: Scope, trace: Trace) -> None:
    """Tie a trace to a request's scope."""
    scope[_KEY] = trace


def trace_of(request: HTTPConnection) -> Trace:
    """Return the request's trace."""
    trace: Trace = request.scope[_KEY]
    return trace
