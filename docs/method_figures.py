"""Draw a small example of every method as ``docs/figures/method_NAME.svg``.

``python docs/method_figures.py`` draws all of them. Each figure shows a session that
:func:`fedclust.simulate` runs: the sites' rows, what the sites send, and what the coordinator makes
of it. All positions come from the session. A test draws the figures again and compares positions.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagrams import INK, save
from fedclust import SessionResult, simulate
from fedclust.methods.kfed import farthest_first
from fedclust.methods.overlap_oneshot import draw_proxies
from fedclust.methods.overlap_oneshot.agglomeration import build_merge_tree, cluster_forces
from fedclust.methods.spectral.graph import self_tuning_graph
from fedclust.methods.ward import gather
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.result.drawing import PALETTE, Figure
from fedclust.result.figures.tree import cut_height
from fedclust.result.figures.tree import places as tree_places
from fedclust.schema.result import Dendrogram
from fedclust.schema.task import narrow
from panels import COLOURS, GREY, SITES, Panel, Sheet, draw_tree

FloatArray = NDArray[np.float64]
Sites = dict[str, FloatArray]

SEED = 1
#: Positions in the figures are those that travel: nothing is scaled.
POLICY = {"scaling": "none", "missing": "drop"}
LOW, HIGH = (-0.8, -0.8), (11.0, 11.0)


def blobs(centres: FloatArray, size: int, spread: float, rng: np.random.Generator) -> FloatArray:
    """Return ``size`` rows around each of the centres (k, d)."""
    return np.concatenate([rng.normal(centre, spread, (size, len(centre))) for centre in centres])


def payloads(result: SessionResult, phase: str, round_number: int = 0) -> dict[str, Any]:
    """Return what each site sent in the first round of a phase, or in one with a number."""
    sent = [entry for entry in result.trace_ if entry.phase == phase]
    chosen = round_number or sent[0].round
    return {entry.site: entry.payload for entry in sent if entry.round == chosen}


def tasks(result: SessionResult, phase: str) -> dict[int, Any]:
    """Return what every task of a phase had in common, by the round's number."""
    return {entry.round: entry.task.common for entry in result.trace_ if entry.phase == phase}


# --- Methods that need all features ---------------------------------------------------------------


def draw_fkm() -> Figure:
    """Draw cells, candidates, their inertia by round, and the result."""
    rng = np.random.default_rng(0)
    centres = np.array([(2, 2), (5, 3.2), (8.2, 2), (3.2, 6.5), (7, 7)])
    held = {"berlin": [0, 1, 3], "oslo": [1, 2, 4], "porto": [4]}
    sites = {site: blobs(centres[own], 40, 0.9, rng) for site, own in held.items()}
    result = simulate("fkm", sites, config={"n_clusters": 5}, policy=POLICY, seed=SEED)
    cells = payloads(result, "cells")
    rounds = tasks(result, "candidates")
    first = rounds[2].centroids
    inertias = {
        number: sum(
            sent.costs.sum(axis=1) for sent in payloads(result, "candidates", number).values()
        )
        for number in rounds
    }
    sheet = Sheet(LOW, HIGH)
    sent = sheet.panel(
        "Cells",
        "Each site clusters its own rows and sends counts and means. Porto holds one cluster only.",
    )
    sent.rows(sites)
    tried = sheet.panel(
        "Candidates",
        "The coordinator clusters all cells from many starts. Crosses: the best result (black) and "
        f"the worst of {len(first)}.",
    )
    for site, own in cells.items():
        for panel in (sent, tried):
            panel.sent(site, own.means, own.counts)
    tried.crosses(first[inertias[2].argmax()], PALETTE[3], size=5)
    tried.crosses(first[inertias[2].argmin()], size=5)
    best = [float(values.min()) for values in inertias.values()]
    most = float(inertias[2].max())
    race = sheet.panel(
        "Rounds",
        "Each round is one Lloyd step of all candidates (dots: their inertia). Worse ones are "
        "dropped.",
        (-0.4, -0.1 * most),
        (len(best) + 0.6, 1.1 * most),
    )
    race.chart({"best": (INK, best)})
    for number, values in enumerate(inertias.values(), 1):
        race.dots(np.column_stack([np.full(len(values), number), values]), GREY, opacity=0.9)
    found = sheet.panel("Result", "The best centroids. Every row takes the nearest one's label.")
    found.regions(result.cluster_centers_)
    found.rows(sites)
    found.numbers(result.cluster_centers_)
    return sheet.figure(
        "fkm on a small example",
        sites,
        "small: a row · large: a cell, by its count · disc: a centroid",
        "Three sites hold different parts of five clusters; porto holds one. Each sends the means "
        "of at most five cells of its own rows. The coordinator clusters all cells from many "
        f"starts and keeps {len(first)} candidates. In {len(rounds)} rounds of Lloyd steps worse "
        "candidates are dropped; the best one finds the five clusters.",
    )


def draw_kfed() -> Figure:
    """Draw local means, the farthest-first choice, Lloyd on the means, and the default's cells."""
    rng = np.random.default_rng(5)
    centres = np.array([(2.2, 2.4), (7.6, 2.6), (2.6, 7.6), (7.8, 8)])
    held = {"berlin": [0, 1], "oslo": [1, 2], "porto": [2, 3]}
    sites = {site: blobs(centres[own], 25, 1.1, rng) for site, own in held.items()}
    options: dict[str, Any] = {"n_clusters": 4}
    paper = simulate(
        "kfed", sites, config={**options, "variant": "paper"}, policy=POLICY, seed=SEED
    )
    default = simulate("kfed", sites, config=options, policy=POLICY, seed=SEED)
    sent = payloads(paper, "cells")
    means = np.concatenate([own.means for own in sent.values()])
    seeds = farthest_first(means, sent["berlin"].means, 4)
    sheet = Sheet(LOW, HIGH)
    local = sheet.panel(
        "Local means",
        "Each site holds two of the four clusters, finds them among its own rows and sends their "
        "means.",
    )
    local.rows(sites)
    chosen = sheet.panel(
        "Farthest first",
        "The coordinator takes berlin's means, 1 and 2, and then the mean farthest from those: 3, "
        "then 4.",
    )
    moved = sheet.panel(
        "Lloyd",
        "Every mean joins the nearest of the four. The averages (crosses) are the centroids.",
    )
    moved.regions(paper.cluster_centers_)
    for panel in (local, chosen, moved):
        for site, own in sent.items():
            panel.sent(site, own.means)
    chosen.numbers(seeds, next_to=True)
    nearest = paper.cluster_centers_[nearest_centroid(means, paper.cluster_centers_)]
    moved.links(means, nearest)
    moved.crosses(paper.cluster_centers_, size=3)
    cells = sheet.panel(
        "By default",
        "Sites send more cells than clusters. The coordinator weights them by their counts.",
    )
    cells.regions(default.cluster_centers_)
    for site, own in payloads(default, "cells").items():
        cells.sent(site, own.means, own.counts)
    cells.crosses(default.cluster_centers_)
    return sheet.figure(
        "kfed on a small example",
        sites,
        "small: a row · large: a mean that a site sends · panels 1 to 3: variant paper",
        "Three sites hold two of four clusters each and send the means of these. The coordinator "
        "takes the two means of the first site, adds twice the mean farthest from those chosen, "
        "and averages the means nearest to each. The default variant sends more cells than "
        "clusters and finds the same four clusters.",
    )


def draw_lloyd() -> Figure:
    """Draw the start, what sites send in the first round, the last round, and the inertia."""
    rng = np.random.default_rng(5)
    centres = np.array([(2.5, 2.5), (7.5, 3), (4.5, 7.5)])
    sites = {site: blobs(centres, 20, 1.0, rng) for site in SITES}
    given = np.array([(0.5, 4.5), (3, 9.5), (6, 9)])
    config = {"n_clusters": 3, "start": "given", "centroids": given.tolist()}
    result = simulate("lloyd", sites, config=config, policy=POLICY, seed=SEED)
    rounds = [task.centroids for task in tasks(result, "lloyd").values()]
    sheet = Sheet(LOW, HIGH)
    start = sheet.panel(
        "Start",
        "All sites get the same centroids, here three poor ones, and assign their rows to the "
        "nearest.",
    )
    start.regions(given)
    start.rows(sites)
    start.numbers(given)
    step = sheet.panel(
        "Round 1",
        "Each site sends count and sum of its rows in each cluster (marks: sum / count). The "
        "centroids move to the mean of all.",
    )
    step.regions(given)
    for site, sent in payloads(result, "lloyd").items():
        held = sent.counts > 0
        step.sent(site, sent.sums[held] / sent.counts[held, None], sent.counts[held])
    step.arrows(given, rounds[1])
    step.crosses(given, GREY)
    last = sheet.panel(
        f"Round {len(rounds)}, the last",
        "Nothing improves any more. Lines: the way of each centroid.",
    )
    last.regions(result.cluster_centers_)
    last.rows(sites)
    for before, after in itertools.pairwise(rounds):
        last.links(before, after, width=1.5)
    last.numbers(rounds[-1])
    inertia = [h.inertia for h in result.history_ if h.phase == "lloyd" and h.inertia is not None]
    curve = sheet.panel(
        "Inertia",
        "It never rises. k-means on all points in one place takes the same steps.",
        (-0.6, -0.1 * max(inertia)),
        (len(inertia) + 0.6, 1.15 * max(inertia)),
    )
    curve.chart({"inertia": (INK, inertia)})
    return sheet.figure(
        "lloyd on a small example",
        sites,
        "small: a row · large: the mean of a site's part of a cluster · disc: a centroid",
        "Three sites have rows of the same three clusters. In each round the sites assign their "
        "rows to the nearest centroid and send sums and counts, and the centroids move to the "
        f"means. After {len(rounds)} rounds from a poor start each centroid is in the middle of a "
        "cluster, and the inertia stands still.",
    )


def draw_ward() -> Figure:
    """Draw the groups, the first merges, the tree with its cuts, and the clusters."""
    rng = np.random.default_rng(3)
    centres = np.array([(2.4, 2.6), (7.6, 2.4), (5.4, 7.8)])
    held = {"berlin": [0, 1], "oslo": [1, 2], "porto": [0, 2]}
    sites = {site: blobs(centres[own], 25, 1.0, rng) for site, own in held.items()}
    result = simulate("ward", sites, config={"n_clusters": [2, 3]}, policy=POLICY, seed=SEED)
    three = result.at(3)
    tree = narrow(three.result.dendrogram, Dendrogram)
    across, heights = tree_places(tree)
    sheet = Sheet(LOW, HIGH)
    groups = sheet.panel(
        "Groups",
        "Each site sends sizes and records of its groups, in one message.",
    )
    groups.rows(sites)
    cut = sheet.panel("Merging", "Each step merges the two clusters that add the least inertia.")
    for site, own in payloads(result, "cells").items():
        for panel in (groups, cut):
            panel.sent(site, own.means, own.counts)
    sent = payloads(result, "cells")
    means, _, _ = gather(sent, 2)
    nodes = [*means]
    for first, second in tree.merges[:-2].tolist():
        cut.links(nodes[first][None], nodes[second][None], width=1.5)
        nodes.append((nodes[first] + nodes[second]) / 2)
    drawn = sheet.panel(
        "Tree",
        "The last merges are the highest. Every K is one cut of the same tree (red: two).",
        (-1.0, -0.06 * heights.max()),
        (len(tree.sizes), 1.06 * heights.max()),
    )
    places = np.column_stack([across, heights])
    for number, pair in enumerate(tree.merges.tolist()):
        top = heights[len(tree.sizes) + number]
        ends = np.column_stack([across[pair], [top, top]])
        drawn.links(np.vstack([places[pair], ends[:1]]), np.vstack([ends, ends[1:]]), width=1.5)
    for k in (2, 3):
        at = narrow(cut_height(tree, k), float)
        drawn.links(np.array([(-0.8, at)]), np.array([(len(tree.sizes) - 0.2, at)]), "#cc0000")
        drawn.words((0.6 * len(tree.sizes), at), f"K = {k}", lift=6)
    found = sheet.panel("Result", "The means of the branches. A row takes the nearest one's label.")
    found.regions(three.cluster_centers_)
    found.rows(sites)
    found.numbers(three.cluster_centers_)
    return sheet.figure(
        "ward on a small example",
        sites,
        "small: a row · large: the record of a group, by its size · disc: a centroid",
        "Three sites hold two of three clusters each and send the records of their groups. The "
        f"coordinator merges {tree.n_cells} groups, nearest first, into one tree. The last two "
        "merges are much higher than all others; cut below them the tree has three clusters.",
    )


def draw_mixture() -> Figure:
    """Draw the first partition, a round, the log-likelihood, and the classes that were found."""
    rng = np.random.default_rng(2)
    tight, wide = np.array([(4.2, 4.6)]), np.array([(6.4, 6.2)])
    sites = {
        site: np.concatenate([blobs(tight, n, 0.6, rng), blobs(wide, 60 - n, 1.9, rng)])
        for site, n in zip(SITES, (40, 30, 15), strict=True)
    }
    config = {"n_clusters": 2, "reg_covar": 0.0}
    result = simulate("mixture", sites, config=config, policy=POLICY, seed=SEED)
    rounds = tasks(result, "em")
    first, *_, last = rounds.values()
    sheet = Sheet(LOW, HIGH)
    start = sheet.panel(
        "Partition",
        "The first classes: each point goes with the nearest centroid of a k-means.",
    )
    (partition,) = tasks(result, "partition").values()
    start.regions(partition.centroids)
    start.rows(sites)
    start.numbers(partition.centroids)
    step = sheet.panel(
        "Round 1",
        "Each site weighs its points by the probabilities of the classes and sends sums (marks: "
        "its own means). Ellipses: two standard deviations.",
    )
    number = min(rounds)
    for site, sent in payloads(result, "em", number).items():
        means = first.centroids + sent.offsets / sent.totals[:, None]
        step.sent(site, means, sent.totals)
    step.ellipses(first.centroids, 2.0 * np.sqrt(first.variances), INK)
    curve_of = [
        sum(sent.log_likelihood for sent in payloads(result, "em", at).values()) for at in rounds
    ]
    height = curve_of[-1] - curve_of[0]
    curve = sheet.panel(
        "Log-likelihood",
        "It never falls. EM on all points in one place takes the same steps.",
        (-0.15 * len(curve_of), curve_of[0] - 0.15 * height),
        (len(curve_of) + 0.6, curve_of[-1] + 0.25 * height),
    )
    curve.chart({"log-likelihood": (INK, curve_of)})
    found = sheet.panel(
        "Result",
        "A tight class overlaps a wide one. A person belongs to each with a probability, which "
        "only the person's site knows.",
    )
    found.rows(sites)
    found.ellipses(last.centroids, 2.0 * np.sqrt(last.variances), INK)
    found.numbers(last.centroids)
    return sheet.figure(
        "mixture on a small example",
        sites,
        "small: a row · large: the mean of a site's part of a class · disc: a class's mean",
        "Three sites have rows of a tight class and of a wide class that overlap. The first "
        f"partition cuts between them along a line. In {len(rounds)} rounds of EM the "
        f"log-likelihood rises from {curve_of[0]:.0f} to {curve_of[-1]:.0f}, and the "
        "classes become a small ellipse and a large one that overlap.",
    )


def moon(place: tuple[float, float], side: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Return rows (n, 2) along half a circle."""
    angles = rng.uniform(0.0, np.pi, n)
    way = np.column_stack([np.cos(angles), side * np.sin(angles)])
    return np.asarray(way + place + rng.normal(0.0, 0.06, (n, 2)))


def draw_spectral() -> Figure:
    """Draw two moons: landmarks, their graph, the clusters, and those of k-means."""
    rng = np.random.default_rng(0)
    sizes = {"berlin": (120, 40), "oslo": (80, 80), "porto": (40, 120)}
    sites = {
        site: np.concatenate([moon((0, 0), 1, a, rng), moon((1, 0.4), -1, b, rng)])
        for site, (a, b) in sizes.items()
    }
    by_graph, by_means = (
        simulate(name, sites, config={"n_clusters": 2}, policy=POLICY, seed=SEED)
        for name in ("spectral", "fkm")
    )
    points = np.asarray(by_graph.result.prototypes)
    sheet = Sheet((-1.3, -0.85), (2.3, 1.35), ratio=2.2 / 3.6)
    sent = sheet.panel(
        "Landmarks",
        "Each site sends the means of small groups of rows that are near one another.",
    )
    for site, own in payloads(by_graph, "landmarks").items():
        sent.sent(site, own.means)
    graph, _ = self_tuning_graph(points, int(by_graph.result.extra["neighbours"]))
    ends = np.argwhere(np.triu(graph.toarray()) > 0)
    net = sheet.panel(
        "Graph",
        "The coordinator leaves out landmarks that lie alone, and links the others to their "
        "neighbours.",
    )
    net.links(points[ends[:, 0]], points[ends[:, 1]], GREY, width=0.6)
    net.dots(points, INK, opacity=1.0)
    parts = sheet.panel(
        "Clusters",
        "Parts with few links between them are the clusters. A row takes the label of the nearest "
        "landmark.",
    )
    cut = sheet.panel(
        "For comparison", "k-means (fkm) of the same rows cuts both moons in the middle."
    )
    for panel, result in ((parts, by_graph), (cut, by_means)):
        for site, rows in sites.items():
            for cluster, colour in enumerate((PALETTE[1], PALETTE[3])):
                panel.dots(rows[result.labels_[site] == cluster], colour, opacity=0.7)
    cut.numbers(by_means.cluster_centers_)
    return sheet.figure(
        "spectral on a small example",
        sites,
        "panel 1: landmarks · panels 3 and 4: rows, one colour for each cluster",
        "Two moons, spread unevenly over three sites. Sites send the means of small groups of rows "
        "as landmarks. The coordinator links near landmarks to a graph, whose two parts are the "
        "two moons. K-means with two clusters cuts both moons in the middle.",
    )


def draw_dual() -> Figure:
    """Draw the sites' answers in the first and a later dual round, the result, and the bounds."""
    rng = np.random.default_rng(3)
    centres = np.array([(2.5, 3), (7, 2.5), (5, 7)])
    sites = {site: np.clip(blobs(centres, 12, 1.3, rng), 0, 10) for site in SITES}
    features = [{"name": name, "lower": 0, "upper": 10} for name in "xy"]
    config = {"n_clusters": 3, "splits": 20}
    result = simulate("dual", sites, features=features, config=config, policy=POLICY, seed=SEED)
    whole = [number for number, task in tasks(result, "dual").items() if task.lower is None]
    sheet = Sheet((-0.2, -0.2), (10.2, 10.2))
    first = sheet.panel(
        "First dual round",
        "Each site solves its own problem and proves what it costs. The sites' centroids differ.",
    )
    later = sheet.panel(
        f"Round {whole[-1]}",
        "Multipliers pull the centroids together. The proven costs add up to a lower bound.",
    )
    for panel, number in ((first, whole[0]), (later, whole[-1])):
        panel.rows(sites)
        answers = payloads(result, "dual", number)
        for cluster in range(3):
            corners = np.array([answer.centroids[cluster] for answer in answers.values()])
            panel.links(corners, np.roll(corners, 1, axis=0))
        for site, answer in answers.items():
            panel.sent(site, answer.centroids)
    found = sheet.panel(
        "Result",
        "The best common centroids. What they cost at all sites together is the upper bound.",
    )
    found.regions(result.cluster_centers_)
    found.rows(sites)
    found.numbers(result.cluster_centers_)
    lower, upper = best_bounds(result)
    bounds = sheet.panel(
        "Bounds",
        "The best bounds so far, by round. Where they meet, no better clustering exists.",
        (-0.1 * len(lower), -0.1 * upper[0]),
        (1.05 * len(lower), 1.3 * upper[0]),
    )
    bounds.chart({"lower": (PALETTE[0], lower), "upper": (PALETTE[5], upper)})
    return sheet.figure(
        "dual on a small example",
        sites,
        "small: a row · large: a centroid of a site's own problem · disc: a common centroid",
        "Three sites with rows of three clusters. In the first dual round the centroids of the "
        f"sites' own problems differ; in round {whole[-1]} they are close. The lower bound rises "
        "to within a quarter of a per cent of the upper bound: no better centroids of the sites' "
        "points exist.",
    )


def best_bounds(result: SessionResult) -> tuple[list[float], list[float]]:
    """Return the best lower and upper bound so far, for each round from the first with both."""
    lower, upper = -np.inf, np.inf
    both = []
    for entry in result.history_:
        lower = max(lower, -np.inf if entry.lower_bound is None else entry.lower_bound)
        upper = min(upper, np.inf if entry.upper_bound is None else entry.upper_bound)
        if np.isfinite(lower) and np.isfinite(upper):
            both.append((float(lower), float(upper)))
    return [low for low, _ in both], [high for _, high in both]


# --- Methods for sites with different features ----------------------------------------------------

#: Three clusters by the features x, y and z, and which of these each site has.
CENTRES = np.array([(2, 2.5, 7.5), (5, 8, 3), (8, 4, 5.5)])
HELD = {"berlin": [0, 1], "oslo": [1, 2], "porto": [0, 2]}


def overlap_session(method: str) -> tuple[Sites, SessionResult]:
    """Return three sites, each with two of three features, and the session of a method."""
    rng = np.random.default_rng(3)
    sites = {site: blobs(CENTRES[:, own], 30, 0.7, rng) for site, own in HELD.items()}
    result = simulate(
        method,
        sites,
        features={site: ["xyz"[column] for column in own] for site, own in HELD.items()},
        config={"n_clusters": 3},
        policy={**POLICY, "missing": "mask"},
        seed=SEED,
    )
    return sites, result


def overlap_panels(sheet: Sheet, sites: Sites, captions: Sequence[str]) -> dict[str, Panel]:
    """Return a panel with the rows of each site by its two features."""
    panels = {}
    for caption, (site, own) in zip(captions, HELD.items(), strict=True):
        across, upward = ("xyz"[column] for column in own)
        panels[site] = sheet.panel(f"{site.title()}: {across}, {upward}", caption)
        panels[site].axes(across, upward)
        panels[site].dots(sites[site], COLOURS[site])
    return panels


def draw_overlap() -> Figure:
    """Draw the sites' rows and means by their own features, and the merged centroids."""
    sites, result = overlap_session("overlap")
    sheet = Sheet(LOW, HIGH)
    captions = (
        "Each site clusters its rows by the features that it has, and sends counts and means.",
        "Oslo has no x. The numbers are those of the final clusters.",
        "Porto has no y. It shares one feature with each of the others.",
    )
    panels = overlap_panels(sheet, sites, captions)
    merged = sheet.panel(
        "Merged",
        "Means that agree in a shared feature are one cluster. Lines: the three centroids, which "
        "have all features.",
        (-0.35, LOW[1]),
        (2.45, HIGH[1]),
    )
    for axis, name in enumerate("xyz"):
        merged.links(np.array([(axis, 0.4)]), np.array([(axis, 10.2)]), "#cccccc")
        merged.words((axis, 0), name)
    for centroid in result.cluster_centers_:
        way = np.column_stack([np.arange(3), centroid])
        merged.links(way[:-1], way[1:], width=1.5)
    for site, sent in payloads(result, "cells").items():
        own = HELD[site]
        panels[site].sent(site, sent.means[:, own])
        panels[site].numbers(result.cluster_centers_[:, own], next_to=True)
        shift = 0.07 * (SITES.index(site) - 1)
        for axis in own:
            merged.sent(site, np.column_stack([np.full(3, axis + shift), sent.means[:, axis]]))
    merged.numbers(np.column_stack([np.full(3, 2.27), result.cluster_centers_[:, 2]]))
    return sheet.figure(
        "overlap on a small example",
        sites,
        "small: a row · large: a mean that a site sends · number: a final cluster",
        "Three sites have two of three features each: berlin x and y, oslo y and z, porto x and z. "
        "Each finds three clusters by its own features and sends their means. The coordinator "
        "matches them where features overlap and merges them to three centroids with all three "
        "features.",
    )


def draw_overlap_oneshot() -> Figure:
    """Draw the sites' Gaussians by their own features, and the merge tree."""
    sites, result = overlap_session("overlap_oneshot")
    sheet = Sheet(LOW, HIGH)
    captions = (
        "Each site sends count, mean and variances of its clusters (ellipse: two deviations).",
        "The coordinator draws 50 points from each (crosses: eight of them).",
        "Points that are near in shared features attract one another.",
    )
    panels = overlap_panels(sheet, sites, captions)
    proxies, masks, names = [], [], []
    for site, sent in payloads(result, "gaussians").items():
        own = np.array(HELD[site])
        rng = server_rng(SEED, f"overlap_oneshot-proxies-{site}")
        proxies.append(draw_proxies(sent.means, sent.variances, own, 50, rng))
        masks.append(np.isin(np.arange(3), own))
        panel, radii = panels[site], 2 * np.sqrt(sent.variances[:, own])
        panel.ellipses(sent.means[:, own], radii, COLOURS[site])
        if site == "oslo":
            panel.crosses(proxies[-1][:, :8, own].reshape(-1, 2), GREY, size=2)
        panel.sent(site, sent.means[:, own])
        for number, mean in enumerate(sent.means[:, own] + radii * (0, 1), 1):
            panel.words(mean, f"{site[0].upper()}{number}", lift=9)
            names.append((site, f"{site[0].upper()}{number}"))
    tree = build_merge_tree(cluster_forces(proxies, masks, 2.0))
    merged = sheet.panel(
        "Merging",
        "The pair with the greatest force is merged, repeatedly (left to right), until K = 3 "
        "groups are left.",
        (0, 0),
        (1, 1),
    )
    clusters = [cluster for site in HELD for cluster in result.result.mapping[site]]
    draw_tree(merged, tree.merges[: tree.n_leaves - 3], names, clusters)
    return sheet.figure(
        "overlap_oneshot on a small example",
        sites,
        "small: a row · large: the mean of a local cluster, such as B1 at berlin",
        "Three sites have two of three features each and send their clusters as Gaussians: count, "
        "mean, variances. The coordinator draws points from each and merges the clusters whose "
        "points are nearest in shared features. Six merges leave three groups, each with one "
        "cluster of every site.",
    )


FIGURES: dict[str, Callable[[], Figure]] = {
    "method_fkm": draw_fkm,
    "method_kfed": draw_kfed,
    "method_lloyd": draw_lloyd,
    "method_spectral": draw_spectral,
    "method_overlap": draw_overlap,
    "method_overlap_oneshot": draw_overlap_oneshot,
    "method_dual": draw_dual,
    "method_mixture": draw_mixture,
    "method_ward": draw_ward,
}


if __name__ == "__main__":
    save(FIGURES)
