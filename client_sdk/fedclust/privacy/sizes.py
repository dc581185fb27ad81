"""Sizes of clusters in results: which of them may be shown (rule 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["suppress_sizes", "suppress_small"]


def suppress_small(sizes: Sequence[int | None], p: int) -> tuple[int | None, ...]:
    """Return sizes with None in place of every one between 1 and ``p`` - 1."""
    return tuple(None if size is None or 0 < size < p else int(size) for size in sizes)


def suppress_sizes(total: ArrayLike, parts: ArrayLike, p: int) -> tuple[int | None, ...]:
    """Return the sizes that a result may show, None where one is suppressed.

    A size is shown if it is 0 or at least ``p``, and if what remains of it after any one site has
    subtracted its own part is 0 or at least ``p`` too.

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
    hidden = ((sizes > 0) & (sizes < p)) | ((remaining != 0) & (remaining < p)).any(axis=0)
    return tuple(None if hide else int(size) for size, hide in zip(sizes, hidden, strict=True))
