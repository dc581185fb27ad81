"""What a method is: the interface that every method module implements.

A method module holds, under the same headings in the same order: what the paper says,
``Config``, payloads, the local step, the aggregation, convergence, labelling; and at its end one
:class:`Method` that names them. Nothing here or there does I/O, reads a clock or knows a site's
address: the same functions run at a hospital, in the coordinator and in ``simulate``.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    RootModel,
    StringConstraints,
)
from pydantic_core import PydanticCustomError

from fedclust.algorithms.arrays import BoolMatrix, FloatMatrix, FloatVector
from fedclust.algorithms.columns import Column, columns_of
from fedclust.privacy.rules import RuleViolation

__all__ = [
    "Bounds",
    "Contribution",
    "Disclosure",
    "Done",
    "Feature",
    "HistoryEntry",
    "LocalAnswer",
    "Memory",
    "Method",
    "MethodFailure",
    "Model",
    "Next",
    "Phase",
    "Place",
    "Points",
    "Policy",
    "Profile",
    "Quality",
    "Result",
    "RuleViolation",
    "RunConfig",
    "SiteTask",
    "Slug",
    "Space",
    "SweepEntry",
    "Task",
    "Tree",
    "Visible",
]

#: What codecs carry: None, bool, int, float, str, bytes, arrays, and tuples and str-keyed dicts
#: of them.
Tree: TypeAlias = Any
Memory: TypeAlias = dict[str, Tree]

#: Rows that are scaled at a time.
_TILE = 512

#: Characters that show nothing although Unicode counts them as letters, marks or symbols: joiners,
#: Hangul and Khmer fillers, variation selectors, the empty Braille cell.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


def _visible(text: str) -> str:
    """Refuse text that does not show what it is: people consent to what they read."""
    fault = None
    if text != text.strip():
        fault = "leave out the spaces at its beginning or end"
    elif any(c != " " and unicodedata.category(c)[0] in "CZ" for c in text) or _BLANK.search(text):
        fault = "use visible characters and plain spaces alone: one is invisible or unassigned"
    elif not unicodedata.is_normalized("NFC", text):
        fault = "write its accents in composed form (Unicode NFC)"
    if fault is not None:
        raise PydanticCustomError("visible", "{fault}", {"fault": fault})
    return text


#: For text that people read: two texts that look alike differ in no invisible character.
Visible = AfterValidator(_visible)
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
FeatureName = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$"), Visible
]


class Model(BaseModel):
    """Base of everything that is stored or travels: strict, closed, immutable.

    Sequences are tuples: the binary codec decodes arrays of things to tuples, and strict
    validation takes no list for one.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True
    )


class MethodFailure(RuntimeError):
    """The method cannot go on with what the sites answered: the session fails.

    ``reason`` is a stable snake_case code, ``message`` says what to change. Neither may contain
    anything that a site sent.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


# --- what the analyst declares --------------------------------------------------------------------


class Feature(Model):
    """What every site is asked for, in the units of the session.

    Attributes
    ----------
    name, unit : str
    lower, upper : float or None
        Bounds of a number; released values outside them count as the bound.
    kind : {"numeric", "binary", "categorical"}
    levels : tuple of str or None
        Of a categorical feature: all that it can be.
    transform : {"none", "log", "log1p"}
        Applied to a number before it is scaled, and undone in the result.
    weight : float
        Factor of the feature's part in squared distances: 2 counts as two copies of it.
    """

    name: FeatureName
    unit: Annotated[
        str, StringConstraints(max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$"), Visible
    ] = ""
    lower: FiniteFloat | None = None
    upper: FiniteFloat | None = None
    kind: Literal["numeric", "binary", "categorical"] = "numeric"
    levels: tuple[FeatureName, ...] | None = None
    transform: Literal["none", "log", "log1p"] = "none"
    weight: Annotated[FiniteFloat, Field(gt=0)] = 1.0


class Policy(Model):
    """The privacy and pacing rules of a session; see DESIGN §3 for each."""

    min_sites: Annotated[int, Field(ge=1, le=10_000)] = 3
    quorum: Annotated[int, Field(ge=1, le=10_000)] | None = None
    round_timeout_s: Annotated[int, Field(ge=1, le=31_536_000)] = 3_600
    fail_after_s: Annotated[int, Field(ge=1, le=31_536_000)] = 604_800
    max_rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None
    min_group_size: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    protection: Literal["groups", "none"] = "groups"
    scaling: Literal["none", "standard", "bounds"] = "standard"
    missing: Literal["drop", "impute", "mask"] = "drop"


# --- what a method is given -----------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """The map between a column's own units and the scaled space of the method.

    ``center`` and ``scale`` have shape (d,); ``impute`` (d,), in own units, or None. Own units are
    those after the feature's transform. A feature's weight is part of ``scale``. ``limit`` (d,) or
    None: scaled values count as at most so far from 0.
    """

    center: NDArray[np.float64]
    scale: NDArray[np.float64]
    impute: NDArray[np.float64] | None = None
    limit: NDArray[np.float64] | None = None

    @classmethod
    def identity(cls, d: int) -> Space:
        return cls(np.zeros(d), np.ones(d))

    def to_scaled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map rows (n, d) in own units to the scaled space, within its limit."""
        scaled = self._affine(rows)
        if self.limit is not None:
            np.clip(scaled, -self.limit, self.limit, out=scaled)
        return scaled

    def _affine(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        if rows.ndim != 2 or len(rows) <= _TILE:
            return (rows - self.center) / self.scale
        # Some rows at a time, which stay in the cache, and whole arrays: a short one costs more.
        center, scale = (np.tile(part, (_TILE, 1)) for part in (self.center, self.scale))
        scaled = np.empty(rows.shape)
        for start in range(0, len(rows), _TILE):
            part = scaled[start : start + _TILE]
            np.subtract(rows[start : start + _TILE], center[: len(part)], out=part)
            np.divide(part, scale[: len(part)], out=part)
        return scaled

    def to_original(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map rows or centroids (n, d) of the scaled space to own units."""
        return rows * self.scale + self.center


@dataclass(frozen=True)
class RunConfig:
    """All that a step may know besides its task and, at a site, its rows.

    Attributes
    ----------
    options : Model
        The method's own ``Config``.
    features : tuple of Feature
        As declared, in the session's order. Methods look at ``columns`` (d,), which they become.
    policy : Policy
    roster : tuple of str
        Site names that the next round would address, sorted.
    p : int
        Smallest number of persons behind anything sent: at a site and in ``check``, the larger of
        the session's and that site's own; in ``aggregate``, the session's.
    size_band : str or None
        That site's declared band (``privacy.bands``); None in ``aggregate``.
    space : Space
        The scaled space; the identity until the preparation round has closed.
    masks : mapping of site to (d,) bool
        In ``start``, ``check_roster`` and ``aggregate``: which columns each site has; all of them,
        but with ``missing: mask``. Elsewhere empty.
    mask : (d,) bool
        At a site and in ``check``: the columns that this site has, whole features. By default all.
    first : bool
        In ``check_task``: whether this is the method's first round.
    sweep : tuple of int
        Every K that is run beside this one, itself included; empty where it is the only one.
    """

    options: Any
    features: tuple[Feature, ...]
    policy: Policy
    roster: tuple[str, ...]
    p: int
    size_band: str | None = None
    space: Space = field(default_factory=lambda: Space.identity(0))
    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    mask: NDArray[np.bool_] = field(default_factory=lambda: np.ones(0, dtype=np.bool_))
    first: bool = False
    sweep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.mask.shape != (len(self.columns),):
            object.__setattr__(self, "mask", np.ones(len(self.columns), dtype=np.bool_))

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """What the features become: the columns of every matrix; d is their number."""
        return columns_of(self.features)


@dataclass(frozen=True)
class Points:
    """A site's weighted points: all that a method sees of a site (``protection``).

    Attributes
    ----------
    X : (m, d) float64
        One record for each group of persons. Given to the engine in own units, NaN where a group
        does not release a column. Given to a method scaled and free of NaN, and 0 in the columns
        of features that the site has not got. In a column of levels: shares.
    sizes : (m,) int64
        Persons in each group; ones with ``protection: none``, where each point is a row.
    within : (d,) float64
        The share of each column's variance that lies within the groups, from 0 to .95; 0 with
        ``protection: none``.
    observed : (m, d) bool or None
        False where a value was imputed or the feature is lacking; None: every value was observed.
    derived : dict
        What was made of these points, to be used again; it decides nothing.
    """

    X: NDArray[np.float64]
    sizes: NDArray[np.int64]
    within: NDArray[np.float64]
    observed: NDArray[np.bool_] | None = None
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n(self) -> int:
        """Persons behind all points."""
        return int(self.sizes.sum())


# --- what a method returns ------------------------------------------------------------------------


class Disclosure(Model):
    """One line of what leaves the hospital in a phase. Shown to data protection officers."""

    field: str
    shape: str
    meaning: str
    identifies: str


@dataclass(frozen=True)
class Phase:
    """A kind of round: its task, its answer, and what the answer discloses.

    ``needs_all``: it waits for every addressed site. ``ends_with_site``: it does not, for one that
    leaves: the round is closed at once, and the session completes with what was found so far.
    ``optional``: where too few sites answer, the session completes with what was found before.
    ``once``: a site answers it once in a session, and not after any phase that is listed later.
    """

    name: str
    summary: str
    task: type[Model]
    payload: type[Model]
    discloses: tuple[Disclosure, ...]
    site_part: type[Model] | None = None
    needs_all: bool = False
    ends_with_site: bool = False
    optional: bool = False
    once: bool = False


@dataclass(frozen=True)
class Task:
    """What a round asks. ``sites`` None means every site of the roster.

    ``per_site`` holds a part of its own for each addressed site, where the phase has one.
    ``space`` is set by the engine: every task after the preparation carries it.
    """

    phase: str
    common: Model
    per_site: Mapping[str, Model] = field(default_factory=dict)
    sites: tuple[str, ...] | None = None
    needs_all: bool = False
    space: Space | None = None


@dataclass(frozen=True)
class SiteTask:
    """A task as one site sees it; ``space`` is None in the preparation round alone."""

    phase: str
    common: Any
    site: Any = None
    space: Space | None = None


@dataclass(frozen=True)
class Contribution:
    """A site's answer to a round; ``payload`` is None for an empty answer."""

    site: str
    payload: Any
    p: int


class Quality(Model):
    """How good the clustering is, over the sites' points (ALGORITHMS, Common rules).

    Attributes
    ----------
    inertia : float
        Over the points, weighted by persons.
    share_within : float
        The share of the persons' own inertia that lies within groups, as the tables release it:
        their inertia is about ``inertia / (1 - share_within)``.
    simplified_silhouette, davies_bouldin : float or None
    n_rows : int
        Persons.
    """

    inertia: float
    share_within: float = 0.0
    simplified_silhouette: float | None
    davies_bouldin: float | None
    n_rows: int


class HistoryEntry(Model):
    """One closed round as the analyst sees it. Aggregates over at least ``min_sites`` sites.

    ``lower_bound`` and ``upper_bound`` are what this round by itself says of the least inertia that
    any centroids have; None where it says nothing.
    """

    round: int
    phase: str
    n_sites: int
    inertia: float | None = None
    centroid_shift: float | None = None
    lower_bound: float | None = None
    upper_bound: float | None = None


class Bounds(Model):
    """Between what the least inertia lies that any K centroids within the declared bounds have.

    Attributes
    ----------
    lower, upper : float or None
        In the scaled space, over all points of all sites. ``upper`` is what the result's centroids
        cost at most. None where no round told one.
    certified : bool
        Whether ``lower`` is proven; see :attr:`statement`.
    statement : str
        What the bounds rest on, in a sentence.
    n_clusters : int
        The K that they hold for.
    iterations : int
        Dual rounds that were closed.
    limited : int
        In how many of these a site's search ended at its node limit: its bound is then proven, but
        not the best.
    splits : int
        How often the centroids' region was cut in two to close the gap.
    """

    lower: float | None
    upper: float | None
    certified: bool
    statement: str
    n_clusters: int
    iterations: int
    limited: int
    splits: int

    @property
    def gap(self) -> float | None:
        """How far apart they are, as a share of ``upper``; None without either."""
        if self.lower is None or self.upper is None:
            return None
        return relative_gap(self.lower, self.upper)


def relative_gap(lower: float, upper: float) -> float:
    """Return (upper - lower) / upper, 0 where they meet; Yfantis et al., eq. 35."""
    if upper <= lower:
        return 0.0
    return (upper - lower) / upper if upper > 0 else float("inf")


class Profile(Model):
    """What the persons of each cluster look like, over all sites; see ``algorithms.evaluation``.

    In the columns' own units, transforms not undone. Missing values that were imputed count.

    Attributes
    ----------
    known : (K, d) bool
        False in empty clusters, and for columns that no site with persons in the cluster has.
    means : (K, d) float64
        0 where not known; the share of those with it where a column is binary.
    deviations : (K, d) float64
        Standard deviations, ddof 0: 0 where not known.
    overall_means, overall_deviations : (d,) float64
        Over the persons of all clusters.
    """

    known: BoolMatrix
    means: FloatMatrix
    deviations: FloatMatrix
    overall_means: FloatVector
    overall_deviations: FloatVector


class SweepEntry(Model):
    """One number of clusters of a sweep, by what the others are compared with it.

    Attributes
    ----------
    n_clusters : int
        K as it was asked for.
    inertia, simplified_silhouette, davies_bouldin : float or None
        As in :class:`Quality`; None where they are not known.
    n_rows : int or None
        The persons that these are over.
    stability : float or None
        How far different starts agree; see ``algorithms.choosing``.
    result : Result
        The clustering; its own ``sweep`` is None.
    """

    n_clusters: int
    inertia: float | None = None
    simplified_silhouette: float | None = None
    davies_bouldin: float | None = None
    n_rows: int | None = None
    stability: float | None = None
    result: Result


class Result(Model):
    """One clustering that every site can apply to its own rows.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled space, rows in lexicographic order.
    centroids_original : (K, d) float64
        The same in the units that were declared, transforms undone: geometric means of what was
        taken logarithms of. Of a level the share of rows that have it.
    columns : tuple of str, length d
        What the columns of the centroids are: a feature, or ``feature=level``.
    mask : (K, d) bool or None
        With ``missing: mask``: False where a feature of a cluster is unknown, for no site that
        has the feature has rows in it; both centroids are 0 there.
    prototypes : (M, d) float64 or None
        Scaled. Where clusters are not told apart by their centroids: a row belongs to the cluster
        of the nearest of these. Sorted by value.
    prototype_labels : tuple of int, length M
        The cluster of each prototype.
    center, scale : (d,) float64
        The scaled space; ``impute`` (d,), in own units, where missing values are imputed.
    limit : (d,) float64 or None
        How far from 0 scaled values count at most.
    sizes : tuple of int, length K, or None
        Persons in each cluster; None without evaluation.
    site_sizes : dict of site to tuple
        The same by site. Released whole to nobody: each site sees its own.
    mapping : dict of site to tuple of int
        Local cluster to global cluster, where the method has local clusters; -1 for a local
        cluster that was not sent. Each site sees its own.
    profile : Profile or None
        Means and spreads of the persons in each cluster; None without evaluation.
    n_rounds : int
        Rounds of the method itself, as ``max_rounds`` counts them: without preparation and
        evaluation, which ``history`` shows too.
    extra : dict
        What the method's ``label`` needs beyond centroids.
    n_clusters : int or None
        In a sweep, the K of this clustering as it was asked for. Elsewhere None.
    sweep : tuple of SweepEntry or None
        Of a sweep: every K that came to a clustering, ascending. All else here is that of the
        recommended K.
    recommendation : str or None
        Of a sweep: why that K is recommended.
    bounds : Bounds or None
        Of a method that proves how good its clustering is.
    """

    centroids: FloatMatrix
    centroids_original: FloatMatrix
    columns: tuple[str, ...] = ()
    mask: BoolMatrix | None = None
    prototypes: FloatMatrix | None = None
    prototype_labels: tuple[int, ...] | None = None
    center: FloatVector
    scale: FloatVector
    impute: FloatVector | None = None
    limit: FloatVector | None = None
    sizes: tuple[int, ...] | None = None
    site_sizes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    mapping: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    quality: Quality | None = None
    profile: Profile | None = None
    history: tuple[HistoryEntry, ...] = ()
    n_rounds: int = 0
    stopped_because: str = ""
    warnings: tuple[str, ...] = ()
    extra: dict[str, Tree] = Field(default_factory=dict)
    n_clusters: int | None = None
    sweep: tuple[SweepEntry, ...] | None = None
    recommendation: str | None = None
    bounds: Bounds | None = None

    @property
    def space(self) -> Space:
        """The map from own units to the scaled space."""
        return Space(self.center, self.scale, self.impute, self.limit)

    def at(self, n_clusters: int) -> Result:
        """Return the clustering of one K of a sweep.

        Raises
        ------
        ValueError
            There is none; names every K that there is.
        """
        if self.sweep is None:
            raise ValueError("this session compared no numbers of clusters: it has one result")
        for entry in self.sweep:
            if entry.n_clusters == n_clusters:
                return entry.result
        there = ", ".join(str(entry.n_clusters) for entry in self.sweep)
        raise ValueError(f"choose K from those of this session's results: {there}")


SweepEntry.model_rebuild()


@dataclass(frozen=True)
class Next:
    """Another round is needed. ``metrics`` and ``warnings`` are of the round that just closed."""

    state: Model
    task: Task
    metrics: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """The clustering is found. ``metrics`` describe the round that has just closed."""

    result: Result
    metrics: Mapping[str, float] = field(default_factory=dict)


Place: TypeAlias = Literal["site", "coordinator"]
LocalAnswer: TypeAlias = tuple[Model | None, Memory]


@dataclass(frozen=True)
class Method:
    """A method: the functions of its module, by name.

    Attributes
    ----------
    options : type of Model
        What reads the definition's ``config``: a model, or :func:`options.variants` of several.
    start : (config, seed) -> (state, task)
    local_step : (task, data, config, rng, memory) -> (payload or None, memory)
        None: nothing may be sent, the site answers empty.
    check : (task, payload, config) -> None
        Raises :class:`RuleViolation`. Runs at the site before sending and at the coordinator
        before storing.
    aggregate : (state, contributions, config) -> Next or Done
        Deterministic; contributions come sorted by site name.
    finish : (state, config) -> Result
        The best clustering so far: what a session that used up its rounds ends with.
    label : (result, rows in own units (n, d), memory) -> (n,) int64
        -1 where a row cannot be labelled. With a memory the rows are all rows of the session at
        that site, in order, and ``result.mapping`` holds at most that site's own.
    label_new : (result, rows in own units (n, d), memory) -> (n,) int64, or None
        Where the result alone cannot label rows that took no part: a site does it with what it
        remembers. None: ``label`` without a memory does.
    check_config : (config) -> None, or None
        Raises :class:`RuleViolation` for options that do not fit features or policy.
    check_task : (task, config) -> None, or None
        Raises :class:`RuleViolation` where a task asks for more than the definition says, as other
        numbers of clusters. Runs at the site before the local step. (The engine itself checks the
        order of phases, by ``Phase.once``, and the number of rounds.)
    rounds : (options) -> int or None, or None
        How many rounds of the method a session with these options takes at most; None: as many as
        ``max_rounds`` admits.
    possible_phases : (options) -> names of phases, or None
        The phases that a session with these options can have; None: all.
    by_prototypes : bool
        Whether its results tell clusters apart by prototypes.
    takes_masks : bool
        Whether sites may lack features (``missing: mask``).
    sweeps : bool
        Whether ``n_clusters`` may be several (``algorithms.sweep``). Whatever K is, the phases of
        the method's rounds come at the same places, so that every K has its step in each round.
    sweeping : bool
        Whether this is a method wrapped to run several K side by side.
    lacks : (options, place) -> str or None, or None
        What has to be installed first at the ``"site"`` or ``"coordinator"``, as a sentence with
        the command; None where nothing has.
    check_roster : (config) -> None, or None
        Raises :class:`RuleViolation` where the sites of the roster, with the features that they
        have, cannot serve the method; says what to change. Called before ``start``.
    """

    name: str
    version: int
    title: str
    citation: str
    options: type[Model] | type[RootModel[Any]]
    default_max_rounds: int
    joins_late: bool
    state: type[Model]
    phases: tuple[Phase, ...]
    start: Callable[[RunConfig, int], tuple[Model, Task]]
    local_step: Callable[[SiteTask, Points, RunConfig, np.random.Generator, Memory], LocalAnswer]
    check: Callable[[SiteTask, Any, RunConfig], None]
    aggregate: Callable[[Any, Sequence[Contribution], RunConfig], Next | Done]
    finish: Callable[[Any, RunConfig], Result]
    label: Callable[[Result, NDArray[np.float64], Memory | None], NDArray[np.int64]]
    check_config: Callable[[RunConfig], None] | None = None
    check_task: Callable[[SiteTask, RunConfig], None] | None = None
    rounds: Callable[[Any], int | None] | None = None
    possible_phases: Callable[[Any], Sequence[str]] | None = None
    by_prototypes: bool = False
    takes_masks: bool = False
    sweeps: bool = False
    sweeping: bool = False
    lacks: Callable[[Any, Place], str | None] | None = None
    check_roster: Callable[[RunConfig], None] | None = None
    label_new: Callable[[Result, NDArray[np.float64], Memory], NDArray[np.int64]] | None = None

    def phase(self, name: str) -> Phase:
        """Return the phase called ``name``; KeyError where there is none."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise KeyError(name)
