"""Totals: what a site says once of all its rows together, and who is asked for it.

The server needs them to judge rounds (a site's rest is its totals minus its cells), and both ends
to see that what a site leaves out numbers 0 or at least p.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Disclosure, Model, RuleViolation, RunConfig, Totals
from fedclust.algorithms.spaces import scaled_bounds
from fedclust.privacy.bands import check_band, check_not_above
from fedclust.privacy.checks import check_complement, check_counts, check_moments, check_shape

DISCLOSURE = Disclosure(
    field="totals",
    shape="n, mean (d), m2 (d)",
    meaning=(
        "Sent once: the number of your rows, and each feature's mean and sum of squared "
        "deviations over all of them, scaled. Not asked of a site that took part in the "
        "preparation round."
    ),
    identifies=(
        "Describes all your rows together, never fewer than the smallest count of persons. Tells "
        "the coordinator how many rows you have."
    ),
)


class SitePart(Model):
    """A site's own part of a task.

    Attributes
    ----------
    totals : bool
        Whether the site is asked for its totals.
    rows : int or None
        The number of rows that it told before; None while it is unknown.
    """

    totals: bool = False
    rows: int | None = None


def site_parts(config: RunConfig, *, ask: bool = True) -> dict[str, SitePart]:
    """Return every addressed site's part; with ``ask``, those unknown are asked for totals."""
    parts = {}
    for site in config.roster:
        known = config.totals.get(site)
        parts[site] = SitePart(
            totals=ask and known is None, rows=None if known is None else known.n
        )
    return parts


def check_totals(totals: Totals | None, part: SitePart | None, config: RunConfig) -> None:
    """Check totals against what was asked and declared; RuleViolation.

    Only their presence is checked where none were sent.
    """
    asked = part is not None and part.totals
    if (totals is not None) != asked:
        wanted = "are asked for" if asked else "are not asked for"
        raise RuleViolation("totals", f"totals {wanted} in this task", "/totals")
    if totals is None:
        return
    d = len(config.columns)
    check_shape(totals.mean, (d,), "/totals/mean")
    check_shape(totals.m2, (d,), "/totals/m2")
    lower, upper = scaled_bounds(config)
    check_moments(
        np.where(config.mask, totals.n, 0),
        totals.mean,
        totals.m2,
        n=totals.n,
        p=config.p,
        lower=lower,
        upper=upper,
        pointer="/totals",
    )
    if config.size_band is not None:
        check_band(totals.n, config.size_band, "/totals/n")


def check_sizes(
    counts: NDArray[np.int64],
    totals: Totals | None,
    part: SitePart | None,
    config: RunConfig,
    pointer: str = "/counts",
) -> None:
    """Check the counts (K,) of a partition: each, all against the band, and what they leave out."""
    check_counts(counts, config.p, pointer)
    if config.size_band is not None:
        check_not_above(sum(int(count) for count in counts), config.size_band, pointer)
    rows = totals.n if totals is not None else None
    if rows is None and part is not None:
        rows = part.rows
    if rows is not None:
        check_complement(rows, counts, config.p, pointer)
