"""Studies and sessions: create, read, start, cancel, delete; invite sites; move deadlines.

``SessionInfo.stopped_because`` holds a stable code for every ended session (``converged``,
``max_rounds``, ``too_few_contributors``, ``cancelled``, ...). For a failed session ``failure``
holds a sentence that says what to do.
"""

import contextlib
import functools
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog
from pydantic import ValidationError

from fedclust.definition import DefinitionError, canonical, freeze, plan_of, request_hash
from fedclust.definition.study import StudyCreate, StudyInfo, check_study, complete
from fedclust.rounds import Plan
from fedclust.rounds.workload import check_workload
from fedclust.schema.errors import RuleViolation
from fedclust.wire import codec
from fedclust.wire.errors import FieldError
from fedclust.wire.models import (
    MAX_SEED,
    Definition,
    Page,
    SessionCreate,
    SessionEntry,
    SessionInfo,
    SessionPatch,
    SitePresence,
    SiteStanding,
)
from fedclust_service.domain.access import (
    Actor,
    Refusal,
    Role,
    require,
    sees_account_details,
    sees_whole_study,
    visible_to,
    wrong_field,
)
from fedclust_service.domain.overview import Attendance
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import (
    Participation,
    ParticipationState,
    Session,
    SessionState,
    Study,
)
from fedclust_service.store import DataDamaged, Tx
from fedclust_service.usecases import notifications, results
from fedclust_service.usecases.access_queries import (
    deleted_before,
    is_slug,
    joined,
    page_of,
    read_cursor,
    row_number,
    session_for,
    show,
    study_for,
)
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.core import CoordinatorCore, Limits
from fedclust_service.usecases.definitions import definition_of, plan_or_refuse
from fedclust_service.usecases.round_lifecycle import (
    begin,
    end_session,
    resume_session,
    unsuitable,
    update_round,
)
from fedclust_service.usecases.unit_of_work import UnitOfWork, commit, reads, writes

#: The entry of the audit trail about a deletion. A later session of the name continues its version,
#: so that a request that waits for a newer version is answered.
DELETED = "session.deleted"
_STUDY_DELETED = "study.deleted"
#: The most sessions that a refusal names.
_MOST_NAMED = 10
log = structlog.get_logger(__name__)


def create_session(co: Coordinator, actor: Actor, body: SessionCreate) -> tuple[SessionInfo, bool]:
    """Create a session (analysts, operators). False if the same request created it before."""
    require(actor, "session.create")
    study, definition = _definition(co, actor, body)
    frozen, request = canonical(definition), request_hash(body)

    def work(uow: UnitOfWork) -> tuple[SessionInfo, bool]:
        tx = uow.tx
        there = tx.sessions.get(body.name)
        if there is not None:
            if there.created_by != actor.key or there.request_sha256 != request:
                raise _name_taken()
            return _session_info(tx, there), False
        if study is not None and tx.studies.get(study.name, lock=True) != study:
            raise Refusal("unavailable", "The study was deleted at this moment.", retry_after_s=1)
        _require_joinable(tx, definition, uow.now)
        session = tx.sessions.add(
            Session(
                id=0,
                name=body.name,
                algorithm=definition.algorithm,
                method_version=definition.method_version,
                definition=frozen,
                definition_sha256=codec.sha256(frozen),
                request_sha256=request,
                created_by=actor.key,
                state=SessionState.RECRUITING,
                version=_first_version(tx, body.name),
                created_at=uow.now,
                study=definition.study,
            )
        )
        for site in definition.sites:
            tx.participations.add(_invitation(session, site, uow.now))
        uow.audit(actor, "session.created", session.name, definition=session.definition_sha256)
        notifications.sites_invited(uow, session, definition.sites)
        return _session_info(tx, session), True

    return commit(co, "session.create", work)


def check_session(co: Coordinator, actor: Actor, body: SessionCreate) -> Definition:
    """Return the definition that creating a session would freeze, but for a drawn seed.

    Raises the refusal of :func:`create_session`, and creates nothing.
    """
    require(actor, "session.create")
    _, definition = _definition(co, actor, body)
    now = co.clock.now()

    def work(tx: Tx) -> None:
        if tx.sessions.get(body.name) is not None:
            raise _name_taken()
        _require_joinable(tx, definition, now)

    co.store.read("session.check", work)
    return definition


def _name_taken() -> Refusal:
    return Refusal(
        "name-taken",
        "A session of this name was created with another definition or by somebody else. Choose "
        "another name; only a session that no site has joined can be deleted by its creator, and "
        "its name used again.",
    )


def _require_joinable(tx: Tx, definition: Definition, now: datetime) -> None:
    """Raise Refusal ``invalid`` if a site is not registered, or no site could join in time."""
    _require_registered(tx, definition.sites, "/sites")
    if definition.expires is not None and definition.expires <= now:
        past = "this time has passed: give a later one"
        detail = "With this expiry no site could join the session."
        raise wrong_field("/expires", "expires", past, detail)


def _definition(
    co: Coordinator, actor: Actor, body: SessionCreate
) -> tuple[Study | None, Definition]:
    """Return what is frozen, with the study that completes it; Refusal ``invalid``.

    Called outside the transaction, which may run again and must write the same seed.
    """
    seed, study = secrets.randbelow(MAX_SEED + 1), _study_of(co, actor, body.study)
    try:
        wanted = body if study is None else complete(_study_definition(study), body)
        definition = freeze(wanted, seed)
        plan = plan_of(definition)
    except DefinitionError as error:
        raise _invalid(error, study) from None
    _check_workload(co.limits, plan, len(definition.sites))
    return study, definition


def _invalid(error: DefinitionError, study: Study | None = None) -> Refusal:
    """Return the refusal of a study, or of a session with what its study gives."""
    left_out = "" if study is None else " The study gave what the request left out."
    detail = f"Change the fields that are named here and send it again.{left_out}"
    return Refusal("invalid", detail, error.errors)


def _study_of(co: Coordinator, actor: Actor, name: str | None) -> Study | None:
    """Return a session's study; Refusal ``invalid`` if the actor sees none of that name."""
    if name is None:
        return None
    try:
        return co.store.read("study.of_session", lambda tx: study_for(tx, actor, name))
    except Refusal:
        why = "there is no study of this name that this token may see"
        detail = "Create the study first, or correct its name."
        raise wrong_field("/study", "study", why, detail) from None


def _require_registered(tx: Tx, sites: tuple[str, ...], at: str) -> None:
    """Raise Refusal ``invalid`` unless all sites are registered; ``at`` points to the list."""
    registered = tx.principals.existing(Role.SITE, sites)
    errors = [
        FieldError(
            pointer=f"{at}/{index}", rule="registered", message="no site of this name is registered"
        )
        for index, site in enumerate(sites)
        if site not in registered
    ]
    if errors:
        raise Refusal(
            "invalid", "Ask the operator to register these sites, or correct their names.", errors
        )


def _check_workload(limits: Limits, plan: Plan, n_sites: int, pointer: str | None = None) -> None:
    """Refuse a session whose longest round would take longer than the coordinator allows.

    The refusal is about the session's options, or about what ``pointer`` names.
    """
    try:
        check_workload(plan, n_sites, limits.aggregation_timeout_s)
    except RuleViolation as violation:
        at, why = pointer or f"/config{violation.pointer}", violation.message
        detail = "Its closing round would take too long."
        raise wrong_field(at, violation.rule, why, detail) from None


def _first_version(tx: Tx, name: str) -> int:
    deleted = tx.audit.last(name, DELETED)
    return 1 if deleted is None else 1 + int(deleted.details["version"] or 0)


@reads("session.read", "session.list")
def list_sessions(
    tx: Tx,
    actor: Actor,
    limit: int = 50,
    cursor: str | None = None,
    *,
    state: SessionState | None = None,
    study: str | None = None,
    standing: bool = False,
) -> Page[SessionEntry]:
    """List the sessions that the actor may see, newest first.

    ``standing``: for operators also how sites stand, which takes three times as long.
    """
    after = read_cursor(cursor, row_number)
    rows = tx.sessions.list(
        limit=limit + 1, state=state, study=study, after_id=after, seen=visible_to(actor)
    )
    ids = [each.id for each in rows[:limit]]
    known, stands = tx.overview.attendance(ids), _standing(tx, actor, ids) if standing else {}
    return page_of(
        rows, limit, "id", lambda each: _session_entry(each, known[each.id], tx.now, stands)
    )


def get_session(co: CoordinatorCore, actor: Actor, name: str) -> SessionInfo:
    """Return a session; Refusal ``not-found`` if the actor may not see it."""
    require(actor, "session.read")

    def work(tx: Tx) -> SessionInfo:
        return _info_for(tx, actor, session_for(tx, actor, name)[0])

    found = co.store.read("session.get", work)
    return found.model_copy(update={"operator": co.operator})


@reads("session.read", "session.changes")
def count_changes(tx: Tx, actor: Actor, name: str) -> int:
    """Return how many changes of a session are recorded: a page that knows as many is current."""
    return tx.audit.count(session_for(tx, actor, name)[0].name)


def _info_for(tx: Tx, actor: Actor, session: Session) -> SessionInfo:
    info = _session_info(tx, session, actor)
    if actor.role is Role.SITE:
        return info
    why = unsuitable(session, tx.participations.list(session.id))
    return info.model_copy(update={"cannot_start": why})


@writes("session.manage", "session.change")
def patch_session(uow: UnitOfWork, actor: Actor, name: str, body: SessionPatch) -> SessionInfo:
    """Move the open round's deadline, invite sites, or name clusters (its analyst, operators)."""
    session, _ = session_for(uow.tx, actor, name, lock=True)
    if body.invite:
        _invite(uow, actor, session, body.invite)
    if body.cluster_names:
        results.name_clusters(uow, actor, session, body.cluster_names)
    if body.deadline is not None:
        _move_deadline(uow, actor, session, body.deadline)
    changed = uow.tx.sessions.get_by_id(session.id) or session
    return _info_for(uow.tx, actor, changed)


@reads("session.create", "site.bands")
def known_bands(tx: Tx, actor: Actor, sites: Sequence[str]) -> dict[str, str]:
    """Return the size bands that these sites declared last in the actor's completed sessions.

    Only of sites that stayed, in sessions with a closing evaluation: their results showed the actor
    the sizes.
    """

    @functools.cache
    def measured(session_id: int) -> bool:
        session = tx.sessions.get_by_id(session_id)
        # In a text the quotes would be escaped, so this is the option itself.
        return session is not None and b'"evaluate":true' in session.definition

    found: dict[str, str] = {}
    for own in tx.participations.completed(sites, visible_to(actor).created_by):
        if own.site not in found and own.size_band and measured(own.session_id):
            found[own.site] = own.size_band
    return found


def _invite(uow: UnitOfWork, actor: Actor, session: Session, sites: tuple[str, ...]) -> None:
    tx = uow.tx
    _require_registered(tx, sites, "/invite")
    new = [site for site in dict.fromkeys(sites) if tx.participations.get(session.id, site) is None]
    if not new:
        return
    if session.state in (SessionState.FAILED, SessionState.CANCELLED):
        raise Refusal("wrong-state", "The session has ended without a result. Create another one.")
    if session.state is not SessionState.COMPLETED:
        if definition_of(session).policy.min_sites == 2:
            raise Refusal(
                "wrong-state",
                "With min_sites 2 the two sites consented to each other: no third site can be "
                "invited before the session has completed.",
            )
        if session.state.under_way and not plan_or_refuse(session).method.joins_late:
            raise Refusal(
                "late-joining-refused",
                "Invite sites before the start, or after completion as readers of the result.",
            )
        gone = (ParticipationState.LEFT, ParticipationState.EXCLUDED)
        there = [each for each in tx.participations.list(session.id) if each.state not in gone]
        n_sites = len(there) + len(new)
        _check_workload(uow.co.limits, plan_or_refuse(session), n_sites, "/invite")
    for site in new:
        tx.participations.add(_invitation(session, site, uow.now))
        uow.audit(actor, "site.invited", session.name, site=site)
    notifications.sites_invited(uow, session, new)


def _move_deadline(uow: UnitOfWork, actor: Actor, session: Session, deadline: datetime) -> None:
    tx = uow.tx
    current = tx.rounds.latest(session.id)
    running = session.state is SessionState.RUNNING
    if not running or current is None or current.state is not RoundState.COLLECTING:
        raise not_collecting()
    if deadline == current.deadline:
        return
    tx.rounds.set_deadline(current.id, deadline)
    tx.sessions.touch(session.id)
    uow.audit(
        actor,
        "round.deadline_moved",
        session.name,
        round=current.number,
        deadline=deadline.isoformat(),
    )
    moved = tx.rounds.get_by_id(current.id) or current
    update_round(uow, session, moved)


def not_collecting() -> Refusal:
    """Return the refusal to move a deadline that no round has."""
    return Refusal("wrong-state", "No round of this session is collecting answers now.")


@writes("session.manage", "session.start")
def start_session(uow: UnitOfWork, actor: Actor, name: str) -> SessionInfo:
    """Start with the sites that have joined; they must reach the quorum. Idempotent."""
    tx = uow.tx
    session, _ = session_for(tx, actor, name, lock=True)
    if session.started_at is not None:
        return _session_info(tx, session)
    if session.state is not SessionState.RECRUITING:
        raise Refusal("wrong-state", "The session has ended. Create another one.")
    present = len(joined(tx.participations.list(session.id)))
    needed = definition_of(session).policy.sites_needed
    if present < needed:
        raise Refusal(
            "quorum-missing",
            f"{present} of the {needed} sites that the session needs have joined. Wait for the "
            "others, or invite more.",
        )
    try:
        return _session_info(tx, begin(uow, session, actor))
    except RuleViolation as violation:
        raise Refusal("sites-unsuitable", violation.message) from None


@writes("session.retry", "session.retry")
def retry_session(uow: UnitOfWork, actor: Actor, name: str) -> SessionInfo:
    """Have a held session aggregate its round again (operators). Idempotent."""
    session, _ = session_for(uow.tx, actor, name, lock=True)
    if session.state is SessionState.HELD:
        session = resume_session(uow, session, actor)
    elif session.state is not SessionState.RUNNING:
        raise Refusal("wrong-state", "The session is not held.")
    return _session_info(uow.tx, session)


@writes("session.manage", "session.cancel")
def cancel_session(uow: UnitOfWork, actor: Actor, name: str) -> SessionEntry:
    """Cancel a session that has not ended. Idempotent."""
    session, _ = session_for(uow.tx, actor, name, lock=True)
    if session.state in (SessionState.COMPLETED, SessionState.FAILED):
        raise Refusal("wrong-state", "The session has ended already.")
    if session.state is not SessionState.CANCELLED:
        session = end_session(uow, session, SessionState.CANCELLED, reason="cancelled", actor=actor)
    return _entry_of(uow.tx, session)


@writes("session.manage", "session.delete")
def delete_session(uow: UnitOfWork, actor: Actor, name: str) -> None:
    """Delete a session that no site ever joined (its analyst, operators). Idempotent.

    The audit trail keeps what happened, and the name can be used again.
    """
    tx = uow.tx
    try:
        session, _ = session_for(tx, actor, name, lock=True)
    except Refusal:
        if is_slug(name) and deleted_before(tx, actor, DELETED, name):
            return
        raise
    came = [each.site for each in tx.participations.list(session.id) if each.joined_at]
    if came:
        raise Refusal(
            "wrong-state",
            f"{len(came)} of its sites joined the session, so it stays. Cancel it instead, and "
            "choose another name for the next one.",
        )
    tx.sessions.delete(session.id)
    tx.notifications.forget(session.name)
    sha256, version = session.definition_sha256, session.version + 1
    uow.audit(actor, DELETED, session.name, definition=sha256, version=version)


def _invitation(session: Session, site: str, now: datetime) -> Participation:
    return Participation(session.id, site, ParticipationState.INVITED, invited_at=now)


def _session_info(tx: Tx, session: Session, actor: Actor | None = None) -> SessionInfo:
    """Return one session as shown; raises as `definition_of` if its definition is unreadable."""
    definition_of(session)
    role, _, name = session.created_by.partition(":")
    creator = tx.principals.get(Role(role), name)
    title = "" if creator is None else creator.title
    return SessionInfo(**dict(_entry_of(tx, session, actor)), title_of_creator=title)


def _entry_of(tx: Tx, session: Session, actor: Actor | None = None) -> SessionEntry:
    known, standing = tx.overview.attendance([session.id]), _standing(tx, actor, [session.id])
    return _session_entry(session, known[session.id], tx.now, standing)


def _standing(tx: Tx, actor: Actor | None, ids: Sequence[int]) -> Mapping[tuple[int, str], Any]:
    """Return how the sites of sessions stand, if the actor may see that."""
    return tx.overview.standing(ids) if actor and sees_account_details(actor) else {}


def _session_entry(
    session: Session, known: Attendance, now: datetime, standing: Mapping[tuple[int, str], Any]
) -> SessionEntry:
    """Return a session as lists show it."""
    current = known.round
    past = current is not None and not session.state.ended and now >= current.deadline
    definition: Definition | None = None
    with contextlib.suppress(DataDamaged, DefinitionError):
        definition = definition_of(session)

    def presence(each: SitePresence) -> SitePresence:
        there = standing.get((session.id, each.name))
        late = None if each.answered is None else past and not each.answered
        shown = None if there is None else show(SiteStanding, there)
        return each.model_copy(update={"late": late, "standing": shown})

    return show(
        SessionEntry,
        session,
        created_by=session.created_by.partition(":")[2],
        cannot_start=None,
        round=current.number if current is not None else None,
        deadline=known.deadline,
        definition=definition,
        sites=tuple(map(presence, known.sites)),
    )


# --- studies --------------------------------------------------------------------------------------


def create_study(co: Coordinator, actor: Actor, body: StudyCreate) -> tuple[StudyInfo, bool]:
    """Create a study (analysts, operators). False if the same request created it before."""
    _require_valid_study(actor, body)
    # Only what was sent: later versions may have other defaults.
    stored = codec.canonical_json(body.model_dump(mode="json", exclude_unset=True))

    def work(uow: UnitOfWork) -> tuple[StudyInfo, bool]:
        tx = uow.tx
        there = tx.studies.get(body.name)
        if there is not None:
            if there.created_by != actor.key or there.definition != stored:
                raise _study_name_taken()
            return _study_info(tx, actor, there), False
        _require_registered(tx, body.sites, "/sites")
        added = tx.studies.add(
            Study(
                id=0,
                name=body.name,
                definition=stored,
                definition_sha256=codec.sha256(stored),
                created_by=actor.key,
                created_at=uow.now,
            ),
            body.sites,
        )
        uow.audit(
            actor, "study.created", _study_subject(body.name), definition=added.definition_sha256
        )
        return _study_info(tx, actor, added), True

    return commit(co, "study.create", work)


def check_new_study(co: Coordinator, actor: Actor, body: StudyCreate) -> StudyCreate:
    """Return the study, or raise the refusal of :func:`create_study`; create nothing."""
    _require_valid_study(actor, body)

    def work(tx: Tx) -> None:
        if tx.studies.get(body.name) is not None:
            raise _study_name_taken()
        _require_registered(tx, body.sites, "/sites")

    co.store.read("study.check", work)
    return body


def _require_valid_study(actor: Actor, body: StudyCreate) -> None:
    require(actor, "study.create")
    try:
        check_study(body)
    except DefinitionError as error:
        raise _invalid(error) from None


def _study_name_taken() -> Refusal:
    return Refusal(
        "name-taken",
        "A study of this name was created with other contents or by somebody else. Choose another "
        "name; a study without sessions can be deleted by its creator, and its name used again.",
    )


@reads("study.read", "study.list")
def list_studies(
    tx: Tx, actor: Actor, limit: int = 50, cursor: str | None = None
) -> Page[StudyInfo]:
    """List the studies that the actor may see, newest first, without damaged ones."""
    after = read_cursor(cursor, row_number)
    rows = tx.studies.list(limit=limit + 1, after_id=after, seen=visible_to(actor))
    shown = rows[:limit]
    counts = tx.studies.session_counts([each.name for each in shown], visible_to(actor))
    items = []
    for each in shown:
        try:
            items.append(_shown_study(actor, each, counts[each.name]))
        except DataDamaged:
            log.error("study_unreadable", study=each.name)
    return Page(items=tuple(items), next=str(shown[-1].id) if len(rows) > limit else None)


@reads("study.read", "study.get")
def get_study(tx: Tx, actor: Actor, name: str) -> StudyInfo:
    """Return a study; Refusal ``not-found`` if the actor may not see it."""
    return _study_info(tx, actor, study_for(tx, actor, name))


@writes("study.manage", "study.delete")
def delete_study(uow: UnitOfWork, actor: Actor, name: str) -> None:
    """Delete a study that has no session (its analyst, operators). Idempotent."""
    tx = uow.tx
    try:
        study = study_for(tx, actor, name, lock=True)
    except Refusal:
        if is_slug(name) and deleted_before(tx, actor, _STUDY_DELETED, _study_subject(name)):
            return
        raise
    newest = [each.name for each in tx.sessions.list(limit=_MOST_NAMED, study=study.name)]
    if newest:
        raise Refusal(
            "wrong-state",
            f"The study has sessions: {', '.join(newest)}. It can be deleted once it has none; a "
            "session can be deleted if no site ever joined it.",
        )
    tx.studies.delete(study.id)
    uow.audit(actor, _STUDY_DELETED, _study_subject(name), definition=study.definition_sha256)


def _study_subject(name: str) -> str:
    """Return a study's subject in the audit trail; that of a session is its name alone."""
    return f"study:{name}"


def _study_definition(study: Study) -> StudyCreate:
    """Return what a study's creator sent; DataDamaged if the stored bytes are others."""
    if codec.sha256(study.definition) != study.definition_sha256:
        raise DataDamaged("study")
    try:
        return StudyCreate.model_validate_json(study.definition)
    except ValidationError:
        raise DataDamaged("study") from None


def _study_info(tx: Tx, actor: Actor, study: Study) -> StudyInfo:
    counts = tx.studies.session_counts([study.name], visible_to(actor))
    return _shown_study(actor, study, counts[study.name])


def _shown_study(actor: Actor, study: Study, n_sessions: int) -> StudyInfo:
    found = _study_definition(study)
    fields = {"title", "purpose", "contact"}
    if sees_whole_study(actor):
        fields |= {"approval", "expires", "sites", "features", "defaults"}
    return StudyInfo(
        name=study.name,
        n_sessions=n_sessions,
        created_by=study.created_by.partition(":")[2],
        created_at=study.created_at,
        **{field: getattr(found, field) for field in fields},
    )
