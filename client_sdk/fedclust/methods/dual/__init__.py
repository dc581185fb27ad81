"""dual: k-means by dual decomposition, with a lower and an upper bound in every round.

What it says and cites
    Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
    distributed optimization" (papers/004). Sites in the order of their names form a chain, whose
    consensus constraints (equations 8 to 10) are dualised. A ``dual`` round hands each site its own
    part of the multipliers; it solves its clustering problem (equation 14, over its weighted
    points) to proven optimality and answers with its centroids and the dual value. The values' sum
    is a lower bound of the inertia of *any* centroids; a ``primal`` round measures the averaged
    centroids (equations 33 and 34), which gives an upper one. Their distance (equation 35) is a
    certificate.

The multipliers move by one of four rules (``multiplier_update``); the node problems are solved
in ``node_problem``. Everything is reckoned about one origin, so that nothing cancels far from zero.
"""

from __future__ import annotations

from fedclust.methods.common.assign import label
from fedclust.methods.dual import client, config, messages, server
from fedclust.schema.method import Method

METHOD: Method[config.Config, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="dual",
    version=3,
    title="k-means by dual decomposition, with bounds",
    citation=(
        "V. Yfantis, A. Wagner, M. Ruskowski, Federated K-Means Clustering via Dual "
        "Decomposition-based Distributed Optimization, 2023"
    ),
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
    lacks=config.lacks,
    default_max_rounds=300,
    joins_late=False,
)
