"""What ``fedclust check`` shows: how a source matches a session, and what its columns hold.

All of it is computed in one pass over the rows, and stays where it is: nothing here is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.data.readings import FeatureReading
from fedclust.data.row_source import Fault, RowBlock, RowSource
from fedclust.errors import DataError, DisclosureError
from fedclust.schema.feature import Feature

State = Literal["ok", "warning", "lacking", "refused"]

#: Integers that never repeat over so many rows are hardly ever measurements.
_IDS_FROM: Final = 30
#: And this many have to be looked at, at most: in memory, and sorted for every block.
_IDS_ENOUGH: Final = 1_000_000
#: Only a share of the rows can tell a wrong unit from some wrong values.
_MOSTLY: Final = 0.9
#: What one unit is of another, as laboratories use them, and both ways round; with what it is.
_UNITS: Final = (
    (10.0, "dl for l, or cm for mm"),
    (100.0, "% for a fraction, or m for cm"),
    (1000.0, "milli"),
    (38.67, "cholesterol, mmol/l and mg/dl"),
    (88.57, "triglycerides, mmol/l and mg/dl"),
    (18.016, "glucose, mmol/l and mg/dl"),
    (88.42, "creatinine, mg/dl and µmol/l"),
    (17.104, "bilirubin, mg/dl and µmol/l"),
    (2.54, "inches and cm"),
    (2.2046, "kg and pounds"),
    (7.5006, "kPa and mmHg"),
    (365.25, "years and days"),
)
_FACTORS: Final = tuple((f, s) for factor, s in _UNITS for f in (factor, 1.0 / factor))


class IdWatch:
    """Notices a column whose values are integers that never repeat: more likely an identifier."""

    SAYS: ClassVar = (
        "all its values are different whole numbers, as identifiers are and measurements hardly "
        "ever: should it be a feature?"
    )

    def __init__(self) -> None:
        self._seen: NDArray[np.float64] | None = np.empty(0)

    def add(self, values: NDArray[np.float64]) -> None:
        """Look at a run of values, NaN where missing."""
        if self._seen is None or len(self._seen) >= _IDS_ENOUGH:
            return
        given = values[~np.isnan(values)]
        if not np.array_equal(given, np.trunc(given)):
            self._seen = None
            return
        every = np.concatenate([self._seen, given])
        distinct = np.unique(every)
        self._seen = distinct if len(distinct) == len(every) else None

    @property
    def suspicious(self) -> bool:
        """Whether the values so far look like identifiers: many, or a running number."""
        seen = self._seen
        if seen is None or len(seen) < 3:
            return False
        return len(seen) >= _IDS_FROM or bool(seen[-1] - seen[0] == len(seen) - 1)


@dataclass(frozen=True)
class ColumnProfile:
    """One of the session's features at this site.

    Attributes
    ----------
    feature, kind, unit : str
    column : str or None
        Its column here; None where there is none.
    state : {"ok", "warning", "lacking", "refused"}
        ``lacking``: it would take part without this feature; ``refused``: it could not.
    present : float
        Share of the rows that have a value.
    n, below, above : int
        Rows with a value; of these, outside the session's bounds.
    minimum, maximum, mean, sd : float or None
        In the session's unit, ddof 0; None without a value, and for levels.
    levels : dict of str to int
        Rows with each level; ``0`` and ``1`` of a binary feature.
    says : tuple of str
        What is wrong, or rarely meant.
    """

    feature: str
    kind: str
    unit: str
    column: str | None
    state: State
    present: float
    n: int
    below: int = 0
    above: int = 0
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    sd: float | None = None
    levels: dict[str, int] = field(default_factory=dict)
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """A source against a session. ``refused``: why taking part would be, None where it would not.

    ``complete_rows`` are those without a missing value; ``ignored`` how many columns of the source
    are no feature.
    """

    source: str
    rows: int
    complete_rows: int
    columns: tuple[ColumnProfile, ...]
    ignored: int
    unused: tuple[str, ...]
    refused: DataError | DisclosureError | None


class _Column:
    """What is kept of a feature while the rows go by."""

    def __init__(self, feature: Feature) -> None:
        self.feature = feature
        self.n = self.below = self.above = self.unknown = 0
        self.mean = self.m2 = 0.0
        self.minimum, self.maximum = math.inf, -math.inf
        self.levels = np.zeros(len(feature.levels or ("0", "1")), dtype=np.int64)
        self.fits = np.zeros(len(_FACTORS), dtype=np.int64)
        self.ids = IdWatch()

    def add(self, values: NDArray[Any]) -> None:
        if self.feature.kind == "categorical":
            given = values[values >= 0]
            self.levels += np.bincount(given, minlength=len(self.levels))
            self.n += len(given)
            return
        given = values[np.isfinite(values)]
        if self.feature.kind == "binary":
            self.levels += np.array([(given == 0).sum(), (given == 1).sum()])
        else:
            self.ids.add(values)
        if not len(given):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            n, mean = len(given), given.mean()
            # Chan's merging of means and squares.
            apart, total = mean - self.mean, self.n + n
            self.m2 += float(((given - mean) ** 2).sum() + apart**2 * self.n * n / total)
        self.mean += float(apart) * n / total
        self.n = total
        self.minimum = min(self.minimum, float(given.min()))
        self.maximum = max(self.maximum, float(given.max()))
        self._bounds(given)

    def _bounds(self, given: NDArray[np.float64]) -> None:
        lower, upper = limits(self.feature)
        self.below += int((given < lower).sum())
        self.above += int((given > upper).sum())
        if math.isfinite(lower) or math.isfinite(upper):
            for place, (factor, _) in enumerate(_FACTORS):
                scaled = given * factor
                self.fits[place] += int(((scaled >= lower) & (scaled <= upper)).sum())


def profile(
    source: Any,
    features: Sequence[Feature],
    *,
    text: Sequence[str] = (),
    lacking: bool = False,
) -> Profile:
    """Read a source and say how it matches a session's features.

    Parameters
    ----------
    source : Source
    features : sequence of Feature
    text : sequence of str
        Columns of identifiers, which have to be there.
    lacking : bool
        As in :func:`fedclust.data.load`.

    Raises
    ------
    DataError
        Where the source cannot be read or has no features at all; what is wrong with its values
        is in the answer.
    """
    missing: DataError | None = None
    try:
        rows = RowSource(source, features, text=text, lacking=lacking)
    except DataError as error:
        if lacking or error.rule != "missing-column":
            raise
        # The rest can still be looked at.
        missing, rows = error, RowSource(source, features, text=text, lacking=True)
    kept = [_Column(feature) for feature in features]
    n = complete = 0
    for block in _looked_at(rows):
        whole = np.ones(len(block), dtype=np.bool_)
        here = rows.session_values(block)
        for column, reading, own, values in zip(
            kept, rows.readings, block.values, here, strict=True
        ):
            column.add(values)
            codes = rows.coded(reading.feature.name)
            column.unknown += count_unknown(reading, own, codes)
            whole &= values >= 0 if values.dtype.kind == "i" else ~np.isnan(values)
        n += len(block)
        complete += int(whole.sum())
    faults = rows.faults
    found = tuple(
        _judged(rows, column, n, [f for f in faults if f.column == rows.local[name]], lacking)
        for column in kept
        for name in (column.feature.name,)
    )
    refused: DataError | DisclosureError | None = missing
    if refused is None and faults:
        others = len({fault.column for fault in faults}) - 1
        refused = faults[0].error(rows.origin, others)
    if refused is None:
        shares = np.array([column.present for column in found])
        try:
            rows.held(shares, lacking, rows.min_present)
        except DataError as error:
            refused = error
    known = {rows.local[name] for name in rows.columns}
    every = {feature.name for feature in features}
    unused = tuple(sorted(set(rows.file.features) - every))
    ignored = len([name for name in rows.reader.header if name not in known])
    return Profile(rows.origin.source, n, complete, found, ignored, unused, refused)


def _looked_at(rows: RowSource) -> Iterator[RowBlock]:
    """Yield the blocks; a source of no columns that fit has nothing to look at."""
    if rows.columns:
        yield from rows.scan()


def _judged(
    rows: RowSource, column: _Column, n: int, faults: Sequence[Fault], lacking: bool
) -> ColumnProfile:
    feature = column.feature
    here = rows.local[feature.name] if feature.name in rows.columns else None
    share = column.n / n if n else 0.0
    numbers = feature.kind != "categorical" and column.n > 0
    said = [(f"{fault.part}, " if fault.part else "", fault) for fault in faults]
    says = [f"{part}{rows.origin.unit} {fault.first}: {fault.message}" for part, fault in said]
    if column.below or column.above:
        says.append(f"{count_values(column.below + column.above)} outside the session's bounds")
    if column.unknown:
        known = ", ".join((feature.levels or ("0", "1"))[:12])
        text = f"{count_values(column.unknown)} that the session does not know, which has {known}; "
        says.append(text + "say in the mapping file which level each is, or that it is missing")
    says += _remarks(column, n, bool(faults))
    state: State = "warning" if says else "ok"
    if here is None:
        state, says = "lacking" if lacking else "refused", ["there is no column for it here"]
        if rows.rules[feature.name].lacking:
            says = ["the mapping says that this site lacks it"]
    elif faults:
        state = "refused"
    elif share < rows.min_present or (lacking and not column.n):
        state = "lacking" if lacking else "refused"
        says.append(f"{share:.1%} of its rows have a value: min_present is {rows.min_present:.1%}")
    names = feature.levels or ("0", "1")
    counted = dict(zip(names, column.levels.tolist(), strict=True))
    return ColumnProfile(
        feature=feature.name,
        kind=feature.kind,
        unit=feature.unit,
        column=here,
        state=state,
        present=share,
        n=column.n,
        below=column.below,
        above=column.above,
        minimum=column.minimum if numbers else None,
        maximum=column.maximum if numbers else None,
        mean=_finite(column.mean) if numbers else None,
        sd=_finite(math.sqrt(column.m2 / column.n)) if numbers else None,
        levels={} if feature.kind == "numeric" else counted,
        says=tuple(says),
    )


def count_unknown(
    reading: FeatureReading, values: NDArray[np.float64], codes: Sequence[str] | None
) -> int:
    """Return how many values (n,) of a column mean nothing to the session; missing ones do."""
    if codes is None:
        if reading.feature.kind == "numeric":
            return 0
        return int(np.count_nonzero(~np.isnan(values) & (values != 0.0) & (values != 1.0)))
    met = np.bincount(values[~np.isnan(values)].astype(np.int64), minlength=len(codes))
    unknown = [reading.meaning(code) is None for code in codes]
    return int(met[np.array(unknown, dtype=np.bool_)].sum())


def count_values(count: int) -> str:
    """Return a number of values in words."""
    return "1 value" if count == 1 else f"{count} values"


def _finite(value: float) -> float | None:
    """Return a figure; None where the numbers were too large for it."""
    return value if math.isfinite(value) else None


def limits(feature: Feature) -> tuple[float, float]:
    lower = -math.inf if feature.lower is None else feature.lower
    return lower, math.inf if feature.upper is None else feature.upper


def _remarks(column: _Column, n: int, wrong: bool) -> list[str]:
    """Return what is allowed and rarely meant."""
    feature, says = column.feature, []
    lower, upper = limits(feature)
    outside = column.below + column.above
    if (
        feature.kind == "numeric"
        and outside
        and max(column.below, column.above) >= (_MOSTLY * column.n)
    ):
        fitting = [
            f"{factor:.4g} ({what})"
            for (factor, what), fits in zip(_FACTORS, column.fits.tolist(), strict=True)
            if fits >= _MOSTLY * column.n
        ]
        side = "below" if column.below > column.above else "above"
        text = f"{max(column.below, column.above) / column.n:.0%} of its values lie {side} the "
        text += f"bounds: is it in {feature.unit or 'the unit of the session'}?"
        if fitting:
            text += f" They would fit times {' or '.join(fitting[:4])}: factor, in the mapping file"
        says.append(text)
    low = 0 <= lower < upper < math.inf and column.maximum < lower + (upper - lower) / 20
    if feature.kind == "numeric" and low and not (outside or wrong) and column.n >= 10:
        text = "all its values lie in the lowest twentieth of the bounds: is it in "
        says.append(text + f"{feature.unit or 'the unit of the session'}?")
    if feature.kind == "numeric" and column.ids.suspicious:
        says.append(IdWatch.SAYS)
    constant = column.minimum == column.maximum
    if feature.kind == "categorical" or feature.kind == "binary":
        constant = int((column.levels > 0).sum()) == 1
    if column.n > 1 and constant and not wrong:
        says.append("all its values are the same")
    if column.n and column.n < n / 2:
        says.append(f"{1 - column.n / n:.0%} of its values are missing")
    return says
