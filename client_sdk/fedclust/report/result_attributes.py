"""The attributes that results of sites and of simulations share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedclust.report import (
    Comparison,
    Facts,
    Plots,
    bibtex,
    compare,
    methods_text,
)
from fedclust.report.overview import TableName, frame, html_overview, text_overview
from fedclust.report.tables import write_report
from fedclust.schema.evidence import CloudComparison, Stability
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import HistoryEntry, Quality, Result, SweepEntry
from fedclust.schema.transfer import Transfer

if TYPE_CHECKING:
    from pandas import DataFrame


class ResultAttributes:
    """What results of sites and of simulations have in common, under scikit-learn's names."""

    result_: Result

    def _facts(self) -> Facts:
        raise NotImplementedError

    def __repr__(self) -> str:
        return text_overview(type(self).__name__, self._facts())

    def _repr_html_(self) -> str:
        return html_overview(type(self).__name__, self._facts())

    @property
    def cluster_centers_(self) -> NDArray[np.float64]:
        """Centroids (K, d) in the data's own units.

        Of a level the share of records that have it; with ``dissimilarity: k-prototypes`` or
        ``gower`` 1 for the commonest level and 0 for the others.
        """
        return self.result_.centroids_original

    @property
    def columns_(self) -> tuple[str, ...]:
        """What the columns of the centroids are: a feature, or ``feature=level``."""
        return self.result_.columns

    @property
    def quality_(self) -> Quality | None:
        """Inertia and indices over the sites' points; None without evaluation."""
        return self.result_.quality

    @property
    def inertia_(self) -> float | None:
        """Sum of the dissimilarities in the scaled space; None without evaluation."""
        return None if self.result_.quality is None else self.result_.quality.inertia

    @property
    def dissimilarity_(self) -> str:
        """How the session measured how far a person is from a cluster, in sentences."""
        return self._facts().dissimilarity

    @property
    def n_rounds_(self) -> int:
        """Rounds of the method, without preparation and evaluation."""
        return self.result_.n_rounds

    @property
    def history_(self) -> tuple[HistoryEntry, ...]:
        """Every round that closed."""
        return self.result_.history

    @property
    def sizes_(self) -> tuple[int, ...] | None:
        """Persons in each cluster over all sites; None without evaluation."""
        return self.result_.sizes

    @property
    def warnings_(self) -> tuple[str, ...]:
        """What the analyst should know."""
        return self.result_.warnings

    @property
    def stopped_because_(self) -> str:
        """Why the rounds ended, such as ``converged``, ``finished`` or ``max_rounds``."""
        return self.result_.stopped_because

    @property
    def sweep_(self) -> tuple[SweepEntry, ...] | None:
        """Every K of a sweep; None where there was one."""
        return self.result_.sweep

    @property
    def one_cloud_(self) -> CloudComparison | None:
        """How clear the clusters are, compared with one cloud; None if nobody asked."""
        return self.result_.one_cloud

    @property
    def stability_(self) -> Stability | None:
        """How far models of resampled data agree with the clusters; None if not measured."""
        return self.result_.stability

    @property
    def transfer_(self) -> Transfer | None:
        """Whether each site would have found the clusters alone; None if not measured.

        ``to_frame("transfer")`` is the same as a table.
        """
        return self.result_.transfer

    @property
    def outcomes_(self) -> Outcomes | None:
        """Outcomes by cluster: counts with noise, estimates, sigma and the points spent.

        None in a session without outcomes, and at another K than they were counted at.
        """
        return self.result_.outcomes

    @property
    def plot(self) -> Plots:
        """The result's figures: ``plot.profile()``, ``sizes()``, ``centroids()`` and others.

        Each returns a :class:`fedclust.report.Figure`: a notebook shows it, ``save`` writes it as
        SVG, or with the extra ``[plot]`` as PNG.
        """
        return Plots(self._facts())

    def to_frame(self, table: TableName = "clusters") -> DataFrame:
        """Return a table of the result as a pandas DataFrame (the extra ``[data]``).

        Parameters
        ----------
        table : {"clusters", "sites", "transfer", "outcomes", "outcome_counts", "k", "history"}
            ``clusters``: a row for each cluster, with its size in persons and its centroid in the
            data's own units, NaN where unknown. ``sites``: persons in each cluster by site, as far
            as the reader may see them. ``transfer``: a row for each of these sites, with what the
            option ``transfer`` says of it. ``outcomes``: a row for each estimate of an outcome with
            its 95 % interval, the standard deviation of the noise (sigma) and the points spent.
            ``outcome_counts``: the counts with noise that each of these sites sent. ``k``: a row
            for each number of clusters of a sweep, with the measures that are compared.
            ``history``: a row for each round.

        Returns
        -------
        DataFrame

        Raises
        ------
        UsageError
            pandas is not installed, or the result has no such table.
        """
        found: DataFrame = frame(self._facts(), table)
        return found

    def compare(self, other: ResultAttributes) -> Comparison:
        """Match the clusters of this result with those of another, and measure the agreement.

        The other may be of another K, session, method or set of sites. Only features with the same
        name, kind, unit, transform and levels count. A notebook shows the comparison.

        Parameters
        ----------
        other : SiteResult, SessionResult or SimulationResult

        Returns
        -------
        Comparison

        Raises
        ------
        UsageError
            The two share no feature that varies.
        """
        return compare(self._facts(), other._facts())

    def methods_text(self) -> str:
        """Return the methods section of a paper about this result, with every choice and figure.

        Citations such as ``[@lloyd1982]`` are in Pandoc's form; :meth:`bibtex` has their entries.
        What the result does not hold is left out.
        """
        return methods_text(self._facts())

    def bibtex(self) -> str:
        """Return the BibTeX entries of the method, the measures and the software that were used."""
        return bibtex(self._facts())

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write a report of the result: profiles, sizes, quality, provenance.

        The report says no more than the result does, and contains no labels.

        Parameters
        ----------
        path : path
            Its ending says in which form: ``.html`` (one page, self-contained), ``.json`` or
            ``.csv``.

        Raises
        ------
        UsageError
            The file cannot be written, or has another ending.
        """
        write_report(self._facts(), Path(path))
