"""mixture: federated EM for mixtures, with soft clusters: latent profiles and latent classes.

Dempster, Laird & Rubin, "Maximum likelihood from incomplete data via the EM algorithm", Journal of
the Royal Statistical Society B 39, 1977. Numbers are normal with a mean and a variance of each
class, yes/no features are Bernoulli, categorical features have a probability for each level, and
within a class all are independent. Both steps need sums over persons alone, so the distributed form
equals EM on all sites' points: scikit-learn's ``GaussianMixture(covariance_type="diag")`` if all
features are numbers and the points are rows. Of groups, it is over artificial persons around their
records (``artificial``).

The start is a partition by k-means: of given centroids, or (``cells``) of the weighted k-means of
all sites' cell means. Probabilities of persons never leave a site.
"""

from __future__ import annotations

from fedclust.methods.common.given_start import check_given_centroids
from fedclust.methods.mixture import client, config, messages, server
from fedclust.methods.mixture.description import describe
from fedclust.schema.method import Method

METHOD: Method[config.Config, server.State, messages.AnyTask, messages.AnyPayload] = Method(
    name="mixture",
    version=2,
    title="Mixture model by federated EM (latent classes)",
    citation=(
        "A. P. Dempster, N. M. Laird, D. B. Rubin, Maximum likelihood from incomplete data via the "
        "EM algorithm, J. R. Stat. Soc. B 39, 1977"
    ),
    references=("dempster1977",),
    describe=describe,
    options=config.Config,
    phases=messages.PHASES,
    check_config=check_given_centroids,
    check_task=messages.check_task,
    check=messages.check,
    local_step=client.local_step,
    label=client.label,
    label_new=client.label,
    probabilities=client.probabilities,
    state=server.State,
    start=server.start,
    aggregate=server.aggregate,
    finish=server.finish,
    sweeps=True,
)
