"""Studies, sessions and their rounds: defined, read, started, cancelled, deleted."""

from typing import Annotated

from starlette.responses import Response

from fedclust.definition.study import SessionRequest, StudyCreate, StudyInfo
from fedclust.wire.models import Page, RoundInfo, SessionEntry, SessionInfo, SessionPatch
from fedclust_service.http.api_route import UNREADABLE, api_router, locate, refusals, same_before
from fedclust_service.http.dependencies import (
    Caller,
    CallerOf,
    CursorOf,
    LimitOf,
    RoundNumber,
    SessionName,
    StateOf,
    StudyName,
    StudyOf,
    allowed,
)
from fedclust_service.usecases import rounds, sessions

studies_router = api_router(prefix="/v1/studies", tags=["studies"])


@studies_router.post(
    "",
    summary="Define a study",
    status_code=201,
    responses=same_before(StudyInfo),
    openapi_extra=refusals("forbidden", "name-taken", "stored-data-damaged"),
)
def create_study(
    caller: Annotated[Caller, allowed("study.create")], body: StudyCreate, response: Response
) -> StudyInfo:
    """Analysts and operators. What several sessions of the same sites have in common. It never
    changes. The same body by the same creator again gives the existing study.
    """
    info, created = sessions.create_study(*caller, body)
    locate(response, f"/v1/studies/{info.name}", created=created)
    return info


@studies_router.get("", summary="List studies")
def list_studies(caller: CallerOf, limit: LimitOf = 50, cursor: CursorOf = None) -> Page[StudyInfo]:
    """Operators see all studies, analysts those they created, sites those that name them. Newest
    first. Damaged ones are left out.
    """
    return sessions.list_studies(*caller, limit, cursor)


@studies_router.get(
    "/{study}", summary="Read a study", openapi_extra=refusals("stored-data-damaged")
)
def get_study(caller: CallerOf, study: StudyName) -> StudyInfo:
    """What its sessions have in common, and the names of those that the token may see. For a site
    `approval`, `expires`, `sites`, `features` and `defaults` are null.
    """
    return sessions.get_study(*caller, study)


@studies_router.delete(
    "/{study}",
    summary="Delete a study without sessions",
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def delete_study(caller: CallerOf, study: StudyName) -> None:
    """Its analyst and operators. Afterwards its name can be used again. While it has sessions it
    stays (409 `wrong-state`). The same person may repeat the request.
    """
    sessions.delete_study(*caller, study)


router = api_router(prefix="/v1/sessions", tags=["sessions"])


@router.post(
    "",
    summary="Define a session",
    status_code=201,
    responses=same_before(SessionInfo),
    openapi_extra=refusals("forbidden", "name-taken", *UNREADABLE),
)
def create_session(
    caller: Annotated[Caller, allowed("session.create")], body: SessionRequest, response: Response
) -> SessionInfo:
    """Analysts and operators. The definition is frozen; sites consent to the SHA-256 of its
    canonical form. The same body by the same creator again gives the existing session. A session of
    a study may leave out what the study gives: its fields are taken over at creation, and `config`
    and `policy` field by field.
    """
    info, created = sessions.create_session(*caller, body.root)
    locate(response, f"/v1/sessions/{info.name}", created=created)
    return info


@router.get("", summary="List sessions")
def list_sessions(
    caller: CallerOf,
    limit: LimitOf = 50,
    cursor: CursorOf = None,
    state: StateOf = None,
    study: StudyOf = None,
) -> Page[SessionEntry]:
    """Operators see all sessions, analysts those they created, sites those they take part in.
    Newest first. A session's `definition` is null if it is damaged.
    """
    return sessions.list_sessions(*caller, limit, cursor, state=state, study=study, standing=True)


@router.get(
    "/{session}",
    summary="Read a session",
    openapi_extra=refusals(*UNREADABLE),
)
def get_session(caller: CallerOf, session: SessionName) -> SessionInfo:
    """State, definition and its SHA-256, and the sites' names and states."""
    return sessions.get_session(*caller, session)


@router.patch(
    "/{session}",
    summary="Move the open round's deadline, invite more sites, or name the clusters",
    openapi_extra=refusals("forbidden", "wrong-state", "late-joining-refused", *UNREADABLE),
)
def change_session(
    caller: Annotated[Caller, allowed("session.manage")], session: SessionName, body: SessionPatch
) -> SessionInfo:
    """Its analyst and operators. After completion sites are invited as readers of the result. As
    many `cluster_names` as a clustering of the result has clusters name these.
    """
    return sessions.patch_session(*caller, session, body)


@router.delete(
    "/{session}",
    summary="Delete a session that nobody joined",
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def delete_session(caller: CallerOf, session: SessionName) -> None:
    """Its analyst and operators. Afterwards its name can be used again. A session that a site ever
    joined stays (409 `wrong-state`): cancel it instead. The same person may repeat the request.
    """
    sessions.delete_session(*caller, session)


@router.post(
    "/{session}/start",
    summary="Start with the sites that have joined",
    openapi_extra=refusals(
        "forbidden", "wrong-state", "quorum-missing", "sites-unsuitable", *UNREADABLE
    ),
)
def start_session(caller: CallerOf, session: SessionName) -> SessionInfo:
    """Its analyst and operators, once the quorum has joined. Idempotent."""
    return sessions.start_session(*caller, session)


@router.post(
    "/{session}/retry",
    summary="Have a held session try again",
    openapi_extra=refusals("forbidden", "wrong-state", *UNREADABLE),
)
def retry_session(caller: CallerOf, session: SessionName) -> SessionInfo:
    """Operators. A session is held when the process that aggregates one of its rounds has died too
    often. The round is aggregated again, from the answers that are stored. Idempotent.
    """
    return sessions.retry_session(*caller, session)


@router.post(
    "/{session}/cancel",
    summary="Cancel a session",
    openapi_extra=refusals("forbidden", "wrong-state"),
)
def cancel_session(caller: CallerOf, session: SessionName) -> SessionEntry:
    """Its analyst and operators. What was stored stays until its retention ends. Idempotent."""
    return sessions.cancel_session(*caller, session)


rounds_router = api_router(prefix="/v1/sessions/{session}/rounds", tags=["rounds"])


@rounds_router.get("", summary="List a session's rounds")
def list_rounds(
    caller: CallerOf, session: SessionName, limit: LimitOf = 50, cursor: CursorOf = None
) -> Page[RoundInfo]:
    """Its analyst, operators and its sites. Of other sites, a site reads only the names and whether
    they answered.
    """
    return rounds.list_rounds(*caller, session, limit, cursor)


@rounds_router.get("/{number}", summary="Read a round")
def get_round(caller: CallerOf, session: SessionName, number: RoundNumber) -> RoundInfo:
    """State, phase, deadline, who answered, metrics and timings."""
    return rounds.get_round(*caller, session, number)


@rounds_router.post(
    "/{number}/close",
    summary="Close a round before its deadline",
    openapi_extra=refusals("forbidden", "wrong-state", "quorum-missing", "needs-all-sites"),
)
def close_round(caller: CallerOf, session: SessionName, number: RoundNumber) -> RoundInfo:
    """Its analyst and operators; the quorum must have answered, and a phase that needs all its
    sites refuses. Idempotent.
    """
    return rounds.close_round(*caller, session, number)
