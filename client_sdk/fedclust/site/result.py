"""Results: a site's own labels, and a clustering that can be applied to new rows."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedclust import engine
from fedclust.data import LabelRows, Source, Table
from fedclust.data.mapping import watch_reading
from fedclust.definition import DefinitionError, plan_of
from fedclust.durable_files import FileDamaged, read_sealed, write_sealed
from fedclust.errors import UsageError, writing
from fedclust.live_line import SlowWork
from fedclust.report.session_result import SessionResult
from fedclust.schema.encoding import columns_of
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Result
from fedclust.wire import codec
from fedclust.wire.models import Definition, ResultDocument


class _ResultFile(Model):
    """A saved result. It contains no rows and no labels, so it may be passed on."""

    definition: Definition
    document: ResultDocument
    site: str


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
        """Return the result with these rows and their labels; the site has these ``features``."""
        if isinstance(rows, LabelRows):
            rows = replace(rows, held=features)
        labels, ids = self.label(rows, memory)
        return replace(self, labels_=labels, ids_=ids, memory=memory, table=rows)

    def at(self, n_clusters: int) -> SiteResult:
        """Return the clustering for one K of a sweep; UsageError names every K there is."""
        other = replace(super().at(n_clusters), labels_=None)
        if self.table is None:
            return other
        return replace(other, labels_=other.label(self.table, self.memory)[0])

    def predict(self, rows: Source) -> NDArray[np.int64]:
        """Label new rows; nothing is sent.

        Parameters
        ----------
        rows : Source
            As in :meth:`fedclust.Site.participate`, with the session's features, or with
            ``missing: mask`` some of them. An array has all columns. Missing values in the columns
            that are present are imputed.

        Returns
        -------
        (n,) int64
            -1 where missing values forbid a label, and for every row of a loaded result if the
            method needs the eigenvectors of a site that took part.
        """
        with SlowWork("labelling rows") as work:
            given = self.new_rows(watch_reading(rows, work.read))
            return self.label(given, self.memory, new=True)[0]

    def new_rows(self, rows: Source, id_column: str | None = None) -> LabelRows:
        """Return rows to label, which are read only then."""
        lacking = self.definition.policy.missing == "mask"
        return LabelRows(rows, self.definition.features, id_column, lacking)

    def label(
        self, rows: Table | LabelRows, memory: Memory | None = None, *, new: bool = False
    ) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
        """Label rows: the session's own ones if ``memory`` is given and not ``new``.

        Returns
        -------
        (n,) int64
        tuple of str or None
            The rows' identifiers, if an id column was named.

        Raises
        ------
        DataError
            The rows do not fit; the message names file, column, row and rule.
        """
        plan = plan_of(self.definition)
        own = memory is not None and not new
        if isinstance(rows, Table):
            mask = engine.has_features(plan, rows.features if own else rows.columns)
            found = engine.label(plan, self.result_, rows.X, memory, self.site, mask, new=new)
            return found, rows.ids
        mask = engine.has_features(plan, rows.features)
        labels, ids = [], []
        for X, names in rows.blocks():
            ids += names or []
            labels.append(engine.label(plan, self.result_, X, memory, self.site, mask, new=new))
        return np.concatenate(labels), tuple(ids) if rows.id_column is not None else None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result without labels; :meth:`load` reads it."""
        file = _ResultFile(definition=self.definition, document=self.document, site=self.site)
        with writing(path):
            write_sealed(Path(path), codec.encode_model(file))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SiteResult:
        """Read a saved result; UsageError for another file or version."""
        try:
            file = codec.decode_model(_ResultFile, read_sealed(Path(path)))
            plan_of(file.definition)
            found = cls(file.document, file.definition, file.site)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        except FileDamaged as error:
            raise UsageError(str(error)) from None
        except DefinitionError as error:
            raise UsageError(f"{path}: {error}") from None
        except (ValidationError, codec.CodecError):
            found = None
        if found is None or not _consistent(found.result_, found.definition):
            raise UsageError(f"{path}: not a result that this version of fedclust reads")
        return found


def _consistent(result: Result, definition: Definition) -> bool:
    """Return whether the shapes of a result's arrays fit its clusters and the session's columns."""
    n_clusters, d = len(result.centroids), len(columns_of(definition.features))
    all_sizes = [*result.site_sizes.values(), *([] if result.sizes is None else [result.sizes])]
    profile = result.profile
    return (
        result.centroids.shape == result.centroids_original.shape == (n_clusters, d)
        and result.center.shape == result.scale.shape == (d,)
        and all(len(sizes) == n_clusters for sizes in all_sizes)
        and (profile is None or profile.means.shape == (n_clusters, d))
    )
