"""What Sphinx does not do by itself: Markdown that a Git host shows too, and no inline script.

- ``<a id="x"></a>`` becomes a target that links of other pages find.
- ``<!-- search: words, other words -->`` makes the search find this place first.
- The text of a picture may have several lines.
- A link to a file outside ``docs/`` becomes its text: the site does not contain that file. In the
  PDF a link to a page outside the menu becomes its text too.
- In the PDF the list of pages is on the first one, and each page is as high as any other: not a
  part of the section in which the list of pages happens to stand.
- The reference shows the fields of a model by name and default.
  It omits the parameters by which tests replace the connection and the clock.
- Code in the text of a model's field, which is Markdown, becomes code.
- The path of a page in a docstring becomes a link.
- Scripts and styles inside a page move to files, so that the coordinator's content policy can
  forbid them.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from pydantic import BaseModel
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

#: Pages for authors of programs, and details. The site has them for links and search.
_DETAILS = (
    "details/|recipes/(?!README)|privacy/(attacks|dpia-template)|tutorials/heart"
    "|reference/(audit-actions|problems)|concepts/exactly-once|operations/(clocks|scaling)"
    "|(adding-a-method|data_model|protocol|states)$"
)
#: Decisions and measurements: also left out of the search, which would find their many tables.
_RECORDS = re.compile("adr/|results/(?!index|support)")
_OUTSIDE_MENU = re.compile(f"{_DETAILS}|{_RECORDS.pattern}")
_ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>', re.MULTILINE)
_SEARCHED = re.compile(r"^<!-- search: (.+) -->$", re.MULTILINE)
_PICTURE_TEXT = re.compile(r"!\[[^\]]*\]\(")
_PATH_OF_PAGE = re.compile(r"(``)?\bdocs/([\w/-]+)\.md(?(1)``)")
_MARKDOWN_CODE = re.compile(r"(?<![`:])`([^`]+)`(?!`)")
_FOR_TESTS = re.compile(r", http: [^,]*Http .*\)$")
_INLINE = re.compile(r"[ ]*<(script|style)(?: data-cfasync=\"false\")?>(.*?)</\1>\n?", re.DOTALL)
#: The theme's style sheet has all icons as fonts; this script would write styles into the page.
_ICON_SCRIPT = re.compile(r'[ ]*<script defer src="[^"]*/fontawesome\.js[^"]*"></script>\n?')
#: Which page this is: only the theme's menu of versions asks, and the site has none.
_UNUSED = "DOCUMENTATION_OPTIONS.pagename"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect everything to Sphinx."""
    app.connect("source-read", _read_markdown)
    app.connect("doctree-read", _unlink_files_outside)
    app.connect("env-updated", _keep_outside_menu)
    app.connect("doctree-resolved", _order_pages_of_one_page)
    app.connect("autodoc-process-docstring", _link_pages, priority=900)
    app.connect("autodoc-process-signature", _shorten_signature)
    app.connect("build-finished", _move_inline_parts_to_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read_markdown(_: Sphinx, __: str, source: list[str]) -> None:
    source[0] = _ANCHOR.sub(r"(\1)=\n", source[0])
    source[0] = _SEARCHED.sub(_index_entries, source[0])
    # The parser would join the last word of a line to the first of the next.
    source[0] = _PICTURE_TEXT.sub(lambda found: found[0].replace("\n", " "), source[0])


def _index_entries(found: re.Match[str]) -> str:
    entries = ", ".join(f"! {each}" for each in found[1].split(", "))
    return f"```{{index}} {entries}\n```"


def _unlink_files_outside(app: Sphinx, document: nodes.document) -> None:
    for link in list(document.findall(addnodes.pending_xref)):
        if link.get("refdomain") != "doc":
            continue
        target = Path(app.srcdir, link["reftarget"])
        there = any(target.with_name(target.name + suffix).exists() for suffix in ("", ".md"))
        left_out = app.builder.name == "singlehtml" and _OUTSIDE_MENU.match(link["reftarget"])
        if there and (left_out or not target.resolve().is_relative_to(app.srcdir)):
            link.replace_self(link.children)
    for link in list(document.findall(addnodes.download_reference)):
        link.replace_self(link.children)


def _keep_outside_menu(_: Sphinx, env: BuildEnvironment) -> None:
    for name in filter(_OUTSIDE_MENU.match, env.found_docs):
        env.metadata[name]["orphan"] = ""
        if _RECORDS.match(name):
            env.metadata[name]["no-search"] = ""


def _link_pages(
    app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    del app, name, thing, options
    if what == "attribute":
        lines[:] = [_MARKDOWN_CODE.sub(r"``\1``", line) for line in lines]
    lines[:] = [_PATH_OF_PAGE.sub(r":doc:`/\2`", line) for line in lines]


def _shorten_signature(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str, str | None] | None:
    del app, what, name, options
    if not signature:
        return None
    if isinstance(thing, type) and issubclass(thing, BaseModel):
        defaults = {
            field: given.get_default(call_default_factory=True)
            for field, given in thing.model_fields.items()
            if not given.is_required()
        }
        fields = (
            f"{field}={defaults[field]!r}" if field in defaults else field
            for field in thing.model_fields
        )
        return f"(*, {', '.join(fields)})", returned
    return _FOR_TESTS.sub(")", signature), returned


def _order_pages_of_one_page(app: Sphinx, document: nodes.document, page: str) -> None:
    if app.builder.name != "singlehtml":
        return
    for below in list(document.findall(addnodes.start_of_file)):
        wrapper, section = below.parent, below.parent.parent
        while not isinstance(section.parent, (nodes.document, addnodes.start_of_file)):
            section = section.parent
        if wrapper.parent is not section:
            wrapper.parent.remove(wrapper)
            section.append(wrapper)
    front = next(iter(document.findall(nodes.section)))
    first_wrapper = next(iter(document.findall(addnodes.start_of_file))).parent
    front.insert(front.index(first_wrapper), _contents(app, page))


def _contents(app: Sphinx, page: str) -> nodes.section:
    contents = nodes.section("", nodes.title("", "Contents"), ids=["contents"])
    for tree in app.env.get_doctree(page).findall(addnodes.toctree):
        pages = nodes.bullet_list()
        for name in tree["includefiles"]:
            link = nodes.reference("", "", internal=True, refuri=f"#document-{name}")
            link += nodes.Text(app.env.titles[name].astext())
            pages += nodes.list_item("", addnodes.compact_paragraph("", "", link))
        contents += nodes.paragraph("", "", nodes.strong("", tree["caption"]))
        contents += pages
    return contents


def _move_inline_parts_to_files(app: Sphinx, error: Exception | None) -> None:
    """Move the scripts and styles of every page to files, and remove what no page loads."""
    if error is not None or app.builder.name != "html":
        return
    static = Path(app.outdir, "_static")
    for page in Path(app.outdir).rglob("*.html"):
        to_root = "../" * (len(page.relative_to(app.outdir).parts) - 1)
        text = page.read_text("utf-8")
        moved = _INLINE.sub(lambda found, to=to_root: _link_to_file(found, static, to), text)
        moved = _ICON_SCRIPT.sub("", moved)
        if moved != text:
            page.write_text(moved, "utf-8")
    unused_files = [*static.rglob("*.map"), *static.rglob("fontawesome.js*")]
    for unused in [*unused_files, static / "webpack-macros.html", static / "print.css"]:
        unused.unlink(missing_ok=True)


def _link_to_file(found: re.Match[str], static: Path, to_root: str) -> str:
    kind, content = found[1], found[2].strip()
    if content.startswith(_UNUSED):
        return ""
    name = f"inline-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    name += ".js" if kind == "script" else ".css"
    (static / name).write_text(content + "\n", "utf-8")
    if kind == "script":
        return f'<script src="{to_root}_static/{name}"></script>\n'
    return f'<link rel="stylesheet" href="{to_root}_static/{name}">\n'
