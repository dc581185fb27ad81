"""What notifications say to operators and analysts, and to a site: plain text, one thing to do.

The first line is also the subject of the mail.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fedclust_service.domain.access import Principal, Role


def time_text(at: datetime) -> str:
    """Return a time as texts say it."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def invited(session: str, sites: Sequence[str]) -> str:
    """Tell operators which sites were invited."""
    return _join_paragraphs(
        f"{_sites_are(sites)} invited to the session {session}",
        _list_sites("Invited", sites),
        f"See who has joined:\n\n    fedclust session show {session}",
    )


def invited_site(session: str, site: str) -> str:
    """Tell a site that it was invited."""
    return _join_paragraphs(
        f"The site {site} is invited to the session {session}",
        "Read its purpose, and see which of your columns it asks for. This sends nothing:\n\n"
        f"    fedclust check {session} --data FILE",
        f"Then take part, with your consent:\n\n    fedclust participate {session} --data FILE",
        f"or decline:\n\n    fedclust leave {session}",
    )


def overdue(session: str, number: int, deadline: datetime, late: Sequence[str]) -> str:
    """Tell operators and the analyst that a round waits; without ``late``, for lack of sites."""
    if not late:
        return _join_paragraphs(
            f"Round {number} of the session {session} is overdue: too few sites take part",
            "See which sites have left, and invite others if the method allows it:\n\n"
            f"    fedclust session show {session}",
        )
    return _join_paragraphs(
        f"Round {number} of the session {session} is overdue: {_sites_are(late)} late",
        _list_sites("Late", late),
        f"The deadline was {time_text(deadline)}. The session waits, and fails in the end.",
        "See since when each site is late and when it was last seen, and ask it:\n\n"
        f"    fedclust session show {session}",
        "Give it more time, or continue without it:\n\n"
        f"    fedclust session deadline {session} UNTIL\n"
        f"    fedclust session exclude {session} {late[0]}",
    )


def overdue_site(session: str, number: int, deadline: datetime, site: str) -> str:
    """Tell a site that a round waits for it."""
    return _join_paragraphs(
        f"The session {session} waits for the site {site}",
        f"The deadline of round {number} was {time_text(deadline)}, and the submission of {site} "
        "is missing.",
        "Start the agent again if it has stopped, or run the command that you took part with. It "
        f"resumes where it stopped:\n\n    fedclust participate {session} --data FILE",
        "To find out what is wrong:\n\n    fedclust doctor",
    )


def completed(session: str) -> str:
    """Tell operators and the analyst that a session has completed."""
    return _join_paragraphs(
        f"The session {session} has completed",
        f"Read its result:\n\n    fedclust session result {session}",
    )


def completed_site(session: str) -> str:
    """Tell a site that a session has completed."""
    return _join_paragraphs(
        f"The session {session} has completed",
        "Your agent, or the command that you took part with, writes the labels of your rows. Read "
        f"the clusters:\n\n    fedclust session result {session}",
    )


def cancelled(session: str) -> str:
    """Tell everybody that a session was cancelled."""
    return _join_paragraphs(
        f"The session {session} was cancelled",
        "Its sites need not do anything more. See what was done:\n\n"
        f"    fedclust session show {session}",
    )


def failed(session: str) -> str:
    """Tell everybody that a session has failed."""
    return _join_paragraphs(
        f"The session {session} has failed",
        "It has no result, and its sites need not do anything more. This says why, and what to "
        f"do:\n\n    fedclust session show {session}",
    )


def token_expiring(owner: Principal, ends: datetime) -> str:
    """Tell operators that the last token of somebody ends soon."""
    role, name = owner.role.value, owner.name
    return _join_paragraphs(
        f"The token of the {role} {name} ends on {time_text(ends)}",
        "It is the last valid one. Issue another and hand it over:\n\n"
        f"    fedclust {role} token {name} --token-out {name}.token",
    )


def own_token_expiring(owner: Principal, ends: datetime) -> str:
    """Tell the owner of a token that it ends soon."""
    role, name = owner.role.value, owner.name
    done = (
        "Write the new token into the token file of this site; a running agent then uses it."
        if owner.role is Role.SITE
        else "Write the new token into your token file."
    )
    return _join_paragraphs(
        f"The token of the {role} {name} ends on {time_text(ends)}",
        f"Ask the coordinator's operator for a new one. {done}",
        "To see which token you use and until when it is valid:\n\n    fedclust doctor",
    )


def with_address(text: str, public_url: str | None) -> str:
    """Add the coordinator's address to a text, if it is known."""
    return text if public_url is None else f"{text}\nCoordinator: {public_url}\n"


def _join_paragraphs(*paragraphs: str) -> str:
    return "\n\n".join(paragraphs) + "\n"


def _sites_are(names: Sequence[str]) -> str:
    """Return sites with their verb: one by its name, more as a number."""
    return f"{names[0]} is" if len(names) == 1 else f"{len(names)} sites are"


def _list_sites(label: str, names: Sequence[str]) -> str:
    return f"{label}: {', '.join(names)}"
