"""What a step of a method may know besides its task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.schema.encoding import Column, Space, columns_of
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.options import MethodOptions
from fedclust.schema.policy import Policy
from fedclust.schema.result import Result

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
