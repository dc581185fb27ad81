"""What notifications say to operators, analysts and the webhook; those to a site are in the SDK.

The first line is also the subject of the mail.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fedclust.notification_texts import join_paragraphs, time_text
from fedclust_service.domain.access import Principal


def invited(session: str, sites: Sequence[str]) -> str:
    """Tell operators which sites were invited."""
    return join_paragraphs(
        f"{_sites_are(sites)} invited to the session {session}",
        _list_sites("Invited", sites),
        f"See who has joined:\n\n    fedclust session show {session}",
    )


def overdue(session: str, number: int, deadline: datetime, late: Sequence[str]) -> str:
    """Tell operators and the analyst that a round waits; without ``late``, for lack of sites."""
    if not late:
        return join_paragraphs(
            f"Round {number} of the session {session} is overdue: too few sites take part",
            "See which sites have left, and invite others if the method allows it:\n\n"
            f"    fedclust session show {session}",
        )
    return join_paragraphs(
        f"Round {number} of the session {session} is overdue: {_sites_are(late)} late",
        _list_sites("Late", late),
        f"The deadline was {time_text(deadline)}. The session waits, and fails in the end.",
        "See since when each site is late and when it was last seen, and ask it:\n\n"
        f"    fedclust session show {session}",
        "Give it more time, or continue without it:\n\n"
        f"    fedclust session deadline {session} UNTIL\n"
        f"    fedclust session exclude {session} {late[0]}",
    )


def completed(session: str) -> str:
    """Tell operators and the analyst that a session has completed."""
    return join_paragraphs(
        f"The session {session} has completed",
        f"Read its result:\n\n    fedclust session result {session}",
    )


def token_expiring(owner: Principal, ends: datetime) -> str:
    """Tell operators that the last token of somebody ends soon."""
    role, name = owner.role.value, owner.name
    return join_paragraphs(
        f"The token of the {role} {name} ends on {time_text(ends)}",
        "It is the last valid one. Issue another and hand it over:\n\n"
        f"    fedclust {role} token {name} --token-out {name}.token",
    )


def _sites_are(names: Sequence[str]) -> str:
    """Return sites with their verb: one by its name, more as a number."""
    return f"{names[0]} is" if len(names) == 1 else f"{len(names)} sites are"


def _list_sites(label: str, names: Sequence[str]) -> str:
    return f"{label}: {', '.join(names)}"
