"""Who gets what of a route or a page: a table, and the check of one line of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import httpx

from .conftest import OTHERS

OWN, FOREIGN, ABSENT = "own", "foreign", "absent"
#: YES stands for anything but 401, 403, 404 and a failure.
YES, NO, HIDDEN = 200, 403, 404


class Access(NamedTuple):
    """What each role gets for its own object, a foreign one, and one that is not there."""

    site: tuple[int, int, int]
    analyst: tuple[int, int, int]
    operator: tuple[int, int, int]

    def check(self, role: str, ask: Callable[[str], httpx.Response]) -> None:
        """Assert how an object is answered to a role; what is hidden is as what is not there."""
        # What names no object is asked for once.
        kinds = (OWN,) if self in (EVERYBODY, OPERATORS, CREATORS) else (OWN, FOREIGN, ABSENT)
        answers = {which: ask(which) for which in kinds}
        found = [answer.status_code for answer in answers.values()]
        for status, wanted in zip(found, getattr(self, role), strict=False):
            assert status < 500, (role, found)
            fits = status not in {401, 403, 404} if wanted == YES else status == wanted
            assert fits, (role, found)
        if getattr(self, role)[1] == HIDDEN:
            assert shown(answers[FOREIGN]) == shown(answers[ABSENT])


NOBODY, ANY = (NO, NO, NO), (YES, YES, YES)
SEES, ALL = (YES, HIDDEN, HIDDEN), (YES, YES, HIDDEN)
EVERYBODY = Access(ANY, ANY, ANY)
OPERATORS = Access(NOBODY, NOBODY, ANY)
CREATORS = Access(NOBODY, ANY, ANY)
SEEN = Access(SEES, SEES, ALL)
MANAGED = Access(NOBODY, SEES, ALL)
SITES_OWN = Access(SEES, NOBODY, NOBODY)
PERSON = Access(NOBODY, NOBODY, ALL)


def path_of(template: str, which: str, ids: dict[str, str], **names: str) -> str:
    """Fill a path for an object of ada's, of bob's, or for one that is not there."""
    kind = next((each for each in OTHERS if f"/{each}/" in template), "sites")
    owner = {OWN: "of-ada", FOREIGN: "of-bob", ABSENT: "of-nobody"}[which]
    absent = which == ABSENT
    given = {
        "session": owner,
        "study": owner,
        "number": "1",
        "site": {OWN: "west", FOREIGN: "rome", ABSENT: "nowhere"}[which],
        "name": "nobody" if absent else OTHERS[kind],
        "table_id": "0" * 32,
        "token_id": "absent" if absent else ids[kind],
        "algorithm": "nothing" if absent else "lloyd",
        **names,
    }
    return template.format(**given)


def shown(answer: httpx.Response, name: str = "") -> tuple[Any, ...]:
    """Return what an answer shows, without its number and the name that was asked for."""
    headers = {
        key: value
        for key, value in answer.headers.items()
        if key not in {"date", "fedclust-request-id"} and not (name and key == "content-length")
    }
    text = answer.text.replace(answer.headers["Fedclust-Request-Id"], "")
    return answer.status_code, headers, text.replace(name, "") if name else text
