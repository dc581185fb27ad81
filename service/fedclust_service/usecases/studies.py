"""Create, read and delete studies; complete the sessions of one."""

import structlog
from pydantic import ValidationError

from fedclust.definition import DefinitionError
from fedclust.definition.study import StudyCreate, StudyInfo, check_study, complete
from fedclust.wire import codec
from fedclust.wire.errors import FieldError
from fedclust.wire.models import Page, SessionCreate
from fedclust_service.domain.access import (
    Actor,
    Refusal,
    Role,
    require,
    sees_whole_study,
    wrong_field,
)
from fedclust_service.domain.session import Study
from fedclust_service.store import DataDamaged, Tx
from fedclust_service.usecases.access_queries import (
    deleted_before,
    is_slug,
    read_cursor,
    row_number,
    study_for,
    visible_to,
)
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.unit_of_work import UnitOfWork, commit, reads, writes

log = structlog.get_logger(__name__)
_DELETED = "study.deleted"
#: The most sessions that a refusal names.
_MOST_NAMED = 10
_CHANGE = "Change the fields that are named here and send it again."


def create_study(co: Coordinator, actor: Actor, body: StudyCreate) -> tuple[StudyInfo, bool]:
    """Create a study (analysts, operators). False if the same request created it before."""
    _require_valid(actor, body)
    # Only what was sent: later versions may have other defaults.
    stored = codec.canonical_json(body.model_dump(mode="json", exclude_unset=True))

    def work(uow: UnitOfWork) -> tuple[StudyInfo, bool]:
        tx = uow.tx
        there = tx.studies.get(body.name)
        if there is not None:
            if there.created_by != actor.key or there.definition != stored:
                raise _name_taken()
            return _info(tx, actor, there), False
        require_registered(tx, body.sites, "/sites")
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
        uow.audit(actor, "study.created", _subject(body.name), definition=added.definition_sha256)
        return _info(tx, actor, added), True

    return commit(co, "study.create", work)


def check_new_study(co: Coordinator, actor: Actor, body: StudyCreate) -> StudyCreate:
    """Return the study, or raise the refusal of :func:`create_study`; create nothing."""
    _require_valid(actor, body)

    def work(tx: Tx) -> None:
        if tx.studies.get(body.name) is not None:
            raise _name_taken()
        require_registered(tx, body.sites, "/sites")

    co.store.read("study.check", work)
    return body


def _require_valid(actor: Actor, body: StudyCreate) -> None:
    require(actor, "study.create")
    try:
        check_study(body)
    except DefinitionError as error:
        raise Refusal("invalid", _CHANGE, error.errors) from None


def _name_taken() -> Refusal:
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
    rows = tx.studies.list(limit=limit + 1, after_id=after, **visible_to(actor))
    shown = rows[:limit]
    counts = tx.studies.session_counts([each.name for each in shown], **visible_to(actor))
    items = []
    for each in shown:
        try:
            items.append(_shown(actor, each, counts[each.name]))
        except DataDamaged:
            log.error("study_unreadable", study=each.name)
    return Page(items=tuple(items), next=str(shown[-1].id) if len(rows) > limit else None)


@reads("study.read", "study.get")
def get_study(tx: Tx, actor: Actor, name: str) -> StudyInfo:
    """Return a study; Refusal ``not-found`` if the actor may not see it."""
    return _info(tx, actor, study_for(tx, actor, name))


@writes("study.manage", "study.delete")
def delete_study(uow: UnitOfWork, actor: Actor, name: str) -> None:
    """Delete a study that has no session (its analyst, operators). Idempotent."""
    tx = uow.tx
    try:
        study = study_for(tx, actor, name, lock=True)
    except Refusal:
        if is_slug(name) and deleted_before(tx, actor, _DELETED, _subject(name)):
            return
        raise
    n_sessions = tx.studies.session_counts([study.name])[study.name]
    if n_sessions:
        newest = tx.sessions.list(limit=_MOST_NAMED, study=study.name)
        more = n_sessions - len(newest)
        named = ", ".join(each.name for each in newest) + (f" and {more} more" if more else "")
        raise Refusal(
            "wrong-state",
            f"The study has sessions: {named}. It can be deleted once it has none; a session "
            "can be deleted if no site ever joined it.",
        )
    tx.studies.delete(study.id)
    uow.audit(actor, _DELETED, _subject(name), definition=study.definition_sha256)


# --- the sessions of a study ----------------------------------------------------------------------


def completed(
    co: Coordinator, actor: Actor, body: SessionCreate
) -> tuple[Study | None, SessionCreate]:
    """Return a session's study and its whole definition; None and ``body`` without a study.

    Refusal ``invalid`` if the actor sees no study of that name, or the session does not fit it.
    """
    name = body.study
    if name is None:
        return None, body
    try:
        study = co.store.read("study.of_session", lambda tx: study_for(tx, actor, name))
    except Refusal:
        why = "there is no study of this name that this token may see"
        detail = "Create the study first, or correct its name."
        raise wrong_field("/study", "study", why, detail) from None
    try:
        return study, complete(_definition_of(study), body)
    except DefinitionError as error:
        raise Refusal(
            "invalid", f"{_CHANGE} The study gave what the request left out.", error.errors
        ) from None


def require_registered(tx: Tx, sites: tuple[str, ...], at: str) -> None:
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


# --- what is shown --------------------------------------------------------------------------------


def _subject(name: str) -> str:
    """Return a study's subject in the audit trail; that of a session is its name alone."""
    return f"study:{name}"


def _definition_of(study: Study) -> StudyCreate:
    """Return what a study's creator sent; DataDamaged if the stored bytes are others."""
    if codec.sha256(study.definition) != study.definition_sha256:
        raise DataDamaged("study")
    try:
        return StudyCreate.model_validate_json(study.definition)
    except ValidationError:
        raise DataDamaged("study") from None


def _info(tx: Tx, actor: Actor, study: Study) -> StudyInfo:
    counts = tx.studies.session_counts([study.name], **visible_to(actor))
    return _shown(actor, study, counts[study.name])


def _shown(actor: Actor, study: Study, n_sessions: int) -> StudyInfo:
    found = _definition_of(study)
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
