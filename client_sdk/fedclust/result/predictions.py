"""What a result says of new rows: cluster, next cluster, margin, and whether they lie outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.wire.errors import of_extra

if TYPE_CHECKING:
    from pandas import DataFrame

#: Below this margin a row is close to the next cluster: on a straight line between two centroids
#: these are the places from .47 of the way on.
CLOSE: Final = 0.1
#: The columns of the table and of the label file.
DETAILS: Final = ("cluster", "second", "margin", "distance", "outside", "why")
_BY_ROW: Final = ("labels", "second", "margin", "distance", "outside")


@dataclass(frozen=True, repr=False)
class Predictions:
    """The cluster of each new row, how clear it is, and whether the row is like the session's.

    Attributes
    ----------
    labels : (n,) int64
        As ``predict`` returns them; -1 where missing values forbid a label.
    second : (n,) int64
        The next nearest cluster; -1 where there is none or it is not known.
    margin : (n,) float64
        (d2 - d1) / d2, with the distances d1 from the own cluster and d2 from the next one: 0
        halfway between the two, 1 on the own centroid. NaN where it is not known.
    distance : (n,) float64
        d1: from the centroid, or the nearest prototype, of the own cluster, in the scaled space.
    outside : (n,) int8
        1: the row lies outside what the model saw; 0: it does not; -1: not known.
    why : tuple of tuple of str
        Of each row that lies outside the features that do, the furthest first; at most three.
    ids : tuple of str or None
        The rows' identifiers, if an id column was named.
    probabilities : (n, K) float64 or None
        How probable each cluster is, NaN where missing values forbid a label; None where the method
        has no soft clusters.
    """

    labels: NDArray[np.int64]
    second: NDArray[np.int64]
    margin: NDArray[np.float64]
    distance: NDArray[np.float64]
    outside: NDArray[np.int8]
    why: tuple[tuple[str, ...], ...] = field(default=())
    ids: tuple[str, ...] | None = None
    probabilities: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, parts: Sequence[Predictions], ids: tuple[str, ...] | None = None) -> Predictions:
        """Return the predictions of consecutive blocks of rows."""
        soft = [part.probabilities for part in parts if part.probabilities is not None]
        joined = {name: np.concatenate([getattr(each, name) for each in parts]) for name in _BY_ROW}
        why = tuple(names for part in parts for names in part.why)
        every = np.concatenate(soft) if soft else None
        return cls(**joined, why=why, ids=ids, probabilities=every)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def close(self) -> NDArray[np.bool_]:
        """Which rows (n,) are about as near to the next cluster: those with a margin below .1."""
        return np.asarray(self.margin < CLOSE)

    def __repr__(self) -> str:
        without = int((self.labels < 0).sum())
        parts = [f"{len(self)} rows", f"{len(self) - without} labelled"]
        parts.append(f"{int(self.close.sum())} close to another cluster")
        known = bool((self.outside >= 0).any())
        outside = f"{int((self.outside > 0).sum())} outside what the model saw"
        parts.append(outside if known else "outside what the model saw: not known")
        return f"Predictions: {', '.join(parts)}; to_frame()"

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Return the values of :data:`DETAILS` of each row; None where there is none."""
        clear = {1: "yes", 0: "no", -1: None}
        columns: list[list[Any]] = [
            *([None if k < 0 else k for k in each.tolist()] for each in (self.labels, self.second)),
            *(
                [None if x != x else x for x in each.tolist()]
                for each in (self.margin, self.distance)
            ),
            [clear[known] for known in self.outside.tolist()],
            [", ".join(names) or None for names in self.why],
        ]
        return zip(*columns, strict=True)

    def to_frame(self) -> DataFrame:
        """Return a row for each row as a pandas DataFrame (the extra ``[data]``).

        The index are the identifiers, if an id column was named. ``outside`` is ``<NA>`` where it
        is not known. Of soft clusters the columns ``p0``, ``p1`` and so on are the probabilities.

        Returns
        -------
        DataFrame

        Raises
        ------
        UsageError
            pandas is not installed.
        """
        with of_extra("data", "to_frame needs pandas"):
            import pandas as pd
        outside = pd.array(self.outside > 0, dtype="boolean")
        outside[self.outside < 0] = pd.NA
        values = (self.labels, self.second, self.margin, self.distance, outside, self.why)
        columns = dict(zip(DETAILS, values, strict=True))
        if self.probabilities is not None:
            names = probability_names(self.probabilities.shape[1])
            columns |= dict(zip(names, self.probabilities.T, strict=True))
        return pd.DataFrame(columns, index=self.ids)


def probability_names(n_clusters: int) -> list[str]:
    """Return the names of the columns with the clusters' probabilities."""
    return [f"p{k}" for k in range(n_clusters)]
