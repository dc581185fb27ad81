"""spectral: clusters of any shape, by the eigenvectors of neighbourhood graphs.

The paper [1]_: every site finds the eigenvectors of its own graph and clusters its points among
them; the coordinator clusters the sites' centroids. The sign of an eigenvector is arbitrary, so one
site sends an anchor and the eigenvectors' values there, and the others flip theirs to agree
(Algorithm 1).

``alignment: sign`` is that algorithm, except that the paper's anchor is a record and here it is the
mean of points near one another. ``none`` is the paper's naive variant. ``procrustes`` uses several
anchors and an orthogonal rotation, because eigenvectors of nearly equal eigenvalues rotate instead
of only flipping. All three need sites that hold all clusters.

``alignment: landmarks``, the default, does not: sites send their points, or means of small cells of
them, and the coordinator builds one graph over the landmarks of all sites. Landmarks between two
clusters would join them. They are sparser than their neighbours, and are left out of the graph
(:func:`fedclust.methods.spectral.landmark_clustering.is_dense`).

References
----------
.. [1] Hernandez-Pereira, Fontenla-Romero, Guijarro-Berdinas & Perez-Sanchez, "Federated learning
   approach for spectral clustering", ESANN 2021.
"""

from __future__ import annotations

from fedclust.methods.spectral import client, config, messages, server
from fedclust.methods.spectral.description import describe
from fedclust.schema.method import Method

METHOD: Method[config.Variants, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="spectral",
    version=5,
    title="Federated spectral clustering (clusters of any shape)",
    citation=(
        "E. Hernandez-Pereira, O. Fontenla-Romero, B. Guijarro-Berdinas, B. Perez-Sanchez, "
        "Federated learning approach for spectral clustering, ESANN 2021"
    ),
    references=("hernandezpereira2021",),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=client.label,
    label_new=client.label,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    by_prototypes=True,
)
