"""The dual method against its paper: Tables II and III, Figure 6, and a clinical problem.

Data: the 30 distinct problems that the authors published (all two-dimensional), and problems of
three and four dimensions made from the paper's text: K centres in [-1, 1]^d, five rows a centre and
node within .5 of it. Declared bounds are the pooled extremes of a problem's rows, as in equation
3b; the tables also show a wider box, which a hospital should declare. All runs use ``protection:
none``; the published problems also run with p = 5. Every ascent is a complete ``simulate`` session.

Gaps are relative, in per cent, of the best bounds so far. *eq. 39*: .8 s a dual round, the slowest
node of each and the coordinator's step, as in the paper's formula; no message is sent here.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, load_wine

from _data import SHARED
from _report import write
from _runs import Job, Record, fingerprint, run
from fedclust import simulate
from fedclust_dual import feasible_set, multiplier_update, node_problem, server

warnings.simplefilter("ignore")

Rows = dict[str, NDArray[np.float64]]
RULES: dict[str, dict[str, Any]] = {
    "subgradient": {"update": "subgradient"},
    "bundle_trust": {"update": "bundle_trust"},
    "quasi_newton": {"update": "quasi_newton"},
    "quadratic_bundle": {"update": "quadratic_bundle"},
}
PAPER_RULES = ("subgradient", "bundle_trust", "quasi_newton")
#: Table III: gap in per cent of SG, BTM and QNDA, and their mean iterations.
TABLE_3: dict[str, tuple[tuple[float, float], ...]] = {
    "2N2D3K": ((1.94, 126.0), (1.84, 68.0), (1.82, 63.2)),
    "2N2D4K": ((0.89, 113.2), (0.80, 64.4), (0.73, 62.2)),
    "2N3D3K": ((1.80, 120.0), (1.60, 71.6), (1.58, 62.2)),
    "2N3D4K": ((0.27, 115.6), (0.10, 13.6), (0.06, 5.0)),
    "2N4D3K": ((0.31, 91.6), (0.16, 36.2), (0.12, 32.8)),
    "2N4D4K": ((0.25, 90.4), (0.08, 8.6), (0.08, 4.8)),
    "3N2D3K": ((7.01, 138.4), (6.14, 123.2), (6.21, 121.0)),
    "3N2D4K": ((4.70, 150.0), (3.99, 62.8), (3.98, 64.2)),
    "3N3D3K": ((2.33, 150.0), (1.76, 67.0), (1.71, 64.0)),
    "3N3D4K": ((0.82, 150.0), (0.35, 66.6), (0.28, 63.8)),
    "3N4D3K": ((2.07, 150.0), (1.63, 37.2), (1.36, 35.0)),
    "3N4D4K": ((1.06, 150.0), (0.56, 37.8), (0.46, 37.2)),
    "4N2D3K": ((5.01, 150.0), (3.66, 103.2), (3.61, 94.6)),
    "4N2D4K": ((7.58, 150.0), (5.71, 93.8), (5.68, 93.8)),
    "4N3D3K": ((1.32, 150.0), (0.15, 6.6), (0.17, 9.4)),
    "4N3D4K": ((1.55, 150.0), (0.53, 65.8), (0.49, 66.0)),
    "4N4D3K": ((1.57, 150.0), (0.42, 35.0), (0.41, 37.4)),
    "4N4D4K": ((1.70, 150.0), (0.14, 7.2), (0.17, 9.8)),
}
SIZES = tuple((n, k) for n in (2, 3, 4) for k in (3, 4))


# --- problems -------------------------------------------------------------------------------------


def problem(n_nodes: int, d: int, k: int, number: int) -> Rows:
    """Return a problem's rows by node: published where d is 2, else made from the text."""
    if d == 2:
        name = f"{n_nodes}N2D{k}K_{number}"
        with np.load(SHARED / "vayf" / "vayf_30_problems.npz") as kept:
            return {f"node-{i}": kept[f"{name}__node{i}"] for i in range(1, n_nodes + 1)}
    rng = np.random.default_rng([n_nodes, d, k, number])
    centres = rng.uniform(-1.0, 1.0, (k, d))
    return {f"node-{i}": _around(centres, rng) for i in range(1, n_nodes + 1)}


def _around(centres: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return five rows a centre, uniform in the ball of radius .5 about it."""
    k, d = centres.shape
    steps = rng.normal(size=(5 * k, d))
    steps *= 0.5 * rng.random((5 * k, 1)) ** (1.0 / d) / np.linalg.norm(steps, axis=1)[:, None]
    return np.repeat(centres, 5, axis=0) + steps


def pooled_best(sites: Rows, k: int, starts: int = 200) -> float:
    """Return the least inertia that central k-means finds from many starts."""
    X = np.concatenate([sites[name] for name in sorted(sites)])
    return float(KMeans(k, n_init=starts, random_state=0, tol=0.0).fit(X).inertia_)


# --- one ascent -----------------------------------------------------------------------------------


def ascent(
    n_nodes: int,
    d: int,
    k: int,
    number: int,
    rule: str,
    symmetry: str,
    node_limit: int,
    room: float = 0.0,
    splits: int = 0,
    protection: str = "none",
) -> Record:
    """Run one problem through; return bounds, iterations, times and the gap by iteration.

    ``protection``: ``groups`` with p = 5, whose bounds are of the weighted points.
    ``room``: by how much the declared bounds are wider than the rows on each side, of their range.
    ``splits``: how often the centroids' region may be cut to close the gap.
    """
    sites = problem(n_nodes, d, k, number)
    best = pooled_best(sites, k)
    config = {**RULES[rule], "n_clusters": k, "symmetry": symmetry, "node_limit": node_limit}
    if splits:
        config |= {"splits": splits, "iterations": 5_000}
    found, timing = timed(sites, config, room, protection)
    bounds = found.result.bounds
    assert bounds is not None
    X = np.concatenate([sites[name] for name in sorted(sites)])
    return {
        "class": f"{n_nodes}N{d}D{k}K",
        "best": best,
        "cost": _inertia(X, found.cluster_centers_, np.ones(d)) / best,
        "lower": bounds.lower,
        "upper": bounds.upper,
        "gap": None if bounds.gap is None else 100.0 * bounds.gap,
        "iterations": bounds.iterations,
        "limited": bounds.limited,
        "splits": bounds.splits,
        "rounds": found.n_rounds_,
        "because": found.stopped_because_,
        "gaps": gaps(found.history_),
        **timing,
    }


def box(sites: Rows, room: float) -> list[dict[str, Any]]:
    """Return features declared with the rows' extremes, wider by a share of their range."""
    X = np.concatenate(list(sites.values()))
    low, high = X.min(axis=0), X.max(axis=0)
    wide = room * (high - low)
    return [
        {"name": f"x{j}", "lower": float(low[j] - wide[j]), "upper": float(high[j] + wide[j])}
        for j in range(X.shape[1])
    ]


def timed(sites: Rows, config: dict[str, Any], room: float, protection: str) -> tuple[Any, Record]:
    """Run a session; return it and what eq. 39 and the node problems took."""
    d = next(iter(sites.values())).shape[1]
    rules = {
        "min_group_size": 5,
        "min_sites": 1,
        "scaling": "none",
        "missing": "drop",
        "max_rounds": 5_000,
        "protection": protection,
    }
    solve, advance = node_problem.solve_node, multiplier_update.update_multipliers
    nodes: list[float] = []
    steps: list[float] = []

    def timing(kept: list[float], function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = function(*given, **named)
        kept.append(time.perf_counter() - began)
        return result

    # The kernel's first call in a process loads or compiles it.
    warm = np.zeros((3, d))
    region = feasible_set.Region(np.full(d, -1.5), np.full(d, 1.5), np.eye(2, d), "none")
    solve(warm, np.zeros((2, d)), region, node_limit=10)
    with (
        mock.patch.object(node_problem, "solve_node", partial(timing, nodes, solve)),
        mock.patch.object(server, "update_multipliers", partial(timing, steps, advance)),
    ):
        found = simulate(
            "dual",
            sites,
            config={"evaluate": False, **config},
            features=box(sites, room),
            policy=rules,
            seed=0,
        )
    slowest = np.array(nodes).reshape(-1, len(sites)).max(axis=1)
    return found, {
        "node ms": 1e3 * float(np.mean(nodes)),
        "node ms, most": 1e3 * float(np.max(nodes)),
        "eq. 39 s": float(0.8 * len(slowest) + slowest.sum() + np.sum(steps)),
    }


def gaps(history: Any) -> list[float]:
    """Return the gap of the best bounds so far after each dual round, in per cent."""
    lower, upper, found = -np.inf, np.inf, []
    for entry in history:
        if entry.phase == "dual" and np.isfinite([lower, upper]).all():
            found.append(100.0 * max(0.0, 1.0 - lower / upper))
        lower = max(lower, -np.inf if entry.lower_bound is None else entry.lower_bound)
        upper = min(upper, np.inf if entry.upper_bound is None else entry.upper_bound)
    found.append(100.0 * max(0.0, 1.0 - lower / upper))
    return found


# --- parts ----------------------------------------------------------------------------------------


def table(
    name: str, dims: tuple[int, ...], wanted: list[tuple[str, str, float]], numbers: int
) -> None:
    """Write the tables of some dimensions: gap and iterations by class, beside the paper's."""
    code = fingerprint(__file__)
    cases = [
        (n, d, k, number, rule, symmetry, room)
        for d in dims
        for n, k in SIZES
        for number in range(1, numbers + 1)
        for rule, symmetry, room in wanted
    ]
    jobs = [
        Job(
            ascent,
            {
                "n_nodes": n,
                "d": d,
                "k": k,
                "number": number,
                "rule": rule,
                "symmetry": symmetry,
                "node_limit": NODE_LIMIT,
                "room": room,
            },
        )
        for n, d, k, number, rule, symmetry, room in cases
    ]
    records = run(name, jobs, code)
    rows: list[dict[str, Any]] = []
    for each in wanted:
        own = [r for case, r in zip(cases, records, strict=True) if case[4:] == each]
        by_class = dict.fromkeys(record["class"] for record in own)
        rows += [_row(*each, kind, [r for r in own if r["class"] == kind]) for kind in by_class]
        rows.append(_row(*each, "all", own))
    write(
        name,
        rows,
        note=(
            f"Means over {numbers} problems a class. Above: problems whose lower bound exceeds the "
            "best known inertia by more than 1e-6 of it; missed: whose upper bound does. Limited: "
            f"dual rounds in which some node met its limit of {NODE_LIMIT:,}."
        ),
    )


def _row(rule: str, symmetry: str, room: float, kind: str, records: list[Record]) -> dict[str, Any]:
    paper = TABLE_3.get(kind)
    published: tuple[float, float] | None = None
    if paper is not None and rule in PAPER_RULES:
        published = paper[PAPER_RULES.index(rule)]
    gaps = [r["gap"] for r in records if r["gap"] is not None]
    slack = 1e-6
    return {
        "rule": rule,
        "symmetry": symmetry,
        "room": room,
        "class": kind,
        "gap %": float(np.mean(gaps)),
        "paper's": "-" if published is None else published[0],
        "iterations": float(np.mean([r["iterations"] for r in records])),
        "paper's iterations": "-" if published is None else published[1],
        "most iterations": max(r["iterations"] for r in records),
        "closed to .25 %": f"{sum(gap <= 0.25 + 1e-9 for gap in gaps)} of {len(records)}",
        "above": sum(r["lower"] > r["best"] * (1 + slack) for r in records),
        "missed": sum(r["upper"] > r["best"] * (1 + slack) for r in records),
        "limited": float(np.mean([r["limited"] for r in records])),
        "node ms": float(np.mean([r["node ms"] for r in records])),
        "node ms, most": max(r["node ms, most"] for r in records),
        "eq. 39 s": float(np.mean([r["eq. 39 s"] for r in records])),
    }


#: Nodes of each search in the tables.
NODE_LIMIT = 200_000
#: A wider box: by a quarter of the range on each side.
ROOM = 0.25
#: Cuts that may be made where the gap is to be closed.
SPLITS = 1_000


def published(numbers: int) -> None:
    """Tables II and III on the published problems; the certified form beside."""
    paper = [(rule, "cells", room) for room in (0.0, ROOM) for rule in PAPER_RULES]
    ours = [
        ("quadratic_bundle", form, room) for form in ("cells", "pairwise") for room in (0.0, ROOM)
    ]
    table("dual_published", (2,), paper + ours, numbers)
    protected(numbers)


def protected(numbers: int) -> None:
    """The published problems at p = 5: bounds of the weighted points, cost on the rows."""
    cases = [(n, k, number) for n, k in SIZES for number in range(1, numbers + 1)]
    asked = {"d": 2, "rule": "quadratic_bundle", "symmetry": "pairwise", "node_limit": NODE_LIMIT}
    jobs = [
        Job(
            ascent,
            {"n_nodes": n, "k": k, "number": number, "protection": protection, **asked},
        )
        for protection in ("none", "groups")
        for n, k, number in cases
    ]
    records = run("dual_protected", jobs, fingerprint(__file__))
    rows = []
    for protection, part in (("none", records[: len(cases)]), ("p = 5", records[len(cases) :])):
        for kind in dict.fromkeys(record["class"] for record in part):
            own = [record for record in part if record["class"] == kind]
            rows.append(
                {
                    "protection": protection,
                    "class": kind,
                    "gap %": float(np.mean([r["gap"] for r in own])),
                    "dual rounds": float(np.mean([r["iterations"] for r in own])),
                    "node ms": float(np.mean([r["node ms"] for r in own])),
                    "cost on the rows": float(np.mean([r["cost"] for r in own])),
                    "most": max(r["cost"] for r in own),
                }
            )
    write(
        "dual_protected",
        rows,
        note=(
            "quadratic_bundle, pairwise. Gap: between the bounds, of the rows or of the weighted "
            "points. Cost: of the centroids on the rows, over the best known. With 15 or 20 rows "
            "a site p = 5 leaves two to four points: fewer than K are no clustering."
        ),
    )


def reference(numbers: int) -> None:
    """The same with equation 36 itself, whose node problems are not convex."""
    table("dual_reference", (2,), [(rule, "reference", 0.0) for rule in PAPER_RULES], numbers)


def closing(numbers: int) -> None:
    """How far the gap closes where the region may be cut: ``pairwise``; the wider box with K = 3.

    In the wider box 4N2D4K_2 alone takes longer than all others together.
    """
    cases = [
        (n, k, number, room)
        for room in (0.0, ROOM)
        for n, k in SIZES
        for number in range(1, numbers + 1)
        if room == 0.0 or k == 3
    ]
    jobs = [
        Job(
            ascent,
            {
                "n_nodes": n,
                "d": 2,
                "k": k,
                "number": number,
                "rule": "quadratic_bundle",
                "symmetry": "pairwise",
                "node_limit": NODE_LIMIT,
                "room": room,
                "splits": SPLITS,
            },
        )
        for n, k, number, room in cases
    ]
    records = run("dual_closing", jobs, fingerprint(__file__))
    rows = []
    for room in (0.0, ROOM):
        for kind in (*(f"{n}N2D{k}K" for n, k in SIZES), "K = 3", "K = 4"):
            own = [
                record
                for case, record in zip(cases, records, strict=True)
                if case[3] == room and (record["class"] == kind or kind == f"K = {case[1]}")
            ]
            if own:
                rows.append(_closed_row(room, kind, own))
    write(
        "dual_closing",
        rows,
        note=(
            f"Up to {SPLITS:,} cuts, pairwise, protection none. Above, missed and limited as in "
            "the tables above. Seconds: slowest nodes and coordinator's steps; no message is sent."
        ),
    )


def _closed_row(room: float, kind: str, records: list[Record]) -> dict[str, Any]:
    seconds = [r["eq. 39 s"] - 0.8 * r["iterations"] for r in records]
    return {
        "room": room,
        "class": kind,
        "closed to .25 %": f"{sum(r['gap'] <= 0.25 + 1e-9 for r in records)} of {len(records)}",
        "most gap %": max(r["gap"] for r in records),
        "cuts": float(np.mean([r["splits"] for r in records])),
        "most cuts": max(r["splits"] for r in records),
        "dual rounds": float(np.mean([r["iterations"] for r in records])),
        "most dual rounds": max(r["iterations"] for r in records),
        "rounds": float(np.mean([r["rounds"] for r in records])),
        "seconds": float(np.mean(seconds)),
        "most seconds": max(seconds),
        "above": sum(r["lower"] > r["best"] * (1 + 1e-6) for r in records),
        "missed": sum(r["upper"] > r["best"] * (1 + 1e-6) for r in records),
        "limited": sum(r["limited"] for r in records),
    }


def made(numbers: int) -> None:
    """The same in three and four dimensions, of problems made from the text."""
    wanted = [(rule, "cells", 0.0) for rule in RULES] + [("quadratic_bundle", "pairwise", 0.0)]
    table("dual_made", (3, 4), wanted, numbers)


def evolution(_: int) -> None:
    """Figure 6: the gap by iteration on 2N2D4K_3."""
    rows = []
    for rule in RULES:
        record = ascent(2, 2, 4, 3, rule, "cells", NODE_LIMIT)
        rows.append(
            {
                "rule": rule,
                "iterations": record["iterations"],
                "gap %": record["gap"],
                "stopped": record["because"],
                "curve": record["gaps"],
            }
        )
    write("dual_figure6", rows, note="2N2D4K_3, cells.", hidden=("curve",))


def clinical(_: int) -> None:
    """Certified bounds on iris and on four features of wine over three sites."""
    rows = []
    for name, X in (
        ("iris", load_iris().data),
        ("wine, 4 features", load_wine().data[:, [0, 6, 9, 12]]),
    ):
        order = np.random.default_rng(0).permutation(len(X))
        sites = {f"site-{i}": X[part] for i, part in enumerate(np.array_split(order, 3))}
        rows += [clinical_row(name, sites, p, limit, splits) for p, limit, splits in CLINICAL[name]]
    write(
        "dual_clinical",
        rows,
        note=(
            "Three sites, K = 3, rows dealt at random, scaled to variance 1, pairwise. Bounds a "
            "quarter of the range wider than the data's. Gap: of the rows or, with p = 5, of the "
            "weighted points. Cost: of dual's centroids on the rows, over pooled k-means of 50 "
            "starts. fkm, pooled: how far their inertia is above the lower bound and above the "
            "upper one, in per cent."
        ),
    )


#: Least size of a group (0: no protection), node limit, and cuts. Without protection those of wine
#: meet the node limit in each box, and 10 of them gain nothing.
CLINICAL = {
    "iris": ((0, 200_000, 0), (0, 200_000, 10), (5, 200_000, 0), (5, 200_000, 10)),
    "wine, 4 features": ((0, 200_000, 0), (5, 200_000, 0)),
}


def clinical_row(name: str, sites: Rows, p: int, node_limit: int, splits: int) -> dict[str, Any]:
    X = np.concatenate(list(sites.values()))
    declared = box(sites, ROOM)
    policy = {"min_sites": 3, "max_rounds": 2_000}
    policy |= {"min_group_size": p} if p else {"protection": "none"}
    began = time.perf_counter()
    found = simulate(
        "dual",
        sites,
        config={"n_clusters": 3, "node_limit": node_limit, "splits": splits},
        features=declared,
        policy=policy,
        seed=0,
    )
    seconds = time.perf_counter() - began
    bounds = found.result.bounds
    assert bounds is not None
    scaled = (X - found.result.center) / found.result.scale
    other = simulate(
        "fkm", sites, config={"n_clusters": 3}, features=declared, policy=policy, seed=0
    )
    costs = {
        "fkm": _inertia(X, other.cluster_centers_, found.result.scale),
        "pooled": float(KMeans(3, n_init=50, random_state=0).fit(scaled).inertia_),
    }
    row: dict[str, Any] = {
        "data": name,
        "p": p or "none",
        "node limit": node_limit,
        "cuts": f"{bounds.splits} of {splits}",
        "lower": bounds.lower if bounds.lower is not None else "-",
        "upper": bounds.upper if bounds.upper is not None else "-",
        "gap %": "-" if bounds.gap is None else 100.0 * bounds.gap,
        "dual rounds": bounds.iterations,
        "limited": bounds.limited,
        "rounds": found.n_rounds_,
        "stopped": found.stopped_because_,
        "seconds": seconds,
    }
    own = _inertia(X, found.cluster_centers_, found.result.scale)
    row["cost on the rows"] = own / costs["pooled"]
    for how, cost in costs.items():
        if p:
            row[how] = "-"  # The bounds are not of the rows.
            continue
        above = "-" if bounds.lower is None else f"{100.0 * (cost / bounds.lower - 1.0):.2f}"
        beside = "-" if bounds.upper is None else f"{100.0 * (cost / bounds.upper - 1.0):.3f}"
        row[how] = f"{above} / {beside}"
    return row


def _inertia(
    X: NDArray[np.float64], centres: NDArray[np.float64], scale: NDArray[np.float64]
) -> float:
    squares = (((X[:, None, :] - centres[None]) / scale) ** 2).sum(axis=2)
    return float(squares.min(axis=1).sum())


PARTS: dict[str, Callable[[int], None]] = {
    "published": published,
    "closing": closing,
    "reference": reference,
    "made": made,
    "evolution": evolution,
    "clinical": clinical,
}
#: Some minutes to an hour each: only by name.
LONG = ("reference", "made")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, default=1, help="problems a class, of 5")
    quick = [name for name in PARTS if name not in LONG]
    parser.add_argument("--only", choices=PARTS, nargs="*", default=quick)
    options = parser.parse_args()
    for name in options.only:
        PARTS[name](options.numbers)


if __name__ == "__main__":
    main()
