"""Entity tags: one for each representation, compared with If-None-Match and If-Match (RFC 9110)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from fastapi import Header, Request
from pydantic import BaseModel
from starlette.responses import Response

from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.describe import headers

#: What distinguishes the tags of one task in its representations.
_TASK_SUFFIX = {JSON: "json", BINARY: "msgpack"}
_TAG = headers({"ETag": "Of exactly this representation."})
#: The ``responses`` of routes with an ETag.
TAGGED: dict[int | str, dict[str, Any]] = {
    200: _TAG,
    304: {"description": "The client has it.", **_TAG},
}
#: What says when somebody was last seen, and what a site has sent: no reason to refuse a change.
_SEEN: Any = {
    "last_seen_at": True,
    "tokens": {"__all__": {"last_used_at": True}},
    "sites": {"__all__": {"standing": True}},
}
#: Only for the API's description: the functions below read the headers, which may be repeated.
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", description="The last ETag; `*` stands for any.")
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The ETag of what you read: 412 if it has changed since. `*` stands for any.",
    ),
]


def tagged_document(request: Request, document: BaseModel) -> Response:
    """Return what can be changed; its ETag ends with what `unchanged` compares."""
    response = Response(document.model_dump_json(), media_type=JSON)
    return tagged(request, response, f"-{_state_of(document)}")


def tagged(request: Request, response: Response, end: str = "") -> Response:
    """Add the strong ETag of a response's bytes; 304 if the client has them already."""
    tag = f'"{hashlib.sha256(bytes(response.body)).hexdigest()}{end}"'
    response.headers["ETag"] = tag
    if not {tag, "*"} & _listed(request, "if-none-match"):
        return response
    kept = {name: response.headers[name] for name in ("ETag", "Vary") if name in response.headers}
    return Response(status_code=304, headers=kept)


def unchanged(request: Request) -> Callable[[BaseModel], None] | None:
    """Return a check of what a request changes against If-Match: Refusal ``precondition-failed``.

    Call the check in the transaction that makes the change. None without the header.
    """
    if "if-match" not in request.headers:
        return None
    wanted = _listed(request, "if-match", weak=False)

    def check(current: BaseModel) -> None:
        end = f'-{_state_of(current)}"'
        if not any(tag == "*" or tag.endswith(end) for tag in wanted):
            detail = "Read it again, and send the change with its new ETag."
            raise Refusal("precondition-failed", detail)

    return check


def task_tags(digest: str, media: Iterable[str] = _TASK_SUFFIX) -> str:
    """Return the ETags of a task's representations.

    They are weak: a task with another ``progress`` has the same ones.
    """
    return ", ".join(f'W/"{digest}-{_TASK_SUFFIX[each]}"' for each in media)


def known_tasks(request: Request, media: str) -> set[str]:
    """Return the digests of If-None-Match whose tags belong to one representation, and ``*``."""
    end = f'-{_TASK_SUFFIX[media]}"'
    tags = _listed(request, "if-none-match")
    return {tag[1 : -len(end)] for tag in tags if tag.endswith(end)} | ({"*"} & tags)


def _state_of(document: BaseModel) -> str:
    return hashlib.sha256(document.model_dump_json(exclude=_SEEN).encode()).hexdigest()


def _listed(request: Request, header: str, *, weak: bool = True) -> set[str]:
    """Return the entity tags of a header without weak marks; ``weak``: whether weak ones count."""
    tags = {tag.strip() for tag in ",".join(request.headers.getlist(header)).split(",")} - {""}
    return {tag.removeprefix("W/") for tag in tags if weak or not tag.startswith("W/")}
