"""What notifications say: plain text, one thing to do, no value of the data.

The coordinator mails these texts. A site's agent hands those for sites to the site's own command.
The first line is also the subject of the mail. Texts for a site, and for the owner of a token, are
named so; all others are for operators, analysts and the webhook.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

#: A token's owner is warned this long before its end, each time once.
TOKEN_WARNINGS = (timedelta(days=2), timedelta(days=14))


def time_text(at: datetime) -> str:
    """Return a time as texts say it."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def join_paragraphs(*paragraphs: str) -> str:
    """Return a text of several paragraphs."""
    return "\n\n".join(paragraphs) + "\n"


# --- to a site, or to the owner of a token --------------------------------------------------------


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


#: What to do once a session has ended, by its state.
_ENDED = {
    "completed": "Read its result; a site's agent, or the command that the site took part with, "
    "writes the labels of its rows:\n\n    fedclust session result {}",
    "failed": "It has no result, and its sites need not do anything. This says why, and what can "
    "be done:\n\n    fedclust session show {}",
    "cancelled": "Its sites need not do anything more. See what was done:\n\n"
    "    fedclust session show {}",
}


def ended(session: str, state: str) -> str:
    """Tell everybody that a session has completed, has failed or was cancelled."""
    verb = "was" if state == "cancelled" else "has"
    return join_paragraphs(f"The session {session} {verb} {state}", _ENDED[state].format(session))


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


# --- to operators, analysts and the webhook -------------------------------------------------------


def invited(session: str, sites: Sequence[str]) -> str:
    """Tell operators which sites were invited."""
    return join_paragraphs(
        f"{_sites_are(sites)} invited to the session {session}",
        _list_sites("Invited", sites),
        f"See who has joined:\n\n    fedclust session show {session}",
    )


@dataclass(frozen=True)
class Waiting:
    """What the texts say of a round that is overdue."""

    session: str
    number: int
    #: When the session fails, or continues without the round if this is ``optional``.
    until: datetime
    optional: bool

    @property
    def subject(self) -> str:
        """The beginning of the first line."""
        return f"Round {self.number} of the session {self.session} is overdue"

    @property
    def outcome(self) -> str:
        """What happens if the round stays overdue."""
        end = "continues without this round" if self.optional else "fails"
        return f"the session {end} on {time_text(self.until)}"


def overdue(
    waiting: Waiting,
    deadline: datetime,
    late: Sequence[str],
    spare: int,
    needed: int,
    now: datetime,
) -> str:
    """Tell operators and the analyst that a round waits for sites.

    ``spare`` of them can be excluded; the session needs ``needed`` sites.
    """
    session, them = waiting.session, "it" if len(late) == 1 else "them"
    later = f"{now + timedelta(days=1):%Y-%m-%dT%H:%MZ}"
    return join_paragraphs(
        f"{waiting.subject}: {_sites_are(late)} late",
        _list_sites("Late", late),
        f"The deadline was {time_text(deadline)}.",
        f"If nothing changes, {waiting.outcome}.",
        f"See since when each site is late:\n\n    fedclust session show {session}",
        f"Then ask the site. To give it more time, for example:\n\n"
        f"    fedclust session deadline {session} {later}",
        _exclusion(session, late, spare, needed, them),
    )


def _exclusion(session: str, late: Sequence[str], spare: int, needed: int, them: str) -> str:
    if spare == 0:
        return (
            f"The session needs {needed} sites, so do not exclude {them}. If a site cannot answer, "
            f"end the session, and create another one with other sites:\n\n{_start_again(session)}"
        )
    most = "" if spare >= len(late) else f" at most {spare} of"
    commands = [f"    fedclust session exclude {session} {site}" for site in late]
    return f"Or continue without{most} {them}, which cannot be undone:\n\n" + "\n".join(commands)


def too_few_sites(waiting: Waiting, joined: int, needed: int, pending: Sequence[str]) -> str:
    """Tell operators and the analyst that too few sites of a round still take part.

    ``pending``: the sites whose submissions would let the round close, if that is possible.
    """
    session = waiting.session
    counts = f"Sites of the round that still take part: {joined}. The session needs {needed}."
    show = f"See which sites have left:\n\n    fedclust session show {session}"
    if waiting.optional:
        advice = f"No action is needed: {waiting.outcome}."
    elif pending:
        advice = (
            f"{_list_sites('The round can still close with the submissions of', pending)}. The "
            "next round needs more sites. If the method lets sites join late, invite others:\n\n"
            f"    fedclust session invite {session} SITES\n\n"
            f"Otherwise {waiting.outcome}."
        )
    else:
        advice = (
            f"No site can join a round that has begun, so this session cannot go on: "
            f"{waiting.outcome}. End it, and create another one with other sites (--sites) or a "
            f"smaller --min-sites:\n\n{_start_again(session)}"
        )
    return join_paragraphs(f"{waiting.subject}: too few sites take part", counts, show, advice)


def _start_again(session: str) -> str:
    return (
        f"    fedclust session cancel {session}\n"
        f"    fedclust session create NEW --from {session} --sites SITES"
    )


def held(session: str, number: int, deaths: int) -> str:
    """Tell operators and the analyst that a session waits for an operator."""
    return join_paragraphs(
        f"The session {session} is held",
        f"The process that aggregates round {number} died {deaths} times. All answers of the sites "
        "are kept, and no deadline runs.",
        "The coordinator's operator should look for the cause, for example too little memory. Then "
        f"have the session try again:\n\n    fedclust session retry {session}",
        f"or end it:\n\n    fedclust session cancel {session}",
    )


def token_expiring(role: str, name: str, ends: datetime) -> str:
    """Tell operators that the last token of somebody ends soon."""
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
