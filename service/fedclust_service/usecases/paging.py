"""Pages of lists and the cursors that continue them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fedclust.wire.models import Page
from fedclust_service.domain.refusal import wrong_field
from fedclust_service.usecases.access_queries import MAX_ROW_NUMBER, is_slug

R = TypeVar("R")
T = TypeVar("T")
#: The most items that a caller gets on a page.
MAX_PAGE = 200


def read_cursor(cursor: str | None, read: Callable[[str], T]) -> T | None:
    """Read a list's cursor; Refusal ``invalid`` if no list gave it out."""
    if cursor is None:
        return None
    try:
        return read(cursor)
    except ValueError:
        why, detail = "not a cursor of this list", "Begin the list again without a cursor."
        raise wrong_field("/cursor", "cursor", why, detail) from None


def page_of(rows: Sequence[R], limit: int, key: str, show: Callable[[R], T]) -> Page[Any]:
    """Return a page that shows the first ``limit`` rows, of which the list asked for one more.

    ``key`` is the attribute that continues the list as a cursor.
    """
    further = str(getattr(rows[limit - 1], key)) if len(rows) > limit else None
    return Page(items=tuple(map(show, rows[:limit])), next=further)


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
