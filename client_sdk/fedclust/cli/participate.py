"""A site's commands for a session: participate, status, leave."""

import base64
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedclust.cli import options as o
from fedclust.cli.console import (
    ProgressLine,
    agreed,
    conclude,
    consented,
    err,
    preview_screen,
    print_json,
    show,
    show_facts,
    show_list,
)
from fedclust.cli.output_files import check_outputs, is_report, is_submission, write_outputs
from fedclust.cli.result_output import result_facts, script_facts, show_conclusions, warn_unlabelled
from fedclust.data import Dataset
from fedclust.durable_files import write_file
from fedclust.result.session_result import SessionResult
from fedclust.result.wording import listed
from fedclust.site import Preview, Site
from fedclust.site.consent import ConsentRequest
from fedclust.site.prepare import RowOptions
from fedclust.site.terminal import confirmed
from fedclust.wire import codec
from fedclust.wire.errors import UsageError

app = typer.Typer(rich_markup_mode=None)


class _Interaction(o.OptionGroup):
    """What a person is asked and shown, and how submissions are sent."""

    yes: o.Consent = False
    ask: Annotated[Literal["once", "each"], {"show_default": True}] = "once"
    """Ask only for consent, or also before each submission."""
    preview: bool = False
    """Show the next submission's exact bytes; send nothing."""
    preview_out: Path | None = None
    """Write the next submission's exact bytes to a file; send nothing."""
    full: o.Full = False
    give_up_after: Annotated[float, {"min": 0, "show_default": True}] = 86400.0
    """Seconds after which to give up, if the coordinator does not answer."""
    json_bodies: bool = False
    """Send JSON instead of the binary form."""


@o.command(
    app,
    "participate",
    "export FEDCLUST_COORDINATOR=https://coordinator.example",
    "fedclust participate heart-2026 --data cohort.csv --token-file token --preview",
    "fedclust participate heart-2026 --data cohort.csv --token-file token \\",
    "    --id-column mrn --labels-out labels.csv --result-out heart.fedclust",
)
# Each parameter is an option, or a group of them, of the command.
def participate(
    connection: o.Connection,
    how: o.Reading,
    persons: o.Persons,
    session: o.Session,
    data: o.Data,
    outputs: o.Outputs,
    report: o.Report = None,
    *,
    interaction: _Interaction,
) -> None:
    """Take part in a session, from consent to labels. Run the command again to resume it.

    A recorded approval of exactly these terms (fedclust approve) is the consent: then nothing is
    asked.
    """
    labels_out, result_out = outputs.labels_out, outputs.result_out
    more = (interaction.preview_out, is_submission), (report, is_report)
    source = how.source(data, persons)
    check_outputs((*outputs.files, *more), source.files)
    line = ProgressLine()
    rows, given = source.rows(line.read), persons.given(source)
    with connection.site(interaction.give_up_after, json_bodies=interaction.json_bodies) as site:
        if interaction.preview or interaction.preview_out is not None:
            with line:
                found = site.preview(session, rows, **given)
            _show_preview(found, interaction.preview_out)
            return
        with line:
            result = _take_part(site, session, rows, given, interaction, line)
    try:
        write_outputs(result, labels_out, result_out, source.id_column)
        if report is not None:
            result.save_report(report)
    except UsageError as error:
        show_site_result(result)
        raise UsageError(
            f"{error}. The session is complete: run the same command again with a file that can be "
            "written; nothing is sent"
        ) from None
    show_site_result(result)
    if o.wants_json():
        return
    if labels_out is not None and result.labels_ is not None:
        show(err, f"each row's cluster: {labels_out}")
        warn_unlabelled(result.labels_)
    if result_out is not None:
        command = f"fedclust predict {result_out} --data FILE --out LABELS"
        show(err, f"next, for new rows: {command}, with the options that read your table here")


def _take_part(
    site: Site,
    session: str,
    rows: Dataset,
    given: RowOptions,
    interaction: _Interaction,
    line: ProgressLine,
) -> SessionResult:
    def consent(request: ConsentRequest) -> bool:
        line.pause()
        approval = site.approvals.require(request)
        question = "Does this site take part?"
        return consented(request, approval, question, full=interaction.full, yes=interaction.yes)

    def ask_each(next_one: Preview) -> bool:
        line.pause()
        preview_screen(next_one)
        return confirmed("Send this?", "--ask once")

    try:
        return site.participate(
            session,
            rows,
            **given,
            consent=consent,
            ask=ask_each if interaction.ask == "each" else None,
            on_progress=line.tell,
        )
    except KeyboardInterrupt:
        line.pause()
        show(err, "interrupted; run the same command again to continue")
        raise


@o.command(
    app,
    "status",
    "fedclust status --token-file token --coordinator https://coordinator.example",
    "fedclust status heart-2026 --token-file token --json",
)
def status(
    connection: o.Connection,
    session: Annotated[str | None, o.arg("Only this session; by default all.")] = None,
) -> None:
    """Show this site's sessions: state, round, and the submissions sent."""
    with connection.site() as site:
        found = site.status(session)
    show_list(found, "no sessions: ask the analyst to invite this site")


@o.command(app, "leave", "fedclust leave heart-2026 --token-file token")
def leave(
    connection: o.Connection,
    session: o.Session,
    yes: Annotated[bool, o.opt("--yes", "Leave without asking.")] = False,
) -> None:
    """Decline or leave a session. Earlier submissions still count. This cannot be undone."""
    if not agreed(yes, f"Shall this site leave {session} for good?"):
        return
    with connection.site() as site:
        site.leave(session)
        (left,) = site.status(session) if o.wants_json() else (None,)
    conclude(f"{session}: left; this site gets no further tasks", left)


def _show_preview(preview: Preview, path: Path | None) -> None:
    if path is not None and preview.body is not None:
        write_file(path, preview.body)
        show(err, f"{len(preview.body)} bytes written to {path}; nothing was sent")
    elif o.wants_json():
        body = None if preview.body is None else base64.b64encode(preview.body).decode()
        digest = None if preview.body is None else codec.sha256(preview.body)
        print_json({**vars(preview), "body": body, "sha256": digest})
    else:
        preview_screen(preview)


def show_site_result(result: SessionResult) -> None:
    found = result.result
    if o.wants_json():
        print_json(
            {
                "session": result.definition.name,
                "site": result.site,
                **script_facts(found),
                "own_sizes": result.own_sizes_,
                "tried": [entry.n_clusters for entry in found.sweep] if found.sweep else None,
                "shown": found.n_clusters,
            }
        )
        return
    show_facts(
        {
            "session": result.definition.name,
            "site": result.site,
            **result_facts(result),
            "sizes": listed(found.sizes or ()),
            "own_sizes": listed(result.own_sizes_ or ()),
        }
    )
    show_conclusions(found)
