"""Progress, the next submission, and the status of sessions, as shown to a site's user."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from fedclust.data.live_line import SLOW_S, SlowWork, duration, rows_read
from fedclust.schema.display import COLUMNS, cut, html_fields
from fedclust.schema.model import Model
from fedclust.site.approvals import Decision
from fedclust.site.consent import ConsentRequest
from fedclust.site.journal import Journal, WrittenAnswer
from fedclust.wire.models import SessionEntry, TaskResponse
from fedclust.wire.submissions import BINARY

#: Rounds that take less, in seconds, are shown with tenths.
_SHORT_S = 10.0


@dataclass(frozen=True)
class Progress:
    """One event of a session; ``answered`` of ``addressed`` sites, if known.

    ``most_rounds`` is the greatest possible number of rounds, with the preparation and the closing
    rounds.
    ``note`` says what is special about the event, ``overdue`` whether the round is past its
    deadline or has too few sites left.
    """

    event: Literal[
        "joined", "resumed", "waiting", "computing", "sent", "sent again", "refused", "done"
    ]
    round: int | None = None
    phase: str | None = None
    answered: int | None = None
    addressed: int | None = None
    most_rounds: int | None = None
    note: str = ""
    overdue: bool = False


def waiting(task: TaskResponse) -> Progress:
    """Return that a site waits, and what its coordinator says of the round."""
    return Progress("waiting", task.round, **dict(task.progress or ()))


class Preview(Model):
    """The next submission, byte for byte, before it is sent.

    ``body`` is None if there is nothing to send now, or if noise is still to be drawn; ``note``
    says why, or on what the bytes still depend. The ledger will record ``fields`` and
    ``smallest_count``.
    """

    session: str
    round: int | None = None
    phase: str | None = None
    media: str = BINARY
    body: bytes | None = Field(default=None, repr=False)
    fields: dict[str, str] | None = None
    smallest_count: int | None = None
    note: str = ""

    def _repr_html_(self) -> str:
        fields = ", ".join(f"{name}: {shape}" for name, shape in (self.fields or {}).items())
        return html_fields("The next submission", [*self._shown(), ("fields", fields)])

    def _shown(self) -> list[tuple[str, Any]]:
        """Return all but the body, of which only the size is shown."""
        size = None if self.body is None else len(self.body)
        return [*super()._shown(), ("bytes", size)]


#: What a preview takes over from an answer.
_SHOWN = Preview.model_fields.keys() & WrittenAnswer.model_fields.keys()


class SessionStatus(Model):
    """The status of a session at its coordinator and in this site's journal.

    ``sent`` counts the answers with an outcome, ``in_flight`` those that may have left.
    ``approval`` is the last decision in the site's ledger: given, withdrawn, or None without one.
    """

    session: str
    state: str
    site_state: str
    round: int | None
    sent: int
    in_flight: int
    reason: str | None
    approval: Decision | None = None


def session_status(
    info: SessionEntry, site: str, journal: Journal, decisions: Mapping[str, Decision]
) -> SessionStatus:
    """Return the status of a session at its coordinator and in a site's journal and ledger."""
    return SessionStatus(
        session=info.name,
        state=info.state,
        site_state=next((each.state for each in info.sites if each.name == site), "invited"),
        round=info.round,
        sent=len(journal.outcomes),
        in_flight=len(journal.unsettled()),
        reason=info.failure or info.stopped_because,
        approval=decisions.get(info.name),
    )


def as_preview(answer: WrittenAnswer, note: str = "") -> Preview:
    """Return an answer as it will be sent; ``note`` says on what it still depends."""
    shown = {name: value for name, value in dict(answer).items() if name in _SHOWN}
    return Preview(**shown, note=note)


def without_counts(answer: WrittenAnswer, request: ConsentRequest) -> Preview:
    """Return the form of an answer about outcomes: its counts are drawn when the round is answered.

    ``answer`` has the shapes of the counts, and none of them.
    """
    note = "the counts are exact: each row is one person"
    if not request.protection_none:
        sds = [f"{o.name} {math.sqrt(o.variance):.3g}" for o in request.counted_outcomes]
        note = f"random noise is drawn once, when the round is answered: sd of {', '.join(sds)}"
    left_out = {"body": None, "smallest_count": None}
    return as_preview(answer, note).model_copy(update=left_out)


class ProgressText:
    """The progress of a session in words: the last event, the time spent, the longest time left."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._event: Progress | None = None
        #: How far a source has been read, and when that began.
        self._reading = ""
        self._reading_since: float | None = None
        #: When this run saw its first round, and the number of that round.
        self._began: tuple[float, int] | None = None

    def tell(self, event: Progress) -> None:
        """Note what has just happened."""
        self._event = event
        self._reading, self._reading_since = "", None
        if self._began is None and event.round is not None and event.event != "resumed":
            self._began = self._monotonic(), event.round

    def read(self, source: str, done: int, total: int | None) -> bool:
        """Note how far a source was read; return whether that takes long enough to be shown."""
        now = self._monotonic()
        if self._reading_since is None:
            self._reading_since = now
        if now - self._reading_since < SLOW_S:
            return False
        self._reading = rows_read(source, done, total)
        return True

    def parts(self) -> list[str]:
        """Return the texts of a line, the most important first."""
        event = self._event
        if self._reading:
            return [self._reading]
        if event is None:
            return ["connecting"]
        text: str = event.event
        if event.event == "resumed":
            at = "" if event.round is None else f" at round {event.round}"
            return [cut(f"resumed{at}: {event.note}", COLUMNS)]
        if event.round is not None:
            text = f"round {event.round} {event.phase or ''}: {text}".replace(" :", ":")
        elif event.event == "waiting":
            text += " for the first round"
        if event.addressed and event.event == "waiting":
            missing = event.addressed - (event.answered or 0)
            text += f" for {missing} of {event.addressed} sites"
            if event.overdue and missing:
                return [cut(f"{text}, overdue", COLUMNS)]
            if event.overdue:
                # All have answered, and the coordinator waits: others have left.
                return [f"round {event.round}: too few sites are left; the analyst can cancel"]
        parts = [cut(text, COLUMNS)]
        if event.round is None or event.most_rounds is None or self._began is None:
            return parts
        since, first = self._began
        spent, done = self._monotonic() - since, event.round - first
        parts.append(f", {duration(spent)}")
        left = event.most_rounds - event.round + 1
        if done > 0:
            each = spent / done
            parts.append(f", {f'{each:.1f} s' if each < _SHORT_S else duration(each)} a round")
        if 0 < left <= done:
            # Most sessions converge long before the limit: only near it does it say anything.
            parts.append(f", at most {duration(left * spent / done)} more")
        return [*parts, f" (of at most {event.most_rounds} rounds)"]


class SessionWork(SlowWork):
    """Shows a site's part in a session in Python: see :class:`fedclust.data.live_line.SlowWork`."""

    def __init__(self, *, shown: bool) -> None:
        super().__init__(shown=shown)
        self._text = ProgressText()

    def parts(self) -> list[str]:
        """Return the texts of the line, the most important first."""
        return self._text.parts()

    def tell(self, event: Progress) -> None:
        """Show what has just happened."""
        self._text.tell(event)
        self.advance(event.answered or 0, event.addressed or None)

    def read(self, source: str, done: int, total: int | None) -> None:
        """Show how far a source is read."""
        self._text.read(source, done, total)
        self.advance(done, total)
