"""The result of a completed session, limited to what the reader may see."""

from fedclust.result.provenance import result_document
from fedclust.schema.result import Result
from fedclust.wire import codec
from fedclust.wire.models import AuditHead, ProvenanceEntry, ResultDocument
from fedclust_service.domain.access import (
    Actor,
    Refusal,
    reads_result,
    require,
    sees_answer_details,
    visible_result,
    wrong_field,
)
from fedclust_service.domain.session import Session, SessionState
from fedclust_service.store import StoredResult, Tx
from fedclust_service.usecases.access_queries import session_for
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.definitions import definition_of
from fedclust_service.usecases.unit_of_work import UnitOfWork, commit

_COMPLETED = "session.completed"


def get_result(co: Coordinator, actor: Actor, session: str, k: int | None = None) -> ResultDocument:
    """Return the result; Refusal ``result-not-ready`` before completion. Reading is audited.

    ``k`` selects one clustering of a sweep. If there is none with K clusters, Refusal
    ``invalid`` names the available ones.
    """
    require(actor, "result.read")

    def look(tx: Tx) -> tuple[Session, StoredResult, list[ProvenanceEntry], AuditHead | None]:
        found, own = session_for(tx, actor, session)
        if not reads_result(own):
            raise Refusal("forbidden", "This site was excluded from the session.")
        stored = tx.results.get(found.id)
        if stored is None:
            raise _not_ready(found)
        numbers = tx.rounds.numbers(found.id)
        sent = [
            ProvenanceEntry(round=numbers[each.round_id], site=each.site, sha256=each.sha256)
            for each in tx.submissions.summaries(session_id=found.id)
        ]
        return found, stored, sent, _head_of_completion(tx, found)

    found, stored, sent, head = co.store.read("result.get", look)
    definition_of(found)  # damaged bytes are an error
    shown = visible_result(actor, codec.decode_model(Result, stored.result))

    if k is not None:
        try:
            shown = shown.at(k)
        except ValueError as error:
            raise other_k(str(error)) from None

    commit(co, "result.audit", lambda uow: uow.audit(actor, "result.read", found.name))
    at, platform = stored.completed_at, stored.provenance
    document = result_document(found.definition, shown, at, platform, sent)
    readable = tuple(
        each for each in document.provenance.submissions if sees_answer_details(actor, each.site)
    )
    provenance = document.provenance.model_copy(
        update={"submissions": readable, "audit_head": head}
    )
    names = {k: tuple(names) for k, names in stored.cluster_names.items()}
    return document.model_copy(update={"provenance": provenance, "cluster_names": names})


def name_clusters(uow: UnitOfWork, actor: Actor, session: Session, names: tuple[str, ...]) -> None:
    """Name the clusters of the clustering that has so many; Refusal for names that do not fit.

    An empty name removes that of its cluster, which is then called "cluster 0" and so on again.
    """
    stored = uow.tx.results.get(session.id)
    if stored is None:
        raise _not_ready(session)
    result = codec.decode_model(Result, stored.result)
    counts = {len(each.result.centroids) for each in result.sweep or ()} | {len(result.centroids)}
    complaint = ""
    if len(names) not in counts:
        wanted = " or ".join(map(str, sorted(counts)))
        complaint = f"give {wanted} names, one for each cluster; {len(names)} were given"
    elif len({name.casefold() or f"cluster {k}" for k, name in enumerate(names)}) < len(names):
        complaint = "two clusters have the same name"
    if complaint:
        raise wrong_field("/cluster_names", "names", complaint, "Give other names.")
    known = {**stored.cluster_names, str(len(names)): list(names)}
    known = {k: each for k, each in known.items() if any(each)}
    uow.tx.results.name_clusters(session.id, known)
    uow.tx.sessions.touch(session.id)
    named = sum(map(bool, names))
    uow.audit(actor, "result.named", session.name, clusters=len(names), named=named)


def other_k(message: str) -> Refusal:
    """Return the refusal of a number of clusters that the result does not have."""
    return wrong_field("/k", "sweep", message, "Ask for another number of clusters.")


def _not_ready(session: Session) -> Refusal:
    if session.state in (SessionState.FAILED, SessionState.CANCELLED):
        return Refusal("result-not-ready", "The session ended without a result.")
    return Refusal("result-not-ready", "Wait until the session has completed.", retry_after_s=10)


def _head_of_completion(tx: Tx, session: Session) -> AuditHead | None:
    """Return the sealed entry of the completion."""
    number = tx.chain.last_of(session.name, frozenset({_COMPLETED})).get(_COMPLETED)
    found = None if number is None else tx.chain.hash_of(number)
    return None if number is None or found is None else AuditHead(number=number, hash=found)
