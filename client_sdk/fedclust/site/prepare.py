"""What a site computes from in a session: the points of its cohort's table."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from fedclust import errors
from fedclust.data import LabelRows, Source, Table
from fedclust.data.persons import SiteColumn, SitePersons, read_persons
from fedclust.data.site_data import held_features, site_data, table_points
from fedclust.engine import Plan
from fedclust.methods.registry import METHODS
from fedclust.protection.cohort import Cohort
from fedclust.protection.columns import SourceColumn, source_names
from fedclust.protection.figures import TableFigures, measure_table
from fedclust.protection.recognition import PersonSource, other_file, person_rows
from fedclust.protection.size_bands import size_band
from fedclust.protection.table import TooFewPersons
from fedclust.schema.feature import Feature
from fedclust.schema.points import Points, row_points
from fedclust.site.cohorts import CohortStore, Draft, cohort_refusals
from fedclust.site.compute import count_usable
from fedclust.site.consent import ConsentRequest
from fedclust.site.ledger import Ledger
from fedclust.wire.models import Participation, SessionInfo

__all__ = ["Prepared", "Reading", "consent_request", "declare", "draft_table", "prepare"]


@dataclass(frozen=True)
class Reading:
    """A site's source, and which of its tables is meant.

    Attributes
    ----------
    source : Source
    person, id_column
        As in :func:`fedclust.data.persons.read_persons`.
    table : str or None
        The start of a table's id.
    separate : str or None
        The approval of groups of their own.
    """

    source: Source
    person: Any = None
    id_column: str | None = None
    table: str | None = None
    separate: str | None = None


@dataclass(frozen=True)
class Prepared:
    """What a site computes from.

    Attributes
    ----------
    data : Points
    features : tuple of str
        Those of the session that the site has.
    p : int
        The least number of persons behind every number.
    draft : Draft or None
        To be kept before anything leaves; None where no table is used.
    figures : TableFigures or None
    """

    data: Points
    features: tuple[str, ...]
    p: int
    draft: Draft | None = None
    figures: TableFigures | None = None

    @property
    def table_id(self) -> str | None:
        """The random id of the table."""
        return None if self.draft is None else self.draft.record.cohort.table_id

    def digest(self, rows: Table | LabelRows) -> str:
        """Return the SHA-256 that tells these rows, and the points, from any others."""
        found = hashlib.sha256(rows.digest().encode())
        if self.draft is not None:
            points = np.where(np.isnan(self.data.X), np.nan, self.data.X)
            found.update(points.astype("<f8").tobytes() + self.data.sizes.astype("<i8").tobytes())
        return found.hexdigest()


def prepare(
    store: CohortStore,
    plan: Plan,
    reading: Reading,
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
        data, features = site_data(plan, reading.source, rows, p)
        return Prepared(data, features, p)
    lacking = plan.policy.missing == "mask"
    try:
        persons, draft = draft_table(store, reading, plan.features, p, now, ledger, lacking=lacking)
        cohort = draft.record.cohort
        used = max(p, cohort.p)
        names = [each.column for each in persons.readings if each.column is not None]
        with cohort_refusals():
            points = table_points(persons, cohort.table(names, used))
        figures = _figures(store, cohort, persons, names)
    except TooFewPersons:
        nobody = row_points(np.empty((0, len(plan.columns))))
        return Prepared(nobody, rows.features, p)
    return Prepared(points, held_features(plan, persons, points), used, draft, figures)


def consent_request(
    url: str, site: str, info: SessionInfo, plan: Plan, rows: Prepared, reading: Reading
) -> ConsentRequest:
    """Return what a site is asked to consent to."""
    persons = count_usable(plan, rows.data)
    return ConsentRequest(
        coordinator=url,
        site=site,
        session=info.name,
        analyst=info.created_by,
        definition=info.definition,
        definition_sha256=info.definition_sha256,
        plan=plan,
        p=rows.p,
        persons=persons,
        size_band=size_band(persons),
        persons_declared=reading.person is not None,
        features=rows.features,
        figures=rows.figures,
        fences=rows.draft is None or rows.draft.record.cohort.fences,
    )


def declare(
    request: ConsentRequest,
    rows: Prepared,
    reading: Reading,
    joined: Participation | None,
    min_group_size: int | None,
) -> Participation:
    """Return what a site declares when it joins; ``joined`` is what it declared before."""
    again = joined is not None and joined.separate_groups
    return Participation(
        definition_sha256=request.definition_sha256,
        consents=request.consents,
        features=request.features,
        min_group_size=min_group_size,
        size_band=request.size_band,
        table_id=rows.table_id,
        separate_groups=bool(reading.separate) or again,
        sdk_version=importlib.metadata.version("fedclust"),
        methods={name: (method.version,) for name, method in METHODS.items()},
    )


def draft_table(
    store: CohortStore,
    reading: Reading,
    features: Sequence[Feature],
    p: int,
    now: datetime,
    ledger: Ledger,
    *,
    lacking: bool = False,
    fences: bool = True,
) -> tuple[SitePersons, Draft]:
    """Read a source, and bring the cohort of its persons up to date.

    Columns are read as they were when they were released first. The columns that persons are
    known by are read as well, so that persons under other ids, and other persons, are noticed.

    Raises
    ------
    DataError, CohortError, TooFewPersons
    """
    cohorts = [record.cohort for record in store.records(ledger).values()]
    has_ids = reading.person is not None or reading.id_column is not None

    def read(
        features: Sequence[Feature], pinned: Mapping[str, SiteColumn], lacking: bool
    ) -> SitePersons:
        return read_persons(
            reading.source,
            features,
            person=reading.person,
            id_column=reading.id_column,
            lacking=lacking,
            pinned=pinned,
        )

    def read_with_base(known: Sequence[Cohort], pinned: Mapping[str, SiteColumn]) -> SitePersons:
        """Read the columns that persons are known by as well, those that the source has."""
        further = _known_by(known, wanted)
        if further:
            try:
                return read([*features, *further], pinned, lacking=True)
            except errors.DataError:
                # A session is not refused for a column that it does not ask for.
                if not has_ids and not all(each.has_ids for each in known):
                    with cohort_refusals():
                        raise other_file() from None
        return read(features, pinned, lacking) if pinned else wanted

    wanted = persons = read(features, {}, lacking)
    cohort = None
    if has_ids or not reading.separate:
        persons = read_with_base(cohorts, {})
        cohort = store.find(_blocks(persons), reading.table)
    if reading.separate:
        cohort = None
    if cohort is None:
        nameless = [] if has_ids else [each for each in cohorts if not each.has_ids]
        persons = read_with_base(nameless, {})
    else:
        pinned, known = _pinned(cohort), {each.name for each in _known_by([cohort], wanted)}
        here = known | {column.name for column in wanted.columns}
        if any(
            column.name not in here or pinned.get(column.name, column) != column
            for column in persons.columns
        ):
            persons = read_with_base([cohort], pinned)
    rules = {column.name: _rule(column) for column in persons.columns}
    source = PersonSource(_blocks(persons), rules, persons.sample, persons.n_persons)
    draft = store.draft(
        source, p=p, now=now, fences=fences, table=reading.table, separate=reading.separate
    )
    asked = {each.feature.name for each in wanted.readings}
    kept = tuple(each for each in persons.readings if each.feature.name in asked)
    return dataclasses.replace(persons, readings=kept), draft


def _blocks(persons: SitePersons) -> Any:
    def blocks() -> Iterator[tuple[Sequence[str] | None, Sequence[SourceColumn]]]:
        for block in persons.blocks():
            yield block.keys, block.sources

    return blocks


def _rule(column: SiteColumn) -> str:
    said = dataclasses.asdict(column)
    del said["name"]
    return json.dumps(said, sort_keys=True)


def _pinned(cohort: Cohort) -> dict[str, SiteColumn]:
    rules = cohort.rules()
    rules |= {name: rules[old] for name, old in cohort.aliases.items()}
    found = {}
    for name, rule in rules.items():
        said = json.loads(rule)
        codes = None if said["codes"] is None else tuple(said.pop("codes"))
        found[name] = SiteColumn(name, **{**said, "codes": codes})
    return found


def _known_by(cohorts: Sequence[Cohort], persons: SitePersons) -> list[Feature]:
    """Return the columns that persons are known by and that a session does not ask for."""
    found: dict[str, Feature] = {}
    here = {column.name for column in persons.columns}
    for cohort in cohorts:
        for name, column in _pinned(cohort).items():
            if cohort.pinned_name(name) in cohort.base and name not in here:
                found[name] = Feature(
                    name=name,
                    kind="numeric" if column.codes is None else "categorical",
                    levels=column.codes,
                )
    return list(found.values())


def _figures(
    store: CohortStore, cohort: Cohort, persons: SitePersons, names: Sequence[str]
) -> TableFigures | None:
    """Return how close the table is to its persons; None where no column can be compared."""
    here = {column.name for column in persons.columns}
    table = cohort.table(names)
    # Columns tied to one that this source lacks are not measured.
    kept = [k for k, each in enumerate(table.columns) if set(source_names(each)) <= here]
    if not kept:
        return None
    table = dataclasses.replace(
        table,
        columns=tuple(table.columns[k] for k in kept),
        released=tuple(table.released[k] for k in kept),
        shares=tuple(table.shares[k] for k in kept),
    )
    return measure_table(table, person_rows(cohort, store.secret(), _blocks(persons)))
