"""The application: routes, errors and middleware. It has no state of its own."""

from concurrent.futures import ThreadPoolExecutor
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fedclust.definition import DefinitionError
from fedclust_service.connections import Connections
from fedclust_service.domain.access import Refusal
from fedclust_service.http import docs, problems, ui
from fedclust_service.http.dependencies import Service, context_of, service_of
from fedclust_service.http.middleware import Budget, Budgets, EdgeMiddleware
from fedclust_service.http.routes import api_routes
from fedclust_service.http.routes.health import REASONS
from fedclust_service.http.sign_in import SignInRate
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
#: Below these paths people read pages.
_PAGES = ("/ui/", "/help/")
#: Errors of a route that mean something to the caller.
_REFUSED = (Refusal, RequestValidationError, DataDamaged, DefinitionError, *damage.TEMPORARY)


def create_app(coordinator: Coordinator, settings: Settings, connections: Connections) -> FastAPI:
    """Return the ASGI application of a coordinator, which the caller starts and stops.

    ``connections`` are those that the requests use.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for kind in _REFUSED:
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(HTTPException, _http_error)
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
    app.router.routes.extend(ui.ROUTES)
    site = docs.site_folder()
    app.state.has_help = site is not None
    app.router.routes.extend(docs.help_routes(site))
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


def _of_page(request: Request) -> bool:
    return request.url.path.startswith(_PAGES)


def _refused(request: Request, refusal: Refusal) -> Response:
    """Answer a request that is refused: with a page where pages are, else with a document."""
    if _of_page(request):
        return show_refusal(request, refusal)
    return problems.refused(refusal, context_of(request).request_id)


def _answer(request: Request, error: Exception) -> Response:
    return _refused(request, _refusal_of(request, error))


def _refusal_of(request: Request, error: Exception) -> Refusal:
    """Return what one of :data:`_REFUSED` means to the caller."""
    co = service_of(request).coordinator
    match error:
        case Refusal():
            return error
        case RequestValidationError():
            return problems.refuse_parameters(request, error)
        case DataDamaged():
            session = request.path_params.get("session")  # None when a session is created
            return damage.refusal_of(co, session, error)
        case DefinitionError():
            return outdated()
    problems.log_failure(error)
    detail = "The coordinator's database cannot answer now; nothing is lost. Try again."
    if "database-damaged" in co.store.faults:
        detail = REASONS["database-damaged"]
    return Refusal("unavailable", detail, retry_after_s=_RETRY_SECONDS)


def _http_error(request: Request, error: Exception) -> Response:
    """Answer Starlette's own errors: no such path, no such method."""
    status, page = cast(HTTPException, error).status_code, _of_page(request)
    if status == 404:
        absent = Refusal("not-found", "There is no page at this address.")
        return _refused(request, absent if page else problems.not_found())
    if status != 405:
        slug = "malformed-request" if status < 500 else "internal"
        return _refused(request, Refusal(slug, "The request cannot be read."))
    allow = ", ".join(problems.allowed_methods(request))
    advice = (
        "Open this address from the page that leads to it." if page else f"Use one of: {allow}."
    )
    response = Response(status_code=204)
    if request.method != "OPTIONS":
        response = _refused(request, Refusal("method-not-allowed", advice))
    response.headers["Allow"] = allow
    return response
