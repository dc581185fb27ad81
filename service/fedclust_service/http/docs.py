"""``/docs``, ``/redoc`` and ``/openapi.json``, with every asset from the package."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from fedclust.wire import codec

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
# Both pages style themselves from script; Redoc searches in a worker made from a blob.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; worker-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def routes(document: Callable[[], dict[str, Any]]) -> list[BaseRoute]:
    """Return the routes of the API's description; ``document`` builds it, once."""

    @cache
    def written() -> bytes:
        return codec.canonical_json(document())

    def description(_: Request) -> Response:
        return Response(written(), media_type="application/json")

    return [
        Route("/openapi.json", description, methods=["GET"]),
        Route("/docs", _page(_SWAGGER), methods=["GET"]),
        Route("/redoc", _page(_REDOC), methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def _page(html: str) -> Callable[[Request], Response]:
    def show(_: Request) -> Response:
        return Response(html, media_type="text/html", headers={"Content-Security-Policy": _POLICY})

    return show
