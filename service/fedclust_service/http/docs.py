"""``/``, ``/docs`` and ``/openapi.json``, with every asset from the package.

``/help``: the documentation site, as ``make docs-site`` built it in this package.
"""

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from fedclust.wire import codec
from fedclust.wire.submissions import JSON
from fedclust_service.domain.access import Refusal
from fedclust_service.http.bodies import negotiate
from fedclust_service.http.sign_in import cookie_of
from fedclust_service.http.ui.rendering import HTML, POLICY, render

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
#: The API's description, in the installed package or in the repository.
_DESCRIPTION = next(
    place
    for place in (_HERE / "openapi.json", _HERE.parents[2] / "docs/openapi/openapi.json")
    if place.is_file()
)
_HOME_JSON = codec.canonical_json(
    {"service": "fedclust coordinator", "docs": "/docs", "openapi": "/openapi.json"}
)
#: Of /docs and /help: all comes from this coordinator, and no script or style is in a page.
_POLICY = f"{POLICY}; font-src 'self'"


def _home(request: Request) -> Response:
    """Say what this service is: a page for browsers, JSON for programs."""
    if negotiate(request, [JSON, HTML]) == JSON:
        return Response(_HOME_JSON, media_type=JSON, headers={"Vary": "Accept"})
    if cookie_of(request) is not None:
        # Who was signed in and is no longer gets to the same form from there.
        return RedirectResponse("/ui/", 303, {"Vary": "Accept, Cookie"})
    return render(request, "home.html", {}, headers={"Vary": "Accept, Cookie"})


def _swagger(_: Request) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    return FileResponse(STATIC / "docs.html", media_type=HTML, headers=headers)


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


_SITE = Path(__file__).parent / "help"


class _HelpFiles(StaticFiles):
    """The files of the site, under the site's content policy."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Content-Security-Policy"] = _POLICY
        return response


def site_folder() -> Path | None:
    """Return where the built site is; None if this installation has none."""
    return _SITE if (_SITE / "index.html").is_file() else None


def help_routes(folder: Path | None) -> list[BaseRoute]:
    """Return the routes of ``/help``; without a folder they say how to build the site."""
    begin = Route("/help", lambda _: RedirectResponse("/help/", 307), methods=["GET"])
    if folder is None:
        return [begin, Route("/help/{path:path}", _absent, methods=["GET"])]
    return [begin, Mount("/help", app=_HelpFiles(directory=folder, html=True))]


def _absent(_: Request) -> Response:
    raise Refusal(
        "not-found",
        "This coordinator was installed without its documentation. Run `make docs-site` in the "
        "clone of fedclust, install again, and restart.",
    )
