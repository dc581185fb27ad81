"""How clear clusters are, compared with pieces of one cloud without clusters.

The coordinator makes artificial persons who have the sites' spread, skew and correlations in each
column, but no clusters: one peak in each column, correlated by a normal copula. It sends them
through what real persons pass: groups, middle values, cells, k-means. Clusters that are there are
clearer than the pieces of such clouds. Where values are missing at sites, they are missing in the
cloud too, for as many persons, and as correlated with each other and with the columns: each such
column has a second one that says who lacks it.

References
----------
Cario & Nelson, "Modeling and generating random vectors with arbitrary marginal distributions and
correlation matrix", 1997 (NORTA).
Tibshirani, Walther & Hastie, "Estimating the number of clusters in a data set via the gap
statistic", 2001: the same comparison, with a box in place of the cloud.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.distances import CentroidRule, keep_means, nearest_centroid, squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import form_table
from fedclust.rounds.model_selection import CLEAR
from fedclust.rounds.record_cells import MOST_VALUES, N_CELLS, RecordCells, cluster_records
from fedclust.schema.result import CloudComparison

#: Clouds drawn for the comparison,
_DRAWS = 20
#: and to find what grouping takes away: in each of so many passes.
_TRIAL_DRAWS = 2
_PASSES = 2
#: Persons drawn for a site: enough that it has ``N_CELLS`` groups, or this many; and of all sites.
_SITE_PERSONS = 300
_ALL_PERSONS = 2_000
#: The mean size of a group over the least one, as grouping leaves it.
_MEAN_SIZE = 1.2
#: Random starts of k-means, of the sites' cells and of drawn ones.
_RESTARTS = 4
#: Points that describe the distribution of a column, and bins in which it gets a single peak.
_QUANTILES = 400
_BINS = 40
#: The least eigenvalue of the latent correlations.
_LEAST_EIGENVALUE = 1e-6
#: A value of few that some persons have is drawn for at least this share of them.
_LEAST_SHARE = 1e-4
#: A column that a smaller share of persons lacks is lacking at random in the cloud: with whom that
#: is correlated cannot be estimated from a few groups.
_RARELY = 0.1
#: Share of persons whose cluster here must be the session's own.
_AGREEMENT = 0.9

_GRID = (np.arange(_QUANTILES) + 0.5) / _QUANTILES


# --- the comparison -------------------------------------------------------------------------------


def compare_with_cloud(
    sites: Sequence[RecordCells],
    n_groups: Sequence[int],
    centroids: Mapping[int, FloatArray],
    *,
    p: int,
    seed: int,
    rule: CentroidRule = keep_means,
) -> dict[int, CloudComparison]:
    """Compare the clusters of each K with pieces of one cloud.

    Parameters
    ----------
    sites : sequence of RecordCells
        In an order that depends on nothing but the session.
    n_groups : sequence of int
        Of each site.
    centroids : mapping of int to (K, d) float64
        By K: the session's own, scaled.
    p : int
        The session's; 1 without protection.
    seed : int
    rule : CentroidRule
        The session's.

    Returns
    -------
    dict of int to CloudComparison
        By K.
    """
    cloud = _OneCloud(sites, n_groups, p)
    X, weights = cloud.cells.X, cloud.cells.weights
    n_different = len(np.unique(X, axis=0))
    found = {
        k: _clusters(X, weights, k, server_rng(seed, f"cells-{k}"), rule)
        for k in centroids
        if 2 <= k < n_different
    }
    if found:
        cloud.fit(seed)
    drawn: dict[int, list[_Clusters]] = {k: [] for k in found}
    for draw in range(_DRAWS if found else 0):
        simulated = cloud.draw(server_rng(seed, f"cloud-{draw}")).cells
        for k, clusters in drawn.items():
            rng = server_rng(seed, f"cloud-{draw}-{k}")
            clusters.append(_clusters(simulated.X, simulated.weights, k, rng, rule))
    few = "It takes two clusters or more, and more different records than clusters."
    result = dict.fromkeys(centroids, CloudComparison(n_draws=0, not_judged=few))
    for k, own in found.items():
        result[k] = _compare(own, drawn[k], _match(X, weights, own, centroids[k]))
    return result


@dataclass(frozen=True)
class _Clusters:
    """Clusters of cells: ``fit`` is the logarithm of their inertia over that of one cluster.

    ``centroids`` (K, d), ``labels`` (m,), and how far each stands apart: ``separation`` (K,).
    """

    centroids: FloatArray
    labels: IntArray
    fit: float
    separation: FloatArray


def _clusters(
    X: FloatArray, weights: FloatArray, k: int, rng: np.random.Generator, rule: CentroidRule
) -> _Clusters:
    centroids = weighted_kmeans(X, weights, k, rng, _RESTARTS, rule)
    k = len(centroids)
    squares = squared_distances(X, centroids)
    labels = squares.argmin(axis=1)
    inertia = np.bincount(labels, weights * squares.min(axis=1), minlength=k)
    persons = np.bincount(labels, weights, minlength=k)
    one = rule(np.average(X, axis=0, weights=weights)[None])
    whole = max(float(weights @ squared_distances(X, one)[:, 0]), 1e-300)
    # How much inertia two clusters gain by being two, over what they have.
    gained = squared_distances(centroids, centroids) * np.outer(persons, persons)
    gained /= np.maximum(persons[:, None] + persons, 1.0)
    ratios = gained / np.maximum(inertia[:, None] + inertia, 1e-12 * whole)
    np.fill_diagonal(ratios, np.inf)
    fit = float(np.log(max(float(inertia.sum()), 1e-12 * whole) / whole))
    return _Clusters(centroids, labels, fit, ratios.min(axis=1, initial=np.inf))


def _match(
    X: FloatArray, weights: FloatArray, own: _Clusters, centroids: FloatArray
) -> IntArray | None:
    """Return which of the clusters found here is each of the session's (K,), if they agree."""
    # Imported here: it takes a while.
    from scipy.optimize import linear_sum_assignment

    if len(centroids) != len(own.centroids):
        return None
    matched = linear_sum_assignment(squared_distances(centroids, own.centroids))[1]
    agree = matched[nearest_centroid(X, centroids)] == own.labels
    return matched if weights[agree].sum() >= _AGREEMENT * weights.sum() else None


def _compare(
    own: _Clusters, drawn: Sequence[_Clusters], matched: IntArray | None
) -> CloudComparison:
    # Imported here: it takes a while.
    from scipy.special import stdtr

    fits = np.array([each.fit for each in drawn])
    gap = float(fits.mean()) - own.fit
    error = float(fits.std(ddof=1)) * np.sqrt(1.0 + 1.0 / len(fits))
    p = _two_digits(float(stdtr(len(fits) - 1, -gap / max(error, 1e-12))))
    cluster_p = None
    if p <= CLEAR and matched is not None:
        others = np.concatenate([each.separation for each in drawn])
        reached = (others >= own.separation[matched][:, None]).sum(axis=1)
        cluster_p = np.array([_two_digits((1 + n) / (1 + len(others))) for n in reached.tolist()])
    not_judged = None
    if p <= CLEAR and matched is None:
        not_judged = (
            "The clusters of the sites' cells differ from the session's own in more than a tenth "
            "of the persons: whether each stands apart is not judged."
        )
    return CloudComparison(
        n_draws=len(drawn),
        p=p,
        gap=gap,
        gap_error=error,
        cluster_p=cluster_p,
        not_judged=not_judged,
    )


def _two_digits(p: float) -> float:
    """Round p: eigenvectors differ in their last bits from one processor to the next."""
    return float(f"{p:.1e}")


# --- the cloud ------------------------------------------------------------------------------------


class _Cells(NamedTuple):
    """Pooled cells: ``X`` (m, d), ``known`` (m, d) shares, and ``weights`` (m,), persons."""

    X: FloatArray
    known: FloatArray
    weights: FloatArray


@dataclass
class _Few:
    """A column of few ``values`` (v,).

    ``reached`` (v - 1,): the share of persons whose record is at or below each but the last;
    ``cuts`` (v - 1,): that of drawn persons.
    """

    values: FloatArray
    reached: FloatArray
    cuts: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.cuts = self.reached

    def shift(self, simulated: FloatArray) -> None:
        """Move the cuts by what drawn records lack."""
        moved = np.clip(self.cuts + self.reached - simulated, _LEAST_SHARE, 1.0 - _LEAST_SHARE)
        self.cuts = np.maximum.accumulate(moved)


@dataclass(frozen=True)
class _Draw:
    """Drawn sites.

    Attributes
    ----------
    cells : _Cells
    lost : (e, e) float64
        Covariance of the persons less that of their cells, of columns and of who lacks them.
    reached : dict of int to (v - 1,) float64
        For each column of few values as in ``_Few``, of the records.
    """

    cells: _Cells
    lost: FloatArray
    reached: dict[int, FloatArray]


class _OneCloud:
    """One cloud that has the spread, skew and correlations of all sites' cells.

    Besides the d columns of the session it has one for each column that some records lack: 1 for
    persons who lack it, else 0. e columns together.
    """

    def __init__(self, sites: Sequence[RecordCells], n_groups: Sequence[int], p: int) -> None:
        means = np.concatenate([site.means for site in sites])
        middles = np.concatenate([site.middle_values() for site in sites])
        known = np.concatenate([site.known_shares() for site in sites])
        weights = np.concatenate([site.counts for site in sites]).astype(np.float64)
        d = means.shape[1]
        self._few = _few_values(sites)
        self._use_middles = np.isin(np.arange(d), list(self._few))
        self.cells = _Cells(np.where(self._use_middles, middles, means), known, weights)
        share = np.average(known, axis=0, weights=weights)
        self._lacking = np.flatnonzero(share < 1.0)
        self._rarely_lacking = d + np.flatnonzero(1.0 - share[self._lacking] < _RARELY)
        yes = np.array([0.0, 1.0])
        self._few |= {d + i: _Few(yes, share[[j]]) for i, j in enumerate(self._lacking)}
        self._mean = np.average(means, axis=0, weights=weights)
        self._covariance = _covariance(self._with_lacking(self.cells), weights)
        self._sites = _drawn_sites(sites, n_groups, p)

    def _with_lacking(self, cells: _Cells) -> FloatArray:
        """Return all columns (m, e) of cells."""
        return np.column_stack([cells.X, 1.0 - cells.known[:, self._lacking]])

    def fit(self, seed: int) -> None:
        """Find the distribution of persons whose cells have the sites' covariance and shares."""
        wide = np.flatnonzero(~self._use_middles).tolist()
        observed = {j: self._shape(j, self.cells) for j in wide}
        self._shapes = {j: _standardised(each) for j, each in observed.items()}
        self._settle(np.zeros_like(self._covariance))
        for trial in range(_PASSES):
            rng = server_rng(seed, f"trial-{trial}")
            drawn = [self.draw(rng) for _ in range(_TRIAL_DRAWS)]
            for j, few in self._few.items():
                few.shift(np.mean([each.reached[j] for each in drawn], axis=0))
            pooled = _Cells(*map(np.concatenate, zip(*(each.cells for each in drawn), strict=True)))
            # Cells pull the middle of a distribution together and leave its tails.
            for j, shape in observed.items():
                moved = self._quantiles[j] + shape - self._shape(j, pooled)
                self._shapes[j] = _standardised(_one_peak_quantiles(moved, np.ones(_QUANTILES)))
            self._settle(np.mean([each.lost for each in drawn], axis=0))

    def _shape(self, j: int, cells: _Cells) -> FloatArray:
        """Return quantiles of a column of cells, with one peak, about its mean."""
        known = cells.known[:, j]
        if not known.any():
            return np.zeros(_QUANTILES)
        used = known >= min(0.5, known.max())
        # Imputed records are at the mean.
        values = (cells.X[used, j] - self._mean[j]) / known[used]
        return _one_peak_quantiles(values, (cells.weights * known)[used])

    def _settle(self, lost: FloatArray) -> None:
        """Set quantiles and latent correlations for persons, by what their cells have lost."""
        # Imported here: it takes a while.
        from scipy.special import ndtri

        S = self._covariance + lost
        sd = np.sqrt(np.maximum(np.diag(S), 0.0))
        self._quantiles = np.empty((len(sd), _QUANTILES))
        for j, few in self._few.items():
            self._quantiles[j] = few.values[np.searchsorted(few.cuts, _GRID)]
        for j, shape in self._shapes.items():
            self._quantiles[j] = self._mean[j] + shape * sd[j]
        centred = self._quantiles - self._quantiles.mean(axis=1, keepdims=True)
        z = ndtri(_GRID)
        widths = np.sqrt((centred**2).sum(axis=1) * (z @ z))
        scale = sd * np.divide(centred @ z, widths, out=np.zeros_like(sd), where=widths > 0.0)
        spread = np.where(scale > 0.0, scale, 1.0)
        R = np.where(np.outer(scale, scale) > 0.0, S / np.outer(spread, spread), 0.0)
        # Nobody knows the values of those who lack them.
        own = np.arange(len(sd) - len(self._lacking), len(sd))
        R[self._lacking, own] = R[own, self._lacking] = 0.0
        R[self._rarely_lacking] = R[:, self._rarely_lacking] = 0.0
        np.fill_diagonal(R, 1.0)
        values, vectors = np.linalg.eigh(R)
        # The symmetric root: the signs of eigenvectors differ between processors.
        root = (vectors * np.sqrt(np.maximum(values, _LEAST_EIGENVALUE))) @ vectors.T
        self._root = root / np.sqrt((root**2).sum(axis=1))[:, None]

    def draw(self, rng: np.random.Generator) -> _Draw:
        """Draw the persons of some sites, and form their tables and cells."""
        everybody, tables = [], []
        for n, least in self._sites:
            persons, codes = self._persons(n, rng)
            everybody.append(persons)
            tables.append(self._table(codes, least))
        records = np.concatenate([each for each, _ in tables])
        sizes = np.concatenate([each for _, each in tables])
        known = ~np.isnan(records)
        held = known * sizes[:, None]
        total = held.sum(axis=0)
        mean = (np.where(known, records, 0.0) * held).sum(axis=0) / np.maximum(total, 1)
        mean = np.where(total > 0, mean, self._mean)
        found = [
            cluster_records(np.where(np.isnan(own), mean, own), ~np.isnan(own), counts, rng)
            for own, counts in tables
        ]
        means, middles, held, counts = (np.concatenate(each) for each in zip(*found, strict=True))
        X = np.where(self._use_middles, middles, means)
        cells = _Cells(X, held / counts[:, None], counts.astype(np.float64))
        persons = np.concatenate(everybody)
        lost = _covariance(persons, np.ones(len(persons)))
        lost -= _covariance(self._with_lacking(cells), cells.weights)
        whole = _Cells(records, known, sizes.astype(np.float64))
        columns = self._with_lacking(whole).T
        reached = {
            j: _reached(columns[j], few.values, whole.weights) for j, few in self._few.items()
        }
        return _Draw(cells, lost, reached)

    def _persons(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Draw persons: all columns (n, e), and the session's (n, d) as a site would hold them.

        A site holds NaN where a value is missing, and the place of the value in a column of few.
        """
        from scipy.special import ndtr

        u = ndtr(rng.standard_normal((n, len(self._root))) @ self._root.T)
        persons = np.empty_like(u)
        held = persons[:, : len(self._use_middles)].copy()
        for j in self._shapes:
            held[:, j] = persons[:, j] = np.interp(u[:, j], _GRID, self._quantiles[j])
        for j, few in self._few.items():
            places = np.searchsorted(few.cuts, u[:, j])
            persons[:, j] = few.values[places]
            if j < held.shape[1]:
                held[:, j] = places
        lacked = np.zeros(held.shape, dtype=np.bool_)
        lacked[:, self._lacking] = persons[:, held.shape[1] :] == 1.0
        return persons, np.where(lacked, np.nan, held)

    def _table(self, codes: FloatArray, least: int) -> tuple[FloatArray, IntArray]:
        """Return the records (m, d) of persons (n, d), NaN where missing, and their sizes (m,)."""
        if least == 1:
            records, sizes = codes.copy(), np.ones(len(codes), dtype=np.int64)
        else:
            columns = [SourceColumn(str(j), x) for j, x in enumerate(np.ascontiguousarray(codes.T))]
            table = form_table(columns, least)
            records, sizes = np.column_stack(table.released), table.sizes
        for j in np.flatnonzero(self._use_middles).tolist():
            held = ~np.isnan(records[:, j])
            places = np.rint(records[held, j]).astype(np.int64)
            records[held, j] = self._few[j].values[places]
        return records, sizes


def _drawn_sites(
    sites: Sequence[RecordCells], n_groups: Sequence[int], p: int
) -> list[tuple[int, int]]:
    """Return persons and p of each site that is drawn: of many sites every other, or fewer."""
    found = []
    for site, groups in zip(sites, n_groups, strict=True):
        n = int(site.counts.sum())
        # Groups of complete persons are larger only where the site's own p is.
        least = max(p, round(n / groups / _MEAN_SIZE)) if site.known is None else p
        found.append((min(n, max(_SITE_PERSONS, N_CELLS * least)), least))
    found.sort()
    step = -(-sum(n for n, _ in found) // _ALL_PERSONS)
    return found[step // 2 :: step]


def _few_values(sites: Sequence[RecordCells]) -> dict[int, _Few]:
    """Return the columns that have at most ``MOST_VALUES`` values at all sites together."""
    described = [site.columns() for site in sites]
    found = {}
    for j in sorted(set.intersection(*map(set, described))):
        # Scaled values that differ in their last digits are one value.
        digits = np.round(np.concatenate([columns[j][0] for columns in described]), 9)
        values, places = np.unique(digits, return_inverse=True)
        if len(values) <= MOST_VALUES:
            persons = np.concatenate([columns[j][1] for columns in described])
            shares = np.bincount(places, weights=persons).astype(np.float64)
            if len(values) > 2:
                shares = _one_peak(shares)
            found[j] = _Few(values, (np.cumsum(shares) / shares.sum())[:-1])
    return found


def _reached(column: FloatArray, values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the share of persons at or below each of a column's values but the last (v - 1,)."""
    held = ~np.isnan(column)
    total = max(float(weights[held].sum()), 1.0)
    return np.asarray((column[held, None] <= values[:-1]).T @ weights[held] / total)


def _standardised(shape: FloatArray) -> FloatArray:
    return np.asarray((shape - shape.mean()) / max(float(shape.std()), 1e-300))


def _covariance(X: FloatArray, weights: FloatArray) -> FloatArray:
    centred = X - np.average(X, axis=0, weights=weights)
    return np.asarray((centred * weights[:, None]).T @ centred / weights.sum())


def _one_peak_quantiles(column: FloatArray, weights: FloatArray) -> FloatArray:
    """Return quantiles (``_QUANTILES``,) of a column's distribution, made to rise and fall once."""
    order = np.argsort(column, kind="stable")
    ranked, mass = column[order], weights[order]
    quantiles = np.interp(_GRID, (np.cumsum(mass) - mass / 2.0) / mass.sum(), ranked)
    if quantiles[0] == quantiles[-1]:
        return quantiles
    counts, edges = np.histogram(quantiles, _BINS)
    reached = np.append(0.0, np.cumsum(_one_peak(counts.astype(np.float64))))
    return np.asarray(np.interp(_GRID, reached / reached[-1], edges))


def _one_peak(counts: FloatArray) -> FloatArray:
    """Return the nearest counts (least squares) that rise to a peak and fall after it."""
    # Imported here: it takes a while.
    from scipy.optimize import isotonic_regression

    best, least = counts, np.inf
    for peak in range(len(counts)):
        rising, falling = isotonic_regression(counts[: peak + 1]).x, counts[peak + 1 :]
        if len(falling):
            falling = isotonic_regression(falling, increasing=False).x
        fitted = np.append(rising, falling)
        cost = float(((fitted - counts) ** 2).sum())
        if cost < least:
            best, least = fitted, cost
    return best
