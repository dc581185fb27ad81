"""What a paper's methods section says of a session of dual."""

from __future__ import annotations

from fedclust.methods.common.description import counted, local_starts
from fedclust_dual.config import Config

_RULES = {
    "quadratic_bundle": "a quadratic bundle method",
    "subgradient": "the subgradient method",
    "bundle_trust": "the bundle trust method",
    "quasi_newton": "quasi-Newton dual ascent",
}
_SYMMETRY = {
    "pairwise": "pairwise constraints from reference centroids fixed the clusters' numbering",
    "cells": "the Voronoi cells of reference centroids fixed the clusters' numbering, so that the "
    "bound was not certified",
    "reference": "one reference fixed the numbering of the clusters, so that the bound was not "
    "certified",
    "none": "no constraint fixed the numbering of the clusters",
}


def describe(options: Config) -> str:
    """Return the sentences; see ``Method.describe``."""
    rule = _RULES[options.update]
    if options.update != "quadratic_bundle":
        step = 0.5 if options.step is None else options.step
        residual = 0.01 if options.residual is None else options.residual
        rule += f" (first step {step:g}; end at a residual of {residual:g})"
    splits = (
        f" The centroids' domain could be cut {counted(options.splits, 'time')} to close the gap."
        if options.splits
        else ""
    )
    measured = (
        "which Lloyd steps then improved"
        if options.polished
        else "which no further Lloyd steps improved"
    )
    return (
        "Each site solved its own clustering problem with branch and bound (at most "
        f"{options.node_limit:,} nodes); {rule} updated the multipliers of the consensus "
        "constraints in at most "
        f"{counted(options.iterations, 'dual round')}, and {_SYMMETRY[options.symmetry]}. The "
        f"reference centroids came from weighted k-means at the sites, from "
        f"{local_starts(options.n_init)}. The averaged centroids, {measured}, gave the upper "
        f"bound. The session ended at a relative gap of {options.gap:g}.{splits}"
    )
