"""A submission: what one site answered in one round."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Submission:
    """A stored answer.

    ``sha256`` and ``size`` are those of the body as it was sent. ``payload`` is the canonical
    binary form of its contents; it is None for an empty answer and after scrubbing.
    """

    session_id: int
    round_id: int
    site: str
    phase: str
    sha256: str
    size: int
    empty: bool
    received_at: datetime
    payload: bytes | None
