"""Sessions: defined, read, started, cancelled."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from starlette.responses import Response

from fedclust.study import SessionOfStudy, SessionRequest
from fedclust.wire.models import SessionCreate, SessionEntry, SessionInfo, SessionPatch
from fedclust_service.domain.access import Actor
from fedclust_service.http.bodies import JsonBody, parse, reply
from fedclust_service.http.dependencies import (
    ActorOf,
    CoordinatorOf,
    CursorOf,
    LimitOf,
    SessionName,
    StateOf,
    StudyOf,
    allowed,
    api_router,
)
from fedclust_service.http.describe import described, page_of, ref
from fedclust_service.http.etags import TAG_HEADER, IfMatch, IfNoneMatch, tagged, unchanged
from fedclust_service.orchestration import sessions

router = api_router(prefix="/v1/sessions", tags=["sessions"])


@router.post(
    "",
    operation_id="create_session",
    summary="Define a session",
    description="Analysts and operators. The definition is frozen; sites consent to the SHA-256 "
    "of its canonical form. The same body by the same creator again gives the existing session. "
    "A session of a study may leave out what the study gives: its fields are taken over at "
    "creation, and `config` and `policy` field by field.",
    **described(
        {
            201: ("Created.", ref(SessionInfo)),
            200: ("It was created with the same body before.", ref(SessionInfo)),
        },
        "forbidden",
        "name-taken",
        "stored-data-damaged",
        "version-unsupported",
        body={"anyOf": [ref(SessionCreate), ref(SessionOfStudy)]},
    ),
)
def create(
    actor: Annotated[Actor, allowed("session.create")], co: CoordinatorOf, body: JsonBody
) -> Response:
    info, created = sessions.create_session(co, actor, parse(SessionRequest, body).root)
    if not created:
        return reply(info)
    return reply(info, 201, {"Location": f"/v1/sessions/{info.name}"})


@router.get(
    "",
    operation_id="list_sessions",
    summary="List sessions",
    description="Operators see all sessions, analysts those they created, sites those they take "
    "part in. Newest first. A session's `definition` is null if it is damaged.",
    **described({200: ("A page of sessions.", page_of(SessionEntry))}, "invalid"),
)
def index(
    actor: ActorOf,
    co: CoordinatorOf,
    limit: LimitOf = 50,
    cursor: CursorOf = None,
    state: StateOf = None,
    study: StudyOf = None,
) -> Response:
    return reply(sessions.list_sessions(co, actor, limit, cursor, state=state, study=study))


@router.get(
    "/{session}",
    operation_id="get_session",
    summary="Read a session",
    description="State, definition and its SHA-256, and the sites' names and states.",
    **described(
        {200: ("The session.", ref(SessionInfo)), 304: ("The client has it.", None)},
        "not-found",
        "stored-data-damaged",
        "version-unsupported",
        headers=TAG_HEADER,
    ),
)
def read(
    request: Request,
    actor: ActorOf,
    co: CoordinatorOf,
    session: SessionName,
    _known: IfNoneMatch = None,
) -> Response:
    document = sessions.get_session(co, actor, session)
    return tagged(request, reply(document), document)


@router.patch(
    "/{session}",
    operation_id="change_session",
    summary="Move the open round's deadline, or invite more sites",
    description="Its analyst and operators. After completion sites are invited as readers of "
    "the result.",
    **described(
        {200: ("Changed.", ref(SessionInfo))},
        "forbidden",
        "not-found",
        "wrong-state",
        "late-joining-refused",
        "precondition-failed",
        "stored-data-damaged",
        "version-unsupported",
        body=ref(SessionPatch),
    ),
)
def change(
    request: Request,
    actor: Annotated[Actor, allowed("session.manage")],
    co: CoordinatorOf,
    session: SessionName,
    body: JsonBody,
    _expected: IfMatch = None,
) -> Response:
    patch, check = parse(SessionPatch, body), unchanged(request)
    return reply(sessions.patch_session(co, actor, session, patch, check))


@router.delete(
    "/{session}",
    operation_id="delete_session",
    summary="Delete a session that nobody joined",
    description="Its analyst and operators. Afterwards its name can be used again. A session that "
    "a site ever joined stays (409 `wrong-state`): cancel it instead. The same person may "
    "repeat the request.",
    **described({204: ("Deleted.", None)}, "forbidden", "not-found", "wrong-state"),
)
def delete(
    actor: Annotated[Actor, allowed("session.manage")], co: CoordinatorOf, session: SessionName
) -> Response:
    sessions.delete_session(co, actor, session)
    return Response(status_code=204)


@router.post(
    "/{session}/start",
    operation_id="start_session",
    summary="Start with the sites that have joined",
    description="Its analyst and operators, once the quorum has joined. Idempotent.",
    **described(
        {200: ("Started, or running already.", ref(SessionInfo))},
        "forbidden",
        "not-found",
        "wrong-state",
        "quorum-missing",
        "sites-unsuitable",
        "stored-data-damaged",
        "version-unsupported",
    ),
)
def start(actor: ActorOf, co: CoordinatorOf, session: SessionName) -> Response:
    return reply(sessions.start_session(co, actor, session))


@router.post(
    "/{session}/retry",
    operation_id="retry_session",
    summary="Have a held session try again",
    description="Operators. A session is held when the process that aggregates one of its rounds "
    "has died too often. The round is aggregated again, from the answers that are stored. "
    "Idempotent.",
    **described(
        {200: ("It runs.", ref(SessionInfo))},
        "forbidden",
        "not-found",
        "wrong-state",
        "stored-data-damaged",
        "version-unsupported",
    ),
)
def retry(
    actor: Annotated[Actor, allowed("session.retry")], co: CoordinatorOf, session: SessionName
) -> Response:
    return reply(sessions.retry_session(co, actor, session))


@router.post(
    "/{session}/cancel",
    operation_id="cancel_session",
    summary="Cancel a session",
    description="Its analyst and operators. What was stored stays until its retention ends. "
    "Idempotent.",
    **described({200: ("Cancelled.", ref(SessionEntry))}, "forbidden", "not-found", "wrong-state"),
)
def cancel(actor: ActorOf, co: CoordinatorOf, session: SessionName) -> Response:
    return reply(sessions.cancel_session(co, actor, session))
