"""``fedclust review`` and ``fedclust approve``: two people at a hospital decide on a session."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from fedclust.cli import options as o
from fedclust.cli.console import ProgressLine, conclude, err, out, show, show_facts
from fedclust.cli.output_files import check_outputs, is_review
from fedclust.data import DataWarning
from fedclust.schema.display import counted
from fedclust.site.approvals import LEAST_DIGITS, Approval, Approvals, Review
from fedclust.site.journal import has_joined
from fedclust.site.review import terms_rows
from fedclust.site.state import SiteState
from fedclust.site.terminal import typed
from fedclust.wire.errors import ConsentDeclined

app = typer.Typer(rich_markup_mode=None)


@o.command(
    app,
    "review",
    "fedclust review heart-2026 --data cohort.csv --id-column mrn --out review.html",
)
# Each parameter is an option, or a group of them, of the command.
def review(
    connection: o.Connection,
    how: o.Reading,
    persons: o.Persons,
    session: o.Session,
    data: o.Data,
    out_path: Annotated[Path, o.opt("--out", "HTML file to write the page to.")],
) -> None:
    """Write what a session asks of this site as an HTML page to print; send nothing of the rows.

    The page holds the consent screen in full, this site's own figures and lines to sign. Give the
    same options as for participate. The ledger records the review.
    """
    source = how.source(data, persons)
    check_outputs(((out_path, is_review),), source.files)
    line = ProgressLine(at_once=False)
    with connection.site() as site, line, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the page has them
        rows = source.rows(line.read)
        found = site.review(session, rows, out_path, **persons.given(source))
    said = (
        f"{out_path}: print it for the person who approves. Then: fedclust approve {session} "
        "--name NAME, with the code on the page"
    )
    conclude(said, found)


@o.command(
    app,
    "approve",
    'fedclust approve heart-2026 --name "Dr Ruth Levi"',
    'fedclust approve heart-2026 --name "Dr Ruth Levi" --code 3f2a9bc177de',
    'fedclust approve heart-2026 --name "Dr Ruth Levi" --offline',
    'fedclust approve heart-2026 --name "Dr Ruth Levi" --withdraw',
)
# Each parameter is an option, or a group of them, of the command.
def approve(
    connection: o.Connection,
    session: o.Session,
    name: Annotated[str, o.opt("--name", "Name of the person who approves, or withdraws.")],
    code: Annotated[
        str | None,
        o.opt(
            "--code",
            f"At least the first {LEAST_DIGITS} digits of the code on the printed page; without it "
            "they are asked for in the terminal.",
        ),
    ] = None,
    offline: Annotated[
        bool,
        o.opt("--offline", "Do not ask whether the definition has changed since the review."),
    ] = False,
    withdraw: Annotated[
        bool, o.opt("--withdraw", "Take the approval back: this site sends nothing more.")
    ] = False,
) -> None:
    """Record in the ledger who approved what the last review of a session asked for.

    In a terminal it asks for the code on the printed page. Needs no data. --offline and --withdraw
    do not ask the coordinator either.
    """
    state = SiteState()
    approvals = Approvals(state)
    if withdraw:
        taken = approvals.withdraw(session, name)
        conclude(_withdrawn(session, approvals.count_sent(session), state), taken)
        return
    if offline:
        _record_approval(approvals, approvals.last_review(None, None, session, None), name, code)
        return
    with connection.site() as site:
        _record_approval(site.approvals, site.last_review(session), name, code)


def _record_approval(approvals: Approvals, asked: Review, name: str, code: str | None) -> None:
    """Record that a person approves what a review asked for, after asking for its code."""
    session = asked.session
    if not o.wants_json():
        _show_review(asked)
    if code is None:
        # Typing the code proves that the page was read, so it is not shown here.
        question = (
            f"{name} approves this by typing the first {LEAST_DIGITS} digits of the approval "
            "code on the page; empty to decline:"
        )
        code = typed(question, "--code with the code on the page")
        if not code:
            held = approvals.held(asked.coordinator, asked.site, session)
            raise ConsentDeclined(_declined(session, held))
    approval = approvals.approve(asked, name, code)
    said = f"{session}: approved by {approval.approved_by}, code {approval.code}"
    conclude(said, approval)


def _withdrawn(session: str, n_sent: int, state: SiteState) -> str:
    """Return what a withdrawal does and does not."""
    ahead = "nothing more is sent" if n_sent else "nothing was sent, and nothing will be"
    said = f"{session}: the approval is withdrawn; {ahead}"
    if n_sent:
        said += f". The coordinator keeps what was sent: {counted(n_sent, 'submission')}"
    if has_joined(state, session=session):
        said += (
            ". This site has joined: while the session runs, other sites wait for it until the "
            f"round's deadline. To leave for good: fedclust leave {session}"
        )
    return said


def _declined(session: str, earlier: Approval | None) -> str:
    said = f"session {session} was not approved"
    if earlier is not None:
        said += (
            f" now, but the earlier approval ({earlier.approved_by}, {earlier.time}) still holds. "
            f"To withdraw it: fedclust approve {session} --withdraw --name NAME"
        )
    return said


def _show_review(review: Review) -> None:
    show(err, f"The review of {review.time} asks for this:")
    show_facts(
        {
            "title": review.title,
            "purpose": review.purpose,
            "operated_by": review.terms["operator"] or "not said",
            "columns": "; ".join(review.columns),
        }
    )
    for name, value in terms_rows(review.terms):
        show(out, f"{name}: {value}")
