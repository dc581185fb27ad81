"""Problem types (RFC 9457), shared by the coordinator and the SDK."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedclust.schema.field_names import FieldError as FieldError

CONTENT_TYPE = "application/problem+json"
PREFIX = "urn:fedclust:problem:"

#: slug -> (status, title). The slug is the stable part; ``detail`` says what to do next.
CATALOGUE: dict[str, tuple[int, str]] = {
    "malformed-request": (400, "The request cannot be read"),
    "unauthenticated": (401, "A valid token is needed"),
    "forbidden": (403, "This token's role may not do this"),
    "not-addressed": (403, "This round does not address this site"),
    "not-found": (404, "Not found"),
    "method-not-allowed": (405, "This path does not take that method"),
    "not-acceptable": (406, "No representation that the client accepts"),
    "request-timeout": (408, "The request took too long to arrive"),
    "name-taken": (409, "The name is in use with other contents"),
    "wrong-state": (409, "The session's state does not allow this"),
    "consent-mismatch": (409, "The consent is for another definition"),
    "consent-needed": (409, "A consent that this session needs is missing"),
    "session-expired": (409, "The session takes no more sites"),
    "table-changed": (409, "The site took part with another protected table"),
    "table-heads-needed": (409, "Earlier heads of the site's protected table are needed"),
    "version-unsupported": (409, "The version of the session is not supported"),
    "late-joining-refused": (409, "The session's method takes no site after its start"),
    "sites-unsuitable": (409, "These sites cannot serve the session's method"),
    "quorum-missing": (409, "Too few sites for this"),
    "needs-all-sites": (409, "This phase waits for all its sites"),
    "submission-differs": (409, "Another submission of this site is stored for this round"),
    "task-mismatch": (409, "The submission answers another task"),
    "last-operator-token": (409, "No valid operator token would be left"),
    "result-not-ready": (409, "The session has no result"),
    "round-closed": (410, "The round takes no more submissions"),
    "body-too-large": (413, "The body is larger than this coordinator takes"),
    "unsupported-media-type": (415, "The body's media type or encoding is not supported"),
    "invalid": (422, "The request's contents are not valid"),
    "disclosure-refused": (422, "The submission would disclose too much"),
    "too-many-requests": (429, "This token has too many requests open"),
    "headers-too-large": (431, "The request's headers are larger than this coordinator takes"),
    "internal": (500, "The coordinator failed"),
    "stored-data-damaged": (500, "Stored data is damaged"),
    "unavailable": (503, "The coordinator cannot answer now"),
}


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    errors: Annotated[list[FieldError], Field(max_length=20)] = []
    request_id: str | None = None

    @property
    def slug(self) -> str:
        """The catalogue's name of this type; empty for a foreign type."""
        return self.type.removeprefix(PREFIX) if self.type.startswith(PREFIX) else ""


def problem(
    slug: str, detail: str, errors: list[FieldError] | None = None, **extra: Any
) -> Problem:
    """Build the problem document ``slug`` of the catalogue."""
    status, title = CATALOGUE[slug]
    return Problem(
        type=PREFIX + slug,
        title=title,
        status=status,
        detail=detail,
        errors=(errors or [])[:20],
        **extra,
    )
