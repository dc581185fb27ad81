"""Dependencies of the routes: the coordinator, the settings, the caller, the request's context."""

import asyncio
import contextvars
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeVar

from fastapi import Depends, Path, Query, Request, params
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from fedclust.schema.model import SLUG
from fedclust_service.domain.access import PERMISSIONS, Actor, Refusal, require
from fedclust_service.domain.session import SessionState
from fedclust_service.metrics import Metrics
from fedclust_service.settings import Settings
from fedclust_service.usecases import principals
from fedclust_service.usecases.coordinator import Coordinator

#: Where a request's scope has its context.
CONTEXT = "fedclust.context"


@dataclass
class RequestContext:
    """One request. ``actor`` is its caller, once known."""

    request_id: str
    #: Whether the request is a HEAD; routes see a GET.
    head: bool = False
    actor: Actor | None = None
    #: Counts the request among those that wait; False if too many do.
    may_wait: Callable[[], bool] = lambda: False

    def identify(self, actor: Actor) -> None:
        """Note who sent the request."""
        self.actor = actor


def context_of(request: HTTPConnection) -> RequestContext:
    """Return the request's context."""
    context: RequestContext = request.scope[CONTEXT]
    return context


T = TypeVar("T")


@dataclass(frozen=True)
class Service:
    """The running coordinator and what else the routes need."""

    coordinator: Coordinator
    settings: Settings
    metrics: Metrics
    site_threads: ThreadPoolExecutor


def service_of(request: Request) -> Service:
    """Return the request's service."""
    service: Service = request.app.state.service
    return service


async def for_site(request: Request, work: Callable[[], T]) -> T:
    """Run ``work``, which may wait for the database, in a thread for sites' frequent requests."""
    context = contextvars.copy_context()
    threads = service_of(request).site_threads
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, work)


# Only for the API's description: it makes "Authorize" work in /docs.
bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token as its operator issued it: fcs_… (site), fca_… (analyst), fco_….",
)
_AUTHORIZATION = re.compile(r"bearer +([A-Za-z0-9_.~+/=-]{1,512})", re.IGNORECASE)


def token_of(headers: Headers) -> str | None:
    """Return the token of the Authorization header; None unless there is exactly one."""
    values = headers.getlist("authorization")
    match = _AUTHORIZATION.fullmatch(values[0].strip()) if len(values) == 1 else None
    return None if match is None else match.group(1)


def bearer_token(request: Request) -> str:
    """Return the token as :func:`token_of` does; Refusal (401) instead of None."""
    token = token_of(request.headers)
    if token is None:
        raise Refusal(
            "unauthenticated", "Send one header 'Authorization: Bearer TOKEN' with your token."
        )
    return token


def actor_of(request: Request, _: Annotated[object, Depends(bearer)] = None) -> Actor:
    """Return the caller; Refusal (401) without a valid token. Cached for the request."""
    context = context_of(request)
    if context.actor is None:
        co = service_of(request).coordinator
        context.actor = principals.authenticate(co, bearer_token(request))
    return context.actor


class Caller(NamedTuple):
    """What every use case is given first: the coordinator, and who asks it."""

    co: Coordinator
    actor: Actor


# A coroutine, because FastAPI would run a function in a thread.
async def caller_of(request: Request, actor: Annotated[Actor, Depends(actor_of)]) -> Caller:
    """Return a request's coordinator with its caller."""
    return Caller(service_of(request).coordinator, actor)


#: Declare it first among a route's parameters: then the body of an unknown caller is not read.
CallerOf = Annotated[Caller, Depends(caller_of)]


def allowed(action: str) -> params.Depends:
    """Return a dependency that checks one of :data:`access.PERMISSIONS`.

    Use cases check again. This check comes before the body is read.
    """
    if action not in PERMISSIONS:
        raise ValueError(f"{action} is not in PERMISSIONS")

    async def check(caller: CallerOf) -> Caller:
        require(caller.actor, action)
        return caller

    return params.Depends(check)


#: For routes that any token may use.
Authenticated = Depends(actor_of)

#: The parameters of every list.
LimitOf = Annotated[int, Query(ge=1, le=200, description="Most items on the page.")]
CursorOf = Annotated[
    str | None,
    Query(min_length=1, max_length=200, description="`next` of the page before this one."),
]
StateOf = Annotated[SessionState | None, Query(description="Only sessions in this state.")]

#: The form of names in paths and queries.
NAME = rf"^{SLUG}$"
SessionName = Annotated[str, Path(pattern=NAME, description="The session's name.")]
StudyName = Annotated[str, Path(pattern=NAME, description="The study's name.")]
StudyOf = Annotated[str | None, Query(pattern=NAME, description="Only sessions of this study.")]
SiteName = Annotated[str, Path(pattern=NAME, description="The site's name.")]
RoundNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="The round's number, from 1.")]
TokenId = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The token's id, not its secret.")
]
