"""Studies, for analysts and operators: what several sessions of the same sites have in common."""

import json
from typing import Annotated

from fedclust.cli import options as o
from fedclust.cli.console import (
    agreed,
    conclude,
    err,
    print_json,
    show,
    show_facts,
    show_list,
    show_records,
)
from fedclust.cli.session_file import slug
from fedclust.cli.session_options import StudyOptions
from fedclust.definition.study import StudyInfo
from fedclust.result.session_terms import feature_text
from fedclust.result.worth_asking import points_of_study
from fedclust.schema.display import session_row
from fedclust.wire.models import SessionEntry

app = o.group("Group sessions of the same sites in studies; for analysts and operators.")
Study = Annotated[str, o.arg("Name of the study.", callback=slug)]


@o.command(
    app,
    "create",
    "fedclust study create hearts --sites cleveland,budapest,zurich \\",
    "    --features age,chol,trestbps --algorithm fkm \\",
    '    --purpose "Which types of coronary patients do our hospitals share?"',
    "fedclust study create hearts --file study.json",
)
def create(connection: o.Connection, study: Study, options: StudyOptions) -> None:
    """Create a study. The same command, run again, returns the same study.

    Options override --file. A study never changes; --algorithm, --clusters, --min-sites,
    --min-group-size and --start are defaults that a session may replace.
    """
    with connection.client() as client, options.names.applied():
        info = client.create_study(options.definition(study))
    _show(info, [])
    if not o.wants_json():
        show(err, f"next: fedclust session create NAME --study {info.name}")


@o.command(app, "list", "fedclust study list", "fedclust study list --json")
def show_all(connection: o.Connection) -> None:
    """List studies, the newest first."""
    with connection.client() as client:
        found = list(client.studies())
    show_list(found, "no studies; to create one: fedclust study create NAME")


@o.command(app, "show", "fedclust study show hearts")
def show_one(connection: o.Connection, study: Study) -> None:
    """Show what a study's sessions have in common, and their states."""
    with connection.client() as client:
        info = client.study(study)
        _show(info, [] if o.wants_json() else list(client.sessions(study=study)))


@o.command(app, "delete", "fedclust study delete hearts")
def delete(
    connection: o.Connection,
    study: Study,
    yes: Annotated[bool, o.opt("--yes", "Delete without asking.")] = False,
) -> None:
    """Delete a study that has no session. Its name can be used again."""
    if not agreed(yes, f"Shall the study {study} be deleted?"):
        return
    with connection.client() as client:
        client.delete_study(study)
    conclude(f"{study} is deleted", {"study": study, "deleted": True})


def _show(info: StudyInfo, sessions: list[SessionEntry]) -> None:
    if o.wants_json():
        print_json(info)
        return
    facts = dict(info._shown())
    if info.features is not None:
        facts["features"] = ", ".join(map(feature_text, info.features))
    if info.defaults is not None:
        set_here = info.defaults.model_dump(mode="json", exclude_unset=True)
        facts["defaults"] = json.dumps(set_here, sort_keys=True)
    show_facts({**facts, "points": points_of_study(info.features or ())})
    if sessions:
        show_records([session_row(each) for each in reversed(sessions)])
