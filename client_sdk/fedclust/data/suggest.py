"""Suggest a mapping file for a table, by its header and its values. Nothing of it is sent."""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedclust.data.advice import as_toml, setting_lines
from fedclust.data.column_match import (
    CountedTable,
    Match,
    count_read,
    match_by_name,
    match_by_values,
    read_table,
)
from fedclust.data.column_points import ColumnJudge, Section
from fedclust.data.known_names import fits_value
from fedclust.data.mapping import ColumnMap, Dataset, as_dataset
from fedclust.data.outcome_rows import with_outcomes
from fedclust.data.sources import describe, open_reader, read_columns
from fedclust.data.sql import SqlQuery
from fedclust.schema.feature import Declaration, Feature, Trajectory, clustered, outcomes_of
from fedclust.wire.errors import UsageError, writing


class MappingSuggestion:
    """A mapping file that is suggested for a table, of :func:`suggest_mapping`.

    Attributes
    ----------
    source : str
        The table's name in messages.
    table : CountedTable
        What its columns hold; ``table.notes`` say what is uncertain about the file. For the site
        alone, as all texts here.
    sections : dict of str to Section
        How each feature and outcome is read.
    may_lack : frozenset of str
        Columns of outcomes, which a site may lack.
    """

    def __init__(
        self,
        dataset: Dataset,
        table: CountedTable,
        features: Sequence[Feature],
        rows_of: Mapping[str, Trajectory],
    ) -> None:
        self.source, self.table = describe(dataset.source), table
        self.sections: dict[str, Section] = {}
        self.ids: tuple[str | None, ...] = ()
        self.may_lack: frozenset[str] = frozenset()
        self._dataset, self._features = dataset, features
        #: The trajectories with a row for each value.
        self._rows_of = rows_of

    @property
    def has_rows_of_values(self) -> bool:
        """Whether a trajectory has a row for each value, so that it names the persons' column."""
        return bool(self._rows_of)

    def set_ids(self, *names: str | None) -> None:
        """Say which columns name rows or persons, and are no feature."""
        self.ids = names
        for name in names:
            if not self._rows_of:  # which have the persons' column
                self.table.columns.pop(name or "", None)

    def guess(self) -> None:
        """Guess the column of each feature."""
        matched = self.match_names()
        others = [each for each in self._features if each.name not in self._rows_of]
        match_by_values(others, matched, self.table)
        proposed = {name: match.column for name, match in matched.items() if match}
        for feature in self._features:
            used = {column for name, column in proposed.items() if name != feature.name}
            self.choose(feature, matched[feature.name], used)

    def match_names(self) -> dict[str, Match | None]:
        """Return the column of each feature by its name."""
        matched = match_by_name(self._features, self.table)
        for name in self._rows_of:
            taken = {match.column for match in matched.values() if match}
            free = [each for each in self.table.columns if fits_value(each) and each not in taken]
            matched[name] = matched[name] or (Match(free[0], 1) if free else None)
        return matched

    def has_column(self, name: str) -> bool:
        """Return whether the table has a column, and read it if a wide table's was not read yet."""
        if name in self.table.header and name not in self.table.columns:
            self.table.read(open_reader(self._dataset, self.table.written), [name])
        return name in self.table.columns

    def judge_decimal_mark(self) -> None:
        """Guess the decimal mark by the columns that are chosen, and judge each again."""
        names = [each.match.column for each in self.sections.values() if each.match]
        if self.table.textual and self._dataset.options.decimal is None and names:
            self.table.set_decimal([self.table.columns[name] for name in names])
        self.judge_again()

    def judge_again(self) -> None:
        """Judge each column that is chosen again, as after a change of how the file is written."""
        columns = {name: of.match.column for name, of in self.sections.items() if of.match}
        for name in columns:
            used = [column for other, column in columns.items() if other != name]
            self.choose(self.sections[name].feature, self.sections[name].match, used)

    def choose(self, feature: Feature, match: Match | None, used: Collection[str] = ()) -> None:
        """Judge how a column is read as a feature; ``used`` are the columns of other features."""
        of = self._rows_of.get(feature.name)
        self.sections[feature.name] = ColumnJudge(self.table).section(feature, match, of, used)

    @property
    def columns(self) -> dict[str, str | None]:
        """The column of each feature and outcome; None without one, or if it is only proposed."""
        return {name: each.settings.get("column") for name, each in self.sections.items()}

    @property
    def unused(self) -> tuple[str, ...]:
        """The table's other columns."""
        settings = [each.settings for each in self.sections.values()]
        used = {of.get(place) for of in settings for place in ("column", "person", "time")}
        used |= {*self.ids}
        return tuple(name for name in self.table.header if name and name not in used)

    @property
    def person(self) -> str | None:
        """The guessed column of persons, if a trajectory has a row for each value."""
        found = [each.settings.get("person") for each in self.sections.values()]
        return next((name for name in found if name is not None), None)

    @property
    def still_open(self) -> tuple[str, ...]:
        """What is to do or uncertain, as the file marks it."""
        marked = (
            f"{name}: {point.why}" for name, of in self.sections.items() for point in of.marked
        )
        return (*self.table.notes, *marked)

    @property
    def text(self) -> str:
        """The file. Its comments hold codes and counts of rows: they are for the site alone."""
        name = as_toml(self.source)
        lines = [f"# How fedclust reads {name}."]
        if self.still_open:
            lines = [
                f"# How fedclust would read {name}. Change what is marked as to do, and look at",
                "# what is marked as uncertain; the marks may stay. To accept a proposed line,",
                "# delete the # before it.",
            ]
        lines.append("# Counts are of rows: delete the comments before you give this file away.")
        lines += [f"# uncertain: {note}" for note in self.table.notes]
        lines += setting_lines(
            self.table.written.model_dump(exclude_defaults=True, exclude={"features"})
        )
        if self.unused:
            lines.append("# columns that are not used:")
            lines += [f"#   {as_toml(name)}: {self.contents(name)}" for name in self.unused]
        lines.append("")
        lines += [line for each in self.sections.values() for line in each.lines()]
        return "\n".join(lines) + "\n"

    def contents(self, name: str) -> str:
        """Return what a column holds, in a few words; "" if it was not read."""
        # Of a wide table not all columns are read.
        return self.table.contents(name) if name in self.table.columns else ""

    def range_text(self, section: Section) -> str:
        """Return the least and the largest number of a feature's column, as its section reads it.

        In the unit of the column, with the share of missing values.
        """
        given, names = section.settings, ("values", "forms", "missing", "sentinels")
        cells = self.table.columns.get(given.get("column", ""), Counter())
        said = json.dumps({name: given[name] for name in names if name in given})
        own = ColumnMap.model_validate_json(said)
        found, _ = count_read(cells, self.table.written, own, self.table.textual)
        if not found:
            return ""
        missing = 1 - sum(n for _, n in found) / cells.total()
        values = [value for value, _ in found]
        gone = f", {missing:.0%} missing" if missing else ""
        return f"{min(values):.6g} to {max(values):.6g}{gone}"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; UsageError if one of this name exists, or it cannot be written."""
        refuse_existing(path)
        with (
            writing(path),
            open(path, "x", encoding="utf-8", newline="\n", opener=_private) as file,
        ):
            file.write(self.text)


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Raise UsageError if a mapping file of this name exists."""
    if Path(path).exists():
        raise UsageError(
            f"{path} exists: use it (--mapping, mapping=), delete it to begin again, or give "
            "another name"
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def suggest_mapping(
    declared: Sequence[Declaration], source: Any, ids: Collection[str | None] = ()
) -> MappingSuggestion:
    """Guess which column of a table is which feature, and how it is read.

    Parameters
    ----------
    declared : sequence of Feature, Trajectory or Outcome
        The ``features`` of a session's definition.
    source : Source
        A table whose columns have names. Options of a :class:`Dataset` are kept.
    ids : collection of str
        Columns that name rows or persons, and are no feature.

    Returns
    -------
    MappingSuggestion
        What is uncertain is marked, also each missing code that is taken.

    Raises
    ------
    DataError
        The table cannot be read.
    UsageError
        The data set has a mapping, or is an array, whose columns have no names.
    """
    dataset = as_dataset(source)
    if dataset.options.mapping is not None:
        raise UsageError("a mapping is suggested for a table without one: leave out the mapping")
    named = isinstance(dataset.source, str | os.PathLike | SqlQuery)
    if not (named or hasattr(dataset.source, "columns")):
        raise UsageError("a mapping is suggested for a table whose columns have names")
    trajectories = [each for each in declared if isinstance(each, Trajectory)]
    every = [*clustered(declared), *map(_as_number, trajectories)]
    table = read_table(dataset, with_outcomes(every, outcomes_of(declared)), bool(trajectories))
    rows_of = {each.name: each for each in trajectories if not table.has_columns_of(each)}
    given = [_as_number(rows_of[e.name]) if e.name in rows_of else e for e in declared]
    own = clustered(given)
    features = with_outcomes(own, outcomes_of(declared))
    found = MappingSuggestion(dataset, table, features, rows_of)
    found.may_lack = frozenset(each.name for each in features[len(own) :])
    found.set_ids(*ids)
    matched = [match.column for match in found.match_names().values() if match]
    if not matched:
        # The header may be a title or a row.
        read_columns(Dataset.of(dataset.source, table.options(dataset)))
    if table.textual and dataset.options.decimal is None:
        columns = [table.columns[name] for name in matched]
        table.set_decimal(columns or table.columns.values())
    found.guess()
    return found


def _as_number(of: Trajectory) -> Feature:
    """Return the values of a trajectory as a feature."""
    return Feature(name=of.name, unit=of.unit, lower=of.lower, upper=of.upper)
