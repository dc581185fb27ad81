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
#: Which of a sweep's results is meant; by default the recommended one.
OneK = Annotated[
    int | None,
    o.opt("--k", "For a sweep: use this K instead of the recommended one.", min=1),
]
_MOST = 10_000


def read_clusters(text: str) -> int | list[int]:
    """Return K, or every K of a range or list; UsageError for anything else."""
    ranged = re.fullmatch(r"([0-9]{1,5}) *- *([0-9]{1,5})", text.strip())
    if ranged:
        low, high = int(ranged[1]), int(ranged[2])
        if 1 <= low <= high <= _MOST:
            return list(range(low, high + 1))
    elif re.fullmatch(r"[0-9]{1,5}( *, *[0-9]{1,5})*", text.strip()):
        ks = [int(k) for k in text.split(",")]
        if all(1 <= k <= _MOST for k in ks):
            return ks[0] if len(ks) == 1 else ks
    raise errors.UsageError(
        f"--clusters {text}: give a number from 1 to {_MOST}, a range such as 2-10, or a list such "
        "as 2,3,5"
    )
