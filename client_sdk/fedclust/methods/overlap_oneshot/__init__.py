"""overlap_oneshot: sites with different, overlapping features, clustered in one round.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    Algorithm 2. Every site clusters its own points by its own features and sends each cluster as
    a Gaussian. The coordinator draws as many proxies from each (``gaussians``), lets them attract
    each other over the features that both know, and merges groups of clusters by the greatest
    force (``agglomeration``) until K are left. A site's own rows follow their local cluster.

A Gaussian's variances are those of the cell's points plus the variance within groups: the share
that the site releases of each column, the same in all of its cells. Full covariances cannot be
completed like this, so they need exact records (``protection: none``).

Where the paper is wrong or silent: see ``agglomeration``; where K is not given, the tree of merges
is cut where the simplified silhouette is best. Draws come from the session's seed and the site's
name, so that no site's proxies depend on who else takes part.
"""

from __future__ import annotations

from fedclust.methods.common.own_features import check_roster
from fedclust.methods.overlap_oneshot import client, config, messages, server
from fedclust.schema.method import Method

METHOD: Method[config.Config, server.State, messages.GaussiansTask, messages.Gaussians] = Method(
    name="overlap_oneshot",
    version=4,
    title="Clustering in overlapping feature spaces, in one round",
    citation=(
        "A. Maritan, L. Schenato, Distributed clustering in partially overlapping feature spaces, "
        "2025, Algorithm 2"
    ),
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
