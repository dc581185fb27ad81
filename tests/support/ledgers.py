"""The lines of a ledger about bodies that left: no groups of persons, no approvals."""

from pathlib import Path
from typing import Any

from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState


def body_lines(directory: Path) -> list[dict[str, Any]]:
    """Return the lines about bodies."""
    return [line for line in Ledger(SiteState(directory)).read() if "event" not in line]
