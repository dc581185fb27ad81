"""From a wanted partition to numbers that may leave: the one way out, for every method.

Rules 1 to 4 of ALGORITHMS "Disclosure control" are applied here, in this order: the guard changes
the partition until it may be sent, moments are taken of what remains, prevalences are rounded, and
every other number follows from these moments.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Memory, RuleViolation, RunConfig, SiteData, Totals
from fedclust.algorithms.columns import blocks_of
from fedclust.algorithms.rows import ArrayRows, Rows
from fedclust.algorithms.spaces import binary_columns
from fedclust.algorithms.tallies import Tally, cells_of, tally
from fedclust.privacy.checks import check_provenance
from fedclust.privacy.counting import Labels, PersonIndex, distinct_views, row_hashes
from fedclust.privacy.guard import Guard
from fedclust.privacy.moments import (
    CellMoments,
    FeatureMoments,
    merge_features,
    round_feature_prevalence,
    round_prevalence,
    sides_of,
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
    labels : (n,) int
        Cell of each row; -1 for the rest, which may not be sent in any form.
    moments : CellMoments
        Counts (K,), means and M2 (K, d) in the scaled space, prevalences rounded.
    rounded : (K, d) bool
        Where they were, if only to themselves: every further number must come from the moments
        there, not from rows.
    """

    labels: Labels
    moments: CellMoments
    rounded: NDArray[np.bool_]

    @property
    def empty(self) -> bool:
        """Whether every row stays in the rest."""
        return not self.moments.counts.any()


@dataclass(frozen=True)
class ReleasedStep:
    """What may be sent of one Lloyd step: ``counts``, ``costs`` (K,) and ``sums`` (K, d)."""

    counts: NDArray[np.int64]
    sums: NDArray[np.float64]
    costs: NDArray[np.float64]


def index_of(data: SiteData) -> PersonIndex:
    """Return what counts the persons behind a site's rows."""
    return data.index if data.index is not None else person_index(data.rows, data.persons)


def person_index(
    rows: Rows, owners: NDArray[np.int64] | None, hashes: NDArray[np.uint64] | None = None
) -> PersonIndex:
    """Return what counts the persons behind rows; ``owners`` (n,): whose each is, where told.

    ``hashes`` (n,): the rows' ``counting.row_hashes``, where they are known.
    """
    if isinstance(rows, ArrayRows):
        return PersonIndex(rows.X, owners)

    def room(shape: tuple[int, ...], kind: type[np.generic]) -> NDArray[Any]:
        return rows.array(kind, *shape[:-1])

    if owners is not None:
        return PersonIndex.of_keys(owners, persons=True, room=room)
    if hashes is None:
        hashes, start = rows.array(np.uint64), 0
        for part in rows.map(row_hashes):
            hashes[start : start + len(part)] = part
            start += len(part)
    return PersonIndex.of_keys(hashes, persons=False, room=room)


def yes_no_sides(data: SiteData, config: RunConfig) -> NDArray[np.bool_]:
    """Return ``moments.sides_of`` a site's scaled rows, made once."""
    return _sides(data, config, config.space.center, config.space.scale)


def _sides(
    data: SiteData, config: RunConfig, center: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.bool_]:
    columns = binary_columns(config.columns)
    asked = [center.tobytes(), scale.tobytes(), columns.tobytes()]
    before = data.derived.get("sides")
    if before is not None and before[0] == asked:
        return np.asarray(before[1])
    found = data.rows.array(np.bool_, 2, int(columns.sum()))
    if columns.any():
        making = partial(_run_sides, columns=columns, center=center, scale=scale)
        start = 0
        for part in data.rows.map(making):
            found[:, :, start : start + part.shape[2]] = part
            start += part.shape[2]
        if data.observed is not None:
            for place, j in enumerate(np.flatnonzero(columns)):
                found[:, place] &= data.observed[:, j]
    data.derived["sides"] = asked, found
    return found


def _run_sides(run: NDArray[np.float64], **how: Any) -> NDArray[np.bool_]:
    return sides_of(run, **how)


def persons(data: SiteData) -> int:
    """Return the number of persons behind all of a site's rows."""
    return index_of(data).total


def release(
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    wanted: Labels,
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
    wanted : (n,) int
        Cell of each row, -1 for none.
    n_cells : int
    candidate : str
        A cell number means the same cell in every partition of one candidate.
    """
    labels, flags, memory = _settled(data, config, memory, wanted, n_cells, candidate)
    moments = _rounded(cells_of(data.rows, labels, n_cells), flags, config)
    return Released(labels, moments, flags), memory


def release_step(
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    wanted: Labels,
    centroids: NDArray[np.float64],
    sums: Tally | None,
    candidate: str = CANDIDATE,
) -> tuple[ReleasedStep, Memory]:
    """Return what may be sent of one Lloyd step, and the memory that records it.

    Parameters
    ----------
    data, config, memory, wanted, candidate
        As for :func:`release`.
    centroids : (K, d) float64
        Of the cells.
    sums : Tally or None
        Of the wanted partition about ``centroids``, where it is known, as :func:`by_column` says:
        it goes out where the guard changes nothing. What the guard changes is added up anew, from
        the rows that may be sent: taking rows off sums would leave traces of them in the last
        digits.
    """
    labels, flags, memory = _settled(data, config, memory, wanted, len(centroids), candidate)
    if sums is None or not np.array_equal(labels, wanted):
        sums = tally(data.rows, labels, centroids, by_column=by_column(config))
    moments = _rounded(sums.moments(centroids), flags, config)
    costs = step_costs(sums, moments, flags, centroids)
    return ReleasedStep(moments.counts, moments.sums, costs), memory


def step_costs(
    sums: Tally, moments: CellMoments, flags: NDArray[np.bool_], centroids: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the cells' costs (K,), from sums over rows and moments rounded where ``flags`` say.

    A rounded share's part of the cost follows from the share: from the rows, it would give the
    exact one back.
    """
    if not flags.any():
        return np.asarray(sums.squares.sum(axis=1))
    implied = moments.m2 + moments.counts[:, None] * (moments.means - centroids) ** 2
    return np.asarray(np.where(flags, implied, sums.squares).sum(axis=1))


def by_column(config: RunConfig) -> bool:
    """Return whether a step needs the squares of each column: where a share may go rounded."""
    return bool(binary_columns(config.columns).any())


def refuse_cells(n_cells: int) -> None:
    """Raise RuleViolation where a task has more cells than any may have."""
    if n_cells > _MOST_CELLS:
        raise RuleViolation("cells", f"a task has at most {_MOST_CELLS} cells")


def _settled(
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    wanted: Labels,
    n_cells: int,
    candidate: str,
) -> tuple[Labels, NDArray[np.bool_], Memory]:
    """Return the partition (n,) that may be sent, its shares (K, d) to round, and the memory."""
    refuse_cells(n_cells)
    index = index_of(data)
    views, _ = distinct_views(data.observed, index, config.p)
    guard = Guard(
        index,
        config.p,
        views=views,
        memory=memory.get(_GUARD),
        differencing=config.policy.protection == "groups",
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
            stacklevel=3,
        )
    check_provenance(index, labels, n_cells, config.p, views)
    shares = Shares(
        data.X,
        index,
        config.p,
        columns=binary_columns(config.columns),
        center=config.space.center,
        scale=config.space.scale,
        observed=data.observed,
        blocks=blocks_of(config.columns),
        sides=yes_no_sides(data, config),
    )
    flags = shares.spread(guard.round_shares(shares, labels, n_cells))
    return labels, flags, {**memory, _GUARD: guard.memory()}


def _rounded(moments: CellMoments, flags: NDArray[np.bool_], config: RunConfig) -> CellMoments:
    return round_prevalence(
        moments,
        flags,
        config.p,
        center=config.space.center,
        scale=config.space.scale,
        blocks=blocks_of(config.columns),
    )


def site_totals(data: SiteData, config: RunConfig) -> Totals:
    """Return the totals of a site's scaled rows. The caller has counted its persons."""
    n, d = data.rows.shape
    center, scale = config.space.center, config.space.scale
    moments = _of_features(data, config, center, scale, sendable_values(data, config.p))
    return Totals(n=n, mean=moments.means.reshape(d), m2=moments.m2.reshape(d))


def feature_moments(
    data: SiteData, config: RunConfig
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (observed, mean, m2), each (d,), of rows in own units, NaN where missing.

    A feature with values of fewer than p persons counts as not observed at all.
    """
    d = data.rows.shape[1]
    sendable = sendable_values(data, config.p)
    moments = _of_features(data, config, np.zeros(d), np.ones(d), sendable, only=sendable)
    return moments.counts, moments.means, moments.m2


def _of_features(
    data: SiteData,
    config: RunConfig,
    center: NDArray[np.float64],
    scale: NDArray[np.float64],
    observed: NDArray[np.bool_] | None,
    only: NDArray[np.bool_] | None = None,
) -> FeatureMoments:
    """Return the moments (d,) of all rows, shares rounded; of the ``only`` (n, d) values alone."""
    d = data.rows.shape[1]
    nothing = np.zeros(d, dtype=np.int64)
    total = FeatureMoments(nothing, np.zeros(d), np.zeros(d))
    along = () if only is None else (only.T,)
    for part in data.rows.map(_run_moments, *along):
        total = merge_features(total, part)
    sides = _sides(data, config, center, scale)
    if observed is not None and data.observed is None:
        sides = sides & observed.T[binary_columns(config.columns)]
    return round_feature_prevalence(
        total,
        data.X,
        index_of(data),
        config.p,
        columns=binary_columns(config.columns),
        center=center,
        scale=scale,
        observed=observed,
        blocks=blocks_of(config.columns),
        sides=sides,
    )


def _run_moments(run: NDArray[np.float64], seen: NDArray[np.bool_] | None = None) -> FeatureMoments:
    return total_moments(run, None if seen is None else seen.T)


def sendable_values(data: SiteData, p: int) -> NDArray[np.bool_] | None:
    """Return which values (n, d) may enter a sum; None for all of them.

    NaN may not, nor any value of a feature that fewer than ``p`` persons have.
    """
    observed = data.observed
    if observed is None:
        if not isinstance(data.X, np.ndarray) or not np.isnan(data.X).any():
            return None
        observed = ~np.isnan(data.X)
    _, sendable = distinct_views(observed, index_of(data), p)
    if sendable.all():
        return observed
    kept = data.rows.array(np.bool_, len(sendable)).T
    np.logical_and(observed, sendable, out=kept)
    return np.asarray(kept)
