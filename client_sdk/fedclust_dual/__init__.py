"""dual: k-means by dual decomposition, with a lower and an upper bound in every round.

The method of [1]_. Sites in name order form a chain, whose consensus constraints (equations 8 to
10) are dualised. In a ``dual`` round each site gets its own part of the multipliers, solves its
clustering problem (equation 14, over its weighted points) to proven optimality, and answers with
its centroids and the dual value. The sum of the values is a lower bound of the inertia of any
centroids. A ``primal`` round measures the averaged centroids (equations 33 and 34), which gives an
upper bound. The gap between the two (equation 35) is a certificate.

Four rules update the multipliers (``multiplier_update``); ``node_problem`` solves a site's problem;
``domain_splitting`` closes the gap. All computations are relative to one origin, so that digits do
not cancel far from zero.

References
----------
.. [1] Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
   distributed optimization", 2023.
"""

from __future__ import annotations

from fedclust.methods.common.assign import label
from fedclust.schema.method import Method
from fedclust_dual import client, config, messages, server
from fedclust_dual.description import describe

METHOD: Method[config.Config, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="dual",
    version=3,
    title="k-means by dual decomposition, with bounds",
    citation=(
        "V. Yfantis, A. Wagner, M. Ruskowski, Federated K-Means Clustering via Dual "
        "Decomposition-based Distributed Optimization, 2023"
    ),
    references=("yfantis2023",),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_config=config.check_config,
    check_roster=config.check_roster,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=label,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    default_max_rounds=300,
    joins_late=False,
)
