"""The groups of this site's persons: form, show, withdraw a person."""

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError

from fedclust.cli import options as o
from fedclust.cli.console import (
    ProgressLine,
    conclude,
    err,
    print_json,
    read_line,
    show,
    show_facts,
)
from fedclust.cli.row_check import show_recognition
from fedclust.cli.session_file import read_definition_file
from fedclust.protection.table import TooFewPersons
from fedclust.schema.feature import Feature, clustered
from fedclust.site.cohorts import CohortRecord, CohortStore, Draft, Overtaken
from fedclust.site.prepare import SiteRows, draft_table
from fedclust.site.settings import read_settings
from fedclust.site.state import SiteState
from fedclust.site.terminal import confirmed
from fedclust.wire.errors import ConsentDeclined, PersonsRefused, UsageError

app = o.group("Form and manage the groups of this site's persons.")


#: The least size of the groups of a new table, if no larger one is asked for.
_GROUP_SIZE = 5


class _Columns(o.OptionGroup):
    """From which columns groups are formed."""

    features: str | None = None
    """Names of numeric columns, comma-separated; for others use --definition."""
    definition: Path | None = None
    """JSON file with a definition: use its features."""

    def asked(self) -> tuple[Feature, ...]:
        """Return the features of --features or of --definition; UsageError for none or both."""
        if self.features is not None and self.definition is None:
            try:
                return tuple(Feature(name=name.strip()) for name in self.features.split(","))
            except ValidationError:
                raise UsageError("--features needs names of columns, comma-separated") from None
        if self.definition is not None and self.features is None:
            # Outcomes are in no table.
            return clustered(read_definition_file(self.definition).features)
        raise UsageError("give either --features NAMES or --definition FILE")


@o.command(
    app,
    "create",
    "fedclust cohort create --data cohort.csv --id-column mrn --features age,chol,trestbps",
    "fedclust cohort create --data cohort.csv --person-column mrn --definition study.json",
)
def create(
    how: o.Reading,
    persons: o.Persons,
    data: o.Data,
    wanted: _Columns,
) -> None:
    """Form groups before a first session, or add newcomers to the groups; nothing is sent.

    A group has at least 5 persons, or as many as --min-group-size or site.toml say.
    """
    asked = wanted.asked()
    state = SiteState()
    line = ProgressLine(at_once=False)
    source = how.source(data, persons)
    given = SiteRows(source.rows(line.read), **persons.given(source))
    least = persons.min_group_size or _GROUP_SIZE
    p = max(least, read_settings(state.directory).min_group_size or 0)
    try:
        with line:
            draft = _form_table(state, given, asked, p)
    except TooFewPersons as error:
        raise PersonsRefused(
            Path(source.data).name, "too-few-persons", f"{error}. No groups were formed"
        ) from None
    if o.wants_json():
        done = {"change": vars(draft.change), "recognition": vars(draft.recognition)}
        print_json({**_cohort_facts(draft.record), **done})
        return
    _show_cohort(draft.record)
    change = draft.change
    show(
        err,
        f"{change.persons} persons in {change.groups} new groups; {change.waiting} wait for a "
        f"group; {change.columns} columns added",
    )
    show_recognition(draft.recognition, err)


def _form_table(state: SiteState, given: SiteRows, asked: Sequence[Feature], p: int) -> Draft:
    """Form groups, or bring them up to date, and store them."""
    store = CohortStore(state)
    while True:
        _, draft = draft_table(store, given, asked, p, datetime.now(UTC))
        with contextlib.suppress(Overtaken):
            store.keep(draft)
            return draft


@o.command(app, "show", "fedclust cohort show", "fedclust cohort show --json")
def show_all() -> None:
    """Show each table: id, numbers of persons and groups, columns; no person and no value."""
    state = SiteState()
    records = CohortStore(state).records()
    if o.wants_json():
        print_json([_cohort_facts(record) for record in records.values()])
        return
    for record in records.values():
        _show_cohort(record)
    if not records:
        show(err, f"no table yet in {state.path}; to form one: fedclust cohort create")


@o.command(app, "withdraw", "fedclust cohort withdraw", "fedclust cohort withdraw --yes < id.txt")
def withdraw(
    yes: Annotated[bool, o.opt("--yes", "Withdraw without asking.")] = False,
) -> None:
    """Withdraw a person: the person's group is no longer used. This cannot be undone.

    The command asks for the id, as in the file, or reads it from standard input: a command line
    stays in the shell's history and is visible to others. Earlier submissions still count. This
    site cannot continue sessions that are running: leave them.
    """
    person = read_line("The person's id, as in the file:", "the person's id")
    if not (yes or confirmed("Withdraw this person from all tables?", "--yes")):
        raise ConsentDeclined("nobody was withdrawn")
    tables = CohortStore(SiteState()).withdraw(person, datetime.now(UTC))
    said = f"withdrawn from {tables} table(s); remove the person's rows from the file as well"
    conclude(said, {"tables": tables})


def _cohort_facts(record: CohortRecord) -> dict[str, Any]:
    cohort = record.cohort
    sizes = cohort.sizes[cohort.used]
    return {
        "table": cohort.table_id,
        "created": record.history[0]["time"],
        "min_group_size": cohort.p,
        "ids": cohort.has_ids,
        "persons": int(sizes.sum()),
        "groups": len(sizes),
        "group_sizes": [int(sizes.min()), int(sizes.max())] if len(sizes) else None,
        "groups_not_used": int((~cohort.used).sum()),
        "withdrawn": int(cohort.withdrawn.sum()),
        "columns": list(cohort.rules()),
        "changes": len(record.history),
    }


def _show_cohort(record: CohortRecord) -> None:
    facts = _cohort_facts(record)
    facts["ids"] = "yes" if facts["ids"] else "no: persons are known by the numbers of their rows"
    facts["group_sizes"] = " to ".join(map(str, facts["group_sizes"] or ()))
    show_facts({**facts, "columns": ", ".join(facts["columns"])})
