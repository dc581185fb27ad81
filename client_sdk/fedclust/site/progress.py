"""Progress, the next submission, and the status of sessions, as shown to a site's user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fedclust.site.journal import Journal, WrittenAnswer
from fedclust.wire.models import SessionEntry
from fedclust.wire.submissions import BINARY


@dataclass(frozen=True)
class Progress:
    """One event of a session; ``answered`` of ``addressed`` sites, if known.

    ``most_rounds`` is the greatest possible number of rounds, with preparation and evaluation.
    """

    event: Literal["joined", "waiting", "computing", "sent", "sent again", "refused", "done"]
    round: int | None = None
    phase: str | None = None
    answered: int | None = None
    addressed: int | None = None
    most_rounds: int | None = None


@dataclass(frozen=True)
class Preview:
    """The next submission, byte for byte, before it is sent.

    ``body`` is None if there is nothing to send now; ``note`` says why, or on what the bytes still
    depend. The ledger will record ``fields`` and ``smallest_count``.
    """

    session: str
    round: int | None = None
    phase: str | None = None
    media: str = BINARY
    body: bytes | None = field(default=None, repr=False)
    fields: dict[str, str] | None = None
    smallest_count: int | None = None
    note: str = ""


@dataclass(frozen=True)
class SessionStatus:
    """The status of a session at its coordinator and in this site's journal.

    ``sent`` counts the answers with an outcome, ``in_flight`` those that may have left.
    """

    session: str
    state: str
    site_state: str
    round: int | None
    sent: int
    in_flight: int
    reason: str | None


def session_status(info: SessionEntry, site: str, journal: Journal) -> SessionStatus:
    """Return the status of a session at its coordinator and in a site's journal."""
    return SessionStatus(
        session=info.name,
        state=info.state,
        site_state=next((each.state for each in info.sites if each.name == site), "invited"),
        round=info.round,
        sent=len(journal.outcomes),
        in_flight=len(journal.unsettled()),
        reason=info.failure or info.stopped_because,
    )


def as_preview(answer: WrittenAnswer, note: str = "") -> Preview:
    """Return an answer as it will be sent; ``note`` says on what it still depends."""
    return Preview(
        session=answer.session,
        round=answer.round,
        phase=answer.phase,
        media=answer.media,
        body=answer.body,
        fields=answer.fields,
        smallest_count=answer.smallest_count,
        note=note,
    )
