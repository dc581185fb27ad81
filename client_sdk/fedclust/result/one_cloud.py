"""How clear the clusters of a result are, compared with one cloud, in words."""

from fedclust.result.facts import Facts
from fedclust.rounds.model_selection import CLEAR, cloud_sentences, is_recommended, p_text
from fedclust.schema.result import Result

#: ``benchmarks/stability.py`` compares with a bootstrap of rows.
NOT_MEASURED = (
    "Groups of persons cannot tell how often the persons of a cluster that does not stand apart "
    "are found together again."
)


def verdict(result: Result) -> str:
    """Return all that a result says of how clear its clusters are; empty where nobody asked."""
    return result.recommendation or " ".join(cloud_sentences(result))


def recommended(result: Result) -> tuple[int, ...]:
    """Return the K of a sweep that is recommended: none, one, or several of a tie."""
    shown = result.n_clusters
    if shown is not None and is_recommended(result.choice, result.tied):
        return (shown,)
    return tuple(sorted(result.tied))


def chosen_text(result: Result) -> str:
    """Return which K a sweep recommends, in a few words."""
    if result.tied:
        return f"K = {tied_text(result)} is too close to call"
    return (
        f"K = {result.n_clusters} is recommended" if recommended(result) else "no K is recommended"
    )


def shown_text(result: Result) -> str:
    """Return which K a sweep recommends, and if it is no single one, which one it shows."""
    shown = result.n_clusters
    return chosen_text(result) + f"; K = {shown} is shown" * (recommended(result) != (shown,))


def tied_text(result: Result) -> str:
    """Return the K that are about as good a choice, such as "3 or 4"."""
    return " or ".join(map(str, sorted(result.tied)))


def apart_text(result: Result, cluster: int) -> str:
    """Return whether a cluster stands apart from its neighbours, in a few words."""
    found = result.one_cloud
    if found is None or found.p is None:
        return "not judged"
    if found.p > CLEAR:
        return "does not stand apart"
    if found.cluster_p is None:
        return "not judged"
    p = float(found.cluster_p[cluster])
    return f"{'stands' if p <= CLEAR else 'does not stand'} apart: {p_text(p)}"


def stands_apart(result: Result, cluster: int) -> bool:
    """Return whether a cluster was judged and stands apart from its neighbours."""
    return apart_text(result, cluster).startswith("stands")


def measured_again(facts: Facts) -> tuple[int, ...]:
    """Return the clusters of which measures of stability are near those of their persons."""
    every = range(len(facts.clusters))
    return tuple(k for k in every if not facts.of_groups or stands_apart(facts.result, k))


def n_apart(result: Result) -> int | None:
    """Return how many clusters stand apart; None where that was not judged."""
    found = result.one_cloud
    if found is None or found.p is None:
        return None
    if found.p > CLEAR:
        return 0
    return None if found.cluster_p is None else int((found.cluster_p <= CLEAR).sum())
