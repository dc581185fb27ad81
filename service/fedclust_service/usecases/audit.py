"""The audit trail from outside: one hash, the chain verified, what an operator did by hand.

The sealer numbers and chains the entries that have been committed. A transaction inserts its
entries without number and hash. Entries with higher ids can be committed earlier on PostgreSQL, and
if each transaction chained its own, they would have to wait for one another. Therefore a thread of
each process seals committed entries, one at a time: the chain's row is locked. It writes numbers,
hashes and the head in one transaction, so a crash leaves a complete batch or none.
"""

import math
import time

from fedclust.schema.model import Model
from fedclust.wire.models import AuditHead
from fedclust_service.background import BackgroundThread
from fedclust_service.domain.access import Actor, AuditEntry, absent
from fedclust_service.domain.audit_chain import Head, Verification, is_start
from fedclust_service.store import Store, Tx
from fedclust_service.usecases.attention import VERIFIED
from fedclust_service.usecases.core import CoordinatorCore, survived
from fedclust_service.usecases.unit_of_work import (
    COORDINATOR,
    Detail,
    UnitOfWork,
    commit,
    reads,
    writes,
)

_BATCH = 500
#: The wait for entries that are written together with the one that woke the thread.
_GATHER_S = 0.05


class Sealer(BackgroundThread):
    """Runs :meth:`run_once` after each commit with entries, and at regular intervals."""

    def __init__(self, co: CoordinatorCore) -> None:
        super().__init__("fedclust-sealer")
        self._co = co
        #: The last sealed entry that this process knows; None before the first look.
        self.head: Head | None = None
        # When the last entry to seal was found.
        self._found_at = -math.inf

    def ask_to_stop(self) -> None:
        """End the thread after one last look. Any thread."""
        super().ask_to_stop()
        self._co.sealing_due.set()

    def run_once(self) -> None:
        """Seal all entries in the calling thread."""
        store = self._co.store
        self.head, waiting = store.read(
            "seal.look", lambda tx: (tx.chain.head(), tx.chain.waiting())
        )
        more = waiting > 0
        if more:
            self._found_at = time.monotonic()
        while more:
            self.head, more = store.run_tx("seal", lambda tx: tx.chain.seal(_BATCH))

    def run(self) -> None:
        """Run in the thread."""
        limits = self._co.limits
        while not self._stopping.is_set():
            self._once()
            if self._co.sealing_due.wait(limits.seal_look_s):
                # A burst of entries is sealed in one batch, with one flush to disk.
                rest = self._found_at + limits.seal_pause_s - time.monotonic()
                self._stopping.wait(max(_GATHER_S, rest))
            self._co.sealing_due.clear()
        self._once()

    def _once(self) -> None:
        with survived("sealer"):
            self.run_once()


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
    uow.audit(actor, VERIFIED, "database", entries=last.entries, faults=len(last.faults))


@reads("admin.read", "audit.verified")
def last_verification(tx: Tx, _: Actor) -> AuditEntry | None:
    """Return the entry about the last verification (operators)."""
    return tx.audit.last("database", VERIFIED)


def record(co: CoordinatorCore, name: str, action: str, **details: Detail) -> None:
    """Record what an operator did to the database by hand, in a transaction called ``name``."""
    commit(co, name, lambda uow: uow.audit(COORDINATOR, action, "database", **details))


def record_command(store: Store, action: str, **details: Detail) -> None:
    """Record what a command did with the database, from the command's process."""
    store.run_tx(
        "command.record",
        lambda tx: tx.audit.append(COORDINATOR, action, "database", details, tx.now),
    )
