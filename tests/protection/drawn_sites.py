"""Sites with columns of all kinds, as Hypothesis or a seed draws them."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection.columns import SourceColumn

FloatArray = NDArray[np.float64]
MAKERS = (
    *("whole", "decimals", "continuous", "skewed", "costs", "constant", "zeros"),
    *("yes-no", "rare", "codes", "levels", "doses"),
)
#: Shares of values that are missing.
MISSING = (0.0, 0.0, 0.02, 0.1, 0.3, 0.6, 0.95)


@st.composite
def sites(draw: st.DrawFn) -> tuple[list[SourceColumn], int]:
    """Draw a site's columns and its p."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p = draw(st.integers(3, 6))
    n = draw(st.integers(p, 90))
    kinds = draw(st.lists(st.sampled_from(MAKERS), min_size=1, max_size=6))
    return draw_columns(kinds, n, rng), p


def draw_columns(kinds: Sequence[str], n: int, rng: np.random.Generator) -> list[SourceColumn]:
    """Return columns of these kinds, some of which depend on others or miss values together."""
    sources = []
    share = rng.choice(MISSING)
    for place, kind in enumerate(kinds):
        values = _values(kind, n, rng)
        values[rng.random(n) < (share if rng.random() < 0.7 else rng.choice(MISSING))] = np.nan
        sources.append(SourceColumn(f"{kind}-{place}", values, 4 if kind == "levels" else None))
    if "yes-no" in kinds and rng.random() < 0.5:
        first = sources[list(kinds).index("yes-no")].values
        sources.append(SourceColumn("nested", np.where(rng.random(n) < 0.5, first, 0.0 * first)))
        exclusive = np.where(rng.random(n) < 0.5, 1.0 - first, 0.0 * first)
        sources.append(SourceColumn("exclusive", exclusive))
        only_if = np.where(first == 1.0, rng.normal(size=n), np.nan)
        sources.append(SourceColumn("only-if", only_if))
    if len(sources) > 2 and rng.random() < 0.3:
        # A panel that some persons had.
        without = rng.random(n) < rng.random()
        for each in sources[:2]:
            each.values[without] = np.nan
    return sources


def rows_of(sources: Sequence[SourceColumn], rows: NDArray[np.int64]) -> list[SourceColumn]:
    """Return the columns of some persons."""
    return [SourceColumn(each.name, each.values[rows], each.n_levels) for each in sources]


def _values(kind: str, n: int, rng: np.random.Generator) -> FloatArray:
    match kind:
        case "whole":
            return rng.integers(0, 7, n).astype(np.float64)
        case "decimals":
            return np.round(rng.normal(37.0, 1.0, n), 1)
        case "continuous":
            return rng.normal(0.0, 10.0 ** rng.integers(-6, 7), n) + rng.choice([0.0, 1e6])
        case "skewed":
            return np.exp(rng.normal(0.0, 3.0, n))
        case "costs":
            return np.where(rng.random(n) < 0.6, 0.0, np.round(np.exp(rng.normal(6.0, 2.0, n)), 2))
        case "constant":
            return np.full(n, 0.1)
        case "zeros":
            return np.where(rng.random(n) < 0.9, 0.0, rng.choice([-2.0, 3.0, 1e12], n))
        case "yes-no":
            return (rng.random(n) < rng.choice([0.02, 0.3, 0.5, 0.8])).astype(np.float64)
        case "rare":
            return (rng.random(n) < 0.05).astype(np.float64)
        case "doses":
            values = rng.choice([-7.3, 0.0, 0.1, 10.0], n)
            values[: rng.integers(0, 3)] = 0.7
            return values
        case "codes":
            return rng.choice([1.0, 2.0], n)
        case _:
            return rng.integers(0, 4, n).astype(np.float64)
