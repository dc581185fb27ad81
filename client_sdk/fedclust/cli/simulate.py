"""Try a method on local files in this process; nothing is sent."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedclust.cli import options as o
from fedclust.cli.console import print_json
from fedclust.cli.output_files import check_outputs, is_labels, is_report, write_labels
from fedclust.cli.result_output import script_facts, show_result
from fedclust.cli.session_file import read_definition_file
from fedclust.cli.session_options import Clusters, read_clusters
from fedclust.client.session_request import FieldNames
from fedclust.data import Dataset
from fedclust.data.live_line import SlowWork
from fedclust.data.mapping import watch_reading
from fedclust.data.numeric_columns import numeric_features
from fedclust.data.table import read_text_column
from fedclust.definition import DefinitionError
from fedclust.definition.json_text import read_json
from fedclust.local.simulate import simulate as run
from fedclust.result.session_result import SessionResult
from fedclust.schema.errors import MethodFailure
from fedclust.site.data_sources import DataSource
from fedclust.wire import errors

app = typer.Typer(rich_markup_mode=None)
_NAMES = FieldNames(
    {
        "/algorithm": "ALGORITHM",
        "/config/n_clusters": "--clusters",
        "/config": "--config",
        "/policy": "--policy",
        "/features": "--features",
        "/sites": "--site",
        "/seed": "--seed",
    }
)


class _SimulatedSession(o.OptionGroup):
    """What is simulated, and what is written of it."""

    clusters: Clusters = None
    features: str | None = None
    """Columns, comma-separated; by default all columns of numbers that are in every file and do not
    look like identifiers."""
    definition: Path | None = None
    """JSON file with a definition: use its features."""
    id_column: str | None = None
    """Column that identifies rows in the label files; never a feature."""
    person_column: o.PersonColumn = None
    config: Annotated[str, {"show_default": True}] = "{}"
    """The method's options, JSON."""
    policy: Annotated[str, {"show_default": True}] = "{}"
    """The session's policy, JSON."""
    seed: Annotated[int, {"min": 0, "show_default": True}] = 0
    """Seed of the session."""
    labels_dir: Path | None = None
    """Write each site's labels to NAME.csv in this folder."""
    site_mapping: list[str] | None = None
    """NAME=FILE, the mapping file of one site, instead of --mapping."""
    report: o.Report = None


@o.command(
    app,
    "simulate",
    "fedclust simulate fkm --clusters 4 --site a=a.csv --site b=b.csv --site c=c.csv",
    "fedclust simulate lloyd --clusters 3 --site a=a.csv --site b=b.csv \\",
    '    --policy \'{"min_sites": 2, "min_group_size": 3}\' --labels-dir labels',
)
def simulate(
    how: o.Reading,
    algorithm: Annotated[str, o.arg("The method.")],
    site: Annotated[list[str], o.opt("--site", "NAME=FILE or NAME=@SOURCE, once for each site.")],
    session: _SimulatedSession,
) -> None:
    """Run a method on files as if each were a site; a session gives the same result."""
    labels_dir, report = session.labels_dir, session.report
    given, mappings = _files(site, "--site"), _files(session.site_mapping or [], "--site-mapping")
    persons = o.WhoseRows(id_column=session.id_column, person_column=session.person_column)
    sources = {
        name: _reading(how, mappings.get(name)).source(data, persons)
        for name, data in given.items()
    }
    files = [path for source in sources.values() for path in source.files]
    rows = {name: source.rows() for name, source in sources.items()}
    for name in sorted(mappings.keys() - given.keys()):
        raise errors.UsageError(f"--site-mapping {name}: there is no --site of that name")
    options = _read_object(session.config, "--config")
    rules = _read_object(session.policy, "--policy")
    if session.clusters is not None:
        options["n_clusters"] = read_clusters(session.clusters)
    check_outputs(((report, is_report),), files)
    if labels_dir is not None:
        try:
            labels_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.UsageError(f"{labels_dir}: {error.strerror}") from None
        outputs = [(labels_dir / f"{name}.csv", is_labels) for name in given]
        check_outputs(outputs, files)
    try:
        with SlowWork("reading files") as work:
            watched = {name: watch_reading(each, work.read) for name, each in rows.items()}
            ids = {
                name: read_text_column(watched[name], source.id_column)
                if source.id_column
                else None
                for name, source in sources.items()
            }
            wanted = _wanted_features(session, sources, watched, rules)
        found = run(
            algorithm,
            rows,
            config=options,
            policy=rules,
            features=wanted,
            seed=session.seed,
            persons={name: s.person_column for name, s in sources.items() if s.person_column},
        )
    except DefinitionError as error:
        raise _NAMES.error(error.errors) from None
    except ValueError as error:
        # Messages about the definition, the method and the data contain no values.
        raise errors.UsageError(str(error)) from None
    except MethodFailure as failure:
        raise errors.SessionFailed("simulation", failure.message, failure.reason) from None
    if labels_dir is not None:
        for name, labels in found.labels_.items():
            write_labels(labels_dir / f"{name}.csv", labels, ids[name], sources[name].id_column)
    if report is not None:
        found.save_report(report)
    if o.wants_json():
        print_json(_simulation_facts(found))
    else:
        show_result(found)


def _wanted_features(
    session: _SimulatedSession,
    sources: dict[str, DataSource],
    rows: dict[str, Dataset],
    policy: dict[str, Any],
) -> list[Any]:
    if session.definition is not None:
        if session.features is not None:
            raise errors.UsageError("give either --features NAMES or --definition FILE")
        body = read_definition_file(session.definition)
        return [each.model_dump(mode="json") for each in body.features]
    named = {each.id_column for each in sources.values() if each.id_column is not None}
    if session.features is None:
        persons = {each.person_column for each in sources.values() if each.person_column}
        lacking = policy.get("missing") == "mask"
        return numeric_features(rows, leave_out=named | persons, lacking=lacking)
    wanted = o.split_names(session.features)
    for name in named.intersection(wanted):
        raise errors.UsageError(f"{name} is the --id-column, so it is no feature")
    return wanted


def _simulation_facts(found: SessionResult) -> dict[str, Any]:
    sweep = [entry.model_dump(mode="json", exclude={"result"}) for entry in found.sweep_ or ()]
    return {
        **script_facts(found.result),
        "columns": found.columns_,
        "cluster_centers": [[entry.mean for entry in row] for row in found.centroids],
        "sweep": sweep or None,
    }


def _reading(how: o.Reading, mapping: str | None) -> o.Reading:
    """Return how a site's file is read: with its own mapping file, if it has one."""
    return how if mapping is None else how.model_copy(update={"mapping": Path(mapping)})


def _files(given: list[str], option: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for text in given:
        name, separator, path = text.partition("=")
        if not (name and separator and path):
            raise errors.UsageError(f"{option} {text}: give NAME=FILE, for example north=north.csv")
        if name in files:
            raise errors.UsageError(f"{option} {name} is given twice")
        files[name] = path
    return files


def _read_object(text: str, option: str) -> dict[str, Any]:
    found = read_json(text, option)
    if not isinstance(found, dict):
        raise errors.UsageError(f"{option} needs a JSON object, for example '{{\"tol\": 0.001}}'")
    return found
