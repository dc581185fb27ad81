"""What a step of a method may know besides its task: a session's policy and options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeAlias

import numpy as np
from pydantic import Field, FiniteFloat
from typing_extensions import TypeVar

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.schema.encoding import Column, Space, columns_of
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.model import Written, leave_out
from fedclust.schema.result import Result

#: The most clusters that a method looks for where it chooses their number itself.
MAX_FOUND_CLUSTERS = 1_000


class MethodOptions(Written):
    """Base of every method's options. A method adds its fields and overrides what differs."""

    if TYPE_CHECKING:  # a field here would come before the method's own in every schema
        n_clusters: int | tuple[int, ...] | None
        """Number of clusters K; several for a sweep; None where the method chooses K. Every method
        declares this field, with its own limits.
        """

    @property
    def ks(self) -> tuple[int, ...]:
        """Every K, ascending; none where the method chooses K."""
        wanted = self.n_clusters
        return wanted if isinstance(wanted, tuple) else () if wanted is None else (wanted,)

    @property
    def evaluated(self) -> bool:
        """Whether a closing round measures the quality of the final centroids."""
        return False

    @property
    def resampled_models(self) -> int:
        """Number of resampled models that the clusters are compared with; 0: none."""
        return 0

    @property
    def compared_with_cloud(self) -> bool:
        """Whether the clusters are compared with one cloud, where the method allows it."""
        return False

    @property
    def round_limit(self) -> int | None:
        """The most rounds of the method; None: as many as ``max_rounds`` admits."""
        return None

    @property
    def phases(self) -> tuple[str, ...] | None:
        """The phases of the method that a session with these options can have; None: all."""
        return None

    @property
    def shape_numbers(self) -> dict[str, str]:
        """What the letters in the shapes of disclosures stand for, where it is known."""
        if self.n_clusters is None:
            return {"K": f"up to {MAX_FOUND_CLUSTERS}"}
        return {"K": str(self.n_clusters)} if isinstance(self.n_clusters, int) else {}


#: A larger gamma would leave numbers without effect.
MAX_GAMMA = 1e6


class Policy(Written):
    """The privacy and pacing rules of a session (docs/sessions.md).

    Examples
    --------
    >>> Policy(min_group_size=10, scaling="bounds").min_sites
    3
    """

    min_sites: Annotated[int, Field(ge=1, le=10_000)] = 3
    """No round or result rests on fewer sites. 2 is for sessions of exactly two sites, which each
    have to consent to that.
    """
    quorum: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Number of non-empty submissions with which a round closes at its deadline. None: all that
    take part.
    """
    round_timeout_s: Annotated[int, Field(ge=1, le=31_536_000)] = 3_600
    """Seconds until a round's deadline."""
    fail_after_s: Annotated[int, Field(ge=1, le=31_536_000)] = 604_800
    """Seconds for which a round may stay overdue before the session fails."""
    max_rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Limit on the method's rounds, without the preparation and the closing rounds. None: the
    method's own.
    """
    min_group_size: Annotated[int, Field(ge=1, le=1_000_000, examples=[5, 10, 11])] = 5
    """The fewest persons behind any number that a site sends; with groups at least 3. A site may
    ask for more. Common thresholds: 5 is the most usual one, 10 is the rule of many statistical
    offices, 11 satisfies rules that forbid counts of 1 to 10.
    """
    protection: Literal["groups", "none"] = "groups"
    """What a site computes with: its protected table, or its exact rows, to which every site has to
    consent expressly.
    """
    scaling: Literal["none", "standard", "bounds"] = "standard"
    """`standard`: mean 0 and variance 1 over all sites. `bounds`: from the features' bounds.
    `none`: numbers count as they are.
    """
    missing: Literal["drop", "impute", "mask"] = "impute"
    """`impute`: records that are not released take the mean over sites. `drop`: leave out groups
    that lack a column of the session; `fedclust check` says how many persons stay. `mask`: sites
    may lack features; not every method takes that.
    """
    dissimilarity: Literal["euclidean", "gower", "k-prototypes"] = "euclidean"
    """How far a person is from a cluster. `euclidean`: yes/no features and levels count as numbers,
    0 or 1, and a cluster has shares of them. `k-prototypes` (Huang 1998): squared differences of
    numbers, and `gamma` for each yes/no feature or level that is not the cluster's commonest.
    `gower` (1971), with `scaling: bounds`: absolute differences over the range of the bounds, and 1
    for each of these. Not every method takes the last two.
    """
    gamma: Annotated[FiniteFloat, Field(gt=0, le=MAX_GAMMA)] | None = None
    """Of `k-prototypes`. None: half the mean standard deviation of the numbers, after scaling."""

    @property
    def sites_needed(self) -> int:
        """How many sites a session needs from its start to its end."""
        return max(self.min_sites, self.quorum or 0)

    _written = leave_out(dissimilarity="euclidean", gamma=None)


#: In annotations, a bare ``RunConfig`` is one of any method.
OptionsT_co = TypeVar("OptionsT_co", bound=MethodOptions, covariant=True, default=MethodOptions)

Assign: TypeAlias = Callable[[Result, FloatArray], IntArray]


@dataclass(frozen=True)
class RunConfig(Generic[OptionsT_co]):
    """All that a step may know besides its task and, at a site, its rows.

    Attributes
    ----------
    options : MethodOptions
        What the method's ``Config`` has read.
    features : tuple of Feature
        As declared, in the session's order.
    policy : Policy
    roster : tuple of str
        Site names that the next round would address, sorted.
    p : int
        Smallest number of persons behind anything sent: at a site and in ``check``, the larger of
        the session's and that site's own; in ``aggregate``, the session's.
    size_band : str or None
        That site's declared band (``schema.size_bands``); None in ``aggregate``.
    space : Space
        The scaled space; the identity until the preparation round has been aggregated.
    masks : mapping of site to (d,) bool
        In ``start``, ``check_roster`` and ``aggregate``: which columns each site has; all of them,
        but with ``missing: mask``. Elsewhere empty.
    mask : (d,) bool
        At a site and in ``check``: the columns of the features that this site has. By default all.
    sweep : tuple of int
        Every K of the sweep, this one included; empty outside of a sweep.
    outcomes : tuple of Outcome
        What is counted by final cluster. No step of a method looks at this and what follows: they
        are for the rounds after the method's.
    outcomes_k : int, "recommended" or None
        The number of clusters that outcomes are counted at, of several.
    silent : frozenset of str
        In ``aggregate``: the sites that joined without enough points to answer about outcomes.
    prototypes : bool
        Whether the method tells clusters apart by prototypes.
    sends_cells : bool
        Whether sites describe their records by cells.
    assign : callable or None
        At a site, of a method with soft clusters: ``(result, scaled rows) -> labels`` by the most
        probable cluster. None: by the nearest centroid.
    columns : tuple of Column, length d
        What the features become: the columns of every matrix.
    """

    options: OptionsT_co
    features: tuple[Feature, ...]
    policy: Policy
    roster: tuple[str, ...]
    p: int
    size_band: str | None = None
    space: Space = field(default_factory=lambda: Space.identity(0))
    masks: Mapping[str, BoolArray] = field(default_factory=dict)
    mask: BoolArray = field(default_factory=lambda: np.ones(0, dtype=np.bool_))
    sweep: tuple[int, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    outcomes_k: int | Literal["recommended"] | None = None
    silent: frozenset[str] = frozenset()
    prototypes: bool = False
    sends_cells: bool = False
    assign: Assign | None = None
    columns: tuple[Column, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", columns_of(self.features))
        if self.mask.shape != (len(self.columns),):
            object.__setattr__(self, "mask", np.ones(len(self.columns), dtype=np.bool_))
