"""spectral: clusters of any shape, by the eigenvectors of neighbourhood graphs.

What it says and cites
    Hernandez-Pereira, Fontenla-Romero, Guijarro-Berdinas & Perez-Sanchez, "Federated learning
    approach for spectral clustering", ESANN 2021. Every site finds the eigenvectors of its own
    graph and clusters its points among them; the coordinator clusters the sites' centroids. Since
    eigenvectors are known up to their sign, one site sends an anchor and the anchor's entries,
    and the others flip theirs to agree (Algorithm 1).

``alignment: sign`` is that algorithm, except for the anchor: the paper sends a record, a site here
the mean of points near one another. ``none`` is the paper's naive variant. ``procrustes`` uses
several such anchors and an orthogonal rotation: where eigenvalues nearly coincide, eigenvectors
turn and do not just flip. All three need sites that hold all clusters.

``alignment: landmarks``, the default, does not: sites send their points, or means of small cells of
them, and the graph is built once, at the coordinator, over the landmarks of all sites. Landmarks
between two clusters would join them; they lie more sparsely than their neighbours, and are left out
of the graph (:func:`spectral_graph.dense`).
"""

from __future__ import annotations

from fedclust.methods.spectral.client import label, local_step
from fedclust.methods.spectral.config import Config, possible_phases, rounds
from fedclust.methods.spectral.messages import PHASES, check, check_task
from fedclust.methods.spectral.server import State, aggregate, finish, start
from fedclust.schema.method import Method

__all__ = ["METHOD", "Config"]

VERSION = 5

METHOD = Method(
    name="spectral",
    version=VERSION,
    title="Federated spectral clustering (clusters of any shape)",
    citation=(
        "E. Hernandez-Pereira, O. Fontenla-Romero, B. Guijarro-Berdinas, B. Perez-Sanchez, "
        "Federated learning approach for spectral clustering, ESANN 2021"
    ),
    options=Config,
    default_max_rounds=100,
    joins_late=True,
    state=State,
    phases=PHASES,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    label_new=label,
    check_task=check_task,
    rounds=rounds,
    possible_phases=possible_phases,
    by_prototypes=True,
)
