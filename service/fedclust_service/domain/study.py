"""A study: what several sessions of the same sites have in common."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Study:
    """A study. It never changes.

    ``definition`` is the canonical JSON of the fields that its creator sent, ``definition_sha256``
    its hash. ``created_by`` is the creator's key.
    """

    id: int
    name: str
    definition: bytes
    definition_sha256: str
    created_by: str
    created_at: datetime
