"""What a request's log line will say, gathered while the request is answered."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.types import Scope

from fedclust_service.domain.access import Actor

_KEY = "fedclust.trace"


@dataclass
class RequestContext:
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


def attach_context(scope: Scope, context: RequestContext) -> None:
    """Tie a trace to a request's scope."""
    scope[_KEY] = context


def context_of(request: HTTPConnection) -> RequestContext:
    """Return the request's trace."""
    context: RequestContext = request.scope[_KEY]
    return context
