"""What a paper's methods section says of a session of mixture."""

from __future__ import annotations

from fedclust.methods.common.description import local_starts
from fedclust.methods.mixture.config import Config


def describe(options: Config) -> str:
    """Return the sentences; see ``Method.describe``."""
    if options.centroids is not None:
        rows = (", ".join(f"{value:g}" for value in row) for row in options.centroids.tolist())
        start = (
            "The first classes were the points nearest to each of the centroids given in the "
            f"session's definition: ({'); ('.join(rows)}), in the order and units of the variables."
        )
    else:
        start = (
            "For the first classes, each site divided its own points into at most K cells by "
            f"weighted k-means from {local_starts(options.n_init)}, the coordinator clustered the "
            "cells' means, weighted by their persons, and the sites assigned their points to the "
            "nearest of these centroids."
        )
    proportions = (
        "Each site had its own proportions of the classes."
        if options.proportions == "by_site"
        else "The proportions of the classes were common to all sites."
    )
    return (
        "Within a class, all variables were independent: numbers normal with the class's mean and "
        "variance, yes/no variables Bernoulli, and categorical variables with a probability of "
        f"each level. {proportions} {start} In each round of the expectation-maximisation "
        "algorithm, the sites weighed persons by the probabilities of the classes and sent "
        "weighted sums, from which the coordinator computed the new classes. Where sites have "
        "groups, these persons were artificial: five for each person, normal around the group's "
        "record with the variance between neighbouring records, and in each class 50 further "
        "persons counted with the overall share of each answer. "
        f"{options.reg_covar:g} was added to every variance of the scaled variables. "
        "The rounds ended when the log-likelihood improved by at most "
        f"{options.tol:g}, relative, in two successive rounds. Each person was assigned to the "
        "most probable class."
    )
