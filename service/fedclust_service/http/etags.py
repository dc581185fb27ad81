"""Entity tags: one for each representation, compared with If-None-Match (RFC 9110)."""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Header, Request
from starlette.responses import Response

from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.http.describe import headers

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
