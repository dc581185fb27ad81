"""The end of a session: equal centroids merged, one order, own units (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.canonical import tolerant_lexsort
from fedclust.numeric.distances import first_occurrences
from fedclust.schema.encoding import undone
from fedclust.schema.result import Profile, Result
from fedclust.schema.run_config import RunConfig

_T = TypeVar("_T", bound=np.generic)


def raw_result(
    centroids: NDArray[np.float64],
    config: RunConfig,
    *,
    mask: NDArray[np.bool_] | None = None,
    stopped_because: str = "",
    warnings: Sequence[str] = (),
) -> Result:
    """Return a method's outcome before the engine sorts and completes it.

    Parameters
    ----------
    centroids : (K, d) float64
        Scaled space, in the order in which the method numbers its cells.
    config : RunConfig
    mask : (K, d) bool, optional
        Where the centroids are known.
    stopped_because : str
    warnings : sequence of str
    """
    return Result(
        centroids=centroids,
        centroids_original=undone(config.columns, config.space.to_original(centroids)),
        columns=tuple(column.name for column in config.columns),
        mask=mask,
        center=config.space.center,
        scale=config.space.scale,
        impute=config.space.impute,
        limit=config.space.limit,
        stopped_because=stopped_because,
        warnings=tuple(warnings),
    )


def merge_equal_centroids(
    centroids: NDArray[np.float64], mask: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merge equal centroids: those known by the same features, with the same values.

    Returns
    -------
    distinct : (K',) int64
        The first of each group of equal ones, ascending.
    cells : (K,) int64
        Which of them each of the method's cells belongs to.
    """
    keys = centroids
    if mask is not None:
        keys = np.column_stack([np.where(mask, centroids, 0.0), mask])
    distinct = first_occurrences(keys)
    equal = (keys[:, None, :] == keys[None, distinct, :]).all(axis=2)
    return distinct, equal.argmax(axis=1).astype(np.int64)


def complete_result(
    raw: Result,
    *,
    n_clusters: int | None,
    sizes: Sequence[int] | None = None,
    site_sizes: Mapping[str, Sequence[int]] | None = None,
    profile: Profile | None = None,
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
        In the order of :func:`merge_equal_centroids`; likewise ``site_sizes`` and ``profile``.
        None: those of ``raw``, whose method counted its clusters and left no equal centroids.
    **update
        Other fields of the result.
    """
    if sizes is None:
        sizes, site_sizes = raw.sizes, raw.site_sizes
    firsts, cells = merge_equal_centroids(raw.centroids, raw.mask)
    distinct = raw.centroids[firsts]
    mask = None if raw.mask is None else raw.mask[firsts]
    # The mask settles ties, where a known 0 stands beside an unknown value.
    keys = distinct if mask is None else np.column_stack([np.where(mask, distinct, 0.0), mask])
    order = tolerant_lexsort(keys)
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
    original = raw.centroids_original[firsts][order]
    if mask is not None:
        mask = mask[order]
        centroids, original = np.where(mask, centroids, 0.0), np.where(mask, original, 0.0)
    return raw.model_copy(
        update={
            "centroids": _frozen(centroids),
            "centroids_original": _frozen(original),
            "mask": None if mask is None else _frozen(mask),
            **_prototypes(raw, place[cells]),
            "sizes": None if sizes is None else tuple(sizes[k] for k in order),
            "site_sizes": {
                site: tuple(own[k] for k in order)
                for site, own in sorted((site_sizes or {}).items())
            },
            "profile": None if profile is None else _sorted(profile, order),
            "mapping": {
                site: tuple(int(place[cells[k]]) if k >= 0 else -1 for k in own)
                for site, own in sorted(raw.mapping.items())
            },
            "warnings": warnings,
            **update,
        }
    )


def _sorted(profile: Profile, order: NDArray[np.int64]) -> Profile:
    by_cluster = ("known", "means", "deviations")
    return profile.model_copy(
        update={name: _frozen(getattr(profile, name)[order]) for name in by_cluster}
    )


def _prototypes(raw: Result, place: NDArray[np.int64]) -> dict[str, Any]:
    """Return the prototypes sorted by value, and their clusters' new numbers."""
    if raw.prototypes is None or raw.prototype_labels is None:
        return {}
    order = tolerant_lexsort(raw.prototypes)
    labels = place[np.array(raw.prototype_labels, dtype=np.int64)][order]
    return {
        "prototypes": _frozen(raw.prototypes[order]),
        "prototype_labels": tuple(int(label) for label in labels),
    }


def _frozen(array: NDArray[_T]) -> NDArray[_T]:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
