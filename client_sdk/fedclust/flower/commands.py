"""``fedclust flower``: write an app that ``flwr run`` takes; review and approve its session."""

from __future__ import annotations

import importlib.util
import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from fedclust.cli import options as o
from fedclust.cli.approval import record_approval
from fedclust.cli.console import conclude
from fedclust.cli.output_files import check_outputs, is_labels, is_result, is_review, write
from fedclust.cli.session_file import read_definition_file
from fedclust.definition import canonical, freeze, read_definition
from fedclust.flower.opening import PLACE, ReviewedSession, open_session, reviewed_sessions
from fedclust.site.approvals import Approvals, Review
from fedclust.site.review import write_review
from fedclust.site.state import SiteState
from fedclust.wire.codec import sha256
from fedclust.wire.errors import UsageError, writing

app = o.group("Sessions over Flower: write an app for flwr run; review and approve its session.")

Definition = Annotated[Path, o.arg("The definition.json of the app, which the analyst sends.")]

#: The files of an app, with places for the session's facts.
_TEMPLATES = Path(__file__).with_name("app")


@o.command(
    app,
    "new",
    "fedclust flower new heart --session heart-2026 --definition heart.json",
    "fedclust flower new trial --session trial --definition heart.json --simulate sites/",
)
def new(
    folder: Annotated[Path, o.arg("The folder to write; it must not exist.")],
    session: Annotated[str, o.opt("--session", "Name of the session.", callback=o.slug)],
    definition: Annotated[Path, o.opt("--definition", "What session create takes: a JSON file.")],
    simulate: Annotated[
        Path | None,
        o.opt("--simulate", "A folder with NAME.csv for each site: write an app that simulates."),
    ] = None,
) -> None:
    """Write an app that flwr run takes, with the definition that the sites approve."""
    if importlib.util.find_spec("flwr") is None:
        raise UsageError('Flower is not installed here: pip install "fedclust[flower]"')
    body = read_definition_file(definition).model_copy(update={"name": session})
    content = canonical(freeze(body, secrets.randbits(32)))
    facts = {
        "name": session,
        "title": json.dumps(body.title or session),
        "client": "fedclust.flower.site:app",
        "digest": sha256(content),
        "output": (folder / "results").resolve(),
        "n": len(body.sites),
    }
    written = {"pyproject.toml": "pyproject.toml", "session/server.py": "server.py"}
    if simulate is None:
        written["README.md"] = "README.md"
    else:
        rows = {name: str((simulate / f"{name}.csv").resolve()) for name in sorted(body.sites)}
        if missing := [path for path in rows.values() if not Path(path).is_file()]:
            raise UsageError(f"these files are missing: {', '.join(missing)}")
        written |= {"session/client.py": "client.py", "README.md": "simulation.md"}
        facts |= {"client": "session.client:app", "files": rows}
    if folder.exists():
        raise UsageError(f"{folder} exists: name another folder")
    with writing(folder):
        (folder / "session").mkdir(parents=True)
    for name, template in written.items():
        text = (_TEMPLATES / f"{template}.txt").read_text("utf-8")
        write(folder / name, text.format(**facts).encode())
    write(folder / "session" / "definition.json", content)
    conclude(f"{folder}: README.md says how to run it", sorted(written))


@o.command(
    app,
    "review",
    "fedclust flower review definition.json --site berlin --data @heart --out review.html",
)
# Each parameter is an option, or a group of them, of the command.
def review(
    how: o.Reading,
    persons: o.Persons,
    definition: Definition,
    site: Annotated[str, o.opt("--site", "Name of this site in the definition.")],
    data: o.Data,
    outputs: o.Outputs,
    out_path: Annotated[Path, o.opt("--out", "HTML file to write the page to.")],
) -> None:
    """Write what a session over Flower asks of this site as an HTML page to print.

    This site answers with the name, the data and the options of its last review, and writes labels
    and result at the end. The ledger records the review.
    """
    known = ((outputs.labels_out, is_labels), (outputs.result_out, is_result))
    check_outputs(((out_path, is_review), *known), how.source(data, persons).files)
    own = ReviewedSession(site=site, **o.answered_later(data, how, persons, outputs))
    found = review_session(SiteState(), own, definition.read_bytes(), out_path)
    said = f"{out_path}: print it for the person who approves. Then: fedclust flower approve"
    conclude(said, found)


def review_session(state: SiteState, own: ReviewedSession, definition: bytes, out: Path) -> Review:
    """Write the page of a session, and record the review.

    Parameters
    ----------
    state : SiteState
    own : ReviewedSession
    definition : bytes
        In canonical form.
    out : Path
        The file to write.
    """
    opened = open_session(state, own, definition)
    found = write_review(opened.request, out, opened.approvals, datetime.now(UTC))
    reviewed_sessions(state).update(
        lambda known: known.model_copy(
            update={"by_definition": {**known.by_definition, sha256(definition): own}}
        )
    )
    return found


@o.command(app, "approve", 'fedclust flower approve definition.json --name "Dr Ruth Levi"')
def approve(
    definition: Definition,
    name: Annotated[str, o.opt("--name", "Name of the person who approves.")],
    code: Annotated[str | None, o.opt("--code", "The code on the printed page.")] = None,
) -> None:
    """Record in the ledger who approved what the last review of a session asked for.

    To take it back: fedclust approve SESSION --withdraw.
    """
    state, content = SiteState(), definition.read_bytes()
    digest = sha256(content)
    own = reviewed_sessions(state).read().by_definition.get(digest)
    if own is None:
        raise UsageError(f"{definition} was not reviewed here: fedclust flower review")
    approvals = Approvals(state)
    asked = approvals.last_review(PLACE, own.site, read_definition(content).name, digest)
    record_approval(approvals, asked, name, code)
