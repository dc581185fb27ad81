"""The class of the API's routes: FastAPI's, with this API's limits and order of checks."""

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from fedclust.schema.field_names import unknown_name_message
from fedclust.wire.submissions import JSON
from fedclust_service.http.bodies import json_body, media_type, parse
from fedclust_service.http.dependencies import actor_of
from fedclust_service.http.describe import problem_response


class ApiRoute(APIRoute):
    """A route that refuses unknown parameters of the query.

    Its operation has the name of its function unless it is given another one, and the function's
    docstring is its description.

    A route with a body has the caller, :func:`dependencies.allowed`, as its first dependency. The
    body of anybody else is not read.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        given["operation_id"] = given.get("operation_id") or endpoint.__name__
        super().__init__(path, endpoint, **given)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request: checks, then FastAPI's handler."""
        answer, field = super().get_route_handler(), self.body_field
        known = [each.alias for each in self.dependant.query_params]

        async def handle(request: Request) -> Response:
            _refuse_unknown(request, known)
            if field is None:
                return await answer(request)
            admit: Any = self.dependant.dependencies[0].call
            await admit(await run_in_threadpool(actor_of, request))
            content, body = await json_body(request), None
            if not content and field.field_info.is_required():
                media_type(request, [JSON])
            if content or field.field_info.is_required():
                model = field.field_info.annotation
                body = await run_in_threadpool(parse, model, content)  # type: ignore[arg-type]
            return await answer(_ParsedRequest(request, body))

        return handle


class _ParsedRequest(Request):
    """A request whose body is a model already: FastAPI has no limits and no strict parser."""

    def __init__(self, request: Request, model: BaseModel | None) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def body(self) -> bytes:
        return b"" if self._model is None else b"{}"

    async def json(self) -> Any:
        return self._model


def _refuse_unknown(request: Request, known: Sequence[str]) -> None:
    """Refuse parameters of the query that the route does not have."""
    if not request.scope["query_string"]:
        return
    errors = [
        {
            "loc": ("query",),
            "type": "extra_forbidden",
            "msg": unknown_name_message("parameter", name, known),
        }
        for name in request.query_params
        if name not in known
    ]
    if errors:
        raise RequestValidationError(errors)


def same_before(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route that creates something, and answers with `locate`."""
    return {200: {"description": "It was there before, with the same body.", "model": model}}


def locate(response: Response, path: str, *, created: bool) -> None:
    """Say where what was created is, with 201; with 200 it was there before."""
    if created:
        response.headers["Location"] = path
    else:
        response.status_code = 200


#: Of a route that answers with nothing.
NO_CONTENT: Any = {"status_code": 204, "response_class": Response}


def api_router(prefix: str = "", *, tags: list[str | Enum]) -> APIRouter:
    """Return a router of such routes."""
    other = problem_response("Any other problem of the catalogue.")
    return APIRouter(prefix=prefix, tags=tags, route_class=ApiRoute, responses={"default": other})
