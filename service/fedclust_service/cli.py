"""``fedclust-service``: the coordinator's own commands, run on its machine.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 settings refused; 4 the address cannot be used; 5 the
database cannot be used; 6 the database's schema is older or newer than this program; 7 another
coordinator serves the database; 8 the clock is wrong.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from fedclust.durable_files import is_disk_full, reason
from fedclust_service import logging
from fedclust_service.addresses import is_email
from fedclust_service.exit_codes import Exit, SettingsError, StartFailure
from fedclust_service.settings import OF_NOTIFICATIONS, Settings, load_settings

if TYPE_CHECKING:
    from fedclust_service.store import Store

app = typer.Typer(
    name="fedclust-service",
    help="The coordinator of fedclust.",
    epilog="Give each setting as a flag, as a variable FEDCLUST_* or as a line of .env; secrets "
    "have no flag. Exit codes: 0 done, 1 failed, 2 usage, 3 settings, 4 address, "
    "5 database, 6 schema older or newer, 7 another server on the database, 8 the clock is wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
db = typer.Typer(help="Upgrade the database's schema.", no_args_is_help=True, rich_markup_mode=None)
config = typer.Typer(help="Show the settings.", no_args_is_help=True, rich_markup_mode=None)
audit = typer.Typer(help="Verify the audit trail.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(db, name="db")
app.add_typer(config, name="config")
app.add_typer(audit, name="audit")

#: Every user of the machine can see flags in the process list.
NO_FLAG = frozenset({"secret_key", "smtp_password", "webhook_secret", "webhook_url"})
FLAGS = tuple(name for name in Settings.model_fields if name not in NO_FLAG)
#: The settings of commands that only open the database.
DATABASE = ("data_dir", "database_url", "secrets_dir", "log_level", "log_format")
#: And of those that send a test.
NOTIFICATIONS = tuple(name for name in FLAGS if name.startswith(OF_NOTIFICATIONS))


def _print_version(wanted: bool) -> None:
    if wanted:
        _say(f"fedclust-service {version('fedclust')}")
        raise typer.Exit


@app.callback()
def fedclust_service(
    version: Annotated[  # its callback prints
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> int:
    """Run a command; return its exit code."""
    try:
        code = app(standalone_mode=False)
    except StartFailure as error:
        return _failed(str(error), error.code)
    except typer.Abort:
        return Exit.FAILED
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if not is_disk_full(error):
            raise
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}the disk is full", Exit.FAILED)
    except Exception as error:
        show = getattr(error, "show", None)  # wrong usage: the parser's message
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", Exit.USAGE))
    return code if isinstance(code, int) else Exit.OK


def _failed(message: str, code: int) -> int:
    print(f"fedclust-service: {message}", file=sys.stderr)
    return code


def _say(line: str) -> None:
    print(line, flush=True)


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command flags for the settings that it uses, or for all if no name is given.

    The command gets all settings as its first argument.
    """
    return functools.partial(_with_flags, list(names or FLAGS))


def _with_flags(names: list[str], command: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]

    def run(**values: Any) -> None:
        flags = {name: values.pop(name) for name in names}
        settings = load_settings(flags)
        # A command prints what it has done; only a server logs it.
        level = "warning" if settings.log_level == "info" else settings.log_level
        logging.configure(level, settings.log_format)
        command(settings, **values)

    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    help=Settings.model_fields[name].description,
                    metavar="VALUE",
                ),
            ],
        )
        for name in names
    ]
    kept = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    run.__signature__ = signature.replace(parameters=[*kept, *flags])  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in (*kept, *flags)}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


NewKey = Annotated[
    bool,
    typer.Option(
        "--new-key",
        help="The secret key is lost: make all tokens void, end all sign-ins, and make a key, "
        "unless another one is given, and an operator token. Stop the coordinator first.",
    ),
]
TokenOut = Annotated[
    Path | None,
    typer.Option(help="Write the token to this new file, mode 0600, instead of printing it."),
]


@app.command()
@with_settings(*DATABASE)
def init(settings: Settings, token_out: TokenOut = None, new_key: NewKey = False) -> None:
    """Create the data directory, the secret key, the database and the first operator token.

    What exists is kept.
    """
    from fedclust_service.bootstrap import open_coordinator

    with (
        _new_file(token_out) as written,
        open_coordinator(settings, serving=False, new_key=new_key) as opened,
    ):
        for line in opened.lines() if written is None else opened.made:
            _say(line)
        if written is not None and opened.operator_token is not None:
            print(opened.operator_token, file=written)
        if opened.operator_token is None:
            _say("an operator exists already; `fedclust-service operator-token` makes a token")
        elif token_out is not None:
            _say(f"wrote an operator token to {token_out}")


@contextlib.contextmanager
def _new_file(path: Path | None) -> Iterator[TextIO | None]:
    """Create a file that only its owner can read, before a token is made for it."""
    if path is None:
        yield None
        return
    try:
        path.touch(0o600, exist_ok=False)
    except OSError as error:
        message = f"{path} cannot be written: {reason(error)}"
        raise typer.BadParameter(message, param_hint="--token-out") from None
    try:
        with path.open("w", encoding="utf-8") as file:
            yield file
    finally:
        if not path.stat().st_size:
            path.unlink()


@app.command()
@with_settings()
def serve(
    settings: Settings,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write the address to this file once the server answers requests."),
    ] = None,
    accept_clock: Annotated[
        bool,
        typer.Option(
            "--accept-clock",
            help="Serve although the clock is behind the last entry of the audit trail: the clock "
            "was wrong when that entry was written.",
        ),
    ] = False,
) -> None:
    """Run the coordinator until SIGINT or SIGTERM.

    Creates what `init` creates, if it is missing. Prints the address once the server answers
    requests: "listening on http://127.0.0.1:8400".
    """
    from fedclust_service import server

    logging.configure(settings.log_level, settings.log_format)
    server.serve(settings, _say, ready_file, accept_clock=accept_clock)


@app.command()
@with_settings(*DATABASE)
def operator_token(
    settings: Settings,
    name: Annotated[str, typer.Option(help="The operator's name.")] = "operator",
    token_out: TokenOut = None,
) -> None:
    """Print a new operator token, for example to replace a lost one.

    Works while a coordinator runs. Earlier tokens stay valid.
    """
    from fedclust_service.bootstrap import explain_store_errors, open_coordinator
    from fedclust_service.usecases import principals
    from fedclust_service.usecases.access_queries import is_slug

    if not is_slug(name):
        raise typer.BadParameter("use a-z, 0-9 and -, at most 63", param_hint="--name")
    if settings.database_url is None and not settings.data_dir.is_dir():
        raise SettingsError(
            f"there is no data directory {settings.data_dir}: name the coordinator's with "
            "--data-dir, or make a new coordinator with `fedclust-service init`"
        )
    with _new_file(token_out) as written, open_coordinator(settings, serving=False) as opened:
        for line in opened.made:
            print(line, file=sys.stderr)  # stdout has only the token, for scripts
        with explain_store_errors(settings):
            token = opened.operator_token
            if token is None or name != "operator":
                token = principals.bootstrap_operator(opened.coordinator, name)
        print(token, file=written, flush=True)


@app.command()
@with_settings(*DATABASE)
def backup(
    settings: Settings,
    out: Annotated[Path, typer.Option(help="The file to write; it must not exist.")],
) -> None:
    """Copy the SQLite database to a file, even while a coordinator serves it.

    The copy holds everything that was acknowledged before the command began. It does not hold the
    secret key: keep that in another place. The database's audit trail records the backup.
    """
    from fedclust_service.bootstrap import explain_store_errors
    from fedclust_service.store import StoreError
    from fedclust_service.store import backup as copies
    from fedclust_service.usecases.attention import BACKED_UP
    from fedclust_service.usecases.audit import record_command

    with explain_store_errors(settings, "no backup was made"):
        made = copies.backup(settings.store_url, out)
    _say(f"{made.path}: {made.size} bytes, schema {made.migration}, SHA-256 {made.sha256}")
    try:
        with contextlib.closing(_open_store(settings)) as store:
            record_command(store, BACKED_UP, backup=made.sha256, bytes=made.size)
    except StoreError as error:
        # The copy is good, for instance one that is made before an upgrade of the schema.
        print(f"fedclust-service: the backup is not recorded: {error}", file=sys.stderr)


@app.command()
@with_settings(*DATABASE)
def restore(
    settings: Settings,
    source: Annotated[Path, typer.Option("--from", help="A file that `backup` wrote.")],
    new_key: NewKey = False,
) -> None:
    """Restore a backup of an SQLite database. Stop the server and move the old database first.

    Put the secret key into the data directory before: no token is valid without it. The audit trail
    records the restore. Whoever had signed in must sign in again.
    """
    from fedclust_service.bootstrap import explain_store_errors, open_coordinator, require_key
    from fedclust_service.store import backup as copies
    from fedclust_service.usecases import sign_ins
    from fedclust_service.usecases.attention import RESTORED
    from fedclust_service.usecases.audit import record_command

    check_key = None if new_key else functools.partial(require_key, settings)
    with explain_store_errors(settings, "nothing was restored"):
        made = copies.restore(source, settings.store_url, check_key)
    _say(f"{made.path}: {made.size} bytes, schema {made.migration}")
    with explain_store_errors(settings), contextlib.closing(_open_store(settings)) as store:
        # First, so that the entry before it is the backup's last.
        record_command(store, RESTORED, backup=made.sha256)
    with open_coordinator(settings, serving=False, new_key=new_key) as opened:
        for line in opened.lines():
            _say(line)
        with explain_store_errors(settings):
            sign_ins.end_every(opened.coordinator)


@db.command("upgrade")
@with_settings(*DATABASE)
def db_upgrade(settings: Settings) -> None:
    """Upgrade the database to this program's schema. Stop the coordinator and back up first."""
    from fedclust_service.bootstrap import explain_store_errors
    from fedclust_service.store import migrate

    with explain_store_errors(settings):
        before = migrate.current(settings.store_url)
        migrate.upgrade(settings.store_url)
        after = migrate.current(settings.store_url)
    _say(f"{before or 'empty'} -> {after}" if before != after else f"{after}: nothing to do")


@db.command("current")
@with_settings(*DATABASE)
def db_current(settings: Settings) -> None:
    """Print the database's migration and the one of this program."""
    from fedclust_service.bootstrap import explain_store_errors
    from fedclust_service.store import migrate
    from fedclust_service.store.tables import SCHEMA_REVISION

    with explain_store_errors(settings):
        found = migrate.current(settings.store_url)
    _say(f"database: {found or 'empty'}")
    _say(f"program:  {SCHEMA_REVISION}")


@audit.command("verify")
@with_settings(*DATABASE)
def audit_verify(
    settings: Settings,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="Head noted elsewhere, which the trail must contain, such as NUMBER:HASH in a "
            "site's ledger.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Verify the audit trail's chain; exit code 1 if an entry was changed, removed or moved.

    Works while a coordinator runs. The trail records the outcome. Note the printed head outside
    this machine: only `--head` or a site's ledger reveals a trail that was cut at its end or
    rewritten completely.
    """
    from fedclust_service.bootstrap import explain_store_errors
    from fedclust_service.domain.audit_chain import Head
    from fedclust_service.store import StoreError
    from fedclust_service.usecases.attention import VERIFIED
    from fedclust_service.usecases.audit import record_command, verify_trail

    noted = None if head is None else Head.noted(head)
    if head is not None and noted is None:
        raise typer.BadParameter("give 64 hexadecimal digits, or NUMBER:HASH", param_hint="--head")
    with explain_store_errors(settings), contextlib.closing(_open_store(settings)) as store:
        step = verify_trail(store, noted)
        found = {"entries": step.entries, "faults": len(step.faults)}
        try:
            record_command(store, VERIFIED, **found)
        except StoreError as error:
            not_recorded = f"fedclust-service: the verification is not recorded: {error}"
            print(not_recorded, file=sys.stderr)
    last = step.head.rpartition(":")[2]
    if as_json:
        known = {"entries": step.entries, "head": last}
        _say(json.dumps({**known, "unsealed": step.unsealed, "faults": step.faults}))
    else:
        for fault in step.faults:
            _say(f"fault: {fault}")
        _say(f"{step.entries} entries sealed, {step.unsealed} not yet; head {last}")
    if step.faults:
        raise typer.Exit(Exit.FAILED)


@config.command("show")
@with_settings()
def config_show(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Print the current settings, with secrets masked."""
    shown = settings.shown()
    if as_json:
        _say(json.dumps(shown, indent=2))
        return
    width = max(map(len, shown))
    for name, value in shown.items():
        _say(f"{name:<{width}}  {value}")


@app.command("notify-test")
@with_settings(*DATABASE, *NOTIFICATIONS)
def notify_test(
    settings: Settings,
    to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Send the mail here, not to the operators."),
    ] = None,
) -> None:
    """Send a test notification through every configured channel and say what happened.

    Mail goes to operator_emails and to the addresses of operators' accounts, to each by itself.
    Exit code 1 if one was not delivered, and 3 if none is configured.
    """
    from fedclust_service.clock import Machine
    from fedclust_service.delivery import try_channels

    if to is not None and not is_email(to):
        raise typer.BadParameter("use an address such as it@hospital.example", param_hint="--to")
    results = []
    accounts = operators_addresses(settings) if to is None and settings.smtp_host else ()
    for delivered, line in try_channels(settings, to, accounts, Machine().wall()):
        results.append(delivered)
        _say(line)
    if not results:
        raise SettingsError(
            "no channel is configured: set smtp_host, smtp_from and operator_emails for e-mail, "
            "or webhook_url, webhook_hosts and webhook_secret"
        )
    if not all(results):
        raise typer.Exit(Exit.FAILED)


def _open_store(settings: Settings) -> Store:
    """Open a database that exists, next to a server that may be running."""
    from fedclust_service.clock import StoreClock
    from fedclust_service.store import Store

    return Store.open(settings.store_url, StoreClock(), create=False)


def operators_addresses(settings: Settings) -> Iterable[str]:
    """Return the addresses of operators' accounts; say so if the database cannot be read."""
    from fedclust_service.bootstrap import explain_store_errors
    from fedclust_service.domain.access import Role

    try:
        with explain_store_errors(settings), contextlib.closing(_open_store(settings)) as store:
            emails = store.read("notify.test", lambda tx: tx.principals.emails(Role.OPERATOR))
    except StartFailure as failure:
        _say(f"e-mail: the operators' accounts were not read: {failure}")
        return ()
    return emails.values()


if __name__ == "__main__":
    sys.exit(main())
