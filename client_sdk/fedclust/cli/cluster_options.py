"""The option ``--clusters``, and what is shown of a comparison of several and of bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from fedclust import errors
from fedclust.algorithms.base import Bounds
from fedclust.cli.console import Table, err, out, show

#: As text; :func:`read_clusters` reads it.
Clusters = Annotated[
    str | None,
    typer.Option(
        "--clusters",
        help="Number of clusters K; 2-10 or 2,3,5 compares several.",
        show_default=False,
    ),
]
#: Which of a sweep's results is meant; by default the recommended one.
OneK = Annotated[
    int | None,
    typer.Option(
        "--k",
        help="Of a sweep: with so many clusters, not with those recommended.",
        min=1,
        show_default=False,
    ),
]
_MOST = 10_000
_MEASURES = ("inertia", "simplified_silhouette", "davies_bouldin", "stability")


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
        f"--clusters {text}: a number from 1 to {_MOST}, a range as 2-10, or a list as 2,3,5"
    )


def show_sweep(entries: Sequence[Mapping[str, Any]], recommendation: str) -> None:
    """Print every K of a sweep beside the others, and which is recommended."""
    grid = Table("K", *(name.replace("_", " ") for name in _MEASURES))
    for entry in entries:
        known = (entry[name] for name in _MEASURES)
        grid.row(entry["n_clusters"], *("" if x is None else f"{x:.6g}" for x in known))
    grid.show()
    show(out, recommendation)


def show_bounds(bounds: Bounds) -> None:
    """Print between what the least inertia lies, and whether that is proven."""
    for name, value in (("lower bound", bounds.lower), ("upper bound", bounds.upper)):
        show(out, f"{name:<16} {'unknown' if value is None else f'{value:.6g}'}")
    if bounds.gap is not None:
        proven = "certified" if bounds.certified else "not certified"
        show(out, f"{'gap':<16} {100 * bounds.gap:.3g} % ({proven})")
    if not bounds.certified:
        show(err, f"warning: {bounds.statement}")
