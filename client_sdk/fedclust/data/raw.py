"""What every source yields before the session's rules are applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.errors import DataError

#: Written for a missing value, whatever the case.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})


@dataclass(frozen=True)
class Origin:
    """Where rows come from, for messages.

    ``numbers`` holds the line of each row where that is not its index: a CSV file's rows may span
    several lines.
    """

    source: str
    unit: Literal["line", "row"] = "row"
    numbers: Sequence[int] | None = None

    def fault(
        self,
        rule: str,
        message: str,
        *,
        column: str | None = None,
        index: int | None = None,
        count: int | None = None,
    ) -> DataError:
        """Return the error for the row at ``index``. ``message`` may not repeat a value."""
        row = index if index is None or self.numbers is None else self.numbers[index]
        return DataError(
            self.source, rule, message, column=column, row=row, count=count, unit=self.unit
        )

    def columns(
        self, header: Sequence[str], features: Sequence[str], text: Sequence[str]
    ) -> dict[str, int]:
        """Return where each column stands; DataError for a missing or a repeated name."""
        wanted = [*features, *text]
        places: dict[str, int] = {}
        twice: list[str] = []
        for place, name in enumerate(header):
            if not name:  # a column without a name cannot be asked for
                continue
            if name in places:
                twice.append(name)
            places[name] = place
        missing = [name for name in wanted if name not in places]
        if missing:
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            why = "the session needs" if missing[0] in features else "rows or persons are named by"
            message = f"{why} this column and the header has none of that name{others}"
            if missing[0].casefold() in map(str.casefold, places):
                message += "; upper and lower case are told apart"
            raise self.fault("missing-column", message, column=missing[0])
        # Only now is it sure to be a header, and no record, that a message repeats.
        if twice:
            raise self.fault("duplicate-column", "the header names it twice", column=twice[0])
        return {name: places[name] for name in wanted}


@dataclass(frozen=True)
class RawTable:
    """Rows as floats, NaN where missing, and the columns that were asked for as text.

    ``columns``: the features that there is a column for; None: all.
    """

    X: NDArray[np.float64] = field(repr=False)
    origin: Origin
    text: dict[str, list[str]] = field(default_factory=dict, repr=False)
    columns: tuple[str, ...] | None = None
