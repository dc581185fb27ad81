"""Lines by round and by number of clusters."""

from __future__ import annotations

from fedclust.errors import UsageError
from fedclust.result.drawing import ROUNDING, Figure, line_chart, short
from fedclust.result.facts import Facts
from fedclust.result.figures.words import joined
from fedclust.result.one_cloud import chosen_text
from fedclust.rounds.model_selection import CLEAR, p_text


def draw_convergence(facts: Facts) -> Figure:
    """Draw the inertia of every round that has one.

    Raises
    ------
    UsageError
        Fewer than two rounds have an inertia, or all have the same.
    """
    values = [
        (each.round, each.inertia) for each in facts.result.history if each.inertia is not None
    ]
    if len(values) < 2:
        raise UsageError("fewer than two rounds have an inertia: there is no line to draw")
    every = [inertia for _, inertia in values]
    if max(every) - min(every) <= ROUNDING * max(every):
        raise UsageError("the inertia is the same in every round: there is no line to draw")
    (begin, before), (end, after) = values[0], values[-1]
    described = f"From {short(before)} in round {begin} to {short(after)} in round {end}."
    return line_chart(
        "Inertia by round", "round", "inertia", {"inertia": values}, description=described
    )


def draw_choice(facts: Facts) -> Figure:
    """Draw silhouette and agreement of starts by K, and mark each K clearer than one cloud.

    Raises
    ------
    UsageError
        The result does not hold what it would show.
    """
    sweep = facts.result.sweep or ()
    lines = {
        "simplified silhouette": [(e.n_clusters, e.simplified_silhouette) for e in sweep],
        "agreement of starts": [(each.n_clusters, each.start_agreement) for each in sweep],
    }
    values = [value for points in lines.values() for _, value in points if value is not None]
    if len(sweep) < 2 or not values:
        raise UsageError("one number of clusters was tried: there is nothing to compare")
    ps = {
        each.n_clusters: each.result.one_cloud.p
        for each in sweep
        if each.result.one_cloud is not None and each.result.one_cloud.p is not None
    }
    words = joined(
        f"{e.n_clusters} clusters: silhouette {short(e.simplified_silhouette)}, agreement of "
        f"starts {short(e.start_agreement)}"
        + (f", {p_text(ps[e.n_clusters])} against one cloud" if e.n_clusters in ps else "")
        for e in sweep
    )
    clear = [float(k) for k, p in ps.items() if p <= CLEAR]
    return line_chart(
        "Choosing the number of clusters",
        f"number of clusters ({chosen_text(facts.result)})",
        "",
        lines,
        description=f"{words} {facts.result.recommendation or ''}".strip(),
        y_range=(min(0.0, *values), max(1.0, *values)),
        marked=("clearer than a cloud", clear) if ps else None,
    )
