"""A session's definition as the engine needs it, and the phases that it can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.engine import evidence, outcomes, preparation, resampling
from fedclust.schema.encoding import Column, columns_of
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.method import AnyMethod
from fedclust.schema.options import MethodOptions
from fedclust.schema.policy import Policy
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Phase

#: Of the rounds that all methods share: preparation, evidence, resampling, outcomes, and what joins
#: several K. Raised when their tasks, payloads, state or arithmetic change.
VERSION = 4
#: After the method's rounds; the same for every method.
CLOSING_PHASES = (evidence.PHASE, resampling.PHASE, outcomes.PHASE)

_EACH_K = ", for each K"


@dataclass(frozen=True)
class Plan:
    """A session's definition as the engine needs it.

    Attributes
    ----------
    method : AnyMethod
    options : MethodOptions
        What ``method.options`` has read.
    features : tuple of Feature
        Those that persons are clustered by, in the session's order. ``columns`` (d,) are what
        methods see of them.
    policy : Policy
    seed : int
    outcomes : tuple of Outcome
        What is counted by final cluster. Methods do not see it.
    outcomes_k : int, "recommended" or None
        The number of clusters that outcomes are counted at, of several.
    """

    method: AnyMethod
    options: MethodOptions
    features: tuple[Feature, ...]
    policy: Policy
    seed: int
    outcomes: tuple[Outcome, ...] = ()
    outcomes_k: int | Literal["recommended"] | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the features become."""
        return columns_of(self.features)


def max_rounds(plan: Plan) -> int:
    """Return how many rounds the method itself may take."""
    limit = plan.policy.max_rounds or plan.method.default_max_rounds
    fixed = plan.options.round_limit
    return limit if fixed is None else min(limit, fixed)


def most_rounds(plan: Plan) -> int:
    """Return how many rounds a session may take, with the preparation and the closing rounds."""
    return max_rounds(plan) + int(preparation.needed(plan.policy)) + len(closing_phases(plan))


def has_features(plan: Plan, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which columns (d,) a site has that names these features of the session."""
    held = set(names)
    return np.array([column.feature in held for column in plan.columns], dtype=np.bool_)


def check_evidence(method: AnyMethod, config: RunConfig) -> None:
    """Raise RuleViolation where stability or transfer cannot be measured; says what to change."""
    evidence.check_options(method, config)
    resampling.check_options(config)


def sends_cells(plan: Plan) -> bool:
    """Whether sites describe their records by cells in the closing round."""
    return evidence.sends_cells(plan.method, plan.options, plan.policy)


def is_exact(plan: Plan) -> bool:
    """Whether the points are single rows."""
    return plan.policy.protection == "none"


def phase(plan_or_method: Plan | AnyMethod, name: str) -> Phase:
    """Return the phase called ``name``, the engine's own included; KeyError where there is none."""
    method = plan_or_method.method if isinstance(plan_or_method, Plan) else plan_or_method
    for own in (preparation.PHASE, *_engine_closings(method)):
        if own.name == name:
            return own
    return method.phase(name)


def all_phases(method: AnyMethod) -> tuple[Phase, ...]:
    """Return every phase that a session of this method may have, in order."""
    return (preparation.PHASE, *method.phases, *_engine_closings(method))


def possible_phases(plan: Plan) -> tuple[Phase, ...]:
    """Return the phases that a session of this definition can have, in order."""
    found = [preparation.PHASE] if preparation.needed(plan.policy) else []
    names = plan.options.phases
    found += [each for each in plan.method.phases if names is None or each.name in names]
    return (*found, *closing_phases(plan))


def closing_phases(plan: Plan) -> tuple[Phase, ...]:
    """Return the phases after the method's rounds, in order."""
    if not plan.options.evaluated:
        return ()
    found: tuple[Phase, ...] = (_evidence_phase(plan),)
    if evidence.is_resampled(plan.options):
        found = (*found, _resampling_phase(plan))
    if plan.outcomes:
        found = (*found, outcomes.phase_of(plan.outcomes, exact=is_exact(plan)))
    return found


def _evidence_phase(plan: Plan) -> Phase:
    """Return the phase with what it asks in this session: without what nobody sends."""
    absent: list[str] = []
    if not plan.options.transferred:
        absent.append("parts.own")
    several = isinstance(plan.options.n_clusters, tuple)
    if not several:
        absent.append("parts.flow")
    if not sends_cells(plan):
        absent.append("cells")
    discloses = tuple(
        line if several else line.model_copy(update={"shape": line.shape.replace(_EACH_K, "")})
        for line in evidence.PHASE.discloses
        if not line.field.startswith(tuple(absent))
    )
    return replace(evidence.PHASE, discloses=discloses)


def _resampling_phase(plan: Plan) -> Phase:
    """Return the phase with what it asks in this session, and with its number of models."""
    n_models, transferred = plan.options.resampled_models, plan.options.transferred
    shapes = {"parts.models": f"K x K numbers for each of {n_models} models, for each K"}
    absent = set() if n_models else {"parts.models", "parts.pairs"}
    absent |= set() if transferred else {"parts.left_out"}
    discloses = tuple(
        line.model_copy(update={"shape": shapes.get(line.field, line.shape)})
        for line in resampling.PHASE.discloses
        if line.field not in absent
    )
    return replace(resampling.PHASE, discloses=discloses)


def _engine_closings(method: AnyMethod) -> tuple[Phase, ...]:
    compared = evidence.assigns_by_centroids(method)
    return tuple(each for each in CLOSING_PHASES if compared or each is not resampling.PHASE)
