"""Prepare a site for a session: read its persons, bring its table up to date, derive its points."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from fedclust.data import DataWarning, LabelRows, Source, Table
from fedclust.data.advice import count_repeated, repeated_text
from fedclust.data.mapping import Dataset
from fedclust.data.outcome_rows import (
    OutcomeBlock,
    measure_staying,
    outcome_columns,
    taking_part,
    with_outcomes,
)
from fedclust.data.persons import PersonBlock, SiteColumn, SitePersons, read_persons, slice_block
from fedclust.data.row_source import BLOCK, RowSource
from fedclust.data.site_data import (
    held_features,
    no_points,
    point_of_group,
    site_data,
    table_points,
)
from fedclust.data.table import IdMap, canonical_bytes, likely_ids, read_id_map
from fedclust.data.table_figures import TableFigures, measure_table
from fedclust.definition import LEAST_GROUP
from fedclust.numeric.array_types import BoolArray
from fedclust.protection.cohort import Cohort, row_ids
from fedclust.protection.columns import SourceColumn
from fedclust.protection.recognition import PersonBlocks, PersonSource, Recognition
from fedclust.protection.table import TooFewPersons
from fedclust.rounds import VERSION, Plan
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.size_bands import size_band
from fedclust.schema.states import ENDED
from fedclust.schema.task import Points
from fedclust.site.allowance import Question, points_of
from fedclust.site.charges import Charges
from fedclust.site.cohorts import CohortStore, Draft, table_heads
from fedclust.site.consent import ConsentRequest
from fedclust.site.data_terms import data_terms
from fedclust.site.settings import SiteSettings, read_settings
from fedclust.wire import errors
from fedclust.wire.models import Participation, SessionInfo


class TableOptions(TypedDict, total=False):
    """By which groups persons are protected; described at :meth:`fedclust.Site.participate`."""

    min_group_size: int | None
    cohort: str | None
    separate_groups: str | None
    other_persons: str | None
    no_person_in_another_table: bool
    later: str | None


class RowOptions(TableOptions, total=False):
    """How a site's rows are used; described at :meth:`fedclust.Site.participate`."""

    person: str | Sequence[Any] | NDArray[Any] | None
    id_column: str | None
    id_map: IdMap | None


def table_options(given: object) -> TableOptions:
    """Return the options that an object has as attributes."""
    return cast(TableOptions, {name: getattr(given, name) for name in TableOptions.__annotations__})


@dataclass(frozen=True)
class SiteRows:
    """A site's source, and its :class:`RowOptions`.

    ``recognised`` is whether it was decided before that these persons take part.
    """

    source: Source
    person: str | Sequence[Any] | NDArray[Any] | None = None
    id_column: str | None = None
    id_map: IdMap | None = None
    min_group_size: int | None = None
    cohort: str | None = None
    separate_groups: str | None = None
    other_persons: str | None = None
    no_person_in_another_table: bool = False
    later: str | None = None
    recognised: bool = False

    def __post_init__(self) -> None:
        later = self.later
        if later is not None and (not later.isprintable() or not later or later != later.strip()):
            raise errors.UsageError(
                "later is a suffix of visible characters without spaces at its ends, such as _2027"
            )
        apart = self.no_person_in_another_table
        if apart and (self.other_persons is None or self.separate_groups is not None):
            raise errors.UsageError(
                "no_person_in_another_table= (--no-person-in-another-table) goes with "
                "other_persons= (--other-persons), the approval that states it"
            )

    @property
    def has_ids(self) -> bool:
        """Whether the source says which person a row belongs to."""
        return self.person is not None or self.id_column is not None

    def with_group_size(
        self, settings: SiteSettings, joined: Participation | None = None
    ) -> SiteRows:
        """Return these with the site's own least group size: the given one, or the settings'.

        The larger one counts. A session that was joined keeps what it was joined with, ``joined``;
        if the settings ask for more today, :func:`consent_request` refuses it. UsageError if the
        given one is below 3.
        """
        given, least = self.min_group_size, settings.min_group_size or 0
        if given is not None and given < LEAST_GROUP:
            raise errors.UsageError(f"min_group_size is at least {LEAST_GROUP}")
        if joined is not None:
            least = min(least, joined.min_group_size or 0)
        return dataclasses.replace(self, min_group_size=max(given or 0, least) or None)


@dataclass(frozen=True)
class Prepared:
    """What a site computes from.

    Attributes
    ----------
    data : Points
    features : tuple of str
        Features and outcomes of the session that the site has.
    p : int
        The least number of persons behind every number.
    draft : Draft or None
        To be stored before anything leaves; None if no table is used.
    figures : TableFigures or None
    warnings : tuple of str
        As in :class:`fedclust.data.persons.SitePersons`.
    n_rows : int or None
        Of the source; None if unknown.
    counted : callable
        Reads the source again, and yields the persons whose outcomes are counted.
    outcome_columns : dict of str to tuple of str
        The site's own columns of each outcome that it has.
    also_features : tuple of str
        Outcomes whose columns the table releases too.
    """

    data: Points
    features: tuple[str, ...]
    p: int
    draft: Draft | None = None
    figures: TableFigures | None = None
    warnings: tuple[str, ...] = ()
    n_rows: int | None = None
    counted: Callable[[], Iterator[OutcomeBlock]] = field(default=lambda: iter(()), repr=False)
    outcome_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    also_features: tuple[str, ...] = ()

    @property
    def table_id(self) -> str | None:
        """The random id of the table."""
        return None if self.draft is None else self.draft.record.cohort.table_id

    @property
    def recognition(self) -> Recognition | None:
        """How many of the persons were known before; None if the table is new."""
        if self.draft is None or not (self.draft.recognition.known or self.draft.seen):
            return None
        return self.draft.recognition

    def with_within(self, within: Sequence[float]) -> Prepared:
        """Return these with the shares of variance within groups (d,) that a session began with."""
        return dataclasses.replace(
            self, data=dataclasses.replace(self.data, within=np.array(within, dtype=np.float64))
        )

    def digest(self, rows: Table | LabelRows) -> str:
        """Return the SHA-256 that distinguishes these rows and points from any others."""
        found = hashlib.sha256(rows.digest().encode())
        if self.draft is not None:
            found.update(canonical_bytes(self.data.X) + self.data.sizes.astype("<i8").tobytes())
        return found.hexdigest()


def prepare(
    store: CohortStore,
    plan: Plan,
    given: SiteRows,
    rows: Table | LabelRows,
    p: int,
    now: datetime,
) -> Prepared:
    """Return what a site computes from; nothing is stored but the site's key.

    Raises
    ------
    DataError
        The source does not fit the session or the site's groups.
    StateError
    """
    if plan.policy.protection == "none":
        data, features, counted = site_data(plan, given.source, rows, p)
        return Prepared(data, features, p, n_rows=len(data.X), counted=lambda: iter(counted))
    lacking = plan.policy.missing == "mask"
    try:
        persons, draft = draft_table(
            store, given, plan.features, p, now, lacking=lacking, outcomes=plan.outcomes
        )
        cohort = draft.record.cohort
        p_used = max(p, cohort.p)
        names = [each.column for each in persons.readings if each.column is not None]
        table = cohort.table(names, p_used)
        points = table_points(persons, table)
        blocks = _person_blocks(persons, read_id_map(given.id_map))
        secret = store.state.secret()
        rows_of = ((own, cohort.table_rows(secret, ids, p_used)) for ids, own in blocks())
        figures = measure_table(table, rows_of, p_used, persons.units)
    except TooFewPersons:
        return Prepared(no_points(plan), rows.features, p)
    takes_part = taking_part(plan, points)[point_of_group(table)]
    held, columns = held_features(plan, persons, points), persons.rows.answered
    released = set(cohort.rules())
    return Prepared(
        points,
        held,
        p_used,
        draft,
        figures,
        (
            *persons.warnings,
            *_value_warnings(draft.recognition, p_used),
            *_id_warnings(given, persons.rows),
        ),
        persons.n_rows,
        partial(_person_outcomes, store, plan, given, cohort, p_used, takes_part),
        {name: columns[name] for name in held if name in columns},
        tuple(name for name in held if released.intersection(columns.get(name, ()))),
    )


def _person_outcomes(
    store: CohortStore,
    plan: Plan,
    given: SiteRows,
    cohort: Cohort,
    p: int,
    takes_part: BoolArray,
) -> Iterator[OutcomeBlock]:
    """Yield the persons who are in the table for ``p``; ``takes_part`` says it of its rows."""
    with warnings.catch_warnings():
        # Those of these columns were shown when the session was joined.
        warnings.simplefilter("ignore", DataWarning)
        persons = read_persons(
            given.source,
            plan.features,
            person=given.person,
            id_column=given.id_column,
            lacking=plan.policy.missing == "mask",
            pinned=_pinned_columns(cohort, given.later),
            outcomes=plan.outcomes,
        )
    for ids, whole in _identified(persons, read_id_map(given.id_map)):
        table_rows = cohort.table_rows(store.state.secret(), ids, p)
        for start in range(0, whole.n, BLOCK):
            part = slice(start, start + BLOCK)
            block, known = slice_block(whole, part), table_rows[part] >= 0
            takes = takes_part[table_rows[part][known]]
            yield OutcomeBlock(persons.matrix(block)[known], takes, block.cells[known])


def consent_request(
    url: str,
    site: str,
    info: SessionInfo,
    plan: Plan,
    prepared: Prepared,
    given: SiteRows,
    joined: Participation | None,
    settings: SiteSettings,
) -> ConsentRequest:
    """Return what a site is asked to consent to; ``joined`` is what it declared before.

    DisclosureError if the site's settings forbid the session and it has not ended.
    """
    persons = int(prepared.data.sizes[taking_part(plan, prepared.data)].sum())
    answered = [each for each in plan.outcomes if each.name in prepared.features]
    columns = (column.name for column in outcome_columns(answered))
    terms = data_terms(
        given.source,
        with_outcomes(plan.features, plan.outcomes),
        tuple(dict.fromkeys((*prepared.features, *columns))),
        person=given.person,
        id_column=given.id_column,
        id_map=given.id_map,
        later=given.later,
    )
    request = ConsentRequest(
        coordinator=url,
        site=site,
        analyst=info.asker,
        operator=info.operator,
        definition=info.definition,
        p=prepared.p,
        persons=persons,
        groups_of=prepared.p if prepared.draft is None else prepared.draft.record.cohort.p,
        size_band=size_band(persons),
        persons_declared=given.person is not None,
        features=prepared.features,
        data=dataclasses.replace(terms, n_rows=prepared.n_rows),
        figures=prepared.figures,
        staying=measure_staying(plan, prepared.data),
        recognition=prepared.recognition,
        warnings=prepared.warnings,
        separate_groups=_approval("separate_groups", prepared, given, joined),
        other_persons=_approval("other_persons", prepared, given, joined),
        also_features=prepared.also_features,
    )
    if info.state not in ENDED:
        settings.refuse_smaller_groups(info.name, request.p, exact=request.protection_none)
    return request


def with_points(
    request: ConsentRequest, charges: Charges, prepared: Prepared, joined: Participation | None
) -> ConsentRequest:
    """Add what a session asks of the site's points, and whether they are enough.

    Exact rows cost nothing, and fewer than p persons answer nothing. What a site has ``joined``
    with holds until the session ends.
    """
    if prepared.draft is None or request.persons < request.p:
        return request
    outcomes = points_of(request.plan.outcomes, prepared.features)
    columns = {own for name in outcomes for own in prepared.outcome_columns[name]}
    question = Question(
        request.coordinator,
        request.site,
        request.session,
        request.definition_sha256,
        outcomes,
        tuple(sorted(columns)),
    )
    if not question.points:
        return request
    record = prepared.draft.record
    balance = charges.balance(record.cohort.table_id, record.history, question)
    if joined is not None:
        balance = dataclasses.replace(balance, covers=not joined.points_short)
    return dataclasses.replace(
        request, table_id=record.cohort.table_id, question=question, balance=balance
    )


def _approval(
    name: str, prepared: Prepared, given: SiteRows, joined: Participation | None
) -> str | None:
    """Return an approval; a table or a session that began with one keeps that of the ledger.

    A coordinator that knows another table of this site would take a table without its approval for
    a state that was lost.
    """
    text: str | None = getattr(given, name)
    if prepared.draft is None:
        return text
    history = prepared.draft.record.history
    known = history if joined is not None and getattr(joined, name) else history[:1]
    return next((line[name] for line in reversed(known) if name in line), text)


def declare(request: ConsentRequest, prepared: Prepared, given: SiteRows) -> Participation:
    """Return what a site declares when it joins."""
    created = prepared.draft.record.history[0] if prepared.draft else {}
    return Participation(
        definition_sha256=request.definition_sha256,
        consents=request.consents,
        features=request.features,
        min_group_size=given.min_group_size,
        size_band=request.size_band,
        table_id=prepared.table_id,
        heads=None if prepared.draft is None else table_heads(prepared.draft.record.history),
        separate_groups=request.separate_groups is not None,
        other_persons=request.other_persons is not None,
        no_person_in_another_table=bool(created.get("no_person_in_another_table")),
        points_short=request.points_short,
        sdk_version=importlib.metadata.version("fedclust"),
        methods={request.plan.method.name: (request.plan.method.version,)},
        engine=(VERSION,),
    )


# --- the site's table -----------------------------------------------------------------------------


def draft_table(
    store: CohortStore,
    given: SiteRows,
    features: Sequence[Feature],
    p: int,
    now: datetime,
    *,
    lacking: bool = False,
    outcomes: Sequence[Outcome] = (),
) -> tuple[SitePersons, Draft]:
    """Read a source, and bring the cohort of its persons up to date.

    Columns are read as they were when they were released first. All released columns are read, so
    that other persons under the known ids are noticed. ``outcomes`` will be counted; the table does
    not depend on them.

    Raises
    ------
    DataError, StateError, TooFewPersons
    """
    old_ids = read_id_map(given.id_map)
    read = partial(
        read_persons,
        given.source,
        person=given.person,
        id_column=given.id_column,
        outcomes=outcomes,
    )
    wanted = persons = read(features, lacking=lacking)
    cohort = None
    if not given.separate_groups:
        cohort = store.find(_person_blocks(persons, old_ids), given.cohort)
    if cohort is not None:
        pinned = _pinned_columns(cohort, given.later)
        # Of later measurements, only what the session asks for gets a new name.
        present = pinned if given.later else {column.name for column in wanted.columns}
        further = _as_features({k: pinned[k] for k in pinned if k not in present})
        try:
            every = lacking or bool(further)
            persons = read([*features, *further], lacking=every, pinned=pinned)
        except errors.DataError:
            # A session is not refused because of a column that it does not ask for.
            persons = read(features, lacking=lacking, pinned=pinned)
    earlier: dict[str, str] = {}
    if given.later is not None:
        earlier = {column.name + given.later: column.name for column in persons.columns}
        persons = persons.renamed({name: new for new, name in earlier.items()})
    source = PersonSource(
        _person_blocks(persons, old_ids),
        {column.name: _rule(column) for column in persons.columns},
        persons.sample,
        persons.n_persons,
        bool(outcomes),
    )
    draft = store.draft(
        source,
        p=p,
        now=now,
        has_ids=given.has_ids,
        earlier=earlier,
        table=given.cohort,
        separate=given.separate_groups,
        other_persons=given.other_persons,
        no_person_in_another_table=given.no_person_in_another_table,
        any_persons=given.recognised,
        permanent_ids=read_settings(store.state.directory).ids == "permanent",
    )
    asked = {each.feature.name for each in wanted.readings}
    readings = tuple(each for each in persons.readings if each.feature.name in asked)
    found = dataclasses.replace(
        persons, rows=wanted.rows, readings=readings, warnings=wanted.warnings
    )
    return found, draft


def recognize(store: CohortStore, given: SiteRows, now: datetime) -> Recognition | None:
    """Return how many of a source's persons are known; None if the site has no table.

    Raises
    ------
    DataError
        They would be refused.
    StateError
    """
    released: dict[str, SiteColumn] = {}
    for record in store.records().values():
        released |= _pinned_columns(record.cohort, given.later)
    if not released:
        return None
    features = _as_features(released)
    try:
        return draft_table(store, given, features, LEAST_GROUP, now, lacking=True)[1].recognition
    except TooFewPersons:
        return None


def _person_blocks(persons: SitePersons, old_ids: Mapping[str, str]) -> PersonBlocks:
    """Return the persons under the ids that they had first, or under the numbers of their rows."""

    def blocks() -> Iterator[tuple[Sequence[str], Sequence[SourceColumn]]]:
        for ids, block in _identified(persons, old_ids):
            yield ids, block.sources

    return blocks


def _identified(
    persons: SitePersons, old_ids: Mapping[str, str]
) -> Iterator[tuple[list[str], PersonBlock]]:
    first = 1
    for block in persons.blocks():
        ids = block.keys or row_ids(first, block.n)
        yield [old_ids.get(each, each) for each in ids], block
        first += block.n


def _rule(column: SiteColumn) -> str:
    """Return how a column is read, as a cohort stores it."""
    fields = dataclasses.asdict(column)
    del fields["name"]
    return json.dumps(fields, sort_keys=True)


def _pinned_columns(cohort: Cohort, later: str | None) -> dict[str, SiteColumn]:
    """Return how a source's columns were read when they were released: see :func:`_rule`.

    Those of a ``later`` measurement are read as then, or else as the earlier ones.
    """
    rules = cohort.rules()
    if later is not None:
        again = {name.removesuffix(later): rules[name] for name in rules if name.endswith(later)}
        rules |= again
    found = {}
    for name, rule in rules.items():
        fields = json.loads(rule)
        codes = None if fields["codes"] is None else tuple(fields["codes"])
        found[name] = SiteColumn(name, **{**fields, "codes": codes})
    return found


def _as_features(columns: Mapping[str, SiteColumn]) -> list[Feature]:
    """Return columns that were read before as features to read, by the names in the source."""
    # A file may name its columns and codes as no session may: with a tab, or accents apart.
    return [
        Feature.model_construct(
            name=name,
            kind="numeric" if column.codes is None else "categorical",
            levels=column.codes,
        )
        for name, column in columns.items()
    ]


def _id_warnings(given: SiteRows, rows: RowSource) -> Iterator[str]:
    """Yield the unused columns whose ids occur in several rows, where each row is a person."""
    large = isinstance(given.source, Dataset) and given.source.options.out_of_core
    unused = () if given.has_ids or large else rows.unused
    for name, ids in likely_ids(given.source, unused).items():
        n_ids, n_rows = count_repeated(filter(None, ids))
        if n_ids:
            yield (
                f"column {name!r} looks like an identifier: {repeated_text(n_ids, n_rows)}, and "
                "each row counts as a person. If each id is one person, name the column (person=, "
                "--person-column)"
            )


def _value_warnings(found: Recognition, p: int) -> Iterator[str]:
    """Yield what to say of columns in which most values differ from those released."""
    for name in found.most_differ(p):
        differ, of = found.differing[name]
        yield (
            f"{differ} of {of} values of {name} differ from those of these persons that were "
            "released, which stay in use. Is this the right file, and is it read as before?"
        )
