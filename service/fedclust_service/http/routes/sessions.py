"""Sessions: defined, read, started, cancelled."""

from typing import Annotated

from starlette.responses import Response

from fedclust.definition.study import SessionRequest
from fedclust.wire.models import Page, SessionEntry, SessionInfo, SessionPatch
from fedclust_service.domain.access import Actor
from fedclust_service.http.api_route import NO_CONTENT, api_router, locate, refusals, same_before
from fedclust_service.http.dependencies import (
    ActorOf,
    CoordinatorOf,
    CursorOf,
    LimitOf,
    SessionName,
    StateOf,
    StudyOf,
    allowed,
)
from fedclust_service.usecases import sessions

router = api_router(prefix="/v1/sessions", tags=["sessions"])


@router.post(
    "",
    summary="Define a session",
    status_code=201,
    responses=same_before(SessionInfo),
    openapi_extra=refusals("forbidden", "name-taken", "stored-data-damaged", "version-unsupported"),
)
def create_session(
    actor: Annotated[Actor, allowed("session.create")],
    co: CoordinatorOf,
    body: SessionRequest,
    response: Response,
) -> SessionInfo:
    """Analysts and operators. The definition is frozen; sites consent to the SHA-256 of its
    canonical form. The same body by the same creator again gives the existing session. A session of
    a study may leave out what the study gives: its fields are taken over at creation, and `config`
    and `policy` field by field.
    """
    info, created = sessions.create_session(co, actor, body.root)
    locate(response, f"/v1/sessions/{info.name}", created=created)
    return info


@router.get("", summary="List sessions")
def list_sessions(
    actor: ActorOf,
    co: CoordinatorOf,
    limit: LimitOf = 50,
    cursor: CursorOf = None,
    state: StateOf = None,
    study: StudyOf = None,
) -> Page[SessionEntry]:
    """Operators see all sessions, analysts those they created, sites those they take part in.
    Newest first. A session's `definition` is null if it is damaged.
    """
    return sessions.list_sessions(co, actor, limit, cursor, state=state, study=study, standing=True)


@router.get(
    "/{session}",
    summary="Read a session",
    openapi_extra=refusals("stored-data-damaged", "version-unsupported"),
)
def get_session(actor: ActorOf, co: CoordinatorOf, session: SessionName) -> SessionInfo:
    """State, definition and its SHA-256, and the sites' names and states."""
    return sessions.get_session(co, actor, session)


@router.patch(
    "/{session}",
    summary="Move the open round's deadline, invite more sites, or name the clusters",
    openapi_extra=refusals(
        "forbidden",
        "wrong-state",
        "late-joining-refused",
        "stored-data-damaged",
        "version-unsupported",
    ),
)
def change_session(
    actor: Annotated[Actor, allowed("session.manage")],
    co: CoordinatorOf,
    session: SessionName,
    body: SessionPatch,
) -> SessionInfo:
    """Its analyst and operators. After completion sites are invited as readers of the result. As
    many `cluster_names` as a clustering of the result has clusters name these.
    """
    return sessions.patch_session(co, actor, session, body)


@router.delete(
    "/{session}",
    summary="Delete a session that nobody joined",
    **NO_CONTENT,
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def delete_session(
    actor: Annotated[Actor, allowed("session.manage")], co: CoordinatorOf, session: SessionName
) -> None:
    """Its analyst and operators. Afterwards its name can be used again. A session that a site ever
    joined stays (409 `wrong-state`): cancel it instead. The same person may repeat the request.
    """
    sessions.delete_session(co, actor, session)


@router.post(
    "/{session}/start",
    summary="Start with the sites that have joined",
    openapi_extra=refusals(
        "forbidden",
        "wrong-state",
        "quorum-missing",
        "sites-unsuitable",
        "stored-data-damaged",
        "version-unsupported",
    ),
)
def start_session(actor: ActorOf, co: CoordinatorOf, session: SessionName) -> SessionInfo:
    """Its analyst and operators, once the quorum has joined. Idempotent."""
    return sessions.start_session(co, actor, session)


@router.post(
    "/{session}/retry",
    summary="Have a held session try again",
    openapi_extra=refusals(
        "forbidden", "wrong-state", "stored-data-damaged", "version-unsupported"
    ),
)
def retry_session(
    actor: Annotated[Actor, allowed("session.retry")], co: CoordinatorOf, session: SessionName
) -> SessionInfo:
    """Operators. A session is held when the process that aggregates one of its rounds has died too
    often. The round is aggregated again, from the answers that are stored. Idempotent.
    """
    return sessions.retry_session(co, actor, session)


@router.post(
    "/{session}/cancel",
    summary="Cancel a session",
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def cancel_session(actor: ActorOf, co: CoordinatorOf, session: SessionName) -> SessionEntry:
    """Its analyst and operators. What was stored stays until its retention ends. Idempotent."""
    return sessions.cancel_session(co, actor, session)
