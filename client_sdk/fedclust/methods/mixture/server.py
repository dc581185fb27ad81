"""mixture at the coordinator: first centroids, M steps, convergence, information criteria."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.convergence import Judgement, judge
from fedclust.methods.common.finalize import merge_equal_centroids, no_centroids, raw_result
from fedclust.methods.common.given_start import given_centroids
from fedclust.methods.common.kmeans_rounds import CellsTask, collect_cells
from fedclust.methods.mixture.classes import NUMBER, YES_NO, Classes, column_kinds
from fedclust.methods.mixture.config import Config
from fedclust.methods.mixture.em import maximize
from fedclust.methods.mixture.loss import loss_warning
from fedclust.methods.mixture.messages import (
    AnyPayload,
    AnyTask,
    EMTask,
    Partition,
    PartitionTask,
    Weighted,
)
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import tolerant_lexsort
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.encoding import blocks_of
from fedclust.schema.model import Model
from fedclust.schema.result import Likelihood, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Next, Task, payloads_of, with_payload

FloatArray = NDArray[np.float64]


class State(Model, title="MixtureState"):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "partition", "em"}
        The phase of the open round.
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

    phase: Literal["cells", "partition", "em"]
    seed: int
    start: FloatMatrix | None = None
    classes: Classes | None = None
    measured: Classes | None = None
    likelihood: Likelihood | None = None
    sites: tuple[tuple[int, int], ...] = ()
    judgement: Judgement = Judgement()


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task[AnyTask]]:
    """Return the first state and task."""
    options = config.options
    centroids = given_centroids(config)
    if centroids is not None:
        state = State(phase="partition", seed=seed, start=centroids)
        return state, Task("partition", PartitionTask(centroids=centroids))
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task("cells", task)


def aggregate(
    state: State, contributions: Sequence[Contribution[AnyPayload]], config: RunConfig[Config]
) -> Next[State, AnyTask] | Done:
    """Aggregate a round; contributions are sorted by site."""
    if state.start is None:
        means, counts = collect_cells(contributions)
        rng = server_rng(state.seed, "mixture-start")
        centroids = weighted_kmeans(means, counts, config.options.k, rng)
        following = state.model_copy(update={"phase": "partition", "start": centroids})
        return Next(following, Task("partition", PartitionTask(centroids=centroids)))
    if state.classes is None:
        first = _first_classes(state.start, contributions, config)
        return _ask(state.model_copy(update={"classes": first}), first)
    return _close_em(state, state.classes, contributions, config)


def _ask(state: State, classes: Classes) -> Next[State, EMTask]:
    task = EMTask(
        centroids=classes.means,
        variances=classes.variances,
        proportions=classes.proportions,
    )
    return Next(state.model_copy(update={"phase": "em"}), Task("em", task))


def _first_classes(
    centroids: FloatArray, contributions: Sequence[Contribution], config: RunConfig[Config]
) -> Classes:
    """Return the classes of the first partition; one without persons begins as wide as all."""
    sent = payloads_of(contributions, Partition).values()
    counts = np.sum([each.counts for each in sent], axis=0).astype(np.float64)
    offsets = np.sum([each.offsets for each in sent], axis=0)
    squares = np.sum([each.squares for each in sent], axis=0)
    wide = Classes(
        proportions=counts / counts.sum(),
        means=centroids,
        variances=np.ones(centroids.shape),
    )
    return maximize(wide, counts, offsets, squares, config)


def _close_em(
    state: State,
    classes: Classes,
    contributions: Sequence[Contribution],
    config: RunConfig[Config],
) -> Next[State, EMTask] | Done:
    """Judge the classes that this round's probabilities are of, and do the M step."""
    costs = {
        each.site: None if each.payload is None else -each.payload.log_likelihood
        for each in with_payload(contributions, Weighted)
    }
    sent = list(payloads_of(contributions, Weighted).values())
    totals = np.sum([each.totals for each in sent], axis=0)
    offsets = np.sum([each.offsets for each in sent], axis=0)
    squares = np.sum([each.squares for each in sent], axis=0)
    moved = maximize(classes, totals, offsets, squares, config)
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
    raw = raw_result(
        classes.means[order],
        config,
        stopped_because="converged" if state.judgement.converged else "",
        warnings=(
            *((_WEIGHTS,) if weighted else ()),
            *loss_warning(classes, state.sites, config, state.seed),
        ),
    )
    soft = {
        "proportions": proportions[sorting][:, None],
        "variances": classes.variances[order],
        "kinds": column_kinds(config.columns)[None].astype(np.float64),
        "order": order[:, None].astype(np.float64),
    }
    return raw.model_copy(update={"soft": soft, "likelihood": state.likelihood})


_WEIGHTS = (
    "The features' weights count in the first partition alone: the probabilities of a mixture do "
    "not depend on them."
)
