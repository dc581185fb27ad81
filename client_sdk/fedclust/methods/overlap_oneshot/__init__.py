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
from fedclust.methods.overlap_oneshot.client import label, local_step
from fedclust.methods.overlap_oneshot.config import Config, check_config
from fedclust.methods.overlap_oneshot.messages import PHASES, check, check_task
from fedclust.methods.overlap_oneshot.server import State, aggregate, finish, start
from fedclust.schema.method import Method

__all__ = ["METHOD", "Config"]

VERSION = 4

METHOD = Method(
    name="overlap_oneshot",
    version=VERSION,
    title="Clustering in overlapping feature spaces, in one round",
    citation=(
        "A. Maritan, L. Schenato, Distributed clustering in partially overlapping feature spaces, "
        "2025, Algorithm 2"
    ),
    options=Config,
    default_max_rounds=1,
    joins_late=True,
    state=State,
    phases=PHASES,
    check_config=check_config,
    check_roster=check_roster,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    check_task=check_task,
    takes_masks=True,
)
