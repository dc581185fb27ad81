"""Read a round that is to be aggregated: its job, and its answers at once or one by one."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

from fedclust.rounds import Plan
from fedclust_service.domain.round import Round
from fedclust_service.domain.session import Session
from fedclust_service.domain.submission import Submission
from fedclust_service.store import DataDamaged, Store, Tx
from fedclust_service.usecases.access_queries import joined_sites
from fedclust_service.usecases.aggregation import Job, StoredAnswer
from fedclust_service.usecases.definitions import masks_of, silent_sites, smallest_p
from fedclust_service.usecases.round_lifecycle import check_tasks

#: The pause between two answers that are sent to a process.
_PAUSE_S = 0.001


@dataclass(frozen=True)
class StoredRound:
    """A round's answers, without payloads if they are read one by one, and every site's p."""

    round_id: int
    answers: Sequence[Submission]
    ps: Mapping[str, int]

    def answer(self, full: Submission) -> StoredAnswer:
        """Return an answer for the aggregation; DataDamaged if its payload is gone."""
        if full.empty is not (full.payload is None):
            raise DataDamaged("submission", full.site)
        return StoredAnswer(full.site, self.ps[full.site], full.payload)

    def one_by_one(self, store: Store, stopping: Event) -> Iterator[StoredAnswer]:
        """Yield the answers of a long round, with a pause after each for other requests.

        Reading holds the interpreter's lock. A pause lets waiting threads wake up; releasing the
        lock for a moment does not.
        """
        for each in self.answers:
            read = functools.partial(_read_answer, self.round_id, each.site)
            yield self.answer(store.read("driver.load_one", read))
            stopping.wait(_PAUSE_S)


def load_round(
    tx: Tx, plan: Plan, session: Session, current: Round, *, whole: bool
) -> tuple[Job, StoredRound]:
    """Read a round; unless ``whole``, without payloads."""
    check_tasks(current, tx.rounds.addressees(current.id))
    participations = tx.participations.list(session.id)
    job = Job(
        session=session.name,
        definition=session.definition,
        number=current.number,
        phase=current.phase,
        state=tx.states.get(session.id, current.number - 1),
        roster=joined_sites(participations),
        masks=masks_of(plan, participations),
        silent=silent_sites(plan, participations),
    )
    smallest = plan.policy.min_group_size
    ps = {each.site: smallest_p(smallest, each) for each in participations}
    read = tx.submissions.list if whole else tx.submissions.summaries
    return job, StoredRound(current.id, read(round_id=current.id), ps)


def _read_answer(round_id: int, site: str, tx: Tx) -> Submission:
    found = tx.submissions.get(round_id, site)
    if found is None:
        raise LookupError("an answer is gone")
    return found
