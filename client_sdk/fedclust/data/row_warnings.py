"""Warnings about a site's rows, shown at the site and nowhere else."""

from __future__ import annotations

import warnings

import numpy as np

from fedclust.data.advice import (
    count_rows,
    count_values,
    level_advice,
    on_one_line,
    outside_text,
    sentinel_advice,
)
from fedclust.data.chunks import DataWarning
from fedclust.data.profile import IdDetector, count_unknown, limits
from fedclust.data.row_source import RowBlock, RowSource


class OtherUnits:
    """Counts values outside the session's bounds, and notices columns that are mostly outside."""

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._bounded = [
            (place, reading, limits(reading.feature))
            for place, reading in enumerate(rows.readings)
            if reading.column is not None and np.isfinite(limits(reading.feature)).any()
        ]
        self._counts = np.zeros((len(self._bounded), 2), dtype=np.int64)

    def add(self, block: RowBlock) -> None:
        """Count in a block of rows."""
        for counts, (place, reading, (lower, upper)) in zip(
            self._counts, self._bounded, strict=True
        ):
            own = reading.converted(block.values[place])
            counts[0] += np.count_nonzero((own < lower) | (own > upper))
            counts[1] += np.count_nonzero(~np.isnan(own))

    def warn(self) -> None:
        """Issue a DataWarning for each column with more than half of its values outside."""
        for (outside, n), (_, reading, _) in zip(self._counts, self._bounded, strict=True):
            if 2 * outside > n:
                unit = reading.feature.unit
                text = (
                    f"{outside} of its {count_values(n)} lie outside the session's bounds: check "
                )
                text += "that it is the right column, and that it is in "
                text += unit or "the session's unit"
                said = f"{self._rows.origin.source}, column {reading.column!r}: {text}"
                warnings.warn(said, DataWarning, stacklevel=4)


class UnknownCodes:
    """Counts codes that the session does not know, where they count as missing values."""

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._counts = [0] * len(rows.readings)

    def add(self, block: RowBlock) -> None:
        """Count in a block of rows."""
        for place, (reading, values) in enumerate(
            zip(self._rows.readings, block.values, strict=True)
        ):
            if reading.column is not None:
                codes = self._rows.coded(reading.feature.name)
                self._counts[place] += count_unknown(reading, values, codes)

    def warn(self) -> None:
        """Issue a DataWarning for each feature with such codes."""
        for count, reading in zip(self._counts, self._rows.readings, strict=True):
            if count:
                rows = f"{count_rows(count)} {'has' if count == 1 else 'have'} a value"
                said = f"{self._rows.origin.source}, column {reading.column!r}: {rows} that the "
                said += "session does not know, and it counts as missing. "
                said += on_one_line(level_advice(reading.feature))
                warnings.warn(said, DataWarning, stacklevel=4)


class RowWarnings:
    """Counts values outside the session's bounds and unknown codes, and notices identifiers."""

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._outside = dict.fromkeys(rows.columns, 0)
        self._unknown = dict.fromkeys(rows.columns, 0)
        self._ids = {
            feature.name: IdDetector()
            for feature in rows.features
            if feature.kind == "numeric" and rows.reader.named and feature.name in rows.columns
        }

    def add(self, block: RowBlock) -> None:
        """Count in a block of rows."""
        for reading, values in zip(self._rows.readings, block.values, strict=True):
            name = reading.feature.name
            if reading.column is None:
                continue
            self._unknown[name] += count_unknown(reading, values, self._rows.coded(name))
            if name in self._ids:
                self._ids[name].add(values)
            lower, upper = limits(reading.feature)
            if np.isfinite(lower) or np.isfinite(upper):
                own = reading.converted(values)
                self._outside[name] += int(np.count_nonzero((own < lower) | (own > upper)))

    def warn(self) -> tuple[str, ...]:
        """Issue the warnings, each a DataWarning, and return them without the source's name."""
        found = []
        for reading in self._rows.readings:
            name = reading.feature.name
            texts = []
            if self._outside.get(name):
                text = outside_text(self._outside[name])
                if reading.feature.kind == "numeric":
                    text += f" {on_one_line(sentinel_advice(name, 'NUMBER'))}"
                texts.append(text)
            if self._unknown.get(name):
                text = f"{count_values(self._unknown[name])} that the session does not know. "
                texts.append(text + on_one_line(level_advice(reading.feature)))
            if name in self._ids and self._ids[name].suspicious:
                texts.append(IdDetector.MESSAGE)
            for text in texts:
                said = f"column {reading.column!r}: {text}"
                found.append(said)
                warnings.warn(f"{self._rows.origin.source}, {said}", DataWarning, stacklevel=4)
        return tuple(found)
