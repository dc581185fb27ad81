"""ward: hierarchical clustering in one round, a tree over all sites' groups.

Ward, "Hierarchical grouping to optimize an objective function", JASA 58, 1963. Each step merges the
two clusters whose merge adds the least inertia. What a merge adds follows from the sizes and means
of the two clusters alone. So the coordinator can build the tree of the records of all sites'
groups: from the groups upwards it is the tree that a central run on these records gives. A site
with more groups than ``cells`` merges them first, by the same rule.

Heights are those of scipy's ``linkage(method="ward")`` and R's ``hclust(method="ward.D2")``: the
root of twice the inertia that a merge adds (Murtagh & Legendre, "Ward's hierarchical agglomerative
clustering method: which algorithms implement Ward's criterion?", J. Classification 31, 2014).
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.assign import CELLS_KEY, label_by_cells
from fedclust.methods.common.finalize import raw_result, result_of_several
from fedclust.methods.common.kmeans_rounds import Cells, disclosures
from fedclust.methods.common.options import SweptOptions
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_lexsort
from fedclust.numeric.microaggregation import form_groups
from fedclust.numeric.ward import affordable_points, cut_merges, group_means, ward_merges
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Method
from fedclust.schema.model import Model
from fedclust.schema.result import Dendrogram, HistoryEntry
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Phase, SiteSide, SiteTask, Task, payloads_of

# --- Options --------------------------------------------------------------------------------------


#: A result shows the top of the tree: this many leaves, or K if these are more.
SHOWN_LEAVES = 50


class Config(SweptOptions, title="WardConfig"):
    """Options of ``ward``."""

    cells: Annotated[int, Field(ge=1, le=500)] = 200
    """M, the most cells of a site: its groups, merged where there are more."""
    labels: Literal["nearest", "tree"] = "nearest"
    """How a site labels its rows: by the nearest centroid, or by the branch of its nearest own
    cell. New rows always get the nearest centroid.
    """

    round_limit: ClassVar = 1

    @property
    def shape_numbers(self) -> dict[str, str]:
        """M, and K where it is one number."""
        return {**super().shape_numbers, "M": str(self.cells)}


# --- What travels ---------------------------------------------------------------------------------


class CellsTask(Model, title="WardCellsTask"):
    """Merge your points to at most ``n_cells`` cells by Ward's rule."""

    n_cells: Annotated[int, Field(ge=1)]


def check(task: SiteTask[CellsTask], payload: Cells, config: RunConfig[Config]) -> None:
    """Raise RuleViolation unless a payload holds up to ``n_cells`` valid cells, none empty."""
    kmeans_rounds.check_cells(payload, task.common.n_cells, config, fewer=True)
    if not payload.counts.all():
        raise RuleViolation("empty", "no cell is empty", "/counts")


# --- At a site ------------------------------------------------------------------------------------


def local_step(task: SiteTask[CellsTask], site: SiteSide[Config]) -> Cells:
    """Send a site's cells; remember their means if they label its rows."""
    points = site.points
    groups = merge_points(points.X, points.sizes.astype(np.float64), task.common.n_cells)
    counts = np.bincount(groups, weights=points.sizes).astype(np.int64)
    means = group_means(points.X, points.sizes.astype(np.float64), groups)
    if site.config.options.labels == "tree":
        site.memory[CELLS_KEY] = means
    return Cells(counts=counts, means=means)


def merge_points(points: FloatArray, weights: FloatArray, most: int) -> IntArray:
    """Return the cell (m,) of each point, of at most ``most``, by Ward's rule.

    More points than :func:`affordable_points` are first merged a few at a time, as rows are to
    groups.

    Parameters
    ----------
    points : (m, d) float64
    weights : (m,) float64
    most : int
    """
    if len(points) <= most:
        return np.arange(len(points))
    affordable = max(affordable_points(points.shape[1]), most)
    if len(points) > affordable:
        parts = form_groups(points, -(-len(points) // affordable))
        means = group_means(points, weights, parts)
        sizes = np.bincount(parts, weights=weights)
        return merge_points(means, sizes.astype(np.float64), most)[parts]
    return cut_merges(ward_merges(points, weights), most)


PHASES = (
    Phase(
        name="cells",
        once=True,
        summary="Each site sends its groups, merged to at most M cells, for the common tree.",
        task=CellsTask,
        payload=Cells,
        local_step=local_step,
        check=check,
        discloses=disclosures(
            counts="up to M numbers: How many of your persons are in each cell.",
            means="up to M x d numbers: The mean of each column over each cell, scaled. If you "
            "have at most M groups, these are all records of your protected table.",
        ),
    ),
)


# --- At the coordinator ---------------------------------------------------------------------------


class State(Model):
    """Nothing: a session has one round."""


def start(config: RunConfig[Config], _seed: int) -> tuple[State, Task[CellsTask]]:
    """Ask every site for its cells."""
    return State(), Task("cells", CellsTask(n_cells=config.options.cells))


def aggregate(
    _state: State, contributions: Sequence[Contribution], config: RunConfig[Config]
) -> Done:
    """Build the tree of all cells and cut it at every K."""
    sent = payloads_of(contributions, Cells)
    means, counts, places = gather(sent, len(config.columns))
    merges = ward_merges(means, counts)
    history = (HistoryEntry(round=1, phase="cells", n_sites=len(sent)),)
    results = {}
    for k in config.options.ks:
        groups = cut_merges(merges, min(k, len(means)))
        raw = raw_result(group_means(means, counts, groups), config, stopped_because="finished")
        update = {"history": history, "dendrogram": _top_of_tree(merges, counts, groups)}
        if config.options.labels == "tree":
            update["mapping"] = {site: tuple(groups[own].tolist()) for site, own in places.items()}
        results[k] = raw.model_copy(update=update)
    several = isinstance(config.options.n_clusters, tuple)
    return Done(result_of_several(results) if several else results[config.options.k])


def gather(
    sent: dict[str, Cells], n_features: int
) -> tuple[FloatArray, FloatArray, dict[str, IntArray]]:
    """Return the means (m, d) and persons (m,) of all cells, and the place of each site's.

    The cells are in the order of their values, so that the names of sites decide no tie. Where all
    are more than :func:`affordable_points`, each site's are merged to an equal number first.
    """
    most = max(affordable_points(n_features) // len(sent), 1)
    merged = {
        site: merge_points(cells.means, cells.counts.astype(np.float64), most)
        for site, cells in sent.items()
    }
    counts = np.concatenate(
        [np.bincount(groups, weights=sent[site].counts) for site, groups in merged.items()]
    )
    means = np.concatenate(
        [
            group_means(sent[site].means, sent[site].counts.astype(np.float64), groups)
            for site, groups in merged.items()
        ]
    )
    exact = np.lexsort((counts, *means.T[::-1]))
    order = exact[tolerant_lexsort(means[exact])]
    rank = np.argsort(order)
    starts = np.cumsum([0, *(groups.max() + 1 for groups in merged.values())])
    places = {
        site: rank[first + groups]
        for first, (site, groups) in zip(starts[:-1], merged.items(), strict=True)
    }
    return means[order], counts[order], places


def _top_of_tree(merges: FloatArray, counts: FloatArray, groups: IntArray) -> Dendrogram:
    """Return the last merges of all cells (m,), whose clusters are ``groups`` (m,)."""
    n_leaves = min(len(counts), max(SHOWN_LEAVES, int(groups.max()) + 1))
    leaves = cut_merges(merges, n_leaves)
    firsts = np.unique(leaves, return_index=True)[1]
    top = merges[len(counts) - n_leaves :]
    node = np.arange(n_leaves)
    pairs = []
    for number, (first, second) in enumerate(leaves[top[:, :2].astype(np.intp)]):
        pair = sorted((node[first], node[second]))
        pairs.append(pair)
        node[np.isin(node, pair)] = n_leaves + number
    return Dendrogram(
        merges=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        # Merges of one height may differ by rounding: no branch may end above the next.
        heights=np.maximum.accumulate(np.sqrt(2.0 * top[:, 2])),
        sizes=np.bincount(leaves, weights=counts).astype(np.int64),
        clusters=groups[firsts],
        n_cells=len(counts),
    )


# --- What a paper says ----------------------------------------------------------------------------


def describe(options: Config) -> str:
    """Return what a methods section of a paper says of these options."""
    labels = (
        "Rows of the sites that took part were labelled by the branch of their nearest cell."
        if options.labels == "tree"
        else "Rows were labelled by the nearest centroid."
    )
    return (
        f"Each site sent the sizes and means of its groups; a site with more than {options.cells} "
        f"groups first merged them to {options.cells} cells by Ward's criterion. The coordinator "
        "built one tree of all cells by the same criterion, starting from their sizes (heights as "
        "in R's ward.D2), and cut it at K clusters; the centroid of a cluster is the mean of its "
        f"cells, weighted by their persons. {labels}"
    )


METHOD: Method[Config, State] = Method(
    name="ward",
    version=1,
    title="Ward's hierarchical clustering",
    citation="J. H. Ward, Hierarchical grouping to optimize an objective function, JASA 58, 1963",
    references=("ward1963", "murtagh2014"),
    describe=describe,
    options=Config,
    phases=PHASES,
    state=State,
    start=start,
    aggregate=aggregate,
    label=label_by_cells,
    every_k=True,
)
