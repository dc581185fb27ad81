"""The figures of a result by name, and the small charts among them."""

from contextlib import suppress

from fedclust.result.drawing import ROUNDING, Figure, inertia_chart, line_chart, short
from fedclust.result.facts import Facts
from fedclust.result.figures.outcomes import draw_forest, draw_survival
from fedclust.result.figures.profile import curves_of, draw_profile
from fedclust.result.figures.sizes import draw_mix, draw_sizes
from fedclust.result.figures.tree import draw_tree
from fedclust.result.one_cloud import shown_text
from fedclust.result.wording import joined, titled
from fedclust.rounds.model_selection import CLEAR, p_text
from fedclust.schema.field_names import unknown_name_message
from fedclust.wire.errors import UsageError


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
        raise UsageError(f"name the figure: {', '.join(f'plot.{name}()' for name in _NAMES)}")

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

    def trajectory(self, trajectory: str | None = None) -> Figure:
        """Draw a trajectory's mean by time and cluster; ``trajectory``: one of several."""
        facts = self._facts
        curves = {each.name: each for each in curves_of(facts)}
        name = next(iter(curves), None) if trajectory is None else trajectory
        if name not in curves:
            known = f"; it has {', '.join(map(repr, curves))}" if curves else ""
            message = f"the session has no trajectory {trajectory or ''}".rstrip()
            raise UsageError(f"{message} with a grid of times to draw{known}")
        found, column = curves[name], {each.name: j for j, each in enumerate(facts.columns)}
        places = [column[each.name] for each in found.columns]
        series = {
            facts.cluster_names[k]: [
                (time, cluster.entries[j].mean)
                for time, j in zip(found.grid or (), places, strict=True)
            ]
            for k, cluster in enumerate(facts.clusters)
        }
        described = (
            f"{titled(own)}: " + ", ".join(f"{short(mean)} at {time:g}" for time, mean in points)
            for own, points in series.items()
        )
        time_unit, unit = (f" [{each}]" if each else "" for each in (found.time_unit, found.unit))
        return line_chart(
            f"{name} by cluster",
            f"time{time_unit}",
            f"{name}{unit}",
            {titled(own): points for own, points in series.items()},
            description=joined(described),
        )

    def tree(self) -> Figure:
        """Draw the top of the tree of clusters, the persons of its leaves, and where it is cut."""
        return draw_tree(self._facts)

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

    def choice(self) -> Figure:
        """Draw silhouette and agreement of starts by K, and mark each K clearer than one cloud."""
        facts = self._facts
        sweep = facts.result.sweep or ()
        lines = {
            "simplified silhouette": [(e.n_clusters, e.simplified_silhouette) for e in sweep],
            "agreement of starts": [(each.n_clusters, each.start_agreement) for each in sweep],
        }
        values = [value for points in lines.values() for _, value in points if value is not None]
        if len(sweep) < 2 or not values:
            raise UsageError("one number of clusters was tried: there is nothing to compare")
        ps = {e.n_clusters: p for e in sweep if (p := e.result.cloud_p) is not None}
        words = joined(
            f"{e.n_clusters} clusters: silhouette {short(e.simplified_silhouette)}, agreement of "
            f"starts {short(e.start_agreement)}"
            + (f", {p_text(ps[e.n_clusters])} against one cloud" if e.n_clusters in ps else "")
            for e in sweep
        )
        clear = [float(k) for k, p in ps.items() if p <= CLEAR]
        return line_chart(
            "Choosing the number of clusters",
            f"number of clusters ({shown_text(facts.result)})",
            "",
            lines,
            description=f"{words} {facts.result.recommendation or ''}".strip(),
            y_range=(min(0.0, *values), max(1.0, *values)),
            marked=("clearer than a cloud", clear) if ps else None,
        )

    def convergence(self) -> Figure:
        """Draw the inertia of every round that has one."""
        facts = self._facts
        values = [
            (each.round, each.inertia) for each in facts.result.history if each.inertia is not None
        ]
        if len(values) < 2:
            raise UsageError("fewer than two rounds have an inertia: there is no line to draw")
        every = [inertia for _, inertia in values]
        if max(every) - min(every) <= ROUNDING * max(every):
            raise UsageError("the inertia is the same in every round: there is no line to draw")
        return inertia_chart(values)


#: The figures in the order of pages.
_NAMES = tuple(name for name in vars(Plots) if not name.startswith("_"))


def drawn_figures(plots: Plots) -> dict[str, Figure]:
    """Return every figure that a result has, by the name of its method."""
    found = {}
    for name in _NAMES:
        with suppress(UsageError):
            found[name] = getattr(plots, name)()
    return found
