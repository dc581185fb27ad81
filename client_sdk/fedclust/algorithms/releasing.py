"""From a wanted partition to numbers that may leave: the one way out, for every method.

Rules 1 to 4 of ALGORITHMS "Disclosure control" are applied here, in this order: the guard changes
the partition until it may be sent, moments are taken of what remains, prevalences are rounded, and
every other number follows from these moments.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Memory, RuleViolation, RunConfig, SiteData, Totals
from fedclust.algorithms.columns import blocks_of
from fedclust.algorithms.spaces import binary_columns
from fedclust.privacy.checks import check_provenance
from fedclust.privacy.counting import PersonIndex, distinct_views
from fedclust.privacy.guard import Guard
from fedclust.privacy.moments import (
    CellMoments,
    cell_moments,
    round_feature_prevalence,
    round_prevalence,
    total_moments,
)
from fedclust.privacy.shares import Shares

#: The partitions of one method's rounds and of the evaluation share their cells' numbers.
CANDIDATE = "0"
_GUARD = "guard"
_MOST_CELLS = 10_000


@dataclass(frozen=True)
class Released:
    """A partition that may be sent.

    Attributes
    ----------
    labels : (n,) int64
        Cell of each row; -1 for the rest, which may not be sent in any form.
    moments : CellMoments
        Counts (K,), means and M2 (K, d) in the scaled space, prevalences rounded.
    rounded : (K, d) bool
        Where they were, if only to themselves: every further number must come from the moments
        there, not from rows.
    """

    labels: NDArray[np.int64]
    moments: CellMoments
    rounded: NDArray[np.bool_]

    @property
    def empty(self) -> bool:
        """Whether every row stays in the rest."""
        return not self.moments.counts.any()


def index_of(data: SiteData) -> PersonIndex:
    """Return what counts the persons behind a site's rows."""
    return data.index if data.index is not None else PersonIndex(data.X, data.persons)


def persons(data: SiteData) -> int:
    """Return the number of persons behind all of a site's rows."""
    return index_of(data).count(np.ones(len(data.X), dtype=np.bool_))


def release(
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    wanted: NDArray[np.int64],
    n_cells: int,
    candidate: str = CANDIDATE,
) -> tuple[Released, Memory]:
    """Return what may be sent of a wanted partition, and the memory that records it.

    Parameters
    ----------
    data : SiteData
        Scaled rows.
    config : RunConfig
    memory : dict
        The session's memory at this site.
    wanted : (n,) int64
        Cell of each row, -1 for none.
    n_cells : int
    candidate : str
        A cell number means the same cell in every partition of one candidate.
    """
    if n_cells > _MOST_CELLS:
        raise RuleViolation("cells", f"a task has at most {_MOST_CELLS} cells")
    index = index_of(data)
    views, _ = distinct_views(data.observed, index, config.p)
    guard = Guard(
        index,
        config.p,
        views=views,
        memory=memory.get(_GUARD),
        differencing=config.policy.differencing == "guard",
    )
    if config.sweep:
        # Cells of one number under different K are different cells.
        candidate = f"{config.options.n_clusters}, {candidate}"
    labels = guard.release(wanted, n_cells, candidate)
    if guard.exhausted:
        warnings.warn(
            "so much was sent in this session that nothing new can be judged: this site repeats "
            "what it sent before, or sends nothing",
            RuntimeWarning,
            stacklevel=2,
        )
    check_provenance(index, labels, n_cells, config.p, views)
    exact = cell_moments(data.X, labels, n_cells)
    center, scale = config.space.center, config.space.scale
    blocks = blocks_of(config.columns)
    shares = Shares(
        data.X,
        index,
        config.p,
        columns=binary_columns(config.columns),
        center=center,
        scale=scale,
        observed=data.observed,
        blocks=blocks,
    )
    flags = shares.spread(guard.round_shares(shares, labels, n_cells))
    moments = round_prevalence(exact, flags, config.p, center=center, scale=scale, blocks=blocks)
    return Released(labels, moments, flags), {**memory, _GUARD: guard.memory()}


def site_totals(data: SiteData, config: RunConfig) -> Totals:
    """Return the totals of a site's scaled rows. The caller has counted its persons."""
    d = data.X.shape[1]
    moments = round_feature_prevalence(
        total_moments(data.X),
        data.X,
        index_of(data),
        config.p,
        columns=binary_columns(config.columns),
        center=config.space.center,
        scale=config.space.scale,
        observed=sendable_values(data, config.p),
        blocks=blocks_of(config.columns),
    )
    return Totals(n=len(data.X), mean=moments.means.reshape(d), m2=moments.m2.reshape(d))


def feature_moments(
    data: SiteData, config: RunConfig
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (observed, mean, m2), each (d,), of rows in own units, NaN where missing.

    A feature with values of fewer than p persons counts as not observed at all.
    """
    observed = sendable_values(data, config.p)
    d = data.X.shape[1]
    moments = round_feature_prevalence(
        total_moments(data.X, observed),
        data.X,
        index_of(data),
        config.p,
        columns=binary_columns(config.columns),
        center=np.zeros(d),
        scale=np.ones(d),
        observed=observed,
        blocks=blocks_of(config.columns),
    )
    return moments.counts, moments.means, moments.m2


def sendable_values(data: SiteData, p: int) -> NDArray[np.bool_] | None:
    """Return which values (n, d) may enter a sum; None for all of them.

    NaN may not, nor any value of a feature that fewer than ``p`` persons have.
    """
    observed = data.observed
    if observed is None:
        if not np.isnan(data.X).any():
            return None
        observed = ~np.isnan(data.X)
    _, sendable = distinct_views(observed, index_of(data), p)
    return np.asarray(observed & sendable)
