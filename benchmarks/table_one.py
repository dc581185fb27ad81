"""Table 1's numbers against those of the rows of the same clusters.

For each kind of data: the share of the clusters' values of a column that table 1 prints as a mean,
not as a typical value; how often such a mean is within .15 standard deviations of all persons of
that of the rows, and how often it would be if all values were printed as means; how often the
standard deviation of all persons is .8 to 1.25 times that of the rows, and how often a cluster's is
(under protection nothing prints them, because this is too seldom). Columns of which half of a
site's records or more hold one value are left out, and clusters of fewer than 100 persons.

And the words of the cards ("older"), of all columns and clusters: how many there are, the share
whose direction is not that of the rows, and the share of all differences of .5 or more that are not
given because few persons have a record. "Off": the share of all differences, which the heat map
has as colours and files as numbers, that are more than .5 standard deviations from those of the
rows.

A second table has the figures of quality and the sizes, of the records against the rows of the same
clusters: inertia and Davies-Bouldin index as ratios, the silhouette as a difference, and how far at
most 95 % of the shares of clusters are off, of all persons and of a site's.

In kinds with "no effect" the clusters differ by chance alone. Each kind has no, 15 and 30 % missing
values. With `--support`, SUPPORT too (the extra `examples`).
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.metrics.pairwise import nan_euclidean_distances

from _hospitals import heart
from _report import write
from fedclust import SessionResult, simulate
from fedclust.result.facts import NOTABLE, Cluster, Facts

FloatArray = NDArray[np.float64]
Sites = list[FloatArray]
#: Rows by site, what all features have, the seed.
Drawn = tuple[Sites, dict[str, Any], int]
#: Sites and the rows of each.
SIZES = ((4, 200), (10, 60), (4, 600), (6, 100), (3, 400))
COLUMNS = 5
FEWEST = 100
MISSING = (0.0, 0.15, 0.3)
NO_EFFECT = ", no effect"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--p", type=int, default=5, help="least number of persons of a group")
    parser.add_argument("--support", action="store_true", help="SUPPORT too")
    parser.add_argument("--only", default="", help="data whose name has this text")
    options = parser.parse_args()
    lines, real = list[tuple[dict[str, Any], dict[str, Any]]](), dict[str, list[Drawn]]()
    for kind in (name for name in KINDS if options.only in name):
        seeds = range(options.first, options.first + options.seeds)
        drawn = [_drawn(kind, *size, seed) for size in SIZES for seed in seeds]
        lines += [_line(kind, drawn, missing, options.p) for missing in MISSING]
    for seed in range(options.first, options.first + options.seeds):
        for name, found in _real(seed, support=options.support):
            if options.only in name:
                real.setdefault(name, []).append((found, {}, seed))
    lines += [
        _line(name, found, missing, options.p)
        for name, found in real.items()
        for missing in MISSING
    ]
    numbers, quality = zip(*lines, strict=True)
    note = f"p = {options.p}; K = 2 to 5."
    write("table_one", numbers, note=f"{note} Shares of the numbers that are right.")
    write("table_one_quality", quality, note=f"{note} Of the records, against the rows.")


def _line(
    name: str, drawn: list[Drawn], missing: float, p: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    found = [_compare(*each, missing, p) for each in drawn]
    *each_value, quality = zip(*found, strict=True)
    means, printed, whole, parts, words, off, sizes, of_sites = map(np.concatenate, each_value)
    near = np.abs(means) <= 0.15
    about = {"data": name, "missing": missing}
    numbers = {
        **about,
        "values": len(means),
        "printed as means": _share(printed > 0),
        "within .15 sd": _share(near[printed > 0]),
        "of all values": _share(near),
        "SD of all": _share(_right(whole)),
        "SD of a cluster": _share(_right(parts)),
        "words": int((~np.isnan(words)).sum()),
        "wrong": _share(words[~np.isnan(words)] <= 0),
        "not given": _share(np.isnan(words)),
        "off": _share(off > 0.5),
    }
    names = "inertia", "silhouette", "Davies-Bouldin"
    return numbers, {
        **about,
        **dict(zip(names, np.mean(quality, axis=0).tolist(), strict=True)),
        "share of a cluster": float(np.quantile(sizes, 0.95)),
        "at a site": float(np.quantile(of_sites, 0.95)),
    }


def _share(right: NDArray[np.bool_]) -> float | None:
    return float(right.mean()) if len(right) else None


def _right(ratios: FloatArray) -> NDArray[np.bool_]:
    return (ratios >= 0.8) & (ratios <= 1.25)


def with_missing(
    sites: Sites, feature: dict[str, Any], missing: float, rng: np.random.Generator
) -> tuple[Sites, list[dict[str, Any]]]:
    """Return the sites' rows without a share of their values, and what declares the columns."""
    sites = [np.where(rng.random(rows.shape) < missing, np.nan, rows) for rows in sites]
    every = np.concatenate(sites)
    yes_no = (np.isin(every, (0.0, 1.0)) | np.isnan(every)).all(axis=0)
    return sites, [
        {"name": f"x{j}", "kind": "binary" if one else "numeric", **feature}
        for j, one in enumerate(yes_no)
    ]


def _compare(
    sites: Sites, feature: dict[str, Any], seed: int, missing: float, p: int
) -> tuple[FloatArray, ...]:
    """Return, of each value, how far it is from the rows' mean and whether it is called a mean.

    And the ratios of the standard deviations to those of the rows: of all, and of each cluster. And
    of each difference of .5 or more that of the rows in its direction, NaN where it is not given;
    and how far all given ones are from those of the rows. Then how far shares of clusters are from
    those of the labels, of all persons and of a site's, and the figures of quality.
    """
    rng = np.random.default_rng(seed)
    sites, columns = with_missing(sites, feature, missing, rng)
    tables = {f"site{place}": rows for place, rows in enumerate(sites)}
    every = np.concatenate(sites)
    config = {"n_clusters": 2 + seed % 4}
    policy = {"min_group_size": p}
    found = simulate("lloyd", tables, config=config, features=columns, policy=policy, seed=seed)
    labels = np.concatenate([found.labels_[name] for name in tables])
    undo = {"log": np.log, "log1p": np.log1p}.get(feature.get("transform", ""), np.asarray)
    rows = undo(every)
    profile = found.result.profile
    assert profile is not None
    assert profile.uncertain is not None
    means, printed, whole, parts, words, off = (list[float]() for _ in range(6))
    clusters = Facts(found.result, found.definition).clusters
    for j, values in enumerate(rows.T):
        spread = np.nanstd(values)
        apart = (profile.means[:, j] - profile.overall_means[j]) / np.maximum(
            profile.estimated_overall_deviations[j], 1e-12
        )
        for k in np.flatnonzero(profile.known[:, j] & (np.abs(apart.round(1)) >= NOTABLE)):
            own = values[labels == k]
            given = clusters[k].entries[j].difference is not None
            if not np.isnan(own).all():
                away = (np.nanmean(own) - np.nanmean(values)) * np.sign(apart[k])
                words.append(float(away) if given else np.nan)
        if spread:
            off += _differences(values / spread, labels, clusters, j)
        if f"x{j}" in profile.typical or not spread or columns[j]["kind"] == "binary":
            continue
        whole.append(float(profile.estimated_overall_deviations[j] / spread))
        for k in range(len(profile.means)):
            own = values[(labels == k) & ~np.isnan(values)]
            if (labels == k).sum() >= FEWEST and own.std() > 0:
                means.append(float((profile.means[k, j] - own.mean()) / spread))
                printed.append(float(not profile.uncertain[k, j]))
                parts.append(float(profile.estimated_deviations[k, j] / own.std()))
    pairs = [(found.result.site_sizes[name], found.labels_[name]) for name in tables]
    sizes, *of_sites = (
        np.abs(np.divide(own, sum(own)) - _shares(of, len(own)))
        for own, of in [(found.sizes_, labels), *pairs]
        if sum(own)
    )
    return (
        *map(np.array, (means, printed, whole, parts, words, off)),
        sizes,
        np.concatenate(of_sites),
        _quality(found, rows),
    )


def _differences(
    values: FloatArray, labels: NDArray[np.int64], clusters: Sequence[Cluster], j: int
) -> list[float]:
    """Return how far a column's differences are from those of the rows.

    ``values`` (n,) in standard deviations.
    """
    known = ~np.isnan(values)
    mean = values[known].mean()
    return [
        abs(float(values[known & (labels == cluster.number)].mean() - mean - away))
        for cluster in clusters
        if (away := cluster.entries[j].difference) is not None
        if (known & (labels == cluster.number)).any()
    ]


def _shares(labels: NDArray[np.int64], n_clusters: int) -> FloatArray:
    counts = np.bincount(labels[labels >= 0], minlength=n_clusters)
    return counts / max(counts.sum(), 1)


def _quality(found: SessionResult, rows: FloatArray) -> FloatArray:
    """Return inertia, silhouette and Davies-Bouldin index against those of the rows (n, d)."""
    result, quality = found.result, found.result.quality
    assert quality is not None
    rows = rows[~np.isnan(rows).all(axis=1)]
    apart = nan_euclidean_distances((rows - result.center) / result.scale, result.centroids)
    own, (a, b) = apart.argmin(axis=1), np.sort(apart, axis=1).T[:2]
    numbers = range(len(result.centroids))
    spread = np.array([a[own == k].mean() if (own == k).any() else 0.0 for k in numbers])
    between = np.linalg.norm(result.centroids[:, None] - result.centroids, axis=2)
    np.fill_diagonal(between, np.inf)
    index = ((spread[:, None] + spread) / between).max(axis=1).mean()
    return np.array(
        [
            quality.inertia / quality.n_rows / (a**2).mean(),
            quality.simplified_silhouette - ((b - a) / np.maximum(b, 1e-12)).mean(),
            quality.davies_bouldin / index,
        ]
    )


# --- Data -----------------------------------------------------------------------------------------


def _drawn(kind: str, n_sites: int, n_rows: int, seed: int) -> Drawn:
    rng = np.random.default_rng([seed, n_sites, n_rows, *kind.encode()])
    n = n_sites * n_rows
    centres = 2.0 * rng.normal(size=(3, COLUMNS))[rng.integers(0, 3, n)]
    where = np.arange(n) % n_sites
    draw, feature = KINDS[kind]
    X = draw(rng, 0.0 * centres if kind.endswith(NO_EFFECT) else centres)
    if kind == "offsets":
        X += 0.5 * rng.normal(size=(n_sites, COLUMNS))[where]
    return [X[where == site] for site in range(n_sites)], feature, seed


def _gaussian(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    return rng.normal(size=centres.shape) + centres


def _correlated(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    root = np.linalg.cholesky(0.6 + 0.4 * np.eye(COLUMNS))
    return rng.normal(size=centres.shape) @ root.T + centres


def _lognormal(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    wide = rng.choice([0.3, 0.6, 1.0], COLUMNS)
    return np.maximum(np.exp(wide * (rng.normal(size=centres.shape) + 0.7 * centres)), 0.1)


def _gamma(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    shape = rng.choice([1.0, 2.0, 4.0], COLUMNS)
    return np.maximum(rng.gamma(shape, size=centres.shape) * np.exp(0.4 * centres), 0.1)


def _zeros(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    found = rng.gamma(2.0, size=centres.shape) * np.exp(0.4 * centres)
    found[rng.random(centres.shape) < rng.choice([0.3, 0.6, 0.8], COLUMNS)] = 0.0
    found[:, 3:] = rng.normal(size=(len(centres), COLUMNS - 3)) + centres[:, 3:]
    return found


def _counts(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    rate = np.exp(rng.choice([0.0, 1.0, 2.5], COLUMNS) + 0.4 * centres)
    return rng.poisson(rate).astype(np.float64)


def _uniform(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    return rng.uniform(-1.7, 1.7, centres.shape) + centres


def _t3(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    return rng.standard_t(3, centres.shape) + 0.75 * centres


def _mixed(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    found = rng.normal(size=centres.shape) + centres
    found[:, 3:] = rng.random((len(centres), COLUMNS - 3)) < 1.0 / (
        1.0 + np.exp(1 - centres[:, 3:])
    )
    return found


Draw = Callable[[np.random.Generator, FloatArray], FloatArray]
_LOG = {"transform": "log", "lower": 0.1}
KINDS: dict[str, tuple[Draw, dict[str, Any]]] = {
    "Gaussian": (_gaussian, {}),
    "correlated": (_correlated, {}),
    "lognormal": (_lognormal, {}),
    "gamma": (_gamma, {}),
    "t3": (_t3, {}),
    "uniform": (_uniform, {}),
    "zero-inflated": (_zeros, {}),
    "offsets": (_gaussian, {}),
    "mixed": (_mixed, {}),
    "counts": (_counts, {}),
    "lognormal, log": (_lognormal, _LOG),
    "gamma, log": (_gamma, _LOG),
    "counts, log1p": (_counts, {"transform": "log1p", "lower": 0}),
}
for _kind in ("Gaussian", "lognormal", "gamma", "t3", "zero-inflated", "mixed"):
    KINDS[_kind + NO_EFFECT] = KINDS[_kind]


def _real(seed: int, *, support: bool) -> Iterator[tuple[str, Sites]]:
    """Yield real tables, split into sites at random; heart disease by its hospitals.

    SUPPORT at eight sites of 1,138 persons, and a part of it at six sites of 150.
    """
    rng = np.random.default_rng(seed)
    for load in (load_breast_cancer, load_diabetes, load_wine):
        X = rng.permutation(np.asarray(load().data, dtype=np.float64))
        yield load.__name__.removeprefix("load_"), [X[site::4] for site in range(4)]
    hospitals, features = heart()
    everywhere = np.all(list(hospitals.masks.values()), axis=0)
    numeric = np.array([each["kind"] == "numeric" for each in features])
    split = hospitals.split.values()
    yield "heart disease", [hospitals.X[rows][:, everywhere & numeric] for rows in split]
    if support:
        sys.path.append(str(Path(__file__).parents[1] / "examples"))
        import support_study

        text = support_study.FEATURES + support_study.MORE_FEATURES
        names = [line.split()[0] for line in text.replace("\n", ";").split(";") if line.strip()]
        X = rng.permutation(support_study.load()[names].to_numpy(dtype=np.float64))
        yield "SUPPORT, 8 x 1,138", [X[site::8] for site in range(8)]
        yield "SUPPORT, 6 x 150", [X[site:900:6] for site in range(6)]


if __name__ == "__main__":
    main()
