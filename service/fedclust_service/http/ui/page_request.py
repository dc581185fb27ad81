"""Requests for pages: who asks, what the form says, and how the answer is written.

A page is a function from a :class:`PageRequest` to a response. It calls the use cases that the
routes of the API call, with the reader as their actor, so the same rules of access hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedclust_service.domain.access import Actor, Refusal, require
from fedclust_service.http.bodies import media_type, parse, read_bytes
from fedclust_service.http.dependencies import Caller, Service, context_of, service_of
from fedclust_service.http.sign_in import cookie_of
from fedclust_service.http.ui.rendering import address, render
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.sign_ins import SignedIn, signed_in

M = TypeVar("M", bound=BaseModel)

#: The names and values of a posted form, in their order.
Form = ImmutableMultiDict[str, str]
_FORM = "application/x-www-form-urlencoded"
#: A session of a thousand sites and a thousand features has some 10,000 fields.
_MOST_FIELDS = 50_000
_MOST_BYTES = 4 << 20


async def read_form(request: Request, most: int = _MOST_BYTES) -> Form:
    """Return the posted form; Refusal for another body, or more than ``most`` bytes or fields."""
    media_type(request, [_FORM])
    body = await read_bytes(request, most)
    return await run_in_threadpool(_parsed, body)


def _parsed(body: bytes) -> Form:
    try:
        if b"\0" in body or b"%00" in body:  # no database takes it
            raise ValueError
        fields = parse_qsl(
            body.decode("utf-8"),
            keep_blank_values=True,
            max_num_fields=_MOST_FIELDS,
            errors="strict",
        )
    except ValueError:
        raise Refusal(
            "malformed-request", "The form cannot be read. Load the page again."
        ) from None
    # Browsers send two characters for the end of a line.
    return Form([(name, value.replace("\r\n", "\n")) for name, value in fields])


@dataclass(frozen=True)
class FilledForm:
    """A form as it is shown again after a refusal: nothing that was typed is lost.

    ``errors`` are messages by the name of a field, ``general`` is about the form as a whole.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    general: str | None = None

    def text(self, name: str, default: str = "") -> str:
        """Return what was typed into a field; before that, its default."""
        return self.texts.get(name, default)

    def refused(self, refusal: Refusal) -> FilledForm:
        """Return the form with a refusal's messages at the fields that they are about."""
        errors: dict[str, str] = {}
        rest = []
        for error in refusal.errors:
            name = f"{error.pointer}/".split("/")[1]
            if name in self.texts:
                words = error.message.rstrip(".")
                errors.setdefault(name, f"{words[:1].upper()}{words[1:]}.")
            else:
                rest.append(str(error))
        general = "; ".join(rest) or (None if errors else refusal.detail)
        return replace(self, errors=errors, general=general)


def checked(model: type[M], body: Mapping[str, object]) -> M:
    """Return what a form says, checked as the API checks a body; Refusal names the fields."""
    return parse(model, json.dumps(body).encode())


#: The name of a form's field with the token that only pages of this coordinator know.
CSRF = "csrf"
#: Requests of htmx have no form of their own to carry the token.
CSRF_HEADER = "Fedclust-Csrf"
#: What names, ids and files in addresses consist of.
_PART = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Of one value in the query of an address.
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True)
class PageRequest:
    """A request of somebody who has signed in."""

    request: Request
    service: Service
    signed: SignedIn
    cookie: str
    #: Empty unless the request is a post.
    form: Form = field(default_factory=Form)
    #: Whether a page of this sign-in made the form.
    own_form: bool = True

    @property
    def co(self) -> Coordinator:
        """The coordinator."""
        return self.service.coordinator

    @property
    def actor(self) -> Actor:
        """The reader, as use cases know callers."""
        return self.signed.actor

    @property
    def caller(self) -> Caller:
        """What every use case is given first."""
        return Caller(self.co, self.actor)

    @property
    def coordinator_url(self) -> str:
        """The address at which this coordinator is reached."""
        return (self.service.settings.public_url or str(self.request.base_url)).rstrip("/")

    @property
    def partial(self) -> bool:
        """Whether htmx asks for a part of the page that the reader has open."""
        return self.request.headers.get("HX-Request") == "true"

    def param(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def query(self, name: str) -> str | None:
        """Return a parameter of the address; None where it is absent or empty."""
        return self.request.query_params.get(name) or None

    def render(self, template: str, *, status: int = 200, **values: object) -> Response:
        """Return a page from a template, with ``notice`` where a redirect named one."""
        return render(
            self.request, template, {"notice": self.query("notice"), **values}, status=status
        )

    def redirect(self, path: str, notice: str | None = None, **query: str | None) -> Response:
        """Return a redirect after a post; ``notice`` is a key of the template ``notices.html``."""
        return RedirectResponse(address(path, notice=notice, **query), 303)


Show: TypeAlias = Callable[[PageRequest], Response]


def get(path: str, show: Show, *, used: bool = True) -> Route:
    """Return the route of a page, below ``/ui``; ``show`` runs in a thread.

    ``used``: whether it counts as use of the sign-in. What an open page loads by itself does not.
    """

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(lambda: show(authenticated(request, used=used)))

    return open_route(path, endpoint, "GET")


def post(path: str, act: Show, *, again: bool = False) -> Route:
    """Return the route of a form, below ``/ui``; ``act`` runs in a thread.

    It refuses forms that were not made by a page of the reader's own sign-in. The body of an
    unknown caller is not read. ``again``: ``act`` gets such a form too, and only shows it again.
    """

    async def endpoint(request: Request) -> Response:
        request.state.again = again
        page = await run_in_threadpool(authenticated, request)
        require_same_origin(request)
        form = await read_form(request)
        return await run_in_threadpool(_act, replace(page, form=form), act, again)

    return open_route(path, endpoint, "POST")


def open_route(path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str) -> Route:
    """Return a route below ``/ui`` that also readers reach who have not signed in."""

    async def named(request: Request) -> Response:
        request.scope["route"] = route  # as FastAPI notes its own
        if not all(map(_PART.fullmatch, request.path_params.values())):
            raise Refusal("not-found", "There is no page at this address.")
        given = request.query_params.values()
        if any("\0" in text or len(text) > _MOST_CHARACTERS for text in given):
            raise Refusal("malformed-request", "This address cannot be read.")
        return await endpoint(request)

    route = Route(f"/ui{path}", named, methods=[method])
    return route


def _act(page: PageRequest, act: Show, again: bool) -> Response:
    sent = page.form.get(CSRF) or page.request.headers.get(CSRF_HEADER, "")
    own = page.signed.sent_form(sent)
    if not (own or again):
        raise Refusal(
            "forbidden",
            "This form belongs to an earlier sign-in. Nothing was done: open the page again "
            "and repeat what you did.",
        )
    return act(replace(page, own_form=own))


def authenticated(request: Request, *, used: bool = True) -> PageRequest:
    """Return the request of a reader who has signed in; Refusal ``unauthenticated``."""
    cookie, service = cookie_of(request) or "", service_of(request)
    signed = signed_in(service.coordinator, cookie, used=used)
    context_of(request).identify(signed.actor)
    request.state.signed = signed
    return PageRequest(request, service, signed, cookie)


def require_same_origin(request: Request) -> None:
    """Refuse a post that a page of another origin sent."""
    # Every browser of the last years sends the first; `none` is a reader's own doing.
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
        raise Refusal("forbidden", "Another page sent this form. Nothing was done.")


@dataclass(frozen=True)
class Action:
    """An action with its page at ``path``, for those who have the ``right``.

    ``show`` returns what the template shows; its ``refusal`` is what stands against the action, if
    anything. ``act`` does it. ``notice`` is shown afterwards, on the page ``leads_to``.
    """

    path: str
    template: str
    right: str
    show: Callable[[PageRequest], Mapping[str, object]]
    act: Callable[[PageRequest], object]
    notice: str
    leads_to: str

    @property
    def routes(self) -> tuple[Route, Route]:
        """The page and its form."""
        return get(self.path, self._page), post(self.path, self._post)

    def _page(self, page: PageRequest, refused: Refusal | None = None) -> Response:
        require(page.actor, self.right)
        values = {"refusal": None, **self.show(page)}
        if refused is not None:
            values["refusal"] = refused
        status = 200 if refused is None else refused.status
        return page.render(self.template, status=status, **values)

    def _post(self, page: PageRequest) -> Response:
        """Do it and lead on; show a refusal on the page of the action."""
        require(page.actor, self.right)
        try:
            self.act(page)
        except Refusal as refusal:
            if refusal.status not in (409, 422):
                raise
            return self._page(page, refusal)
        path = self.leads_to.format(**page.request.path_params)
        return page.redirect(path, self.notice, k=page.query("k"))
