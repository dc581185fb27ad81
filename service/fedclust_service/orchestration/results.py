"""The result of a completed session, cut to what the reader may see, and put to use."""

from __future__ import annotations

import json

from fedclust.algorithms.base import Result, RuleViolation
from fedclust.algorithms.placing import place, tells_new
from fedclust.wire import codec
from fedclust.wire.models import (
    AssignmentRequest,
    Assignments,
    Provenance,
    ProvenanceEntry,
    ResultDocument,
)
from fedclust.wire.problems import FieldError
from fedclust_service.domain.access import (
    Actor,
    reads_result,
    require,
    sees_submission_hash,
    took_part,
    visible_result,
)
from fedclust_service.domain.refusal import Refusal, broken_rule
from fedclust_service.domain.session import Session, SessionState
from fedclust_service.orchestration.change import Change, commit
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.lookup import (
    definition_of,
    plan_or_refuse,
    session_for,
)
from fedclust_service.store import StoredResult, Tx

#: Cells of one request; each is assigned by itself, so that more can be asked for in parts.
MAX_CELLS = 1_000


def get_result(co: Coordinator, actor: Actor, session: str, k: int | None = None) -> ResultDocument:
    """Return the result; Refusal ``result-not-ready`` before completion. Reading is audited.

    ``k``: of a sweep, the clustering with so many clusters alone; Refusal ``invalid`` where there
    is none, naming those that there are.
    """
    require(actor, "result.read")

    def look(tx: Tx) -> tuple[Session, StoredResult, Provenance]:
        found, own = session_for(tx, actor, session)
        if not reads_result(own):
            raise Refusal("forbidden", "This site was excluded from the session.")
        stored = tx.results.get(found.id)
        if stored is None:
            raise _not_ready(found)
        return found, stored, _provenance(tx, actor, found, stored)

    found, stored, provenance = co.store.read("result.get", look)
    definition = definition_of(found)
    shown = visible_result(
        actor, codec.decode_model(Result, stored.result), definition.policy.min_group_size
    )

    if k is not None:
        try:
            shown = shown.at(k)
        except ValueError as error:
            wrong = FieldError(pointer="/k", rule="sweep", message=str(error))
            raise Refusal("invalid", "Ask for another number of clusters.", [wrong]) from None

    def record(change: Change) -> None:
        change.audit(actor, "result.read", found.name)

    commit(co, "result.audit", record)
    return ResultDocument(
        session=found.name,
        completed_at=stored.completed_at,
        features=definition.features,
        result=codec.to_tree(shown),
        provenance=provenance,
    )


def assign(co: Coordinator, actor: Actor, session: str, request: AssignmentRequest) -> Assignments:
    """Return the clusters of the cells of a site that took no part (k-FED, Theorem 3.2).

    Nothing of the cells is stored or told; that somebody asked, about how many, is audited. A
    site that joined is refused: its guard does not see what it would send here.
    """
    require(actor, "result.assign")

    def look(tx: Tx) -> tuple[Session, StoredResult]:
        found, own = session_for(tx, actor, session)
        if not reads_result(own):
            raise Refusal("forbidden", "This site was excluded from the session.")
        if took_part(own):
            raise Refusal(
                "wrong-state",
                "This site took part. Label its rows, old and new, with the result instead: "
                "nothing has to leave the site for that.",
            )
        stored = tx.results.get(found.id)
        if stored is None:
            raise _not_ready(found)
        return found, stored

    found, stored = co.store.read("result.assign", look)
    definition = definition_of(found)
    result = codec.decode_model(Result, stored.result)
    if not len(result.centroids):
        raise Refusal("wrong-state", "The result has no centroids that cells could be near to.")
    if not tells_new(plan_or_refuse(found).method, result):
        raise Refusal(
            "wrong-state",
            "This session's clusters are not told apart by their centroids: only sites that took "
            "part can label rows. Ask the analyst for a session that gives others labels, too.",
        )
    if len(request.centroids) > MAX_CELLS:
        error = FieldError(
            pointer="/centroids", rule="too-many", message=f"at most {MAX_CELLS} cells at once"
        )
        raise Refusal("invalid", "Ask for them in parts.", [error])
    p = definition.policy.min_group_size
    try:
        clusters = place(
            result, definition.features, request.centroids, request.counts, p, request.features
        )
    except RuleViolation as violation:
        raise broken_rule(violation, "Correct what is named here. Nothing was stored.") from None

    def record(change: Change) -> None:
        change.audit(actor, "result.assigned", found.name, cells=len(clusters))

    commit(co, "result.assign", record)
    return Assignments(session=found.name, clusters=tuple(clusters.tolist()))


def _not_ready(session: Session) -> Refusal:
    if session.state in (SessionState.FAILED, SessionState.CANCELLED):
        return Refusal("result-not-ready", "The session ended without a result.")
    return Refusal("result-not-ready", "Wait until the session has completed.", retry_after_s=10)


def _provenance(tx: Tx, actor: Actor, session: Session, stored: StoredResult) -> Provenance:
    definition = definition_of(session)
    numbers = tx.rounds.numbers(session.id)
    answers = tx.submissions.summaries(session_id=session.id)
    platform = json.loads(stored.provenance)
    return Provenance(
        definition_sha256=session.definition_sha256,
        algorithm=session.algorithm,
        method_version=session.method_version,
        seed=definition.seed,
        sites=tuple(sorted({each.site for each in answers})),
        server_version=platform["fedclust"],
        platform=platform,
        submissions=tuple(
            ProvenanceEntry(round=numbers[each.round_id], site=each.site, sha256=each.sha256)
            for each in answers
            if sees_submission_hash(actor, each.site)
        ),
    )
