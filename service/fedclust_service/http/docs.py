"""``/``, ``/docs``, ``/redoc`` and ``/openapi.json``, with every asset from the package."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from fedclust.wire import codec
from fedclust.wire.submissions import JSON
from fedclust_service.http.bodies import negotiate

HTML = "text/html"
STATIC = Path(__file__).parent / "static"
_HEAD = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>fedclust</title>'
_ICON = '<link rel="icon" href="/static/swagger-ui/favicon-32x32.png">'
_SWAGGER = (
    f'{_HEAD}{_ICON}<link rel="stylesheet" href="/static/swagger-ui/swagger-ui.css"></head><body>'
    '<div id="swagger-ui"></div><script src="/static/swagger-ui/swagger-ui-bundle.js"></script>'
    '<script src="/static/docs.js"></script></body></html>'
)
_REDOC = (
    f'{_HEAD}{_ICON}</head><body><div id="redoc"></div>'
    '<script src="/static/redoc/redoc.standalone.js"></script>'
    '<script src="/static/redoc.js"></script></body></html>'
)
_HOME = (
    f'{_HEAD}<meta name="viewport" content="width=device-width">{_ICON}'
    '<link rel="stylesheet" href="/static/home.css"></head><body><main>'
    "<h1>fedclust coordinator</h1>"
    "<p>This service coordinates clustering across organisations that may not pool their data. "
    "Sites keep their rows and send small summaries.</p><dl>"
    "<dt>Sites</dt><dd>Install the package <code>fedclust</code>. Set "
    "<code>FEDCLUST_COORDINATOR</code> to this address and <code>FEDCLUST_TOKEN_FILE</code> to "
    "the file with your token, then run <code>fedclust doctor</code>.</dd>"
    "<dt>Analysts</dt><dd><code>fedclust session create --help</code> defines a session.</dd>"
    "<dt>Operators</dt><dd><code>fedclust site add NAME</code> registers a site, "
    "<code>fedclust session list</code> shows who is late.</dd></dl>"
    '<p>The HTTP interface: <a href="/docs">try it out</a>, <a href="/redoc">read it</a>, '
    '<a href="/openapi.json">openapi.json</a>.</p></main></body></html>'
)
_HOME_JSON = codec.canonical_json(
    {
        "service": "fedclust coordinator",
        "docs": "/docs",
        "redoc": "/redoc",
        "openapi": "/openapi.json",
    }
)
_HOME_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
# Scripts style both pages; Redoc searches in a worker made from a blob.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; worker-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def routes(document: Callable[[], dict[str, Any]]) -> list[BaseRoute]:
    """Return the routes of the API's description, which ``document`` builds once."""

    building = threading.Lock()

    @cache
    def written() -> bytes:
        return codec.canonical_json(document())

    def description(_: Request) -> Response:
        with building:  # otherwise several threads would build it at the same time
            content = written()
        return Response(content, media_type=JSON)

    return [
        Route("/", _home, methods=["GET"]),
        Route("/openapi.json", description, methods=["GET"]),
        Route("/docs", _page_route(_SWAGGER), methods=["GET"]),
        Route("/redoc", _page_route(_REDOC), methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def _home(request: Request) -> Response:
    """Say what this service is: a page for browsers, JSON for programs."""
    headers = {"Vary": "Accept"}
    if negotiate(request, [JSON, HTML]) == JSON:
        return Response(_HOME_JSON, media_type=JSON, headers=headers)
    headers["Content-Security-Policy"] = _HOME_POLICY
    return Response(_HOME, media_type=HTML, headers=headers)


def _page_route(html: str) -> Callable[[Request], Response]:
    def show(_: Request) -> Response:
        return Response(html, media_type=HTML, headers={"Content-Security-Policy": _POLICY})

    return show
