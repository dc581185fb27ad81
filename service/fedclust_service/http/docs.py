"""``/``, ``/docs`` and ``/openapi.json``, with every asset from the package."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from fedclust.wire import codec
from fedclust.wire.submissions import JSON
from fedclust_service.http.bodies import negotiate
from fedclust_service.http.sign_in_cookie import cookie_of
from fedclust_service.http.ui.rendering import HTML, render

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
#: The API's description, in the installed package or in the repository.
_DESCRIPTION = next(
    place
    for place in (_HERE / "openapi.json", _HERE.parents[2] / "docs/openapi/openapi.json")
    if place.is_file()
)
_HEAD = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>fedclust</title>'
_ICON = '<link rel="icon" href="/static/swagger-ui/favicon-32x32.png">'
_SWAGGER = (
    f'{_HEAD}{_ICON}<link rel="stylesheet" href="/static/swagger-ui/swagger-ui.css"></head><body>'
    '<div id="swagger-ui"></div><script src="/static/swagger-ui/swagger-ui-bundle.js"></script>'
    '<script src="/static/docs.js"></script></body></html>'
)
_HOME_JSON = codec.canonical_json(
    {"service": "fedclust coordinator", "docs": "/docs", "openapi": "/openapi.json"}
)
# The script styles the page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def _home(request: Request) -> Response:
    """Say what this service is: a page for browsers, JSON for programs."""
    if negotiate(request, [JSON, HTML]) == JSON:
        return Response(_HOME_JSON, media_type=JSON, headers={"Vary": "Accept"})
    if cookie_of(request) is not None:
        # Who was signed in and is no longer gets to the same form from there.
        return RedirectResponse("/ui/", 303, {"Vary": "Accept, Cookie"})
    return render(request, "home.html", {}, headers={"Vary": "Accept, Cookie"})


def _swagger(_: Request) -> Response:
    return Response(_SWAGGER, media_type=HTML, headers={"Content-Security-Policy": _POLICY})


def _description(_: Request) -> Response:
    # Without it a browser may show an earlier version's file, because this one has a date.
    return FileResponse(_DESCRIPTION, media_type=JSON, headers={"Cache-Control": "no-cache"})


ROUTES: tuple[BaseRoute, ...] = (
    Route("/", _home, methods=["GET"]),
    Route("/ui", lambda _: RedirectResponse("/ui/", 307), methods=["GET"]),
    Route("/openapi.json", _description, methods=["GET"]),
    Route("/docs", _swagger, methods=["GET"]),
    Mount("/static", StaticFiles(directory=STATIC)),
)
