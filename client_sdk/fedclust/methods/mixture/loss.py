"""A warning where a simulation says that protection loses much of what the classes are.

Persons are drawn from the classes that were found, at sites of the same sizes. EM on their groups
is compared with EM on their rows: by how much worse it tells the drawn persons' classes.
"""

from collections.abc import Sequence

import numpy as np

from fedclust.methods.mixture.artificial import draw_persons
from fedclust.methods.mixture.model import (
    NUMBER,
    Classes,
    Config,
    column_kinds,
    expect,
    log_densities,
    maximize,
    posterior,
)
from fedclust.numeric.agreement import adjusted_rand_index, contingency_table
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.random import server_rng
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import form_table
from fedclust.schema.encoding import blocks_of
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig

#: The warning comes if the adjusted Rand index falls by more than this, on average,
_FALL = 0.05
#: of so many simulations.
_TIMES = 3
#: Persons drawn at a site, and at all sites, at most: larger sites have finer groups.
_MOST_OF_SITE, _MOST = 2000, 4000
_ROUNDS = 50

_Persons = list[tuple[FloatArray, FloatArray]]


def loss_warning(
    classes: Classes, sites: Sequence[tuple[int, int]], config: RunConfig[Config], seed: int
) -> tuple[str, ...]:
    """Return a warning, if any; ``sites`` are each one's persons and least size of a group."""
    if config.policy.protection == "none" or len(classes.means) < 2 or not sites:
        return ()
    kept, total = [], 0
    for n, p in sites:
        kept.append((min(n, _MOST_OF_SITE), p))
        total += kept[-1][0]
        if total >= _MOST:
            break
    falls = [
        _fall(classes, kept, config, server_rng(seed, f"mixture-loss-{time}"))
        for time in range(_TIMES)
    ]
    if np.mean(falls) <= _FALL:
        return ()
    warning = (
        "Groups of persons cost these classes much: of persons drawn from them, groups tell the "
        f"classes worse than rows do, by {np.mean(falls):.2f} of the adjusted Rand index. Larger "
        "sites, fewer classes or a smaller min_group_size help; compare with the method fkm."
    )
    return (warning,)


def _fall(
    classes: Classes,
    sites: Sequence[tuple[int, int]],
    config: RunConfig[Config],
    rng: np.random.Generator,
) -> float:
    """Return by how much the adjusted Rand index falls from rows to groups."""
    rows, groups, truth = [], [], []
    for n, p in sites:
        labels = rng.choice(len(classes.means), size=n, p=classes.proportions)
        X = _draw(labels, classes, config, rng)
        rows.append((X, np.ones(n)))
        points = _points(X, p, config)
        groups.append(draw_persons(points, column_kinds(config.columns) == NUMBER, rng))
        truth.append(labels)
    everybody, of = np.concatenate([X for X, _ in rows]), np.concatenate(truth)
    return _agreement(rows, everybody, of, classes, config) - _agreement(
        groups, everybody, of, classes, config
    )


def _draw(
    labels: IntArray, classes: Classes, config: RunConfig[Config], rng: np.random.Generator
) -> FloatArray:
    """Return a person (n, d), scaled, of each label."""
    kinds, space = column_kinds(config.columns), config.space
    shape = classes.means[labels].shape
    scaled = classes.means[labels] + np.sqrt(classes.variances[labels]) * rng.normal(size=shape)
    own, shares = space.to_original(scaled), space.to_original(classes.means)
    yes = rng.random(shape) < shares[labels]
    own = np.where(kinds == NUMBER, own, yes)
    for places in blocks_of(config.columns):
        # The level of the largest noise is drawn with its probability.
        noise = np.log(np.maximum(shares[labels][:, places], 1e-12))
        noise += rng.gumbel(size=noise.shape)
        own[:, places] = np.eye(len(places))[noise.argmax(axis=1)]
    return space.to_scaled(own)


def _points(X: FloatArray, p: int, config: RunConfig) -> Points:
    """Return the points (m, d) of the protected table of persons (n, d), scaled."""
    blocks = blocks_of(config.columns)
    of_level = {int(j): places for places in blocks for j in places}
    single = [j for j in range(X.shape[1]) if j not in of_level]
    own = config.space.to_original(X)
    sources = [SourceColumn(str(j), np.ascontiguousarray(own[:, j])) for j in single]
    sources += [
        SourceColumn(str(places[0]), own[:, places].argmax(axis=1).astype(np.float64), len(places))
        for places in blocks
    ]
    table = form_table(sources, p)
    records = np.empty((len(table.sizes), X.shape[1]))
    for j in single:
        records[:, j] = table.values(str(j))
    for places in blocks:
        records[:, places] = np.eye(len(places))[table.values(str(places[0])).astype(np.int64)]
    return Points(config.space.to_scaled(records), table.sizes, np.zeros(X.shape[1]))


def _agreement(
    persons: _Persons, X: FloatArray, truth: IntArray, classes: Classes, config: RunConfig[Config]
) -> float:
    """Return the adjusted Rand index of rows' labels after EM from the true classes."""
    before = -np.inf
    for _ in range(_ROUNDS):
        sent = [expect(*each, classes, config) for each in persons]
        totals = np.sum([each.totals for each in sent], axis=0)
        classes = maximize(classes, totals, sent, config)
        now = sum(each.log_likelihood for each in sent)
        if now - before <= 1e-5 * abs(now):
            break
        before = now
    densities = log_densities(X, classes, column_kinds(config.columns), config.space)
    labels = posterior(densities, classes.proportions)[0].argmax(axis=1)
    k = len(classes.means)
    return adjusted_rand_index(contingency_table(truth, labels, np.ones_like(truth), (k, k)))
