"""The figures of a result by name."""

from __future__ import annotations

from contextlib import suppress

from fedclust.errors import UsageError
from fedclust.result.drawing import Figure
from fedclust.result.facts import Facts
from fedclust.result.figures.curves import draw_choice, draw_convergence
from fedclust.result.figures.flow import draw_own_clusters, draw_sweep_flow
from fedclust.result.figures.map import draw_map
from fedclust.result.figures.outcomes import draw_forest, draw_survival
from fedclust.result.figures.profile import draw_profile
from fedclust.result.figures.sizes import draw_mix, draw_sizes
from fedclust.result.figures.stability import draw_stability
from fedclust.schema.field_names import unknown_name_message

_NAMES = (
    "profile",
    "sizes",
    "mix",
    "centroids",
    "stability",
    "own_clusters",
    "forest",
    "survival",
    "choice",
    "flow",
    "convergence",
)
_CALLS = ", ".join(f"plot.{name}()" for name in _NAMES)


def _unknown(name: str) -> str:
    return unknown_name_message("figure", name, _NAMES) + ". Each is a method: plot.profile()"


class Plots:
    """Draws a result's figures.

    Each method returns a :class:`~fedclust.result.drawing.Figure`, which notebooks show and
    ``save("x.svg")`` or ``save("x.png")`` writes, and raises UsageError where the result does not
    hold what it would show.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def __repr__(self) -> str:
        """List the figures that this result has."""
        found = ", ".join(f"{name}()" for name in drawn_figures(self))
        return f"Plots of {self._facts.definition.name}: {found or 'none'}"

    def __call__(self, *names: object, **_options: object) -> Figure:
        """Raise UsageError that says how each figure is drawn."""
        if names and str(names[0]) in _NAMES:
            raise UsageError(f"each figure is a method: plot.{names[0]}()")
        if names:
            raise UsageError(_unknown(str(names[0])))
        raise UsageError(f"name the figure: {_CALLS}")

    def __getattr__(self, name: str) -> Figure:
        raise AttributeError(_unknown(name))

    def profile(self) -> Figure:
        """Draw a heat map: standardised differences as colours and numbers, values in own units."""
        return draw_profile(self._facts)

    def sizes(self) -> Figure:
        """Draw a bar for each cluster: its persons, by site where sites' parts are known."""
        return draw_sizes(self._facts)

    def mix(self) -> Figure:
        """Draw a bar for all persons and for each site: the shares of the clusters."""
        return draw_mix(self._facts)

    def centroids(self) -> Figure:
        """Draw a map of clusters and sites on the two axes along which all persons differ most."""
        return draw_map(self._facts)

    def stability(self) -> Figure:
        """Draw how far each cluster is found again in resampled data, and if it stands apart."""
        return draw_stability(self._facts)

    def own_clusters(self) -> Figure:
        """Draw for each site how its own clusters divide among the common ones."""
        return draw_own_clusters(self._facts)

    def forest(self, outcome: str | None = None) -> Figure:
        """Draw each cluster's effect on outcomes against the largest, over all sites and by site.

        A site's own effect is drawn where noise does not hide it. ``outcome``: one of them.
        """
        return draw_forest(self._facts, outcome)

    def survival(self, outcome: str | None = None) -> Figure:
        """Draw the share without the event by time and cluster, with numbers at risk.

        ``outcome``: one of several times to event.
        """
        return draw_survival(self._facts, outcome)

    def flow(self) -> Figure:
        """Draw how persons divide from one number of clusters to the next."""
        return draw_sweep_flow(self._facts)

    def convergence(self) -> Figure:
        """Draw the inertia of every round that has one."""
        return draw_convergence(self._facts)

    def choice(self) -> Figure:
        """Draw silhouette and agreement of starts by K, and mark each K clearer than one cloud."""
        return draw_choice(self._facts)


def drawn_figures(plots: Plots) -> dict[str, Figure]:
    """Return every figure that a result has, by the name of its method."""
    found = {}
    for name in _NAMES:
        with suppress(UsageError):
            found[name] = getattr(plots, name)()
    return found
