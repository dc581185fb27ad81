"""Hold answers of a coordinator to its published description, and its database to the audit trail.

    with watched_coordinator(tmp_path, database_url) as watch:
        watch.judge("get_site", 404, body, headers, ["/v1/sites/oslo"])
        watch.findings.faults              # nothing

The watch reads the database over its own connection, before and after each request.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData, create_engine, func, select

from support.api_caller import ApiCaller
from support.server import running_server

MARK = "Zx9SecretValueZx9"
#: Columns that change without anybody having done something that the audit trail is for.
_QUIET = {"last_seen_at", "last_used_at"}
#: What of a session moves is in its version; a lease is no change that anybody asked for.
_WATCHED = ("principals", "tokens", "studies", "study_sites", "sessions", "participations")
_COUNTED = ("rounds", "addressees", "submissions", "results")
SITE_OPERATIONS = {"join_session", "leave_session", "get_task", "put_submission", "refuse_task"}
ANALYST_OPERATIONS = {
    "create_study",
    "delete_study",
    "create_session",
    "change_session",
    "start_session",
    "cancel_session",
    "delete_session",
    "exclude_site",
    "close_round",
    "get_result",
}


def caller_of(operation: str, site: str, analyst: str = "bob") -> str:
    """Return somebody who may ask for an operation."""
    if operation in SITE_OPERATIONS:
        return site
    return analyst if operation in ANALYST_OPERATIONS else "operator"


_LONG = re.compile(r"[^\x00-\x1f]{8,}")


@dataclass
class Findings:
    """What was sent and what was wrong with the answers. ``faults`` empty: nothing."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)

    def fault(self, kind: str, text: str) -> None:
        self.faults.setdefault(kind, []).append(text)


class Watch:
    """Holds answers to the published description, and the database to the audit trail."""

    def __init__(self, api: ApiCaller, database_url: str) -> None:
        self.api, self.findings = api, Findings()
        self.document = api.ok("GET", "/openapi.json", api.operator)
        self._known = json.dumps(self.document, ensure_ascii=False).lower()
        self._answers = {
            operation["operationId"]: set(operation["responses"]) - {"default"}
            for methods in self.document["paths"].values()
            for operation in methods.values()
        }
        self._types = {
            (operation["operationId"], status): set(problem.get("examples", ()))
            for methods in self.document["paths"].values()
            for operation in methods.values()
            for status, answer in operation["responses"].items()
            for problem in answer.get("content", {}).values()
        }
        self._engine = create_engine(database_url)
        self._tables = MetaData()
        self._tables.reflect(self._engine)
        self._before = self._look()

    def close(self) -> None:
        self._engine.dispose()

    def judge(
        self, operation: str, status: int, body: str, headers: Mapping[str, Any], said: list[str]
    ) -> None:
        """Judge one answer; ``said``: what the request said, as text."""
        findings = self.findings
        findings.requests += 1
        findings.statuses[status] += 1
        if status >= 500:
            findings.fault("server errors", f"{operation}: {status}")
        if str(status) not in self._answers[operation]:
            findings.fault("undocumented statuses", f"{operation}: {status}")
        if status >= 400:
            if not str(headers.get("content-type")).count("application/problem+json"):
                findings.fault("errors without a problem", f"{operation}: {status}")
            slug = re.search(r'"type":"urn:fedclust:problem:([a-z-]+)"', body)
            if slug and slug[1] not in self._types.get((operation, str(status)), {slug[1]}):
                findings.fault("undocumented statuses", f"{operation}: {status} {slug[1]}")
            shown = body + json.dumps({str(k): str(v) for k, v in headers.items()})
            for piece in (piece for text in said if (piece := self._echoed(text, shown))):
                findings.fault("echoes", f"{operation}: {status}: {piece[:80]!r} in {body[:400]}")
                break
        self._audited(operation, status, body)

    def _echoed(self, text: str, shown: str) -> str:
        """Return the part of a text that an answer repeats; empty: none."""
        for piece in {text, *text.split("/")}:
            if MARK in piece and MARK in shown:
                return piece
            # Shorter ones are everybody's, and so are the description's words and pointers to them:
            # schemathesis itself sends back what problems have named.
            known = all(part.lower() in self._known for part in piece.split("/"))
            long = _LONG.fullmatch(piece) and not known
            if long and (piece in shown or json.dumps(piece)[1:-1] in shown):
                return piece
        return ""

    def _audited(self, operation: str, status: int, body: str) -> None:
        rows, state = self._look()
        written, changed = rows - self._before[0], state != self._before[1]
        self._before = rows, state
        must = status == 201 or (status == 200 and operation == "get_result")
        # Told to nobody before it is known that this site is asked for this round.
        refused = operation == "put_submission" and (
            status == 422 or (status == 409 and "task-mismatch" in body)
        )
        if (must or refused or changed) and written < 1:
            tell = "changed" if changed else "not audited"
            self.findings.fault("rows outside the audit", f"{operation}: {status} {tell}")

    def _look(self) -> tuple[int, tuple[Any, ...]]:
        """Return how many audit entries there are, and what they have to account for."""
        with self._engine.connect() as connection:
            tables = self._tables.tables
            audited = connection.scalar(select(func.count()).select_from(tables["audit"]))
            counts = tuple(
                connection.scalar(select(func.count()).select_from(tables[name]))
                for name in _COUNTED
            )
            watched = []
            for name in _WATCHED:
                columns = [c for c in tables[name].columns if c.name not in _QUIET]
                keys = [*tables[name].primary_key.columns]
                found = connection.execute(select(*columns).order_by(*keys)).all()
                watched.append(hash(repr(found)))
        return int(audited or 0), (counts, *watched)


def texts(content: bytes) -> list[str]:
    """Return the texts that a body says, keys among them."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return [MARK]
    found, waiting = [MARK], [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str):
            found.append(item)
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) > 10**7:
            found.append(str(item))
    return found


@contextmanager
def watched_coordinator(place: Path, database_url: str) -> Iterator[Watch]:
    """Run a coordinator in a process of its own, with the session ``target`` in its first round."""
    with running_server(place, env={"FEDCLUST_DATABASE_URL": database_url}) as server:
        sites = ("lima", "oslo", "rome")
        api = ApiCaller.found(server, sites, "bob")
        # Somebody of each kind who may be changed: no token of theirs is needed.
        for kind in ("sites", "analysts", "operators"):
            api.ok("POST", f"/v1/{kind}", "operator", json={"name": f"other-{kind}"})
        api.begin("bob", "target", sites)
        watch = Watch(api, database_url)
        yield watch
        watch.close()
