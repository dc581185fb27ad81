"""``fedclust agent``: one process that answers all sessions a site has consented to, for weeks."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from fedclust.cli import options as o
from fedclust.cli.agent_worker import Agent, AgentEntries, AgentEntry
from fedclust.cli.console import (
    ProgressLine,
    conclude,
    consented,
    err,
    show,
    show_list,
    timestamp,
)
from fedclust.cli.help_text import epilog
from fedclust.cli.output_files import check_outputs
from fedclust.client import Client
from fedclust.site import Site
from fedclust.site.notifications import SiteNotifier
from fedclust.site.settings import read_settings
from fedclust.site.state import SiteState
from fedclust.wire.errors import ConsentDeclined

#: Seconds for which a look for notifications waits for a coordinator that is away.
_NOTIFY_PATIENCE_S = 10.0

app = typer.Typer(
    help="Take part in all sessions that this site has consented to, until they end.",
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
)


@app.callback(
    epilog=epilog(
        "fedclust agent add heart-2026 --data cohort.csv --labels-out labels.csv",
        "fedclust agent --token-file /etc/fedclust/token",
        "fedclust agent list",
    )
)
@o.with_groups
def agent(
    connection: o.Connection,
    context: typer.Context,
    until_done: Annotated[bool, o.opt("--until-done", "End when no session is left.")] = False,
) -> None:
    """Answer rounds as they open. An error in one session does not affect the others."""
    if context.invoked_subcommand is not None:
        return
    state = SiteState()
    stopping = threading.Event()

    def stop(*_: object) -> None:
        # In a thread: the interrupted thread may hold the event's lock.
        threading.Thread(target=stopping.set).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)

    def connect() -> Site:
        # The agent waits a day for a coordinator that is away.
        return connection.site(86_400.0)

    # The token is read again for every connection, so that it can be replaced. This connection
    # sends no request; it only reports wrong settings now.
    connect().close()
    _print_line(f"agent of {connection.url}; its list of sessions is in {state.path}")
    entries = AgentEntries(state)
    with _notifying(connection, entries, stopping):
        Agent(entries, connect, _print_line).run(stopping, until_done=until_done)
    if stopping.is_set():
        _print_line("stopped; the next run sends what is already written")
    else:
        _print_line("stopped: no session is left")


@contextlib.contextmanager
def _notifying(
    connection: o.Connection, entries: AgentEntries, stopping: threading.Event
) -> Iterator[None]:
    """Run the site's notify_command, if it has one, in a thread as long as the agent runs."""
    command = read_settings(entries.state.directory).agent.notify_command
    if not command:
        yield
        return

    def connect() -> Client:
        return connection.client(_NOTIFY_PATIENCE_S)

    def handed() -> frozenset[str]:
        return frozenset(entry.session for entry in entries.read())

    notifier = SiteNotifier(entries.state, command, _print_line, handed)
    ended = threading.Event()
    # A daemon thread: a slow command must not keep the process from ending.
    thread = threading.Thread(target=notifier.run, args=(connect, ended), daemon=True)
    thread.start()
    try:
        yield
        if not stopping.is_set():
            # No session is left: the last look notifies of their ends.
            ended.set()
            thread.join()
            notifier.look_once(connect)
    finally:
        ended.set()


@o.command(
    app,
    "add",
    "fedclust agent add heart-2026 --data /data/cohort.csv --id-column mrn \\",
    "    --labels-out /data/labels.csv --result-out /data/heart.fedclust",
)
# Each parameter is an option, or a group of them, of the command.
def add(
    connection: o.Connection,
    how: o.Reading,
    persons: o.Persons,
    session: o.Session,
    data: o.Data,
    outputs: o.Outputs,
    full: o.Full = False,
    yes: o.Consent = False,
) -> None:
    """Consent to a session and hand it to the agent; a running agent starts it by itself.

    A recorded approval of exactly these terms (fedclust approve) is the consent.
    """
    source = how.source(data, persons)
    check_outputs(outputs.files, source.files)
    with connection.site() as site, ProgressLine() as line:
        request = site.check(session, source.rows(line.read), **persons.given(source))
        approval = site.approvals.require(request)
    question = "Shall the agent take part for this site?"
    if not consented(request, approval, question, full=full, yes=yes):
        raise ConsentDeclined(f"not consented to session {session}")
    entry = AgentEntry(
        coordinator=request.coordinator,
        site=request.site,
        session=session,
        definition_sha256=request.definition_sha256,
        consented_at=datetime.now(UTC),
        **o.answered_later(data, how, persons, outputs),
    )
    AgentEntries(SiteState()).put(entry)
    said = f"{session} is handed to the agent; next: fedclust agent, if none runs yet"
    conclude(said, entry)


@o.command(app, "list", "fedclust agent list --json")
def show_all() -> None:
    """List the sessions that were handed to the agent, and their states."""
    show_list(
        AgentEntries(SiteState()).read(),
        ["session", "state", "data", "consented", "last said"],
        lambda e: (e.session, e.state, e.data, f"{e.consented_at:%Y-%m-%d}", e.said),
        "no sessions; to hand one to the agent: fedclust agent add SESSION --data FILE",
    )


@o.command(app, "remove", "fedclust agent remove heart-2026")
def remove(session: o.Session) -> None:
    """Take a session back from the agent; the site stays in it until it leaves.

    A running agent answers no further round of it, and stops computing within half a minute.
    """
    AgentEntries(SiteState()).drop(session)
    said = f"{session}: the agent answers no more; fedclust participate can continue it"
    conclude(said, {"session": session, "state": "removed"})


def _print_line(text: str) -> None:
    show(err, f"{timestamp()} {text}")
