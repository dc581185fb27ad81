"""Two results side by side, and how far they agree."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from starlette.responses import Response

from fedclust.result.comparison import compare
from fedclust.result.markup import Section
from fedclust.result.one_cloud import chosen_text
from fedclust.wire.errors import UsageError
from fedclust.wire.models import SessionInfo
from fedclust_service.domain.session import SessionState
from fedclust_service.http.ui.address import address
from fedclust_service.http.ui.page_request import PageRequest, get
from fedclust_service.http.ui.result_pages import (
    ShownResult,
    absent_result,
    as_markup,
    number_of_clusters,
    read_shown,
)
from fedclust_service.usecases import sessions

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


ROUTES = (get("/compare", _compare),)
