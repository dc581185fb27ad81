"""overlap_oneshot: sites with different, overlapping features, clustered in one round.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
Algorithm 2. Every site clusters its own points by its own features and sends each cluster as a
Gaussian. The coordinator draws the same number of proxies from each (``gaussians``), computes
attractive forces between them over shared features, and merges the groups of clusters of greatest
force (``agglomeration``) until K are left. A site's own rows follow their local cluster.

A Gaussian's variances are those of the cell's points plus the variance within groups, which the
site releases as a share for each column, the same in all cells. Full covariances cannot be
completed in this way, so they need exact records (``protection: none``).

For corrections of the paper see ``agglomeration``. If K is not given, the merge tree is cut at the
best simplified silhouette. Draws depend on the session's seed and the site's name: a site's proxies
do not depend on which other sites take part.
"""

from __future__ import annotations

from fedclust.methods.common.own_features import check_roster
from fedclust.methods.overlap_oneshot import client, config, messages, server
from fedclust.methods.overlap_oneshot.description import describe
from fedclust.schema.method import Method

METHOD: Method[config.Config, server.State, messages.GaussiansTask, messages.Gaussians] = Method(
    name="overlap_oneshot",
    version=4,
    title="Clustering in overlapping feature spaces, in one round",
    citation=(
        "A. Maritan, L. Schenato, Distributed clustering in partially overlapping feature spaces, "
        "2025, Algorithm 2"
    ),
    references=("maritan2025",),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_config=config.check_config,
    check_roster=check_roster,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=client.label,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    default_max_rounds=1,
    takes_masks=True,
)
