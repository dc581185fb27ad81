"""How long the coordinator will compute, estimated before it does.

Estimates depend on the definition, on the number of sites and on bytes alone. They are for one
processor and for rows without clusters, where they are right within a factor of three or four.
Clear clusters take less time. Estimates decide where and in which order rounds are aggregated, and
which definitions are refused. No result depends on them.
"""

from collections.abc import Sequence

from fedclust.rounds import evidence
from fedclust.rounds.plan import Plan
from fedclust.schema.errors import RuleViolation

# Measured with 3 to 100 sites, 4 to 30 columns and K = 3 to 50, on one processor of 2024.
#: A model of resampled cells: this, and this for each of its sites and clusters.
_MODEL_S, _MODEL_SITE_CLUSTER_S = 0.008, 0.00025
#: The comparison with one cloud: drawing it, and for each K.
_CLOUD_S, _CLOUD_CLUSTERS_S = 1.0, 0.3
#: Reading a byte of an answer, and comparing it with one cluster.
_BYTE_S, _BYTE_CLUSTER_S = 2e-8, 3e-7
#: k-means among all sites' cells takes at most about this, for it works with a sample then.
_MOST_METHOD_S = 10.0
#: Stands for K where the method chooses it.
_SOME_CLUSTERS = 10


def aggregation_seconds(plan: Plan, phase: str, n_sites: int, n_bytes: int) -> float:
    """Return about how many seconds it takes to aggregate a round.

    Parameters
    ----------
    plan : Plan
    phase : str
        What the round has asked.
    n_sites : int
        How many sites have answered.
    n_bytes : int
        The size of all their answers.
    """
    reading = n_bytes * _BYTE_S
    ks = plan.options.ks or (_SOME_CLUSTERS,)
    if phase == evidence.NAME:
        return reading + _closing_seconds(plan, ks, n_sites, plan.options.resampled_models)
    if phase not in {each.name for each in plan.method.phases}:
        return reading
    return reading + min(n_bytes * sum(ks) * _BYTE_CLUSTER_S, _MOST_METHOD_S)


def check_workload(plan: Plan, n_sites: int, most_seconds: float) -> None:
    """Raise RuleViolation where the longest round would take too long.

    Parameters
    ----------
    plan : Plan
    n_sites : int
        The sites of the session.
    most_seconds : float
        How long the coordinator may compute a round.
    """
    ks, n_models = plan.options.ks or (_SOME_CLUSTERS,), plan.options.resampled_models
    seconds = _closing_seconds(plan, ks, n_sites, n_models)
    if seconds <= most_seconds:
        return
    name = "stability" if n_models else "n_clusters" if len(ks) > 1 else "evidence"
    raise RuleViolation(
        "workload",
        f"for {name} with {n_sites} sites the coordinator would make {len(ks) * n_models:,} "
        f"models, which takes about {seconds:,.0f} s; it allows {most_seconds:,.0f} s for a round. "
        "Ask for fewer models, clusters or sites, or leave it out",
        f"/{name}",
    )


def _closing_seconds(plan: Plan, ks: Sequence[int], n_sites: int, n_models: int) -> float:
    """Return about how long the comparisons of the closing round take."""
    compared = plan.options.compared_with_cloud and plan.sends_cells
    cloud = _CLOUD_S + len(ks) * _CLOUD_CLUSTERS_S if compared else 0.0
    return cloud + sum(n_models * (_MODEL_S + _MODEL_SITE_CLUSTER_S * n_sites * k) for k in ks)
