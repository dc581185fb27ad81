"""The end of a session: merge equal centroids, sort clusters, map to own units."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_lexsort
from fedclust.numeric.distances import first_occurrences
from fedclust.schema.encoding import undone
from fedclust.schema.result import Result, SweepEntry
from fedclust.schema.run_config import RunConfig

_T = TypeVar("_T", bound=np.generic)


def raw_result(centroids: FloatArray, config: RunConfig, **found: Any) -> Result:
    """Return a method's result before :func:`sort_clusters` sorts it.

    Parameters
    ----------
    centroids : (K, d) float64
        In the scaled space, in the order in which the method numbers its clusters.
    config : RunConfig
    **found
        Other fields of the result.
    """
    return Result(
        centroids=centroids,
        centroids_original=undone(config.columns, config.space.to_original(centroids)),
        columns=tuple(column.name for column in config.columns),
        center=config.space.center,
        scale=config.space.scale,
        impute=config.space.impute,
        limit=config.space.limit,
        dissimilarity=config.policy.dissimilarity,
        **found,
    )


def result_of_several(
    results: Mapping[int, Result], start_agreements: Mapping[int, float | None] | None = None
) -> Result:
    """Return one raw result of those of several K, by K; the largest stands for all."""
    agreements = start_agreements or {}
    entries = tuple(SweepEntry.of(k, results[k], agreements.get(k)) for k in sorted(results))
    update = {"sweep": entries, "warnings": (), "history": ()}
    return entries[-1].result.model_copy(update=update)


def _values_and_mask(centroids: FloatArray, mask: BoolArray | None) -> FloatArray:
    """Return rows that are equal where both the known values and the mask are."""
    if mask is None:
        return centroids
    return np.column_stack([np.where(mask, centroids, 0.0), mask])


def merge_equal_centroids(
    centroids: FloatArray, mask: BoolArray | None = None
) -> tuple[IntArray, IntArray]:
    """Merge centroids (K, d) with the same values known in the same features.

    Returns
    -------
    distinct : (K',) int64
        The first of each set of equal centroids, ascending.
    clusters : (K,) int64
        The index in ``distinct`` of each centroid.
    """
    keys = _values_and_mask(centroids, mask)
    distinct = first_occurrences(keys)
    equal = (keys[:, None, :] == keys[None, distinct, :]).all(axis=2)
    return distinct, equal.argmax(axis=1).astype(np.int64)


def sort_clusters(raw: Result, n_clusters: int | None) -> Result:
    """Return a method's result with its clusters as all that follows has them.

    Merges equal centroids, with a warning if fewer remain than were asked for, and sorts clusters
    lexicographically by scaled centroid.

    Parameters
    ----------
    raw : Result
        Of :func:`raw_result`. If it has sizes, its centroids are distinct.
    n_clusters : int or None
        The number of clusters asked for.
    """
    firsts, clusters = merge_equal_centroids(raw.centroids, raw.mask)
    mask = None if raw.mask is None else raw.mask[firsts]
    order = tolerant_lexsort(_values_and_mask(raw.centroids[firsts], mask))
    new_number, warnings = np.argsort(order), raw.warnings
    if n_clusters is not None and len(firsts) < n_clusters:
        warning = (
            f"{len(firsts)} distinct centroids were found where {n_clusters} were asked for: "
            "the sites' answers hold no more."
        )
        warnings = (*warnings, warning)
    return raw.model_copy(
        update={
            **_select_centroids(raw, firsts[order]),
            **_sort_prototypes(raw, new_number[clusters]),
            **_renumber_leaves(raw, new_number[clusters]),
            "sizes": None if raw.sizes is None else tuple(raw.sizes[k] for k in order),
            "site_sizes": {
                site: tuple(own[k] for k in order) for site, own in sorted(raw.site_sizes.items())
            },
            "mapping": {
                site: tuple(int(new_number[clusters[k]]) if k >= 0 else -1 for k in own)
                for site, own in sorted(raw.mapping.items())
            },
            "warnings": warnings,
        }
    )


def _select_centroids(raw: Result, chosen: IntArray) -> dict[str, Any]:
    """Return the chosen centroids, their values in own units and their mask; 0 where unknown."""
    mask = None if raw.mask is None else _freeze(raw.mask[chosen])
    centroids, original = raw.centroids[chosen] + 0.0, raw.centroids_original[chosen]
    if mask is not None:
        centroids, original = np.where(mask, centroids, 0.0), np.where(mask, original, 0.0)
    return {
        "centroids": _freeze(centroids),
        "centroids_original": _freeze(original),
        "mask": mask,
    }


def _sort_prototypes(raw: Result, new_number: IntArray) -> dict[str, Any]:
    """Return the prototypes sorted by value, and their clusters' new numbers."""
    if raw.prototypes is None or raw.prototype_labels is None:
        return {}
    order = tolerant_lexsort(raw.prototypes)
    labels = new_number[np.array(raw.prototype_labels, dtype=np.int64)][order]
    return {
        "prototypes": _freeze(raw.prototypes[order]),
        "prototype_labels": tuple(int(label) for label in labels),
    }


def _renumber_leaves(raw: Result, new_number: IntArray) -> dict[str, Any]:
    """Return the dendrogram with its clusters' new numbers."""
    if raw.dendrogram is None:
        return {}
    renumbered = _freeze(new_number[raw.dendrogram.clusters])
    return {"dendrogram": raw.dendrogram.model_copy(update={"clusters": renumbered})}


def _freeze(array: NDArray[_T]) -> NDArray[_T]:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
