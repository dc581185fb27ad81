"""The outermost layer: request ids, limits, security headers, one log line for each request.

The open requests of each token are limited, so that one token cannot block the others.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedclust.schema.model import SLUG
from fedclust_service.domain.access import Refusal
from fedclust_service.http import problems
from fedclust_service.http.dependencies import CONTEXT, RequestContext, token_of
from fedclust_service.http.sign_in import cookie_of
from fedclust_service.metrics import Metrics


class Budget:
    """Counts open requests by token. Only the event loop's thread may use it.

    The key is the complete token as it was sent, before any look into the database. So a refusal
    costs little, and knowing a token's id is not enough to use up its budget. One token may have
    ``each`` requests open, all tokens together ``most``.
    """

    def __init__(self, each: int, most: int, retry_after_s: int) -> None:
        self.each, self.most, self.retry_after_s = each, most, retry_after_s
        self._open: Counter[str] = Counter()
        self._all = 0

    def enter(self, token: str) -> Refusal | None:
        """Count a request in, or return why it is refused."""
        if self._all >= self.most:
            return Refusal(
                "unavailable",
                "The coordinator has too many open requests of this kind. Try again.",
                retry_after_s=self.retry_after_s,
            )
        if self._open[token] >= self.each:
            return Refusal(
                "too-many-requests",
                f"This token has {self.each} requests of this kind open; end one, or wait.",
                retry_after_s=self.retry_after_s,
            )
        self._open[token] += 1
        self._all += 1
        return None

    def leave(self, token: str) -> None:
        """Count a request out."""
        self._all -= 1
        self._open[token] -= 1
        if not self._open[token]:
            del self._open[token]


@dataclass(frozen=True)
class Budgets:
    """One budget for each kind of request."""

    #: Long polls, and stored submissions that wait for the next task.
    wait: Budget
    #: The files of the API's description and of the documentation, which need no token. Each
    #: download holds an open file or much memory.
    download: Budget
    #: All other requests, including those whose bodies still arrive.
    request: Budget

    def of(self, scope: Scope, token: str | None) -> tuple[str, Budget, str | None]:
        """Return a request's kind, its budget, and the key to count it under; None: do not count.

        Requests without a token are not counted: they are answered or refused at once.
        """
        path: str = scope["path"]
        if path.endswith("/task") and scope["query_string"]:
            return "wait", self.wait, token
        if path.startswith(("/static/", "/help/", "/openapi.json")):
            return "download", self.download, "anyone"
        return "request", self.request, token


log = structlog.get_logger(__name__)

REQUEST_ID = "Fedclust-Request-Id"
# Request ids are no secret. The system's randomness would take a twentieth of a request's time.
_IDS = random.Random(secrets.randbits(128))  # noqa: S311
#: Parameters of a path that are logged, with the names of their fields.
_LOGGED = {"session": "session", "site": "site", "number": "round"}
#: What programs and open pages ask for all day.
_ASKED_OFTEN = {"/healthz", "/readyz", "/metrics", "/ui/sessions/{session}/live"}
_DRAIN_SECONDS = 5.0
#: Refused bodies that are read to their end at the same time; with more, connections are closed at
#: once. Honest clients need few: their bodies arrive within milliseconds.
_MAX_DRAINS = 64
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_HSTS = "max-age=31536000"


@dataclass
class EdgeMiddleware:
    """ASGI middleware around the application.

    A body with a declared length of more than ``body_limit`` bytes is refused unread. ``refused``
    makes the answer of what is refused here.
    """

    app: ASGIApp
    body_limit: int
    metrics: Metrics
    budgets: Budgets
    refused: Callable[[Request, Refusal], Response]
    drains: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_DRAINS))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        context = RequestContext(f"{_IDS.getrandbits(64):016x}", head=scope["method"] == "HEAD")
        scope[CONTEXT] = context
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=context.request_id)
        exchange = _Exchange(self, scope, receive, send, context)
        try:
            await self._answer(exchange, context)
        except ClientDisconnect:
            exchange.status = 499
        finally:
            exchange.ended()

    async def _answer(self, exchange: _Exchange, context: RequestContext) -> None:
        kind, budget, caller = self.budgets.of(exchange.scope, _caller(exchange.scope))
        refusal = self._refused_unread(exchange.headers)
        if refusal is None and caller is not None:
            refusal = budget.enter(caller)
            if refusal is not None:
                self.metrics.over_budget(kind)
        if refusal is not None:
            await exchange.refuse(refusal)
            return

        def may_wait() -> bool:
            nonlocal budget
            if caller is None or self.budgets.wait.enter(caller) is not None:
                return False
            budget.leave(caller)
            budget = self.budgets.wait
            return True

        context.may_wait = may_wait
        try:
            await self._call(exchange)
        finally:
            if caller is not None:
                budget.leave(caller)

    async def _call(self, exchange: _Exchange) -> None:
        try:
            await self.app(exchange.scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            raise
        except asyncio.CancelledError:
            if exchange.status:
                raise
            exchange.unread = 0  # the shutdown's grace time is over
            detail = "The coordinator restarts; send it again."
            await exchange.refuse(Refusal("unavailable", detail, retry_after_s=2))
        except Exception as error:
            problems.log_failure(error)
            if exchange.status:  # part of an answer is sent, so the connection has to close
                raise
            await exchange.refuse(problems.FAILED)

    def _refused_unread(self, headers: Headers) -> Refusal | None:
        if "content-encoding" in headers:
            return Refusal("unsupported-media-type", "Send the body without Content-Encoding.")
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.body_limit:
            return too_large(self.body_limit)
        return None


def _caller(scope: Scope) -> str | None:
    """Return the token or the cookie of a request: its open requests count under it.

    It is what the request is authenticated with. A second one, which nobody looks at, would give a
    caller any number of budgets.
    """
    if scope["path"].startswith("/ui/"):
        return cookie_of(HTTPConnection(scope))
    return token_of(Headers(scope=scope))


def too_large(limit: int) -> Refusal:
    """Return the refusal of a body of more than ``limit`` bytes."""
    return Refusal("body-too-large", f"Send at most {limit} bytes.")


class _Exchange:
    """One request and its response; reads and drops the rest of a refused body.

    A server that closes a connection with unread bytes resets it, and the client never sees the
    refusal. So the rest is read first, within a limit and a time, unless the client waits for
    ``100 Continue`` and has sent nothing yet.
    """

    def __init__(
        self,
        edge: EdgeMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        context: RequestContext,
    ) -> None:
        self._edge, self._receive, self._send, self._context = edge, receive, send, context
        self._method: str = scope["method"]
        #: The application's part of the request; it adds its route.
        self.scope: Scope = {**scope, "method": "GET"} if context.head else scope
        self.headers = headers = Headers(scope=scope)
        self.status = 0
        #: How many bytes of a refused body are read at most.
        self.unread = 2 * edge.body_limit
        self._more = "expect" not in headers and (
            headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        )
        # A proxy may have used the other of the two headers to find the body's end; then the bytes
        # after it can be another client's request (RFC 9112, 6.3).
        self._ambiguous = "content-length" in headers and "transfer-encoding" in headers
        self._started = time.perf_counter()

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal."""
        response = self._edge.refused(Request(self.scope), refusal)
        await response(self.scope, self.receive, self.send)

    def ended(self) -> None:
        """Count and log the request."""
        seconds = time.perf_counter() - self._started
        self._edge.metrics.requested(self._method, self._route, self.status, seconds)
        self._write_line(seconds)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._more = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._drain()
            self.status = message["status"]
            self._add_headers(MutableHeaders(scope=message))
        elif self._context.head:
            message = {**message, "body": b""}
        await self._send(message)

    async def _drain(self) -> None:
        drains = self._edge.drains
        if not self._more or self.unread <= 0 or drains.locked():
            return
        try:
            async with drains, asyncio.timeout(_DRAIN_SECONDS):
                while self._more and self.unread > 0:
                    self.unread -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            return

    def _add_headers(self, headers: MutableHeaders) -> None:
        headers[REQUEST_ID] = self._context.request_id
        # The rest of the body would be read as the next request.
        if self._more or self._ambiguous:
            headers["Connection"] = "close"
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        if self.scope["path"].startswith(("/v1/", "/ui/")):
            headers.setdefault("Cache-Control", "no-store")
        if self.scope.get("scheme") == "https":
            headers.setdefault("Strict-Transport-Security", _HSTS)

    @property
    def _route(self) -> str:
        """The route's template. A path may hold anything, so it must not appear in logs."""
        fallback = "docs" if "endpoint" in self.scope else "unknown"
        return str(getattr(self.scope.get("route"), "path", fallback))

    def _write_line(self, seconds: float) -> None:
        route, actor = self._route, self._context.actor
        fields: dict[str, Any] = {
            "method": self._method,
            "route": route,
            "status": self.status,
            "ms": round(1000 * seconds, 1),
        }
        if actor is not None:
            fields["role"], fields["actor"] = actor.role.value, actor.name
        fields |= dict(_logged_names(self.scope.get("path_params", {}).items()))
        quiet = route in _ASKED_OFTEN and self.status < 400
        write: Callable[..., Any] = log.debug if quiet else log.info
        write("request", **fields)


def _logged_names(params: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, str]]:
    for name, value in params:
        # Anything but a name may be something that a user pasted into the address.
        if name in _LOGGED and re.fullmatch(SLUG, str(value)):
            yield _LOGGED[name], str(value)
