"""A request's id, caller and kind, collected for its log line."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.types import Scope

from fedclust_service.domain.access import Actor

_KEY = "fedclust.context"


@dataclass
class RequestContext:
    """One request. ``actor`` is its caller, once known."""

    request_id: str
    #: Whether the request is a HEAD; routes see a GET.
    head: bool = False
    actor: Actor | None = None
    #: The template of the page's address, where FastAPI does not know the route.
    page: str | None = None
    #: Whether the answer is a stream, whose duration depends on its reader.
    stream: bool = False
    #: Counts the request among those that wait; False if too many do.
    may_wait: Callable[[], bool] = lambda: False

    def identify(self, actor: Actor) -> None:
        """Note who sent the request."""
        self.actor = actor


def attach_context(scope: Scope, context: RequestContext) -> None:
    """Store a context in a request's scope."""
    scope[_KEY] = context


def context_of(request: HTTPConnection) -> RequestContext:
    """Return the request's context."""
    context: RequestContext = request.scope[_KEY]
    return context
