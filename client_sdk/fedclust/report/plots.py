"""The report's plots with matplotlib, for notebooks: ``result.plot.profile()`` and so on.

Needs the extra ``fedclust[plot]``; matplotlib is imported when something is drawn. Each function
draws into ``ax``, or into a new figure, and returns the Axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedclust.errors import UsageError
from fedclust.report import svg
from fedclust.report.facts import Facts

__all__ = ["Plots"]


class Plots:
    """Draws a result's facts."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def convergence(self, ax: Any = None) -> Any:
        """Draw the inertia of every round that told one."""
        history = self._facts.history
        told = [(each.round, each.inertia) for each in history if each.inertia is not None]
        ax = _axes(ax, (6.4, 3.2))
        ax.plot([number for number, _ in told], [value for _, value in told], marker="o")
        ax.set(xlabel="round", ylabel="inertia", title="Convergence")
        ax.xaxis.get_major_locator().set_params(integer=True)
        return ax

    def bounds(self, ax: Any = None) -> Any:
        """Draw the best lower and upper bound by round."""
        told = self._facts.bounds_by_round
        if not told:
            raise UsageError("no bounds are known: only the method dual proves any")
        ax = _axes(ax, (6.4, 3.2))
        for place, name, colour in ((2, "upper", 5), (1, "lower", 0)):
            line = [(each[0], each[place]) for each in told if each[place] is not None]
            ax.plot(*zip(*line, strict=True), marker="o", label=name, color=svg.PALETTE[colour])
        ax.set(xlabel="round", ylabel="inertia", title="Bounds")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend()
        return ax

    def profile(self, ax: Any = None) -> Any:
        """Draw the standardised differences as a heat map, means as its numbers."""
        facts = self._facts
        shown = svg.ranked(facts)
        if not shown:
            raise UsageError("no differences are known: the session had no closing evaluation")
        apart = [[c.entries[j].difference for c in facts.clusters] for j in shown]
        values = np.array([[np.nan if v is None else v for v in row] for row in apart])
        ax = _axes(ax, (1.6 + 0.9 * len(facts.clusters), 1.0 + 0.32 * len(shown)))
        image = ax.imshow(values, cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto")
        for i, j in enumerate(shown):
            for k, cluster in enumerate(facts.clusters):
                ink = svg.colour(cluster.entries[j].difference)[1]
                text = svg.mean_of(cluster.entries[j])
                ax.text(k, i, text, ha="center", va="center", color=ink, fontsize=8)
        # A name with dollar signs is a name, no formula.
        names = [facts.columns[j].name for j in shown]
        ax.set_yticks(range(len(shown)), names, parse_math=False)
        ax.set_xticks(range(len(facts.clusters)), [str(c.number) for c in facts.clusters])
        ax.set(xlabel="cluster", title="Profile")
        ax.figure.colorbar(image, ax=ax, label="difference, standard deviations")
        return ax

    def sizes(self, ax: Any = None) -> Any:
        """Draw the rows of each cluster, by site where sites' parts are told."""
        facts = self._facts
        numbers = np.arange(len(facts.clusters))
        ax = _axes(ax, (6.4, 1.0 + 0.35 * len(numbers)))
        begin = np.zeros(len(numbers))
        for i, site in enumerate(sorted(facts.by_site)):
            rows = np.array([float(size or 0) for size in facts.by_site[site]])
            fill = svg.PALETTE[i % len(svg.PALETTE)]
            ax.barh(numbers, rows, left=begin, label=site, color=fill, alpha=svg.strength(i))
            begin = begin + rows
        whole = np.array([float(cluster.size or 0) for cluster in facts.clusters])
        untold = np.maximum(whole - begin, 0.0)
        if untold.any():
            ax.barh(numbers, untold, left=begin, label="other sites", color="#d0d0d0")
        for k, cluster in enumerate(facts.clusters):
            if cluster.size is None:
                ax.text(0, k, " not measured", va="center", fontsize=8)
        ax.set_yticks(numbers, [str(cluster.number) for cluster in facts.clusters])
        ax.invert_yaxis()
        ax.set(xlabel="rows", ylabel="cluster", title="Sizes")
        if facts.by_site:
            ax.legend()
        return ax

    def centroids(self, ax: Any = None) -> Any:
        """Draw the centroids on their first two principal axes."""
        facts = self._facts
        sizes = np.array([float(cluster.size or 0) for cluster in facts.clusters])
        ax = _axes(ax, (5.6, 4.4))
        areas = 80 + 520 * sizes / max(sizes.max(initial=0.0), 1.0)
        fill = [svg.PALETTE[k % len(svg.PALETTE)] for k in range(len(sizes))]
        ax.scatter(facts.positions[:, 0], facts.positions[:, 1], s=areas, c=fill, alpha=0.5)
        for cluster, (x, y) in zip(facts.clusters, facts.positions, strict=True):
            ax.annotate(str(cluster.number), (x, y), ha="center", va="center")
        first, second = (f"{100 * share:.0f} %" for share in facts.explained)
        ax.margins(0.2)
        ax.set(xlabel=f"first axis, {first}", ylabel=f"second axis, {second}", title="Centroids")
        return ax


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise UsageError("plots need matplotlib: pip install 'fedclust[plot]'") from None
    return pyplot.subplots(figsize=size, layout="constrained")[1]
