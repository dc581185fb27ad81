"""Sites with columns of all kinds, as Hypothesis draws them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection.columns import SourceColumn

FloatArray = NDArray[np.float64]
MAKERS = (
    *("whole", "decimals", "continuous", "skewed", "constant"),
    *("yes-no", "codes", "levels", "doses"),
)


@st.composite
def sites(draw: st.DrawFn) -> tuple[list[SourceColumn], int]:
    """Draw a site's columns and its p."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p = draw(st.integers(3, 6))
    n = draw(st.integers(p, 90))
    names = draw(st.lists(st.sampled_from(MAKERS), min_size=1, max_size=6))
    missing = draw(st.sampled_from((0.0, 0.0, 0.02, 0.3)))
    sources = []
    for place, kind in enumerate(names):
        values = _values(kind, n, rng)
        values[rng.random(n) < missing] = np.nan
        sources.append(SourceColumn(f"{kind}-{place}", values, 4 if kind == "levels" else None))
    if "yes-no" in names and draw(st.booleans()):
        first = sources[names.index("yes-no")].values
        sources.append(SourceColumn("nested", np.where(rng.random(n) < 0.5, first, 0.0 * first)))
        sources.append(
            SourceColumn("exclusive", np.where(rng.random(n) < 0.5, 1.0 - first, 0.0 * first))
        )
    return sources, p


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
        case "constant":
            return np.full(n, 0.1)
        case "yes-no":
            return (rng.random(n) < rng.choice([0.02, 0.3, 0.5])).astype(np.float64)
        case "doses":
            values = rng.choice([-7.3, 0.0, 0.1, 10.0], n)
            values[: rng.integers(0, 3)] = 0.7
            return values
        case "codes":
            return rng.choice([1.0, 2.0], n)
        case _:
            return rng.integers(0, 4, n).astype(np.float64)
