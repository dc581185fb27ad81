"""The command ``fedclust`` for sites, analysts and operators."""

import contextlib
import io
import os
import sys
import traceback
import warnings
from importlib.metadata import entry_points

import typer

from fedclust.cli import (
    accounts,
    agent,
    allowance,
    approval,
    backup,
    check,
    cohort,
    data_source,
    doctor,
    ledger,
    participate,
    predict,
    session,
    simulate,
    study,
)
from fedclust.cli.console import err, flush_out, show, tell_retries, tell_warning
from fedclust.cli.options import EPILOG, Version, exit_code
from fedclust.wire import errors

app = typer.Typer(
    help="Take part in clustering across organisations without sharing rows.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def fedclust(version: Version = False) -> None:  # its callback prints
    pass


app.add_typer(participate.app)
app.add_typer(predict.app)
app.add_typer(check.app)
app.add_typer(approval.app)
app.add_typer(agent.app, name="agent")
app.add_typer(data_source.app, name="data")
app.add_typer(cohort.app, name="cohort")
app.add_typer(allowance.app, name="allowance")
app.add_typer(ledger.app, name="ledger")
app.add_typer(backup.app)
app.add_typer(doctor.app)
app.add_typer(simulate.app)
app.add_typer(study.app, name="study")
app.add_typer(session.app, name="session")
app.add_typer(accounts.sites, name="site")
app.add_typer(accounts.analysts, name="analyst")
app.add_typer(accounts.operators, name="operator")
for more in entry_points(group="fedclust.commands"):
    app.add_typer(more.load(), name=more.name)


def main() -> None:
    """Run the command; an error is one line on standard error and an exit code."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A console that cannot show a character, such as a Greek unit, must not end a session.
            stream.reconfigure(errors="backslashreplace")
    tell_retries()
    warnings.showwarning = tell_warning
    try:
        try:
            app()
        finally:
            # Flushed here, where a full disk is still reported; a closed pipe is not an error.
            with contextlib.suppress(SystemExit):
                flush_out()
    except errors.FedclustError as error:
        show(err, f"fedclust: {error}")
        sys.exit(exit_code(error))
    except Exception as error:
        # The message of an unexpected error may contain values of the data; the message of the
        # operating system does not.
        said = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        kind = type(error).__name__
        show(err, f"fedclust: unexpected {kind}{said}; FEDCLUST_DEBUG=1 shows where")
        if os.environ.get("FEDCLUST_DEBUG"):
            traceback.print_exc()
        sys.exit(1)
