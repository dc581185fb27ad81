"""The four shapes of the spectral paper, reproduced, and how their rows are split over sites.

The paper names the shapes, draws them, and gives the rows of a cluster, the number of clusters and
the gammas; places and noise are ours. Both were chosen so that central spectral clustering finds
every row's cluster, as the paper's did (Table 2). Blobs and moons lie at unequal distances: if two
gaps are equal, eigenvalues coincide, and no sign makes such eigenvectors agree.
"""

import numpy as np

from _data import Data, FloatArray, IntArray

#: Name, rows of a cluster in the paper, gamma of the paper's RBF graph.
SHAPES: dict[str, tuple[int, float]] = {
    "moons2": (5_000, 50.0),
    "blobs": (5_000, 1.0),
    "circles": (5_000, 100.0),
    "moons4": (4_000, 20.0),
}
#: Standard deviation around a moon, a blob's centre, a ring.
_MOON, _BLOB, _RING = 0.05, 0.4, 0.03
_CENTRES = np.array([(0.0, 0.0), (3.6, 0.0), (3.6, 4.0)])
_RADII = (0.3, 0.65, 1.0)


def shape(name: str, per_cluster: int, n_sites: int, alpha: float | None, seed: int) -> Data:
    """Return one shape, split over sites.

    Parameters
    ----------
    name : str
        One of ``SHAPES``.
    per_cluster : int
        Rows of each cluster.
    n_sites : int
    alpha : float or None
        Each cluster's rows go to the sites by shares of a Dirichlet distribution; None: evenly.
        A site may end up with no row.
    seed : int
    """
    rng = np.random.default_rng([seed, sorted(SHAPES).index(name)])
    parts = _parts(name, per_cluster, rng)
    y = np.repeat(np.arange(len(parts)), per_cluster)
    held: list[list[IntArray]] = [[] for _ in range(n_sites)]
    for cluster in range(len(parts)):
        rows = rng.permutation(np.flatnonzero(y == cluster))
        even = np.full(n_sites, 1.0 / n_sites)
        share = even if alpha is None else rng.dirichlet(np.full(n_sites, alpha))
        cuts = np.round(np.cumsum(share)[:-1] * per_cluster).astype(np.int64)
        for site, part in enumerate(np.split(rows, cuts)):
            held[site].append(part)
    split = {f"site{site:02}": np.sort(np.concatenate(own)) for site, own in enumerate(held)}
    return Data(np.concatenate(parts), y, split)


def _parts(name: str, n: int, rng: np.random.Generator) -> list[FloatArray]:
    if name == "blobs":
        return [rng.normal(centre, _BLOB, (n, 2)) for centre in _CENTRES]
    if name == "circles":
        return [_ring(radius, n, rng) for radius in _RADII]
    if name == "moons2":
        return [_moon((0.0, 0.0), 1.0, n, rng), _moon((1.0, 0.5), -1.0, n, rng)]
    if name == "moons4":
        # A chain of moons, each hooked into the next.
        chain = (((0.0, 0.0), 1.0), ((1.4, 0.25), -1.0), ((2.8, 0.0), 1.0), ((4.2, 0.25), -1.0))
        return [_moon(place, side, n, rng) for place, side in chain]
    raise ValueError(f"no shape is called {name}")


def _ring(radius: float, n: int, rng: np.random.Generator) -> FloatArray:
    angle = rng.uniform(0.0, 2.0 * np.pi, n)
    ring = radius * np.column_stack([np.cos(angle), np.sin(angle)])
    return np.asarray(ring + rng.normal(0.0, _RING, (n, 2)))


def _moon(place: tuple[float, float], side: float, n: int, rng: np.random.Generator) -> FloatArray:
    angle = rng.uniform(0.0, np.pi, n)
    moon = np.column_stack([np.cos(angle), side * np.sin(angle)]) + place
    return np.asarray(moon + rng.normal(0.0, _MOON, (n, 2)))
