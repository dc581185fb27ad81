"""Sites join and leave sessions, refuse their tasks, and are excluded from them."""

import contextlib
import dataclasses
from datetime import datetime
from importlib.metadata import version as installed_version
from typing import Any

from fedclust.definition import check_own_features
from fedclust.methods.registry import METHODS
from fedclust.schema.errors import RuleViolation
from fedclust.schema.size_bands import band_limits
from fedclust.wire.errors import FieldError
from fedclust.wire.models import Participation as JoinRequest
from fedclust.wire.models import ParticipationInfo, TaskRefusal
from fedclust_service.domain.access import Actor, Refusal, absent, broken_rule, wrong_field
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import Participation, ParticipationState, Session
from fedclust_service.store import DataDamaged, Tx
from fedclust_service.usecases.access_queries import is_slug, own_session, session_for, show
from fedclust_service.usecases.definitions import definition_of, plan_or_refuse
from fedclust_service.usecases.round_lifecycle import start_if_complete, update_round
from fedclust_service.usecases.site_tables import record_heads, refuse_other_table
from fedclust_service.usecases.unit_of_work import UnitOfWork, writes

# --- joining --------------------------------------------------------------------------------------


@writes("session.join", "participation.join")
def join(
    uow: UnitOfWork, actor: Actor, session: str, body: JoinRequest
) -> tuple[ParticipationInfo, bool] | Refusal:
    """Join with consent (sites). False if the site had joined with the same body or joins late.

    A site may join again with another SDK: ``sdk_version`` and ``methods`` may differ, as long as
    ``methods`` has the session's version. A refusal of its table is returned, because the audit
    trail records it.
    """
    _check_heads(body)
    tx = uow.tx
    found, own = own_session(tx, actor, session, lock=True)
    if own.state is ParticipationState.JOINED:
        return _rejoin(uow, actor, found, own, body)
    _check_state(found, own, uow.now)
    _check_consent(tx, actor, found, body)
    refused = record_heads(uow, actor, found.name, body)
    if refused is not None:
        return refused
    joined = own.to(
        ParticipationState.JOINED,
        **_declared(body),
        table_id=body.table_id,
        separate_groups=body.separate_groups,
        other_persons=body.other_persons,
        sdk_version=body.sdk_version,
        joined_at=uow.now,
    )
    tx.participations.update(joined)
    late = found.state.under_way
    uow.audit(
        actor,
        "site.joined",
        found.name,
        definition=body.definition_sha256,
        late=late,
        table=body.table_id,
        separate_groups=body.separate_groups,
        other_persons=body.other_persons,
        no_person_in_another_table=body.no_person_in_another_table,
        points_short=body.points_short,
    )
    start_if_complete(uow, found, actor)
    return _participation_info(found, joined), not late


def _declared(body: JoinRequest) -> dict[str, Any]:
    """Return the declarations that hold until the session ends."""
    return {
        "definition_sha256": body.definition_sha256,
        "two_sites_with": body.consents.two_sites_with,
        "protection_none": body.consents.protection_none,
        "features": body.features,
        "min_group_size": body.min_group_size,
        "size_band": body.size_band,
        "points_short": body.points_short,
    }


def _rejoin(
    uow: UnitOfWork, actor: Actor, session: Session, own: Participation, body: JoinRequest
) -> tuple[ParticipationInfo, bool] | Refusal:
    if own.table_id != body.table_id:
        return refuse_other_table(uow, actor, session.name, body)
    if dataclasses.replace(own, **_declared(body)) != own:
        raise Refusal(
            "wrong-state",
            "This site has joined the session with another declaration, which holds until the "
            "session ends. Send that one again, or leave the session.",
        )
    if not session.state.ended:
        _check_versions(session, body)
    refused = record_heads(uow, actor, session.name, body)
    if refused is not None:
        return refused
    if own.sdk_version != body.sdk_version:
        own = dataclasses.replace(own, sdk_version=body.sdk_version)
        uow.tx.participations.update(own)
    return _participation_info(session, own), False


def _check_state(session: Session, own: Participation, now: datetime) -> None:
    if own.state.gone:
        raise Refusal(
            "wrong-state",
            "This site has left the session, was excluded from it or has refused one of its tasks, "
            "which cannot be undone. Ask the analyst for a new session.",
        )
    if session.state.ended:
        raise Refusal("wrong-state", "The session has ended. Its result, if any, can be read.")
    expires = definition_of(session).expires
    if expires is not None and now >= expires:
        raise Refusal(
            "session-expired",
            f"The session expired at {expires:%Y-%m-%d %H:%M} UTC: no site can join it. Ask the "
            "analyst for a new session.",
        )
    if session.state.under_way and not plan_or_refuse(session).method.joins_late:
        raise Refusal(
            "late-joining-refused",
            "The session has started, and sites cannot join its method later. Ask the analyst for "
            "a new session.",
        )


def _check_consent(tx: Tx, actor: Actor, session: Session, body: JoinRequest) -> None:
    definition = definition_of(session)
    if body.definition_sha256 != session.definition_sha256:
        raise Refusal(
            "consent-mismatch",
            "The consent names another definition than this session's. Read the session again "
            "and consent to its definition.",
        )
    _check_versions(session, body)
    if faults := check_own_features(definition, body.features):
        raise Refusal("invalid", "Match this site's columns to the session's features.", faults)
    _check_band(body)
    missing = []
    if definition.policy.min_sites == 2:
        others = [each.site for each in tx.participations.list(session.id)]
        others.remove(actor.name)
        if [body.consents.two_sites_with] != others:
            missing.append(
                FieldError(
                    pointer="/consents/two_sites_with",
                    rule="two-sites",
                    message="with two sites each can learn the other's part by subtraction: "
                    "name the other site to consent",
                )
            )
    if definition.policy.protection == "none" and not body.consents.protection_none:
        missing.append(
            FieldError(
                pointer="/consents/protection_none",
                rule="protection-none",
                message="sites compute with exact rows here (protection none): true consents",
            )
        )
    if missing:
        raise Refusal("consent-needed", "Give the consents that are named here.", missing)


def _check_heads(body: JoinRequest) -> None:
    if (body.table_id is None) is not (body.heads is None):
        why = "goes together with table_id: both or none"
        detail = "Send the heads of the table's changes with its id."
        raise wrong_field("/heads", "heads", why, detail)


def _check_versions(session: Session, body: JoinRequest) -> None:
    engine_version = definition_of(session).engine_version
    method, owner = session.algorithm, METHODS.distribution(session.algorithm)
    pinned = (
        (method, session.method_version, body.methods.get(method, ()), owner),
        ("the rounds that all methods share", engine_version, body.engine, "fedclust"),
    )
    for what, version, spoken, distribution in pinned:
        if version in spoken:
            continue
        wanted = f"{distribution}=={installed_version(distribution)}"
        raise Refusal(
            "version-unsupported",
            f"The session runs version {version} of {what}, which this SDK does not support. "
            f'Install one that does with: pip install "{wanted}"',
        )


def _check_band(body: JoinRequest) -> None:
    try:
        band_limits(body.size_band)
    except RuleViolation as violation:
        raise broken_rule(violation, "Declare one of the bands.", "/size_band") from None


def _participation_info(session: Session, own: Participation) -> ParticipationInfo:
    return show(ParticipationInfo, own, session=session.name)


# --- leaving --------------------------------------------------------------------------------------


@writes("session.join", "participation.leave")
def leave(uow: UnitOfWork, actor: Actor, session: str) -> None:
    """Decline or leave (sites); stored answers still count. Idempotent."""
    found, own = own_session(uow.tx, actor, session, lock=True)
    _depart(uow, actor, found, own, ParticipationState.LEFT)


@writes("session.manage", "participation.exclude")
def exclude(uow: UnitOfWork, actor: Actor, session: str, site: str) -> None:
    """Exclude a site (its analyst, operators); stored answers still count. Idempotent."""
    found, _ = session_for(uow.tx, actor, session, lock=True)
    own = uow.tx.participations.get(found.id, site) if is_slug(site) else None
    if own is None:
        raise absent("site in this session")
    _depart(uow, actor, found, own, ParticipationState.EXCLUDED)


@writes("submission.put", "participation.refuse")
def refuse(
    uow: UnitOfWork, actor: Actor, session: str, number: int, body: TaskRefusal
) -> ParticipationInfo:
    """Refuse the task of a round, and leave the session with it (sites). Idempotent.

    What the site sent before still counts. It does not matter whether the round still collects: a
    site that refuses a task answers no other one.
    """
    found, own = own_session(uow.tx, actor, session, lock=True)
    if uow.tx.rounds.get(found.id, number) is None:
        raise absent("round")
    if own.state is ParticipationState.REFUSED:
        return _participation_info(found, own)
    if own.state is not ParticipationState.JOINED:
        raise Refusal("wrong-state", "This site takes no part in the session: stop.")
    refused = dataclasses.replace(own, refused_task=body.rule)
    details: dict[str, str | int] = {"round": number, "reason": body.rule}
    gone = _depart(uow, actor, found, refused, ParticipationState.REFUSED, **details)
    return _participation_info(found, gone)


def _depart(
    uow: UnitOfWork,
    actor: Actor,
    session: Session,
    own: Participation,
    target: ParticipationState,
    **details: str | int,
) -> Participation:
    """Remove a site, which may end the collecting of its round or start the session."""
    tx = uow.tx
    if own.state.gone:
        return own
    if session.state.ended:
        raise Refusal("wrong-state", "The session has ended: a site cannot leave it any more.")
    gone = own.to(target, left_at=uow.now)
    tx.participations.update(gone)
    tx.sessions.touch(session.id)
    uow.audit(actor, f"site.{target.value}", session.name, site=own.site, **details)
    current = tx.rounds.latest(session.id)
    if current is not None and current.state is RoundState.COLLECTING:
        if tx.submissions.summary(current.id, own.site) is None:
            tx.rounds.release(current.id, own.site)
        update_round(uow, session, current)
    # A session with a damaged definition never starts, but its sites may leave.
    with contextlib.suppress(DataDamaged):
        start_if_complete(uow, session, actor)
    return gone
