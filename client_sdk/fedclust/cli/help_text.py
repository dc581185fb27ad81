"""What ends every command's help: examples and exit codes; and the variables that commands read."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from fedclust.wire import errors

EXIT_CODES: tuple[tuple[type[errors.FedclustError], int], ...] = (
    (errors.UsageError, 2),
    (errors.DataError, 3),
    (errors.ConsentError, 4),
    # Refused by the coordinator, and the same kind of mistake as one that is found here.
    (errors.ConsentMissing, 4),
    (errors.ConsentMismatch, 4),
    (errors.DisclosureRefused, 9),
    (errors.RequestTimeout, 6),
    (errors.TooManyRequests, 6),
    (errors.Unavailable, 6),
    (errors.CoordinatorError, 5),
    (errors.TransportError, 6),
    (errors.SessionError, 7),
    (errors.StateError, 8),
    (errors.DisclosureError, 9),
)
#: What a proxy in between answers for a coordinator that it does not reach.
_NO_ANSWER = frozenset({502, 504})
#: Exit code -> (in the help, on the page about exit codes).
EXIT_MEANINGS: dict[int, tuple[str, str]] = {
    0: ("done", "The command did what it was asked to do."),
    1: ("unexpected", "An unexpected error. ``FEDCLUST_DEBUG=1`` shows where."),
    2: ("usage", "A wrong option, address, file or setting."),
    3: ("data", "The rows do not fit the session. Nothing was sent."),
    4: ("no consent", "A consent is missing, or an approval where one is required."),
    5: (
        "refused by the coordinator",
        "The coordinator refused: token, role, name, or state of the session.",
    ),
    6: (
        "unreachable, busy or TLS",
        "No answer: network, TLS, proxy, or a coordinator that is busy or stopping.",
    ),
    7: (
        "session failed, cancelled or left",
        "The session failed, was cancelled, or continues without this site.",
    ),
    8: (
        "the site's state",
        "The site's state cannot be used, or a check found a fault in it.",
    ),
    9: (
        "disclosure check",
        "A check of what the site would send refused it: the site's own, or the coordinator's.",
    ),
    130: ("interrupted", "Somebody pressed Ctrl-C."),
}
EPILOG = "Exit codes: " + ", ".join(f"{n} {said}" for n, (said, _) in EXIT_MEANINGS.items()) + "."
#: Variable of the environment -> (its default, what it is for).
VARIABLES: dict[str, tuple[str, str]] = {
    "FEDCLUST_COORDINATOR": ("-", "Address of the coordinator: ``https://host[:port]``."),
    "FEDCLUST_TOKEN_FILE": ("-", "File with the token, which only its owner may read."),
    "FEDCLUST_TOKEN": ("-", "The token itself, if no file is named."),
    "FEDCLUST_PROXY": (
        "``HTTPS_PROXY``",
        "Address of the proxy: ``http://host:port``, with a user and a password if it needs them.",
    ),
    "FEDCLUST_STATE_DIR": (
        "the platform's state directory",
        "Directory of a site's state and settings.",
    ),
    "FEDCLUST_SQL_URL": ("-", "Address of the database that a query (``.sql``) is for."),
    "FEDCLUST_PROGRESS": ("``1``", "``0``: Python shows nothing of work that takes long."),
    "FEDCLUST_DEBUG": ("-", "``1``: the command shows where an unexpected error comes from."),
    "NO_COLOR": ("-", "Any value: no colour and no progress bars."),
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedclust {version('fedclust')}")
        raise typer.Exit


#: The option of the command itself.
Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
]


def epilog(*lines: str) -> str:
    """Return examples and the exit codes; ``\\b`` stops the lines from being joined."""
    return "\n\n".join(["\b\n" + "\n".join(["Examples:", *(f"  {t}" for t in lines)]), EPILOG])


def exit_code(error: errors.FedclustError) -> int:
    """Return the code that a command ends with."""
    if isinstance(error, errors.CoordinatorError) and error.status in _NO_ANSWER:
        return 6
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
