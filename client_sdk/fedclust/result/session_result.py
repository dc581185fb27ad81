"""The result of a session, as analysts, sites and simulations have it.

What draws, compares and describes a result is imported when it is first used: no site needs it to
take part.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedclust import rounds
from fedclust.data import LabelRows, Source, Table
from fedclust.data.live_line import SlowWork
from fedclust.data.mapping import watch_reading
from fedclust.data.row_warnings import TypicalValues, typical_values
from fedclust.definition import DefinitionError, plan_of
from fedclust.durable_files import write_file
from fedclust.methods.common.assign import keep_columns, label_by_centroid
from fedclust.methods.registry import METHODS
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.threads import one_thread
from fedclust.result.facts import Facts
from fedclust.result.predictions import Predictions, place
from fedclust.result.result_file import ResultFile, Rule, rule_text
from fedclust.schema.display import short_repr
from fedclust.schema.feature import Feature, clustered
from fedclust.schema.model import Memory
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import (
    CloudComparison,
    HistoryEntry,
    Quality,
    Result,
    SiteDifferences,
    Stability,
    SweepEntry,
)
from fedclust.schema.task import SiteTask
from fedclust.wire.errors import ProtocolError, UsageError
from fedclust.wire.models import Definition, ResultDocument

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedclust.result.comparison import Comparison
    from fedclust.result.figures.plots import Plots
    from fedclust.result.overview import TableName
    from fedclust.result.table_one import TableOne

Rows: TypeAlias = Table | LabelRows


@dataclass(frozen=True, repr=False)
class TraceEntry:
    """One answer of one site: exactly what left the site.

    Attributes
    ----------
    round : int
    phase : str
    site : str
    task : SiteTask
        The task that it answers.
    payload : Model or None
        None: the site answered empty.
    size : int
        Bytes of the payload in binary form.
    """

    round: int
    phase: str
    site: str
    task: SiteTask
    payload: Any
    size: int

    def __repr__(self) -> str:
        return short_repr("TraceEntry", vars(self).items())


@dataclass(frozen=True, repr=False)
class KnownSite:
    """What a result knows of one site in this process, but its rows; no file contains it.

    Attributes
    ----------
    features : tuple of str
        Those of the session that the site has.
    memory : dict or None
        What the method remembers at the site.
    labels : dict of int or None to (n,) int32
        The labels of the site's rows by ``n_clusters`` of the clustering.
    ids : tuple of str or None
        The rows' identifiers, if an id column was named.
    """

    features: tuple[str, ...]
    memory: Memory | None
    labels: Mapping[int | None, NDArray[np.int32]] = field(default_factory=dict)
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True, repr=False)
class SessionResult(Facts):
    """A completed session's clustering. It labels new rows without a coordinator.

    :meth:`fedclust.Client.result`, :meth:`fedclust.Site.participate` and :func:`fedclust.simulate`
    return it. Names end in an underscore as scikit-learn's fitted attributes do.

    Attributes
    ----------
    result : Result
        Everything that the coordinator returned about the clusters.
    definition : Definition
    provenance : Provenance or None
        None for a simulation.
    completed_at : datetime or None
        None for a simulation.
    site : str
        The site that took part or saved the file; "" for all others.
    labels_ : (n,) int64, dict of site to (n,) int64, or None
        Cluster of each of the site's rows, -1 where missing values forbid a label. Of a simulation
        those of all sites. None for an analyst, and in a loaded result, because files contain no
        labels.
    ids_ : tuple of str or None
        The rows' identifiers, if a site named an id column.
    trace_ : tuple of TraceEntry
        Of a simulation: all answers, in the order of rounds and sites.

    Examples
    --------
    ``result`` is what :meth:`fedclust.Client.result` returned:

    >>> result.cluster_centers_.shape
    (2, 2)
    >>> result.save("heart-2026.fedclust")
    >>> loaded = SessionResult.load("heart-2026.fedclust")
    >>> bool((loaded.predict(rows) == result.predict(rows)).all())
    True
    """

    site: str = ""
    labels_: Any = None
    ids_: tuple[str, ...] | None = None
    trace_: tuple[TraceEntry, ...] = ()
    _sites: Mapping[str, KnownSite] = field(default_factory=dict)
    #: That of a file: with it a version that cannot run the method can label rows by distance.
    _rule: Rule | None = None

    def __repr__(self) -> str:
        from fedclust.result.overview import text_overview

        return text_overview(self)

    def _repr_html_(self) -> str:
        from fedclust.result.overview import html_overview

        return html_overview(self)

    # --- what it says -----------------------------------------------------------------------------

    @property
    def cluster_centers_(self) -> FloatArray:
        """Centroids (K, d) in the data's own units.

        Of a level the share of records that have it; with ``dissimilarity: k-prototypes`` or
        ``gower`` 1 for the commonest level and 0 for the others.
        """
        return self.result.centroids_original

    @property
    def columns_(self) -> tuple[str, ...]:
        """What the columns of the centroids are: a feature, or ``feature=level``."""
        return self.result.columns

    @property
    def quality_(self) -> Quality | None:
        """Inertia and indices over the sites' points; None without evaluation."""
        return self.result.quality

    @property
    def inertia_(self) -> float | None:
        """Sum of the dissimilarities in the scaled space; None without evaluation."""
        return None if self.result.quality is None else self.result.quality.inertia

    @property
    def n_rounds_(self) -> int:
        """Rounds of the method, without preparation and evaluation."""
        return self.result.n_rounds

    @property
    def history_(self) -> tuple[HistoryEntry, ...]:
        """Every round that closed."""
        return self.result.history

    @property
    def sizes_(self) -> tuple[int, ...] | None:
        """Persons in each cluster over all sites; None if they were not counted."""
        return self.result.sizes

    @property
    def own_sizes_(self) -> tuple[int, ...] | None:
        """Persons of this site in each cluster; None if not counted, and for all but sites."""
        return self.result.site_sizes.get(self.site)

    @property
    def warnings_(self) -> tuple[str, ...]:
        """What the analyst should know."""
        return self.result.warnings

    @property
    def stopped_because_(self) -> str:
        """Why the rounds ended, such as ``converged``, ``finished`` or ``max_rounds``."""
        return self.result.stopped_because

    @property
    def sweep_(self) -> tuple[SweepEntry, ...] | None:
        """Every K of a sweep; None where there was one."""
        return self.result.sweep

    @property
    def linkage_(self) -> FloatArray | None:
        """The top of the tree (T - 1, 4) as scipy's linkage, whose leaves stand for cells.

        The last column counts leaves; ``result.dendrogram.sizes`` has the persons of each. None
        for a method that builds no tree.
        """
        tree = self.result.dendrogram
        return None if tree is None else tree.linkage

    @property
    def one_cloud_(self) -> CloudComparison | None:
        """How clear the clusters are, compared with one cloud; None if nobody asked."""
        return self.result.one_cloud

    @property
    def stability_(self) -> Stability | None:
        """How far models of resampled data agree with the clusters; None if not measured."""
        return self.result.stability

    @property
    def site_differences_(self) -> SiteDifferences | None:
        """Columns that sites seem to code otherwise, and Cramér's V of site and cluster.

        None in a session with one K and neither ``evidence`` nor ``stability``.
        """
        return self.result.site_differences

    @property
    def outcomes_(self) -> Outcomes | None:
        """Outcomes by cluster: counts with noise, estimates, sigma and the points spent.

        None in a session without outcomes, and at another K than they were counted at.
        """
        return self.result.outcomes

    @property
    def plot(self) -> Plots:
        """The result's figures: ``plot.profile()``, ``sizes()``, ``centroids()`` and others.

        Each returns a :class:`fedclust.result.drawing.Figure`: a notebook shows it, ``save`` writes
        it as SVG, or with the extra ``[plot]`` as PNG.
        """
        from fedclust.result.figures.plots import Plots

        return Plots(self)

    def to_frame(self, table: TableName = "clusters") -> DataFrame:
        """Return a table of the result as a pandas DataFrame (the extra ``[data]``).

        Parameters
        ----------
        table : {"clusters", "sites", "outcomes", "outcome_counts", "k", "history"}
            ``clusters``: a row for each cluster, with its size in persons and its centroid in the
            data's own units, NaN where unknown. ``sites``: persons in each cluster by site, as far
            as the reader may see them. ``outcomes``: a row for each estimate of an outcome with its
            95 % interval, the standard deviation of the noise (sigma) and the points spent.
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
        from fedclust.result.overview import frame

        found: DataFrame = frame(self, table)
        return found

    def compare(self, other: SessionResult) -> Comparison:
        """Match the clusters of this result with those of another, and measure the agreement.

        The other may be of another K, session, method or set of sites. Only features with the same
        name, kind, unit, transform and levels count. A notebook shows the comparison.

        Parameters
        ----------
        other : SessionResult

        Returns
        -------
        Comparison

        Raises
        ------
        UsageError
            The two share no feature that varies.
        """
        from fedclust.result.comparison import compare

        return compare(self, other)

    def methods_text(self) -> str:
        """Return the methods section of a paper about this result, with every choice and figure.

        Citations such as ``[@lloyd1982]`` are in Pandoc's form; :meth:`bibtex` has their entries.
        What the result does not hold is left out.
        """
        from fedclust.result.methods_text import methods_text

        return methods_text(self)

    def bibtex(self) -> str:
        """Return the BibTeX entries of the method, the measures and the software that were used."""
        from fedclust.result.methods_text import bibtex

        return bibtex(self)

    def at(self, n_clusters: int) -> Self:
        """Return the clustering for one K of a sweep.

        Parameters
        ----------
        n_clusters : int

        Raises
        ------
        UsageError
            The sweep has no such K; the message names every K there is.
        """
        try:
            return self._showing(self.result.at(n_clusters))
        except ValueError as error:
            raise UsageError(str(error)) from None

    # --- labels -----------------------------------------------------------------------------------

    def with_rows(self, rows: Mapping[str, Rows], sites: Mapping[str, KnownSite]) -> Self:
        """Return the result with the labels of rows of the session at each K; it keeps no rows.

        Parameters
        ----------
        rows : dict of site to Table or LabelRows
        sites : dict of site to KnownSite

        Returns
        -------
        SessionResult
        """
        known = {name: self._label_session(name, each, sites[name]) for name, each in rows.items()}
        return replace(self, _sites=known)._showing(self.result)

    def _showing(self, result: Result) -> Self:
        """Return this with one of its clusterings and the labels of it."""
        labels: Any = {
            name: own.labels[result.n_clusters].astype(np.int64)
            for name, own in self._sites.items()
        }
        own = self._sites.get(self.site)
        return replace(
            self,
            result=result,
            labels_=labels.get(self.site) if self.site else labels or None,
            ids_=None if own is None else own.ids,
        )

    def _label_session(self, site: str, rows: Rows, own: KnownSite) -> KnownSite:
        # Without its memory a site knows no more of its own rows than of new ones.
        held = own.features
        if own.memory is None and isinstance(rows, Table):
            held = rows.columns
        mask = self._has(held)
        results = [*(each.result for each in self.result.sweep or ()), self.result]
        clusterings = {each.n_clusters: each for each in results}
        found: dict[int | None, list[IntArray]] = {k: [] for k in clusterings}
        ids: list[str] = []
        for X, names in rows.blocks():
            ids += names or ()
            for k, result in clusterings.items():
                found[k].append(rounds.label(self._plan, result, X, own.memory, site, mask))
        labels = {k: np.concatenate(parts).astype(np.int32) for k, parts in found.items()}
        return replace(own, labels=labels, ids=tuple(ids) or None)

    def predict(self, rows: Source, site: str | None = None) -> IntArray:
        """Label new rows; nothing is sent.

        Parameters
        ----------
        rows : Source
            As in :meth:`fedclust.Site.participate`, with the session's features, or with
            ``missing: mask`` some of them. An array has all columns. Missing values in the columns
            that are present are imputed.
        site : str, optional
            Of a simulation, the site that labels: for methods that need what a site remembers.
            With ``missing: mask`` only the features of that site count.

        Returns
        -------
        (n,) int64
            -1 where missing values forbid a label, and for every row if the method needs what only
            a site that took part remembers.

        Raises
        ------
        DataError
            The rows do not fit; the message names file, column, row and rule.
        """
        with SlowWork("labelling rows") as work:
            given = self.new_rows(watch_reading(rows, work.read))
            memory, name, mask = self._reader(given.features, site)
            blocks = given.blocks()
            return np.concatenate([self._label_new(X, memory, name, mask) for X, _ in blocks])

    def predict_details(
        self, rows: Source, id_column: str | None = None, site: str | None = None
    ) -> Predictions:
        """Label new rows, and say how clear each label is and which rows lie outside.

        A row lies outside what the model saw if it is far from the profile of its cluster; see
        :attr:`Predictions.outside <fedclust.result.predictions.Predictions>`. Nothing is sent.

        Parameters
        ----------
        rows : Source
            As in :meth:`predict`.
        id_column : str, optional
            Column that names the rows.
        site : str, optional
            As in :meth:`predict`.

        Returns
        -------
        Predictions

        Raises
        ------
        DataError
            The rows do not fit; the message names file, column, row and rule.
        """
        with SlowWork("labelling rows") as work:
            given = self.new_rows(watch_reading(rows, work.read), id_column)
            return self.place_rows(given, site)

    def probabilities(self, rows: Source, site: str | None = None) -> FloatArray:
        """Return how probable each cluster is of new rows; nothing is sent.

        Parameters
        ----------
        rows : Source
            As in :meth:`predict`.
        site : str, optional
            Of a simulation, the site whose own proportions of the classes count.

        Returns
        -------
        (n, K) float64
            NaN where missing values forbid a label.

        Raises
        ------
        UsageError
            The method has no soft clusters.
        DataError
            The rows do not fit; the message names file, column, row and rule.
        """
        self.require_soft()
        return np.asarray(self.predict_details(rows, site=site).probabilities)

    def require_soft(self) -> None:
        """Raise UsageError for a method without soft clusters, which has no probabilities."""
        if self.result.soft is None:
            raise UsageError(
                f"{self.definition.algorithm} assigns each row to one cluster: only a method with "
                "soft clusters has probabilities, such as mixture"
            )

    def new_rows(self, rows: Source, id_column: str | None = None) -> LabelRows:
        """Return rows to label, which are read only then.

        Parameters
        ----------
        rows : Source
            As in :meth:`predict`.
        id_column : str, optional
            Column that names rows.

        Returns
        -------
        LabelRows
        """
        lacking = self.definition.policy.missing == "mask"
        return LabelRows(
            rows, self.features, id_column, lacking, new=True, typical=self.typical_values
        )

    def place_rows(self, rows: LabelRows, site: str | None = None) -> Predictions:
        """Do what :meth:`predict_details` does.

        Parameters
        ----------
        rows : LabelRows
            What :meth:`new_rows` returned.
        site : str, optional
            As in :meth:`predict`.

        Returns
        -------
        Predictions
        """
        held, parts, ids = rows.features, [], []
        for X, names in rows.blocks():
            ids += names or []
            parts.append(self.place(X, held, site))
        return Predictions.of(parts, tuple(ids) if rows.id_column is not None else None)

    def place(self, X: FloatArray, held: Sequence[str], site: str | None = None) -> Predictions:
        """Do what :meth:`predict_details` does with encoded rows.

        Parameters
        ----------
        X : (n, d) float64
            In the columns of the centroids; NaN where missing.
        held : sequence of str
            The features that the rows have.
        site : str, optional
            As in :meth:`predict`.

        Returns
        -------
        Predictions
        """
        memory, name, mask = self._reader(held, site)
        labels, by_distance = self._label_new(X, memory, name, mask), self.rule != "method"
        soft = None if by_distance else rounds.probabilities(self._plan, self.result, X, memory)
        return place(self.result, self.columns, X, labels, mask, soft, by_distance=by_distance)

    def _label_new(
        self, X: FloatArray, memory: Memory | None, site: str | None, mask: BoolArray
    ) -> IntArray:
        if self.rule != "method":
            with one_thread():
                return label_by_centroid(self.result, keep_columns(self.result, X, mask))
        return rounds.label(self._plan, self.result, X, memory, site, mask, new=True)

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """The features that clusters are made of."""
        return clustered(self.definition.features)

    @property
    def typical_values(self) -> TypicalValues:
        """Of each number the mean of all persons and their standard deviation, transformed."""
        return typical_values(self.features, self.result.profile)

    @cached_property
    def rule(self) -> Rule:
        """What a new patient's cluster follows from: distances, or more (``method``)."""
        if self._rule is not None:
            return self._rule
        method = METHODS.get(self.definition.algorithm)
        if method is None or method.probabilities is not None:
            return "method"
        if self.result.prototypes is not None:
            return "nearest-prototype"
        # Without prototypes only a site's memory has what such a method labels by.
        return "method" if method.by_prototypes else "nearest-centroid"

    @cached_property
    def _plan(self) -> rounds.Plan:
        return plan_of(self.definition)

    def _has(self, features: Sequence[str]) -> BoolArray:
        """Return which columns (d,) belong to these features."""
        return np.array([column.feature in features for column in self.columns], dtype=np.bool_)

    def _reader(
        self, held: Sequence[str], site: str | None
    ) -> tuple[Memory | None, str | None, BoolArray]:
        """Return what new rows are labelled with: a memory, its site, and the rows' columns."""
        if site is not None:
            if site not in self._sites:
                there = ", ".join(self._sites) or "none: only a simulation knows its sites"
                raise UsageError(f"this result does not know the site {site!r}; it knows {there}")
            own = self._sites[site]
            return own.memory, site, self._has(held) & self._has(own.features)
        reader = self._sites.get(self.site)
        return None if reader is None else reader.memory, self.site or None, self._has(held)

    # --- files ------------------------------------------------------------------------------------

    def to_json(self) -> bytes:
        """Return the content of the file that :meth:`save` writes."""
        return ResultFile(
            rule=self.rule,
            rule_text=rule_text(self.rule, self.result, self.definition),
            site=self.site,
            completed_at=self.completed_at,
            definition=self.definition,
            result=self.result,
            provenance=self.provenance,
            cluster_names=dict(self.names),
        ).to_json()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as readable JSON; :meth:`load` and ``fedclust predict`` read it.

        It contains no rows and no labels. Other programs can label new patients with it.

        Parameters
        ----------
        path : path

        Raises
        ------
        UsageError
            The file cannot be written.
        """
        write_file(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a saved result.

        Parameters
        ----------
        path : path

        Raises
        ------
        UsageError
            The file is no result, one of another version, or was changed.
        """
        file = ResultFile.read(path)
        found = cls(
            file.result,
            file.definition,
            file.provenance,
            file.completed_at,
            file.cluster_names,
            site=file.site,
            _rule=file.rule,
        )
        if file.rule == "method":
            try:
                plan_of(file.definition)
            except DefinitionError as error:
                raise UsageError(f"{path}: {error}") from None
        return found

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
        from fedclust.result.tables import report_bytes

        write_file(path, report_bytes(self, Path(path)))

    def table_one(self) -> TableOne:
        """Return table 1 of a manuscript: features and outcomes by cluster, with footnotes."""
        from fedclust.result.table_one import table_one

        return table_one(self)

    def save_table_one(self, path: str | os.PathLike[str]) -> None:
        """Write table 1 of a manuscript.

        Parameters
        ----------
        path : path
            Its ending says in which form: ``.docx`` (the extra ``[docx]``), ``.xlsx`` (the extra
            ``[excel]``), ``.csv`` or ``.html``. The same result gives the same bytes.

        Raises
        ------
        UsageError
            The file cannot be written, has another ending, or its package is not installed.
        """
        write_file(path, self.table_one().content(Path(path)))

    def save_ro_crate(
        self,
        path: str | os.PathLike[str],
        license: str | None = None,  # noqa: A002 - the word of SPDX and RO-Crate
    ) -> None:
        """Write the result as an RO-Crate (the extra ``[crate]``): a ZIP file to publish.

        It contains the definition, the result, centroids and profile, the report, the figures and
        the provenance, with a SHA-256 of each file, and no rows and no labels. The same result
        gives the same bytes.

        Parameters
        ----------
        path : str or path
        license : str, optional
            An SPDX identifier, such as ``"CC-BY-4.0"``, or the address of a licence's text.
            Without it the crate says that no licence is stated.

        Raises
        ------
        UsageError
            The file cannot be written, the licence is neither, the result is a simulation's, or
            rocrate is not installed.
        """
        from fedclust.result.ro_crate import crate_bytes

        write_file(path, crate_bytes(self.document, self.definition, license))


def read_result(document: ResultDocument, definition: Definition, site: str = "") -> SessionResult:
    """Return the result that a coordinator sent; ProtocolError for one that cannot be read."""
    try:
        return replace(SessionResult.of(document, definition), site=site)
    except ValidationError:
        # Not chained: pydantic repeats the input.
        raise ProtocolError("the result cannot be read by this SDK") from None
