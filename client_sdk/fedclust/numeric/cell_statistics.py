"""Estimates from tables of counts by site, cluster and cell, with or without noise.

Comparisons of a cluster with the reference rest on one estimating function, ``U(t) = sum_s x1_s'
M_s x0_s`` with ``M_s = w_s (A - t B)``. The vectors x1_s and x0_s hold the cells of the two
clusters at site s. Noise is independent in every cell and has mean 0, so the noisy U has the mean
of the clean one. Its variance is V + N, of sampling and of noise, each estimated without bias. Both
are quadratic in t, and so is the inequality that gives the 95 % interval: ``U(t)^2 <= 3.84 (V +
N)(t)`` (Fieller, "Some problems in interval estimation", JRSS B 16, 1954). The weights are those of
Mantel and Haenszel, less where noise dominates.

Arrays may have leading axes (...), for many tables at once. NaN is a number that the tables do not
determine, or an open limit. Only finished numbers are clamped to the range of their measure.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedclust.numeric.array_types import BoolArray, FloatArray

#: The 0.975 quantile of the normal distribution: all intervals have a level of 95 %.
Z = 1.959963984540054
#: Without noise, each site needs so many events for a test whether the sites have one effect.
_LEAST_EVENTS = 10
#: A sum below this share of its own terms is rounding.
_ROUNDING = 1e-12


class Interval(NamedTuple):
    """Estimates (...) and the limits (...) of their 95 % intervals."""

    value: FloatArray
    lower: FloatArray
    upper: FloatArray


class Measure(NamedTuple):
    """A measure that compares two clusters: the t with x1' (a - t b) x0 = 0, in ``unit``.

    ``a`` and ``b`` are (J, J) or (..., J, J), ``null`` is its value for equal clusters, ``low`` and
    ``high`` are its range. Weights of sites need the outcome's ``variance`` (...) per person and
    the number of noisy sums that the measure has at a site.
    """

    a: FloatArray
    b: FloatArray
    null: float
    low: float
    high: float
    variance: FloatArray
    noisy: int = 1
    unit: float = 1.0


class Terms(NamedTuple):
    """Of each site U_s(t) = a - t b (..., S); V_s and N_s (..., S, 3) by powers 0 to 2 of t."""

    a: FloatArray
    b: FloatArray
    sampling: FloatArray
    noise: FloatArray


class Survival(NamedTuple):
    """A curve (..., B + 1) at 0 and at the end of each interval; the mean time (...) up to the end.

    ``at_risk`` are the persons who are followed beyond this time.
    """

    at_risk: FloatArray
    curve: Interval
    restricted_mean: Interval


class FollowUp(NamedTuple):
    """What the cells of a time say: event_1, left_1, ..., event_B, left_B, past, no value.

    Intervals have ``width`` (B,). Sums of cells are those with the event (B, J), those at risk at 0
    and at the end of each interval (B + 1, J), and those exposed (B, J): who leaves counts half.
    """

    width: FloatArray
    events: FloatArray
    at_risk: FloatArray
    exposed: FloatArray

    @property
    def person_time(self) -> FloatArray:
        """Time spent in each interval as sums (B, J) of cells; half of it by who leaves there."""
        return self.width[:, None] * (self.exposed - self.events / 2)


def follow_up(edges: ArrayLike) -> FollowUp:
    """Return what the cells of a time with these ends (B,) of intervals say."""
    width = np.diff(np.asarray(edges, dtype=np.float64), prepend=0.0)
    first, cell = 2 * np.arange(len(width) + 1)[:, None], np.arange(2 * len(width) + 2)
    at_risk = ((cell >= first) & (cell < len(cell) - 1)).astype(np.float64)
    events, left = (cell == first[:-1]).astype(np.float64), cell == first[:-1] + 1
    return FollowUp(width, events, at_risk, at_risk[:-1] - left / 2)


# --- Measures -------------------------------------------------------------------------------------


# ``cells`` (..., J) are those of both clusters and all sites together; they serve weights alone.
# ``events`` and ``valid`` (J,) are 1 for cells that are an event, and that have a value; else 0.


def odds_ratio(cells: FloatArray, events: FloatArray, valid: FloatArray) -> Measure:
    """Compare the odds of an event."""
    a = np.outer(events, valid - events)
    return Measure(a, a.T, 1.0, 0.0, math.inf, _variance(cells, events, valid))


def difference(cells: FloatArray, values: FloatArray, valid: FloatArray) -> Measure:
    """Compare means of ``values`` (J,); risks, where these are 1 for an event and else 0."""
    span = float(np.ptp(values[valid > 0])) or 1.0
    scores = values * valid / span
    a, b = np.outer(scores, valid), np.outer(valid, valid)
    return Measure(a - a.T, b, 0.0, -1.0, 1.0, _variance(cells, scores, valid), unit=span)


def superiority(cells: FloatArray, valid: FloatArray) -> Measure:
    """Compare order: the probability of a higher cell, plus half of that of the same one.

    Mann & Whitney, "On a test of whether one of two random variables is stochastically larger",
    Annals of Mathematical Statistics 18, 1947.
    """
    b, n = np.outer(valid, valid), len(valid)
    a = b * (np.tri(n, k=-1) + np.eye(n) / 2)
    return Measure(a, b, 0.5, 0.0, 1.0, np.full(cells.shape[:-1], 1 / 12))


def rate_ratio(cells: FloatArray, times: FollowUp) -> Measure:
    """Compare rates of the event, stratified by interval as the log-rank test is."""
    spent = np.maximum(cells @ times.person_time.T, times.width)
    share = (spent / spent.sum(axis=-1, keepdims=True))[..., None]
    a = times.events.T @ (times.person_time / times.width.sum() / share)
    rate = (cells @ times.events.T).sum(axis=-1) / np.maximum(cells @ times.at_risk[0], 1.0)
    noisy = len(times.width)
    return Measure(a, np.swapaxes(a, -1, -2), 1.0, 0.0, math.inf, np.asarray(rate), noisy)


def _variance(cells: FloatArray, values: FloatArray, valid: FloatArray) -> FloatArray:
    """Return the variance (...) of ``values`` (J,), which are 0 at "no value"."""
    persons = np.maximum(cells @ valid, 1.0)
    return np.asarray(cells @ values**2 / persons - (cells @ values / persons) ** 2)


# --- The estimating function ----------------------------------------------------------------------


def weights(persons: FloatArray, measure: Measure, noise: float) -> FloatArray:
    """Return the weights (..., S) of sites: 1 / n without noise, 0 where a cluster has nobody.

    ``persons`` (2, ..., S) of both clusters are not from the noisy cells, which would bias the
    estimate. ``noise`` is its variance in each cell.
    """
    total = persons.sum(axis=0)
    shares = persons / np.maximum(total, 1.0)
    # At least as if one person had the event: otherwise noise could leave no weight at all.
    variance = np.maximum(measure.variance, 1 / np.maximum(total.sum(axis=-1), 1.0))
    information = total * variance[..., None] * shares.prod(axis=0)
    disturbance = noise * measure.noisy * (shares**2).sum(axis=0)
    whole = np.maximum(total, 1.0) * (information + disturbance)
    return np.asarray(information / np.where(information > 0, whole, 1.0))


def estimating_function(
    x1: FloatArray, x0: FloatArray, measure: Measure, weight: FloatArray, noise: float
) -> Terms:
    """Return the estimating function of each site, with weights (..., S).

    x1 and x0 (..., S, J) are the cells of the cluster and of the reference, ``noise`` is its
    variance in each. A site's N_s is the positive part of its quadratic form: 0 at least.
    """
    pair = measure.a, measure.b
    g1, g0 = [x0 @ np.swapaxes(m, -1, -2) for m in pair], [x1 @ m for m in pair]
    sampling, disturbance = [], []
    for i, j, factor in ((0, 0, 1.0), (0, 1, -2.0), (1, 1, 1.0)):
        squares, h1, h0 = pair[i] * pair[j], g1[i] * g1[j], g0[i] * g0[j]
        rows, columns = squares.sum(axis=-1)[..., None, :], squares.sum(axis=-2)[..., None, :]
        v = ((h1 - noise * rows) * x1 + (h0 - noise * columns) * x0).sum(axis=-1)
        sampling.append(factor * v)
        disturbance.append(factor * noise * ((h1 + h0).sum(axis=-1) - noise * rows.sum(axis=-1)))
    a, b = ((g * x1).sum(axis=-1) * weight for g in g1)
    v, n = (np.stack(each, axis=-1) * weight[..., None] ** 2 for each in (sampling, disturbance))
    return Terms(a, b, v, _positive_part(n))


def _positive_part(form: FloatArray) -> FloatArray:
    """Return quadratic forms (..., 3) without their negative eigenvalues."""
    p, q, r = form[..., 0], form[..., 1] / 2, form[..., 2]
    middle, half = (p + r) / 2, np.hypot((p - r) / 2, q)
    least, most = middle - half, middle + half
    scale = np.maximum(most, 0.0) / np.where(half > 0, 2 * half, 1.0)
    part = np.stack([p - least, 2 * q, r - least], axis=-1) * scale[..., None]
    return np.where((least >= 0)[..., None], form, part)


def _at(form: FloatArray, t: ArrayLike) -> FloatArray:
    """Return quadratics (..., 3) at t (...); 0 where only rounding is left."""
    t = np.asarray(t, dtype=np.float64)
    terms = form * np.stack([np.ones_like(t), t, t * t], axis=-1)
    found = terms.sum(axis=-1)
    return np.where(np.abs(found) > _ROUNDING * np.abs(terms).sum(axis=-1), found, 0.0)


def estimate(terms: Terms, measure: Measure) -> Interval:
    """Return the t with U(t) = 0 and its interval; all NaN where the table cannot tell.

    A ratio's limit is open (NaN) if the interval reaches 0 or infinity. The value alone is NaN
    where it would be infinite.
    """
    form = (terms.sampling + terms.noise).sum(axis=-2)
    found = _solve(terms.a.sum(axis=-1), terms.b.sum(axis=-1), form, measure.low, measure.high)
    if math.isinf(measure.high):
        value, lower, upper = found
        lower, upper = np.where(lower > 0, lower, np.nan), np.where(upper < np.inf, upper, np.nan)
        found = Interval(value, lower, upper)
    return Interval(*(each * measure.unit for each in found))


def p_value(terms: Terms, null: ArrayLike) -> FloatArray:
    """Return the p-value (...) of the test that the measure is ``null``; NaN where V + N <= 0."""
    v = _at((terms.sampling + terms.noise).sum(axis=-2), null)
    u = terms.a.sum(axis=-1) - np.asarray(null) * terms.b.sum(axis=-1)
    return _tail(1.0, _squared(u, v))


def homogeneity(terms: Terms, t: ArrayLike) -> FloatArray:
    """Return the p-value (...) of Q = sum_s U_s(t)^2 / (V_s + N_s)(t): one t (...) at all sites.

    NaN below two sites with V_s + N_s > 0.
    """
    t = np.asarray(t, dtype=np.float64)[..., None]
    found = _squared(terms.a - t * terms.b, _at(terms.sampling + terms.noise, t))
    degrees = np.isfinite(found).sum(axis=-1) - 1.0
    q = _tail(np.maximum(degrees, 1.0), np.nansum(found, axis=-1))
    return np.where(degrees > 0, q, np.nan)


def comparable(found: Interval, both: FloatArray, noise: float, *, in_time: bool) -> BoolArray:
    """Return whether :func:`homogeneity` errs about as rarely as it says.

    It does with noise where the interval is closed: else up to 14 of 100 sites with one effect have
    p < .05. Without noise up to 66 do, unless each site has some events.
    ``benchmarks/outcomes.py`` counts them.

    Parameters
    ----------
    found : Interval of (...)
    both : (..., S, J)
        The cells of both clusters.
    noise : float
    in_time : bool
        Whether the cells are those of a time to an event. Else an event is all but the most
        frequent cell.
    """
    if noise:
        return np.asarray(np.isfinite(found).all(axis=0))
    known = both[..., :-1]
    outside = known.sum(axis=-1) - known.max(axis=-1)
    events = known[..., :-1:2].sum(axis=-1) if in_time else outside
    return np.asarray((events >= _LEAST_EVENTS).all(axis=-1))


def _squared(u: FloatArray, v: FloatArray) -> FloatArray:
    """Return u^2 / v; NaN where v is not above 0."""
    return u * u / np.where(v > 0, v, np.nan)


def tells(terms: Terms, t: ArrayLike) -> BoolArray:
    """Return for each site (..., S) whether noise varies less than sampling does, at t (...)."""
    t = np.asarray(t, dtype=np.float64)[..., None]
    return np.asarray(_at(terms.noise, t) < _at(terms.sampling, t))


def _tail(degrees: ArrayLike, statistic: ArrayLike) -> FloatArray:
    from scipy.special import chdtrc  # imported here: the command starts faster

    return np.asarray(chdtrc(degrees, statistic))


def _solve(a: FloatArray, b: FloatArray, form: FloatArray, low: float, high: float) -> Interval:
    """Return a / b and the hull of {t in (low, high): (a - t b)^2 <= Z^2 form(t)}.

    All NaN if that is everything or one point, or if the form is below 0 at a / b.
    """
    q0, q1, q2 = np.moveaxis(np.stack([a * a, -2 * a * b, b * b], -1) - Z**2 * form, -1, 0)
    with np.errstate(all="ignore"):
        square, product = q1 * q1, 4 * q2 * q0
        root = np.sqrt(square - product)
        half = -(q1 + np.where(q1 < 0, -root, root)) / 2
        ends = np.sort(np.stack([half / q2, q0 / half]), axis=0)
        value = a / b
        inside = (low <= value) & (value <= high)
        known = np.isfinite(ends).all(axis=0) & (~inside | (_at(form, value) >= 0))
        known &= square - product > _ROUNDING * (square + np.abs(product))
        # A negative leading coefficient: everything but what lies between the roots.
        left, right = ends[0] >= low, ends[1] <= high
        lower = np.where(q2 > 0, ends[0], np.where(left, low, ends[1]))
        upper = np.where(q2 > 0, ends[1], np.where(right, high, ends[0]))
        lower, upper = np.maximum(lower, low), np.minimum(upper, high)
        known &= (lower <= upper) & ((lower > low) | (upper < high))
        value = np.clip(value, low, high)
        value = np.where((b > 0) & (lower <= value) & (value <= upper), value, np.nan)
    return Interval(*(np.where(known, each, np.nan) for each in (value, lower, upper)))


def mantel_haenszel(tables: FloatArray) -> tuple[Interval, float, float]:
    """Return the odds ratio of exact tables, with the tests that statsmodels gives.

    Parameters
    ----------
    tables : (S, 4)
        Events and others of the cluster, events and others of the reference.

    Returns
    -------
    Interval
        Of Robins, Breslow & Greenland, "Estimators of the Mantel-Haenszel variance consistent in
        both sparse data and large-strata limiting models", Biometrics 42, 1986; NaN where an odds
        ratio of 0 or infinity is estimated.
    float, float
        The p-values of an odds ratio of 1 (Cochran, Mantel, Haenszel) and of the same one at all
        sites (Breslow & Day with Tarone's correction, Biometrika 72, 1985); NaN where there is no
        information.
    """
    total = tables.sum(axis=1)
    rows, events = tables[:, :2].sum(axis=1), tables[:, 0] + tables[:, 2]
    used = (rows > 0) & (rows < total) & (events > 0) & (events < total)
    tables, total, rows, events = tables[used], total[used], rows[used], events[used]
    a, b, c, d = tables.T
    r, s, p = a * d / total, b * c / total, (a + d) / total
    up, down = r.sum(), s.sum()
    with np.errstate(all="ignore"):
        ratio = up / down
        v = (p * r).sum() / up**2 + (p * s + (1 - p) * r).sum() / (up * down)
        half = Z * np.sqrt((v + ((1 - p) * s).sum() / down**2) / 2)
        found = Interval(ratio, ratio * np.exp(-half), ratio * np.exp(half))
        spread = rows * events * (total - rows) * (total - events) / (total**2 * (total - 1))
        null = (a - rows * events / total).sum() ** 2 / spread.sum()
        # The events expected in the cluster solve (1 - ratio) e^2 + k e - ratio rows events = 0.
        k = ratio * (rows + events) + total - rows - events
        root = np.sqrt(k**2 + 4 * (1 - ratio) * ratio * rows * events)
        e = np.where(k > 0, 2 * ratio * rows * events / (k + root), (root - k) / (2 * (1 - ratio)))
        # Rounding may leave nothing of a cell that is nearly empty.
        cells = np.maximum([e, rows - e, events - e, total - rows - events + e], 1e-12)
        v = 1 / (1 / cells).sum(axis=0)
        q = ((a - e) ** 2 / v).sum() - (a - e).sum() ** 2 / v.sum()
    same = _tail(float(len(total) - 1), q) if len(total) > 1 else math.nan
    if not (up > 0 and down > 0):
        found, same = Interval(*np.full((3,), np.nan)), math.nan
    return found, float(_tail(1.0, null)), float(same)


# --- One cluster ----------------------------------------------------------------------------------


def share(cells: FloatArray, events: FloatArray, valid: FloatArray, noise: float) -> Interval:
    """Return the share of the cells ``events`` among ``valid``, both (J,): Wilson's without noise.

    Parameters
    ----------
    cells : (..., J)
        Of one cluster, over all sites.
    events, valid : (J,)
    noise : float
        The variance of the noise in each of these cells.
    """
    a, n = cells @ events, cells @ valid
    own = noise * events.sum()
    form = [own + 0 * n, n - 2 * own, noise * valid.sum() - n]
    return _solve(a, n, np.stack(form, axis=-1), 0.0, 1.0)


def mean(cells: FloatArray, values: FloatArray, valid: FloatArray, noise: float) -> Interval:
    """Return the mean of ``values`` (J,) over the cells (..., J); see :func:`share`."""
    low = float(values[valid > 0].min())
    span = float(np.ptp(values[valid > 0])) or 1.0
    scores = (values - low) / span * valid
    powers = [np.square(scores), -2 * scores, valid]
    form = np.stack([cells @ each + noise * each.sum() for each in powers], axis=-1)
    found = _solve(cells @ scores, cells @ valid, form, 0.0, 1.0)
    return Interval(*(low + span * each for each in found))


def median(cells: FloatArray, edges: FloatArray, noise: float) -> Interval:
    """Return the median, linear within its cell; NaN if it is in the first or last, open cell.

    The limits are where the count of persons below differs from half of all by 1.96 of its standard
    deviation at the median (Woodruff, "Confidence intervals for medians and other position
    measures", JASA 47, 1952).

    Parameters
    ----------
    cells : (J,)
        Of one cluster, over all sites: ordered cells, then "no value".
    edges : (J - 2,)
        Between the cells.
    noise : float
        See :func:`share`.
    """
    inner = cells[:-1]
    below, n = np.cumsum(inner)[:-1], float(inner.sum())
    middle = _crossing(below, n / 2)
    if not n > 0 or math.isnan(middle):
        return Interval(*np.full((3,), np.nan))
    # How much a person of each cell moves the count below the median, over half of all.
    slope = np.clip(middle + 1 - np.arange(len(inner)), 0, 1) - 0.5
    half = Z * math.sqrt(max(float(slope**2 @ inner + noise * (slope @ slope)), 0.0))
    lower = np.minimum(_crossing(below, n / 2 - half), middle)
    upper = np.maximum(len(below) - 1 - _crossing(n - below[::-1], n / 2 - half), middle)
    places = np.array([middle, lower, upper])
    found = np.interp(places, np.arange(len(edges)), edges)
    return Interval(*np.where(np.isnan(places), np.nan, found))


def _crossing(counts: FloatArray, level: float) -> float:
    """Return the place where ``counts`` (m,) first reach a level, linear between; or NaN."""
    reached = np.flatnonzero(counts >= level)
    if not len(reached) or (reached[0] == 0 and counts[0] > level):
        return math.nan
    j = int(reached[0])
    step = (level - counts[j]) / (counts[j] - counts[j - 1]) if j else 0.0
    return float(j + step)


def survival(cells: FloatArray, times: FollowUp, noise: float) -> Survival:
    """Return the actuarial curve: who leaves within an interval counts half in it.

    The variance of log S is Greenwood's plus ``noise`` |grad log S|^2. Cutler & Ederer, "Maximum
    utilization of the life table method in analyzing survival", Journal of Chronic Diseases 8,
    1958, equations of table 1.

    Parameters
    ----------
    cells : (..., J)
        Of one cluster, over all sites.
    times : FollowUp
    noise : float
        See :func:`share`.
    """
    exposed = times.exposed
    with np.errstate(all="ignore"):
        n, events = cells @ exposed.T, cells @ times.events.T
        # As for a quotient by Fieller: nothing follows from a divisor that noise may take to 0.
        n = np.where(n > Z * np.sqrt(noise * np.square(exposed).sum(axis=-1)), n, np.nan)
        curve = np.cumprod(1 - events / n, axis=-1)
        curve[np.logical_or.accumulate(curve <= 0, axis=-1)] = 0.0
        # Of log(1 - events / n), by cell: (..., B, J).
        slope = (exposed - times.events) / (n - events)[..., None] - exposed / n[..., None]
        greenwood = events / (n * (n - events))
        v = np.cumsum(greenwood, axis=-1)
        v += noise * np.square(np.cumsum(slope, axis=-2)).sum(axis=-1)
        half = Z * np.sqrt(np.where(curve > 0, v, np.nan))
        limits = curve * np.exp(-half), curve * np.exp(half)
        start = np.ones((*curve.shape[:-1], 1))
        s = np.concatenate([start, curve], axis=-1)
        ends = np.append(times.width, 0.0)
        trapezoid = s * (ends + np.roll(ends, 1)) / 2
        # How the mean changes with the log of each interval's share.
        later = np.cumsum(trapezoid[..., :0:-1], axis=-1)[..., ::-1]
        followed = later > 0
        v = np.where(followed, later**2 * greenwood, 0.0).sum(axis=-1)
        change = np.where(followed[..., None], later[..., None] * slope, 0.0)
        v += noise * np.square(change.sum(axis=-2)).sum(axis=-1)
        value, half = trapezoid.sum(axis=-1), Z * np.sqrt(v)
        if noise:
            # A curve that noise takes to 0 says nothing; one without noise is at 0.
            curve = np.where(curve > 0, curve, np.nan)
    clipped = [np.clip(np.concatenate([start, each], axis=-1), 0, 1) for each in (curve, *limits)]
    whole = times.width.sum()
    restricted = [np.clip(each, 0, whole) for each in (value, value - half, value + half)]
    return Survival(cells @ times.at_risk.T, Interval(*clipped), Interval(*restricted))
