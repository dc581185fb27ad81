"""Reviews and approvals of sessions, recorded in a site's ledger; see docs/approval.md.

One person prints what a session asks of this site (a review); another records that it is approved.
An approval holds for exactly the terms of the printed page (:attr:`ConsentRequest.terms`), which
its code, their SHA-256, identifies. Only the last approval or withdrawal of a session counts.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, TypeVar

from fedclust.result.session_terms import feature_text
from fedclust.schema.times import write_time
from fedclust.site.consent import ConsentRequest
from fedclust.site.journal import recorded_answers
from fedclust.site.ledger import Ledger
from fedclust.site.settings import read_settings, settings_path
from fedclust.site.state import SiteState
from fedclust.wire.codec import sha256
from fedclust.wire.errors import ApprovalNeeded, StateDamaged, UsageError

if sys.platform == "win32":
    import getpass
else:
    import pwd

REVIEW, APPROVAL, WITHDRAWAL = "review", "approval", "approval withdrawn"
#: An approval names at least this many digits of the code: 48 bits are not met by chance.
LEAST_DIGITS = 12
_LONGEST_NAME = 200

E = TypeVar("E", "Review", "Approval")
#: The last decision on a session.
Decision: TypeAlias = Literal["approved", "withdrawn"]


@dataclass(frozen=True)
class _Entry:
    """What a review and its approval have in common: the session, its terms and their code."""

    coordinator: str
    site: str
    session: str
    definition_sha256: str
    time: str
    code: str
    terms: Mapping[str, Any]


@dataclass(frozen=True)
class Review(_Entry):
    """What a page asked for; ``page_sha256`` is the SHA-256 of its file."""

    title: str
    purpose: str
    columns: list[str]
    page_sha256: str


@dataclass(frozen=True)
class Approval(_Entry):
    """Who approved which terms, when, and with which account of the operating system."""

    approved_by: str
    account: str


class Approvals:
    """The reviews and approvals in a site's ledger. Methods raise StateError for a damaged one."""

    def __init__(
        self, state: SiteState, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._state, self._ledger, self._now = state, Ledger(state), now

    def record_review(self, request: ConsentRequest, page: bytes, now: datetime) -> Review:
        """Record that a page asks for what ``request`` asks for."""
        definition = request.definition
        review = Review(
            coordinator=request.coordinator,
            site=request.site,
            session=request.session,
            definition_sha256=request.definition_sha256,
            time=write_time(now),
            code=request.approval_code,
            terms=request.terms,
            title=definition.title,
            purpose=definition.purpose,
            columns=[feature_text(feature) for feature in definition.features],
            page_sha256=sha256(page),
        )
        self._append(REVIEW, vars(review))
        return review

    def last_review(
        self,
        coordinator: str | None,
        site: str | None,
        session: str,
        definition_sha256: str | None,
    ) -> Review:
        """Return the last review of a session; UsageError if it is not of this definition.

        None stands for any coordinator, site or definition.
        """
        found = list(self._lines(coordinator, site, session, REVIEW))
        again = _review_command(session)
        if not found:
            raise UsageError(f"no review of session {session} is in {self._state.path}: {again}")
        review = _read(Review, found[-1])
        if definition_sha256 not in (None, review.definition_sha256):
            raise UsageError(
                f"session {session} has another definition than at its last review "
                f"({review.time}): review it again: {again}"
            )
        return review

    def approve(self, review: Review, name: str, code: str) -> Approval:
        """Record an approval of what a review asked for.

        Parameters
        ----------
        review : Review
            The last one: :meth:`last_review`.
        name : str
            Of the person who approves.
        code : str
            At least the first 12 digits of the code on the page that this person has read.

        Raises
        ------
        UsageError
            The code is not that of this review, or the name is empty.
        """
        self._check_code(review, code)
        approval = Approval(
            **{name: getattr(review, name) for name in _SHARED},
            time=write_time(self._now()),
            approved_by=checked_name(name),
            account=_os_account(),
        )
        self._append(APPROVAL, vars(approval))
        return approval

    def withdraw(self, session: str, name: str) -> list[Approval]:
        """Take back the approvals of a session, and return them; UsageError if there are none.

        No coordinator is asked: this works while it is away. If several have a session of this
        name, the approvals of all are taken back.
        """
        last = self._decided(None, None, session)
        held = [_read(Approval, line) for line in last.values() if line["event"] == APPROVAL]
        if not held:
            raise UsageError(
                f"no approval of session {session} is in force in {self._state.path}: "
                f"fedclust ledger show --session {session}"
            )
        by = {"withdrawn_by": checked_name(name), "account": _os_account()}
        by["time"] = write_time(self._now())
        for approval in held:
            shared = {key: getattr(approval, key) for key in _SHARED if key != "terms"}
            self._append(WITHDRAWAL, {**shared, **by})
        return held

    def held(self, coordinator: str, site: str, session: str) -> Approval | None:
        """Return the approval of a session that was recorded last and not withdrawn."""
        last = self._last_decision(coordinator, site, session)
        return _read(Approval, last) if last.get("event") == APPROVAL else None

    def decisions(self, coordinator: str, site: str) -> dict[str, Decision]:
        """Return the last decision on each session that has one."""
        return {
            name: "approved" if line["event"] == APPROVAL else "withdrawn"
            for (_, _, name), line in self._decided(coordinator, site, None).items()
        }

    def count_sent(self, session: str) -> int:
        """Return how many submissions of a session left, or may have left, this site."""
        return sum(1 for _ in recorded_answers(self._state, session))

    def require(self, request: ConsentRequest, *, always: bool = False) -> Approval | None:
        """Return the approval of exactly what is asked; None if there is none and none is needed.

        ``always``: one is needed, also where the site's settings require none.

        Raises
        ------
        DisclosureError
            The site's settings ask for larger groups.
        ApprovalNeeded
            The approval was withdrawn, or the site's settings require one and it is missing or of
            other terms.
        UsageError
            The settings cannot be read.
        """
        settings, session = read_settings(self._state.directory), request.session
        settings.refuse_smaller_groups(session, request.p, exact=request.protection_none)
        last = self._last_decision(request.coordinator, request.site, session)
        if last.get("event") == WITHDRAWAL:
            by, time = last.get("withdrawn_by"), last.get("time")
            why = f"the approval of session {session} was withdrawn ({by}, {time})"
        elif last and last.get("code") == request.approval_code:
            return _read(Approval, last)
        elif not (always or settings.require_approval):
            return None
        elif last:
            given = _read(Approval, last)
            changed = ", ".join(_changed_terms(given.terms, request.terms))
            why = (
                f"session {session} was approved ({given.approved_by}, {given.time}) under other "
                f"terms: {changed}"
            )
        else:
            why = (
                f"session {session} has no recorded approval in {self._state.path}, and "
                f"{settings_path(self._state.directory)} requires one"
            )
        more = " more" if self.count_sent(session) else ""
        raise ApprovalNeeded(
            f"{why}. Nothing{more} is sent. Print what it asks: "
            f"{_review_command(session, request.data.option)}; "
            f"the person who approves it then runs: fedclust approve {session} --name NAME"
        )

    def _last_decision(self, coordinator: str, site: str, session: str) -> dict[str, Any]:
        """Return the last approval or withdrawal of a session; empty without one."""
        return self._decided(coordinator, site, session).get((coordinator, site, session), {})

    def _decided(
        self, coordinator: str | None, site: str | None, session: str | None
    ) -> dict[tuple[str, ...], dict[str, Any]]:
        """Return the last approval or withdrawal by coordinator, site and session."""
        lines = self._lines(coordinator, site, session, APPROVAL, WITHDRAWAL)
        names = ("coordinator", "site", "session")
        return {tuple(str(line.get(name)) for name in names): line for line in lines}

    def _check_code(self, review: Review, code: str) -> None:
        digits = re.sub(r"[\s-]", "", code).lower()
        if not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", digits):
            raise UsageError(
                f"the code is at least the first {LEAST_DIGITS} digits of the approval code on "
                "the printed page, 0-9 and a-f"
            )
        if review.code.startswith(digits):
            return
        earlier = [
            _read(Review, line)
            for line in self._lines(review.coordinator, review.site, review.session, REVIEW)
            if str(line.get("code")).startswith(digits)
        ]
        if not earlier:
            raise UsageError(
                f"this is not the code of the last review of session {review.session} "
                f"({review.time}): read the code on the page that was printed then"
            )
        changed = ", ".join(_changed_terms(earlier[-1].terms, review.terms))
        raise UsageError(
            f"this is the code of an earlier page ({earlier[-1].time}); the terms have changed "
            f"since: {changed}. Read the page of {review.time}, or review the session again"
        )

    def _lines(
        self, coordinator: str | None, site: str | None, session: str | None, *events: str
    ) -> Iterator[dict[str, Any]]:
        wanted = {"coordinator": coordinator, "site": site, "session": session}
        for line in self._ledger.events():
            if line["event"] in events and all(
                value in (None, line.get(key)) for key, value in wanted.items()
            ):
                yield line

    def _append(self, event: str, facts: Mapping[str, Any]) -> None:
        self._ledger.append({"event": event, **facts})


#: Terms whose values say nothing to a person.
_IN_WORDS = {"definition_sha256": "the definition", "reading_sha256": "how columns are read"}
#: What an approval takes over from the review.
_SHARED = ("coordinator", "site", "session", "definition_sha256", "code", "terms")


def _review_command(session: str, data: str = "FILE") -> str:
    return f"fedclust review {session} --data {data} --out review.html"


def _read(kind: type[E], line: Mapping[str, Any]) -> E:
    try:
        return kind(**{field.name: line[field.name] for field in fields(kind)})
    except KeyError:
        number = line.get("line")
        raise StateDamaged(f"line {number} of the ledger: incomplete {line['event']}") from None


def _changed_terms(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield which terms differ, in words."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        word = name.replace("_", " ")
        if isinstance(old, list) and isinstance(new, list):
            yield f"{word} (more: {_missing_names(new, old)}; fewer: {_missing_names(old, new)})"
        elif name in _IN_WORDS:
            yield _IN_WORDS[name]
        else:
            yield f"{word} ({old} before, {new} now)"


def _missing_names(these: list[Any], others: list[Any]) -> str:
    return ", ".join(str(each) for each in these if each not in others) or "none"


def checked_name(name: str) -> str:
    """Return the name of a person who approves, without blanks around it; UsageError if none."""
    name = name.strip()
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"the name of the person who approves has 1 to {_LONGEST_NAME} visible characters"
        )
    return name


def _os_account() -> str:
    """Return the account of the operating system that runs this process."""
    if sys.platform == "win32":
        return getpass.getuser()
    # getpass would believe the environment.
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"
