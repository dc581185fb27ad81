"""When a coordinator accepts a site's protected table: its heads continue the accepted ones."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fedclust.wire.models import TableHeads


@dataclass(frozen=True)
class SiteTable:
    """The change of a site's table that was accepted last: its number and its head."""

    site: str
    table_id: str
    number: int
    head: str
    accepted_at: datetime


class TableVerdict(StrEnum):
    """What the heads that a site sends say about its state."""

    ACCEPTED = "accepted"
    #: The accepted change comes before the first head that was sent.
    HEADS_NEEDED = "heads-needed"
    #: The state lacks the accepted change: it is a restored copy.
    OLDER = "older"
    #: The state has another change at the accepted number.
    BRANCHED = "branched"


def accepts(accepted: SiteTable, sent: TableHeads) -> TableVerdict:
    """Compare the heads that a site sends with what was accepted of this table.

    A site may have stored changes that this coordinator has not seen: a longer chain is accepted
    if it has the accepted head at the accepted number.
    """
    if accepted.number < sent.first:
        return TableVerdict.HEADS_NEEDED
    if accepted.number > sent.last:
        return TableVerdict.OLDER
    same = sent.at(accepted.number) == accepted.head
    return TableVerdict.ACCEPTED if same else TableVerdict.BRANCHED
