"""Turn every error into a problem document, which never repeats what was sent."""

from typing import cast

import structlog
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from fedclust.wire.errors import CONTENT_TYPE, FieldError
from fedclust_service.domain.access import Refusal
from fedclust_service.http.dependencies import actor_of

log = structlog.get_logger(__name__)

NOT_FOUND = "There is nothing here that this token may see; check the address and the name."


#: The refusal for an unexpected error.
FAILED = Refusal(
    "internal",
    "The coordinator failed; its operator finds the cause by the request id. Try again.",
    retry_after_s=5,
)


def not_found() -> Refusal:
    """Return the refusal for what does not exist or may not be seen."""
    return Refusal("not-found", NOT_FOUND)


def refused(refusal: Refusal, request_id: str) -> Response:
    """Return a refusal as a problem document, with the headers of its status."""
    document = refusal.to_problem().model_copy(update={"request_id": request_id})
    headers = {"Cache-Control": "no-store", **refusal.retry_headers}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="fedclust"'
    body = document.model_dump_json(exclude_none=True)
    return Response(body, refusal.status, headers, media_type=CONTENT_TYPE)


def invalid(errors: list[FieldError]) -> Refusal:
    """Return the refusal of a body that does not fit its model."""
    if any(item.rule == "json_invalid" for item in errors):
        return Refusal("malformed-request", "The body is not valid JSON.", errors)
    return Refusal("invalid", "Correct these fields and send it again.", errors)


def refuse_parameters(request: Request, error: RequestValidationError) -> Refusal:
    """Refuse invalid parameters; 401 comes first, even if the route reads the token later."""
    try:
        if request.url.path.startswith("/v1/"):
            actor_of(request)
    except Refusal as refusal:
        return refusal
    items = error.errors()
    # A path segment that is no name or number is answered like an unknown one.
    if any(item["loc"][:1] == ("path",) for item in items):
        return not_found()
    errors = [
        FieldError(
            pointer="".join(f"/{part}" for part in item["loc"][1:]),
            rule=str(item["type"]),
            message=str(item["msg"]),
        )
        for item in items[:20]
    ]
    return Refusal("invalid", "Correct the parameters named in errors.", errors)


def allowed_methods(request: Request) -> list[str]:
    """Return the methods of the request's path, with HEAD and OPTIONS."""
    methods: set[str] = set()
    for route in cast(list[BaseRoute], request.app.routes):
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= set(getattr(route, "methods", None) or ())
    methods = methods or {"GET"}  # files below /static and /help
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods | {"OPTIONS"})


def log_failure(error: Exception) -> None:
    """Log an unexpected error's type and place; its text may repeat a value."""
    log.error("request_failed", exc_info=error)
