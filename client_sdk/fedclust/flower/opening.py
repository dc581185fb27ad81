"""A site's part of a session over Flower before any message: its rows, and what was reviewed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from fedclust.definition import read_definition
from fedclust.schema.model import Model
from fedclust.site.data_sources import SessionSource
from fedclust.site.journal import Journal
from fedclust.site.prepare import SiteRows, table_options
from fedclust.site.session_run import SessionAnswers
from fedclust.site.state import SiteState, StateDocument
from fedclust.wire.codec import sha256
from fedclust.wire.models import SessionInfo, Sha256, SitePresence

#: What a site's state calls the coordinator of a session over Flower: it has no address.
PLACE = "flower"


class ReviewedSession(SessionSource):
    """With which name and rows a site answers a session: those of its last review."""

    site: str


class _ReviewedSessions(Model):
    by_definition: Annotated[dict[Sha256, ReviewedSession], Field(max_length=100_000)] = Field(
        default_factory=dict
    )


def reviewed_sessions(state: SiteState) -> StateDocument[_ReviewedSessions]:
    """Return the sessions over Flower that a site has reviewed, by SHA-256 of the definition."""
    return StateDocument(state, "flower", _ReviewedSessions)


def open_session(state: SiteState, own: ReviewedSession, definition: bytes) -> SessionAnswers:
    """Prepare a site's rows for a definition; nothing is stored or answered yet."""
    found, digest, now = read_definition(definition), sha256(definition), datetime.now(UTC)
    joined = Journal(state, PLACE, own.site, found.name, digest).record is not None
    info = SessionInfo(
        name=found.name,
        state="running",
        created_by=PLACE,
        created_at=now,
        definition=found,
        definition_sha256=digest,
        sites=(SitePresence(name=own.site, state="joined" if joined else "invited"),),
    )
    source = own.resolved()
    rows = SiteRows(source.rows(), **source.row_options, **table_options(own))
    place = (PLACE, own.site)
    return SessionAnswers(state, place, found.name, info, rows, lambda: datetime.now(UTC))
