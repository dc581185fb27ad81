"""The audit trail's chain, asked from outside: one hash, or the whole of it recomputed."""

from __future__ import annotations

from fedclust.wire.models import AuditHead
from fedclust_service.domain.access import Actor, absent, require
from fedclust_service.domain.chain import Head, Verdict, verify
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.store import Store, Tx


def head_at(co: Coordinator, actor: Actor, number: int) -> AuditHead:
    """Return the hash that a sealed entry has; Refusal ``not-found`` where there is none."""
    require(actor, "audit.head")
    found = co.store.read("audit.head", lambda tx: tx.chain.hash_of(number))
    if found is None:
        raise absent("sealed audit entry")
    return AuditHead(number=number, hash=found)


def verify_trail(store: Store, noted: str | Head | None = None) -> tuple[Verdict, int]:
    """Recompute the chain on one snapshot; also the number of entries that wait to be sealed."""

    def work(tx: Tx) -> tuple[Verdict, int]:
        return verify(tx.chain.sealed(), tx.chain.recorded(), noted), tx.chain.waiting()

    return store.read("audit.verify", work)
