"""Two uses of k-FED's clusters (section 4.2.2): models per cluster, and choice of clients.

A network of one hidden layer, in numpy; local steps of plain stochastic gradient descent; averages
weighted by rows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from _data import FloatArray, IntArray

Weights = list[NDArray[np.float32]]
HIDDEN = 64
BATCH = 20


def network(d: int, classes: int, rng: np.random.Generator) -> Weights:
    """Return first weights: (d, h), (h,), (h, classes), (classes,)."""
    return [
        (rng.standard_normal((d, HIDDEN)) * np.sqrt(2.0 / d)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        (rng.standard_normal((HIDDEN, classes)) * np.sqrt(1.0 / HIDDEN)).astype(np.float32),
        np.zeros(classes, np.float32),
    ]


def _forward(weights: Weights, X: FloatArray) -> tuple[FloatArray, FloatArray]:
    hidden = np.maximum(X @ weights[0] + weights[1], 0)
    scores = hidden @ weights[2] + weights[3]
    scores -= scores.max(axis=1, keepdims=True)
    likely = np.exp(scores)
    return hidden, likely / likely.sum(axis=1, keepdims=True)


def loss(weights: Weights, X: FloatArray, y: IntArray) -> float:
    """Return the mean cross entropy."""
    likely = _forward(weights, X)[1]
    return float(-np.log(np.maximum(likely[np.arange(len(y)), y], 1e-12)).mean())


def hits(weights: Weights, X: FloatArray, y: IntArray) -> NDArray[np.bool_]:
    """Return which rows get their class."""
    return np.asarray(_forward(weights, X)[1].argmax(axis=1) == y)


def train(
    weights: Weights,
    X: FloatArray,
    y: IntArray,
    epochs: int,
    rate: float,
    rng: np.random.Generator,
) -> Weights:
    """Return weights after some epochs over one device's rows."""
    weights = [part.copy() for part in weights]
    for _ in range(epochs):
        order = rng.permutation(len(X))
        for begin in range(0, len(X), BATCH):
            rows = order[begin : begin + BATCH]
            hidden, likely = _forward(weights, X[rows])
            likely[np.arange(len(rows)), y[rows]] -= 1.0
            likely /= len(rows)
            back = (likely @ weights[2].T) * (hidden > 0)
            slopes = (X[rows].T @ back, back.sum(0), hidden.T @ likely, likely.sum(0))
            for part, slope in zip(weights, slopes, strict=True):
                part -= np.float32(rate) * slope
    return weights


def average(models: Sequence[Weights], sizes: Sequence[int]) -> Weights:
    """Return the mean of several devices' weights, by rows."""
    share = np.array(sizes, dtype=np.float32) / np.float32(sum(sizes))
    return [
        np.tensordot(share, np.stack(parts), axes=1).astype(np.float32)
        for parts in zip(*models, strict=True)
    ]


def fedavg(
    model: Weights,
    held: Sequence[tuple[FloatArray, IntArray]],
    rounds: int,
    epochs: int,
    rate: float,
    per_round: int,
    rng: np.random.Generator,
) -> Weights:
    """Return the model after FedAvg over devices that hold (rows, classes)."""
    for _ in range(rounds):
        chosen = rng.choice(len(held), min(per_round, len(held)), replace=False)
        sent = [train(model, *held[z], epochs, rate, rng) for z in chosen]
        model = average(sent, [len(held[z][1]) for z in chosen])
    return model


def ifca(
    models: list[Weights],
    held: Sequence[tuple[FloatArray, IntArray]],
    rounds: int,
    epochs: int,
    rate: float,
    per_round: int,
    rng: np.random.Generator,
) -> list[Weights]:
    """Return the models after IFCA with model averaging (Ghosh et al., 2020)."""
    models = list(models)
    for _ in range(rounds):
        chosen = rng.choice(len(held), min(per_round, len(held)), replace=False)
        sent: list[list[Weights]] = [[] for _ in models]
        sizes: list[list[int]] = [[] for _ in models]
        for z in chosen:
            best = int(np.argmin([loss(model, *held[z]) for model in models]))
            sent[best].append(train(models[best], *held[z], epochs, rate, rng))
            sizes[best].append(len(held[z][1]))
        for index, group in enumerate(sent):
            if group:
                models[index] = average(group, sizes[index])
    return models


def selected(
    model: Weights,
    held: Sequence[tuple[FloatArray, IntArray]],
    how: str,
    groups: IntArray,
    per_round: int,
    rng: np.random.Generator,
) -> IntArray:
    """Return the devices of one round.

    ``random``; ``pow-d``: of 3 x ``per_round`` random candidates those of the largest loss (Cho et
    al.); ``kfed + pow-d``: the same, no two of a cluster while there is one of another.
    """
    if how == "random":
        return rng.choice(len(held), per_round, replace=False)
    candidates = rng.choice(len(held), min(3 * per_round, len(held)), replace=False)
    dearest = candidates[np.argsort([-loss(model, *held[z]) for z in candidates], kind="stable")]
    if how == "pow-d":
        return dearest[:per_round]
    first = np.sort(np.unique(groups[dearest], return_index=True)[1])
    later = np.setdiff1d(np.arange(len(dearest)), first)
    return dearest[np.concatenate([first, later])[:per_round]]
