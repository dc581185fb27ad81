"""Read the columns that a session needs from a source, a block of rows at a time."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.data.advice import CODES_ADVICE, on_one_line, too_few_text
from fedclust.data.chunks import Chunk, Origin
from fedclust.data.decode import ColumnRule, Decoder, Wrong
from fedclust.data.mapping import (
    ColumnMap,
    ColumnsFile,
    Dataset,
    as_dataset,
    canonical_code,
    check_mapping,
)
from fedclust.data.outcome_rows import CellArray, cells_of_rows, with_outcomes
from fedclust.data.readings import FeatureReading, values_of_rows
from fedclust.data.sources import describe, open_reader
from fedclust.data.trajectories import (
    LongTrajectory,
    TrajectoryReader,
    long_trajectories,
    mapped_columns,
)
from fedclust.schema.encoding import encode_features
from fedclust.schema.feature import Feature, Outcome
from fedclust.wire.errors import DataError

#: Default number of rows in a block.
BLOCK: Final = 65_536


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a source.

    Attributes
    ----------
    start : int
        Index of the first row.
    values : tuple of (n,) float64
        For each column that is read the site's own values: numbers in the unit here, or indices of
        the decoder's codes; NaN where missing.
    text : dict of str to list of str
        The columns that are kept as text.
    numbers : sequence of int or None
        The line of each row in a text file.
    """

    start: int
    values: tuple[NDArray[np.float64], ...] = field(repr=False)
    text: dict[str, list[str]] = field(default_factory=dict, repr=False)
    numbers: Sequence[int] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.values[0])


@dataclass
class RowFault:
    """A rule that ``count`` rows of one column break.

    ``first`` is the number of the first such line or row, in the file ``part`` if the source is
    several files; ``index`` is the row's index in the whole source.
    """

    column: str
    rule: str
    message: str
    first: int
    index: int
    count: int = 0
    part: str | None = None

    def error(self, origin: Origin, others: int = 0) -> DataError:
        """Return the error; ``others`` is the number of further columns with faults."""
        rows = "1 row" if self.count == 1 else f"{self.count} rows, of which this is the first"
        what, mark, advice = self.message.partition("; ")
        message = f"{what}: {rows}{mark}{on_one_line(advice)}"
        if others:
            message += f"; {others} more column{'s'[: others > 1]} with faults: see fedclust check"
        return DataError(
            self.part or origin.source,
            self.rule,
            message,
            column=self.column,
            row=self.first,
            count=self.count,
            unit=origin.unit,
        )


class RowSource:
    """An open source: the columns of a session's features and outcomes, and its rows.

    Parameters
    ----------
    source : Source or Dataset
    features : sequence of Feature
        That persons are clustered by.
    text : sequence of str
        Columns, by their names here, that are kept as text; never features.
    lacking : bool
        Whether the source may lack features (``missing: mask``); it may always lack outcomes.
    codes : mapping of str to (sequence of str or None), optional
        By column here, the codes with which it was read before, None for numbers. Other codes are
        missing values. Columns of outcomes alone are read as if for the first time.
    outcomes : sequence of Outcome
        To be read too.
    wrong : dict of str to DataError, optional
        Gets the faults of the mapping by feature. Those features are then read as lacking.

    Attributes
    ----------
    features : tuple of Feature
        What is read: the given features, then the further columns of outcomes.
    n_features : int
        How many of them are given features.
    readings : tuple of FeatureReading
        How each feature is derived from its column.
    decoders : dict of str to Decoder
        By feature, if it has a column.
    columns : tuple of str
        The names of ``features`` that have a column.
    local : dict of str to str
        Each feature's column here.
    long : tuple of LongTrajectory
        What is made of several rows of a person.
    min_present : float
        A feature with a smaller share of values counts as lacking.

    Raises
    ------
    DataError
    """

    def __init__(
        self,
        source: Any,
        features: Sequence[Feature],
        *,
        text: Sequence[str] = (),
        lacking: bool = False,
        codes: Mapping[str, Sequence[str] | None] | None = None,
        outcomes: Sequence[Outcome] = (),
        wrong: dict[str, DataError] | None = None,
    ) -> None:
        self.n_features, self.outcomes = len(features), tuple(outcomes)
        self._lacking = lacking
        features = with_outcomes(features, outcomes)
        dataset = as_dataset(source)
        options, written = dataset.options, dataset.options.resolved()
        long = long_trajectories(written, features, options.mapping_name)
        rules = mapped_columns(written, features, long)
        self.file = written.model_copy(update={"features": rules})
        self._on_read = dataset.on_read
        self.features, self._text = features, tuple(dict.fromkeys(text))
        self.min_present = self.file.min_present
        self._place = {feature.name: place for place, feature in enumerate(features)}
        names = [feature.name for feature in features]
        unknown = sorted(set(options.sentinels) - {*names, *(each.of.name for each in long)})
        if unknown:
            message = f"sentinels are given for {unknown[0]!r}: the session has no such feature"
            raise DataError(describe(dataset.source), "mapping", message)
        check_mapping(self.file, features, options.mapping_name, wrong)
        lacks = dict.fromkeys(wrong or (), ColumnMap(lacking=True))
        self.rules = {name: self.file.features.get(name, ColumnMap()) for name in names} | lacks
        self.local = {name: self.rules[name].column or name for name in names}
        origin = Origin(describe(dataset.source))
        for name in self._text:
            if name in names or name in self.local.values():
                message = "it identifies rows or persons and may not be a feature of the session"
                raise origin.fault("reserved-column", message, column=name)
        self.long = long
        made = {each.local(column) for each in long for column in each.columns}
        sources = [name for each in long for name in each.sources]
        wanted = [name for name in (*self.local.values(), *self._text) if name not in made]
        wanted = [*dict.fromkeys((*wanted, *sources))]
        self.reader = open_reader(dataset, self.file, names, wanted, self._text)
        if long:
            read = functools.partial(_read_trajectory, dataset, written)
            self.reader = TrajectoryReader(self.reader, long, read, lacking)
        try:
            self.columns = self._find_columns()
        except DataError:
            self.reader.close()
            raise
        self.readings = tuple(
            FeatureReading.of(
                feature,
                self.rules[feature.name],
                self.local[feature.name] if feature.name in self.columns else None,
            )
            for feature in features
        )
        self.decoders = {
            reading.feature.name: self._decoder(
                reading, (codes or {}) if place < self.n_features else {}
            )
            for place, reading in enumerate(self.readings)
            if reading.column is not None
        }
        self._faults: dict[tuple[int, Wrong], RowFault] = {}

    @property
    def used(self) -> set[str]:
        """The columns here that features are made of."""
        found = {self.local[name] for name in self.columns}
        return found.union(*(each.sources for each in self.long)) if found else found

    @property
    def unused(self) -> tuple[str, ...]:
        """The columns that nothing is made of; none if no feature was found."""
        # A header in which no feature is found may be a row, and its names values.
        used = self.used.union(self._text) if self.used else self.reader.header
        return tuple(name for name in self.reader.header if name and name not in used)

    def opposite_texts(self, name: str) -> Iterator[str]:
        """Yield what to say of a yes/no column whose name may say the opposite of a feature.

        "Survived" read as a death would give wrong shares without any other sign. Levels in a
        mapping file decide.
        """
        column, kinds = self.local[name], {e.feature.name: e.feature.kind for e in self.readings}
        if kinds[name] == "binary" and name != column and not self.rules[name].levels:
            from fedclust.data.known_names import is_contrary  # few tables need it

            if is_contrary(name, column):
                yield (
                    f"{column!r} may say the opposite of {name!r}: say in the mapping file "
                    "(levels) what its codes mean"
                )

    def said_of(self, feature: str) -> str:
        """Return the name by which a mapping file calls a feature: a trajectory for its columns."""
        made = {column.name: each.of.name for each in self.long for column in each.columns}
        return made.get(feature, feature)

    @property
    def trajectory_texts(self) -> tuple[str, ...]:
        """How many values persons have of each trajectory, once the rows were read."""
        return self.reader.texts if isinstance(self.reader, TrajectoryReader) else ()

    @property
    def origin(self) -> Origin:
        """Where the rows come from, for messages."""
        return self.reader.origin

    @property
    def faults(self) -> list[RowFault]:
        """The faults of the last pass, by feature, then by row."""
        ordered = sorted(self._faults.items(), key=lambda each: (each[0][0], each[1].index))
        return [fault for _, fault in ordered]

    def scan(self, rows: int = BLOCK) -> Iterator[RowBlock]:
        """Yield all rows in blocks of ``rows`` or more, but the last; then read ``faults``.

        Small row groups of Parquet and partitions of Dask are joined, so no block has twice as
        many: what is judged by the first block does not follow from how a source is stored.
        """
        self._faults = {}
        done, waiting = 0, list[RowBlock]()
        self._report(0, self.reader.n_rows)
        wanted = [self.local[name] for name in self.columns]
        for chunk in self.reader.chunks(wanted, self._text, rows):
            if chunk.n:
                waiting.append(self._block(chunk, done))
                done += chunk.n
                self._report(done, self.reader.n_rows)
                if done - waiting[0].start >= rows:
                    yield _joined(waiting)
                    waiting = []
        if waiting:
            yield _joined(waiting)
        if not done:
            below = " below the header" if self.reader.origin.unit == "line" else ""
            raise self.origin.fault("no-rows", f"there are no rows{below}")
        self._report(done, done)

    def _report(self, done: int, n_rows: int | None) -> None:
        if self._on_read is not None:
            self._on_read(self.origin.source, done, n_rows)

    def refuse(self) -> None:
        """Raise the first fault, in the session's order of features, if there is one."""
        found = self.faults
        if found:
            others = len({fault.column for fault in found}) - 1
            raise found[0].error(self.origin, others)

    def held(
        self, shares: NDArray[np.float64], least: float, what: str = "of its rows have a value"
    ) -> tuple[str, ...]:
        """Return the features that the site has, and the outcomes that it answers.

        Parameters
        ----------
        shares : (n features,) float64
            Of each feature, of ``what``.
        least : float
            With a smaller share the site does not have a feature.
        what : str
            For messages.

        Raises
        ------
        DataError
            If it has none; or, in a source that may lack none, if a share is below ``least``.
        """
        named = zip(self.features[: self.n_features], shares.tolist(), strict=True)
        found = []
        for feature, share in named:
            if not self._lacking and share < least:
                message = too_few_text(f"{share:.1%} {what}", least)
                column = self.local[feature.name]
                raise self.origin.fault("too-few-present", message, column=column)
            if not self._lacking or (share > 0 and share >= least):
                found.append(feature.name)
        if not found:
            message = "it has none of the session's features"
            if not self.own_columns:
                message += "; docs/data.md says how columns of other names are found"
            raise self.origin.fault("no-features", message)
        return self.declared(found)

    def declared(self, held: Sequence[str]) -> tuple[str, ...]:
        """Return the features that the site has, and the outcomes that it answers.

        An outcome that is a feature too is answered where the site has the feature, because joining
        names it once.
        """
        names = {feature.name for feature in self.features[: self.n_features]}
        answered = (name for name in self.answered if name not in names or name in held)
        return tuple(dict.fromkeys((*held, *answered)))

    @property
    def answered(self) -> dict[str, tuple[str, ...]]:
        """By outcome the columns here that it is read from, if there are all of them."""
        return {
            outcome.name: tuple(self.local[column.name] for column in outcome.columns)
            for outcome in self.outcomes
            if all(column.name in self.columns for column in outcome.columns)
        }

    @property
    def own_columns(self) -> tuple[str, ...]:
        """The features that have a column, without outcomes."""
        names = [feature.name for feature in self.features[: self.n_features]]
        return tuple(name for name in names if name in self.columns)

    def coded(self, feature: str) -> Sequence[str] | None:
        """Return the codes of a feature's column so far; None for numbers."""
        decoder = self.decoders.get(feature)
        return decoder.codes if decoder is not None and decoder.rule.coded else None

    def session_values(self, block: RowBlock) -> tuple[NDArray[np.float64], ...]:
        """Return each column's values (n,) in the session's units and levels.

        NaN where missing or unknown; of a categorical feature the index of the level. Values
        outside the bounds are not changed.
        """
        return tuple(self._converted(block, place) for place in range(len(self.readings)))

    def _converted(self, block: RowBlock, place: int) -> NDArray[np.float64]:
        reading = self.readings[place]
        return values_of_rows(reading, block.values[place], self.coded(reading.feature.name))

    def matrix(self, block: RowBlock) -> NDArray[np.float64]:
        """Return a block's rows in the session's columns (n, d), NaN where missing."""
        values = [self._converted(block, place) for place in range(self.n_features)]
        return matrix_of(self.features[: self.n_features], values)

    def cells(self, block: RowBlock) -> CellArray:
        """Return the cell of each row of a block in each outcome (n, q)."""
        found = np.empty((len(block), len(self.outcomes)), dtype=np.int8)
        for j, outcome in enumerate(self.outcomes):
            values = [
                self._converted(block, self._place[column.name]) for column in outcome.columns
            ]
            found[:, j] = cells_of_rows(outcome, *values)
        return found

    def _decoder(
        self, reading: FeatureReading, codes: Mapping[str, Sequence[str] | None]
    ) -> Decoder:
        feature, column = reading.feature, str(reading.column)
        own = self.rules[feature.name]
        # The code of 1 comes after that of 0: yes/no columns are compared by these.
        mapped = sorted(own.levels, key=lambda code: own.levels[code] == 1)
        declared = [canonical_code(code) for code in (*mapped, *(feature.levels or ()))]
        pinned = column in codes
        known = codes.get(column) if pinned else declared
        rule = ColumnRule(
            coded=known is not None
            if pinned
            else feature.kind == "categorical" or bool(own.levels),
            markers=frozenset(text.strip() for text in (*self.file.missing, *own.missing)),
            sentinels=frozenset(own.sentinels),
            decimal_mark=self.file.decimal,
            values={text.strip(): number for text, number in own.values.items()},
            forms=own.forms,
            thousands=self.file.thousands,
            rows_of_person=self.file.rows_of_person,
        )
        # How a column was read first does not change: then codes are no way out.
        advice = CODES_ADVICE if feature.kind == "binary" and not pinned else ""
        return Decoder(
            rule,
            textual=self.reader.textual,
            codes=known or (),
            closed=pinned,
            text_advice=advice,
        )

    def _find_columns(self) -> tuple[str, ...]:
        """Return the names that have a column; DataError if a required one is missing."""
        needed = {each.name for each in self.features[: 0 if self._lacking else self.n_features]}
        for outcome in self.outcomes:
            # Joining names a feature that is an outcome too once, so the site answers it.
            if outcome.name in needed:
                needed.update(column.name for column in outcome.columns)
        without = [name for name, rule in self.rules.items() if rule.lacking]
        for name in without:
            if name in needed:
                message = "the mapping says that this site lacks it, and the session needs it"
                raise self.origin.fault("missing-column", message, column=name)
        header = set(self.reader.header)
        there = [
            name
            for name, column in self.local.items()
            if name not in without and (name in needed or column in header)
        ]
        self.origin.columns(self.reader.header, [self.local[n] for n in there], self._text)
        return tuple(there)

    def _block(self, chunk: Chunk, at: int) -> RowBlock:
        values: list[NDArray[np.float64]] = []
        for place, feature in enumerate(self.features):
            if feature.name not in self.columns:
                values.append(np.full(chunk.n, np.nan))
                continue
            column = self.local[feature.name]
            found = self.decoders[feature.name](chunk.cells[column])
            values.append(found.values)
            for wrong, places in found.wrong.items():
                first = int(places[0])
                number = (at if chunk.part is None else chunk.start) + first
                if chunk.numbers is not None:
                    number = chunk.numbers[first]
                fault = self._faults.setdefault(
                    (place, wrong), RowFault(column, *wrong, number, at + first, part=chunk.part)
                )
                fault.count += len(places)
        return RowBlock(at, tuple(values), chunk.text, chunk.numbers)


def _joined(blocks: Sequence[RowBlock]) -> RowBlock:
    if len(blocks) == 1:
        return blocks[0]
    values = tuple(map(np.concatenate, zip(*(each.values for each in blocks), strict=True)))
    text = {name: [v for each in blocks for v in each.text[name]] for name in blocks[0].text}
    numbers = [number for each in blocks for number in each.numbers or ()]
    return RowBlock(blocks[0].start, values, text, numbers or None)


def _read_trajectory(
    dataset: Dataset, written: ColumnsFile, each: LongTrajectory
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], Sequence[str]]]:
    """Yield values in the session's unit, times as they are here, and persons, by blocks."""
    _, time, person = each.sources
    features = (Feature(name=each.of.name, unit=each.of.unit), Feature(name=f"time {time}"))
    rule = each.rule.model_copy(update={"person": None, "time": None, "time_factor": 1.0})
    rules = {features[0].name: rule, features[1].name: ColumnMap(column=time)}
    mapping = written.model_copy(update={"features": rules}).model_dump(mode="json")
    options = dataset.options.model_copy(update={"mapping": mapping, "sentinels": {}})
    rows = RowSource(Dataset.of(dataset.source, options), features, text=(person,))
    for block in rows.scan():
        values, times = rows.session_values(block)
        yield values, times, block.text[person]
    rows.refuse()


def matrix_of(
    features: Sequence[Feature], values: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return values as :meth:`RowSource.session_values` has them as the matrix (n, d) to label."""
    # Values below the bound may have no logarithm.
    clipped = [
        own if feature.transform == "none" else np.maximum(own, feature.lower or 0.0)
        for feature, own in zip(features, values, strict=True)
    ]
    return encode_features(features, clipped)
