"""Options of ``dual``, and checks of definitions with them."""

from typing import Annotated

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.methods.common.options import EvaluatedOptions, Restarts
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import own_bounds
from fedclust_dual.feasible_set import CERTIFIED, Symmetry
from fedclust_dual.multiplier_update import Rule

#: Limit of multipliers for the quasi-Newton rule, which stores a square matrix of them.
_MAX_QUASI_NEWTON = 500


class Config(EvaluatedOptions, title="DualConfig"):
    """Options of ``dual``."""

    n_clusters: Annotated[int, Field(ge=1, le=20)]
    """Number of clusters K."""
    update: Rule = "quadratic_bundle"
    """Rule that updates the multipliers. `subgradient`, `bundle_trust` and `quasi_newton` are the
    paper's (sections IV-A to IV-C).
    """
    symmetry: Symmetry = "pairwise"
    """Constraint that fixes the numbering of the clusters. `reference` (equation 36) and `cells`
    may cut off the optimum: their lower bound is not a certificate.
    """
    node_limit: Annotated[int, Field(ge=1, le=100_000_000)] = 200_000
    """Limit of nodes in each site's search. At the limit, the bound proven so far counts."""
    gap: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0025
    """Relative gap at which the session ends (0.25 % in the paper)."""
    residual: Annotated[FiniteFloat, Field(ge=0)] | None = None
    """Only for the paper's rules: norm of the consensus violation (the distance of the sites'
    centroids) at which the session ends. None: 0.01.
    """
    step: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Only for the paper's rules: the first step length alpha_0, or squared radius of the trust
    region. It is divided by the root of the iteration. None: 0.5.
    """
    splits: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Limit of cuts of the centroids' domain to close a larger gap of the dual bound. Only with
    `quadratic_bundle` and a certified symmetry form. Each cut takes about two dual rounds.
    """
    iterations: Annotated[int, Field(ge=1, le=5_000)] = 150
    """Limit of dual rounds, including those of parts of a split domain."""
    polish: bool | None = None
    """Whether further primal rounds improve centroids by Lloyd steps. None: only with
    `quadratic_bundle`; the paper's rules only measure the averages.
    """
    n_init: Restarts = 50
    """Restarts of each site's local k-means, which gives the references."""

    @property
    def polished(self) -> bool:
        """Whether primal rounds continue until Lloyd's algorithm has converged."""
        return self.update == "quadratic_bundle" if self.polish is None else self.polish


def check_config(config: RunConfig[Config]) -> None:
    """Refuse features without bounds, and options that have no effect with the others."""
    options = config.options
    lower, upper = own_bounds(config.columns)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    if not bounded.all():
        features = [
            c.feature for c, known in zip(config.columns, bounded, strict=True) if not known
        ]
        raise RuleViolation(
            "bounds",
            "dual needs both bounds of every feature: declare lower and upper of "
            f"{', '.join(dict.fromkeys(features))}, wide enough for any patient, never the data's "
            "own extremes",
        )
    if options.update == "quadratic_bundle":
        for name, value in (("residual", options.residual), ("step", options.step)):
            if value is not None:
                raise RuleViolation(
                    "update", f"{name} belongs to the paper's rules; leave it out", f"/{name}"
                )
    elif options.splits:
        raise RuleViolation(
            "update",
            "splits needs update quadratic_bundle, whose known assignments hold in every box; "
            "leave it out",
            "/splits",
        )
    if options.splits and options.symmetry not in CERTIFIED:
        raise RuleViolation(
            "symmetry",
            f"splits closes the gap of a proven bound, and {options.symmetry} proves none: use "
            "pairwise or none",
            "/splits",
        )


def check_roster(config: RunConfig[Config]) -> None:
    """Refuse more multipliers than the quasi-Newton rule can store a square matrix of."""
    options = config.options
    size = (len(config.roster) - 1) * options.n_clusters * len(config.columns)
    if options.update == "quasi_newton" and size > _MAX_QUASI_NEWTON:
        raise RuleViolation(
            "update",
            f"quasi_newton stores a square matrix of {size} multipliers ((sites - 1) x clusters x "
            f"columns), at most {_MAX_QUASI_NEWTON}: use quadratic_bundle or bundle_trust",
        )
