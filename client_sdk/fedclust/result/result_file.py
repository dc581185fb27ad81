"""A result file: a session's result as readable JSON, also for other programs.

It finds the cluster of new patients. docs/new-patients.md describes its fields.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from pydantic import Field, ValidationError, model_validator

from fedclust.definition.json_text import read_json
from fedclust.schema.encoding import columns_of
from fedclust.schema.feature import clustered
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.times import Timestamp
from fedclust.wire import codec
from fedclust.wire.errors import UsageError
from fedclust.wire.models import ClusterName, Definition, Provenance

#: What a new patient's cluster follows from; ``method``: more than distances.
Rule: TypeAlias = Literal["nearest-centroid", "nearest-prototype", "method"]
_FAMILY: Final = "fedclust-result-"
#: The version rises when a program that reads the file by its description would go wrong.
FORMAT: Final = "fedclust-result-1"
#: How a file begins.
BEGINNING: Final = f'{{\n "format": "{_FAMILY}'.encode()
_NEAREST = {
    "nearest-centroid": "A patient belongs to the cluster with the nearest centroid.",
    "nearest-prototype": "A patient belongs to the cluster of the nearest prototype.",
}
_SCALED = (
    " Scale each value as (value - center) / scale, at most limit from 0. The distance is {}; of "
    "equal distances the first one counts."
)
_ROOT, _ABSOLUTE = "the root of the sum of squared differences", "the sum of absolute differences"
_MASK = (
    " Only columns that both the patient and the centroid have count, and the squared differences "
    "are averaged over these."
)
_MISSING = {
    "drop": " A patient with a missing value gets no cluster.",
    "impute": " A missing value counts as the column's impute, the mean over all sites.",
    "mask": (
        " Features that a table lacks are left out. A value that is missing in a column of the "
        "table counts as the column's impute, the mean over all sites."
    ),
}
_METHOD = "{} finds the clusters of new patients by more than distances: use fedclust predict."


class ResultFile(Model):
    """A saved result. It contains no rows and no labels.

    It contains what its writer may see of the result: an analyst's file has the sites' names, their
    sizes, and their tables of outcomes with noise.

    Attributes
    ----------
    format : str
        Name and version of the file's format.
    rule : str
        What a new patient's cluster follows from.
    rule_text : str
        The same in sentences, with what counts as the distance and as a missing value.
    site : str
        The site that saved it; "" for an analyst, an operator or a simulation.
    completed_at : datetime or None
        None for a simulation.
    definition : Definition
    result : Result
    provenance : Provenance or None
        None for a simulation.
    cluster_names : dict of str to tuple of str
        By K, the names that somebody gave its clusters.
    """

    format: Literal["fedclust-result-1"] = FORMAT
    rule: Rule
    rule_text: str = Field(repr=False)
    site: str
    completed_at: Timestamp | None
    definition: Definition
    result: Result
    provenance: Provenance | None
    cluster_names: dict[str, tuple[ClusterName, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> ResultFile:
        columns = tuple(each.name for each in columns_of(clustered(self.definition.features)))
        results = (self.result, *(entry.result for entry in self.result.sweep or ()))
        if not all(_consistent(each, columns, self.rule) for each in results):
            raise ValueError("its parts do not fit each other")
        return self

    def to_json(self) -> bytes:
        """Return the content of the file."""
        content = json.loads(codec.to_json(codec.to_tree(self)))
        content["sha256"] = codec.sha256(codec.canonical_json(content))
        return f"{_lines(content, depth=2)}\n".encode()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ResultFile:
        """Read a file; UsageError for another file or version, or if the file was changed."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        content = content.removeprefix(b"\xef\xbb\xbf")
        tree = read_json(content, path) if content.startswith(b"{") else None
        if not isinstance(tree, dict) or not str(tree.get("format")).startswith(_FAMILY):
            raise UsageError(
                f"{path}: this is no result file of fedclust: --result-out of a command, and save "
                "of a result, write one"
            )
        if tree["format"] != FORMAT:
            raise UsageError(f"{path}: this version of fedclust reads {FORMAT}: upgrade fedclust")
        if tree.pop("sha256", None) != codec.sha256(codec.canonical_json(tree)):
            raise UsageError(f"{path}: the checksum does not match: the file was changed")
        try:
            return cls.model_validate_json(json.dumps(tree))
        except ValidationError as error:
            # Only the place is shown, not the input.
            at = "/".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
            said = f"not a result that this version of fedclust reads{at and f': {at}'}"
            raise UsageError(f"{path}: {said}") from None


def rule_text(rule: Rule, result: Result, definition: Definition) -> str:
    """Return what a new patient's cluster follows from, in sentences."""
    if rule == "method":
        return _METHOD.format(definition.algorithm)
    distance = _ABSOLUTE if result.dissimilarity == "gower" else _ROOT
    mask = "" if result.mask is None else _MASK
    return _NEAREST[rule] + _SCALED.format(distance) + mask + _MISSING[definition.policy.missing]


def _consistent(result: Result, columns: tuple[str, ...], rule: Rule) -> bool:
    """Return whether the shapes of a result's arrays fit its clusters and the session's columns."""
    n_clusters, d = len(result.centroids), len(columns)
    by_cluster = [result.centroids, result.centroids_original, result.mask]
    by_column = [result.center, result.scale, result.impute, result.limit]
    if result.profile is not None:
        profile = result.profile
        by_cluster += [profile.known, profile.means, profile.estimated_deviations]
        by_cluster += [profile.uncertain, profile.few]
        by_column += [profile.overall_means, profile.estimated_overall_deviations]
    all_sizes = [*result.site_sizes.values(), *([] if result.sizes is None else [result.sizes])]
    prototypes, labels = result.prototypes, result.prototype_labels or ()
    return (
        n_clusters > 0
        and result.columns == columns
        and all(each is None or each.shape == (n_clusters, d) for each in by_cluster)
        and all(each is None or each.shape == (d,) for each in by_column)
        and bool((result.scale > 0).all())
        and all(len(sizes) == n_clusters for sizes in all_sizes)
        and (prototypes is None or prototypes.shape == (len(labels), d))
        and all(0 <= label < n_clusters for label in labels)
        and (rule == "method" or (rule == "nearest-prototype") == bool(labels))
    )


def _lines(value: Any, depth: int) -> str:
    """Return JSON with a line for each entry, down to a depth."""
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    indent = " " * (3 - depth)
    entries = (f"{indent}{json.dumps(k)}: {_lines(v, depth - 1)}" for k, v in value.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent[1:]}}}"
