"""The class of the API's routes: FastAPI's, with this API's limits and order of checks.

Also what FastAPI does not know about a route: the problems that it answers with, headers, and
entity tags, one for each representation, compared with If-None-Match (RFC 9110).
"""

import hashlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from enum import Enum
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from fedclust.schema.field_names import unknown_name_message
from fedclust.wire.errors import CONTENT_TYPE as PROBLEM
from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.http.bodies import json_body, media_type, parse
from fedclust_service.http.dependencies import actor_of, caller_of

#: Where an operation names its problems until `docs/openapi/description.py` describes them.
PROBLEMS = "x-problems"
#: The problems of a stored definition.
UNREADABLE = ("stored-data-damaged", "version-unsupported")
BINARY_CONTENT = {"schema": {"type": "string", "format": "binary"}}


def refusals(*slugs: str) -> dict[str, Any]:
    """Return a route's ``openapi_extra``: its problems besides those of every route."""
    return {PROBLEMS: slugs}


def headers(texts: dict[str, str]) -> dict[str, Any]:
    """Return the part of a response that describes its headers, given their texts by name."""
    schema = {"type": "string"}
    described = {name: {"description": text, "schema": schema} for name, text in texts.items()}
    return {"headers": described}


def ref(schema: str) -> dict[str, str]:
    """Return a reference to a schema of ``openapi.json``."""
    return {"$ref": f"#/components/schemas/{schema}"}


def problem_response(description: str) -> dict[str, Any]:
    """Return a response that is a problem document."""
    return {"description": description, "content": {PROBLEM: {"schema": ref("Problem")}}}


class ApiRoute(APIRoute):
    """A route that refuses unknown parameters of the query.

    Its operation has the name of its function unless it is given another one, and the function's
    docstring is its description.

    A route with a body has the caller, :func:`dependencies.allowed`, as its first dependency. The
    body of anybody else is not read.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        given["operation_id"] = given.get("operation_id") or endpoint.__name__
        if given["methods"] == ["DELETE"]:  # it answers with nothing
            given |= {"status_code": 204, "response_class": Response}
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
            await admit(await caller_of(request, await run_in_threadpool(actor_of, request)))
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


def api_router(prefix: str = "", *, tags: list[str | Enum]) -> APIRouter:
    """Return a router of such routes."""
    other = problem_response("Any other problem of the catalogue.")
    return APIRouter(prefix=prefix, tags=tags, route_class=ApiRoute, responses={"default": other})


#: What distinguishes the tags of one task in its representations.
_TASK_SUFFIX = {JSON: "json", BINARY: "msgpack"}
_TAG = headers({"ETag": "Of exactly this representation."})
#: The ``responses`` of routes with an ETag.
TAGGED: dict[int | str, dict[str, Any]] = {
    200: _TAG,
    304: {"description": "The client has it.", **_TAG},
}
#: Only for the API's description: the functions below read the headers, which may be repeated.
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", description="The last ETag; `*` stands for any.")
]


def tagged(request: Request, response: Response) -> Response:
    """Add the strong ETag of a response's bytes; 304 if the client has them already."""
    tag = f'"{hashlib.sha256(bytes(response.body)).hexdigest()}"'
    response.headers["ETag"] = tag
    if not {tag, "*"} & _listed(request):
        return response
    kept = {name: response.headers[name] for name in ("ETag", "Vary") if name in response.headers}
    return Response(status_code=304, headers=kept)


def task_tags(digest: str, media: Iterable[str] = _TASK_SUFFIX) -> str:
    """Return the ETags of a task's representations.

    They are weak: a task with another ``progress`` has the same ones.
    """
    return ", ".join(f'W/"{digest}-{_TASK_SUFFIX[each]}"' for each in media)


def known_tasks(request: Request, media: str) -> set[str]:
    """Return the digests of If-None-Match whose tags belong to one representation, and ``*``."""
    end = f'-{_TASK_SUFFIX[media]}"'
    tags = _listed(request)
    return {tag[1 : -len(end)] for tag in tags if tag.endswith(end)} | ({"*"} & tags)


def _listed(request: Request) -> set[str]:
    """Return the entity tags of If-None-Match, without their weak marks."""
    tags = ",".join(request.headers.getlist("if-none-match")).split(",")
    return {tag.strip().removeprefix("W/") for tag in tags} - {""}
