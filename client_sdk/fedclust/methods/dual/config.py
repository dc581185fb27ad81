"""What the analyst chooses in ``dual``."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.methods.common.options import Options, Restarts
from fedclust.methods.dual.feasible_set import CERTIFIED, Symmetry
from fedclust.methods.dual.multiplier_update import Rule
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Place
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import own_bounds

#: Of the quasi-Newton rule.
_MULTIPLIERS = 500


class Config(Options, title="DualConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    update : {"quadratic_bundle", "subgradient", "bundle_trust", "quasi_newton"}
        How the multipliers move; the last three are the paper's (sections IV-A to IV-C).
    symmetry : {"pairwise", "cells", "reference", "none"}
        What keeps the clusters' numbers apart. ``reference`` (equation 36) and ``cells`` may cut
        off the optimum: their lower bound is no certificate.
    node_solver : {"branch_and_bound", "scip"}
    node_limit : int
        Of each site's search, in nodes; where it ends there, the bound proven so far counts.
    gap : float
        Relative gap at which the session ends (the paper's 0.25 %).
    residual : float
        Of the paper's rules: length of the consensus constraints' violation at which it ends.
    step : float
        Of the paper's rules: alpha0, over the root of the iteration.
    splits : int
        How often the region of the centroids may be cut in two where the dual rule leaves a
        greater gap: with ``quadratic_bundle`` and a certified form. Each cut takes about two more
        dual rounds.
    iterations : int
        The most dual rounds.
    polish : bool or None
        Whether centroids are improved by Lloyd steps in further primal rounds. By default with
        ``quadratic_bundle``; the paper's rules only measure the averages.
    n_init : int
        Restarts of each site's local k-means, from which the references come.
    """

    n_clusters: Annotated[int, Field(ge=1, le=20)]
    update: Rule = "quadratic_bundle"
    symmetry: Symmetry = "pairwise"
    node_solver: Literal["branch_and_bound", "scip"] = "branch_and_bound"
    node_limit: Annotated[int, Field(ge=1, le=100_000_000)] = 200_000
    gap: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0025
    residual: Annotated[FiniteFloat, Field(ge=0)] | None = None
    step: Annotated[FiniteFloat, Field(gt=0)] | None = None
    splits: Annotated[int, Field(ge=0, le=1_000)] = 0
    iterations: Annotated[int, Field(ge=1, le=5_000)] = 150
    polish: bool | None = None
    n_init: Restarts = 50

    @property
    def polished(self) -> bool:
        """Whether primal rounds go on until Lloyd has converged."""
        return self.update == "quadratic_bundle" if self.polish is None else self.polish


def check_config(config: RunConfig[Config]) -> None:
    """Refuse features without bounds, and options of the paper's rules where they do nothing."""
    options = config.options
    lower, upper = own_bounds(config.columns)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    if not bounded.all():
        features = [c.feature for c, told in zip(config.columns, bounded, strict=True) if not told]
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
            "splits needs update quadratic_bundle, whose assignments hold in every part of the "
            "region; leave it out",
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
    """Refuse more multipliers than the quasi-Newton rule's dense curvature is good for."""
    options = config.options
    size = (len(config.roster) - 1) * options.n_clusters * len(config.columns)
    if options.update == "quasi_newton" and size > _MULTIPLIERS:
        raise RuleViolation(
            "update",
            f"quasi_newton keeps a square matrix of {size} multipliers ((sites - 1) x clusters x "
            f"columns), {_MULTIPLIERS} at most: use quadratic_bundle or bundle_trust",
        )


def lacks(options: Config, place: Place) -> str | None:
    """Return what has to be installed first; see ``Method.lacks``."""
    if place == "coordinator":
        needed = [] if options.update == "subgradient" else ["clarabel"]
    else:
        needed = ["pyscipopt" if options.node_solver == "scip" else "numba", "clarabel"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    who = "this site" if place == "site" else "the coordinator"
    return (
        f"dual with these options needs {' and '.join(missing)} at {who}: "
        'pip install "fedclust[dual]"'
    )
