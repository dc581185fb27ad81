"""The application: routes, errors and middleware. It has no state of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from fastapi import FastAPI, Request
from starlette.responses import Response

from fedclust.definition import DefinitionError
from fedclust_service.connections import Connections
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http import docs, help_pages, problems, ui
from fedclust_service.http.budgets import Budget, Budgets
from fedclust_service.http.dependencies import Service
from fedclust_service.http.middleware import EdgeMiddleware
from fedclust_service.http.request_context import context_of
from fedclust_service.http.routes import api_routes
from fedclust_service.http.sign_in_rate import SignInRate
from fedclust_service.http.ui.errors import show_refusal
from fedclust_service.metrics import Metrics
from fedclust_service.settings import Settings
from fedclust_service.usecases import damage
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.damage import DataDamaged
from fedclust_service.usecases.definitions import outdated

_RETRY_SECONDS = 2
#: Retry-After if too many requests are open: long polls end after 25 s, others much sooner.
_WAIT_RETRY_S, _REQUEST_RETRY_S = 5, 1
#: Concurrent downloads; a browser that opens /docs requests five files.
_DOWNLOADS = 32


def create_app(coordinator: Coordinator, settings: Settings, connections: Connections) -> FastAPI:
    """Return the ASGI application of a coordinator, which the caller starts and stops.

    ``connections`` are those that the requests use.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    problems.install(app)
    # A flat list, so that a 405 can name every method of a path.
    app.router.routes.extend(api_routes())
    app.router.routes.extend(docs.ROUTES)
    metrics = Metrics(coordinator, connections)
    # Many threads compete for the interpreter: with 40 a submission took twice the CPU. PostgreSQL
    # needs more of them than SQLite, because its answers cross a network.
    size = 2 if coordinator.store.single_process else 8
    threads = ThreadPoolExecutor(size, thread_name_prefix="fedclust-site")
    app.state.service = Service(coordinator, settings, metrics, threads)
    app.state.sign_in_rate = SignInRate()
    for kind, refusal_of in _REFUSALS.items():
        problems.answer(app, kind, refusal_of)
    app.router.routes.append(ui.pages(_REFUSALS))
    site = help_pages.site_folder()
    app.state.has_help = site is not None
    app.router.routes.extend(help_pages.routes(site))
    budgets = Budgets(
        # A quarter of the connections stays free for requests that are answered at once.
        wait=Budget(settings.waits_per_token, max(1, connections.most * 3 // 4), _WAIT_RETRY_S),
        download=Budget(_DOWNLOADS, _DOWNLOADS, _REQUEST_RETRY_S),
        request=Budget(settings.requests_per_token, connections.most, _REQUEST_RETRY_S),
    )
    app.add_middleware(
        EdgeMiddleware,
        body_limit=settings.body_limit,
        metrics=metrics,
        budgets=budgets,
        refused=_refused,
    )
    return app


def _refused(request: Request, refusal: Refusal) -> Response:
    """Answer what is refused before any route: with a page below /ui, else with a document."""
    if request.url.path.startswith("/ui/"):
        return show_refusal(request, refusal)
    return problems.refused(refusal, context_of(request).request_id)


def _damaged(request: Request, error: Exception) -> Refusal:
    """Refuse a request that found damaged data of the session in its path."""
    session = request.path_params.get("session")  # None when a session is created
    return damage.refusal_of(
        request.app.state.service.coordinator, session, cast(DataDamaged, error)
    )


def _temporary(_: Request, error: Exception) -> Refusal:
    problems.log_failure(error)
    return Refusal(
        "unavailable",
        "The coordinator's database cannot answer now; nothing is lost. Try again.",
        retry_after_s=_RETRY_SECONDS,
    )


#: What errors of the use cases mean to the caller.
_REFUSALS: dict[type[Exception], Callable[[Request, Exception], Refusal]] = {
    DataDamaged: _damaged,
    DefinitionError: lambda *_: outdated(),
    **dict.fromkeys(damage.TEMPORARY, _temporary),
}
