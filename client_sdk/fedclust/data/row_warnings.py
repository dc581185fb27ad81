"""Warnings about a site's rows, shown at the site and nowhere else."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.data.advice import (
    level_advice,
    list_names,
    on_one_line,
    outside_text,
    sentinel_advice,
    unknown_text,
)
from fedclust.data.chunks import DataWarning
from fedclust.data.readings import FeatureReading, limits
from fedclust.data.row_source import RowBlock, RowSource
from fedclust.numeric.array_types import FloatArray
from fedclust.schema.display import counted
from fedclust.schema.encoding import columns_of, transformed
from fedclust.schema.feature import Feature
from fedclust.schema.result import ClusterProfile

#: Of numbers, by feature, the mean of the session's persons and their standard deviation, both
#: after the feature's transform.
TypicalValues: TypeAlias = Mapping[str, tuple[float, float]]
#: A median so many standard deviations from the mean belongs to another unit, column or population,
#: and one this near to it fits.
_FAR, _FITS = 4.0, 1.5
#: A median needs so many values.
_LEAST_VALUES = 5
#: Integers without a repetition in this many rows are rarely measurements.
_IDS_FROM: Final = 30
#: At most this many are examined, because they are kept in memory and sorted for every block.
_IDS_ENOUGH: Final = 1_000_000
#: Factors between units that laboratories use; each is also tried the other way round.
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
FACTORS: Final = tuple((f, s) for factor, s in _UNITS for f in (factor, 1.0 / factor))


def typical_values(
    features: Sequence[Feature], profile: ClusterProfile | None
) -> dict[str, tuple[float, float]]:
    """Return what is typical of each number, as far as a result's profile knows it."""
    if profile is None:
        return {}
    pairs = zip(profile.overall_means.tolist(), profile.overall_deviations.tolist(), strict=True)
    return {
        column.name: pair
        for column, pair in zip(columns_of(tuple(features)), pairs, strict=True)
        if column.kind == "numeric" and pair[1] > 0.0
    }


class NewRowWarnings:
    """Warns of values outside the bounds, of columns in another unit, and of unknown codes.

    Of rows that took no part, so that nobody has checked them. Medians are of the first block.
    """

    def __init__(self, rows: RowSource, typical: TypicalValues) -> None:
        self._rows, self._typical = rows, typical
        self._unknown = UnknownCodes(rows)
        self._numbers = [
            (place, reading)
            for place, reading in enumerate(rows.readings)
            if reading.column is not None and reading.feature.kind == "numeric"
        ]
        #: Values outside the bounds, and all values.
        self._counts = np.zeros((len(self._numbers), 2), dtype=np.int64)
        self._medians: list[float] | None = None

    def add(self, block: RowBlock) -> None:
        """Examine a block of rows."""
        self._unknown.add(block)
        medians = []
        for counts, (place, reading) in zip(self._counts, self._numbers, strict=True):
            own = reading.converted(block.values[place])
            own = own[~np.isnan(own)]
            counts += [_count_outside(reading.feature, own), len(own)]
            medians.append(float(np.median(own)) if len(own) >= _LEAST_VALUES else np.nan)
        self._medians = self._medians or medians

    def warn(self) -> None:
        """Issue a DataWarning for each column with something to look at."""
        self._unknown.warn()
        medians = self._medians or []
        for (outside, n), (_, reading), median in zip(
            self._counts.tolist(), self._numbers, medians, strict=True
        ):
            text = ""
            if outside:
                lie = "lies" if outside == 1 else "lie"
                text = f"{outside} of its {counted(n, 'value')} {lie} outside the session's bounds"
            far, fitting = self._other_unit(reading.feature, median)
            if far and 2 * outside <= n:
                text += "; the median" if text else "the median of its values"
                text += f" lies more than {_FAR:.0f} standard deviations from the session's mean"
            if far or 2 * outside > n:
                text += ": check that it is the right column, and that it is in "
                text += reading.feature.unit or "the session's unit"
                text += f". {fitting}" if fitting else ""
            if text:
                said = f"{self._rows.origin.source}, column {reading.column!r}: {text}"
                warnings.warn(said, DataWarning, stacklevel=4)

    def _other_unit(self, feature: Feature, median: float) -> tuple[bool, str]:
        """Return whether a median is far from what is typical, and which factors would fit."""
        if feature.name not in self._typical or np.isnan(median):
            return False, ""
        mean, spread = self._typical[feature.name]
        values = np.array([median, *(median * factor for factor, _ in FACTORS)])
        if feature.lower is not None:
            values = np.maximum(values, feature.lower)
        (column,) = columns_of((feature,))
        apart = np.abs(transformed([column], values[:, None])[:, 0] - mean) / spread
        if not apart[0] > _FAR:
            return False, ""
        return True, fitting_units(feature.name, (apart[1:] <= _FITS).tolist())


def _count_outside(feature: Feature, values: FloatArray) -> int:
    lower, upper = limits(feature)
    return int(np.count_nonzero((values < lower) | (values > upper)))


class UnknownCodes:
    """Counts codes that the session does not know, where they count as missing values."""

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self.counts = [0] * len(rows.readings)

    def add(self, block: RowBlock) -> None:
        """Count in a block of rows."""
        for place, (reading, values) in enumerate(
            zip(self._rows.readings, block.values, strict=True)
        ):
            if reading.column is not None:
                codes = self._rows.coded(reading.feature.name)
                self.counts[place] += unknown_codes(reading, values, codes).total()

    def warn(self) -> None:
        """Issue a DataWarning for each feature with such codes."""
        for count, reading in zip(self.counts, self._rows.readings, strict=True):
            if count:
                rows = f"{counted(count, 'row')} {'has' if count == 1 else 'have'} a value"
                said = f"{self._rows.origin.source}, column {reading.column!r}: {rows} that the "
                said += "session does not know, and it counts as missing. "
                said += on_one_line(level_advice(reading.feature))
                warnings.warn(said, DataWarning, stacklevel=4)


class UnvaluedOutcomes:
    """Notices outcomes without a column, unless the mapping says so, and those without a value.

    A wrong name looks like the former. For the latter, points of the allowance buy nothing.
    """

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._without = [outcome.name for outcome in rows.outcomes]

    def add(self, block: RowBlock) -> None:
        """Examine a block of rows."""
        for outcome, cells in zip(self._rows.outcomes, self._rows.cells(block).T, strict=True):
            if outcome.name in self._without and (cells < len(outcome.cells) - 1).any():
                self._without.remove(outcome.name)

    def texts(self) -> list[str]:
        """Return a sentence for each of those that the site would answer."""
        rows, found = self._rows, []
        answered = rows.declared(rows.own_columns)
        for outcome in rows.outcomes:
            said = "no row has a value, and its points would be spent all the same"
            if outcome.name not in answered:
                names = [each.name for each in outcome.columns if each.name not in rows.columns]
                if any(rows.rules[name].lacking for name in names):
                    continue
                lacked = list_names([rows.local[name] for name in names])
                said = f"there is no column {lacked}, and this site takes part without it"
            elif outcome.name not in self._without:
                continue
            found.append(f"outcome {outcome.name!r}: {said}")
        return found


class RowWarnings:
    """Counts values outside the session's bounds and unknown codes.

    Notices identifiers among the features, and outcomes without a value.
    """

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._outside = dict.fromkeys(rows.columns, 0)
        self._unknown, self._unvalued = UnknownCodes(rows), UnvaluedOutcomes(rows)
        self._ids = {
            feature.name: IdDetector()
            for feature in rows.features[: rows.n_features]
            if feature.kind == "numeric" and rows.reader.named and feature.name in rows.columns
        }

    def add(self, block: RowBlock) -> None:
        """Count in a block of rows."""
        self._unknown.add(block)
        self._unvalued.add(block)
        for reading, values in zip(self._rows.readings, block.values, strict=True):
            name = reading.feature.name
            if reading.column is None:
                continue
            if name in self._ids:
                self._ids[name].add(values)
            if any(np.isfinite(limits(reading.feature))):
                self._outside[name] += _count_outside(reading.feature, reading.converted(values))

    def warn(self, of_persons: Sequence[str] = ()) -> tuple[str, ...]:
        """Issue the warnings, each a DataWarning, and return them without the source's name.

        ``of_persons``: further ones, of what the rows of a person hold.
        """
        found = []
        for reading, unknown in zip(self._rows.readings, self._unknown.counts, strict=True):
            name = reading.feature.name
            texts = []
            if self._outside.get(name):
                text = outside_text(self._outside[name])
                if reading.feature.kind == "numeric":
                    text += f" {on_one_line(sentinel_advice(self._rows.said_of(name), 'NUMBER'))}"
                texts.append(text)
            if unknown:
                texts.append(on_one_line(unknown_text(unknown, reading.feature)))
            if name in self._ids and self._ids[name].suspicious:
                texts.append(IdDetector.MESSAGE)
            found += [f"column {reading.column!r}: {text}" for text in texts]
        found += [*self._unvalued.texts(), *of_persons]
        for said in found:
            warnings.warn(f"{self._rows.origin.source}, {said}", DataWarning, stacklevel=4)
        return tuple(found)


class IdDetector:
    """Notices a column whose values are integers without repetition: probably an identifier."""

    MESSAGE: ClassVar = (
        "all its values are different whole numbers, as identifiers are and measurements hardly "
        "ever: should it be a feature?"
    )

    def __init__(self) -> None:
        self._seen: NDArray[np.float64] | None = np.empty(0)

    def add(self, values: NDArray[np.float64]) -> None:
        """Examine further values, NaN where missing."""
        if self._seen is None or len(self._seen) >= _IDS_ENOUGH:
            return
        given = values[~np.isnan(values)]
        if not np.array_equal(given, np.trunc(given)):
            self._seen = None
            return
        values = np.concatenate([self._seen, given])
        distinct = np.unique(values)
        self._seen = distinct if len(distinct) == len(values) else None

    @property
    def suspicious(self) -> bool:
        """Whether the values so far look like identifiers: many, or a running number."""
        seen = self._seen
        if seen is None or len(seen) < 3:
            return False
        return len(seen) >= _IDS_FROM or bool(seen[-1] - seen[0] == len(seen) - 1)


def unknown_codes(
    reading: FeatureReading, values: NDArray[np.float64], codes: Sequence[str] | None
) -> Counter[str]:
    """Count the codes in a column (n,) that are neither missing nor known to the session."""
    if codes is None:
        if reading.feature.kind == "numeric":
            return Counter()
        others = values[~np.isnan(values) & (values != 0.0) & (values != 1.0)]
        return Counter(f"{value:.15g}" for value in others.tolist())
    met = np.bincount(values[~np.isnan(values)].astype(np.int64), minlength=len(codes)).tolist()
    found = zip(codes, met, strict=True)
    return Counter({code: n for code, n in found if n and reading.meaning(code) is None})


def fitting_units(name: str, fits: Sequence[bool]) -> str:
    """Return by which factors the values of a feature would fit; "" where none of FACTORS does.

    ``fits`` says it of each factor.
    """
    units = [unit for unit, fit in zip(FACTORS, fits, strict=True) if fit]
    if not units:
        return ""
    # Many factors may fit: the one for this measurement comes first.
    units.sort(key=lambda unit: unit[1].split(",")[0] not in name.lower())
    said = " or ".join(f"{factor:.4g} ({what})" for factor, what in units[:4])
    return f"They would fit times {said}: factor, in the mapping file (mapping=, --mapping)"
