"""Notifications at a site: the agent looks what the site has to know and runs the site's command.

They hold what the coordinator's notifications hold: names, states and times, and no value. Each is
handed to the command once, also over restarts: the site's state remembers them.
"""

import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from fedclust.client import Client
from fedclust.schema import notification_texts as texts
from fedclust.schema.model import Model
from fedclust.schema.states import ENDED, SessionState
from fedclust.schema.times import Timestamp
from fedclust.site.state import SiteState, StateDocument
from fedclust.wire.errors import FedclustError, NotFound
from fedclust.wire.models import SessionEntry, WhoAmI

#: Time between two looks, s.
_LOOK_S = 60.0
#: The longest time that the command may take, s.
COMMAND_TIMEOUT_S = 60.0
#: A command that fails is run again at the next look, so many times in all.
ATTEMPTS = 3
_PREFIX = "FEDCLUST_"

Kind = Literal["invited", "overdue", "finished", "failed", "token-expiring"]


class SiteNotification(Model):
    """What the command gets on its standard input, as JSON. The webhook's body has these fields."""

    id: str = Field(default_factory=lambda: secrets.token_hex(16))
    kind: Kind
    time: Timestamp
    session: str | None = None
    round: int | None = None
    sites: tuple[str, ...] = ()
    state: str | None = None
    account: str | None = None
    expires_at: Timestamp | None = None
    text: str
    link: str | None = None


class _Remembered(Model):
    """What the command was run for: by session that has not ended, and by the token's end."""

    coordinator: str = ""
    site: str = ""
    sessions: dict[str, list[str]] = Field(default_factory=dict)
    tokens: dict[str, list[str]] = Field(default_factory=dict)


class SiteNotifier:
    """Finds what is new for a site and hands it to a command.

    Parameters
    ----------
    state : SiteState
    command : sequence of str
        The program and its arguments; no shell is involved.
    tell : callable
        Takes a line of text for the agent's log.
    handed : callable
        Returns the names of the sessions that were handed to the agent. The site has consented to
        these, so it is not notified of their invitation.
    now : callable
        Returns the time, aware.
    """

    def __init__(
        self,
        state: SiteState,
        command: Sequence[str],
        tell: Callable[[str], None],
        handed: Callable[[], frozenset[str]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._remembered = StateDocument(state, "agent-notified", _Remembered)
        self._command = command
        self._tell = tell
        self._handed = handed
        self._now = now
        #: How often the command has failed, by what it was run for.
        self._failed: dict[tuple[str, str], int] = {}
        self._complaint = ""

    def run(self, connect: Callable[[], Client], stopping: threading.Event) -> None:
        """Look once a minute until ``stopping`` is set; ``connect`` returns a new connection."""
        while not stopping.is_set():
            self.look_once(connect)
            stopping.wait(_LOOK_S)

    def look_once(self, connect: Callable[[], Client]) -> None:
        """Look now. A failure is one line in the log, until another one or none happens."""
        complaint = ""
        try:
            with connect() as client:
                self.look(client)
        except FedclustError as error:
            complaint = str(error)
        except Exception as error:
            complaint = f"unexpected {type(error).__name__}"
        if complaint and complaint != self._complaint:
            self._tell(f"notifications: {complaint}")
        self._complaint = complaint

    def look(self, client: Client) -> None:
        """Ask the coordinator, and run the command for each notification that is new.

        Raises
        ------
        FedclustError
            The coordinator does not answer, or the site's state cannot be used.
        """
        me, now = client.whoami(), self._now()
        states: tuple[SessionState, ...] = ("recruiting", "running", "held")
        open_ones = {each.name: each for state in states for each in client.sessions(state)}
        known = self._remembered.read()
        if (known.coordinator, known.site) != (client.url, me.name):
            # Everything that holds now is notified of.
            known = _Remembered(coordinator=client.url, site=me.name)
        before = known.model_copy(deep=True)
        for ends in [each for each in known.tokens if datetime.fromisoformat(each) <= now]:
            del known.tokens[ends]
        for name in known.sessions.keys() - open_ones.keys():
            ended = _ended(client, name, me.name, now)
            if ended is None or self._hand_over(known, known.sessions[name], "ended", ended):
                del known.sessions[name]
        handed = self._handed()
        for name, entry in open_ones.items():
            seen = known.sessions.setdefault(name, [])
            for key, found in _of_session(entry, me.name, now):
                if not (found.kind == "invited" and name in handed):
                    self._hand_over(known, seen, key, found)
        for key, found in _of_token(me, now):
            warned = known.tokens.setdefault(me.expires_at.isoformat(), [])
            self._hand_over(known, warned, key, found)
        if known != before:
            self._write(known)

    def _hand_over(
        self, known: _Remembered, seen: list[str], key: str, found: SiteNotification
    ) -> bool:
        """Run the command unless it was run for this before; return whether that is done.

        What was handed over is written at once, so that a restart does not repeat it.
        """
        if key in seen:
            return True
        about = (found.session or "token", key)
        fault = run_command(self._command, found)
        if fault is not None:
            failures = self._failed.get(about, 0) + 1
            self._failed[about] = failures
            again = "it is run again in a minute" if failures < ATTEMPTS else "given up"
            self._tell(f"notify_command for {found.kind}: {fault}; {again}")
            if failures < ATTEMPTS:
                return False
        self._failed.pop(about, None)
        seen.append(key)
        self._write(known)
        return True

    def _write(self, known: _Remembered) -> None:
        self._remembered.update(lambda _: known)


def run_command(
    command: Sequence[str], found: SiteNotification, timeout_s: float = COMMAND_TIMEOUT_S
) -> str | None:
    """Run a site's command with a notification on its standard input; return what went wrong.

    Its environment is this process's without any variable of fedclust, which may hold a token or a
    password, and with kind, session and text of the notification.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.upper().startswith(_PREFIX)
    }
    environment[f"{_PREFIX}NOTIFY_KIND"] = found.kind
    environment[f"{_PREFIX}NOTIFY_SESSION"] = found.session or ""
    environment[f"{_PREFIX}NOTIFY_TEXT"] = found.text
    try:
        done = subprocess.run(  # noqa: S603  # the command that the site has configured
            list(command),
            input=found.model_dump_json().encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {timeout_s:g} s and was ended"
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its arguments cannot be used"
        return f"it cannot be started: {why}"
    return None if done.returncode == 0 else f"it ended with exit code {done.returncode}"


def _of_session(
    entry: SessionEntry, me: str, now: datetime
) -> Iterator[tuple[str, SiteNotification]]:
    """Yield what a site has to know of a session that has not ended, each with its key."""
    own = next((each for each in entry.sites if each.name == me), None)
    if own is None:
        return
    if own.state == "invited":
        text = texts.site_invited(entry.name, me)
        yield "invited", _notification("invited", entry, me, text, now)
    if own.state == "joined" and own.late and entry.round is not None:
        text = texts.site_late(entry.name, entry.round, me)
        yield f"overdue {entry.round}", _notification("overdue", entry, me, text, now)


def _ended(client: Client, name: str, me: str, now: datetime) -> SiteNotification | None:
    """Return the notification of a session's end; None if the site has nothing to do with it."""
    try:
        entry = client.session(name)
    except NotFound:
        return None
    own = next((each for each in entry.sites if each.name == me), None)
    if own is None or own.state not in ("invited", "joined"):
        return None
    if entry.state not in ENDED:
        return None  # it was created while this looked
    kind: Kind = "failed" if entry.state == "failed" else "finished"
    return _notification(kind, entry, me, texts.ended(name, entry.state), now)


def _of_token(me: WhoAmI, now: datetime) -> Iterator[tuple[str, SiteNotification]]:
    left = me.expires_at - now
    reached = next((each for each in texts.TOKEN_WARNINGS if left <= each), None)
    if reached is not None:
        found = SiteNotification(
            kind="token-expiring",
            time=now,
            account=f"{me.role}:{me.name}",
            expires_at=me.expires_at,
            text=texts.own_token_expiring(me.role, me.name, me.expires_at),
        )
        yield f"within {reached.days} days", found


def _notification(
    kind: Kind, entry: SessionEntry, me: str, text: str, now: datetime
) -> SiteNotification:
    return SiteNotification(
        kind=kind,
        time=now.astimezone(UTC),
        session=entry.name,
        round=entry.round,
        sites=(me,),
        state=entry.state,
        text=text,
    )
