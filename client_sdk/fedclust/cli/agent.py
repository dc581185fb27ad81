"""``fedclust agent``: one process that answers all sessions a site has consented to, for weeks."""

from __future__ import annotations

import signal
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fedclust import places
from fedclust.cli import options as o
from fedclust.cli.agent_worker import Agent, Entries, Entry
from fedclust.cli.console import (
    ProgressLine,
    Table,
    confirmed,
    consent_question,
    consent_screen,
    err,
    plain,
    print_json,
    show,
)
from fedclust.cli.help_text import epilog
from fedclust.cli.output_files import check_outputs, is_labels, is_result
from fedclust.errors import ConsentDeclined, UsageError
from fedclust.site import Site

app = typer.Typer(
    help="Answer all sessions that this site has consented to, for as long as they last.",
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
)


@app.callback(
    epilog=epilog(
        "fedclust agent add heart-2026 --data cohort.csv --labels-out labels.csv",
        "fedclust agent --token-file /etc/fedclust/token --journal-dir /var/lib/fedclust",
        "fedclust agent list",
    )
)
@o.connected
def agent(
    connection: o.Connection,
    context: typer.Context,
    journal_dir: o.JournalDir = None,
    until_done: Annotated[
        bool, typer.Option("--until-done", help="End when no session is left to answer.")
    ] = False,
) -> None:
    """Answer rounds as they come; a session's error ends that session alone."""
    if context.invoked_subcommand is not None:
        return
    directory = journal_dir or places.default_directory()
    stopping = threading.Event()

    def stop(*_: object) -> None:
        # Not set here: the thread that this interrupts may be holding the event's lock.
        threading.Thread(target=stopping.set).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)

    def connect() -> Site:
        # The agent waits for a coordinator that is away for longer than any one request should.
        return connection.site(journal_dir, 86_400.0)

    # The token is read again for every connection, so that it can be replaced; but settings that
    # cannot work are said now. This asks the coordinator nothing.
    connect().close()
    _tell(f"agent of {connection.url}; sessions are kept in {directory}")
    Agent(Entries(directory), connect, _tell).run(stopping, until_done=until_done)
    _tell("stopped; what was written is sent by the next run")


@app.command(
    "add",
    epilog=epilog(
        "fedclust agent add heart-2026 --data /data/cohort.csv --id-column mrn \\",
        "    --labels-out /data/labels.csv --result-out /data/heart.fedclust",
    ),
)
@o.connected
@o.reading
def add(
    connection: o.Connection,
    how: o.Reading,
    session: o.Session,
    data: o.Data,
    id_column: o.IdColumn = None,
    person_column: o.PersonColumn = None,
    labels_out: Annotated[
        Path | None,
        typer.Option("--labels-out", help="Where this site's labels go, CSV.", show_default=False),
    ] = None,
    result_out: Annotated[
        Path | None,
        typer.Option(
            "--result-out", help="Where the result goes, for predict.", show_default=False
        ),
    ] = None,
    min_group_size: o.MinGroupSize = None,
    cohort: o.Cohort = None,
    separate_groups: o.SeparateGroups = None,
    full: o.Full = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Consent to all that the screen says, unasked.")
    ] = False,
    journal_dir: o.JournalDir = None,
    as_json: o.AsJson = False,
) -> None:
    """Consent to a session and leave it to the agent; one that runs takes it up by itself."""
    outputs = ((labels_out, is_labels), (result_out, is_result))
    check_outputs(outputs, (data, *how.inputs))
    directory = journal_dir or places.default_directory()
    with connection.site(journal_dir) as site, ProgressLine() as line:
        request = site.check(
            session,
            how.of(data, line.read),
            person=person_column,
            id_column=id_column,
            min_group_size=min_group_size,
            cohort=cohort,
            separate_groups=separate_groups,
        )
    consent_screen(request, full=full)
    if not (
        yes
        or confirmed(consent_question(request, "Shall the agent take part for this site?"), "--yes")
    ):
        raise ConsentDeclined(f"not consented to session {session}")
    entry = Entry(
        coordinator=request.coordinator,
        site=request.site,
        session=session,
        definition_sha256=request.definition_sha256,
        consented_at=datetime.now(UTC),
        data=str(data.resolve()),
        reading=how.options,
        id_column=id_column,
        person_column=person_column,
        min_group_size=min_group_size,
        cohort=cohort,
        separate_groups=separate_groups,
        labels_out=_absolute(labels_out),
        result_out=_absolute(result_out),
    )
    Entries(directory).put(entry)
    if as_json:
        print_json(entry)
        return
    show(err, f"{session} is left to the agent; next: fedclust agent, if none runs yet")


@app.command("list", epilog=epilog("fedclust agent list --json"))
def show_all(journal_dir: o.JournalDir = None, as_json: o.AsJson = False) -> None:
    """List the sessions that were left to the agent, and how they stand."""
    entries = Entries(journal_dir or places.default_directory()).read()
    if as_json:
        print_json([each.model_dump(mode="json") for each in entries])
        return
    grid = Table("session", "state", "data", "consented", "last said")
    for each in entries:
        grid.row(each.session, each.state, each.data, f"{each.consented_at:%Y-%m-%d}", each.said)
    grid.show()
    if not entries:
        show(err, "none: fedclust agent add SESSION --data FILE leaves one to the agent")


@app.command("remove", epilog=epilog("fedclust agent remove heart-2026"))
def remove(session: o.Session, journal_dir: o.JournalDir = None, as_json: o.AsJson = False) -> None:
    """Take a session back from the agent; the site stays in it until it leaves.

    A running agent answers no further round of it, and lets go of it within half a minute.
    """
    if not Entries(journal_dir or places.default_directory()).drop(session):
        raise UsageError(f"{session} was not left to the agent: fedclust agent list shows which")
    if as_json:
        print_json({"session": session, "state": "removed"})
        return
    show(err, f"{session}: the agent answers no more; fedclust participate can go on with it")


def _tell(text: str) -> None:
    show(err, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {plain(text)}")


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())
