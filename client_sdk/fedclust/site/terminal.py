"""The consent screen and questions to a person, for commands and for Python in a terminal."""

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Callable

from fedclust.site.consent import ConsentRequest
from fedclust.wire.errors import ConsentDeclined, ConsentNeeded

#: Widest and narrowest text, in columns.
WIDEST, _NARROWEST = 98, 40
_INDENT = " " * 12


def printable(text: object) -> str:
    """Replace control characters, which could change what a terminal shows."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))


def consent_text(
    request: ConsentRequest, width: int = WIDEST, *, full: bool = False, hint: str = ""
) -> str:
    """Return the consent screen, wrapped to ``width`` columns, with a hint as its last line."""
    width = max(_NARROWEST, min(WIDEST, width))
    lines = [(f"{heading:<11} ", line) for heading, line in request.text(full=full)]
    if hint:
        lines.append((_INDENT, hint))
    return "\n".join(
        textwrap.fill(line, width, initial_indent=start, subsequent_indent=_INDENT)
        for start, line in lines
    )


def consent_question(request: ConsentRequest, question: str) -> str:
    """Return the question with the risks that need express consent."""
    if request.two_sites_with is not None:
        question += f" {request.two_sites_with} can then work out this site's part of every sum."
    if request.protection_none:
        question += " The coordinator can compute single records."
    return question


def confirmed(question: str, instead: str) -> bool:
    """Ask a person; without a terminal raise ConsentNeeded that names the option ``instead``."""
    # typer.confirm would turn Ctrl-C (exit code 130) and Ctrl-D (a no) into failures.
    while True:
        answer = typed(f"{question} [y/N]", instead).casefold()
        if answer in ("", "n", "no", "y", "yes"):
            return answer in ("y", "yes")


def typed(question: str, instead: str) -> str:
    """Return the line that a person types, without blanks around it; ConsentNeeded as above."""
    # Python sets stdin to None where there is no standard input.
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConsentNeeded(f"there is no terminal to ask on: give {instead}", ("consent",))
    _say(question)
    return sys.stdin.readline().strip()


def decide_consent(
    request: ConsentRequest,
    consent: Callable[[ConsentRequest], bool] | bool | None,
    *,
    approved: bool,
) -> None:
    """Raise ConsentDeclined unless the site consents to a request.

    Parameters
    ----------
    request : ConsentRequest
    consent : callable or bool, optional
        As for :meth:`fedclust.Site.participate`.
    approved : bool
        Whether an approval of exactly this request is recorded: without ``consent`` it is enough.

    Raises
    ------
    ConsentNeeded
        There is neither ``consent`` nor an approval, nor a terminal to ask on.
    """
    if consent is None:
        consent = approved or ask_consent
    if not (consent if isinstance(consent, bool) else consent(request)):
        raise ConsentDeclined(f"not consented to session {request.session}")


def ask_consent(request: ConsentRequest) -> bool:
    """Show the consent screen and ask a person.

    Raises
    ------
    ConsentNeeded
        Standard input or standard error is no terminal, as in a notebook or a scheduled job.
    """
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        express = []
        if request.two_sites_with is not None:
            express.append(f"two_sites_with {request.two_sites_with}")
        if request.protection_none:
            express.append("protection_none")
        also = f", also to: {', '.join(express)}" if express else ""
        raise ConsentNeeded(
            f"session {request.session} needs consent{also}, and there is no terminal to ask on. "
            "Read what it asks (print site.check(...).text()), then pass consent=True; or record "
            "an approval: fedclust review, then fedclust approve",
            ("consent", *express),
        )
    width = shutil.get_terminal_size().columns - 1
    _say(
        consent_text(
            request, width, hint="Every field that leaves: site.check(...).text(full=True)"
        )
    )
    return confirmed(consent_question(request, "Does this site take part?"), "consent=True")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
