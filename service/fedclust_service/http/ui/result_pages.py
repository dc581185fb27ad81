"""The result of a session: its page, all of it that can be downloaded, and two results compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

from markupsafe import Markup
from starlette.responses import Response

from fedclust.result.comparison import compare
from fedclust.result.figures.plots import drawn_figures
from fedclust.result.markup import Section
from fedclust.result.methods_text import WRITE_UP
from fedclust.result.one_cloud import chosen_text, recommended
from fedclust.result.page import body
from fedclust.result.ro_crate import check_license, crate_bytes
from fedclust.result.session_result import SessionResult, read_result
from fedclust.result.table_one import FORMATS
from fedclust.result.tables import FORMATS as REPORTS
from fedclust.result.tables import centroid_table, report_bytes
from fedclust.schema.result import Result
from fedclust.wire import codec
from fedclust.wire.errors import UsageError
from fedclust.wire.models import ResultDocument, SessionInfo
from fedclust.wire.submissions import JSON
from fedclust_service.domain.access import Refusal, Role, wrong_field
from fedclust_service.domain.session import SessionState
from fedclust_service.http.bodies import CSV
from fedclust_service.http.ui.page_request import PageRequest, get
from fedclust_service.http.ui.rendering import HTML, address, attachment
from fedclust_service.usecases import results, sessions

_SVG, _PNG = "image/svg+xml", "image/png"
#: For a report that is opened where it was saved: its own style, and nothing else.
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


# --- what is read ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownResult:
    """A result with its session, as the reader may see them; ``k`` is one K of a sweep."""

    session: SessionInfo
    read: SessionResult
    k: int | None

    @property
    def whole(self) -> Result:
        """The result of the K that the session shows first, with its sweep."""
        return self.read.result

    @cached_property
    def facts(self) -> SessionResult:
        """What its page shows."""
        if self.k is None:
            return self.read
        try:
            return self.read.at(self.k)
        except UsageError as error:
            raise results.other_k(str(error)) from None

    @property
    def query(self) -> str:
        """What an address needs to lead to the same clustering."""
        return "" if self.k is None else f"?k={self.k}"

    @property
    def tried(self) -> tuple[int, ...]:
        """Every K of a sweep."""
        return tuple(entry.n_clusters for entry in self.whole.sweep or ())

    @property
    def profile(self) -> Markup:
        """The figure of the profile, or why there is none."""
        try:
            return Markup(self.facts.plot.profile().svg)  # noqa: S704 - our own code wrote it
        except UsageError as error:
            return Markup("<p>There is no profile: {}.</p>").format(str(error))


def read_shown(page: PageRequest, session: SessionInfo, k: int | None) -> ShownResult:
    """Read a whole result once, which is one line of the audit trail."""
    document = results.get_result(*page.caller, session.name)
    return ShownResult(session, read_result(document, session.definition), k)


def number_of_clusters(page: PageRequest, name: str) -> int | None:
    """Return a K of the address; Refusal ``invalid`` for anything but a number."""
    given = (page.query(name) or "").strip()
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise results.other_k("a whole number of at most nine digits")
    return int(given)


# --- the page -------------------------------------------------------------------------------------


def _result(page: PageRequest) -> Response:
    session = sessions.get_session(*page.caller, page.param("session"))
    k = number_of_clusters(page, "k")
    if session.state != "completed":
        return absent_result(page, session)
    reading = read_shown(page, session, k)
    facts = reading.facts
    return page.render(
        "result.html",
        reading=reading,
        session=session,
        facts=facts,
        report=as_markup(body(facts)),
        formats=FORMATS,
        figures={name: figure.title for name, figure in drawn_figures(facts.plot).items()},
        own_mapping=facts.result.mapping.get(page.actor.name, ()),
        marked=recommended(reading.whole),
        counted=[e.n_clusters for e in reading.whole.sweep or () if e.result.outcomes],
    )


def as_markup(html: str) -> Markup:
    """Return what our own code wrote, which escaped all text."""
    return Markup(html)  # noqa: S704 - escaped there


def absent_result(page: PageRequest, session: SessionInfo) -> Response:
    """Return the page of a session without a result, which says why and what comes next."""
    return page.render("result_absent.html", status=409, session=session)


# --- downloads ------------------------------------------------------------------------------------


def _table_one(ending: str, result: SessionResult) -> bytes:
    return result.table_one().content(f"table-one{ending}")


_OFFICE = "application/vnd.openxmlformats-officedocument"
_MEDIA = {
    "json": JSON,
    "csv": CSV,
    "html": HTML,
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "md": "text/markdown; charset=utf-8",
    "bib": "application/x-bibtex",
    "zip": "application/zip",
}
_CRATE = "ro-crate.zip"
#: What writes each other file.
_FILES: dict[str, Callable[[SessionResult], bytes | str]] = {
    "result.json": SessionResult.to_json,
    "centroids.csv": lambda result: centroid_table(result.document),
    **{f"report{each}": partial(report_bytes, path=f"report{each}") for each in REPORTS},
    **{f"table-one{each}": partial(_table_one, each) for each in FORMATS},
    **WRITE_UP,
}


def _file(page: PageRequest) -> Response:
    file = page.param("file")
    if file != _CRATE and file not in _FILES:
        raise Refusal("not-found", "There is no such file of a result.")
    media = _MEDIA[file.rpartition(".")[2]]
    licence = _license(page) if file == _CRATE else None
    result, stem = _downloaded(page)
    content = _crate(result, licence) if file == _CRATE else _FILES[file](result)
    headers = {"Content-Security-Policy": _REPORT_POLICY} if media == HTML else {}
    return attachment(content, media, f"{stem}-{file}", headers)


def _crate(result: SessionResult, licence: str | None) -> bytes:
    try:
        return crate_bytes(result.document, result.definition, licence)
    except UsageError as error:
        raise Refusal("version-unsupported", f"{error}.") from None


def _license(page: PageRequest) -> str | None:
    """Return the licence of the address; Refusal ``invalid`` if it cannot be one."""
    given = page.query("license")
    try:
        check_license(given)
    except UsageError as error:
        detail = "Give another licence, or none."
        raise wrong_field("/license", "license", str(error), detail) from None
    return given


def _figure(page: PageRequest) -> Response:
    name, ending = page.param("name"), page.param("ending")
    result, stem = _downloaded(page)
    found = drawn_figures(result.plot).get(name)
    if found is None or ending not in ("svg", "png"):
        raise Refusal("not-found", "This result has no such figure. Its page lists those it has.")
    if ending == "svg":
        return attachment(f"{found.titled_svg}\n".encode(), _SVG, f"{stem}-{name}.svg")
    try:
        content = found.png()
    except UsageError as error:
        raise Refusal("unavailable", f"This coordinator cannot draw a PNG: {error}.") from None
    return attachment(content, _PNG, f"{stem}-{name}.png")


def _downloaded(page: PageRequest) -> tuple[SessionResult, str]:
    """Return the result that a download is made of, and what its file's name begins with."""
    k = number_of_clusters(page, "k")
    session = sessions.get_session(*page.caller, page.param("session"))
    document = results.get_result(*page.caller, session.name, k)
    # As it travels, so that reports are those that the SDK writes.
    received = codec.decode_model(ResultDocument, codec.encode_model(document))
    stem = session.name if k is None else f"{session.name}-k{k}"
    site = page.actor.name if page.actor.role is Role.SITE else ""
    return read_result(received, session.definition, site), stem


# --- two results ----------------------------------------------------------------------------------

#: Sessions that the form offers, the newest; an address may name any.
_MOST_OFFERED = 200
_SIDES = ("first", "second")


class Side(NamedTuple):
    """One of the two results; ``tried`` leads to each K of its sweep."""

    name: str
    shown: ShownResult
    tried: list[tuple[int, str]]


def _compare(page: PageRequest) -> Response:
    chosen = {side: page.query(side) for side in _SIDES}
    infos = [sessions.get_session(*page.caller, name) for name in chosen.values() if name]
    absent = next((info for info in infos if info.state != "completed"), None)
    if absent is not None:
        return absent_result(page, absent)
    sides = _sides(page, infos) if len(infos) == len(_SIDES) else []
    found, refused = _compared(sides) if sides else ((), None)
    return page.render(
        "compare.html",
        offered=_offered(page, infos),
        chosen=chosen,
        numbers={side: number_of_clusters(page, f"{side}_k") for side in _SIDES},
        sides=sides,
        chosen_text=chosen_text,
        sections=[(each.key, each.title, as_markup(each.html)) for each in found],
        refused=refused,
    )


def _offered(page: PageRequest, chosen: Sequence[SessionInfo]) -> dict[str, str]:
    """Return the names and titles of the sessions that can be chosen, newest first."""
    completed = SessionState.COMPLETED
    found = sessions.list_sessions(*page.caller, _MOST_OFFERED, state=completed).items
    titles = {each.name: each.definition.title if each.definition else "" for each in found}
    return titles | {info.name: info.definition.title for info in chosen}


def _sides(page: PageRequest, infos: Sequence[SessionInfo]) -> list[Side]:
    """Read both results; one that is compared with itself is read once."""
    given = [
        number_of_clusters(page, f"{side}_k")
        if page.query(f"{side}_k_of") in (None, info.name)
        else None
        for side, info in zip(_SIDES, infos, strict=True)
    ]
    named = {info.name: info for info in infos}
    read = {name: read_shown(page, info, None) for name, info in named.items()}
    shown = [replace(read[info.name], k=k) for info, k in zip(infos, given, strict=True)]
    return [
        Side(side, shown[place], [(k, _address(shown, place, k)) for k in shown[place].tried])
        for place, side in enumerate(_SIDES)
    ]


def _address(shown: Sequence[ShownResult], place: int, k: int) -> str:
    """Return the address of this comparison with another K at one side."""
    fields: dict[str, str] = {}
    for i, (side, each) in enumerate(zip(_SIDES, shown, strict=True)):
        fields[side] = each.session.name
        number = k if i == place else each.k
        if number is not None and number != each.whole.n_clusters:
            fields[f"{side}_k"] = str(number)
    return address("/ui/compare", **fields)


def _compared(sides: Sequence[Side]) -> tuple[tuple[Section, ...], str | None]:
    """Return what there is to say, or why the two cannot be compared."""
    first, second = (side.shown.facts for side in sides)
    try:
        return compare(first, second).sections, None
    except UsageError as error:
        return (), str(error)


ROUTES = (
    get("/sessions/{session}/result", _result),
    get("/sessions/{session}/result/{file}", _file),
    get("/sessions/{session}/result/figures/{name}.{ending}", _figure),
    get("/compare", _compare),
)
