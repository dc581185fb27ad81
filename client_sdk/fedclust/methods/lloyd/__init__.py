"""lloyd: exact distributed Lloyd, the baseline that the federated k-means papers compare with.

Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28, 1982. A k-means step needs
only the sum, the count and the cost of every cluster at each site. The distributed form therefore
equals central k-means on all sites' points from the same start: the same labels, and centroids
equal up to rounding.

The start is ``given``, or (``cells``) the weighted k-means of all sites' cell means.
"""

from __future__ import annotations

from fedclust.methods.common.given_start import check_given_centroids
from fedclust.methods.lloyd import client, config, messages, server
from fedclust.methods.lloyd.description import describe
from fedclust.schema.method import Method

METHOD: Method[config.Config, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="lloyd",
    version=4,
    title="Exact distributed Lloyd (k-means)",
    citation="S. Lloyd, Least squares quantization in PCM, IEEE Trans. Inf. Theory 28, 1982",
    references=("lloyd1982",),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_config=check_given_centroids,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=client.label,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    dissimilarities=("euclidean", "gower", "k-prototypes"),
    sweeps=True,
)
