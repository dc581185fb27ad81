"""kfed: k-FED, clustering in one round from the means of the sites' own clusters.

Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021 (PMLR
139). Every site clusters its own points and sends the means. The coordinator clusters the means,
and each local cluster gets the cluster of its mean (Definition 3.3). A site that holds few clusters
separates them more easily than a central k-means of all: if no site has more than sqrt(K) of the K
clusters, pairs that never occur at one site need less separation (Theorem 3.1).

``variant: paper`` is Algorithms 1 and 2 as published, with one exception: a site with at most k'
rows makes fewer cells, because otherwise its rows would be its means. ``variant: default`` replaces
what fails on uneven sites. It uses k-means with restarts instead of one seeding and its 1/3 rule,
more cells than clusters, cells weighted by their counts, several starts at the coordinator, and
labels by the nearest centroid. ``refine`` adds exact Lloyd rounds.
"""

from __future__ import annotations

from fedclust.methods.kfed import client, config, messages, server
from fedclust.methods.kfed.description import describe
from fedclust.schema.method import Method

METHOD: Method[config.Variants, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="kfed",
    version=5,
    title="k-FED: one-shot federated clustering (k-means)",
    citation=(
        "D. K. Dennis, T. Li, V. Smith, Heterogeneity for the win: one-shot federated clustering, "
        "ICML 2021 (PMLR 139)"
    ),
    references=("dennis2021",),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_config=config.check_config,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=client.label,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    dissimilarities=("euclidean", "k-prototypes"),
    sweeps=True,
)
