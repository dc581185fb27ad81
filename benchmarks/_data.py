"""The data of the papers, reproduced, and the splits over sites that go with them.

A split is a dict of site name to row numbers, so labels can be selected in the same way as rows.
Shared data sets are read from ``FEDCLUST_DATA``, or else from ``../shared/data`` next to the
repository.
"""

import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Split = dict[str, IntArray]

SHARED = Path(os.environ.get("FEDCLUST_DATA", Path(__file__).parents[2] / "shared" / "data"))

#: FKM, figure 1: sixteen centres, five apart.
GRID = np.array([(x, y) for x in (-7.5, -2.5, 2.5, 7.5) for y in (-7.5, -2.5, 2.5, 7.5)])
#: Ours, for the paper does not give them: four clients in the middles of the quarters of the field
#: (-12.5, 12.5)^2, and one in its centre.
LOCATIONS = np.array([(0.0, 0.0), (-6.25, -6.25), (-6.25, 6.25), (6.25, -6.25), (6.25, 6.25)])
#: Four of them in the corners instead: the one in the centre holds most of the rows.
CORNERS = np.array([(0.0, 0.0), (-12.0, -12.0), (-12.0, 12.0), (12.0, -12.0), (12.0, 12.0)])
#: FKM, figure 4: clusters that each client holds, and the rows that it has.
UNEVEN = ((16, 473), (1, 10), (3, 34), (10, 173), (7, 98))


@dataclass(frozen=True)
class Data:
    """Rows (n, d), the component or class (n,) of each, and who holds which rows."""

    X: FloatArray
    y: IntArray
    split: Split

    def sites(self) -> dict[str, FloatArray]:
        """Return what ``simulate`` takes."""
        return {site: self.X[rows] for site, rows in self.split.items()}

    def pooled(self, labels: dict[str, IntArray]) -> IntArray:
        """Return labels (n,) in the order of ``X``; -2 for rows that nobody holds."""
        whole = np.full(len(self.X), -2, dtype=np.int64)
        for site, rows in self.split.items():
            whole[rows] = labels[site]
        return whole

    @property
    def held(self) -> IntArray:
        """The numbers of the rows that some site holds, sorted."""
        return np.sort(np.concatenate(list(self.split.values())))


# --- FKM ------------------------------------------------------------------------------------------


def fkm(
    split: str,
    noise: float,
    points: int = 50,
    seed: int = 42,
    locations: FloatArray = LOCATIONS,
) -> Data:
    """Return one of FKM's synthetic data sets.

    Parameters
    ----------
    split : str
        ``"0.1"``, ``"1"``, ``"10"``: the paper's beta; ``"uneven"``: its figure 4; ``"voronoi"``:
        every row at the nearest client.
    noise : float
        Standard deviation around the centres.
    points : int
        Rows for each centre.
    seed : int
        42 for the paper's own data.
    locations : (5, 2) float64
        Of the clients.
    """
    rng = np.random.RandomState(seed)
    X = np.empty((16 * points, 2))
    for cluster, (x, y) in enumerate(GRID):
        rows = slice(cluster * points, (cluster + 1) * points)
        # x, then y, for each cluster in turn.
        X[rows, 0] = rng.normal(x, noise, points)
        X[rows, 1] = rng.normal(y, noise, points)
    labels = np.repeat(np.arange(16), points)
    if split == "uneven":
        return Data(X, labels, _uneven(labels, points, rng))
    taker = _takers(X, None if split == "voronoi" else float(split), rng, locations)
    return Data(X, labels, {f"client{c}": np.flatnonzero(taker == c) for c in range(5)})


def _takers(
    X: FloatArray, beta: float | None, rng: np.random.RandomState, locations: FloatArray
) -> IntArray:
    """Return the client (n,) of each row by equation 2; ``beta`` None: the nearest client."""
    distance = np.linalg.norm(X[:, None, :] - locations, axis=2)
    nearest = distance.argmin(axis=1)
    if beta is None:
        return nearest
    wants = rng.random_sample(distance.shape) < 1.0 - np.exp(-beta / distance)
    # Among several takers each is as likely; where there is none, the nearest client.
    lot = np.where(wants, rng.random_sample(distance.shape), -1.0)
    return np.where(wants.any(axis=1), lot.argmax(axis=1), nearest)


def _uneven(labels: IntArray, points: int, rng: np.random.RandomState) -> Split:
    """Deal clusters and rows out as figure 4 counts them (scaled where ``points`` is not 50).

    The clusters of the four smaller clients follow one another in a random order, so that none is
    at more than three clients; the client with all sixteen clusters gets the number of rows that it
    has in the paper from what is left.
    """
    order = np.tile(rng.permutation(16), 2)
    free = {k: list(rng.permutation(np.flatnonzero(labels == k))) for k in range(16)}
    split: Split = {}
    place = 0
    for client, (n_clusters, size) in list(enumerate(UNEVEN))[1:]:
        held = []
        mine = order[place : place + n_clusters]
        place += n_clusters
        share = np.full(n_clusters, size * points // 50 // n_clusters)
        share[: size * points // 50 - share.sum()] += 1
        for cluster, count in zip(mine, share, strict=True):
            held += [free[cluster].pop() for _ in range(count)]
        split[f"client{client}"] = np.sort(np.array(held))
    left = rng.permutation(np.concatenate([np.array(rows) for rows in free.values()]))
    split["client0"] = np.sort(left[: UNEVEN[0][1] * points // 50].astype(np.int64))
    return dict(sorted(split.items()))


def femnist(n_clients: int) -> Data:
    """Return the FKM authors' client files (n, 784) in [0, 1]; ``y`` is the client."""
    with np.load(SHARED / "femnist_fkm" / "femnist_20clients.npz") as file:
        names = {name: file[name] for name in file.files}
    client = names[next(name for name in names if name != "X")].astype(np.int64)
    kept = np.isin(client, np.unique(client)[:n_clients])
    X, client = names["X"][kept] / 255.0, client[kept]
    split = {f"client{c:02}": np.flatnonzero(client == c) for c in np.unique(client)}
    return Data(X, client, split)


# --- k-FED ----------------------------------------------------------------------------------------


def mixture(
    k: int,
    d: int,
    *,
    c: float | None = None,
    sigma: float | None = None,
    seed: int = 0,
    m0: int = 5,
    points: int = 20,
) -> Data:
    """Return k-FED's mixture of Gaussians (section 4.1): groups of sqrt(k) components.

    Each group's components live on ``m0`` devices, each with ``points`` rows of every component.
    The means are random directions, scaled so that the smallest distance of two is ``sigma`` unit
    standard deviations, or what ``c`` asks for: ``2 c sqrt(m0) (Delta_r + Delta_s)`` with the
    measured norm of A - C (definition 3.5, equation 4).
    """
    rng = np.random.default_rng([seed, k, d])
    root = int(np.sqrt(k))
    device_labels = [
        np.repeat(np.arange(group * root, (group + 1) * root), points)
        for group in range(root)
        for _ in range(m0)
    ]
    y = np.concatenate(device_labels)
    noise = rng.standard_normal((len(y), d))
    if sigma is None:
        assert c is not None
        sigma = 4 * c * np.sqrt(m0) * root * norm_of_rest(noise, y) / np.sqrt(m0 * points)
    means = rng.standard_normal((k, d))
    means *= sigma / _smallest_distance(means)
    ends = np.cumsum([len(labels) for labels in device_labels])
    split = {
        f"device{z:03}": np.arange(end - len(device_labels[z]), end) for z, end in enumerate(ends)
    }
    return Data(means[y] + noise, y, split)


def norm_of_rest(X: FloatArray, y: IntArray) -> float:
    """Return the spectral norm of A - C: rows less the means of their clusters."""
    rest = X.copy()
    for cluster in np.unique(y):
        rest[y == cluster] -= X[y == cluster].mean(axis=0)
    return float(np.sqrt(np.linalg.eigvalsh(rest.T @ rest)[-1]))


def _smallest_distance(means: FloatArray) -> float:
    squares = (means**2).sum(axis=1)
    gaps = squares[:, None] + squares - 2 * means @ means.T
    return float(np.sqrt(gaps[np.triu_indices(len(means), 1)].min()))


def iid(n: int, n_sites: int, rng: np.random.Generator) -> Split:
    """Return a random split of ``n`` rows into sites of equal size."""
    parts = np.array_split(rng.permutation(n), n_sites)
    return {f"site{z:02}": np.sort(rows) for z, rows in enumerate(parts)}


def structured(y: IntArray, n_sites: int, per_site: int, rng: np.random.Generator) -> Split:
    """Return a split in which each site holds rows of at most ``per_site`` random clusters.

    Every cluster goes to ``n_sites * per_site / K`` sites in the mean; each of its rows to one of
    them at random.
    """
    k = int(y.max()) + 1
    deal = np.concatenate([rng.permutation(k) for _ in range(-(-n_sites * per_site // k))])
    holders: dict[int, list[int]] = {cluster: [] for cluster in range(k)}
    for place, cluster in enumerate(deal[: n_sites * per_site]):
        holders[int(cluster)].append(place // per_site)
    taker = np.empty(len(y), dtype=np.int64)
    for cluster, sites in holders.items():
        rows = np.flatnonzero(y == cluster)
        taker[rows] = rng.choice(np.unique(sites), len(rows))
    return {f"site{z:02}": rows for z in range(n_sites) if len(rows := np.flatnonzero(taker == z))}


def digits() -> tuple[FloatArray, IntArray]:
    """Return scikit-learn's digits (1797, 64) and their classes."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X.astype(np.float64), y.astype(np.int64)


def label_skew(y: IntArray, n_sites: int, alpha: float, seed: int) -> Split:
    """Return a split with each class dealt out in Dirichlet(``alpha``) shares."""
    rng = np.random.default_rng(seed)
    taker = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        cuts = (np.cumsum(rng.dirichlet(np.full(n_sites, alpha)))[:-1] * len(rows)).astype(int)
        for site, part in enumerate(np.split(rows, cuts)):
            taker[part] = site
    return {f"site{z:02}": np.flatnonzero(taker == z) for z in range(n_sites)}


def mnist(side: int = 14) -> tuple[FloatArray, IntArray]:
    """Return MNIST's 10,000 test digits (n, side, side) in [0, 1], averaged down, and classes."""
    folder = SHARED / "mnist_t10k"
    images = np.frombuffer(
        gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
    )
    labels = np.frombuffer(
        gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8
    )
    step = 28 // side
    shrunk = images.reshape(-1, side, step, side, step).mean(axis=(2, 4)) / 255.0
    return shrunk, labels.astype(np.int64)
