"""``fedclust check``: how a site's rows match a session or a study, before the site joins."""

import contextlib
import dataclasses
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fedclust.cli import options as o
from fedclust.cli.console import (
    ProgressLine,
    consent_screen,
    err,
    out,
    print_json,
    show,
    show_table,
)
from fedclust.cli.mapping_dialogue import ask_mapping, require_terminal
from fedclust.cli.row_check import RowCheck, SourceRows, as_options, examine
from fedclust.cli.session_file import read_definition_file
from fedclust.client import Client
from fedclust.data import Dataset
from fedclust.data.advice import count_repeated, list_names
from fedclust.data.persons import repeated_message
from fedclust.data.suggest import refuse_existing, suggest_mapping
from fedclust.data.table import read_text_column
from fedclust.definition import freeze
from fedclust.schema.display import counted
from fedclust.schema.states import ENDED
from fedclust.site import Site
from fedclust.site.charges import Charges, open_text
from fedclust.site.cohorts import CohortStore
from fedclust.site.compute import accepted_plan
from fedclust.site.consent import ConsentRequest
from fedclust.site.data_sources import MARK, DataSource, DataSources
from fedclust.site.prepare import SiteRows
from fedclust.site.session_run import SessionAnswers, info_of
from fedclust.site.settings import read_settings
from fedclust.site.state import SiteState
from fedclust.wire.errors import (
    DataError,
    FedclustError,
    ProtocolError,
    UsageError,
    VersionUnsupported,
)
from fedclust.wire.models import SessionCreate, SessionInfo

app = typer.Typer(rich_markup_mode=None)


class _Asked(o.OptionGroup):
    """What rows are matched with, if not with one session."""

    study: Annotated[str | None, {"callback": o.slug_or_none}] = None
    """Check all sessions of this study that invite this site."""
    definition: Path | None = None
    """JSON file with the session's definition, instead of SESSION; no coordinator is needed."""
    write_mapping: Path | None = None
    """Suggest a mapping file for these rows, write it here, and check with it. No file is
    replaced."""
    ask: bool = False
    """Suggest a mapping file, and ask about all that is uncertain before it is written: to
    columns.toml, if --write-mapping names no other file. Then register the rows as @SESSION."""
    full: bool = False
    """Show first what you would consent to, with every field that leaves."""


@o.command(
    app,
    "check",
    "fedclust check heart-2026 --data cohort.csv --token-file token \\",
    "    --coordinator https://coordinator.example",
    "fedclust check --study hearts --data cohort.csv",
    "fedclust check --definition heart.json --data cohort.csv --write-mapping columns.toml",
    "fedclust check --definition heart.json --data cohort.csv --mapping columns.toml",
)
def check(
    connection: o.Connection,
    how: o.Reading,
    persons: o.Persons,
    data: o.Data,
    session: Annotated[str | None, o.arg("Name of the session.")] = None,
    *,
    asked: _Asked,
) -> None:
    """Match rows with a session's features; send nothing.

    With --study: a line for each session, then the columns where something needs a look.
    """
    study, definition, write_mapping = asked.study, asked.definition, asked.write_mapping
    if asked.ask:
        require_terminal()
        write_mapping = write_mapping or Path("columns.toml")
    if [session, study, definition].count(None) != 2:
        raise UsageError("give one of: the name of a session, --study STUDY, --definition FILE")
    if study is not None and asked.full:
        raise UsageError("--full is for one session: fedclust check SESSION --full")
    if study is not None and write_mapping is not None:
        raise UsageError("--write-mapping is for one session: a mapping file then serves others")
    line = ProgressLine(at_once=False)
    source = how.source(data, persons)

    def rows_for(body: SessionCreate) -> SourceRows:
        if write_mapping is None:
            return SourceRows(source.rows(line.read), source, persons.given(source), line)
        used = _suggested(body, source, line, write_mapping, asked)
        return SourceRows(used.rows(line.read), used, persons.given(used), line)

    if study is not None:
        with connection.site() as site, connection.client() as client:
            rows = SourceRows(source.rows(line.read), source, persons.given(source), line)
            found = _check_study(site, client, study, rows)
        _conclude_study(study, found)
        return
    if definition is not None:
        body = read_definition_file(definition)
        done = _check_definition(body, rows_for(body))
    else:
        assert session is not None  # noqa: S101  (one of the three is given)
        with connection.client() as client:
            info = client.session(session)
        accepted_plan(session, info)
        with connection.site() as site:
            done = _check_session(site, info, rows_for(info.definition))
    _conclude(done, asked)


def _check_again(body: SessionCreate, source: DataSource, asked: _Asked) -> str:
    """Return what to do about what is open in a mapping, with the next command."""
    of = shlex.join(["--definition", str(asked.definition)]) if asked.definition else body.name
    again = f"fedclust check {of} {as_options(source)}"
    if source.reading.mapping is None:
        return f"{again} --ask makes a mapping file"
    return f"edit the mapping file, then: {again}"


def _suggested(
    body: SessionCreate, source: DataSource, line: ProgressLine, path: Path, asked: _Asked
) -> DataSource:
    """Write the mapping file that is suggested; return the source read by it.

    DataError if something is to do in it first.
    """
    refuse_existing(path)
    rows, row, person = source.rows(line.read), source.id_column, source.person_column
    name = Path(source.data).name
    with line:
        found = suggest_mapping(body.features, rows, (row, person))
    for each in (row, person):
        if each not in (None, *found.table.header):
            said = f"the table has no column {each!r}; others are {list_names(found.unused)}"
            raise DataError(name, "missing-column", said, column=each)
    # Otherwise a person would learn it after all the questions.
    if asked.ask and row is not None and person is None:
        as_found = Dataset.of(rows.source, found.table.options(rows))
        repeated = count_repeated(filter(None, read_text_column(as_found, row)))
        if repeated[0]:
            raise DataError(name, "persons", repeated_message(row, *repeated), column=row)
    if asked.ask:
        show(err, f"{body.title}: {body.purpose}" if body.title else body.purpose)
        row, person = ask_mapping(found, row, person)
    found.write(path)
    to_do, uncertain = (found.text.count(f"# {mark}: ") for mark in ("to do", "uncertain"))
    said = f'{counted(to_do, "line")} marked "to do", {uncertain} "uncertain"'
    update: dict[str, Any] = {
        "reading": source.reading.model_copy(update={"mapping": str(path)}),
        "id_column": row,
        "person_column": person or found.person,
    }
    used = source.model_copy(update=update)
    if to_do:
        raise DataError(str(path), "still-to-do", f"{said}: {_check_again(body, used, asked)}")
    show(err, f"{path}: the mapping; {said}" if uncertain else f"{path}: the mapping")
    if person is None and found.person is not None:
        show(err, f"read with --person-column {found.person}: give it to other commands too")
    return used


def _registered(done: RowCheck) -> RowCheck:
    """Register rows that are read as a person answered, under the session's name.

    Not in the place of other rows: then the next command says how.
    """
    sources, name, source = DataSources(), done.body.name, done.source
    known = sources.read().get(name)
    registered = (source.given or source.data).startswith(MARK)
    if registered or (known is not None and known.data != source.absolute().data):
        return done
    sources.add(name, source, replace=True)
    show(err, f"{MARK}{name}: these rows with the mapping, for other commands")
    return dataclasses.replace(done, source=sources.get(name))


def _conclude(done: RowCheck, asked: _Asked) -> None:
    if asked.ask and done.refused is None:
        done = _registered(done)
    if o.wants_json():
        print_json(done.facts())
    elif done.read:
        if asked.full and isinstance(done.table, ConsentRequest) and done.asked:
            consent_screen(done.table, full=True)
        done.show(full=asked.full, brief=asked.ask)
        if done.to_edit:
            how = _check_again(done.body, done.source, asked)
            message = f"this site could not take part yet: {how}"
            raise DataError(done.found.source, "still-to-do", message)
    if done.refused is not None:
        raise done.refused


def _check_session(site: Site, info: SessionInfo, rows: SourceRows) -> RowCheck:
    return examine(info.definition, rows, lambda _: site.check(info.name, rows.data, **rows.given))


def _check_definition(body: SessionCreate, rows: SourceRows) -> RowCheck:
    info, state = info_of(freeze(body, seed=0)), SiteState()
    done = examine(body, rows, lambda p: _request(info, rows, p, state))
    if isinstance(done.table, ConsentRequest) and done.table.question is not None:
        waiting = tuple(map(open_text, Charges(state).open_charges()))
        done = dataclasses.replace(done, open_points=waiting)
    return done


def _request(info: SessionInfo, given: SourceRows, p: int, state: SiteState) -> ConsentRequest:
    """Return what would be asked; DataError or DisclosureError if it would be refused."""
    exact = info.definition.policy.protection == "none"
    read_settings(state.directory).refuse_smaller_groups(info.name, p, exact=exact)
    rows = dataclasses.replace(SiteRows(given.data, **given.given), min_group_size=p)
    with contextlib.ExitStack() as stack:
        if not CohortStore(state).records():
            # Preparing stores a key, and a check of a site without tables writes nothing there.
            try:
                thrown_away = stack.enter_context(tempfile.TemporaryDirectory())
            except OSError as error:
                raise UsageError(
                    f"a check needs a temporary directory ({error.strerror}): name one in TMPDIR"
                ) from None
            state = SiteState(thrown_away)
        return SessionAnswers(state, ("", ""), info.name, info, rows).request


# --- a study --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OfStudy:
    """One session of a study; ``rows`` is None if they were not checked."""

    info: SessionInfo
    rows: RowCheck | None = None
    refused: FedclustError | None = None

    @property
    def said(self) -> str:
        """The outcome in a few words."""
        if self.refused is not None:
            return f"refused: {getattr(self.refused, 'rule', None) or self.refused}"
        if self.rows is None:
            return "ended, not checked"
        if not self.rows.enough:
            return f"fewer persons than {self.rows.p}"
        return f"look at {', '.join(self.rows.look_at)}" if self.rows.look_at else "ok"

    def facts(self) -> dict[str, Any]:
        refused = self.refused
        rule = getattr(refused, "rule", None)
        return {
            **({"session": self.info.name} if self.rows is None else self.rows.facts()),
            "state": self.info.state,
            "refused": None if refused is None else {"rule": rule, "message": str(refused)},
        }


def _check_study(site: Site, client: Client, study: str, rows: SourceRows) -> list[_OfStudy]:
    """Return the check of each session of a study that invites this site."""
    _ = site.name  # UsageError for the token of somebody else
    # Sessions that read the rows in one way share one reading.
    read: dict[object, RowCheck] = {}
    return [
        _of_study(site, client.session(each.name), rows, read)
        for each in reversed(list(client.sessions(study=study)))
    ]


def _of_study(
    site: Site, info: SessionInfo, rows: SourceRows, read: dict[object, RowCheck]
) -> _OfStudy:
    if info.state in ENDED:
        return _OfStudy(info)
    try:
        # Before reading, so that a method that is not installed is no other session's fault.
        accepted_plan(info.name, info)
    except (VersionUnsupported, ProtocolError) as error:
        return _OfStudy(info, refused=error)
    definition, policy = info.definition, info.definition.policy
    own = next((each.state for each in info.sites if each.name == site.name), "invited")
    # A session that was joined keeps the table that it was joined with.
    key = (
        *(definition.features, policy.missing, policy.protection, policy.min_group_size),
        info.name if own == "joined" else None,
    )
    if key not in read:
        read[key] = _check_session(site, info, rows)
    found = dataclasses.replace(read[key], body=definition)
    return _OfStudy(info, found, found.refused)


def _conclude_study(study: str, found: list[_OfStudy]) -> None:
    if o.wants_json():
        print_json({"study": study, "sessions": [each.facts() for each in found]})
    else:
        _show_study(study, found)
    for each in found:
        if each.refused is not None:
            raise each.refused


def _show_study(study: str, found: list[_OfStudy]) -> None:
    show_table(
        ["session", "method", "state", "features", "persons", "check"],
        [
            (
                each.info.name,
                each.info.definition.algorithm,
                each.info.state,
                each.rows.matched if each.rows and each.rows.read else None,
                each.rows.table.persons if each.rows and each.rows.refused is None else None,
                each.said,
            )
            for each in found
        ],
        none=f"no session of the study {study} invites this site yet",
    )
    # Sessions that share one reading are shown together.
    details: dict[int, list[_OfStudy]] = {}
    for each in found:
        if each.rows is not None and each.rows.read and each.said != "ok":
            details.setdefault(id(each.rows.found), []).append(each)
    for group in details.values():
        show(out)
        show(out, ", ".join(each.info.name for each in group), "bold")
        assert group[0].rows is not None  # noqa: S101  # only such ones are collected
        group[0].rows.show()
    if found and not details:
        show(err, "check sends nothing about the rows")
