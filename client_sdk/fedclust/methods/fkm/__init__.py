"""fkm: federated k-means, which matches the sites' clusters by clustering their means.

Garst & Reinders, "Federated K-means clustering", arXiv 2310.01195, 2023. Every site sends the means
of its own clusters; it may hold any of the clusters. The coordinator clusters the means, weighted
by their counts, and sends the result back as the sites' next start. As published, the coordinator
restarts its k-means in every round. If clusters overlap, the result stays near the first one: 40
rounds instead of 10 improve the ARI by .007.

``variant: paper`` is Algorithm 1 as the authors' program runs it. ``variant: default`` starts from
several partitions of the sites' cells. Each continues by exact Lloyd steps in the same rounds, and
every few rounds the worse half is dropped.
"""

from __future__ import annotations

from fedclust.methods.common.assign import label
from fedclust.methods.fkm import client, config, messages, server
from fedclust.methods.fkm.description import describe
from fedclust.schema.method import Method

METHOD: Method[config.Variants, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="fkm",
    version=5,
    title="FKM: federated k-means",
    citation="S. Garst, M. Reinders, Federated K-means clustering, arXiv 2310.01195, 2023",
    references=("garst2023", "lloyd1982"),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_config=config.check_config,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=label,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    dissimilarities=("euclidean", "gower", "k-prototypes"),
    sweeps=True,
)
