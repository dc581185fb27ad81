"""lloyd: exact distributed Lloyd, the baseline that the federated k-means papers compare with.

What it says and cites
    Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982). A k-means step
    needs of each site only the sum, the count and the cost of every cluster, so its distributed
    form equals the central one on all sites' points from the same start: same labels, centres to
    rounding.

The start is ``given``, or (``cells``) the weighted k-means of all sites' local cell means.
"""

from __future__ import annotations

from fedclust.methods.common.kmeans_rounds import check
from fedclust.methods.lloyd.client import label, local_step
from fedclust.methods.lloyd.config import Config, check_config, possible_phases
from fedclust.methods.lloyd.messages import PHASES, check_task
from fedclust.methods.lloyd.server import State, aggregate, finish, start
from fedclust.schema.method import Method

__all__ = ["METHOD", "Config"]

VERSION = 4

METHOD = Method(
    name="lloyd",
    version=VERSION,
    title="Exact distributed Lloyd (k-means)",
    citation="S. Lloyd, Least squares quantization in PCM, IEEE Trans. Inf. Theory 28, 1982",
    options=Config,
    default_max_rounds=100,
    joins_late=True,
    state=State,
    phases=PHASES,
    check_config=check_config,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    check_task=check_task,
    possible_phases=possible_phases,
    sweeps=True,
)
