"""lloyd: exact distributed Lloyd, the baseline that the federated k-means papers compare with.

Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28, 1982. A k-means step needs
only the sum, the count and the cost of every cluster at each site. The distributed form therefore
equals central k-means on all sites' points from the same start: the same labels, and centroids
equal up to rounding.

The start is ``given``, or (``cells``) the weighted k-means of all sites' cell means.
"""

from collections.abc import Sequence

from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import (
    CELLS,
    STEP,
    CellsTask,
    Judgement,
    StepTask,
    best_centroids,
    collect_cells,
    combine_steps,
    judge,
)
from fedclust.methods.common.options import (
    StartOptions,
    Tolerance,
    check_given_centroids,
    given_centroids,
    start_text,
)
from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.method import Method
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import Contribution, Done, Next, Task

# --- Options --------------------------------------------------------------------------------------


class Config(StartOptions, title="LloydConfig"):
    """Options of ``lloyd``."""

    tol: Tolerance = 1e-6
    """Relative improvement of the inertia below which a round counts as no improvement."""

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session; given centroids need no cells."""
        return ("lloyd",) if self.start == "given" else ("cells", "lloyd")


# --- At the coordinator ---------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    seed : int
    centroids : (K, d) float64 or None
        Scaled; the sites of the open round assign their points to them.
    judgement : Judgement
    """

    seed: int
    centroids: FloatMatrix | None = None
    judgement: Judgement = Judgement()


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options = config.options
    centroids = given_centroids(config)
    if centroids is not None:
        state = State(seed=seed, centroids=centroids)
        return state, _step_task(centroids)
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(seed=seed), Task("cells", task)


def _step_task(centroids: FloatArray) -> Task[StepTask]:
    return Task("lloyd", StepTask(centroids=centroids))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig[Config]
) -> Next[State] | Done:
    """Aggregate a round; contributions are sorted by site."""
    options = config.options
    if state.centroids is None:
        means, counts = collect_cells(contributions)
        rng = server_rng(state.seed, "lloyd-start")
        centroids = weighted_kmeans(means, counts, options.k, rng, rule=centroid_rule(config))
        following = state.model_copy(update={"centroids": centroids})
        return Next(following, _step_task(centroids))
    moved, costs, metrics = combine_steps(state.centroids, contributions, config)
    judgement = judge(state.judgement, state.centroids, costs, config, options.tol)
    following = state.model_copy(update={"centroids": moved, "judgement": judgement})
    if judgement.converged:
        return Done(finish(following, config), metrics)
    return Next(following, _step_task(moved), metrics)


def finish(state: State, config: RunConfig) -> Result:
    """Return the best centroids of all rounds judged, or the last ones if none was."""
    because = "converged" if state.judgement.converged else ""
    centroids = best_centroids(state.judgement, state.centroids)
    return raw_result(centroids, config, stopped_because=because)


# --- What a paper says ----------------------------------------------------------------------------


def describe(options: Config) -> str:
    """Return what a methods section of a paper says of these options."""
    return (
        f"{start_text(options)} In each round the sites assigned their points to the nearest "
        "centroid, and the coordinator moved each centroid to the mean of its points at all sites. "
        f"The rounds ended when the inertia improved by at most {options.tol:g}, relative, in two "
        "successive rounds; the best centroids of all rounds were the result."
    )


METHOD: Method[Config, State] = Method(
    name="lloyd",
    version=4,
    title="Exact distributed Lloyd (k-means)",
    citation="S. Lloyd, Least squares quantization in PCM, IEEE Trans. Inf. Theory 28, 1982",
    references=("lloyd1982",),
    describe=describe,
    options=Config,
    phases=(CELLS, STEP),
    check_config=check_given_centroids,
    state=State,
    start=start,
    aggregate=aggregate,
    finish=finish,
    dissimilarities=("euclidean", "gower", "k-prototypes"),
)
