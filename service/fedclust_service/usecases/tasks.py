"""The task that a site reads."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from fedclust.wire import codec
from fedclust.wire.models import RoundProgress, TaskDocument, TaskResponse
from fedclust_service.domain.access import Actor, absent, require
from fedclust_service.domain.round import Addressee, Round, RoundState, TaskStatus, status_of
from fedclust_service.domain.session import Participation, Session
from fedclust_service.store import RoundView, SiteView, Tx
from fedclust_service.usecases.access_queries import is_slug
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.principals import read_as_site
from fedclust_service.usecases.round_lifecycle import check_tasks


@dataclass(frozen=True)
class TaskView:
    """A site's view of its session.

    ``digest`` covers all of ``response`` but ``progress``. ``version`` is the session's, for
    :meth:`Notifier.wait`.
    """

    response: TaskResponse
    digest: str
    version: int


def current_task(
    co: Coordinator,
    token: str,
    session: str,
    known: Collection[str],
    identified: Callable[[Actor], None],
    *,
    recorded: bool,
) -> TaskView:
    """Authenticate a site and return what it should do now, as :func:`task_view` does.

    ``identified`` gets the caller before its role is checked; ``recorded`` is that of
    :func:`read_as_site`.
    """

    def look(tx: Tx, actor: Actor, seen: SiteView | None) -> TaskView:
        identified(actor)
        return task_view(tx, actor, seen, known)

    return read_as_site(co, token, "task.view", session, None, look, recorded=recorded)


def task_view(tx: Tx, actor: Actor, seen: SiteView | None, known: Collection[str] = ()) -> TaskView:
    """Return what a site should do now in its own session.

    ``known`` are the digests of views that the site has. A view with one of them has neither task
    nor progress.
    """
    require(actor, "task.read")
    session, own = own_view(seen)
    view = view_without_task(session, own, seen.round if seen else None)
    if view.digest in known or seen is None or seen.round is None:
        return view
    current, addressee, _ = seen.round
    more: dict[str, object]
    if addressee is not None and view.response.status == TaskStatus.WORK.value:
        more = {"task": _document(current, addressee)}
    else:
        more = {"progress": _progress(tx, current)}
    return replace(view, response=view.response.model_copy(update=more))


def site_view(
    tx: Tx, actor: Actor, session: str, number: int | None = None, *, lock: bool = False
) -> SiteView | None:
    """Return what a site sees of a session and one of its rounds, the latest by default."""
    if not is_slug(session):
        return None
    return tx.site_views.by_name(session, actor.name, number, lock=lock)


def own_view(seen: SiteView | None) -> tuple[Session, Participation]:
    """Return a site's session and participation; Refusal ``not-found`` if it has none."""
    if seen is None or seen.own is None:
        raise absent("session")
    return seen.session, seen.own


def view_without_task(session: Session, own: Participation, seen: RoundView | None) -> TaskView:
    """Return a site's view with its digest, but without task and progress."""
    current, addressee, answer = seen or (None, None, None)
    status = status_of(
        session.state,
        own.state,
        current.state if current is not None else None,
        addressed=addressee is not None and not addressee.released,
        answered=answer is not None,
    )
    # Only sites of the open round see its deadline, so that moving it wakes no other site.
    asked = status in (TaskStatus.WORK, TaskStatus.ANSWERED)
    response = TaskResponse(
        session_state=session.state.value,
        status=status.value,
        round=current.number if current is not None else None,
        deadline=current.deadline if asked and current is not None else None,
        task=None,
    )
    digest = None
    if status is TaskStatus.WORK and addressee is not None:
        digest = addressee.task_digest
    return TaskView(response, _digest(response, digest), session.version)


def _document(current: Round, addressee: Addressee) -> TaskDocument:
    check_tasks(current, [addressee])
    return TaskDocument(
        phase=current.phase,
        digest=addressee.task_digest,
        common=codec.decode(current.common),
        site=codec.decode(addressee.site_part),
    )


def _progress(tx: Tx, current: Round) -> RoundProgress | None:
    if current.state is not RoundState.COLLECTING:
        return None
    turnout = tx.rounds.turnout(current.id)
    return RoundProgress(
        answered=turnout.answered,
        addressed=turnout.answered + turnout.pending,
        overdue=current.overdue_since is not None,
    )


def _digest(response: TaskResponse, digest: str | None) -> str:
    """Return a SHA-256 of all but the progress; the digest stands for the task."""
    shown = {
        "session_state": response.session_state,
        "status": response.status,
        "round": response.round,
        "deadline": None if response.deadline is None else response.deadline.isoformat(),
        "task": digest,
    }
    return codec.sha256(codec.canonical_json(shown))
