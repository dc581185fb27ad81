"""What ends every command's help: examples and exit codes."""

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
EXIT_MEANINGS: dict[int, str] = {
    0: "done",
    1: "unexpected",
    2: "usage",
    3: "data",
    4: "no consent",
    5: "refused by the coordinator",
    6: "unreachable, busy or TLS",
    7: "session failed, cancelled or left",
    8: "the site's state",
    9: "disclosure check",
    130: "interrupted",
}
EPILOG = "Exit codes: " + ", ".join(f"{n} {said}" for n, said in EXIT_MEANINGS.items()) + "."


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
