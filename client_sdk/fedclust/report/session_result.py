"""A completed session's result, as whoever may read it at the coordinator gets it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from pydantic import ValidationError

from fedclust.errors import ProtocolError, UsageError
from fedclust.report import Facts, facts_of_document
from fedclust.report.result_attributes import ResultAttributes
from fedclust.schema.result import Result
from fedclust.wire import codec
from fedclust.wire.models import Definition, ResultDocument


@dataclass(frozen=True, repr=False)
class SessionResult(ResultAttributes):
    """A completed session's clustering.

    Attributes
    ----------
    document : ResultDocument
        The coordinator's result document, with its provenance.
    definition : Definition
    result_ : Result
        Everything that the coordinator returned about the clusters.
    """

    document: ResultDocument
    definition: Definition
    result_: Result = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "result_", Result.model_validate(self.document.result))

    def _facts(self) -> Facts:
        return facts_of_document(self.document, self.definition)

    def at(self, n_clusters: int) -> Self:
        """Return the clustering for one K of a sweep; UsageError names every K there is."""
        return replace(self, document=document_at(self.document, n_clusters))


def read_result(document: ResultDocument, definition: Definition) -> SessionResult:
    """Return the result that a coordinator sent; ProtocolError for one that cannot be read."""
    try:
        return SessionResult(document, definition)
    except ValidationError:
        # Not chained: pydantic repeats the input.
        raise ProtocolError("the result cannot be read by this SDK") from None


def document_at(document: ResultDocument, n_clusters: int) -> ResultDocument:
    """Return a sweep's result for one K; UsageError names every K there is."""
    try:
        found = Result.model_validate(document.result).at(n_clusters)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return document.model_copy(update={"result": codec.to_tree(found)})
