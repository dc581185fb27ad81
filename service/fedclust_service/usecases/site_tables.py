"""The protected tables of sites: each join continues what was accepted, or operators accept it."""

from fedclust.wire.models import Page, SiteTableInfo, TableAcceptance
from fedclust.wire.models import Participation as JoinRequest
from fedclust_service.domain.access import Actor, Refusal, Role, absent, sees_tables
from fedclust_service.domain.site_table import SiteTable, TableVerdict, accepts
from fedclust_service.store import Tx
from fedclust_service.usecases.access_queries import name_in_list, page_of, read_cursor, show
from fedclust_service.usecases.principals import principal_named
from fedclust_service.usecases.unit_of_work import Detail, UnitOfWork, reads, writes

_WHERE = "on another machine, in another state directory or in a newer backup"


# --- joining --------------------------------------------------------------------------------------


def record_heads(uow: UnitOfWork, actor: Actor, session: str, body: JoinRequest) -> Refusal | None:
    """Accept the table that a site joins with; return why it is refused, for after the commit.

    The refusal has an entry of the audit trail, which raising it here would undo.
    """
    table_id, heads = body.table_id, body.heads
    if table_id is None or heads is None:
        return None
    known = uow.tx.site_tables
    known.lock(actor.name)
    accepted = known.get(actor.name, table_id)
    last, head = heads.last, heads.heads[-1]
    ask = (
        f"ask the coordinator's operator to accept it: table {table_id}, number {last}, head "
        f"{head} (fedclust site accept-table {actor.name} --table {table_id} --number {last} "
        f"--head {head})."
    )
    if accepted is None:
        approved = body.separate_groups or body.other_persons
        if known.any(actor.name) and not approved:
            _audit_refusal(uow, actor, session, body, "unknown")
            return Refusal(
                "table-changed",
                "This site has taken part with another protected table, and a second grouping of "
                "the same persons reveals more about each of them. Find the state with that table "
                f"{_WHERE}. For other persons, join with --other-persons (other_persons: true). "
                "If you accept a second grouping, join with --separate-groups (separate_groups: "
                f"true). If that table is lost without a backup, {ask}",
            )
    else:
        verdict = accepts(accepted, heads)
        if verdict is TableVerdict.HEADS_NEEDED:
            raise Refusal(
                "table-heads-needed",
                f"This coordinator has accepted change {accepted.number} of the table, which comes "
                "before the heads that were sent. Send the heads of all changes.",
            )
        if verdict is not TableVerdict.ACCEPTED:
            _audit_refusal(uow, actor, session, body, verdict.value, accepted)
            what = (
                f"ends with change {last}"
                if verdict is TableVerdict.OLDER
                else "has another change there"
            )
            return Refusal(
                "table-changed",
                "The site's state is older than what this coordinator has accepted, or branched "
                f"from it: change {accepted.number} with head {accepted.head} was accepted, and "
                f"the state {what}. Find the newer state {_WHERE}, and join with it. If "
                f"there is none, the groups of this state are kept: {ask}",
            )
        if (accepted.number, accepted.head) == (last, head):
            return None
    known.put(SiteTable(actor.name, table_id, last, head, uow.now))
    return None


def refuse_other_table(uow: UnitOfWork, actor: Actor, session: str, body: JoinRequest) -> Refusal:
    """Return the refusal of a site that comes back to a session with another table."""
    _audit_refusal(uow, actor, session, body, "other")
    return Refusal(
        "table-changed",
        "This site joined the session with another protected table, which holds until the session "
        f"ends. Find the state with that table {_WHERE}.",
    )


def _audit_refusal(
    uow: UnitOfWork,
    actor: Actor,
    session: str,
    body: JoinRequest,
    reason: str,
    accepted: SiteTable | None = None,
) -> None:
    details: dict[str, Detail] = {"table": body.table_id, "reason": reason}
    if body.heads is not None:
        details |= {"number": body.heads.last, "head": body.heads.heads[-1]}
    if accepted is not None:
        details |= {"accepted_number": accepted.number, "accepted_head": accepted.head}
        if body.heads is not None:
            details["head_there"] = body.heads.at(accepted.number)
    uow.audit(actor, "site.table_refused", session, **details)


# --- what was accepted ----------------------------------------------------------------------------


@reads("table.read", "site_table.list")
def list_tables(
    tx: Tx, actor: Actor, site: str, limit: int = 50, cursor: str | None = None
) -> Page[SiteTableInfo]:
    """List what was accepted last of each table of a site, by ids (operators, the site itself)."""
    if not sees_tables(actor, site):
        raise absent("site")
    after = read_cursor(cursor, name_in_list)
    principal_named(tx, Role.SITE, site)
    rows = tx.site_tables.list(site, limit + 1, after)
    return page_of(rows, limit, "table_id", _info)


@writes("table.accept", "site_table.accept")
def accept_table(
    uow: UnitOfWork, actor: Actor, site: str, table_id: str, body: TableAcceptance
) -> SiteTableInfo:
    """Accept a chain of a site's table, in place of what was accepted before (operators).

    Idempotent. A table that the site has not used is accepted too: the state of the site may be
    lost.
    """
    known = uow.tx.site_tables
    principal = principal_named(uow.tx, Role.SITE, site)
    known.lock(site)
    before = known.get(site, table_id)
    if before is not None and (before.number, before.head) == (body.number, body.head):
        return _info(before)
    after = SiteTable(site, table_id, body.number, body.head, uow.now)
    known.put(after)
    uow.audit(
        actor,
        "site.table_accepted",
        principal.key,
        table=table_id,
        number=body.number,
        head=body.head,
        number_before=None if before is None else before.number,
        head_before=None if before is None else before.head,
    )
    return _info(after)


def _info(table: SiteTable) -> SiteTableInfo:
    return show(SiteTableInfo, table)
