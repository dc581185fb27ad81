"""What of a ledger is about bodies that left, and not about the groups of a site's persons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedclust.site.ledger import Ledger


def body_lines(directory: Path) -> list[dict[str, Any]]:
    """Return the lines about bodies."""
    return [line for line in Ledger(directory).read() if line.get("event") != "cohort"]
