"""The audit trail from outside: one hash, the chain verified, what an operator did by hand."""

from __future__ import annotations

from fedclust.wire.models import AuditHead
from fedclust_service.domain.access import Actor, absent, require
from fedclust_service.domain.audit_chain import Head, Verdict, verify
from fedclust_service.orchestration.core import CoordinatorCore
from fedclust_service.orchestration.unit_of_work import COORDINATOR, Detail, commit
from fedclust_service.store import Store, Tx


def head_at(co: CoordinatorCore, actor: Actor, number: int) -> AuditHead:
    """Return the hash of a sealed entry; Refusal ``not-found`` if there is no such entry."""
    require(actor, "audit.head")
    found = co.store.read("audit.head", lambda tx: tx.chain.hash_of(number))
    if found is None:
        raise absent("sealed audit entry")
    return AuditHead(number=number, hash=found)


def verify_trail(store: Store, noted: str | Head | None = None) -> tuple[Verdict, int]:
    """Recompute the chain on one snapshot; return the verdict and the number of unsealed entries.

    ``noted`` is a head that somebody noted elsewhere and that the chain must hold.
    """

    def work(tx: Tx) -> tuple[Verdict, int]:
        return verify(tx.chain.sealed(), tx.chain.recorded(), noted), tx.chain.waiting()

    return store.read("audit.verify", work)


def record(co: CoordinatorCore, name: str, action: str, **details: Detail) -> None:
    """Record what an operator did to the database by hand, in a transaction called ``name``."""
    commit(co, name, lambda uow: uow.audit(COORDINATOR, action, "database", **details))
