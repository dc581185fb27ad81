"""A model file: what is needed to find the cluster of a new patient, as readable JSON.

A result file (``.fedclust``) holds all that a session found. A model file is smaller and for other
programs too: features with their units, how values are scaled, the clusters, what counts as
missing, and how far from a cluster a patient may be. docs/new-patients.md describes its fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError, model_validator

from fedclust import engine
from fedclust.data import LabelRows, Source
from fedclust.data.mapping import watch_reading
from fedclust.data.row_warnings import TypicalValues, typical_values
from fedclust.definition import plan_of
from fedclust.durable_files import write_atomically
from fedclust.engine import Placement, outside_limits
from fedclust.errors import UsageError, writing
from fedclust.json_text import read_json
from fedclust.live_line import SlowWork
from fedclust.model_parts import (
    Assignment,
    Known,
    MissingValues,
    ModelCluster,
    ModelColumn,
    ModelPrototype,
    ModelProvenance,
    OutsideRule,
    model_assignment,
    model_clusters,
    model_columns,
    model_missing,
    model_prototypes,
    outside_rule,
)
from fedclust.predictions import Predictions, predictions_of_blocks
from fedclust.schema.encoding import columns_of
from fedclust.schema.feature import Feature, clustered
from fedclust.schema.model import Model
from fedclust.schema.result import ClusterProfile, Result
from fedclust.wire import codec
from fedclust.wire.models import Definition, ResultDocument

__all__ = ["FORMAT", "ClusterModel", "load_model", "model_of_result"]

#: The version rises when a program that reads the file by its description would go wrong.
FORMAT: Final = "fedclust-model-1"


class ClusterModel(Model):
    """What finds the cluster of new patients: a model file, read.

    Attributes
    ----------
    format : str
        Name and version of the file's format.
    provenance : ModelProvenance
    assignment : Assignment
    missing : MissingValues
    outside : OutsideRule or None
        None where the session had no closing evaluation: then nobody knows who lies outside.
    features : tuple of Feature
    columns : tuple of ModelColumn
    clusters : tuple of ModelCluster
    prototypes : tuple of ModelPrototype or None

    Examples
    --------
    ``result`` is the result of a session or of a simulation:

    >>> result.save_model("model.json")
    >>> model = load_model("model.json")
    >>> bool((model.predict(rows) == result.predict(rows)).all())
    True
    """

    format: Literal["fedclust-model-1"] = FORMAT
    provenance: ModelProvenance
    assignment: Assignment
    missing: MissingValues
    outside: OutsideRule | None
    features: tuple[Feature, ...]
    columns: tuple[ModelColumn, ...]
    clusters: tuple[ModelCluster, ...]
    prototypes: tuple[ModelPrototype, ...] | None = None

    @model_validator(mode="after")
    def _fits(self) -> ClusterModel:
        d, n_clusters = len(self.columns), len(self.clusters)
        vectors: list[tuple[Known, ...]] = [each.scaled for each in self.prototypes or ()]
        for cluster in self.clusters:
            parts = (cluster.centroid, cluster.scaled, cluster.mean, cluster.sd)
            vectors += [part for part in parts if part is not None]
        if (
            [column.name for column in self.columns] != [c.name for c in columns_of(self.features)]
            or [cluster.cluster for cluster in self.clusters] != list(range(n_clusters))
            or not n_clusters
            or any(len(vector) != d for vector in vectors)
            or any(not 0 <= each.cluster < n_clusters for each in self.prototypes or ())
            or (self.assignment.rule == "nearest-prototype") != bool(self.prototypes)
            or any((self.outside is None) != (each.mean is None) for each in self.clusters)
            or any((each.mean is None) != (each.sd is None) for each in self.clusters)
        ):
            raise ValueError("its parts do not fit each other")
        return self

    @cached_property
    def result_(self) -> Result:
        """The model as a result; what the file does not hold is left out."""
        columns, clusters = self.columns, self.clusters
        scaled = _matrix([cluster.scaled for cluster in clusters])
        original = _matrix([cluster.centroid for cluster in clusters])
        masked = self.missing.rule == "mask"
        sizes = [cluster.persons for cluster in clusters]
        return Result(
            centroids=np.nan_to_num(scaled),
            centroids_original=np.nan_to_num(original),
            columns=tuple(column.name for column in columns),
            mask=~np.isnan(scaled) if masked else None,
            prototypes=_matrix([each.scaled for each in self.prototypes])
            if self.prototypes
            else None,
            prototype_labels=tuple(each.cluster for each in self.prototypes)
            if self.prototypes
            else None,
            center=_vector([column.center for column in columns]),
            scale=_vector([column.scale for column in columns]),
            impute=_vector_unless_none([column.impute for column in columns], np.nan),
            limit=_vector_unless_none([column.limit for column in columns], np.inf),
            sizes=tuple(size for size in sizes if size is not None) if None not in sizes else None,
            profile=self._profile(),
            dissimilarity=self.assignment.dissimilarity,
        )

    def _profile(self) -> ClusterProfile | None:
        if self.outside is None:
            return None
        means = _matrix([cluster.mean or () for cluster in self.clusters])
        known = ~np.isnan(means)
        return ClusterProfile(
            known=known,
            means=np.nan_to_num(means),
            deviations=np.nan_to_num(_matrix([cluster.sd or () for cluster in self.clusters])),
            overall_means=np.nan_to_num(_vector([column.mean for column in self.columns])),
            overall_deviations=np.nan_to_num(_vector([column.sd for column in self.columns])),
            typical=tuple(column.name for column in self.columns if column.typical),
        )

    def predict(self, rows: Source) -> NDArray[np.int64]:
        """Return the cluster of each new row; nothing is sent.

        Parameters
        ----------
        rows : Source
            As in :meth:`predict_details`.

        Returns
        -------
        (n,) int64
            -1 where missing values forbid a label.

        Raises
        ------
        DataError
            The rows do not fit; the message names file, column, row and rule.
        """
        with SlowWork("labelling rows") as work:
            given = self.new_rows(watch_reading(rows, work.read))
            mask = self._mask(given.features)
            labels = [engine.label_by_distance(self.result_, X, mask) for X, _ in given.blocks()]
            return np.concatenate(labels)

    def predict_details(self, rows: Source, id_column: str | None = None) -> Predictions:
        """Return the cluster of each new row, its margin, and whether the row lies outside.

        Parameters
        ----------
        rows : Source
            An array whose columns are the features in order; or a table whose columns are found by
            name, such as a DataFrame or the path of a CSV file.
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

    def new_rows(self, rows: Source, id_column: str | None = None) -> LabelRows:
        """Return rows to label, which are read only then."""
        lacking = self.missing.rule == "mask"
        typical = self.typical_values
        return LabelRows(rows, self.features, id_column, lacking, new=True, typical=typical)

    @property
    def typical_values(self) -> TypicalValues:
        """Of each number the mean of all persons and their standard deviation, transformed."""
        return typical_values(self.features, self.result_.profile)

    def place_rows(self, rows: LabelRows) -> Predictions:
        """Do what :meth:`predict_details` does with rows of :meth:`new_rows`."""
        return predictions_of_blocks(rows, self.place)

    def place(self, X: NDArray[np.float64], held: Sequence[str]) -> Placement:
        """Place rows (n, d), NaN where missing; ``held`` are the features that they have."""
        columns = columns_of(self.features)
        # Without a profile no limit counts.
        limits = self.outside or outside_limits(columns)
        return engine.place_by_distance(self.result_, columns, limits, X, self._mask(held))

    def _mask(self, held: Sequence[str]) -> NDArray[np.bool_]:
        """Return which columns (d,) belong to these features."""
        return np.array([column.feature in held for column in self.columns], dtype=np.bool_)

    def to_json(self) -> bytes:
        """Return the model file."""
        content = self.model_dump(mode="json", exclude_none=False)
        sealed = {**content, "sha256": codec.sha256(codec.canonical_json(content))}
        lines = (f" {json.dumps(name)}: {_lines(value)}" for name, value in sealed.items())
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file; :func:`load_model` and ``fedclust predict`` read it.

        Parameters
        ----------
        path : path

        Raises
        ------
        UsageError
            The file cannot be written.
        """
        with writing(path):
            write_atomically(Path(path), self.to_json())


def is_model(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a model file does."""
    try:
        with Path(path).open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False


def load_model(path: str | os.PathLike[str]) -> ClusterModel:
    """Read a model file that ``save_model`` or ``fedclust session result`` wrote.

    Parameters
    ----------
    path : path

    Returns
    -------
    ClusterModel

    Raises
    ------
    UsageError
        The file is no model file, one of another version, or was changed.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    # A result file is no text.
    tree = read_json(content, path) if content.startswith(b"{") else None
    if not isinstance(tree, dict) or not str(tree.get("format")).startswith("fedclust-model-"):
        raise UsageError(
            f"{path}: this is no model file. SessionResult.load reads a result file (.fedclust)"
        )
    if tree["format"] != FORMAT:
        raise UsageError(f"{path}: this version of fedclust reads {FORMAT}: upgrade fedclust")
    digest = tree.pop("sha256", None)
    try:
        sealed = digest == codec.sha256(codec.canonical_json(tree))
        model = ClusterModel.model_validate_json(json.dumps(tree))
    except ValueError as error:
        # Of pydantic's errors only the place is shown, not the input.
        at = ""
        if isinstance(error, ValidationError):
            at = "/".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
        raise UsageError(f"{path}: not a model that this version reads{at and f': {at}'}") from None
    if not sealed:
        raise UsageError(f"{path}: the checksum does not match: the file was changed")
    return model


class HasModel:
    """What results of sites and of simulations have in common: the model that they end in."""

    def _document(self) -> tuple[ResultDocument, Definition]:
        raise NotImplementedError

    def to_model(self) -> ClusterModel:
        """Return what finds the cluster of new patients, for the bedside or another program.

        Returns
        -------
        ClusterModel

        Raises
        ------
        UsageError
            The method needs more than the result to label new rows.
        """
        return model_of_result(*self._document())

    def save_model(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a readable JSON file; :func:`fedclust.load_model` reads it.

        It holds features with units, scaling, clusters, the rules for missing values and for
        patients outside, and the definition's hash: nothing of single sites, no rows, no labels.

        Parameters
        ----------
        path : path

        Raises
        ------
        UsageError
            The file cannot be written, or the method needs more than the result to label new rows.
        """
        self.to_model().save(path)


def has_model(result: Result, definition: Definition) -> bool:
    """Return whether a result alone tells the cluster of a new patient."""
    return engine.goes_by_distance(plan_of(definition).method, result)


def model_of_result(document: ResultDocument, definition: Definition) -> ClusterModel:
    """Return the model of a result.

    Raises
    ------
    UsageError
        The method labels new rows by something else than the result alone.
    """
    result = document.clustering()
    if not has_model(result, definition):
        raise UsageError(
            f"a result of {definition.algorithm} with these options has no model file: its "
            "centroids alone do not tell the cluster of a new patient"
        )
    features = clustered(definition.features)
    return ClusterModel(
        provenance=ModelProvenance(
            session=document.session,
            completed_at=document.completed_at,
            method=definition.algorithm,
            method_version=definition.method_version,
            definition_sha256=document.provenance.definition_sha256,
        ),
        assignment=model_assignment(result),
        missing=model_missing(definition.policy.missing),
        outside=None if result.profile is None else outside_rule(columns_of(features)),
        features=features,
        columns=model_columns(result, features),
        clusters=model_clusters(result),
        prototypes=model_prototypes(result),
    )


def _matrix(rows: Any) -> NDArray[np.float64]:
    return np.array([_vector(row) for row in rows], dtype=np.float64)


def _vector(values: Any) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _vector_unless_none(values: list[float | None], fill: float) -> NDArray[np.float64] | None:
    """Return values with ``fill`` for those that are None; None if all are."""
    if all(value is None for value in values):
        return None
    return np.array([fill if value is None else value for value in values], dtype=np.float64)


def _lines(value: Any) -> str:
    """Return JSON with one object of a list a line."""
    if isinstance(value, list) and value:
        inner = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in value)
        return f"[\n{inner}\n ]"
    return json.dumps(value, ensure_ascii=False)
