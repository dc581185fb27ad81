"""The options that say how many clusters."""

from __future__ import annotations

import re
from typing import Annotated

from fedclust import errors
from fedclust.cli import options as o

#: As text; :func:`read_clusters` reads it.
Clusters = Annotated[
    str | None, o.opt("--clusters", "Number of clusters K; 2-10 or 2,3,5 compares several.")
]
#: Which of a sweep's results is meant; by default the one that the result shows.
OneK = Annotated[
    int | None,
    o.opt("--k", "For a sweep: use this K instead of the one that is shown first.", min=1),
]
_MOST = 10_000


def read_clusters(text: str) -> int | list[int]:
    """Return K, or every K of a range or list; UsageError for anything else."""
    ks: list[int] = []
    ranged = re.fullmatch(r"([0-9]{1,5}) *- *([0-9]{1,5})", text.strip())
    if ranged:
        low, high = int(ranged[1]), int(ranged[2])
        ks = list(range(low, high + 1)) if high <= _MOST else []
    elif re.fullmatch(r"[0-9]{1,5}( *, *[0-9]{1,5})*", text.strip()):
        ks = [int(k) for k in text.split(",")]
    if not ks or not all(1 <= k <= _MOST for k in ks):
        raise errors.UsageError(
            f"--clusters {text}: give a number from 2 to {_MOST}, a range such as 2-10, or a list "
            "such as 2,3,5"
        )
    refuse_one_cluster(ks, f"--clusters {text}")
    return ks if ranged or len(ks) > 1 else ks[0]


def refuse_one_cluster(n_clusters: object, where: str) -> None:
    """Raise UsageError if K, or one of several, is 1."""
    ks = n_clusters if isinstance(n_clusters, list | tuple) else [n_clusters]
    if any(k == 1 and isinstance(k, int) and not isinstance(k, bool) for k in ks):
        raise errors.UsageError(
            f"{where}: one cluster holds all persons, so there is nothing to find: give at least 2"
        )
