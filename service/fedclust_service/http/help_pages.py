"""``/help``: the documentation site, as ``make docs-site`` built it in this package."""

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.ui.errors import show_refusal

_SITE = Path(__file__).parent / "help"
#: Everything comes from this coordinator; the site's build leaves no script or style in a page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_ABSENT = Refusal(
    "not-found",
    "This coordinator was installed without its documentation. Run `make docs-site` in the clone "
    "of fedclust, install again, and restart.",
)


class _HelpFiles(StaticFiles):
    """The files of the site, under the site's content policy."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Content-Security-Policy"] = _POLICY
        return response


def site_folder() -> Path | None:
    """Return where the built site is; None if this installation has none."""
    return _SITE if (_SITE / "index.html").is_file() else None


def routes(folder: Path | None) -> list[BaseRoute]:
    """Return the routes of ``/help``; without a folder they say how to build the site."""
    begin = Route("/help", lambda _: RedirectResponse("/help/", 307), methods=["GET"])
    if folder is None:
        return [begin, Route("/help/{path:path}", _absent, methods=["GET"])]
    return [begin, Mount("/help", app=_HelpFiles(directory=folder, html=True))]


def _absent(request: Request) -> Response:
    return show_refusal(request, _ABSENT)
