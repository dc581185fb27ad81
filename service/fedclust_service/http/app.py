"""The application: routes, errors, the edge around them. It holds no state of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import cast

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from fedclust.definition import DefinitionError
from fedclust_service.connections import Connections
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http import docs, openapi, problems
from fedclust_service.http.budgets import Budget, Budgets
from fedclust_service.http.dependencies import Service
from fedclust_service.http.middleware import EdgeMiddleware
from fedclust_service.http.routes import ROUTERS
from fedclust_service.metrics import Metrics
from fedclust_service.orchestration import damage
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.damage import DataDamaged
from fedclust_service.orchestration.definitions import outdated
from fedclust_service.settings import Settings

_RETRY_SECONDS = 2
#: Where too many requests of a kind are open: long polls end after 25 s, others much sooner.
_WAIT_RETRY_S, _REQUEST_RETRY_S = 5, 1
#: Files at a time: a browser that opens /docs asks for five.
_DOWNLOADS = 32


def create_app(
    coordinator: Coordinator,
    settings: Settings,
    connections: Connections,
    passing: Sequence[type[Exception]] = (),
) -> FastAPI:
    """Return the ASGI application of a coordinator.

    Parameters
    ----------
    coordinator : Coordinator
        Started and stopped by the caller.
    settings : Settings
    connections : Connections
        Those that the requests come over.
    passing : sequence of exception types
        Failures of the store that pass by themselves: answered 503 with Retry-After.
    """
    app = describe_app()
    metrics = Metrics(coordinator, connections)
    # Threads that run at once contend for the interpreter: with 40 of them a submission took twice
    # the CPU. SQLite answers at once; PostgreSQL may be some network away.
    size = 2 if coordinator.store.single_process else 8
    threads = ThreadPoolExecutor(size, thread_name_prefix="fedclust-site")
    app.state.service = Service(coordinator, settings, metrics, threads)
    app.add_exception_handler(DataDamaged, _damaged)
    app.add_exception_handler(DefinitionError, _outdated)
    for kind in passing:
        app.add_exception_handler(kind, _passing)
    budgets = Budgets(
        # A fourth of the connections stays for requests that are answered at once.
        wait=Budget(settings.waits_per_token, max(1, connections.most * 3 // 4), _WAIT_RETRY_S),
        download=Budget(_DOWNLOADS, _DOWNLOADS, _REQUEST_RETRY_S),
        request=Budget(settings.requests_per_token, connections.most, _REQUEST_RETRY_S),
    )
    app.add_middleware(
        EdgeMiddleware, body_limit=settings.body_limit, counts=metrics, budgets=budgets
    )
    return app


def describe_app() -> FastAPI:
    """Return the application without anything behind it: enough for ``openapi.json``."""
    app = FastAPI(
        title="fedclust coordinator",
        version=version("fedclust"),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    # Flat, so that 405 can name every method of a path and a test can list every route.
    app.router.routes.extend(api_routes())
    app.router.routes.extend(docs.routes(lambda: openapi.build(app)))
    return app


def openapi_text() -> str:
    """Return the API's description as the file in the repository holds it."""
    document = openapi.build(describe_app())
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def api_routes() -> list[APIRoute]:
    """Return every route that ``openapi.json`` describes."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def _damaged(request: Request, error: Exception) -> Response:
    """Answer for stored data that a request found damaged: that of the session in its path."""
    co = request.app.state.service.coordinator
    session = request.path_params.get("session")  # none where one is created again
    refusal = damage.refusal_of(co, session, cast(DataDamaged, error))
    return problems.refused(refusal, problems.request_id(request))


def _outdated(request: Request, error: Exception) -> Response:  # noqa: ARG001  # Starlette's
    """Answer for a session whose definition an earlier version has written."""
    return problems.refused(outdated(), problems.request_id(request))


def _passing(request: Request, error: Exception) -> Response:
    problems.log_failure(error)
    refusal = Refusal(
        "unavailable",
        "The coordinator's database cannot answer now; nothing is lost. Try again.",
        retry_after_s=_RETRY_SECONDS,
    )
    return problems.refused(refusal, problems.request_id(request))
