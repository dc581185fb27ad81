"""The parameters ``limit`` and ``cursor`` of every list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from fedclust_service.domain.session import SessionState

LimitOf = Annotated[int, Query(ge=1, le=200, description="Most items on the page.")]
CursorOf = Annotated[
    str | None,
    Query(min_length=1, max_length=200, description="`next` of the page before this one."),
]
StateOf = Annotated[SessionState | None, Query(description="Only sessions in this state.")]


def page_by_name(
    names: Sequence[str], limit: int, cursor: str | None
) -> tuple[Sequence[str], str | None]:
    """Return the names after the cursor, which is a name, and the next cursor."""
    rest = [name for name in names if cursor is None or name > cursor]
    page = rest[:limit]
    return page, page[-1] if len(rest) > limit else None
