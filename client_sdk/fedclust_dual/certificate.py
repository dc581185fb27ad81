"""The result of a ``dual`` session: centroids, bounds, and what the bounds rest on."""

from fedclust.methods.common.finalize import raw_result
from fedclust.schema.method import no_centroids
from fedclust.schema.result import Bounds, Result, relative_gap
from fedclust.schema.run_config import RunConfig
from fedclust_dual.config import Config
from fedclust_dual.feasible_set import CERTIFIED
from fedclust_dual.state import State, require_value

#: Reasons of an update rule's end after which splitting the domain can still close the gap.
SPLITTABLE = ("converged", "stalled")

_CERTIFIED = (
    "No {k} centroids within the declared bounds have a lower inertia than the lower bound, over "
    "the {points} of all sites, imputed values included: it is the sum of what every site proved "
    "for its part; where the region was cut, the least of these sums.{note}"
)
_OF_POINTS = (
    " The points are the records of the sites' protected tables, weighted by persons: of the rows "
    "themselves the bounds prove nothing."
)
_NOT_CERTIFIED = (
    "Bound not certified: this symmetry form may cut off the best centroids, so that the lower "
    "bound can lie above what they cost. Use pairwise for a proof."
)


def finish(state: State, config: RunConfig[Config]) -> Result:
    """Return the best measured centroids with the bounds; before any were measured, the references.

    Raises
    ------
    MethodFailure
        If no round was closed.
    """
    centroids = state.best if state.best is not None else state.references
    if centroids is None:
        raise no_centroids()
    result = raw_result(
        centroids, config, stopped_because=state.ended, warnings=_bound_warnings(state, config)
    )
    return result.model_copy(update={"bounds": _final_bounds(state, config)})


def _final_bounds(state: State, config: RunConfig[Config]) -> Bounds:
    options = config.options
    n_clusters = len(require_value(state.references))
    certified = options.symmetry in CERTIFIED
    of_rows = config.policy.protection == "none"
    statement = _CERTIFIED.format(
        k=n_clusters,
        points="rows" if of_rows else "weighted points",
        note="" if of_rows else _OF_POINTS,
    )
    return Bounds(
        lower=state.lower,
        upper=state.upper,
        certified=certified and state.lower is not None,
        statement=statement if certified else _NOT_CERTIFIED,
        n_clusters=n_clusters,
        iterations=state.iterations,
        limited=state.limited,
        splits=0 if state.splitting is None else state.splitting.splits,
    )


def _bound_warnings(state: State, config: RunConfig[Config]) -> tuple[str, ...]:
    options = config.options
    warnings = []
    n_clusters = len(require_value(state.references))
    if n_clusters < options.n_clusters:
        warnings.append(
            f"the bounds hold for {n_clusters} clusters, not for the {options.n_clusters} that "
            "were asked for: the sites could tell no more cells to begin with"
        )
    if state.lower is None or state.upper is None:
        warnings.append("the session ended before its first bounds: allow more rounds")
        return tuple(warnings)
    gap = relative_gap(state.lower, state.upper)
    could_split = state.ended in SPLITTABLE and options.symmetry in CERTIFIED
    if gap > options.gap and state.ended == "splits":
        warnings.append(f"a gap of {gap:.2%} is left: allow more splits, or more nodes")
    elif gap > options.gap and could_split and state.splitting is None:
        warnings.append(
            f"a gap of {gap:.2%} is left that no multipliers close; splits does, by cutting "
            "the region of the centroids"
        )
    if state.limited:
        warnings.append(
            f"in {state.limited} of {state.iterations} dual rounds a site's search ended at its "
            "node limit: raise node_limit. The bound is proven, but lower than need be"
        )
    return tuple(warnings)
