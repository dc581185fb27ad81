"""Node problems of `dual` solved twice: by its own branch and bound and by SCIP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from fedclust.methods.dual.feasible_set import Region, Symmetry
from fedclust.methods.dual.node_problem import solve_node

FloatArray = NDArray[np.float64]


def node_problems(
    consortia: Mapping[str, Sequence[FloatArray]], half_width: float, count: int = 20
) -> Iterator[tuple[str, FloatArray, FloatArray, Region]]:
    """Yield name, rows, mu and region: sites and forms of symmetry in turn, mu as in an ascent.

    K is the fifth character from the left of a name, as in 2N2D3K_1; mu is drawn so that a cluster
    is pulled by about .1 of its rows, every fifth time by nothing.
    """
    rng = np.random.default_rng(0)
    forms = get_args(Symmetry)
    names = sorted(consortia)
    for number in range(count):
        name = names[number * len(names) // count]
        sites = consortia[name]
        clusters = int(name[4])
        means = np.vstack([KMeans(clusters, n_init=5, random_state=0).fit(X).cluster_centers_
                           for X in sites])  # fmt: skip
        references = KMeans(clusters, n_init=10, random_state=0).fit(means).cluster_centers_
        rows = sites[number % len(sites)]
        d = rows.shape[1]
        box = np.full(d, half_width)
        mu = rng.normal(size=(clusters, d)) * 0.2 * len(rows) / clusters * (number % 5 > 0) * 0.5
        yield name, rows, mu, Region(-box, box, references, forms[number % len(forms)])


def agreement(
    consortia: Mapping[str, Sequence[FloatArray]],
    half_width: float = 1.5,
    count: int = 20,
    node_limit: int = 100_000,
) -> list[dict[str, Any]]:
    """Return, for each node problem, both solvers' value, bound, nodes and CPU seconds."""
    found = []
    for name, rows, mu, region in node_problems(consortia, half_width, count):
        line: dict[str, Any] = {"problem": name, "symmetry": region.symmetry, "rows": len(rows)}
        for solver in ("branch_and_bound", "scip"):
            begun = time.process_time()
            node = solve_node(rows, mu, region, solver=solver, node_limit=node_limit)
            line[solver] = {
                "value": node.value,
                "bound": node.bound,
                "nodes": node.n_nodes,
                "complete": node.complete,
                "seconds": time.process_time() - begun,
            }
        line["differs_by"] = abs(line["scip"]["value"] - line["branch_and_bound"]["value"])
        found.append(line)
    return found
