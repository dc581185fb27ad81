"""The privacy and pacing rules of a session."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedclust.schema.model import Model

__all__ = ["Policy"]


class Policy(Model):
    """The privacy and pacing rules of a session (docs/sessions.md)."""

    min_sites: Annotated[int, Field(ge=1, le=10_000)] = 3
    quorum: Annotated[int, Field(ge=1, le=10_000)] | None = None
    round_timeout_s: Annotated[int, Field(ge=1, le=31_536_000)] = 3_600
    fail_after_s: Annotated[int, Field(ge=1, le=31_536_000)] = 604_800
    max_rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None
    min_group_size: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    protection: Literal["groups", "none"] = "groups"
    scaling: Literal["none", "standard", "bounds"] = "standard"
    missing: Literal["drop", "impute", "mask"] = "drop"
