"""What sites and database saw of one session, and whether a correct coordinator allows it.

The model: rounds are opened, collected and closed once and in order; a round stores one answer per
site, and what was acknowledged stays stored under its first receipt; whoever asks later sees no
older state; answers and result are those of ``simulate``. Nothing here asks a coordinator.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: An honest site whose coordinators fail and come back reads no other status. None: no answer.
ALLOWED = {"task": {200, 304, 503, None}, "submit": {200, 201, 503, None}}
_ROUND = ("round.opened", "round.collected", "round.closed")
Key = tuple[int, str]


@dataclass(frozen=True)
class Request:
    """One request of a site and its outcome.

    Attributes
    ----------
    site : str
    kind : str
        ``task`` or ``submit``.
    began, ended : float
        Seconds of one clock.
    status : int or None
        None: the connection broke or the time was over.
    round : int or None
        Of a submission; of a task, the one that the answer names.
    state : str or None
        The status that a task answers.
    receipt : mapping or None
    sha256 : str or None
        Of the body that was sent.
    """

    site: str
    kind: str
    began: float
    ended: float
    status: int | None
    round: int | None = None
    state: str | None = None
    receipt: Mapping[str, Any] | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Fault:
    """What was done to whom, and when."""

    kind: str
    worker: int | None
    began: float
    ended: float


@dataclass
class History:
    """One session.

    Attributes
    ----------
    requests : list of Request
    replays : list of Request
        Every submission, sent once more after the end.
    stored : list of (int, str, str)
        Round, site and SHA-256 of each answer, read from the database.
    trail : list of (str, int or None)
        Actions of the audit trail with their round, in order.
    answers, expected_answers : mapping of (int, str) to str
        SHA-256 of each payload that a site computed, and of ``simulate``'s.
    result, expected_result : bytes
    """

    requests: list[Request]
    replays: list[Request]
    stored: list[tuple[int, str, str]]
    trail: list[tuple[str, int | None]]
    answers: Mapping[Key, str]
    expected_answers: Mapping[Key, str]
    result: bytes
    expected_result: bytes


def violations(history: History) -> list[str]:
    """Return what a correct coordinator would not have done, a sentence each."""
    return [
        *_statuses(history),
        *_rounds(history),
        *_submissions(history),
        *_reads(history.requests),
        *_outcome(history),
    ]


def _statuses(history: History) -> Iterator[str]:
    for each in history.requests:
        if each.status not in ALLOWED[each.kind]:
            yield f"{each.site} read status {each.status} of a {each.kind}, round {each.round}"


def _rounds(history: History) -> Iterator[str]:
    last = max((number for number, _ in history.expected_answers), default=0)
    recorded = [entry for entry in history.trail if entry[0] in _ROUND]
    expected = [(action, number) for number in range(1, last + 1) for action in _ROUND]
    for action, number in sorted({*recorded, *expected}, key=str):
        n, due = recorded.count((action, number)), expected.count((action, number))
        if n != due:
            yield f"{action} of round {number} stands {n} times in the trail, not {due}"
    if Counter(recorded) == Counter(expected) and recorded != expected:
        yield "the rounds of the trail are out of order"
    ends = [action for action, _ in history.trail if action == "session.completed"]
    if len(ends) != 1:
        yield f"the session was completed {len(ends)} times"


def _submissions(history: History) -> Iterator[str]:
    stored: dict[Key, str] = {}
    for number, site, sha256 in history.stored:
        if (number, site) in stored:
            yield f"round {number} stores two answers of {site}"
        stored[number, site] = sha256
    receipts: dict[Key, Mapping[str, Any]] = {}
    accepted: Counter[Key] = Counter()
    for each in [*history.requests, *history.replays]:
        if each.kind != "submit" or each.status not in (200, 201):
            continue
        key = (each.round, each.site)
        where = f"round {each.round} of {each.site}"
        accepted[key] += each.status == 201
        if stored.get(key) != each.sha256:
            yield f"the acknowledged answer is lost: {where}"
        if each.receipt["sha256"] != each.sha256:
            yield f"the receipt names another body: {where}"
        if receipts.setdefault(key, each.receipt) != each.receipt:
            yield f"receipts differ: {where}"
    for (number, site), times in accepted.items():
        if times > 1:
            yield f"round {number} accepted {times} answers of {site}"
    replayed = {(each.round, each.site): each.status for each in history.replays}
    for number, site in sorted(history.expected_answers):
        if replayed.get((number, site)) != 200:
            status = replayed.get((number, site))
            yield f"the replay for round {number} of {site} reads {status}, not 200"
    for number, site in sorted(stored.keys() - history.expected_answers.keys()):
        yield f"round {number} stores an answer of {site} that nobody asked for"


def _reads(requests: Sequence[Request]) -> Iterator[str]:
    """Compare each task with all answers that were complete before it was asked for."""
    tasks = [each for each in requests if each.kind == "task" and each.status == 200]
    for each in tasks:
        before = [
            other
            for other in requests
            if other.ended <= each.began and other.status in (200, 201) and other.round is not None
        ]
        newest = max((other.round or 0 for other in before), default=0)
        if (each.round or 0) < newest:
            yield f"{each.site} read round {each.round} after round {newest} had been told"
        if each.state == "work" and any(
            (other.kind, other.site, other.round) == ("submit", each.site, each.round)
            for other in before
        ):
            yield f"{each.site} was asked for round {each.round} again after its receipt"


def _outcome(history: History) -> Iterator[str]:
    for key in sorted(history.expected_answers.keys() | history.answers.keys()):
        if history.answers.get(key) != history.expected_answers.get(key):
            yield f"the answer for round {key[0]} of {key[1]} is not that of simulate"
    if history.result != history.expected_result:
        yield "the result is not that of simulate"
