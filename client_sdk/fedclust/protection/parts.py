"""Rule: persons of a first table are grouped within parts, by which columns they lack.

Persons with exactly the same missing columns are a part if they are at least 8p; all others are one
part. Each part has its least size L of a group: p without missing values, else up to 3p, so that
groups release a column with a probability of .9. L follows from counts rounded to p: it never shows
that 1 to p - 1 persons lack a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.protection.columns import SourceColumn

#: Persons with the same missing columns are a part of their own from this many times p on.
_PATTERN = 8
#: Groups are at most this many times p,
_MOST = 3
#: and large enough that a group releases a column with this probability.
_RELEASED = 0.9
#: Having a value counts in distances if fewer groups than this share would release the column:
#: otherwise a panel that few patients had would be in no group.
_RARE = 0.7
#: Means and variances are computed from so many equal steps between the clipped extremes: those of
#: up to 13 equally spaced values are exact, as all numbers up to 12 divide it.
_GRID = 27_720.0
#: All columns of having a value weigh as much together as two others times this.
_PRESENCE = 2.0


@dataclass(frozen=True)
class Parts:
    """The parts of a first table: k with one pattern of missing columns, and one of all others.

    Attributes
    ----------
    patterns : (k, d) bool
        The missing columns, of the largest part first.
    least : tuple of int
        The least size of a group in each of the k + 1 parts; later newcomers use the last.
    rare : (k + 1, d) bool
        Columns for which having a value counts in distances.
    others : int
        The part of persons with another pattern: the last, or the first if they are fewer than
        2p.
    """

    patterns: BoolArray
    least: tuple[int, ...]
    rare: BoolArray
    others: int

    def of(self, missing: BoolArray) -> IntArray:
        """Return the part (n,) of persons with these missing columns (n, d)."""
        parts = np.full(len(missing), self.others)
        for part, pattern in enumerate(self.patterns):
            parts[(missing == pattern).all(axis=1)] = part
        return parts


def one_part(least: int, n_columns: int) -> Parts:
    """Return the only part of persons who are grouped together, all of newcomers for example."""
    none = np.zeros((1, n_columns), np.bool_)
    return Parts(none[:0], (least,), none, others=0)


def find_parts(sources: Sequence[SourceColumn], p: int, n_persons: int) -> Parts:
    """Return the parts of a first table of about ``n_persons``, all or some of whom are given."""
    missing = np.column_stack([np.isnan(each.values) for each in sources])
    if not missing.any():
        return one_part(p, len(sources))
    distinct, places, counts = np.unique(
        np.packbits(missing, axis=1), axis=0, return_inverse=True, return_counts=True
    )
    places = places.ravel()
    large = np.flatnonzero(counts >= _PATTERN * p)
    # The largest first; of equally large ones the one with the first pattern.
    large = large[np.argsort(-counts[large], kind="stable")]
    patterns = np.unpackbits(distinct[large], axis=1, count=len(sources)).astype(np.bool_)
    is_other = ~np.isin(places, large)
    members = [*(places == each for each in large), is_other]
    others = len(large)
    if others and is_other.sum() < 2 * p:
        members[0], members[-1], others = members[0] | is_other, np.zeros_like(is_other), 0
    least, rare = zip(*(_least_size(missing[each], p, n_persons) for each in members), strict=True)
    return Parts(patterns, least, np.stack(rare), others)


def _least_size(missing: BoolArray, p: int, n_persons: int) -> tuple[int, BoolArray]:
    """Return L of a part, and the columns (d,) for which having a value counts in distances."""
    n, n_lacking = len(missing), missing.sum(axis=0)
    held = n - n_lacking >= p
    # Halves are rounded up.
    lacking = np.minimum((2 * n_lacking + p) // (2 * p) * p, n)
    shares = np.where(held, 1.0 - lacking / max(n, 1), 0.0)
    # A small table would show by its size that some persons lack a value.
    least = p
    if n_persons >= 2 * p and shares.any():
        sizes = range(p, _MOST * p + 1)
        least = next((size for size in sizes if _released(size, p, shares) >= _RELEASED), sizes[-1])
    return least, held & (shares < _RARE * p / least)


def _released(size: int, p: int, shares: FloatArray) -> float:
    """Return the probability that a group of this size releases a column, weighted by shares."""
    found = [_at_least(p, size, share) for share in shares.tolist()]
    return float(np.average(found, weights=shares))


@lru_cache(maxsize=4096)
def _at_least(p: int, size: int, share: float) -> float:
    # Imported here: only a first table with missing values needs it.
    from scipy.stats import binom

    return 1.0 if share == 1.0 else float(binom.sf(p - 1, size, share))


# --- from persons to points -----------------------------------------------------------------------


def embed_persons(sources: Sequence[SourceColumn], p: int) -> FloatArray:
    """Return points (n, width) whose distances say how similar persons are.

    Each column has a total variance of 1; missing values are at its mean. Numbers beyond the
    ``p``-th largest or smallest count as that one.
    """
    points = np.zeros((sum(each.n_levels or 1 for each in sources), len(sources[0].values)))
    end = 0
    for source in sources:
        end += _add_column(points[end:], source, p)
    return points[: max(end, 1)].T


def embed_presence(values: Sequence[FloatArray]) -> FloatArray:
    """Return points (n, width) whose distances say who of a part has a value of rare columns."""
    sources = [SourceColumn("", (~np.isnan(each)).astype(np.float64)) for each in values]
    return np.asarray(embed_persons(sources, 1) * _PRESENCE / np.sqrt(len(sources)))


def _add_column(points: FloatArray, source: SourceColumn, p: int) -> int:
    """Write a column into the first rows of ``points``, and return into how many."""
    values, missing = source.values, np.isnan(source.values)
    n_known = len(values) - int(missing.sum())
    if source.n_levels is None:
        if n_known < 2 * p:
            return 0
        scaled = points[:1]
        held = np.partition(values, (p - 1, n_known - p))  # NaN last
        lower, upper = held[p - 1], held[n_known - p]
        if lower == upper:
            return 0
        # Halved first: a difference of two large numbers may be infinite.
        np.subtract(np.clip(values, lower, upper) / 2.0, lower / 2.0, out=scaled[0])
        scaled *= _GRID / (upper / 2.0 - lower / 2.0)
        whole = np.rint(scaled)
        whole[:, missing] = 0.0
    else:
        scaled = points[: source.n_levels]
        scaled[:] = whole = values == np.arange(source.n_levels)[:, None]
    # Sums of whole numbers do not depend on the order of the persons: nor do ties.
    means = whole.sum(axis=1) / max(n_known, 1)
    variance = float(((whole**2).sum(axis=1) / max(n_known, 1) - means**2).sum())
    if not variance > 0.0:
        return 0
    scaled -= means[:, None]
    scaled /= np.sqrt(variance)
    scaled[:, missing] = 0.0
    return len(scaled)
