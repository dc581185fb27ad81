"""Queries for what people see of sessions and of the whole coordinator.

Every query reads one page of sessions or what is open now, and no payload or task. All of it is
stored anyway, so the sites send nothing for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Executable,
    Select,
    bindparam,
    cast,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
)

from fedclust.schema.display import first_few
from fedclust.wire.models import SitePresence
from fedclust_service.domain.access import Role
from fedclust_service.domain.notification import FAILING_FOR, DeliveryState
from fedclust_service.domain.overview import (
    MOST_NAMED,
    Attendance,
    Attention,
    AttentionKind,
    refusals_in_words,
)
from fedclust_service.domain.round import Round, RoundState
from fedclust_service.domain.session import SessionState
from fedclust_service.store import tables
from fedclust_service.store._sql import Repository, unindexed
from fedclust_service.store.principals import Tokens
from fedclust_service.store.rounds import LISTED
from fedclust_service.store.sessions import Participations

REFUSED = "submission.refused"
_P = tables.participations.c
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_ROUNDS: BindParameter[Any] = bindparam("rounds", expanding=True)


def _latest_rounds() -> Select[*tuple[Any, ...]]:
    t = tables.rounds
    newest = (
        select(t.c.session_id, func.max(t.c.number))
        .where(t.c.session_id.in_(_IDS))
        .group_by(t.c.session_id)
    )
    return LISTED.where(tuple_(t.c.session_id, t.c.number).in_(newest))


def _who_is_there() -> Select[int, str, str, str | None, bool, bool, str]:
    p, r = tables.participations, tables.rounds
    a, s = tables.addressees, tables.submissions
    # The rounds are named in each join: PostgreSQL would read whole tables instead of an index.
    return (
        select(
            *(p.c.session_id, p.c.site, p.c.state, p.c.refused_task, p.c.points_short),
            *(a.c.released, s.c.site),
        )
        .outerjoin(r, (r.c.session_id == p.c.session_id) & r.c.id.in_(_ROUNDS))
        .outerjoin(a, a.c.round_id.in_(_ROUNDS) & (a.c.round_id == r.c.id) & (a.c.site == p.c.site))
        .outerjoin(s, s.c.round_id.in_(_ROUNDS) & (s.c.round_id == r.c.id) & (s.c.site == p.c.site))
        .where(p.c.session_id.in_(_IDS))
        .order_by(p.c.session_id, p.c.site)
    )


# These run whenever a session is shown. Building a statement costs more than running it.
_LATEST, _PRESENT = _latest_rounds(), _who_is_there()


class OverviewQueries(Repository):
    """Queries about sessions and the whole coordinator."""

    def attendance(self, ids: Sequence[int]) -> dict[int, Attendance]:
        """Return each session's latest round and which of its sites were asked and answered."""
        rounds = {each.session_id: each for each in self._list(Round, _LATEST, ids=ids)}
        there = self._presences(ids, [each.id for each in rounds.values()])
        return {each: Attendance(rounds.get(each), tuple(there[each])) for each in ids}

    def _presences(
        self, ids: Sequence[int], rounds: Sequence[int]
    ) -> dict[int, list[SitePresence]]:
        """Return the sites of sessions, and which of them these rounds asked and were answered by.

        The rounds themselves are not read: they may be damaged.
        """
        sites: dict[int, list[SitePresence]] = {each: [] for each in ids}
        for row in self._all(_PRESENT, ids=ids, rounds=rounds):
            session, site, state, refused, short, released, answer = row
            asked = answer is not None or released is False
            there = SitePresence(
                name=site,
                state=state,
                answered=answer is not None if asked else None,
                refused_task=refused,
                points_short=short,
            )
            sites[session].append(there)
        return sites

    def standing(self, ids: Sequence[int]) -> dict[tuple[int, str], Any]:
        """Return what operators see of the sites of sessions besides, by session id and site.

        Bytes are of stored answers and of the tasks made for a site. ``sdk_version`` is the one of
        the last join, ``last_seen_at`` the last time in any session. ``refusals`` counts the
        answers of a site that were refused.
        """
        p, s, u = tables.participations, tables.sessions, tables.principals
        answers, tasks = _select_answers(ids).subquery(), _select_tasks(ids).subquery()
        refused = _select_refusals(ids).subquery()
        query = (
            select(
                *(p.c.session_id, p.c.site, u.c.last_seen_at),
                *(p.c.sdk_version, p.c.table_id, p.c.separate_groups, p.c.other_persons),
                *(_number(answers.c.bytes_in), _number(tasks.c.bytes_out)),
                _number(refused.c.refusals),
            )
            .join(s, s.c.id == p.c.session_id)
            .outerjoin(u, (u.c.role == Role.SITE) & (u.c.name == p.c.site))
            .outerjoin(
                answers, (answers.c.session_id == p.c.session_id) & (answers.c.site == p.c.site)
            )
            .outerjoin(tasks, (tasks.c.session_id == p.c.session_id) & (tasks.c.site == p.c.site))
            .outerjoin(
                refused,
                (refused.c.subject == s.c.name)
                & (refused.c.actor == literal(f"{Role.SITE}:").concat(p.c.site)),
            )
            .where(p.c.session_id.in_(ids))
        )
        return {(row.session_id, row.site): row for row in self._all(query).all()}

    # --- what needs attention ---------------------------------------------------------------------

    def concerns(
        self, *, now: datetime, failed_since: datetime, expiring_by: datetime, limit: int
    ) -> Sequence[Attention]:
        """Return what needs attention, the most urgent kind first, ``limit`` of each kind."""
        tokens = Tokens(self._connection, self._pending)
        there = Participations(self._connection, self._pending)
        s, r = tables.sessions, tables.rounds
        columns = (s.c.name, s.c.id, r.c.number, r.c.deadline, r.c.lease_expires_at)
        opened = select(*columns, r.c.id.label("round_id"))
        opened = opened.join(s, s.c.id == r.c.session_id).where(s.c.state == SessionState.RUNNING)
        late = opened.where(r.c.state == RoundState.COLLECTING, r.c.deadline <= now)
        stuck = opened.where(r.c.state == RoundState.AGGREGATING, r.c.lease_expires_at <= now)
        held = select(s.c.name, s.c.held_at, s.c.failure).where(s.c.state == SessionState.HELD)
        failed = (
            select(s.c.name, s.c.ended_at, s.c.failure)
            .where(s.c.state == SessionState.FAILED, s.c.ended_at >= failed_since)
            .order_by(s.c.ended_at.desc())
        )
        refused = (
            select(s.c.name, s.c.id, func.min(_P.left_at).label("since"))
            .join(s, s.c.id == _P.session_id)
            .where(s.c.state == SessionState.RUNNING, _P.refused_task.is_not(None))
            .group_by(s.c.name, s.c.id)
            .order_by("since", s.c.id)
        )

        def run(query: Executable) -> Sequence[Any]:
            return self._all(query).all()

        def items(kind: AttentionKind, query: Executable) -> Iterator[Attention]:
            for subject, at, why in run(query):
                yield Attention.to(kind, subject, at, detail=why)

        def refusals_of(session_id: int) -> str:
            return refusals_in_words(there.refusals(session_id))

        overdue = run(late.order_by(r.c.deadline).limit(limit))
        present = self._presences([row.id for row in overdue], [row.round_id for row in overdue])
        late_sites = {
            each: first_few(Attendance(None, tuple(sites)).pending, MOST_NAMED) or None
            for each, sites in present.items()
        }
        return [
            *items("session-held", held.order_by(s.c.held_at).limit(limit)),
            *(
                Attention.to("round-late", row.name, row.deadline, row.number, late_sites[row.id])
                for row in overdue
            ),
            *(
                Attention.to("round-stuck", row.name, row.lease_expires_at, row.number)
                for row in run(stuck.order_by(r.c.lease_expires_at).limit(limit))
            ),
            *(
                Attention.to("task-refused", row.name, row.since, detail=refusals_of(row.id))
                for row in run(refused.limit(limit))
            ),
            *(
                Attention.to("table-refused", row.actor, row.at, detail=_table_refusal(row))
                for row in run(_refused_tables(failed_since).limit(limit))
            ),
            *items("session-failed", failed.limit(limit)),
            *(
                Attention.to("token-expiring", owner.key, token.expires_at)
                for token, owner in tokens.expiring(now, expiring_by)[:limit]
            ),
            *items("notifications-waiting", _failing_channels(now - FAILING_FOR)),
            *items("notification-failed", _failed_notifications(failed_since).limit(limit)),
        ]

    def sdk_versions(self) -> dict[str, int]:
        """Return for each SDK version how many sites use it in the newest session they joined.

        Ended sessions count too.
        """
        known, p = tables.principals, tables.participations
        newest = (
            select(p.c.sdk_version)
            .where(p.c.site == known.c.name, p.c.sdk_version.is_not(None))
            .order_by(p.c.session_id.desc())
            .limit(1)
            .scalar_subquery()
        )
        sites = select(newest.label("version")).where(known.c.role == Role.SITE).subquery()
        query = (
            select(sites.c.version, func.count())
            .where(sites.c.version.is_not(None))
            .group_by(sites.c.version)
        )
        return {row[0]: row[1] for row in self._all(query)}

    def database_bytes(self) -> int:
        """Return the size of the database, including free pages."""
        pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        size = "SELECT pg_database_size(current_database())"
        query = text(pages if self._sqlite else size)
        return int(self._all(query).scalar_one())


def _select_answers(ids: Iterable[int]) -> Select[int, str, int]:
    """Select the bytes of each site's answers."""
    s = tables.submissions
    return (
        select(s.c.session_id, s.c.site, func.sum(s.c.size).label("bytes_in"))
        .where(s.c.session_id.in_(ids))
        .group_by(s.c.session_id, s.c.site)
    )


def _select_tasks(ids: Iterable[int]) -> Select[int, str, int]:
    """Select the bytes of each site's tasks.

    Neither database reads a task to get its length.
    """
    r, a = tables.rounds, tables.addressees
    size = func.length(r.c.common) + func.length(a.c.site_part)
    return (
        select(r.c.session_id, a.c.site, func.sum(size).label("bytes_out"))
        .join(a, a.c.round_id == r.c.id)
        .where(r.c.session_id.in_(ids))
        .group_by(r.c.session_id, a.c.site)
    )


def _select_refusals(ids: Iterable[int]) -> Select[str, str, int]:
    """Select how many answers of each site were refused in each session."""
    e, s = tables.audit.c, tables.sessions
    subjects = select(s.c.name).where(s.c.id.in_(ids))
    return (
        select(e.subject, e.actor, func.count().label("refusals"))
        .where(e.subject.in_(subjects), unindexed(e.action) == REFUSED)
        .group_by(e.subject, e.actor)
    )


def _number(column: ColumnElement[Any]) -> ColumnElement[int]:
    """Return a count or a sum under its name, 0 where there is no row."""
    return cast(func.coalesce(column, 0), tables.WHOLE).label(column.key)


def _refused_tables(since: datetime) -> Select[datetime, str, str, dict[str, Any]]:
    """Select each site's last refusal of its table after which it joined no session.

    It must be later than ``since``, and no table of the site was accepted after it.
    """
    a, later = tables.audit.c, tables.audit.alias("later")
    last = select(func.max(a.id)).where(a.action == "site.table_refused").group_by(a.actor)
    joined = (later.c.actor == a.actor) & (later.c.action == "site.joined")
    accepted = (later.c.subject == a.actor) & (later.c.action == "site.table_accepted")
    solved = select(later.c.id).where(later.c.id > a.id, or_(joined, accepted)).exists()
    return (
        select(a.at, a.actor, a.subject, a.details)
        .where(a.id.in_(last), a.at >= since, ~solved)
        .order_by(a.at, a.id)
    )


def _table_refusal(row: Any) -> str:
    """Return which session a site was refused in, and what its table is."""
    details, reason = row.details, row.details["reason"]
    there = f"change {details['number']}" if "number" in details else "no change"
    expected = f"change {details.get('accepted_number')} was accepted"
    words = {
        "older": f"its table ends with {there}, and {expected}",
        "branched": f"its table has another change {details.get('accepted_number')}",
        "unknown": "it has not used this table before",
        "other": "it joined with another table",
    }
    return f"session {row.subject}: {words[reason]}"


def _failing_channels(before: datetime) -> Select[str, datetime, str]:
    """Select the channels whose attempts have failed since before a time, with one reason."""
    n = tables.notifications
    since = func.min(n.c.created_at)
    return (
        select(n.c.channel, since.label("since"), func.max(n.c.failure).label("why"))
        .where(n.c.state == DeliveryState.WAITING, n.c.failure.is_not(None))
        .group_by(n.c.channel)
        .having(since <= before)
        .order_by(since, n.c.channel)
    )


def _failed_notifications(since: datetime) -> Select[str, datetime, str]:
    """Select the last failed notification of each recipient since a time."""
    n = tables.notifications
    failed = n.c.state == DeliveryState.FAILED, n.c.ended_at >= since
    last = select(n.c.recipient, func.max(n.c.ended_at)).where(*failed).group_by(n.c.recipient)
    return (
        select(n.c.recipient, n.c.ended_at, n.c.failure)
        .where(*failed, tuple_(n.c.recipient, n.c.ended_at).in_(last))
        .order_by(n.c.ended_at.desc(), n.c.recipient)
    )
