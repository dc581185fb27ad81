"""What a method is: the interface that every method implements.

The functions of a method do no I/O, read no clock and know no address: they run at a hospital, in
the coordinator and in ``simulate``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from pydantic import RootModel
from typing_extensions import TypeVar

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import MethodOptions, RunConfig
from fedclust.schema.task import Contribution, Done, Next, Phase, Task

OptionsT = TypeVar("OptionsT", bound=MethodOptions)
StateT = TypeVar("StateT", bound=Model)

Label: TypeAlias = Callable[[Result, FloatArray, Memory | None], IntArray]
Probabilities: TypeAlias = Callable[[Result, FloatArray, Memory | None], FloatArray]


def no_centroids() -> MethodFailure:
    """Return the failure of a session that used up its rounds before it found any centroids."""
    return MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")


def _find_nothing(_state: Model, _config: RunConfig) -> Result:
    """Fail: a method of one round has found nothing before that is closed."""
    raise no_centroids()


def _allow_config(_config: RunConfig) -> None:
    """Accept every definition and roster."""


@dataclass(frozen=True)
class Method(Generic[OptionsT, StateT]):
    """A method: what it is called, and its functions.

    Generic in its options and the state at the coordinator.

    Attributes
    ----------
    name : str
        As in definitions: lower-case letters, digits and underscores.
    version : int
        Raised when payload, state or arithmetic changes.
    title, citation : str
        For people.
    references : tuple of str
        The BibTeX keys of the papers behind the method, in ``report/references.bib``; those of a
        method from elsewhere are left out, because that file lacks them.
    describe : (options) -> str, or None
        What a paper's methods section says of a session with these options, in sentences that name
        every option that changes the result. None: a list of the options.
    options : type of MethodOptions
        What reads the definition's ``config``: a model, or :func:`options.variants` of several.
    state : type of Model
    phases : tuple of Phase
        With what a site does in each.
    start : (config, seed) -> (state, task)
    aggregate : (state, contributions, config) -> Next or Done
        Deterministic; contributions come sorted by site name.
    finish : (state, config) -> Result
        The best clustering so far: what a session that used up its rounds ends with. A method of
        one round needs none.
    label : (result, rows in own units (n, d), memory or None) -> (n,) int64, or None
        -1 where a row cannot be labelled. The memory is that of the site that labels.
        ``result.mapping`` holds at most that site's own, if the rows are all rows of the session at
        that site, in order; for other rows it is empty. None: a row belongs to the most probable
        cluster if the method has ``probabilities``, and otherwise to the cluster of the nearest
        centroid, or of the nearest prototype if the result has any.
    probabilities : (result, rows (n, d), memory or None) -> (n, K) float64, or None
        How probable each cluster is, of complete rows in the scaled space, from the result's
        ``centroids``, ``soft`` and space. A method that has it has soft clusters: the closing
        evaluation assigns each point to the most probable cluster, so it has no ``label``. The
        centroids of its raw result are distinct and sorted
        (``numeric.canonical.tolerant_lexsort``), since ``soft`` keeps its order. Raises
        :class:`RuleViolation` for a ``soft`` that it cannot have written.
    check_config : (config) -> None
        Raises :class:`RuleViolation` for options that do not fit features or policy.
    check_roster : (config) -> None
        Raises :class:`RuleViolation` where the sites of the roster, with the features that they
        have, cannot serve the method; says what to change. Called before ``start``.
    default_max_rounds : int
        The policy's ``max_rounds`` where the definition names none.
    by_prototypes : bool
        Whether its results tell clusters apart by prototypes.
    takes_masks : bool
        Whether sites may lack features (``missing: mask``).
    every_k : bool
        Whether one answer of a site serves several K. Then the functions get the options as they
        are, with several ``n_clusters``, and the raw result is that of
        ``finalize.result_of_several``. Otherwise the engine asks for each K by itself.
    dissimilarities : tuple of str
        The values of the policy's ``dissimilarity`` that it takes.
    """

    name: str
    version: int
    title: str
    citation: str
    options: type[OptionsT] | type[RootModel[OptionsT]]
    state: type[StateT]
    phases: tuple[Phase, ...]
    start: Callable[[RunConfig[OptionsT], int], tuple[StateT, Task]]
    aggregate: Callable[[StateT, Sequence[Contribution], RunConfig[OptionsT]], Next[StateT] | Done]
    finish: Callable[[StateT, RunConfig[OptionsT]], Result] = _find_nothing
    references: tuple[str, ...] = ()
    describe: Callable[[OptionsT], str] | None = None
    label: Label | None = None
    probabilities: Probabilities | None = None
    check_config: Callable[[RunConfig[OptionsT]], None] = _allow_config
    check_roster: Callable[[RunConfig[OptionsT]], None] = _allow_config
    default_max_rounds: int = 100
    by_prototypes: bool = False
    takes_masks: bool = False
    every_k: bool = False
    dissimilarities: tuple[str, ...] = ("euclidean",)

    @property
    def joins_late(self) -> bool:
        """Whether a site may join while the session runs: not where a phase needs all sites."""
        return not any(phase.needs_all for phase in self.phases)


#: A method of the registry: no type says which options and state belong together.
AnyMethod: TypeAlias = Method[Any, Any]
