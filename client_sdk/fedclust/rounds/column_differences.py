"""Which site codes a column otherwise than the others: other unit, reversed, shifted, mixed up.

The preparation finds other units of numbers by the sites' means and spreads
(``rounds.preparation``); these columns are left out from the start. This module finds the rest.

What it computes
    **Scale.** Every column is centred at the sites' typical value, divided by the typical spread
    below or above it, and passed through the inverse hyperbolic sine: skewed columns become even,
    and a value in another unit stays far off without outweighing all others.

    **Regions.** All sites' cells are clustered, in about two regions for each cluster. Each cell of
    the site in question goes to the region of the others' cells that fits it, where a column counts
    as at most two standard deviations off: one column that is coded otherwise cannot move a cell
    to another region, and the site's mix of clusters does not matter.

    **Offset.** How far the site's means lie from the others' in these regions: the root of the mean
    square over persons, less what chance alone gives. A column is charged with what it adds to the
    offsets of all columns: with what is gone where regions are chosen without it, at most its own.
    So it is charged with what its wrong values do to other columns.

    **Statistic.** This charge, less that of half of the site's other columns, over its standard
    error, which allows for few cells and for ordinary differences between hospitals. From
    ``_LIMIT`` on, the column differs.

    The clearest column of all sites is named first. What its site says of it is then left out, and
    all is compared again.

``make bench column_differences`` measures how often it names the right site and column, and how
often it names any where all sites agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmax, tolerant_argmin
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans

#: A site is compared with at least so many others: fewer cannot say which of them differs.
_FEWEST_OTHERS = 3
#: Regions for each cluster, at least, and at most one for so many cells.
_REGIONS_PER_CLUSTER, _FEWEST_REGIONS, _CELLS_PER_REGION = 2, 6, 8
_RESTARTS = 5
#: Standard deviations that a column counts at most where regions are made or chosen.
_FAR = 2.0
#: The variance of ordinary differences between hospitals, as a share of a column's variance.
_ORDINARY = 0.03
#: From so many standard errors on, a column differs. Where all sites agreed, about 2 of 100
#: sessions had any (``make bench column_differences``).
_LIMIT = 6.0


def differing_columns(
    sites: Mapping[str, Cells],
    binary: BoolArray,
    n_clusters: int,
    min_sites: int,
    seed: int,
    found: Mapping[str, Sequence[int]],
) -> dict[str, tuple[int, ...]] | None:
    """Return the columns that a site codes otherwise than the others, for each site that does.

    None where sites are too few to compare them.

    Parameters
    ----------
    sites : mapping of site to Cells
        Those with persons; no cell is empty.
    binary : (d,) bool
        The yes/no columns, levels included.
    n_clusters : int
        The largest K of several.
    min_sites : int
        A site is compared with at least so many others, and with at least three.
    seed : int
    found : mapping of site to int
        Columns that sites code otherwise by their means and spreads; the answer repeats them.
    """
    names = sorted(sites)
    agrees = np.ones((len(names), len(binary)), dtype=np.bool_)
    if len(names) <= max(min_sites, _FEWEST_OTHERS):
        return None
    for own, name in zip(agrees, names, strict=True):
        own[list(found.get(name, ()))] = False
    cells = _scaled_cells([sites[name] for name in names], binary)
    n_regions = max(_REGIONS_PER_CLUSTER * n_clusters, _FEWEST_REGIONS)
    while True:
        degrees = _degrees(cells, agrees, n_regions, seed)
        site, column = divmod(int(tolerant_argmax(degrees.ravel())), len(binary))
        most = agrees.copy()
        most[site, column] = False
        # Most sites agree, or nobody can say which of them differ.
        if degrees[site, column] < _LIMIT or 2 * (~most.all(axis=1)).sum() >= len(names):
            break
        agrees = most
    return {
        name: tuple(np.flatnonzero(~own).tolist())
        for name, own in zip(names, agrees, strict=True)
        if not own.all()
    }


@dataclass(frozen=True)
class _SiteCells:
    """All sites' cells: ``X`` (m, d), and of each (m,) its site, and its share of its persons."""

    X: FloatArray
    sites: IntArray
    shares: FloatArray


def _scaled_cells(found: list[Cells], binary: BoolArray) -> _SiteCells:
    """Return the cells with each column centred and scaled by what is typical of the sites."""
    shares = [each.counts / each.counts.sum() for each in found]
    means = [own @ each.means for own, each in zip(shares, found, strict=True)]
    centre = np.median(means, axis=0)
    X = np.concatenate([each.means for each in found]) - centre
    sites = np.repeat(np.arange(len(found)), [len(each.counts) for each in found])
    for side in (X < 0.0, X > 0.0):
        squares = np.where(side, X**2, 0.0)
        spreads = [2.0 * own @ squares[sites == i] for i, own in enumerate(shares)]
        # At many sites nobody has what is rare.
        typical = np.where(binary, np.mean(spreads, axis=0), np.median(spreads, axis=0))
        scale = np.where(typical > 0.0, np.sqrt(typical), np.inf)
        X = np.where(side, np.arcsinh(X / scale), X)
    return _SiteCells(X, sites, np.concatenate(shares))


def _degrees(cells: _SiteCells, agrees: BoolArray, n_regions: int, seed: int) -> FloatArray:
    """Return how clearly each site differs in each column (S, d), in standard errors.

    ``agrees`` (S, d): what counts; it is 0 elsewhere.
    """
    known = agrees[cells.sites]
    X = np.where(known, cells.X, 0.0)
    rng = server_rng(seed, "column-differences")
    n_regions = min(n_regions, max(1, len(X) // _CELLS_PER_REGION))
    near = np.clip(X, -_FAR, _FAR)
    centroids = weighted_kmeans(near, cells.shares, n_regions, rng, n_restarts=_RESTARTS)
    weights = _weights(nearest_centroid(near, centroids), cells.shares, len(centroids))
    powers = (known, X, X**2)
    every = [cells.sites == site for site in range(len(agrees))]
    sums = np.array([[weights[:, own] @ power[own] for power in powers] for own in every])
    degrees = np.zeros(agrees.shape)
    for site, own in enumerate(every):
        others = np.delete(sums, site, axis=0).sum(axis=0)
        persons, totals, squares = others[:, (others[0] > 0.0).all(axis=1)]
        regions = totals / persons
        within = (squares - persons * regions**2).sum(axis=0) / persons.sum(axis=0)
        charges = _charges(X[own], cells.shares[own], regions, within, agrees[site])
        n_cells, rest = own.sum(), np.zeros(len(charges))
        if len(charges) > 1:
            rest[:] = [np.median(np.delete(charges, j)) for j in range(len(charges))]
        variances = within / n_cells + within / (len(X) - n_cells) + _ORDINARY
        degrees[site] = (charges - rest) / np.sqrt(variances)
    return np.where(agrees, degrees, 0.0)


def _charges(
    X: FloatArray, shares: FloatArray, regions: FloatArray, within: FloatArray, agrees: BoolArray
) -> FloatArray:
    """Return what each column (d,) of a site's cells X (m, d) adds to how far all are off.

    ``regions`` (r, d) are the others', and ``within`` (d,) their variances in them.
    """
    apart = np.where(agrees, X[:, None] - regions, 0.0)
    squares = np.minimum(apart**2, _FAR**2)
    total = squares.sum(axis=2)

    def offsets(distances: FloatArray) -> FloatArray:
        nearest = tolerant_argmin(distances)
        own, weights = apart[np.arange(len(X)), nearest], _weights(nearest, shares, len(regions))
        persons, n_cells = weights.sum(axis=1)[:, None], (weights > 0.0).sum(axis=1)[:, None]
        means = weights @ own / np.maximum(persons, 1e-300)
        found = persons * (means**2 - within / np.maximum(n_cells, 1))
        return np.asarray(np.sqrt(np.maximum(found.sum(axis=0), 0.0)))

    whole = offsets(total).sum()
    charges = np.zeros(len(agrees))
    for j in np.flatnonzero(agrees):
        without = offsets(total - squares[:, :, j])
        charges[j] = min(whole - np.delete(without, j).sum(), without[j])
    return charges


def _weights(labels: IntArray, shares: FloatArray, n_regions: int) -> FloatArray:
    """Return the share (r, m) of persons that each cell adds to each region."""
    return np.where(labels == np.arange(n_regions)[:, None], shares, 0.0)
