"""How a session measures how far a person is from a cluster, in sentences for readers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.schema.encoding import columns_of
from fedclust.schema.feature import Declaration, Feature, clustered
from fedclust.schema.run_config import Policy
from fedclust.schema.scaling import gamma_of

_UNITS = {
    "none": "in their own units",
    "standard": "in standard deviations",
    "bounds": "as shares of the range of their bounds",
}


def dissimilarity_text(
    policy: Policy,
    declared: Sequence[Declaration],
    scale: NDArray[np.float64] | None = None,
) -> str:
    """Return the name of the dissimilarity, and what it makes of each kind of feature.

    Parameters
    ----------
    policy : Policy
    declared : sequence of Feature or Outcome
        Outcomes are left out.
    scale : (d,) float64, optional
        Of the result: it holds the gamma that a definition leaves open.
    """
    features = clustered(declared)
    kinds: set[str] = {feature.kind for feature in features}
    if policy.dissimilarity == "euclidean":
        lines = _euclidean(policy, kinds)
    else:
        gower = policy.dissimilarity == "gower"
        lines = ["Dissimilarity: k-prototypes (Huang 1998)."]
        number = f"squared difference from the cluster's mean, {_UNITS[policy.scaling]}"
        if gower:
            lines = ["Dissimilarity: Gower's (1971), the mean over the features."]
            number = "absolute difference from the cluster's median, divided by the range of their "
            number += "bounds"
        if "numeric" in kinds:
            lines.append(f"Numbers count with their {number}.")
        if kinds != {"numeric"}:
            counts = "1" if gower else _gamma(policy, features, scale)
            lines.append(
                "Each yes/no or categorical feature in which a person differs from the cluster's "
                f"commonest value counts as {counts}."
            )
    if any(feature.weight != 1.0 for feature in features):
        lines.append("The part of each feature is multiplied by its weight.")
    return " ".join(lines)


def _euclidean(policy: Policy, kinds: set[str]) -> list[str]:
    numbers = f", numbers {_UNITS[policy.scaling]}" if "numeric" in kinds else ""
    lines = [f"Dissimilarity: squared Euclidean distance{numbers}."]
    standard = policy.scaling == "standard"
    if "binary" in kinds:
        scaled = ", in standard deviations" if standard else ""
        lines.append(f"A yes/no feature counts as a number, 0 or 1{scaled}.")
    if "categorical" in kinds:
        together = (
            "together its levels have a variance of 1" if standard else "two levels are 1 apart"
        )
        lines.append(
            f"A categorical feature counts as a number, 0 or 1, for each level; {together}."
        )
    if kinds != {"numeric"}:
        lines.append("The centre of a cluster holds shares.")
    return lines


def _gamma(policy: Policy, features: Sequence[Feature], scale: NDArray[np.float64] | None) -> str:
    if policy.gamma is not None:
        return f"gamma = {policy.gamma:.4g}"
    if not any(feature.kind == "numeric" for feature in features):
        return "1"
    rule = "half the mean standard deviation of the numbers"
    found = None if scale is None else gamma_of(columns_of(tuple(features)), scale)
    if found is None:
        return f"gamma, which is {rule}"
    return f"gamma = {found:.4g} ({rule})"
