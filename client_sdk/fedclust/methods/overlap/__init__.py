"""overlap: k-means of sites that have different, overlapping features, in several rounds.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
Algorithm 1. Every site clusters its own points by its own features. The coordinator groups the
local centroids by the features that they share (``meta_clustering``) and merges each group, feature
by feature. F federated rounds follow. In each a site takes the global centroids that any of its
points is nearest to, runs a few Lloyd iterations from them, and sends its centroids, matched with
the global ones. The coordinator moves the global centroids towards them.

Corrections, and what the paper leaves open: ``min(1, .)`` in equations 1 and 4 is ``max(1, .)``.
Weights are persons, counted for each feature, so that the order of merging does not matter. A
global centroid that no site matched keeps its place, and so does a feature that no site reports. A
feature reported for the first time takes the reported value. For Methods A and B see
``meta_clustering``.
"""

from __future__ import annotations

from fedclust.methods.common.assign import label
from fedclust.methods.common.own_features import check_roster
from fedclust.methods.overlap import client, config, messages, server
from fedclust.methods.overlap.description import describe
from fedclust.schema.method import Method

METHOD: Method[config.Config, server.State, messages.AnyTask, messages.Cells] = Method(
    name="overlap",
    version=4,
    title="Federated k-means for sites with different, overlapping features",
    citation=(
        "A. Maritan, L. Schenato, Distributed clustering in partially overlapping feature spaces, "
        "2025, Algorithm 1"
    ),
    references=("maritan2025",),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_roster=check_roster,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=label,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    takes_masks=True,
)
