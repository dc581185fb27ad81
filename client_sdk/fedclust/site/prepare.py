"""Prepare a site for a session: read its persons, bring its table up to date, derive its points."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedclust import errors
from fedclust.data import LabelRows, Source, Table
from fedclust.data.person_blocks import SiteColumn, SitePersons
from fedclust.data.persons import read_persons
from fedclust.data.site_data import held_features, no_points, site_data, table_points
from fedclust.definition import LEAST_GROUP
from fedclust.engine import VERSION, Plan
from fedclust.methods.registry import METHODS
from fedclust.protection.cohort import Cohort
from fedclust.protection.columns import SourceColumn, source_names
from fedclust.protection.figures import TableFigures, measure_table
from fedclust.protection.recognition import (
    PersonBlocks,
    PersonSource,
    other_file,
    person_rows,
)
from fedclust.protection.size_bands import size_band
from fedclust.protection.table import TooFewPersons
from fedclust.schema.feature import Feature
from fedclust.schema.points import Points
from fedclust.schema.states import ENDED
from fedclust.site.cohorts import CohortStore, Draft, cohort_refusals, table_heads
from fedclust.site.compute import count_usable
from fedclust.site.consent import ConsentRequest
from fedclust.site.data_terms import data_terms
from fedclust.site.ledger import Ledger
from fedclust.site.settings import read_settings
from fedclust.wire.models import Participation, SessionInfo


class RowOptions(TypedDict, total=False):
    """How a site's rows are used; described at :meth:`fedclust.Site.participate`."""

    person: str | Sequence[Any] | NDArray[Any] | None
    id_column: str | None
    min_group_size: int | None
    cohort: str | None
    separate_groups: str | None
    accept_corrections: bool


@dataclass(frozen=True)
class SiteRows:
    """A site's source, and its :class:`RowOptions`."""

    source: Source
    person: str | Sequence[Any] | NDArray[Any] | None = None
    id_column: str | None = None
    min_group_size: int | None = None
    cohort: str | None = None
    separate_groups: str | None = None
    accept_corrections: bool = False

    @property
    def has_ids(self) -> bool:
        """Whether the source says which person a row belongs to."""
        return self.person is not None or self.id_column is not None

    def with_group_size(self, joined: Participation | None = None) -> SiteRows:
        """Return these with the site's own least group size: the given one, or the settings'.

        The larger one counts. A session that was joined keeps what it was joined with, ``joined``;
        if the settings ask for more today, :func:`consent_request` refuses it. UsageError if the
        given one is below 3.
        """
        given, least = self.min_group_size, read_settings().min_group_size or 0
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
        As in :class:`fedclust.data.person_blocks.SitePersons`.
    n_rows, n_persons : int or None
        Of the source; None if unknown.
    """

    data: Points
    features: tuple[str, ...]
    p: int
    draft: Draft | None = None
    figures: TableFigures | None = None
    warnings: tuple[str, ...] = ()
    n_rows: int | None = None
    n_persons: int | None = None

    @property
    def table_id(self) -> str | None:
        """The random id of the table."""
        return None if self.draft is None else self.draft.record.cohort.table_id

    def digest(self, rows: Table | LabelRows) -> str:
        """Return the SHA-256 that distinguishes these rows and points from any others."""
        found = hashlib.sha256(rows.digest().encode())
        if self.draft is not None:
            found.update(_value_bytes(self.data.X) + self.data.sizes.astype("<i8").tobytes())
            if self.data.outcomes is not None:
                found.update(_value_bytes(self.data.outcomes))
        return found.hexdigest()


def _value_bytes(values: NDArray[np.float64]) -> bytes:
    return np.where(np.isnan(values), np.nan, values).astype("<f8").tobytes()


def prepare(
    store: CohortStore,
    plan: Plan,
    given: SiteRows,
    rows: Table | LabelRows,
    p: int,
    now: datetime,
    ledger: Ledger,
) -> Prepared:
    """Return what a site computes from; nothing is written but the site's key.

    Raises
    ------
    DataError
        The source does not fit the session or the site's groups.
    CohortError
    """
    if plan.policy.protection == "none":
        data, features = site_data(plan, given.source, rows, p)
        return Prepared(data, features, p, n_rows=len(data.X))
    lacking = plan.policy.missing == "mask"
    try:
        persons, draft = draft_table(store, given, plan.released, p, now, ledger, lacking=lacking)
        cohort = draft.record.cohort
        p_used = max(p, cohort.p)
        names = [each.column for each in persons.readings if each.column is not None]
        with cohort_refusals():
            table = cohort.table(names, p_used, persons.apart)
            points = table_points(persons, table)
        figures = _measure_closeness(store, cohort, persons, names)
    except TooFewPersons:
        return Prepared(no_points(plan), rows.features, p)
    return Prepared(
        points,
        held_features(plan, persons, points),
        p_used,
        draft,
        figures,
        persons.warnings,
        persons.n_rows,
        persons.n_persons,
    )


def consent_request(
    url: str,
    site: str,
    info: SessionInfo,
    plan: Plan,
    prepared: Prepared,
    given: SiteRows,
    joined: Participation | None,
) -> ConsentRequest:
    """Return what a site is asked to consent to; ``joined`` is what it declared before.

    DisclosureError if the site's settings forbid the session and it has not ended.
    """
    persons = count_usable(plan, prepared.data)
    request = ConsentRequest(
        coordinator=url,
        site=site,
        session=info.name,
        analyst=info.created_by,
        definition=info.definition,
        definition_sha256=info.definition_sha256,
        plan=plan,
        p=prepared.p,
        persons=persons,
        size_band=size_band(persons),
        persons_declared=given.person is not None,
        features=prepared.features,
        data=data_terms(
            given.source,
            plan.released,
            prepared.features,
            person=given.person,
            id_column=given.id_column,
            n_rows=prepared.n_rows,
            n_persons=prepared.n_persons,
        ),
        figures=prepared.figures,
        fences=prepared.draft is None or prepared.draft.record.cohort.fences,
        warnings=prepared.warnings,
        separate_groups=_separate_groups(prepared, given, joined),
    )
    if info.state not in ENDED:
        read_settings().refuse_smaller_groups(info.name, request.p, exact=request.protection_none)
    return request


def _separate_groups(
    prepared: Prepared, given: SiteRows, joined: Participation | None
) -> str | None:
    """Return the approval of separate groups; that of groups already formed is on record."""
    if joined is None or not joined.separate_groups or prepared.draft is None:
        return given.separate_groups
    approval: str | None = prepared.draft.record.history[0].get("approval")
    return approval


def declare(
    request: ConsentRequest, prepared: Prepared, given: SiteRows, joined: Participation | None
) -> Participation:
    """Return what a site declares when it joins; ``joined`` is what it declared before."""
    separate_before = joined is not None and joined.separate_groups
    return Participation(
        definition_sha256=request.definition_sha256,
        consents=request.consents,
        features=request.features,
        min_group_size=given.min_group_size,
        size_band=request.size_band,
        table_id=prepared.table_id,
        heads=None if prepared.draft is None else table_heads(prepared.draft.record.history),
        separate_groups=bool(given.separate_groups) or separate_before,
        sdk_version=importlib.metadata.version("fedclust"),
        methods={name: (method.version,) for name, method in METHODS.items()},
        engine=(VERSION,),
    )


# --- the site's table -----------------------------------------------------------------------------


def draft_table(
    store: CohortStore,
    given: SiteRows,
    features: Sequence[Feature],
    p: int,
    now: datetime,
    ledger: Ledger,
    *,
    lacking: bool = False,
    fences: bool = True,
) -> tuple[SitePersons, Draft]:
    """Read a source, and bring the cohort of its persons up to date.

    Columns are read as they were when they were released first. The columns by which persons are
    recognised are read too, so that persons under other ids, and other persons, are noticed.

    Raises
    ------
    DataError, CohortError, TooFewPersons
    """
    cohorts = [record.cohort for record in store.records(ledger).values()]
    reader = _PersonReader(given, features, lacking)
    wanted = persons = reader.read({}, [])
    cohort = None
    if given.has_ids or not given.separate_groups:
        persons = reader.read_with_base(cohorts, {}, wanted)
        cohort = store.find(_person_blocks(persons), given.cohort)
    if cohort is None or given.separate_groups:
        without_ids = [] if given.has_ids else [each for each in cohorts if not each.has_ids]
        persons = reader.read_with_base(without_ids, {}, wanted)
    else:
        pinned = _pinned_columns(cohort)
        needed = {each.name for each in _base_features([cohort], wanted)}
        needed |= {column.name for column in wanted.columns}
        if any(
            column.name not in needed or pinned.get(column.name, column) != column
            for column in persons.columns
        ):
            persons = reader.read_with_base([cohort], pinned, wanted)
    rules = {column.name: _rule(column) for column in persons.columns}
    blocks = _person_blocks(persons)
    source = PersonSource(blocks, rules, persons.sample, persons.n_persons, wanted.apart)
    draft = store.draft(
        source,
        p=p,
        now=now,
        fences=fences,
        table=given.cohort,
        separate=given.separate_groups,
        accept_corrections=given.accept_corrections,
    )
    asked = {each.feature.name for each in wanted.readings}
    readings = tuple(each for each in persons.readings if each.feature.name in asked)
    return dataclasses.replace(persons, readings=readings, warnings=wanted.warnings), draft


@dataclass(frozen=True)
class _PersonReader:
    """Reads the persons of a source, with the columns that a session asks for and further ones."""

    given: SiteRows
    features: Sequence[Feature]
    lacking: bool

    def read(self, pinned: Mapping[str, SiteColumn], further: Sequence[Feature]) -> SitePersons:
        """Read the session's columns and ``further`` ones, ``pinned`` ones as before."""
        return read_persons(
            self.given.source,
            [*self.features, *further],
            person=self.given.person,
            id_column=self.given.id_column,
            lacking=self.lacking or bool(further),
            pinned=pinned,
        )

    def read_with_base(
        self, cohorts: Sequence[Cohort], pinned: Mapping[str, SiteColumn], wanted: SitePersons
    ) -> SitePersons:
        """Read the columns by which cohorts recognise persons too, as far as the source has them.

        ``wanted`` is what :meth:`read` returns without them.
        """
        further = _base_features(cohorts, wanted)
        if further:
            try:
                return self.read(pinned, further)
            except errors.DataError:
                # A session is not refused because of a column that it does not ask for.
                if not self.given.has_ids and not all(each.has_ids for each in cohorts):
                    with cohort_refusals():
                        raise other_file() from None
        return self.read(pinned, []) if pinned else wanted


def _person_blocks(persons: SitePersons) -> PersonBlocks:
    def blocks() -> Iterator[tuple[Sequence[str] | None, Sequence[SourceColumn]]]:
        for block in persons.blocks():
            yield block.keys, block.sources

    return blocks


def _rule(column: SiteColumn) -> str:
    """Return how a column is read, as a cohort stores it."""
    fields = dataclasses.asdict(column)
    del fields["name"]
    return json.dumps(fields, sort_keys=True)


def _pinned_columns(cohort: Cohort) -> dict[str, SiteColumn]:
    """Return the columns that a cohort has released, by all their names: see :func:`_rule`."""
    rules = cohort.rules()
    rules |= {name: rules[old] for name, old in cohort.aliases.items()}
    found = {}
    for name, rule in rules.items():
        fields = json.loads(rule)
        codes = None if fields["codes"] is None else tuple(fields["codes"])
        found[name] = SiteColumn(name, **{**fields, "codes": codes})
    return found


def _base_features(cohorts: Sequence[Cohort], persons: SitePersons) -> list[Feature]:
    """Return the columns by which cohorts recognise persons and that were not read."""
    found: dict[str, Feature] = {}
    present = {column.name for column in persons.columns}
    for cohort in cohorts:
        for name, column in _pinned_columns(cohort).items():
            if cohort.pinned_name(name) in cohort.base and name not in present:
                found[name] = Feature(
                    name=name,
                    kind="numeric" if column.codes is None else "categorical",
                    levels=column.codes,
                )
    return list(found.values())


def _measure_closeness(
    store: CohortStore, cohort: Cohort, persons: SitePersons, names: Sequence[str]
) -> TableFigures | None:
    """Return how close the table is to its persons; None if no column can be compared."""
    present = {column.name for column in persons.columns}
    table = cohort.table(names)
    # A column joined with one that this source lacks cannot be compared.
    kept = [k for k, each in enumerate(table.columns) if set(source_names(each)) <= present]
    if not kept:
        return None
    table = dataclasses.replace(
        table,
        columns=tuple(table.columns[k] for k in kept),
        released=tuple(table.released[k] for k in kept),
        shares=tuple(table.shares[k] for k in kept),
    )
    return measure_table(table, person_rows(cohort, store.secret(), _person_blocks(persons)))
