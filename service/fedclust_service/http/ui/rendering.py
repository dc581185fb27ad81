"""Addresses of pages and the navigation; templates, their filters, and the headers of pages."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.filesize import decimal
from starlette.requests import Request
from starlette.responses import Response

from fedclust.result.wording import and_text, time_text
from fedclust.schema.times import time_span
from fedclust_service.domain.access import PERMISSIONS, Actor, Role
from fedclust_service.http.dependencies import context_of


def address(path: str, **query: str | None) -> str:
    """Return the address of a page; what is None or empty is left out of the query."""
    said = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(said)}" if said else path


def account_path(key: str) -> str | None:
    """Return the address of the page of an actor or an account such as ``site:north``."""
    role, _, name = key.partition(":")
    return f"/ui/{role}s/{name}" if name and role in ("site", "analyst", "operator") else None


class PageLink(NamedTuple):
    """A line of the navigation; ``action`` is what a reader must be allowed to do to see it."""

    path: str
    label: str
    action: str


_ENTRIES = (
    PageLink("/ui/overview", "Overview", "admin.read"),
    PageLink("/ui/sessions", "Sessions", "session.read"),
    PageLink("/ui/studies", "Studies", "study.read"),
    PageLink("/ui/sites", "Sites", "site.read"),
    PageLink("/ui/analysts", "Analysts", "analyst.read"),
    PageLink("/ui/operators", "Operators", "operator.read"),
    PageLink("/ui/audit", "Audit trail", "admin.read"),
)


def entries_for(role: Role) -> tuple[PageLink, ...]:
    """Return the lines of a role's navigation; the first is where its readers begin."""
    return tuple(entry for entry in _ENTRIES if role in PERMISSIONS[entry.action])


HTML = "text/html"
#: Scripts, styles and pictures come from this coordinator alone, and none is written into a page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Vary": "Cookie"}


def render(
    request: Request,
    template: str,
    values: Mapping[str, object],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a page from a template of ``templates/``.

    Every template knows ``actor`` (None for a reader who has not signed in), ``csrf``, ``entries``
    of the navigation, ``path``, and ``has_help``: whether ``/help`` has a site to show.
    """
    signed = getattr(request.state, "signed", None)
    actor: Actor | None = context_of(request).actor
    known: dict[str, Any] = {
        "actor": actor,
        "csrf": "" if signed is None else signed.csrf,
        "entries": () if actor is None else entries_for(actor.role),
        "path": request.url.path,
        "has_help": request.app.state.has_help,
    }
    content = ENVIRONMENT.get_template(template).render({**known, **values})
    return Response(content, status, {**_HEADERS, **(headers or {})}, media_type=HTML)


def attachment(
    content: bytes | str, media: str, name: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a file for a reader to save under a name."""
    sent = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
        "Vary": "Cookie",
    }
    return Response(content, headers={**sent, **(headers or {})}, media_type=media)


def time_element(value: datetime | None) -> Markup:
    """Return a time in UTC, which the script changes to the reader's zone; a dash for None."""
    if value is None:
        return Markup("–")
    at = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        at.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00"),
        time_text(at),
    )


def name_element(value: str) -> Markup:
    """Return text of other people, isolated so that it cannot change the order of what follows."""
    return Markup("<bdi>{}</bdi>").format(value)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return names as a sentence lists them; of many, the first and how many more."""
    if len(names) > most + 1:
        names = (*names[:most], f"{len(names) - most} more")
    return and_text(names) if names else ""


ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
ENVIRONMENT.filters |= {
    "time": time_element,
    "bytes": decimal,
    "duration": time_span,
    "name": name_element,
    "listed": listed,
    "account_path": account_path,
}
