"""The pieces of a printable HTML page without scripts or external parts.

All text is escaped: names and purposes come from other people. The page's own policy forbids
scripts and external content. Only :func:`html_document` adds a style: sections, tables and figures
have none, so that they also fit a page with its own stylesheet and a policy that forbids inline
styles.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from fedclust.result.drawing import Figure, short
from fedclust.wire.errors import UsageError

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes
    ----------
    key : str
        A slug, for anchors.
    title : str
        Plain text.
    html : str
        What stands below the heading.
    """

    key: str
    title: str
    html: str


def html_chapters(chapters: Iterable[Section]) -> str:
    """Return sections that a reader unfolds, and that a link to their key or printing unfolds."""
    return "".join(
        f'<details class="card"><summary><h2>{escape(each.title)}</h2></summary>'
        f'<section id="{each.key}">{each.html}</section></details>'
        for each in chapters
    )


def html_paragraphs(lines: Iterable[str]) -> str:
    """Return a paragraph for each text."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def html_warning(text: str) -> str:
    """Return a warning as a paragraph."""
    return f'<p class="warning"><b>Warning:</b> {escape(text)}</p>'


def html_figure(draw: Callable[[], Figure], caption: str) -> str:
    """Return a figure, or nothing where the result does not hold what it would show."""
    try:
        drawn = draw().svg
    except UsageError:
        return ""
    # It can be wider than a phone: the keyboard scrolls what has the focus.
    return f'<figure tabindex="0">{drawn}<figcaption>{escape(caption)}</figcaption></figure>'


def html_document(title: str, body: str, style: str = "") -> str:
    """Return a page from its title, the HTML of its body, and rules in addition to the common."""
    common = files("fedclust.result").joinpath("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{common}{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def html_folded(summary: str, content: str) -> str:
    """Return HTML that a reader unfolds, under a line of text; printed it is unfolded."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def html_records(
    caption: str, rows: Sequence[Mapping[str, object]], *, text: Sequence[int] = ()
) -> str:
    """Return a table of rows that name their columns, all the same ones."""
    header = [*rows[0]] if rows else []
    return html_table(caption, header, [[*row.values()] for row in rows], text=text)


def html_facts(caption: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a table of two columns without a head: what it is about, and a text."""
    return html_table(caption, ["", ""], rows, text=(1,), head=False)


def html_table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    text: Sequence[int] = (),
    code: Sequence[int] = (),
    head: bool = True,
) -> str:
    """Return a table.

    Parameters
    ----------
    caption : str
    header : sequence of str
    rows : iterable of sequences
        Floats are shortened, None is a dash.
    text, code : sequence of int
        Columns aligned to the left, and columns of hashes and the like.
    head : bool
        Whether to show ``header``.
    """

    def field(j: int, value: object) -> str:
        shown = escape(short(value) if value is None or isinstance(value, float) else str(value))
        shown = f"<code>{shown}</code>" if j in code else shown
        if j == 0:
            return f'<th scope="row">{shown}</th>'
        return f'<td class="text">{shown}</td>' if j in text else f"<td>{shown}</td>"

    titles = "".join(
        f'<th scope="col"{" class=text" if j in text else ""}>{escape(name)}</th>'
        for j, name in enumerate(header)
    )
    lines = "".join(
        "<tr>" + "".join(field(j, value) for j, value in enumerate(row)) + "</tr>" for row in rows
    )
    top = f"<thead><tr>{titles}</tr></thead>" if head else ""
    return (
        f'<div class="wide" tabindex="0"><table><caption>{escape(caption)}</caption>{top}'
        f"<tbody>{lines}</tbody></table></div>"
    )
