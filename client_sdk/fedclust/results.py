"""What a site gets at the end: its own labels, and a clustering that it can apply to new rows."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedclust.algorithms import engine
from fedclust.algorithms.base import Memory, Model, Result
from fedclust.data import Source, Table, load
from fedclust.definition import DefinitionError, plan_of
from fedclust.errors import UsageError
from fedclust.privacy.files import FileDamaged, read_sealed, write_sealed
from fedclust.wire import codec
from fedclust.wire.models import Definition, ResultDocument


class _File(Model):
    """A saved result. Holds nothing of any row: it may be passed on."""

    definition: Definition
    document: ResultDocument
    site: str


@dataclass(frozen=True)
class SiteResult:
    """A completed session as one site sees it.

    Attributes
    ----------
    labels_ : (n,) int64 or None
        Cluster of each of this site's rows, -1 where missing values forbid one; None in a result
        that was loaded from a file, which holds no rows' labels.
    document : ResultDocument
        What the coordinator released, provenance included.
    ids_ : tuple of str or None
        The rows' identifiers, where a column of them was named.
    memory : dict or None
        What the site's journal remembers of the session. Never saved with the result.
    definition : Definition
    site : str
    """

    document: ResultDocument
    definition: Definition
    site: str
    labels_: NDArray[np.int64] | None = field(default=None, repr=False)
    ids_: tuple[str, ...] | None = field(default=None, repr=False)
    memory: Memory | None = field(default=None, repr=False)
    _result: Result = field(init=False, repr=False)

    def __post_init__(self) -> None:
        result = Result.model_validate(self.document.result)
        object.__setattr__(self, "_result", result)

    @property
    def cluster_centers_(self) -> NDArray[np.float64]:
        """Centroids (K, d) in the data's own units."""
        return self._result.centroids_original

    @property
    def sizes_(self) -> tuple[int | None, ...] | None:
        """Rows in each cluster over all sites; None where suppressed."""
        return self._result.sizes

    @property
    def own_sizes_(self) -> tuple[int | None, ...] | None:
        """Rows of this site in each cluster, as far as they were sent."""
        return self._result.site_sizes.get(self.site)

    @property
    def result_(self) -> Result:
        """Everything else: quality, history, warnings."""
        return self._result

    def predict(self, rows: Source) -> NDArray[np.int64]:
        """Label new rows, here and alone: nothing is sent.

        Parameters
        ----------
        rows : array (n, d), DataFrame or path of a CSV file
            With the session's features; where the session masks, with some of them. A feature
            whose column is there counts, and values missing in it are imputed; an array has all.

        Returns
        -------
        (n,) int64
            -1 where missing values forbid a label, and for every row where only a site that took
            part can label, by its own eigenvectors: a loaded result holds none.
        """
        return self.label(self.read(rows), self.memory, new=True)

    def read(self, rows: Source, id_column: str | None = None) -> Table:
        """Load rows as the session has them; DataError where they do not fit."""
        lacking = self.definition.policy.missing == "mask"
        return load(rows, self.definition.features, id_column=id_column, lacking=lacking)

    def label(
        self, table: Table, memory: Memory | None = None, *, new: bool = False
    ) -> NDArray[np.int64]:
        """Label rows that were loaded already; with ``memory`` and not ``new`` the session's."""
        plan = plan_of(self.definition)
        own = memory is not None and not new
        mask = engine.has_features(plan, table.features if own else table.columns)
        return engine.label(plan, self._result, table.X, memory, self.site, mask, new=new)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result without labels; :meth:`load` reads it."""
        file = _File(definition=self.definition, document=self.document, site=self.site)
        try:
            write_sealed(Path(path), codec.encode_model(file))
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SiteResult:
        """Read a saved result; UsageError where the file is not one, or of another version."""
        try:
            file = codec.decode_model(_File, read_sealed(Path(path)))
            plan_of(file.definition)
            return cls(file.document, file.definition, file.site)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        except FileDamaged as error:
            raise UsageError(str(error)) from None
        except DefinitionError as error:
            raise UsageError(f"{path}: {error}") from None
        except (ValidationError, codec.CodecError):
            raise UsageError(f"{path}: not a result that this version of fedclust reads") from None


def centroid_table(document: ResultDocument) -> bytes:
    """Return a result's centroids as CSV: cluster, size (empty: suppressed), features in own units.

    Cluster numbers are those of the labels, from 0.
    """
    centroids: Any = np.asarray(document.result["centroids_original"], dtype=np.float64)
    sizes = document.result.get("sizes") or (None,) * len(centroids)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["cluster", "size", *(feature.name for feature in document.features)])
    for cluster, (size, centroid) in enumerate(zip(sizes, centroids.tolist(), strict=True)):
        writer.writerow([cluster, "" if size is None else size, *map(repr, centroid)])
    return text.getvalue().encode()
