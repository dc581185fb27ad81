"""Pages in the browser for operators, analysts and sites, below ``/ui``."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Router

from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.ui import (
    account_pages,
    audit_pages,
    comparison_pages,
    overview_pages,
    people_pages,
    result_pages,
    session_action_pages,
    session_events,
    session_form_pages,
    session_pages,
    steward_pages,
    study_pages,
)
from fedclust_service.http.ui.errors import show_failure, show_http_error, show_refusal

_PAGES = (
    account_pages,
    audit_pages,
    comparison_pages,
    overview_pages,
    people_pages,
    result_pages,
    session_action_pages,
    session_events,
    session_form_pages,
    session_pages,
    steward_pages,
    study_pages,
)


def pages(refusals: dict[type[Exception], Callable[[Request, Exception], Refusal]]) -> Mount:
    """Return all pages as one mount, whose errors are pages too.

    ``refusals`` says for each further kind of error which refusal it is.
    """
    handlers: dict[type[Exception], Callable[[Request, Exception], Response]] = {
        Refusal: lambda request, error: show_refusal(request, cast(Refusal, error)),
        HTTPException: show_http_error,
        Exception: show_failure,
    }
    for kind, refusal_of in refusals.items():
        handlers[kind] = _refusing(refusal_of)
    routes = [route for module in _PAGES for route in module.ROUTES]
    router = Router(routes=routes, redirect_slashes=False)
    return Mount("/ui", app=ExceptionMiddleware(router, handlers=handlers))


def _refusing(
    refusal_of: Callable[[Request, Exception], Refusal],
) -> Callable[[Request, Exception], Response]:
    def show(request: Request, error: Exception) -> Response:
        return show_refusal(request, refusal_of(request, error))

    return show
