"""A site's part of a session over Flower before any message: its rows, and what is approved."""

from __future__ import annotations

from datetime import UTC, datetime

from fedclust.definition import read_definition
from fedclust.site.data_sources import MARK, DataSource, DataSources
from fedclust.site.journal import Journal
from fedclust.site.prepare import SiteRows
from fedclust.site.session_run import SessionAnswers
from fedclust.site.state import SiteState
from fedclust.wire.codec import sha256
from fedclust.wire.models import SessionInfo, SitePresence

#: What a site's state calls the coordinator of a session over Flower: it has no address.
PLACE = "flower"


def source_of(state: SiteState, data: str) -> DataSource:
    """Return a registered data source (``@NAME``), or the file of this path."""
    named = data.startswith(MARK)
    return DataSources(state).get(data.removeprefix(MARK)) if named else DataSource(data=data)


def open_session(state: SiteState, site: str, definition: bytes, rows: SiteRows) -> SessionAnswers:
    """Prepare a site's rows for a definition; nothing is stored or answered yet."""
    found, digest, now = read_definition(definition), sha256(definition), datetime.now(UTC)
    joined = Journal(state, PLACE, site, found.name, digest).record is not None
    info = SessionInfo(
        name=found.name,
        state="running",
        created_by=PLACE,
        created_at=now,
        definition=found,
        definition_sha256=digest,
        sites=(SitePresence(name=site, state="joined" if joined else "invited"),),
    )
    return SessionAnswers(state, (PLACE, site), found.name, info, rows, lambda: datetime.now(UTC))
