"""The audit trail from outside: one hash, the chain verified, what an operator did by hand."""

from fedclust.schema.model import Model
from fedclust.wire.models import AuditHead
from fedclust_service.domain.access import Actor, AuditEntry, absent
from fedclust_service.domain.audit_chain import Head, Verification, is_start
from fedclust_service.store import Store, Tx
from fedclust_service.usecases.attention import VERIFIED, last_about_database
from fedclust_service.usecases.core import CoordinatorCore
from fedclust_service.usecases.unit_of_work import (
    COORDINATOR,
    Detail,
    UnitOfWork,
    commit,
    reads,
    writes,
)

#: A step takes about 0.2 s.
MOST_VERIFIED = 20_000


@reads("audit.head", "audit.head")
def head_at(tx: Tx, _: Actor, number: int) -> AuditHead:
    """Return the hash of a sealed entry; Refusal ``not-found`` if there is no such entry."""
    found = tx.chain.hash_of(number)
    if found is None:
        raise absent("sealed audit entry")
    return AuditHead(number=number, hash=found)


class VerificationStep(Model):
    """One step of a verification: everything up to ``head`` is verified.

    ``head`` is ``NUMBER:HASH``, from which the next step continues. ``entries`` of ``sealed`` are
    verified. ``done``: the end was reached, or faults were found. ``holds_noted`` is null until
    the end, or if no head was noted.
    """

    head: str
    entries: int
    sealed: int
    unsealed: int
    done: bool
    faults: tuple[str, ...]
    holds_noted: bool | None


@reads("admin.read", "audit.verify_step")
def verify_audit(
    tx: Tx,
    _: Actor,
    after: Head | None = None,
    noted: str | Head | None = None,
    most: int = MOST_VERIFIED,
) -> VerificationStep:
    """Verify at most ``most`` entries after the head ``after`` (operators).

    The steps together find what :func:`verify_trail` finds, up to the first step with a fault.
    ``noted`` is a head that somebody noted elsewhere and that the chain must hold.
    """
    return _verify(tx, after or Head(), noted, most)


def verify_trail(store: Store, noted: str | Head | None = None) -> VerificationStep:
    """Verify the whole trail in one step, as :func:`verify_audit` does."""
    return store.read("audit.verify", lambda tx: _verify(tx, Head(), noted, None))


def _verify(tx: Tx, after: Head, noted: str | Head | None, most: int | None) -> VerificationStep:
    run, came, held = Verification(after), 0, None
    for entry in tx.chain.sealed(run.head.number, most):
        run.follow(entry)
        came += 1
    recorded, ended = tx.chain.recorded(), most is None or came < most
    if ended:
        held = None if noted is None else is_start(noted) or tx.chain.holds(noted)
        run.end(recorded, holds_noted=held is not False)
    # A tampered head may hold anything.
    last = recorded.number if recorded and isinstance(recorded.number, int) else 0
    return VerificationStep(
        head=str(run.head),
        entries=run.head.number,
        sealed=max(last, run.head.number),
        unsealed=tx.chain.waiting(),
        done=ended or bool(run.faults),
        faults=run.faults,
        holds_noted=held,
    )


@writes("admin.read", "audit.verified")
def record_verification(uow: UnitOfWork, actor: Actor, last: VerificationStep) -> None:
    """Record the outcome of a verification whose last step this was (operators)."""
    found = {"entries": last.entries, "faults": len(last.faults)}
    uow.audit(actor, VERIFIED, "database", **found)


@reads("admin.read", "audit.verified")
def last_verification(tx: Tx, _: Actor) -> AuditEntry | None:
    """Return the entry about the last verification (operators)."""
    return last_about_database(tx, VERIFIED)


def record(co: CoordinatorCore, name: str, action: str, **details: Detail) -> None:
    """Record what an operator did to the database by hand, in a transaction called ``name``."""
    commit(co, name, lambda uow: uow.audit(COORDINATOR, action, "database", **details))


def record_command(store: Store, action: str, **details: Detail) -> None:
    """Record what a command did with the database, from the command's process."""
    store.run_tx(
        "command.record",
        lambda tx: tx.audit.append(COORDINATOR, action, "database", details, tx.now),
    )
