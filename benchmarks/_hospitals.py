"""The data of Maritan & Schenato's experiments, and sites that have only some of the features.

Which site has which features (section 6)
    Assumption 1: the features in an order, cut into one window a site, 30 % of each shared with
    the next. Assumption 2: a tenth of the features at every site, the others dealt out. The paper
    only says that "feature importance analysis" makes every site's features informative. Here
    features are ranked by the F ratio of the classes, and the ranks are dealt out, so that every
    site gets its share of informative features, and two windows share their most informative ones.
    Which of the features of about one rank a site gets is drawn.
Which site has which rows
    Assumption 1: rows at random, as many everywhere. Assumption 2: one subject or one writer a
    site; DIM: each cluster's rows by their first coordinate.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _data import SHARED, FloatArray, IntArray, Split, iid

BoolArray = NDArray[np.bool_]

WINDOW_OVERLAP = 0.3
SHARED_PART = 0.1
#: A feature counts where so many of a hospital's rows have it.
USABLE = 0.7
_FEWEST = 30

HEART_FEATURES = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
_HEART_BINARY = ("sex", "fbs", "exang")
_HEART_FILES = ("cleveland", "hungarian", "switzerland", "va")


@dataclass(frozen=True)
class Masked:
    """Rows (n, d) as nobody sees them, their classes (n,), who holds which rows and sees what.

    ``masks`` are (d,) bool by site. Where ``X`` has NaN, the value is missing.
    """

    X: FloatArray
    y: IntArray
    split: Split
    masks: dict[str, BoolArray]

    def sites(self) -> dict[str, FloatArray]:
        """Return each site's rows (n_i, d), NaN in the columns that it has not got."""
        return {
            site: np.where(self.masks[site], self.X[rows], np.nan)
            for site, rows in self.split.items()
        }

    @property
    def held(self) -> IntArray:
        """The numbers of the rows that some site holds, sorted."""
        return np.sort(np.concatenate(list(self.split.values())))

    def pooled(self, labels: dict[str, IntArray]) -> IntArray:
        """Return labels (n,) in the order of ``X``; -2 for rows that nobody holds."""
        whole = np.full(len(self.X), -2, dtype=np.int64)
        for site, rows in self.split.items():
            whole[rows] = labels[site]
        return whole

    def complete(self) -> Masked:
        """Return the data with those rows alone that miss nothing of what their site sees."""
        split = {
            site: rows[
                ~np.isnan(self.X[np.ix_(rows, np.flatnonzero(self.masks[site]))]).any(axis=1)
            ]
            for site, rows in self.split.items()
        }
        return Masked(self.X, self.y, split, self.masks)

    def true_centroids(self) -> FloatArray:
        """Return equation 1 (K, d): each class's mean over the values that some site sees.

        NaN where no site with rows of the class sees the feature.
        """
        k = int(self.y.max()) + 1
        sums, counts = np.zeros((k, self.X.shape[1])), np.zeros((k, self.X.shape[1]))
        for site, rows in self.split.items():
            for label in np.unique(self.y[rows]):
                own = rows[self.y[rows] == label]
                sums[label] += np.where(self.masks[site], self.X[own].sum(axis=0), 0.0)
                counts[label] += len(own) * self.masks[site]
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


# --- who sees what --------------------------------------------------------------------------------


def dealt(X: FloatArray, y: IntArray, n_hands: int, rng: np.random.Generator) -> list[IntArray]:
    """Deal the features, by F ratio, into ``n_hands`` hands of equal worth, the best first."""
    ranked = np.argsort(-_f_ratio(X, y), kind="stable")
    hands: list[list[int]] = [[] for _ in range(n_hands)]
    for begin in range(0, len(ranked), n_hands):
        trick = ranked[begin : begin + n_hands]
        for hand, feature in zip(rng.permutation(n_hands)[: len(trick)], trick, strict=True):
            hands[int(hand)].append(int(feature))
    return [np.array(hand, dtype=np.int64) for hand in hands]


def _f_ratio(X: FloatArray, y: IntArray) -> FloatArray:
    """Return each feature's (d,) variance between classes by that within; 0 for constants."""
    mean = X.mean(axis=0)
    between, within = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for label in np.unique(y):
        rows = X[y == label]
        between += len(rows) * (rows.mean(axis=0) - mean) ** 2
        within += ((rows - rows.mean(axis=0)) ** 2).sum(axis=0)
    return np.divide(between, within, out=np.zeros_like(between), where=within > 1e-12)


def windows(X: FloatArray, y: IntArray, n_sites: int, rng: np.random.Generator) -> BoolArray:
    """Return masks (n_sites, d) as under Assumption 1: a chain of overlapping windows."""
    d = X.shape[1]
    order = np.concatenate(dealt(X, y, n_sites, rng))
    width = d / (1 + (n_sites - 1) * (1 - WINDOW_OVERLAP))
    masks = np.zeros((n_sites, d), dtype=np.bool_)
    for i in range(n_sites):
        begin = i * width * (1 - WINDOW_OVERLAP)
        masks[i, order[int(begin) : round(begin + width)]] = True
    return masks


def core(X: FloatArray, y: IntArray, n_sites: int, rng: np.random.Generator) -> BoolArray:
    """Return masks (n_sites, d) as under Assumption 2: a tenth everywhere, the rest dealt out."""
    d = X.shape[1]
    parts = dealt(X, y, round(1 / SHARED_PART), rng)
    masks = np.zeros((n_sites, d), dtype=np.bool_)
    masks[:, parts[0]] = True
    rest = np.concatenate(parts[1:])
    for i, hand in enumerate(dealt(X[:, rest], y, n_sites, rng)):
        masks[i, rest[hand]] = True
    return masks


def masks(assumption: int, X: FloatArray, y: IntArray, n_sites: int, seed: int) -> BoolArray:
    """Return masks (n_sites, d) under an assumption of the paper, 1 or 2."""
    rng = np.random.default_rng([seed, 77])
    return (windows if assumption == 1 else core)(X, y, n_sites, rng)


def _by_site(split: Split, seen: BoolArray) -> dict[str, BoolArray]:
    return dict(zip(split, seen, strict=True))


# --- data -----------------------------------------------------------------------------------------


def har(assumption: int, seed: int) -> Masked:
    """Return walking and lying of HAR's training half: 21 subjects, 561 features in [-1, 1]."""
    parts = [np.load(SHARED / "uci_har" / f"har_train_part{i}.npz") for i in range(3)]
    X = np.concatenate([part["X"] for part in parts]).astype(np.float64)
    activity = np.concatenate([part["y"] for part in parts])
    subject = np.concatenate([part["subject"] for part in parts])
    kept = (activity == 1) | (activity == 6)
    X, y, subject = X[kept], (activity[kept] == 6).astype(np.int64), subject[kept]
    people = np.unique(subject)
    if assumption == 1:
        split = iid(len(X), len(people), np.random.default_rng([seed, 1]))
    else:
        split = {f"subject{s:02}": np.flatnonzero(subject == s) for s in people}
    return Masked(X, y, split, _by_site(split, masks(assumption, X, y, len(people), seed)))


def digits_037(assumption: int, seed: int, n_sites: int = 10) -> Masked:
    """Return MNIST's test digits 0, 3 and 7 (784 pixels in [0, 1]) at ten sites.

    Assumption 2: ten writers, one a site, drawn from those with 30 of these digits or more.
    """
    folder = SHARED / "mnist_t10k"
    images = np.frombuffer(
        gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
    )
    with np.load(folder / "mnist_t10k_writers.npz") as file:
        digit, writer = file["y"].astype(np.int64), file["writer"].astype(np.int64)
    kept = np.isin(digit, (0, 3, 7))
    X = images.reshape(len(digit), -1)[kept] / 255.0
    y, writer = np.searchsorted((0, 3, 7), digit[kept]), writer[kept]
    if assumption == 1:
        split = iid(len(X), n_sites, np.random.default_rng([seed, 1]))
    else:
        names, rows = np.unique(writer, return_counts=True)
        rng = np.random.default_rng([seed, 2])
        drawn = np.sort(rng.choice(names[rows >= _FEWEST], n_sites, replace=False))
        held = np.flatnonzero(np.isin(writer, drawn))
        X, y, writer = X[held], y[held], writer[held]
        split = {f"writer{w:04}": np.flatnonzero(writer == w) for w in drawn}
    return Masked(X, y, split, _by_site(split, masks(assumption, X, y, n_sites, seed)))


def dim(assumption: int, seed: int, d: int = 128, n_sites: int = 10) -> Masked:
    """Return a DIM set (16 clusters of 64 rows) at ten sites that each lack some clusters.

    Every two sites have one mask: or else each cluster would have to be everywhere for all of its
    features to be seen, which both assumptions ask for. A cluster is at one or both of each two.
    """
    with np.load(SHARED / "dim_sets" / f"dim{d:03}.npz") as file:
        X, y = file["X"].astype(np.float64), file["y"].astype(np.int64)
    y -= y.min()
    rng = np.random.default_rng([seed, 16])
    seen = np.repeat(masks(assumption, X, y, n_sites // 2, seed), 2, axis=0)
    taker = np.empty(len(X), dtype=np.int64)
    for cluster in range(int(y.max()) + 1):
        holds = np.ones(n_sites, dtype=np.bool_)
        for pair in range(0, n_sites, 2):
            # Half of the times one of the two alone, each as often.
            if rng.random() < 0.5:
                holds[pair + rng.integers(2)] = False
        rows = np.flatnonzero(y == cluster)
        if assumption == 1:
            rows = rng.permutation(rows)
        else:
            rows = rows[np.argsort(X[rows, 0], kind="stable")]
        for site, part in zip(
            np.flatnonzero(holds), np.array_split(rows, holds.sum()), strict=True
        ):
            taker[part] = site
    split = {f"site{z:02}": np.flatnonzero(taker == z) for z in range(n_sites)}
    return Masked(X, y, split, _by_site(split, seen))


def heart() -> tuple[Masked, list[dict[str, Any]]]:
    """Return the four hospitals' heart disease rows and the features' declarations.

    The class is 1 where the diagnosis is above 0. ``?`` is missing, and so is a cholesterol of 0,
    which all Swiss rows have. A hospital sees a feature that 70 % of its rows have.
    """
    tables = []
    for name in _HEART_FILES:
        text = (SHARED / "heart_disease" / f"processed.{name}.data").read_text("utf-8")
        rows = [line.split(",") for line in text.split()]
        tables.append(np.array([[np.nan if v == "?" else float(v) for v in row] for row in rows]))
    table = np.concatenate(tables)
    X, y = table[:, :-1].copy(), (table[:, -1] > 0).astype(np.int64)
    chol = HEART_FEATURES.index("chol")
    X[X[:, chol] == 0, chol] = np.nan
    ends = np.cumsum([len(rows) for rows in tables])
    split = {
        name: np.arange(end - len(rows), end)
        for name, rows, end in zip(_HEART_FILES, tables, ends, strict=True)
    }
    seen = {site: (~np.isnan(X[rows])).mean(axis=0) >= USABLE for site, rows in split.items()}
    features = [
        {"name": name, "kind": "binary" if name in _HEART_BINARY else "numeric"}
        for name in HEART_FEATURES
    ]
    return Masked(X, y, split, seen), features
