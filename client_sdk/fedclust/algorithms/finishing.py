"""The end of a session: equal centroids merged, one order, own units (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import first_occurrences
from fedclust.algorithms.base import Result, RunConfig


def raw_result(
    centroids: NDArray[np.float64],
    config: RunConfig,
    *,
    stopped_because: str = "",
    warnings: Sequence[str] = (),
) -> Result:
    """Return a method's outcome before the engine sorts and completes it.

    Parameters
    ----------
    centroids : (K, d) float64
        Scaled space, in the order in which the method numbers its cells.
    config : RunConfig
    stopped_because : str
    warnings : sequence of str
    """
    return Result(
        centroids=centroids,
        centroids_original=config.space.to_original(centroids),
        center=config.space.center,
        scale=config.space.scale,
        impute=config.space.impute,
        stopped_because=stopped_because,
        warnings=tuple(warnings),
    )


def merged(centroids: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Merge equal centroids.

    Returns
    -------
    distinct : (K', d) float64
        In order of first occurrence.
    cells : (K,) int64
        Which of them each of the method's cells belongs to.
    """
    distinct = centroids[first_occurrences(centroids)]
    equal = (centroids[:, None, :] == distinct[None, :, :]).all(axis=2)
    return distinct, equal.argmax(axis=1).astype(np.int64)


def complete(
    raw: Result,
    *,
    n_clusters: int | None,
    sizes: Sequence[int | None] | None = None,
    site_sizes: Mapping[str, Sequence[int | None]] | None = None,
    **update: Any,
) -> Result:
    """Return the result that sites and analysts read.

    Equal centroids are merged, with a warning where fewer remain than were asked for, and all is
    sorted, once, lexicographically by scaled centroid.

    Parameters
    ----------
    raw : Result
        Of :func:`raw_result`.
    n_clusters : int or None
        What was asked for.
    sizes : sequence of int or None, length K'
        In the order of :func:`merged`; likewise ``site_sizes``.
    **update
        Other fields of the result.
    """
    distinct, cells = merged(raw.centroids)
    order = np.lexsort(distinct.T[::-1])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    warnings = tuple(update.pop("warnings", ())) + raw.warnings
    if n_clusters is not None and len(distinct) < n_clusters:
        warning = (
            f"{len(distinct)} distinct centroids were found where {n_clusters} were asked for: "
            "the sites' answers hold no more."
        )
        warnings = (*warnings, warning)
    centroids = distinct[order] + 0.0
    return raw.model_copy(
        update={
            "centroids": _frozen(centroids),
            "centroids_original": _frozen(centroids * raw.scale + raw.center),
            "sizes": None if sizes is None else tuple(sizes[k] for k in order),
            "site_sizes": {
                site: tuple(own[k] for k in order)
                for site, own in sorted((site_sizes or {}).items())
            },
            "mapping": {
                site: tuple(int(place[cells[k]]) if k >= 0 else -1 for k in own)
                for site, own in sorted(raw.mapping.items())
            },
            "warnings": warnings,
            **update,
        }
    )


def _frozen(array: NDArray[np.float64]) -> NDArray[np.float64]:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
