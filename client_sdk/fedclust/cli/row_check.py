"""How a site's rows match one definition, and what ``fedclust check`` shows of that."""

import dataclasses
import itertools
import os
import re
import shlex
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from fedclust.cli.console import ProgressLine, out, show, show_table
from fedclust.data import Dataset, DataWarning
from fedclust.data.advice import (
    CODES_ADVICE,
    conversion_text,
    count_repeated,
    list_names,
    mapping_key,
    repeated_text,
    with_counts,
)
from fedclust.data.chunks import MISSING
from fedclust.data.column_match import CountedTable
from fedclust.data.column_points import find_texts
from fedclust.data.known_names import (
    folded,
    is_id,
    is_sex,
    looks_missing,
    meanings_of,
    never_changes,
)
from fedclust.data.mapping import ColumnMap, canonical_code
from fedclust.data.outcome_rows import Staying, with_outcomes
from fedclust.data.persons import ROWS_DIFFER
from fedclust.data.profile import (
    FAR,
    LACKING,
    NO_COLUMN,
    Absence,
    ColumnProfile,
    RowsFarOut,
    SourceProfile,
    profile,
)
from fedclust.data.row_warnings import NO_VALUE
from fedclust.data.sources import open_reader
from fedclust.data.table import likely_ids, read_text_column
from fedclust.data.table_figures import HEADINGS, TableFigures
from fedclust.protection.recognition import Recognition
from fedclust.result.worth_asking import crowded_text, points_asked
from fedclust.schema.display import counted
from fedclust.schema.feature import Feature, Outcome, TrajectoryColumn, clustered, outcomes_of
from fedclust.schema.size_bands import size_band
from fedclust.site.consent import ConsentRequest
from fedclust.site.data_sources import MARK, DataSource
from fedclust.site.prepare import RowOptions
from fedclust.site.settings import read_settings
from fedclust.site.state import state_directory
from fedclust.wire.errors import DataError, DisclosureError, FedclustError
from fedclust.wire.models import SessionCreate

#: Kinds of columns of numbers, those of outcomes included.
_NUMBERS = ("numeric", "ordered", "time")
#: Rules of refusals that the list of what is still to do says.
_LISTED = ("missing-column", "unit", "mapping", "not-a-number", "too-large", "unknown-level")


@dataclass(frozen=True)
class RepeatedIds:
    """How many ids of a column occur in several rows, and of how many of these the rows differ.

    They differ in ``compared``: columns that all rows of one person share, such as the sex.
    """

    ids: int
    rows: int
    differing: int
    compared: tuple[str, ...]


@dataclass(frozen=True)
class SourceRows:
    """A site's rows, how they are named and used, and the line that shows how far reading is."""

    data: Dataset
    source: DataSource
    given: RowOptions
    line: ProgressLine


@dataclass(frozen=True)
class NoTable:
    """The persons who would take part, where no table was formed.

    It has names of :class:`fedclust.site.consent.ConsentRequest`.
    """

    persons: int
    warnings: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    figures: TableFigures | None = None
    recognition: Recognition | None = None
    staying: Staying | None = None
    points: int = 0
    points_left: int | None = None
    points_short: bool = False


_Table: TypeAlias = NoTable | ConsentRequest


@dataclass(frozen=True)
class RowCheck:
    """How rows match one definition; ``read`` is False if the source could not be read.

    ``open_points`` says in words what is charged to the site's points and not answered.
    ``source`` says how the rows are read.
    """

    body: SessionCreate
    found: SourceProfile
    p: int
    table: _Table
    read: bool = True
    open_points: tuple[str, ...] = ()
    repeated: dict[str, RepeatedIds] = field(default_factory=dict)
    source: DataSource = field(default_factory=lambda: DataSource(data=""), repr=False)

    @property
    def asked(self) -> bool:
        """Whether a coordinator was asked; its consent screen says more than this check."""
        return isinstance(self.table, ConsentRequest) and bool(self.table.coordinator)

    @property
    def refused(self) -> FedclustError | None:
        """Why taking part would be refused."""
        return self.found.refused

    @property
    def to_edit(self) -> bool:
        """Whether an edit of the mapping file may solve why taking part would be refused."""
        return isinstance(self.refused, DataError) and self.refused.rule in _LISTED

    @property
    def enough(self) -> bool:
        """Whether the site would send anything but empty submissions."""
        return self.table.persons >= self.p

    @property
    def features_unreleased(self) -> list[str]:
        """The features that the rows have, and that too few of the site's groups release."""
        there = [each.feature for each in self._there("feature")]
        return [] if self.refused else [name for name in there if name not in self.table.features]

    @property
    def look_at(self) -> list[str]:
        """The columns that are probably a mistake, and what else needs a look."""
        found, staying = self.found, self.table.staying
        warned = [each.feature for each in found.columns if each.state == "warning"]
        absent = (name for each in found.absences for name in each.features)
        also = {
            "rows far out": found.far_out is not None,
            "missing: drop": staying is not None and staying.few,
            "edges": any(True for _ in self._crowded_texts()),
            "ids": any(name in found.ignored for name in self.repeated),
        }
        names = dict.fromkeys((*warned, *absent))
        return [*names, *(text for text, said in also.items() if said)]

    @property
    def matched(self) -> str:
        """How many of the features and outcomes the rows have."""
        found = []
        for role in ("feature", "outcome"):
            d = sum(column.role == role for column in self.found.columns)
            there = len(self._there(role))
            if d:
                found.append(f"{'all' if there == d else f'{there} of'} {counted(d, role)}")
        return ", ".join(found)

    def _there(self, role: str) -> list[ColumnProfile]:
        columns = [each for each in self.found.columns if each.role == role]
        return [each for each in columns if each.state in ("ok", "warning")]

    def facts(self) -> dict[str, Any]:
        """Return the check as JSON; without counts if the source could not be read."""
        found, table, refused = self.found, self.table, self.found.refused
        counts = {
            "rows": found.rows,
            "usable_rows": table.persons,
            "size_band": size_band(table.persons),
            "enough_rows": self.enough,
        }
        sha256 = None
        if isinstance(table, ConsentRequest) and self.asked:
            sha256 = table.definition_sha256
        return {
            "session": self.body.name,
            "definition_sha256": sha256,
            "features": [feature.name for feature in self.body.features],
            **(counts if self.read else dict.fromkeys(counts)),
            "min_group_size": self.p,
            "refused": None if refused is None else {"rule": refused.rule, "message": str(refused)},
            "table": None if table.figures is None else dataclasses.asdict(table.figures),
            "points": table.points,
            "points_left": table.points_left,
            "points_short": table.points_short,
            "open_points": list(self.open_points),
            "staying": None if table.staying is None else vars(table.staying),
            "persons_known": None if table.recognition is None else vars(table.recognition),
            "features_unreleased": self.features_unreleased,
            "columns": [_column_facts(column) for column in found.columns],
            "rows_far_out": None if found.far_out is None else vars(found.far_out),
            "absences": [vars(each) for each in found.absences],
            "repeated_ids": {name: vars(of) for name, of in self.repeated.items()},
            "trajectories": list(found.trajectories),
            "ignored_columns": list(found.ignored),
            "unused_mappings": found.unused,
        }

    def show(self, *, full: bool = False, brief: bool = False) -> None:
        """Show columns, persons and the table to a person; ``full``: the table column by column.

        ``brief`` leaves out what questions about the mapping have shown.
        """
        found, usable, figures = self.found, self.table.persons, self.table.figures
        # Without a column for each feature no row was read.
        read = f", {found.rows} rows" if found.rows or found.refused is None else ""
        show(out, f"{found.source}: {self.matched}{read}", "bold")
        # While the mapping file is edited, only what is open: the last check shows every column.
        columns = [each for each in found.columns if not self.to_edit or each.state != "ok"]
        texts = itertools.chain(*(_column_lines(each, brief) for each in columns))
        headings = ["feature", "column here", "", "missing", "least", "mean", "most"]
        rules = self.source.reading.resolved().features
        rows = (_column_row(each, rules.get(each.feature, ColumnMap())) for each in columns)
        if self.to_edit or not brief:
            show_table(headings, rows, right=3)
        for line in texts:
            text, *lines = line.split("\n")
            show(out, textwrap.fill(text, 98, initial_indent="  ", subsequent_indent="    "))
            for each in lines:
                show(out, f"      {each}")
        for text in (*found.trajectories, *self._pattern_texts()):
            _say(text)
        if found.unused:
            show(
                out, f"features of the mapping that this session has not: {', '.join(found.unused)}"
            )
        if found.ignored and not brief:
            n_ignored = len(found.ignored)
            show(out, f"columns that are not used ({n_ignored}): {list_names(found.ignored)}")
        if not brief:
            _say("These figures are of rows and stay here; check sends nothing about the rows.")
        if found.refused is None:
            show(out, f"persons who take part: {usable}")
        if found.complete_rows < found.rows and self.body.policy.missing == "drop":
            show(out, f"{found.complete_rows} of {found.rows} rows have a value in every column")
        if self.table.staying is not None:
            _say(self.table.staying.text)
        if self.table.recognition is not None:
            show_recognition(self.table.recognition, out)
        for text in self._points_texts(full=full):
            _say(text)
        if figures is not None:
            _show_table_figures(figures, full=full, brief=brief)
        if self.features_unreleased:
            said = f"takes part without {', '.join(self.features_unreleased)}: "
            said += "too few persons are in groups that release a value"
            _say(said)
        for text in self._repeated_texts():
            _say(text)
        for text in self.table.warnings:
            if text.startswith(ROWS_DIFFER) or NO_VALUE in text:  # those of columns are above
                _say(text)
        self._show_to_do()

    def _show_to_do(self) -> None:
        """Show what is to be changed in the mapping file, in order."""
        todo = list(self._edits())
        said = f"{'Still to do' if self.refused else 'Better, but not needed'} in the mapping file"
        if self.source.reading.mapping is None:
            said += " (--mapping), which --ask makes"
        if todo:
            show(out, f"{said}:", "bold")
        for number, each in enumerate(todo, 1):
            text, *lines = each.split("\n")
            before = f"{number:3}. "
            show(out, textwrap.fill(text, 98, initial_indent=before, subsequent_indent="     "))
            for line in lines:
                show(out, f"       {line}")
        if not todo and not self.refused:
            doubts = [f"each row is a person ({name})" for name in self._undecided]
            rules = self.source.reading.resolved().features
            lacking = [
                each.feature
                for each in self.found.columns
                if each.role == "outcome" and each.column is None
                if not rules.get(each.feature, ColumnMap()).lacking
            ]
            if lacking and self.found.ignored:
                doubts.append(f"this site has no {' and no '.join(lacking)}")
            if any(NO_VALUE in text for text in self.table.warnings):
                doubts.append("rows without a value are persons")
            warned = [each.feature for each in self.found.columns if each.state == "warning"]
            if warned:
                doubts.append(f"what is said above of {list_names(warned)} is right")
            if n := self.source.reading.count_marked("to do"):
                doubts.append(f"you have done what is marked as to do in the mapping file ({n})")
            if n := self.source.reading.count_marked("uncertain"):
                doubts.append(f"you have looked at what is uncertain in the mapping file ({n})")
            _say(f"Nothing is left to do{' if ' * bool(doubts)}{' and '.join(doubts)}.")
            self._show_next()

    def _show_next(self) -> None:
        """Show the commands that come next."""
        data, first = self.source.given or self.source.data, "next:"
        if not data.startswith(MARK):
            show(out, f"next: fedclust data add {self.body.name} {as_options(self.source)}")
            data, first = f"{MARK}{self.body.name}", "then:"
        if self.asked:
            show(out, f"{first} fedclust review {self.body.name} --data {data} --out review.html")
            labels = "--labels-out labels.csv"
            show(out, f"or:   fedclust participate {self.body.name} --data {data} {labels}")

    def _edits(self) -> Iterator[str]:
        """Yield each edit of the mapping file that is needed; further lines are to be pasted."""
        features = {each.name: each for each in with_outcomes(*_declared(self.body))}
        reading = self.source.reading
        for column in self.found.columns:
            name, says = column.feature, list(column.says)
            if column.unknown_codes:
                # What is beyond the bounds may stay, and codes are said with their counts.
                said = "limited to the bounds", "does not know", "missing = [...]", CODES_ADVICE
                says = [text for text in says if not any(part in text for part in said)]
                how = "missing, values, forms" if column.kind in _NUMBERS else "levels, missing"
                says.append(
                    f"not read: {with_counts(Counter(column.unknown_codes))}; say below "
                    f"[features.{mapping_key(name)}] what each means ({how})"
                )
                if name in features and is_sex(name) and not column.n:
                    says.append(f"ask {self.body.contact or 'the analyst'} what 1 means")
            elif column.state != "refused":
                continue
            elif says == [LACKING] or (says == [NO_COLUMN] and reading.mapping is not None):
                who = self.body.contact or "the analyst"
                says.append(f"if this hospital has none, ask {who} for a session without it")
            yield f"{name}: {'; '.join(says)}"

    def _points_texts(self, *, full: bool) -> Iterator[str]:
        """Yield what the outcomes cost and what is left."""
        table = self.table
        held = [each for each in outcomes_of(self.body.features) if each.name in table.features]
        if table.points_left is not None and (full or table.points_short):
            short = ": points short, so this site would answer no outcomes" * table.points_short
            yield f"{points_asked(held)}; {table.points_left} are left before{short}"
        yield from self.open_points

    def _crowded_texts(self) -> Iterator[str]:
        """Yield which times have too many events in an interval, counted in rows."""
        times = {each.name: each for each in outcomes_of(self.body.features) if each.kind == "time"}
        for column in self.found.columns:
            outcome = times.get(column.feature) if column.role == "outcome" else None
            if outcome is None or not column.n:
                continue
            cells = list(column.levels.values())
            shares = [cells[b] / max(sum(cells[b:]), 1) for b in range(0, len(cells) - 1, 2)]
            if said := crowded_text(outcome, shares):
                yield f"{column.feature}: {said}"

    def _repeated_texts(self) -> Iterator[str]:
        """Yield which ids are in several rows, and whether each can be one person."""
        for name, of in self.repeated.items():
            option = shlex.join(["--person-column", name])
            unused = name in self.found.ignored
            said = f"with {option} " * (self.source.person_column is None) + "each id is one person"
            if (which := self.source.reading.resolved().rows_of_person) != "all":
                said += f", whose {which} row counts"
            if of.differing:
                said = (
                    f"of {of.differing} of them the rows differ in {list_names(of.compared)}: if "
                )
                said += f"these are several persons, {option} would mix them"
            elif unused:
                said = f"each row counts as a person: if each id is one person, give {option}"
            guessed = " looks like an identifier" * (unused and not is_id(name))
            yield f"{name}{guessed}: {repeated_text(of.ids, of.rows)}; {said}"

    @property
    def _undecided(self) -> list[str]:
        """The columns whose repeated ids may each be one person, and count as several."""
        of_persons = (name for name, of in self.repeated.items() if not of.differing)
        return [name for name in of_persons if name in self.found.ignored]

    def _pattern_texts(self) -> Iterator[str]:
        """Yield what is probably no feature, or a fault of whole rows."""
        yield from self._crowded_texts()
        if self.found.far_out is not None:
            yield _far_text(self.found.far_out)
        yield from map(_absence_text, self.found.absences)
        rare = [
            f"{each.feature} = {level}"
            for each in self.found.columns
            if each.role == "feature"
            for level, count in each.levels.items()
            if 0 < count < self.p
        ]
        if rare and self.body.policy.protection != "none":
            yield (
                f"fewer than {self.p} rows have {list_names(rare)}: groups of {self.p} hardly show "
                "a trait that rare. Ask the analyst for an outcome"
            )


def examine(
    body: SessionCreate,
    rows: SourceRows,
    form_table: Callable[[int], _Table],
) -> RowCheck:
    """Match rows with a definition's features, then read them as participating would.

    ``form_table`` gets the least group size; DataError or DisclosureError if taking part would be
    refused.
    """
    source = rows.source
    text = [name for name in (source.person_column, source.id_column) if name is not None]
    own = rows.given.get("min_group_size"), read_settings(state_directory()).min_group_size
    p = max(body.policy.min_group_size, *(each or 0 for each in own))
    try:
        with rows.line:
            lacking = body.policy.missing == "mask"
            features, outcomes = _declared(body)
            found = profile(rows.data, features, text=text, lacking=lacking, outcomes=outcomes)
            made = {each.name for each in features if isinstance(each, TrajectoryColumn)}
            columns = tuple(
                each if each.feature in made else _with_codes(each, rows.data, found.rows)
                for each in found.columns
            )
            found = dataclasses.replace(found, columns=columns)
            repeated = _repeated_ids(rows.data, text, found)
    except DataError as error:
        nothing = SourceProfile(error.source, 0, 0, (), (), (), error)
        return RowCheck(body, nothing, p, NoTable(0), read=False)
    usable = found.complete_rows if body.policy.missing == "drop" else found.rows
    table: _Table = NoTable(usable)
    if found.refused is None:
        # A profile does not check everything.
        try:
            with rows.line, warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # they are shown with the columns
                table = form_table(p)
        except (DataError, DisclosureError) as error:
            found = dataclasses.replace(found, refused=error)
    if found.refused is None and table.persons < p:
        found = dataclasses.replace(found, refused=_too_few(body, found, table.persons, p))
    if found.refused is not None:
        of = getattr(found.refused, "column", None)
        marked = (
            each if each.role == "outcome" else _mark_refused(each, of, p) for each in found.columns
        )
        found = dataclasses.replace(found, columns=tuple(marked))
    return RowCheck(
        *(body, found, p, table),
        repeated=repeated,
        source=source,
    )


def as_options(source: DataSource) -> str:
    """Return the options of a command that reads these rows."""
    given = source.reading.model_dump(exclude_defaults=True)
    of_rows = source.model_dump(include={"id_column", "person_column", "id_map"}, exclude_none=True)
    sentinels = given.pop("sentinels", {})
    words = ["--data", source.given or source.data]
    for name, value in (of_rows | given).items():
        values = [",".join(value)] if name == "columns" else value
        for each in values if isinstance(values, list | tuple) else [values]:
            words += [f"--{name.replace('_', '-')}", *([] if each is True else [str(each)])]
    for name, numbers in sentinels.items():
        words += [word for number in numbers for word in ("--sentinel", f"{name}={number:.15g}")]
    here = f"{Path.cwd()}{os.sep}"
    return shlex.join([word.removeprefix(here) for word in words])


def _declared(body: SessionCreate) -> tuple[tuple[Feature, ...], tuple[Outcome, ...]]:
    return tuple(clustered(body.features)), tuple(outcomes_of(body.features))


def _with_codes(column: ColumnProfile, data: Dataset, n_rows: int) -> ColumnProfile:
    """Count what no mapping reads of a column: codes of yes/no, and texts in numbers."""
    refused = column.state == "refused" and column.kind in _NUMBERS
    asked = refused or (column.kind == "binary" and (column.state == "refused" or column.unknown))
    if not asked or column.column is None:
        return column
    file = data.options.resolved()
    reader = open_reader(data, file)
    table = CountedTable(reader.header, {}, file, reader.textual)
    table.read(reader, [column.column])
    cells = [*map(str, table.given(column.column).elements())]
    codes = find_texts(cells, file, column.feature)
    if column.kind == "binary":
        own = file.features.get(column.feature, ColumnMap())
        read = {*MISSING, *map(str.casefold, (*own.levels, *own.missing))}
        codes = Counter(code for code in map(canonical_code, cells) if code.casefold() not in read)
        others = {code for code in codes if code.isdecimal() and not looks_missing(code)}
        # Of 1 and 2 the 1 may mean no.
        if "0" in codes or others <= {"1"}:
            codes = Counter({code: n for code, n in codes.items() if code not in ("0", "1")})
    asked_share = codes.total() / n_rows
    missing = max(0.0, 1.0 - column.present - asked_share)
    return dataclasses.replace(
        column,
        unknown=codes.total(),
        unknown_codes=dict(codes),
        missing=missing,
        present=min(column.present, 1.0 - missing - asked_share),
    )


def _mark_refused(column: ColumnProfile, refused: str | None, p: int) -> ColumnProfile:
    """Mark the column for which taking part was refused, and one with many unknown codes.

    The refusal names one column, and groups release a code that so many rows have.
    """
    wrong = column.column is not None and (column.column == refused or column.unknown >= p)
    return dataclasses.replace(column, state="refused") if wrong else column


def _repeated_ids(
    data: Dataset, named: Sequence[str], found: SourceProfile
) -> dict[str, RepeatedIds]:
    """Count repeated ids in named columns, else in those that names or values say to be ids."""
    columns = (*found.ignored, *(each.column for each in found.columns if each.role == "feature"))
    rules = data.options.resolved().features
    mapped = {each.column or name: each.levels for name, each in rules.items()}
    shared = tuple(dict.fromkeys(each for each in columns if each and never_changes(each)))
    repeated = {}
    of = {name: read_text_column(data, name) for name in named}
    for name, ids in (of or likely_ids(data, found.ignored)).items():
        n_ids, n_rows = count_repeated(filter(None, ids))
        if not n_ids:
            continue
        differing = set[str]()
        for column in shared:
            cells, values = read_text_column(data, column), dict[str, str]()
            # The mapping says what codes mean, or their words do.
            meanings = meanings_of(set(cells), column) | mapped.get(column, {})
            for each, cell in zip(ids, cells, strict=True):
                value = _as_date(cell) if meanings[cell] is None else str(meanings[cell])
                there = each and cell and not looks_missing(cell)
                if there and values.setdefault(each, value) != value:
                    differing.add(each)
        repeated[name] = RepeatedIds(n_ids, n_rows, len(differing), shared)
    return repeated


def _as_date(cell: str) -> str:
    """Return a text in which 1968-07-03 and 3/7/68 are one; words stay."""
    numbers = sorted(int(each) % 100 for each in re.findall(r"\d+", cell.partition(" ")[0]))
    return str(numbers) if len(numbers) > 1 else folded(cell)


def _too_few(body: SessionCreate, found: SourceProfile, usable: int, p: int) -> DataError:
    """Return why the site would send only empty submissions, and what to do."""
    message = f"{usable} persons take part, and the session needs at least {p}: this site would "
    message += "send only empty submissions"
    features = [column for column in found.columns if column.role == "feature"]
    shares = sorted((column.present, column.feature) for column in features)
    lacking = [f"{name} ({1 - share:.1%})" for share, name in shares if share < 1]
    if lacking and body.policy.missing == "drop":
        message += f"; {found.complete_rows} of {found.rows} rows have a value in every column. "
        message += f"Values are missing in {', '.join(lacking)}: complete them, or ask the analyst "
        message += "for missing: impute or for a session without these columns"
    return DataError(found.source, "too-few-persons", message)


def show_recognition(found: Recognition, where: Console) -> None:
    """Show how many persons are known, and in which columns their values differ."""
    show(
        where,
        f"{found.known} persons are known, {found.unknown} are not; {found.missing} known persons "
        "are missing here",
    )
    changed = {name: counts for name, counts in found.differing.items() if counts[0]}
    for name, (differ, of) in changed.items():
        show(where, f"  {name}: {differ} of {of} values differ from those released")


def _say(text: str) -> None:
    """Show a sentence in lines that a terminal holds."""
    show(out, textwrap.fill(text, 98, subsequent_indent="  "))


def _show_table_figures(figures: TableFigures, *, full: bool, brief: bool) -> None:
    """Show how close the protected table is to the persons behind it."""
    smallest, largest = figures.group_sizes
    if not brief:
        show(out, f"table: {figures.n_groups} groups of {smallest} to {largest} persons")
    if full and figures.distance_sd is not None:
        near = f"{figures.distance_sd:.2f} sd of their group's record"
        show(out, f"half of the persons are within {near}")
    if full:
        show_table(["persons by column", *HEADINGS[1:]], figures.by_column(), right=1)
    for warning in figures.warnings():
        _say(warning)


def _column_row(column: ColumnProfile, rule: ColumnMap) -> list[str]:
    """Return what is shown of a feature; ``rule`` is its section of the mapping."""
    unit = f" [{column.unit[:32]}{'...' * (len(column.unit) > 32)}]" if column.unit else ""
    role = " (outcome)" if column.role == "outcome" else ""
    here = (column.column or "-") + conversion_text(rule.factor, rule.offset)
    cells = [column.feature + unit + role, here, column.state.removeprefix("ok")]
    if column.column is None:
        return cells + [""] * 4
    numbers = (column.minimum, column.mean, column.maximum)
    if column.kind == "binary":  # its levels say it
        numbers = (None,) * 3
    shown = ["" if value is None else f"{value:.5g}" for value in numbers]
    is_open = f" + {1 - column.present - column.missing:.1%} open" * (column.unknown > 0)
    return [*cells, f"{column.missing:.1%}{is_open}", *shown]


def _far_text(found: RowsFarOut) -> str:
    lie = "lies" if found.rows == 1 else "lie"
    named = ", ".join(map(str, found.first)) + (", ..." if found.rows > len(found.first) else "")
    return (
        f"{counted(found.rows, 'row')} {lie} more than {FAR:.0f} robust sd from the median in at "
        f"least half of {found.columns} numbers ({found.unit} {named}): look at them. A few rows "
        "with a missing code, another unit or shifted columns can become a cluster of their own"
    )


def _absence_text(found: Absence) -> str:
    names = list_names(found.features)
    have = "has" if len(found.features) == 1 else "have"
    return (
        f"{names} {have} no value just where {found.column} is {found.value}: absence reads like a "
        "yes/no feature, and groups of similar persons show it. Ask the analyst for an outcome if "
        f"{found.column} must not be read off similar persons"
    )


def _column_facts(column: ColumnProfile) -> dict[str, Any]:
    """Return a column as JSON, without codes that may be anything."""
    facts = dataclasses.asdict(column)
    return {k: v for k, v in facts.items() if k not in ("unknown_codes", "mapped")}


def _column_lines(column: ColumnProfile, brief: bool) -> list[str]:
    if column.state == "refused" or (brief and column.column is None):
        return []
    lines = [f"{column.feature}: {text}" for text in column.says]
    if column.levels and column.n and not brief:
        own = {name: [c for c, to in column.mapped.items() if to == name] for name in column.levels}
        shares = (
            f"{name}{f' ({list_names(own[name])})' if own[name] else ''} {count / column.n:.1%}"
            for name, count in column.levels.items()
        )
        lines.append(f"{column.feature}: {', '.join(shares)}")
    return lines
