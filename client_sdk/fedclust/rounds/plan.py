"""A session's definition as the engine needs it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedclust.numeric.array_types import BoolArray
from fedclust.schema.encoding import Column, Space, columns_of
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.method import AnyMethod
from fedclust.schema.run_config import MethodOptions, Policy, RunConfig

#: Of the rounds that all methods share: preparation, evidence, resampling, outcomes, and what joins
#: several K. Raised when their tasks, payloads, state or arithmetic change.
VERSION = 10
#: The most numbers in a task, of all models: 32 MB, as much as a message may have.
MAX_NUMBERS = 4_000_000
#: With these, a value missing of a feature that a site has is imputed with the federated mean.
IMPUTES = ("impute", "mask")


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

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """What the features become."""
        return columns_of(self.features)

    @functools.cached_property
    def sends_cells(self) -> bool:
        """Whether sites describe their records by cells in the closing round."""
        compared = self.options.compared_with_cloud
        return compared and not_judged(self.method, self.policy) is None

    @property
    def is_prepared(self) -> bool:
        """Whether a session begins with a preparation round, which finds its scaled space."""
        policy = self.policy
        unknown_gamma = policy.dissimilarity == "k-prototypes" and policy.gamma is None
        return policy.scaling == "standard" or policy.missing in IMPUTES or unknown_gamma

    @property
    def max_rounds(self) -> int:
        """How many rounds the method itself may take."""
        limit = self.policy.max_rounds or self.method.default_max_rounds
        fixed = self.options.round_limit
        return limit if fixed is None else min(limit, fixed)

    def has_features(self, names: Sequence[str]) -> BoolArray:
        """Return which columns (d,) a site has that names these features of the session."""
        held = set(names)
        return np.array([column.feature in held for column in self.columns], dtype=np.bool_)

    def lacks_outcomes(self, names: Sequence[str]) -> bool:
        """Whether there are outcomes, and a site that names these features has none of them."""
        return bool(self.outcomes) and not any(each.name in names for each in self.outcomes)

    def config(
        self, p: int, space: Space | None, mask: BoolArray | None = None, **known: Any
    ) -> RunConfig:
        """Return what a step may know, with ``p`` or the session's own if that is larger.

        ``mask`` (d,) is by default all columns.
        """
        every = np.ones(len(self.columns), dtype=np.bool_)
        return RunConfig(
            options=self.options,
            features=self.features,
            policy=self.policy,
            outcomes=self.outcomes,
            outcomes_k=self.outcomes_k,
            prototypes=self.method.by_prototypes,
            sends_cells=self.sends_cells,
            p=1 if self.policy.protection == "none" else max(p, self.policy.min_group_size),
            space=space or Space.identity(len(every)),
            mask=every if mask is None else mask,
            **{"roster": (), **known},
        )


def not_judged(method: AnyMethod, policy: Policy) -> str | None:
    """Return why clusters of such a session are not compared with one cloud; None: they are."""
    if method.probabilities is not None:
        return "the classes of a mixture are compared by their BIC"
    if method.by_prototypes:
        return f"{method.name} tells its clusters apart by prototypes, not by centroids"
    if policy.dissimilarity == "gower":
        return "the comparison takes dissimilarity: euclidean or k-prototypes"
    if policy.missing == "mask":
        return "the comparison needs every column at every site: drop or impute missing values"
    return None


def assigns_by_centroids(method: AnyMethod) -> bool:
    """Whether rows go with the nearest centroid, as in models of resampled data."""
    return not method.by_prototypes and method.probabilities is None


def check_evidence(method: AnyMethod, config: RunConfig) -> None:
    """Raise RuleViolation where evidence cannot be gathered for these options; says what to change.

    Its pointer is below the method's options.
    """
    options = config.options
    if config.outcomes and not options.evaluated:
        message = "outcomes are counted after the closing evaluation"
        # Variants that never evaluate have no such option.
        message += (
            ": leave evaluate on"
            if "evaluate" in type(options).model_fields
            else f", which {method.name} lacks with these options: take its default ones"
        )
        raise RuleViolation("evidence", message)
    one_k = not isinstance(options.n_clusters, tuple)
    if not one_k and not options.evaluated:
        message = "a sweep is judged by its closing evaluation: leave it on"
        raise RuleViolation("sweep", message, "/evaluate")
    asked = {
        "stability": options.resampled_models > 0,
        "evidence": options.compared_with_cloud and one_k,
    }
    names = [name for name, wanted in asked.items() if wanted]
    if names:
        pointer = f"/{names[0]}"
        if not options.evaluated:
            message = "it rests on the closing evaluation: leave evaluate on"
            raise RuleViolation("evidence", message, pointer)
        reason = not_judged(method, config.policy)
        if reason is not None:
            raise RuleViolation("evidence", f"{reason}: leave {names[0]} out", pointer)
    _check_model_count(config)


def _check_model_count(config: RunConfig) -> None:
    """Raise RuleViolation where the resampled models would not fit into one message."""
    ks, n_models = config.options.ks, config.options.resampled_models
    if not ks or not n_models:
        return
    # The answer has a table of K x K for each model.
    per_model, per_table = sum(ks) * len(config.columns), sum(k**2 for k in ks)
    most = MAX_NUMBERS // max(per_model, per_table)
    if n_models > most:
        message = "so many models of these clusters and columns are too large: at most {}"
        raise RuleViolation("evidence", message.format(max(most, 0)), "/stability")
