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

from collections.abc import Sequence

import numpy as np

from fedclust.methods.common.finalize import merge_equal_centroids, raw_result
from fedclust.methods.common.kmeans_rounds import (
    CELLS,
    CellsTask,
    Judgement,
    collect_cells,
    disclosures,
    judge,
)
from fedclust.methods.common.options import check_given_centroids, given_centroids, start_text
from fedclust.methods.mixture.model import (
    NUMBER,
    YES_NO,
    Classes,
    Config,
    EMTask,
    Partition,
    PartitionTask,
    Weighted,
    check_classes,
    check_em_task,
    check_partition,
    check_weighted,
    column_kinds,
    draw_persons,
    expect,
    log_densities,
    loss_warning,
    maximize,
    posterior,
    weighted_sums,
)
from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import tolerant_lexsort
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.message_checks import check_shape
from fedclust.schema.encoding import blocks_of
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Method, no_centroids
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Likelihood, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import (
    Contribution,
    Done,
    Next,
    Phase,
    Points,
    SiteSide,
    SiteTask,
    Task,
    payloads_of,
    with_payload,
)

# --- At a site ------------------------------------------------------------------------------------


def _partition(task: SiteTask[PartitionTask], site: SiteSide) -> Partition:
    """Return the sums of the points nearest to each centroid (K, d)."""
    points, centroids = site.points, task.common.centroids
    labels = nearest_centroid(points.X, centroids)
    weights = np.zeros((len(labels), len(centroids)))
    weights[np.arange(len(labels)), labels] = points.sizes
    kinds = column_kinds(site.config.columns)
    offsets, squares = weighted_sums(points.X, weights, centroids, kinds)
    return Partition(counts=weights.sum(axis=0).astype(np.int64), offsets=offsets, squares=squares)


def _expect(task: SiteTask[EMTask], site: SiteSide[Config]) -> Weighted:
    """Do an E step.

    The site remembers the seed of its artificial persons: they are the same in all rounds. With
    ``proportions: by_site`` it also remembers what the step used and what it came to, and the next
    step uses the latter: this is the M step of the proportions.
    """
    config, memory = site.config, site.memory
    classes = task.common.classes
    totals = memory.get("totals")
    if totals is not None and len(totals) == len(classes.proportions):
        classes = classes.model_copy(update={"proportions": totals / totals.sum()})
    seed = memory.setdefault("seed", int(site.rng.integers(2**62)))
    sent = expect(*_persons(site.points, config, seed), classes, config)
    if config.options.proportions == "by_site":
        memory |= {"proportions": classes.proportions, "totals": sent.totals}
    return sent


def _persons(points: Points, config: RunConfig, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return rows, or artificial persons around the records (q, d), and their weights (q,)."""
    if config.policy.protection == "none":
        return points.X, points.sizes.astype(np.float64)
    key = f"artificial {seed}"
    if key not in points.derived:
        numbers = column_kinds(config.columns) == NUMBER
        X, weights = draw_persons(points, numbers, np.random.default_rng(seed))
        points.derived[key] = np.clip(X, *scaled_bounds(config)), weights
    found: tuple[FloatArray, FloatArray] = points.derived[key]
    return found


# --- The phases -----------------------------------------------------------------------------------


_SQUARES = (
    "How widely they are spread: squared differences, added up. 0 for yes/no columns and levels."
)
PHASES = (
    CELLS,
    Phase(
        name="partition",
        once=True,
        summary="Each site assigns its points to the nearest first centroid and adds them up.",
        task=PartitionTask,
        payload=Partition,
        local_step=_partition,
        check=check_partition,
        discloses=disclosures(
            counts="K numbers: How many of your persons are nearest to each centroid.",
            offsets="K x d numbers: How far their records lie from the centroid in each column, "
            "added up, scaled.",
            squares=f"K x d numbers: {_SQUARES}",
        ),
    ),
    Phase(
        name="em",
        summary=(
            "Each site draws artificial persons around its groups' records, weighs them by how "
            "probable each class is, and adds them up."
        ),
        task=EMTask,
        payload=Weighted,
        local_step=_expect,
        check=check_weighted,
        check_task=check_em_task,
        discloses=disclosures(
            totals="K numbers: How many persons each class is expected to have, drawn around your "
            "groups' records: the probabilities of the class, added up. No count of persons.",
            offsets="K x d numbers: How far these persons lie from the class's mean in each "
            "column, weighted by the probability of the class and added up, scaled.",
            squares=f"K x d numbers: {_SQUARES}",
            log_likelihood="one number: How well the classes fit them all.",
            entropy="one number: How uncertain it is which class they belong to, added up.",
        ),
    ),
)


# --- Labels ---------------------------------------------------------------------------------------


def probabilities(result: Result, X: FloatArray, memory: Memory | None) -> FloatArray:
    """Return the classes' probabilities (n, K) of complete scaled rows (n, d)."""
    soft, (n_classes, d) = result.soft or {}, result.centroids.shape
    shapes = {"proportions": (n_classes, 1), "order": (n_classes, 1), "kinds": (1, d)}
    for name, shape in {"variances": (n_classes, d), **shapes}.items():
        if name not in soft:
            raise RuleViolation("mixture", f"the classes have no {name}", "/soft")
        check_shape(soft[name], shape, f"/soft/{name}")
    classes = Classes(
        proportions=soft["proportions"][:, 0], means=result.centroids, variances=soft["variances"]
    )
    check_classes(classes, result.centroids.shape, "/soft")
    kinds, order = (soft[name].ravel().astype(np.int64) for name in ("kinds", "order"))
    proportions = classes.proportions
    own = None if memory is None else memory.get("proportions")
    if own is not None and 0 <= order.min() <= order.max() < len(own):
        proportions = own[order]
    return posterior(log_densities(X, classes, kinds, result.space), proportions)[0]


# --- At the coordinator ---------------------------------------------------------------------------


class State(Model, title="MixtureState"):
    """What a session keeps between rounds.

    Attributes
    ----------
    seed : int
    start : (K, d) float64 or None
        The centroids of the first partition, scaled.
    classes : Classes or None
        What the sites of the open round of EM weigh their points by.
    measured : Classes or None
        The same of the last round of EM that closed,
    likelihood : Likelihood or None
        how well they fit,
    sites : tuple of (int, int)
        and each site's persons in it, and least number of persons of its groups.
    judgement : Judgement
    """

    seed: int
    start: FloatMatrix | None = None
    classes: Classes | None = None
    measured: Classes | None = None
    likelihood: Likelihood | None = None
    sites: tuple[tuple[int, int], ...] = ()
    judgement: Judgement = Judgement()


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options = config.options
    centroids = given_centroids(config)
    if centroids is not None:
        state = State(seed=seed, start=centroids)
        return state, Task("partition", PartitionTask(centroids=centroids))
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(seed=seed), Task("cells", task)


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig[Config]
) -> Next[State] | Done:
    """Aggregate a round; contributions are sorted by site."""
    if state.start is None:
        means, counts = collect_cells(contributions)
        rng = server_rng(state.seed, "mixture-start")
        centroids = weighted_kmeans(means, counts, config.options.k, rng)
        following = state.model_copy(update={"start": centroids})
        return Next(following, Task("partition", PartitionTask(centroids=centroids)))
    if state.classes is None:
        first = _first_classes(state.start, contributions, config)
        return _ask(state.model_copy(update={"classes": first}), first)
    return _close_em(state, state.classes, contributions, config)


def _ask(state: State, classes: Classes) -> Next[State]:
    task = EMTask(
        centroids=classes.means,
        variances=classes.variances,
        proportions=classes.proportions,
    )
    return Next(state, Task("em", task))


def _first_classes(
    centroids: FloatArray, contributions: Sequence[Contribution], config: RunConfig[Config]
) -> Classes:
    """Return the classes of the first partition; one without persons begins as wide as all."""
    sent = payloads_of(contributions, Partition).values()
    counts = np.sum([each.counts for each in sent], axis=0).astype(np.float64)
    wide = Classes(
        proportions=counts / counts.sum(),
        means=centroids,
        variances=np.ones(centroids.shape),
    )
    return maximize(wide, counts, sent, config)


def _close_em(
    state: State,
    classes: Classes,
    contributions: Sequence[Contribution],
    config: RunConfig[Config],
) -> Next[State] | Done:
    """Judge the classes that this round's probabilities are of, and do the M step."""
    costs = {
        each.site: None if each.payload is None else -each.payload.log_likelihood
        for each in with_payload(contributions, Weighted)
    }
    sent = list(payloads_of(contributions, Weighted).values())
    totals = np.sum([each.totals for each in sent], axis=0)
    moved = maximize(classes, totals, sent, config)
    shift = np.sqrt(((moved.means - classes.means) ** 2).sum(axis=1).max())
    metrics = {"centroid_shift": float(shift)}
    judgement = judge(state.judgement, classes.means, costs, config, config.options.tol)
    following = state.model_copy(
        update={
            "classes": moved,
            "measured": classes,
            "sites": tuple(
                (round(float(each.payload.totals.sum())), each.p)
                for each in with_payload(contributions, Weighted)
                if each.payload is not None
            ),
            "likelihood": _likelihood(sent, len(classes.means), config),
            "judgement": judgement,
        }
    )
    if judgement.converged:
        return Done(finish(following, config), metrics)
    asked = _ask(following, moved)
    return Next(asked.state, asked.task, metrics)


def _likelihood(sent: Sequence[Weighted], n_classes: int, config: RunConfig[Config]) -> Likelihood:
    """Return how well the classes of a round fit all persons that took part in it.

    In own units, after transforms: a density of scaled numbers depends on their scale.
    """
    kinds = column_kinds(config.columns)
    persons = round(float(np.sum([each.totals for each in sent])))
    jacobian = persons * float(np.log(config.space.scale[kinds == NUMBER]).sum())
    log_likelihood = float(np.sum([each.log_likelihood for each in sent])) - jacobian
    entropy = max(float(np.sum([each.entropy for each in sent])), 0.0)
    free_levels = sum(len(block) - 1 for block in blocks_of(config.columns))
    of_a_class = 2 * int((kinds == NUMBER).sum()) + int((kinds == YES_NO).sum()) + free_levels
    places = len(sent) if config.options.proportions == "by_site" else 1
    n_parameters = n_classes * of_a_class + places * (n_classes - 1)
    bic = n_parameters * float(np.log(persons)) - 2.0 * log_likelihood
    most = persons * float(np.log(n_classes))
    return Likelihood(
        log_likelihood=log_likelihood,
        n_parameters=n_parameters,
        n_rows=persons,
        bic=bic,
        icl=bic + 2.0 * entropy,
        relative_entropy=1.0 - entropy / most if n_classes > 1 else None,
    )


def finish(state: State, config: RunConfig[Config]) -> Result:
    """Return the classes that were last measured; without any those of the first partition.

    The sites keep their proportions in the order of the rounds; ``order`` says which class became
    which cluster.
    """
    classes = state.measured or state.classes
    if classes is None:
        raise no_centroids()
    kept, clusters = merge_equal_centroids(classes.means)
    proportions = np.bincount(clusters, weights=classes.proportions, minlength=len(kept))
    sorting = tolerant_lexsort(classes.means[kept])
    order = kept[sorting]
    weighted = any(feature.weight != 1.0 for feature in config.features)
    soft = {
        "proportions": proportions[sorting][:, None],
        "variances": classes.variances[order],
        "kinds": column_kinds(config.columns)[None].astype(np.float64),
        "order": order[:, None].astype(np.float64),
    }
    return raw_result(
        classes.means[order],
        config,
        stopped_because="converged" if state.judgement.converged else "",
        warnings=(
            *((_WEIGHTS,) if weighted else ()),
            *loss_warning(classes, state.sites, config, state.seed),
        ),
        soft=soft,
        likelihood=state.likelihood,
    )


_WEIGHTS = (
    "The features' weights count in the first partition alone: the probabilities of a mixture do "
    "not depend on them."
)


# --- What a paper says ----------------------------------------------------------------------------


def describe(options: Config) -> str:
    """Return what a methods section of a paper says of these options."""
    proportions = (
        "Each site had its own proportions of the classes."
        if options.proportions == "by_site"
        else "The proportions of the classes were common to all sites."
    )
    return (
        "Within a class, all variables were independent: numbers normal with the class's mean and "
        "variance, yes/no variables Bernoulli, and categorical variables with a probability of "
        f"each level. {proportions} {start_text(options)} The first classes were the points "
        "nearest to each of these centroids. In each round of the expectation-maximisation "
        "algorithm, the sites weighed persons by the probabilities of the classes and sent "
        "weighted sums, from which the coordinator computed the new classes. Where sites have "
        "groups, these persons were artificial: five for each person, normal around the group's "
        "record with the variance between neighbouring records, and in each class 50 further "
        "persons counted with the overall share of each answer. "
        f"{options.reg_covar:g} was added to every variance of the scaled variables. "
        "The rounds ended when the log-likelihood improved by at most "
        f"{options.tol:g}, relative, in two successive rounds. Each person was assigned to the "
        "most probable class."
    )


METHOD: Method[Config, State] = Method(
    name="mixture",
    version=2,
    title="Mixture model by federated EM (latent classes)",
    citation=(
        "A. P. Dempster, N. M. Laird, D. B. Rubin, Maximum likelihood from incomplete data via the "
        "EM algorithm, J. R. Stat. Soc. B 39, 1977"
    ),
    references=("dempster1977",),
    describe=describe,
    options=Config,
    phases=PHASES,
    check_config=check_given_centroids,
    probabilities=probabilities,
    state=State,
    start=start,
    aggregate=aggregate,
    finish=finish,
)
