"""How objects show themselves: a few lines of text, or a small table in a notebook."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, TypeVar

import numpy as np

from fedclust.schema.times import ago

T = TypeVar("T")

#: Most columns and lines of a repr.
COLUMNS, LINES = 100, 20
#: Most characters of one field in a repr, and of one in a notebook's table.
_FIELD, _CELL = 72, 600
#: Most elements of a sequence or mapping that are looked at.
_ELEMENTS = 16
#: For a notebook with light or dark background: no colour of text or ground.
STYLE = """<style>
.fedclust table{border-collapse:collapse;margin:.4em 0;color:inherit;font-size:inherit}
.fedclust th,.fedclust td{padding:.15em .6em;text-align:right;vertical-align:top;
border-bottom:1px solid rgba(128,128,128,.35)}
.fedclust th:first-child,.fedclust td.text{text-align:left}
.fedclust caption{text-align:left;opacity:.75}
.fedclust p{margin:.3em 0}
.fedclust .warning{border-left:4px solid #d55e00;padding-left:.6em}
.fedclust .wide{overflow-x:auto}
</style>"""


def short_repr(name: str, fields: Iterable[tuple[str, Any]]) -> str:
    """Return ``name(field=value, ...)`` in at most 20 lines of 100 columns.

    Arrays are their shape, objects in an object their class, and what is long is cut.
    """
    text = ", ".join(f"{field}={brief(value)}" for field, value in fields)
    lines = textwrap.wrap(
        f"{name}({text})", COLUMNS, subsequent_indent="    ", break_on_hyphens=False
    )
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], "    ...)"]
    return "\n".join(lines)


def brief(value: Any) -> str:
    """Return a value in at most 72 characters on one line."""
    if isinstance(value, np.ndarray):
        return f"<{' x '.join(map(str, value.shape))} array>"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "model_fields_set"):
        # A site or feature in a list is known by its name, a site also by its state.
        known = [getattr(value, field) for field in ("name", "state") if hasattr(value, field)]
        return f"{type(value).__name__}({', '.join(map(brief, known)) or '...'})"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str):
        return repr(cut(value, _FIELD - 2))
    if isinstance(value, Mapping):
        pairs = [f"{brief(key)}: {brief(value[key])}" for key in [*value][:_ELEMENTS]]
        return _joined("{", pairs, "}", f"<{len(value)} entries>", len(value))
    if isinstance(value, (tuple, list)):
        each = [brief(item) for item in value[:_ELEMENTS]]
        last = ",)" if isinstance(value, tuple) and len(value) == 1 else ")"
        kind = type(value[0]).__name__ if len(value) else ""
        return _joined("(", each, last, f"<{len(value)} {kind}>", len(value))
    return cut(repr(value), _FIELD)


def _joined(begin: str, parts: list[str], end: str, instead: str, count: int) -> str:
    text = f"{begin}{', '.join(parts)}{end}"
    return text if count <= _ELEMENTS and len(text) <= _FIELD else instead


def cut(text: str, most: int) -> str:
    """Return printable text on one line, at most so many characters."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= most else line[: most - 1] + "…"


def first_few(names: Sequence[str], most: int) -> str:
    """Return at most so many names, and how many are left out."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, such as ``1 round`` or ``3 rounds``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def html_fields(title: str, fields: Iterable[tuple[str, Any]]) -> str:
    """Return a notebook's table of names and values, escaped; those that are None are left out."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        f'<td class="text">{escape(cut(value, _CELL) if isinstance(value, str) else brief(value))}'
        "</td></tr>"
        for name, value in fields
        if value is not None
    )
    caption = f"<caption>{escape(title)}</caption>"
    return f'<div class="fedclust">{STYLE}<table>{caption}<tbody>{rows}</tbody></table></div>'


def row_of(item: Any) -> Mapping[str, Any]:
    """Return what a list shows of an item, by heading: what its ``_row`` says, or its fields."""
    row: Mapping[str, Any] = item._row() if hasattr(item, "_row") else vars(item)
    return row


def as_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the headings under which any row holds something, and the cells of each row."""
    names = dict.fromkeys(name for row in rows for name in row)
    held = [name for name in names if any(row.get(name) is not None for row in rows)]
    return held, [[row.get(name) for name in held] for row in rows]


def aligned(table: Sequence[Sequence[str]], right: int | None = None) -> list[str]:
    """Return the lines of a table, those columns right-aligned that begin with number ``right``."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        rooms = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [
            room + cell if right is not None and place >= right else cell + room
            for place, (cell, room) in enumerate(zip(row, rooms, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return cut(value, _FIELD) if isinstance(value, str) else brief(value)


class Listing(list[T]):
    """A list that shows itself as a table: in a notebook, and in at most 20 lines elsewhere.

    An item with a method ``_row`` says what its row holds, by heading.
    """

    def _table(self) -> tuple[list[str], list[list[str]]]:
        names, rows = as_table([row_of(each) for each in self])
        return names, [list(map(_cell, row)) for row in rows]

    def __repr__(self) -> str:
        if not self:
            return "(none)"
        names, rows = self._table()
        most = len(rows) if len(rows) < LINES else LINES - 2
        lines = aligned([names, *rows[:most]])
        if len(rows) > most:
            lines.append(f"... and {len(rows) - most:,} more")
        return "\n".join(cut(line, COLUMNS) for line in lines)

    def _repr_html_(self) -> str:
        names, rows = self._table()
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        cells = ("".join(f'<td class="text">{escape(cell)}</td>' for cell in row) for row in rows)
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        shown = f'<div class="wide">{table}</div>' if rows else "<p>(none)</p>"
        return f'<div class="fedclust">{STYLE}{shown}</div>'


def session_row(session: Any) -> dict[str, Any]:
    """Return what a list shows of a ``SessionEntry``, by heading."""
    joined = sum(site.state == "joined" for site in session.sites)
    late = ", ".join(site.name for site in session.sites if site.late and session.deadline)
    frozen = session.definition
    n_clusters = None if frozen is None else frozen.config.get("n_clusters")
    return {
        "session": session.name,
        "study": session.study,
        "method": "(unreadable)" if frozen is None else frozen.algorithm,
        "K": None if n_clusters is None else brief(n_clusters),
        "state": session.state,
        "round": session.round,
        "joined": f"{joined} of {len(session.sites)}",
        "answered": sum(bool(s.answered) for s in session.sites) if session.round else None,
        "late": f"{late} since {ago(session.deadline, datetime.now(UTC))}" if late else None,
        "why": session.failure or session.stopped_because,
    }


def standing(site: Any) -> str:
    """Return whether a site takes part, and what to know about that."""
    why = site.refused_task or ("points short: no outcomes" if site.points_short else None)
    return site.state if why is None else f"{site.state} ({why})"


def session_fields(session: Any) -> dict[str, Any]:
    """Return what is shown of a single ``SessionEntry``, why it is first: names and values."""
    by_state: dict[str, list[str]] = {}
    for site in session.sites:
        by_state.setdefault(standing(site), []).append(site.name)
    frozen, shown = session.definition, {"session": session.name, "study": session.study}
    if frozen is not None:
        why = ("title", "purpose", "contact", "approval", "expires")
        shown |= {name: getattr(frozen, name) for name in why}
    shown |= session_row(session)
    shown["sites"] = "; ".join(f"{state}: {', '.join(names)}" for state, names in by_state.items())
    shown["cannot start"] = session.cannot_start
    if frozen is not None:
        shown["features"] = ", ".join(each.name for each in frozen.features)
        shown |= {"outcomes_k": frozen.outcomes_k, "seed": frozen.seed}
    shown |= {"created by": session.created_by, "created": session.created_at}
    shown |= {"started": session.started_at, "ended": session.ended_at}
    return {
        name: f"{value:%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else value
        for name, value in shown.items()
        if value not in (None, "")
    }
