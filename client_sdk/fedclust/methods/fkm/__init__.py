"""fkm: federated k-means, which aligns the sites' clusters by clustering their means.

What it says and cites
    Garst & Reinders, "Federated K-means clustering", arXiv 2310.01195 (2023). Every site
    sends the means of its own clusters, as many as it has; the coordinator clusters the means,
    weighted by their counts, and sends the outcome back as the sites' next start. Sites may hold
    any part of the clusters. As published it restarts the coordinator's k-means in every round,
    and on clusters that overlap it stays at what it started with: 40 rounds in place of 10 give
    .007 of ARI (ALGORITHMS).

``variant: paper`` is Algorithm 1 as the authors' program runs it. ``variant: default`` spends the
rounds on the start: several partitions of the sites' cells, each carried on by exact Lloyd steps in
the same rounds, of which the better half goes on every few rounds.
"""

from __future__ import annotations

from fedclust.methods.common.assign import label
from fedclust.methods.fkm import client, config, messages, server
from fedclust.schema.method import Method

METHOD: Method[config.Variants, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="fkm",
    version=4,
    title="FKM: federated k-means",
    citation="S. Garst, M. Reinders, Federated K-means clustering, arXiv 2310.01195, 2023",
    options=config.Config,
    phases=messages.PHASES,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=label,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    sweeps=True,
)
