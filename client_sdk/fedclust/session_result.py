"""A completed session's result, as the coordinator gives it to its analyst and sites."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedclust import engine
from fedclust.cluster_model import HasModel
from fedclust.data import LabelRows, Source, Table
from fedclust.data.mapping import watch_reading
from fedclust.data.row_warnings import typical_values
from fedclust.definition import DefinitionError, canonical, plan_of
from fedclust.durable_files import FileDamaged, read_sealed, write_atomically, write_sealed
from fedclust.errors import ProtocolError, UsageError, writing
from fedclust.live_line import SlowWork
from fedclust.predictions import Predictions, predictions_of_blocks
from fedclust.report import Facts, facts_of_document
from fedclust.report.result_attributes import ResultAttributes
from fedclust.report.ro_crate import crate_bytes
from fedclust.schema.encoding import columns_of
from fedclust.schema.feature import clustered
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Result
from fedclust.wire import codec
from fedclust.wire.models import Definition, Provenance, ResultDocument


class ResultFile(Model):
    """A saved result. It contains no rows and no labels, so it may be passed on.

    ``site`` is the site that saved it; "" for an analyst, an operator or a simulation.
    """

    definition: Definition
    document: ResultDocument
    site: str = ""

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; UsageError where that is impossible."""
        with writing(path):
            write_sealed(Path(path), codec.encode_model(self))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ResultFile:
        """Read a file; UsageError for another file or version."""
        try:
            file = codec.decode_model(cls, read_sealed(Path(path)))
            plan_of(file.definition)
            result = file.document.clustering()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        except FileDamaged as error:
            raise UsageError(str(error)) from None
        except DefinitionError as error:
            raise UsageError(f"{path}: {error}") from None
        except (ValidationError, codec.CodecError):
            result = None
        if result is None or not _consistent(result, file.definition):
            raise UsageError(f"{path}: not a result that this version of fedclust reads")
        return file


@dataclass(frozen=True, repr=False)
class SessionResult(HasModel, ResultAttributes):
    """A completed session's clustering. It labels new rows without a coordinator.

    Attributes
    ----------
    document : ResultDocument
        The coordinator's result document, with its provenance.
    definition : Definition
    result_ : Result
        Everything that the coordinator returned about the clusters.

    Examples
    --------
    ``result`` is what :meth:`fedclust.Client.result` returned:

    >>> result.cluster_centers_.shape
    (2, 2)
    >>> result.save("heart-2026.fedclust")
    >>> SessionResult.load("heart-2026.fedclust").n_rounds_ == result.n_rounds_
    True
    """

    document: ResultDocument
    definition: Definition
    result_: Result = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "result_", self.document.clustering())

    def _facts(self) -> Facts:
        return facts_of_document(self.document, self.definition)

    def _document(self) -> tuple[ResultDocument, Definition]:
        return self.document, self.definition

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
        return replace(self, document=document_at(self.document, n_clusters))

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
            -1 where missing values forbid a label, and for every row if the method needs what only
            a site that took part remembers.

        Raises
        ------
        DataError
            The rows do not fit; the message names file, column, row and rule.
        """
        with SlowWork("labelling rows") as work:
            given, plan = self.new_rows(watch_reading(rows, work.read)), plan_of(self.definition)
            mask, (memory, site) = engine.has_features(plan, given.features), self._own_memory()
            labels = [
                engine.label(plan, self.result_, X, memory, site, mask, new=True)
                for X, _ in given.blocks()
            ]
            return np.concatenate(labels)

    def predict_details(self, rows: Source, id_column: str | None = None) -> Predictions:
        """Label new rows, and say how clear each label is and which rows lie outside.

        A row lies outside what the model saw if it is far from the profile of its cluster; see
        :attr:`Predictions.outside <fedclust.predictions.Predictions>`. Nothing is sent.

        Parameters
        ----------
        rows : Source
            As in :meth:`predict`.
        id_column : str, optional
            Column that names the rows.

        Returns
        -------
        Predictions

        Raises
        ------
        DataError
            The rows do not fit; the message names file, column, row and rule.
        """
        with SlowWork("labelling rows") as work:
            return self.place_rows(self.new_rows(watch_reading(rows, work.read), id_column))

    def probabilities(self, rows: Source) -> NDArray[np.float64]:
        """Return how probable each cluster is of new rows; nothing is sent.

        Parameters
        ----------
        rows : Source
            As in :meth:`predict`.

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
        with SlowWork("weighing rows") as work:
            given = self.new_rows(watch_reading(rows, work.read))
            return weigh_rows(self, given, self._own_memory()[0])

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
        features = clustered(self.definition.features)
        typical = typical_values(features, self.result_.profile)
        lacking = self.definition.policy.missing == "mask"
        return LabelRows(rows, features, id_column, lacking, new=True, typical=typical)

    def place_rows(self, rows: LabelRows) -> Predictions:
        """Do what :meth:`predict_details` does.

        Parameters
        ----------
        rows : LabelRows
            What :meth:`new_rows` returned.

        Returns
        -------
        Predictions
        """
        plan, (memory, site) = plan_of(self.definition), self._own_memory()

        def place(X: NDArray[np.float64], held: Sequence[str]) -> engine.Placement:
            mask = engine.has_features(plan, held)
            return engine.place(plan, self.result_, X, memory, site, mask)

        return predictions_of_blocks(rows, place)

    def _own_memory(self) -> tuple[Memory | None, str | None]:
        """Return what the method remembers at the reader's site, and the site."""
        return None, None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result without labels; :meth:`load` and ``fedclust predict`` read it.

        Parameters
        ----------
        path : path

        Raises
        ------
        UsageError
            The file cannot be written.
        """
        ResultFile(definition=self.definition, document=self.document).write(path)

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
            The file cannot be written, the licence is neither, or rocrate is not installed.
        """
        content = crate_bytes(self.document, self.definition, license)
        with writing(path):
            write_atomically(Path(path), content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a saved result.

        Parameters
        ----------
        path : path

        Raises
        ------
        UsageError
            The file is no result, or one of another version.
        """
        file = ResultFile.read(path)
        return cls(file.document, file.definition)


def label_rows(
    result: SessionResult, rows: Table | LabelRows, memory: Memory | None, site: str
) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """Label the rows of the session at ``site`` with that site's memory.

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
    plan, found = plan_of(result.definition), result.result_
    # Without its memory a site knows no more of its own rows than of new ones.
    mask = engine.has_features(plan, rows.features)
    if isinstance(rows, Table):
        if memory is None:
            mask = engine.has_features(plan, rows.columns)
        return engine.label(plan, found, rows.X, memory, site, mask), rows.ids
    labels, ids = [], []
    for X, names in rows.blocks():
        ids += names or []
        labels.append(engine.label(plan, found, X, memory, site, mask))
    return np.concatenate(labels), tuple(ids) if rows.id_column is not None else None


def weigh_rows(
    result: SessionResult, rows: LabelRows, memory: Memory | None
) -> NDArray[np.float64]:
    """Return the clusters' probabilities (n, K) of rows, at the site with that memory."""
    plan, found = plan_of(result.definition), result.result_
    return np.concatenate([require_soft(plan, found, X, memory) for X, _ in rows.blocks()])


def require_soft(
    plan: engine.Plan, result: Result, X: NDArray[np.float64], memory: Memory | None
) -> NDArray[np.float64]:
    """Return the clusters' probabilities (n, K); UsageError where the method has none."""
    found = engine.probabilities(plan, result, X, memory)
    if found is None:
        raise no_soft_clusters(plan.method.name)
    return found


def no_soft_clusters(method: str) -> UsageError:
    """Return the error for probabilities of a method that has none."""
    return UsageError(
        f"{method} assigns each row to one cluster: only a method with soft clusters has "
        "probabilities, such as mixture"
    )


def read_result(document: ResultDocument, definition: Definition) -> SessionResult:
    """Return the result that a coordinator sent; ProtocolError for one that cannot be read."""
    try:
        return SessionResult(document, definition)
    except ValidationError:
        # Not chained: pydantic repeats the input.
        raise ProtocolError("the result cannot be read by this SDK") from None


def simulated_document(result: Result, definition: Definition) -> ResultDocument:
    """Return the document of a result that no coordinator has."""
    return ResultDocument(
        session=definition.name,
        completed_at=datetime.now(UTC),
        features=definition.features,
        result=codec.to_tree(result),
        provenance=Provenance(
            definition_sha256=codec.sha256(canonical(definition)),
            algorithm=definition.algorithm,
            method_version=definition.method_version,
            engine_version=definition.engine_version,
            seed=definition.seed,
            sites=definition.sites,
            server_version=f"none, simulated by fedclust {version('fedclust')}",
            platform={},
            submissions=(),
        ),
    )


def document_at(document: ResultDocument, n_clusters: int) -> ResultDocument:
    """Return a sweep's result for one K; UsageError names every K there is."""
    try:
        found = document.clustering().at(n_clusters)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return document.model_copy(update={"result": codec.to_tree(found)})


def _consistent(result: Result, definition: Definition) -> bool:
    """Return whether the shapes of a result's arrays fit its clusters and the session's columns."""
    n_clusters, d = len(result.centroids), len(columns_of(clustered(definition.features)))
    all_sizes = [*result.site_sizes.values(), *([] if result.sizes is None else [result.sizes])]
    profile = result.profile
    return (
        result.centroids.shape == result.centroids_original.shape == (n_clusters, d)
        and result.center.shape == result.scale.shape == (d,)
        and all(len(sizes) == n_clusters for sizes in all_sizes)
        and (profile is None or profile.means.shape == (n_clusters, d))
    )
