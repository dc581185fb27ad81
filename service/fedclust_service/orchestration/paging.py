"""Pages of lists and the cursors that continue them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fedclust.wire.problems import FieldError
from fedclust_service.domain.refusal import Refusal
from fedclust_service.orchestration.access_queries import MAX_ROW_NUMBER, is_slug

T = TypeVar("T")
MAX_PAGE = 200


def page_size(limit: int) -> int:
    """Return the number of items on a page: ``limit``, kept within 1 and :data:`MAX_PAGE`."""
    return max(1, min(limit, MAX_PAGE))


def read_cursor(cursor: str | None, read: Callable[[str], T]) -> T | None:
    """Read a list's cursor; Refusal ``invalid`` if no list gave it out."""
    if cursor is None:
        return None
    try:
        return read(cursor)
    except ValueError:
        error = FieldError(pointer="/cursor", rule="cursor", message="not a cursor of this list")
        raise Refusal("invalid", "Begin the list again without a cursor.", [error]) from None


def row_number(cursor: str) -> int:
    """Read a cursor that is a row's number."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 10):
        raise ValueError("not a number")
    return min(int(cursor), MAX_ROW_NUMBER)


def name_in_list(cursor: str) -> str:
    """Read a cursor that is a name."""
    if not is_slug(cursor):
        raise ValueError("not a name")
    return cursor
