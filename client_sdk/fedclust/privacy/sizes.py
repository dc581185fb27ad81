"""Sizes of clusters in results: which of them may be shown (rule 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["suppress_by_site", "suppress_sizes", "suppress_small"]


def suppress_small(sizes: Sequence[int | None], p: int) -> tuple[int | None, ...]:
    """Return sizes with None in place of every one between 1 and ``p`` - 1."""
    return tuple(None if size is None or 0 < size < p else int(size) for size in sizes)


def suppress_sizes(total: ArrayLike, parts: ArrayLike, p: int) -> tuple[int | None, ...]:
    """Return the sizes that a result may show, None where one is suppressed.

    A size is shown if it is 0 or at least ``p``, and if what remains of it after any one site has
    subtracted its own part is 0 or at least ``p`` too. The number of all rows is public, so the
    suppressed sizes together keep to the same rule: while they do not, the next-smallest is
    suppressed with them.

    Parameters
    ----------
    total : (K,) int array
        Size of each cluster over all sites.
    parts : (S, K) int array
        Each site's part of it.
    p : int
        Smallest number of persons; where sites asked for larger ones, the largest.

    Returns
    -------
    tuple of int or None, length K
    """
    sizes = np.asarray(total, dtype=np.int64)
    by_site = np.asarray(parts, dtype=np.int64)
    remaining = sizes[None, :] - by_site.reshape(len(by_site), sizes.size)
    hidden = _small(sizes, p) | _small(remaining, p).any(axis=0)
    for cluster in np.argsort(sizes, kind="stable"):
        together = np.append(remaining[:, hidden].sum(axis=1), sizes[hidden].sum())
        if not _small(together, p).any():
            break
        hidden[cluster] |= bool(sizes[cluster])
    return tuple(None if hide else int(size) for size, hide in zip(sizes, hidden, strict=True))


def suppress_by_site(
    parts: Mapping[str, Sequence[int | None]], sizes: Sequence[int | None] | None, p: int
) -> dict[str, tuple[int | None, ...]]:
    """Return sites' parts of clusters as whoever sees several of them may.

    Where the size of a cluster is suppressed, or one site's part in it is smaller than ``p``, no
    site's part is shown, or the others would give it away.

    Parameters
    ----------
    parts : mapping of site to sequence of int or None, length K
    sizes : sequence of int or None, length K
        Of the clusters; None where they are not known at all.
    p : int
    """
    n_clusters = max((len(part) for part in parts.values()), default=0)
    hidden = [
        (sizes is not None and sizes[k] is None)
        or any(0 < (part[k] or 0) < p for part in parts.values())
        for k in range(n_clusters)
    ]
    return {
        site: tuple(None if hide else n for n, hide in zip(part, hidden, strict=True))
        for site, part in parts.items()
    }


def _small(sizes: NDArray[np.int64], p: int) -> NDArray[np.bool_]:
    return np.asarray((sizes != 0) & (sizes < p))
