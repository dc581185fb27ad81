"""What notifications say to a site: plain text, one thing to do, no value of the data.

The coordinator mails these texts, and a site's agent hands them to the site's own command. The
first line is also the subject of the mail.
"""

from __future__ import annotations

from datetime import datetime


def time_text(at: datetime) -> str:
    """Return a time as texts say it."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def join_paragraphs(*paragraphs: str) -> str:
    """Return a text of several paragraphs."""
    return "\n\n".join(paragraphs) + "\n"


def site_invited(session: str, site: str) -> str:
    """Tell a site that it was invited."""
    return join_paragraphs(
        f"Your site {site} is invited to the session {session}",
        "Read its purpose, and see which of your columns it asks for. This sends nothing:\n\n"
        f"    fedclust check {session} --data FILE",
        f"Then take part, with your consent:\n\n    fedclust participate {session} --data FILE",
        f"or decline:\n\n    fedclust leave {session}",
    )


def site_late(session: str, number: int, site: str, deadline: datetime | None = None) -> str:
    """Tell a site that a round waits for it."""
    passed = "has passed" if deadline is None else f"was {time_text(deadline)}"
    return join_paragraphs(
        f"The session {session} waits for the site {site}",
        f"The deadline of round {number} {passed}, and the submission of {site} is missing.",
        "Start the agent again if it has stopped, or run the command that you took part with. It "
        f"resumes where it stopped:\n\n    fedclust participate {session} --data FILE",
        "To find out what is wrong:\n\n    fedclust doctor",
    )


def site_completed(session: str) -> str:
    """Tell a site that a session has completed."""
    return join_paragraphs(
        f"The session {session} has completed",
        "Your agent, or the command that you took part with, writes the labels of your rows. Read "
        f"the clusters:\n\n    fedclust session result {session}",
    )


def cancelled(session: str) -> str:
    """Tell everybody that a session was cancelled."""
    return join_paragraphs(
        f"The session {session} was cancelled",
        "Its sites need not do anything more. See what was done:\n\n"
        f"    fedclust session show {session}",
    )


def site_failed(session: str) -> str:
    """Tell a site that a session has failed."""
    return join_paragraphs(
        f"The session {session} has failed",
        f"No action is needed. The reason:\n\n    fedclust session show {session}",
    )


def own_token_expiring(role: str, name: str, ends: datetime) -> str:
    """Tell the owner of a token that it ends soon."""
    done = "; a running agent then uses it" if role == "site" else ""
    return join_paragraphs(
        f"The token of the {role} {name} ends on {time_text(ends)}",
        "Ask the coordinator's operator for a new one, and write it into your token file"
        + done
        + ".",
        "To see until when your token is valid:\n\n    fedclust doctor",
    )


def with_address(text: str, public_url: str | None, page: str | None = None) -> str:
    """Add the coordinator's address to a text, if it is known, and that of a page about it."""
    if public_url is None:
        return text
    shown = "" if page is None else f"In the browser: {page}\n"
    return f"{text}\nCoordinator: {public_url}\n{shown}"
