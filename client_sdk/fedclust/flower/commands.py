"""``fedclust flower``: write an app that ``flwr run`` takes; review and approve its session."""

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from fedclust.cli import options as o
from fedclust.cli.console import conclude
from fedclust.cli.output_files import check_outputs, is_review
from fedclust.cli.session_file import read_definition_file
from fedclust.definition import canonical, freeze
from fedclust.durable_files import write_file
from fedclust.site.review import write_review
from fedclust.site.state import SiteState
from fedclust.wire.codec import sha256
from fedclust.wire.errors import UsageError, of_extra, writing

app = o.group("Sessions over Flower: write an app for flwr run; review its session at a site.")

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
    body = read_definition_file(definition).model_copy(update={"name": session})
    content = canonical(freeze(body, secrets.randbits(32)))
    files = [] if simulate is None else [simulate / f"{name}.csv" for name in sorted(body.sites)]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise UsageError(f"these files are missing: {', '.join(missing)}")
    facts = {
        "name": session,
        "title": json.dumps(body.title or session),
        "client": "fedclust.flower.site:app" if simulate is None else "session.client:app",
        "digest": sha256(content),
        "output": str((folder / "results").resolve()),
        "n": len(body.sites),
        "rows": simulate and str(simulate.resolve()),
    }
    if folder.exists():
        raise UsageError(f"{folder} exists: name another folder")
    with writing(folder):
        (folder / "session").mkdir(parents=True)
    for part in ("both", "sites" if simulate is None else "simulation"):
        for template in sorted((_TEMPLATES / part).rglob("*.txt")):
            file = folder / template.relative_to(_TEMPLATES / part).with_suffix("")
            write_file(file, template.read_text("utf-8").format(**facts).encode())
    write_file(folder / "session" / "definition.json", content)
    conclude(f"{folder}: README.md says how to run it", facts)


@o.command(
    app,
    "review",
    "fedclust flower review definition.json --site berlin --data @heart --out review.html",
)
# Each parameter is an option, or a group of them, of the command.
def review(
    how: o.Reading,
    persons: o.Persons,
    definition: Annotated[Path, o.arg("The definition.json of the app, from the analyst.")],
    site: Annotated[str, o.opt("--site", "Name of this site in the definition.")],
    data: o.Data,
    outputs: o.Outputs,
    out_path: Annotated[Path, o.opt("--out", "HTML file to write the page to.")],
) -> None:
    """Write what a session over Flower asks of this site as an HTML page to print.

    This site answers with the name, the data and the options of its last review, and writes labels
    and result at the end. The ledger records the review.
    """
    check_outputs(((out_path, is_review), *outputs.files), how.source(data, persons).files)
    with of_extra("flower", "this needs Flower"):
        from fedclust.flower import site as clientapp  # what every other command does without
    state, content = SiteState(), definition.read_bytes()
    own = clientapp.ReviewedSession(site=site, **o.answered_later(data, how, persons, outputs))
    opened = clientapp.open_session(state, own, content)
    found = write_review(opened.request, out_path, opened.approvals, datetime.now(UTC))
    clientapp.reviewed_session(state, sha256(content)).update(lambda _: own)
    then = f"fedclust approve {found.session} --offline --name NAME, with the code on the page"
    conclude(f"{out_path}: print it for the person who approves. Then: {then}", found)
