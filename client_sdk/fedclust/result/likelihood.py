"""What a report says of how well the classes of a mixture fit."""

from __future__ import annotations

from typing import Any

from fedclust.result.facts import Facts
from fedclust.result.markup import html_table
from fedclust.schema.result import Likelihood

__all__ = ["bic_text", "html_likelihood", "likelihood_fields"]


def html_likelihood(facts: Facts) -> str:
    """Return the section's HTML; nothing for a method without soft clusters."""
    found = facts.result.likelihood
    if found is None:
        return ""
    return html_table(
        "How well the classes fit, and how certain it is which class a person belongs to. The "
        "log-likelihood is in the features' own units, after transforms. Of several numbers of "
        "classes the one with the lowest BIC is the best. Entropy: 0 where every person's class is "
        "certain. Relative entropy: 1 where it is, 0 where all classes are equally probable.",
        [
            "log-likelihood per person",
            "free parameters",
            "BIC",
            "entropy per person",
            "relative entropy",
            "persons",
        ],
        [
            [
                found.log_likelihood_per_person,
                found.n_parameters,
                bic_text(found),
                found.entropy_per_person,
                found.relative_entropy,
                found.n_rows,
            ]
        ],
    )


def bic_text(found: Likelihood | None) -> str:
    """Return the BIC with all its digits, as only differences count; a dash for none."""
    return "–" if found is None else f"{found.bic:.1f}"


def likelihood_fields(found: Likelihood | None) -> dict[str, Any] | None:
    """Return a likelihood with its figures per person, for JSON."""
    if found is None:
        return None
    return {
        **found.model_dump(mode="json"),
        "log_likelihood_per_person": found.log_likelihood_per_person,
        "entropy_per_person": found.entropy_per_person,
    }
