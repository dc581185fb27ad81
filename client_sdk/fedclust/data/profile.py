"""What ``fedclust check`` shows: how a source matches a session, and what its columns contain.

All of it is computed in one pass over the rows. Nothing here is sent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.data.advice import outside_text, sentinel_advice
from fedclust.data.known_names import conversion, is_unit, other_units, same_measure, split_unit
from fedclust.data.mapping import ColumnMap, level_name
from fedclust.data.readings import limits
from fedclust.data.row_source import RowBlock, RowFault, RowSource, matrix_of
from fedclust.data.row_warnings import IdDetector, fitting_units, unknown_codes
from fedclust.schema.display import counted
from fedclust.schema.feature import Feature, Outcome
from fedclust.wire.errors import DataError, DisclosureError

State = Literal["ok", "warning", "lacking", "refused"]

#: If this share of the rows is outside the bounds, the unit is probably wrong, else some values.
_MOSTLY: Final = 0.9
#: At most about this many numbers outside the bounds are distinguished.
_MOST_OUTSIDE: Final = 10_000
#: Why a feature is refused that has no column.
NO_COLUMN: Final = "there is no column for it here"
LACKING: Final = "the mapping says that this site lacks it, and the session needs it"


@dataclass(frozen=True)
class ColumnProfile:
    """One of the session's features or outcomes at this site.

    Attributes
    ----------
    feature, kind, unit : str
    role : {"feature", "outcome"}
    column : str or None
        Its column here, of a time two; None if one is missing.
    state : {"ok", "warning", "lacking", "refused"}
        ``lacking``: the site would take part without it; ``refused``: it could not.
    present : float
        Share of the rows that have a value.
    n, below, above : int
        Rows with a value, and those of them below and above the session's bounds.
    unknown : int
        Rows with a code that the session does not know. They are neither missing nor counted in
        ``n``.
    missing : float
        Share of the rows that have no value.
    minimum, maximum, mean, sd : float or None
        In the session's unit, ddof 0; None without a value, and for levels.
    levels : dict of str to int
        Rows with each level; ``0`` and ``1`` of a binary feature. Of an outcome rows in each cell
        but that for no value. Never sent.
    unknown_codes : dict of str to int
        Rows with each code that the session does not know: for this site's screen alone.
    mapped : dict of str to str
        The level of each code in the mapping file: for this site's screen alone.
    says : tuple of str
        What is wrong or probably a mistake.
    """

    feature: str
    kind: str
    unit: str
    role: Literal["feature", "outcome"]
    column: str | None
    state: State
    present: float
    n: int
    below: int = 0
    above: int = 0
    unknown: int = 0
    missing: float = 0.0
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    sd: float | None = None
    levels: dict[str, int] = field(default_factory=dict)
    unknown_codes: dict[str, int] = field(default_factory=dict, repr=False)
    mapped: dict[str, str] = field(default_factory=dict, repr=False)
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceProfile:
    """A source compared with a session.

    ``complete_rows`` counts the rows without a missing value, ``ignored`` are the source's columns
    that are neither a feature nor an identifier. ``refused`` is why the site could not take part,
    else None. ``far_out`` are rows that are far out in many columns, and ``absences``
    features whose absence equals a yes/no column. ``trajectories`` says how many values
    persons have.
    """

    source: str
    rows: int
    complete_rows: int
    columns: tuple[ColumnProfile, ...]
    ignored: tuple[str, ...]
    unused: tuple[str, ...]
    refused: DataError | DisclosureError | None
    far_out: RowsFarOut | None = None
    absences: tuple[Absence, ...] = ()
    trajectories: tuple[str, ...] = ()


class _Column:
    """The figures of a column over the rows read so far."""

    def __init__(self, feature: Feature) -> None:
        self.feature = feature
        self.n = self.below = self.above = 0
        #: Codes that the session does not know.
        self.unknown: Counter[str] = Counter()
        self.mean = self.m2 = 0.0
        self.minimum, self.maximum = math.inf, -math.inf
        self.levels = np.zeros(len(feature.levels or ("0", "1")), dtype=np.int64)
        self.fits: Counter[str] = Counter()
        self.units = other_units(feature.name, feature.unit) if feature.unit else {}
        self.ids = IdDetector()
        #: Numbers outside the bounds, in the unit here.
        self.outside: Counter[float] = Counter()

    @property
    def sentinel(self) -> str:
        """The number that most values outside the bounds have; "NUMBER" if they differ."""
        value, count = max(self.outside.items(), key=lambda each: each[1], default=(0.0, 0))
        return f"{value:.15g}" if 2 * count >= self.below + self.above else "NUMBER"

    @property
    def figures(self) -> dict[str, Any]:
        """Least and greatest value, mean and standard deviation; there is at least one value."""
        found = {"minimum": self.minimum, "maximum": self.maximum, "mean": self.mean}
        return {**found, "sd": math.sqrt(self.m2 / self.n)}

    def add(self, own: NDArray[Any], values: NDArray[Any]) -> None:
        """Add rows, given the column's own values and the session's."""
        given = values[~np.isnan(values)]
        lower, upper = limits(self.feature)
        if self.feature.kind != "numeric":
            self.levels += np.bincount(given.astype(np.int64), minlength=len(self.levels))
        else:
            self.ids.add(values)
            if len(self.outside) < _MOST_OUTSIDE:
                self.outside.update(own[(values < lower) | (values > upper)].tolist())
        if not len(given):
            return
        n, mean = len(given), given.mean()
        # Merging of means and squares (Chan, Golub and LeVeque 1979).
        gap, total = mean - self.mean, self.n + n
        self.m2 += float(((given - mean) ** 2).sum() + gap**2 * self.n * n / total)
        self.mean += float(gap) * n / total
        self.n = total
        self.minimum = min(self.minimum, float(given.min()))
        self.maximum = max(self.maximum, float(given.max()))
        self.below += int((given < lower).sum())
        self.above += int((given > upper).sum())
        if math.isfinite(lower) or math.isfinite(upper):
            for unit, (factor, offset) in self.units.items():
                scaled = given * factor + offset
                self.fits[unit] += int(((scaled >= lower) & (scaled <= upper)).sum())


def profile(
    source: Any,
    features: Sequence[Feature],
    *,
    text: Sequence[str] = (),
    lacking: bool = False,
    outcomes: Sequence[Outcome] = (),
) -> SourceProfile:
    """Read a source and compare it with a session's features and outcomes.

    Parameters
    ----------
    source : Source
    features : sequence of Feature
    text : sequence of str
        Columns of identifiers, which are required.
    lacking : bool
        As in :func:`fedclust.data.load`.
    outcomes : sequence of Outcome

    Raises
    ------
    DataError
        The source cannot be read or has no features at all. Faults of its values are in the answer.
    """
    refused: DataError | None = None
    wrong: dict[str, DataError] = {}
    given: dict[str, Any] = {"text": text, "outcomes": outcomes, "wrong": wrong}
    try:
        rows = RowSource(source, features, lacking=lacking, **given)
    except DataError as error:
        if lacking or error.rule != "missing-column":
            raise
        # The other columns can still be examined.
        refused = error
        rows = RowSource(source, features, lacking=True, **given)
    refused = next(iter(wrong.values()), refused)
    far, absent = FarRows(features), AbsenceCounts(rows.features, rows.n_features)
    columns, cells, n, complete = _read_columns(rows, far, absent)
    faults: dict[str, list[RowFault]] = {name: [] for name in rows.local.values()}
    for fault in rows.faults:
        faults[fault.column].append(fault)
    names = [feature.name for feature in features]
    profiles = [
        _column_profile(rows, columns[name], n, faults[rows.local[name]], lacking, wrong.get(name))
        for name in names
    ]
    profiles += [
        _outcome_profile(rows, outcome, columns, counts, faults)
        for outcome, counts in zip(outcomes, cells, strict=True)
    ]
    shares = np.array([columns[name].n / n if n else 0.0 for name in names])
    try:
        if refused is None:
            rows.refuse()
            rows.held(shares, rows.min_present)
    except DataError as error:
        refused = error
    return SourceProfile(
        rows.origin.source,
        n,
        complete,
        tuple(profiles),
        rows.unused,
        tuple(sorted(set(rows.file.features) - set(columns))),
        refused,
        far.found(rows.origin.unit),
        absent.found,
        rows.trajectory_texts,
    )


def _read_columns(
    rows: RowSource, far: FarRows, absent: AbsenceCounts
) -> tuple[dict[str, _Column], list[NDArray[np.int64]], int, int]:
    """Return the figures of each column, and how many rows are in each cell of each outcome.

    And the number of rows, and that of complete rows. ``far`` and ``absent`` see every block.
    """
    columns = {feature.name: _Column(feature) for feature in rows.features}
    cells = [np.zeros(len(outcome.cells), dtype=np.int64) for outcome in rows.outcomes]
    n = n_complete = 0
    for block in rows.scan() if rows.columns else ():
        complete = np.ones(len(block), dtype=np.bool_)
        for counts, own_cells in zip(cells, rows.cells(block).T, strict=True):
            counts += np.bincount(own_cells, minlength=len(counts))
        converted = rows.session_values(block)
        far.add(block, converted[: rows.n_features])
        absent.add(converted)
        for place, (column, reading, own, values) in enumerate(
            zip(columns.values(), rows.readings, block.values, converted, strict=True)
        ):
            column.add(own, values)
            column.unknown += unknown_codes(reading, own, rows.coded(reading.feature.name))
            if place < rows.n_features:
                complete &= ~np.isnan(values)
        n += len(block)
        n_complete += int(complete.sum())
    return columns, cells, n, n_complete


def _column_profile(
    rows: RowSource,
    column: _Column,
    n: int,
    faults: Sequence[RowFault],
    lacking: bool,
    wrong: DataError | None,
) -> ColumnProfile:
    feature = column.feature
    here = rows.local[feature.name] if feature.name in rows.columns else None
    share = column.n / n if n else 0.0
    numbers = feature.kind != "categorical" and column.n > 0
    says = _fault_texts(rows, faults)
    outside = column.below + column.above
    if outside:
        text = outside_text(outside, feature)
        if outside < _MOSTLY * column.n and feature.kind == "numeric":
            said = rows.said_of(feature.name)
            number = column.sentinel if said == feature.name else "NUMBER"
            if number in map("{:.15g}".format, rows.rules[feature.name].values.values()):
                number = "NUMBER"  # it is the number of a text
            text += f" {sentinel_advice(said, number)}"
        says.append(text)
    if column.unknown:
        says.append(_unknown_text(column))
    says += _find_oddities(column, n, bool(faults))
    says += [] if here is None else _unit_texts(feature, here, rows.rules[feature.name])
    says += rows.opposite_texts(feature.name) if here else ()
    state: State = "warning" if says else "ok"
    if here is None:
        state, says = "lacking" if lacking else "refused", [NO_COLUMN]
        if wrong is not None:
            state, says = "refused", [str(wrong)]
        elif rows.rules[feature.name].lacking:
            says = [LACKING]
    elif faults:
        state = "refused"
    elif share < rows.min_present or (lacking and not column.n):
        state = "lacking" if lacking else "refused"
        says.append(f"{share:.1%} of its rows have a value: min_present is {rows.min_present:.1%}")
    names = feature.levels or ("0", "1")
    levels = dict(zip(names, column.levels.tolist(), strict=True))
    return ColumnProfile(
        feature=feature.name,
        kind=feature.kind,
        unit=feature.unit,
        role="feature",
        column=here,
        state=state,
        present=share,
        n=column.n,
        below=column.below,
        above=column.above,
        unknown=column.unknown.total(),
        unknown_codes=dict(column.unknown),
        missing=max(0.0, 1.0 - share - column.unknown.total() / n) if n else 0.0,
        **(column.figures if numbers else {}),
        levels={} if feature.kind == "numeric" else levels,
        mapped={c: level_name(each) for c, each in rows.rules[feature.name].levels.items()},
        says=tuple(says),
    )


def _outcome_profile(
    rows: RowSource,
    outcome: Outcome,
    columns: Mapping[str, _Column],
    cells: NDArray[np.int64],
    faults: Mapping[str, Sequence[RowFault]],
) -> ColumnProfile:
    """Return what there is of an outcome, given the rows in each of its cells (J,)."""
    names = [column.name for column in outcome.columns]
    absent = [rows.local[name] for name in names if name not in rows.columns]
    own = [] if absent else [columns[name] for name in names]
    n, n_rows = int(cells[:-1].sum()), int(cells.sum())
    unknown = sum((column.unknown for column in own), Counter())
    wrong = [fault for name in names for fault in faults[rows.local[name]]]
    says = _fault_texts(rows, wrong)
    for column in own:
        if column.unknown:
            says.append(_unknown_text(column))
    for name in () if absent else names:
        says += rows.opposite_texts(name)
    if n_rows and not n:
        says.append("no row has a value: nobody would be counted in any other cell")
    elif n < n_rows / 2:
        says.append(f"{1 - n / n_rows:.0%} of its values are missing")
    state: State = "refused" if wrong else "warning" if says else "ok"
    if absent:
        state, says = "lacking", [f"no column {', '.join(absent)}: takes part without it"]
    numbers = bool(own and own[0].n) and outcome.kind in ("ordered", "time")
    return ColumnProfile(
        feature=outcome.name,
        kind=outcome.kind,
        unit=outcome.unit,
        role="outcome",
        column=None if absent else ", ".join(rows.local[name] for name in names),
        state=state,
        present=n / n_rows if n_rows else 0.0,
        n=n,
        unknown=unknown.total(),
        unknown_codes=dict(unknown),
        missing=max(0.0, 1.0 - (n + unknown.total()) / n_rows) if n_rows else 0.0,
        **(own[0].figures if numbers else {}),
        levels=dict(zip(outcome.cells[:-1], cells.tolist(), strict=False)),
        says=tuple(says),
    )


def _unknown_text(column: _Column) -> str:
    return f"{counted(column.unknown.total(), 'value')} that the session does not know"


def _fault_texts(rows: RowSource, faults: Sequence[RowFault]) -> list[str]:
    return [
        f"{f'{fault.part}, ' if fault.part else ''}{rows.origin.unit} {fault.first}: "
        f"{fault.message}"
        for fault in faults
    ]


def _unit_texts(feature: Feature, header: str, rule: ColumnMap) -> list[str]:
    """Return that a header says another unit, if the mapping file says none."""
    unit = split_unit(header)[1]
    same = feature.kind != "numeric" or not feature.unit or same_measure(unit, feature.unit)
    if same or rule.unit or rule.to or not is_unit(unit):
        return []
    found = conversion(feature.name, header, unit, feature.unit)
    if found == (1.0, 0.0):
        return []
    text = f"the header says {unit}, and the session's unit is {feature.unit}."
    return [f"{text} {fitting_units(feature, {unit: found} if found else {})}".rstrip()]


def _find_oddities(column: _Column, n: int, wrong: bool) -> list[str]:
    """Return descriptions of what is allowed but probably a mistake."""
    feature, says = column.feature, []
    lower, upper = limits(feature)
    numeric, unit = feature.kind == "numeric", feature.unit or "the unit of the session"
    outside, most = column.below + column.above, max(column.below, column.above)
    if numeric and outside and most >= _MOSTLY * column.n:
        fits = {u: both for u, both in column.units.items() if column.fits[u] >= _MOSTLY * column.n}
        side = "below" if column.below > column.above else "above"
        text = f"{most / column.n:.0%} of its values lie {side} the bounds: is it in {unit}?"
        says.append(f"{text} {fitting_units(feature, fits)}".rstrip())
    low = 0 <= lower < upper < math.inf and column.maximum < lower + (upper - lower) / 20
    if numeric and low and not (outside or wrong) and column.n >= 10:
        where = "in the lowest twentieth of the bounds"
        says.append(f"all its values lie {where}: is it in {unit}?")
    if numeric and column.ids.suspicious:
        says.append(IdDetector.MESSAGE)
    constant = column.minimum == column.maximum if numeric else (column.levels > 0).sum() == 1
    if column.n > 1 and constant and not wrong:
        says.append("all its values are the same")
    coded = column.n + column.unknown.total()
    if coded < n / 2 and not wrong:
        says.append(f"{1 - coded / n:.0%} of its values are missing")
    return says


#: A value so many robust standard deviations from the median is far out. No value of a normal
#: column is, one in 70 of a lognormal one (sd of the logarithm 1), and missing codes and wrong
#: units usually are by hundreds.
FAR: Final = 10.0
#: The robust standard deviation is from the first of these quantiles that differs from its
#: opposite. Fewer than 5 % of wild rows hardly change it, where an ordinary one would follow them.
_TAILS: Final = (0.25, 0.05)
#: So many rows are named.
_NAMED: Final = 5
#: Absence equals a side of a yes/no column if at most this share of the smaller side differs: a
#: few values are missing for another reason. Of columns that do not depend on each other far more.
_DIFFERING: Final = 0.05
#: In fewer rows two columns are often equal by chance.
_LEAST_ROWS: Final = 3


@dataclass(frozen=True)
class RowsFarOut:
    """Rows that are far out in at least half of the numeric features, and at least two.

    Attributes
    ----------
    rows : int
    columns : int
        The numeric features that were compared.
    unit : {"line", "row"}
    first : tuple of int
        The numbers of the first of them.
    """

    rows: int
    columns: int
    unit: str
    first: tuple[int, ...]


@dataclass(frozen=True)
class Absence:
    """Features that have no value just where a yes/no column has one of its values."""

    features: tuple[str, ...]
    column: str
    value: str


class FarRows:
    """Finds rows that are far out.

    Medians and deviations are those of the first block, in the scale of each feature's transform.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self._features = features
        self._scales: dict[int, tuple[float, float]] | None = None
        self._count, self._first = 0, list[int]()

    def add(self, block: RowBlock, values: Sequence[NDArray[Any]]) -> None:
        """Examine a block of rows, given the session's values of each feature."""
        scaled = {
            place: _scaled(feature, own)
            for place, (feature, own) in enumerate(zip(self._features, values, strict=True))
            if feature.kind == "numeric"
        }
        if self._scales is None:
            found = {place: _robust_scale(own) for place, own in scaled.items()}
            self._scales = {place: scale for place, scale in found.items() if scale[1] > 0.0}
        n_far = np.zeros(len(block), dtype=np.int64)
        for place, (median, deviation) in self._scales.items():
            n_far += np.abs(scaled[place] - median) > FAR * deviation
        far = np.flatnonzero(n_far >= max(2.0, len(self._scales) / 2))
        self._count += len(far)
        for row in far[: _NAMED - len(self._first)].tolist():
            self._first.append(block.start + row if block.numbers is None else block.numbers[row])

    def found(self, unit: str) -> RowsFarOut | None:
        """Return the rows that are far out, if there are any."""
        if not self._count:
            return None
        return RowsFarOut(self._count, len(self._scales or ()), unit, tuple(self._first))


def _scaled(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values if feature.transform == "none" else matrix_of((feature,), (values,))[:, 0]


def _robust_scale(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the median of values (n,) and their robust standard deviation; 0 if there is none."""
    given = values[~np.isnan(values)]
    if not len(given):
        return 0.0, 0.0
    shares = [0.5, *_TAILS, *(1.0 - tail for tail in _TAILS)]
    median, *quantiles = np.quantile(given, shares).tolist()
    lower, upper = quantiles[: len(_TAILS)], quantiles[len(_TAILS) :]
    for tail, low, high in zip(_TAILS, lower, upper, strict=True):
        if high > low:
            return median, (high - low) / (2.0 * NormalDist().inv_cdf(1.0 - tail))
    return median, 0.0


class AbsenceCounts:
    """Compares where features have no value with the two sides of each yes/no column.

    The first ``n_features`` of the columns are features; the others are those of outcomes alone.
    """

    def __init__(self, columns: Sequence[Feature], n_features: int) -> None:
        self._columns, self._n_features = columns, n_features
        #: By place of a yes/no column its two values.
        self._values = {
            place: each.levels or ("0", "1")
            for place, each in enumerate(columns)
            if each.kind == "binary" or len(each.levels or ()) == 2
        }
        q = 2 * len(self._values)
        self._n, self._missing = 0, np.zeros(n_features, dtype=np.int64)
        self._sides = np.zeros(q, dtype=np.int64)
        self._both = np.zeros((n_features, q), dtype=np.int64)

    def add(self, values: Sequence[NDArray[Any]]) -> None:
        """Count in a block of rows, given the session's values of each column."""
        if not self._values:
            return
        # Products of float32 are fast, and exact below 2^24 rows.
        sides = np.array(
            [values[place] == side for place in self._values for side in (0, 1)], dtype=np.float32
        )
        absent = {}
        for place in range(self._n_features):
            missing = np.isnan(values[place])
            if missing.any():
                absent[place] = missing
        self._n += len(values[0])
        self._sides += np.count_nonzero(sides, axis=1)
        if absent:
            places, missing = list(absent), np.array(list(absent.values()), dtype=np.float32)
            self._missing[places] += np.count_nonzero(missing, axis=1)
            self._both[places] += (missing @ sides.T).astype(np.int64)

    @property
    def found(self) -> tuple[Absence, ...]:
        """The sides of yes/no columns that the absence of a feature equals."""
        differing = self._missing[:, None] + self._sides - 2 * self._both
        smaller = np.minimum(self._sides, self._n - self._sides)
        equal = (smaller >= _LEAST_ROWS) & (differing <= _DIFFERING * smaller)
        sides = [(place, value) for place, own in self._values.items() for value in own]
        return tuple(
            Absence(
                tuple(self._columns[j].name for j in np.flatnonzero(own).tolist()),
                self._columns[place].name,
                value,
            )
            for (place, value), own in zip(sides, equal.T, strict=True)
            if own.any()
        )
