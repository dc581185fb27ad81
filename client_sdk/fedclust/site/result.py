"""A completed session's result with one site's own labels."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclust.data import LabelRows, Table
from fedclust.schema.model import Memory
from fedclust.session_result import ResultFile, SessionResult, label_rows


@dataclass(frozen=True, repr=False)
class SiteResult(SessionResult):
    """A completed session as one site sees it.

    Attributes
    ----------
    labels_ : (n,) int64 or None
        Cluster of each of this site's rows, -1 where missing values forbid a label; None in a
        loaded result, because files contain no labels.
    document : ResultDocument
        The coordinator's result document, with its provenance.
    ids_ : tuple of str or None
        The rows' identifiers, if an id column was named.
    memory : dict or None
        The method's memory from the site's journal. Never saved with the result.
    table : Table or LabelRows or None
        The site's rows of the session.
    definition : Definition
    site : str
        "" in a result that somebody without rows saved.
    result_ : Result
        Everything that the coordinator returned about the clusters.

    Examples
    --------
    ``result`` is what :meth:`fedclust.Site.participate` returned. A saved result labels new rows
    without a coordinator:

    >>> result.save("heart-2026.fedclust")
    >>> loaded = SiteResult.load("heart-2026.fedclust")
    >>> bool((loaded.predict(rows) == result.labels_).all())
    True
    """

    site: str
    labels_: NDArray[np.int64] | None = None
    ids_: tuple[str, ...] | None = None
    memory: Memory | None = None
    table: Table | LabelRows | None = None

    @property
    def own_sizes_(self) -> tuple[int, ...] | None:
        """Persons of this site in each cluster; None without evaluation."""
        return self.result_.site_sizes.get(self.site)

    def with_labels(
        self, rows: Table | LabelRows, features: tuple[str, ...], memory: Memory | None
    ) -> SiteResult:
        """Return the result with these rows and their labels.

        Parameters
        ----------
        rows : Table or LabelRows
        features : tuple of str
            Those of the session that the site has.
        memory : dict or None
            The method's memory from the site's journal.
        """
        if isinstance(rows, LabelRows):
            rows = replace(rows, held=features)
        labels, ids = label_rows(self, rows, memory, self.site)
        return replace(self, labels_=labels, ids_=ids, memory=memory, table=rows)

    def at(self, n_clusters: int) -> SiteResult:
        other = replace(super().at(n_clusters), labels_=None)
        if self.table is None:
            return other
        labels, _ = label_rows(other, self.table, self.memory, self.site)
        return replace(other, labels_=labels)

    def _own_memory(self) -> tuple[Memory | None, str | None]:
        return self.memory, self.site

    def save(self, path: str | os.PathLike[str]) -> None:
        file = ResultFile(definition=self.definition, document=self.document, site=self.site)
        file.write(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SiteResult:
        file = ResultFile.read(path)
        return cls(file.document, file.definition, file.site)
