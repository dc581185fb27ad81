"""Every error that the SDK raises on purpose.

::

    FedclustError
    +-- UsageError                      (also a ValueError) a wrong address, option or token file
    +-- DataError                       the site's rows do not fit the session; nothing was sent
    |   +-- PersonsRefused              the source does not fit the groups of the site's persons
    +-- DisclosureError                 the site's own check refused its answer; nothing was sent
    +-- ConsentError                    the site does not consent; nothing was sent
    |   +-- ConsentNeeded               a consent has to be given expressly
    |   +-- ConsentDeclined             the person who was asked said no
    |   +-- ApprovalNeeded              a recorded approval is missing, withdrawn or of other terms
    +-- StateError                      the site's state cannot be used
    |   +-- StateLocked                 another process runs this session, or writes for too long
    |   +-- StateDamaged                something in it was changed, cut or removed
    |   +-- OtherData                   the session was begun with other rows
    +-- SessionError                    the session ended without a result for this site
    |   +-- SessionFailed
    |   +-- SessionCancelled
    |   +-- SiteLeft                    this site left, was excluded, or had refused a task
    |   +-- TaskRefused                 this site refuses a task, and leaves the session with it
    +-- TransportError                  no usable answer came
    |   +-- CoordinatorUnreachable      tried until the time to give up
    |   +-- TLSError                    a certificate or handshake was refused; never retried
    |   +-- ProxyError                  the proxy refused the connection
    |   +-- ProtocolError               an answer came that the protocol does not allow
    +-- CoordinatorError                the coordinator refused: one class for each problem type
        +-- MalformedRequest, Unauthenticated, Forbidden, NotAddressed, NotFound, ...

No message holds a token, a payload or a value of the data. The problem types (RFC 9457) are shared
by the coordinator and the SDK.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedclust.schema.errors import TaskRule
from fedclust.schema.field_names import FieldError as FieldError

CONTENT_TYPE = "application/problem+json"
PREFIX = "urn:fedclust:problem:"
#: slug -> (status, title), of the subclasses of CoordinatorError. The slug is the stable part;
#: ``detail`` says what to do next.
CATALOGUE: dict[str, tuple[int, str]] = {}


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


class FedclustError(Exception):
    """Base of every error below."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with the message alone, which breaks in a worker process.
        return _unpickled, (type(self), self.args), vars(self)


def _unpickled(kind: type[FedclustError], args: tuple[object, ...]) -> FedclustError:
    return kind.__new__(kind, *args)


class UsageError(FedclustError, ValueError):
    """An address, option, certificate or token file that cannot be used as given."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Turn an error while a file is written into a UsageError that names the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def of_extra(extra: str, what: str) -> Iterator[None]:
    """Turn an ImportError into a UsageError that says what needs which extra of fedclust."""
    try:
        yield
    except ImportError:
        raise UsageError(f"{what}: pip install 'fedclust[{extra}]'") from None


# --- at the site ----------------------------------------------------------------------------------


class DataError(FedclustError):
    """A site's rows do not fit the session. Raised before anything is sent.

    Attributes
    ----------
    source : str
        File name, or what kind of object was given.
    rule : str
        Stable short name of what is wrong, for example ``"missing-column"``.
    column : str or None
    row : int or None
        Line of a CSV file or row of a spreadsheet, from 1; elsewhere the row's index, from 0.
    count : int or None
        How many values are wrong, where more than one is.
    """

    def __init__(
        self,
        source: str,
        rule: str,
        message: str,
        *,
        column: str | None = None,
        row: int | None = None,
        count: int | None = None,
        unit: Literal["line", "row"] = "row",
    ) -> None:
        place = source
        if row is not None:
            place += f", {unit} {row}"
        if column is not None:
            place += f", column {column!r}"
        super().__init__(f"{place}: {message}")
        self.source, self.rule, self.column, self.row, self.count = source, rule, column, row, count


class PersonsRefused(DataError):
    """The source does not fit the groups of the site's persons; the message says what to do."""


class DisclosureError(FedclustError):
    """The site's own check refused what it was about to send; ``rule`` names the broken rule."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"nothing was sent: {message} ({rule})")
        self.rule = rule


class ConsentError(FedclustError):
    """The site does not consent to what the session asks."""


class ConsentNeeded(ConsentError):
    """A consent has to be given expressly; ``needed`` names which."""

    def __init__(self, message: str, needed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.needed = needed


class ConsentDeclined(ConsentError):
    """The person who was asked said no."""


class ApprovalNeeded(ConsentError):
    """A recorded approval is missing, was withdrawn, or is of other terms: ``fedclust approve``."""


class StateError(FedclustError):
    """The site's state cannot be used; nothing was sent."""


class StateLocked(StateError):
    """Another process runs this session for this site, or writes to the state for too long."""


class StateDamaged(StateError):
    """Something in the site's state was changed, cut or removed; nothing is made in its place.

    ``what`` says it without the file's name.
    """

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what


class OtherData(StateError):
    """The session was begun with other rows, persons or features."""


class SessionError(FedclustError):
    """The session ended without a result for this site. ``reason`` is the coordinator's code."""

    def __init__(self, session: str, message: str, reason: str | None = None) -> None:
        super().__init__(f"session {session}: {message}")
        self.session, self.reason = session, reason


class SessionFailed(SessionError):
    """The method could not continue, or too few sites answered for too long."""


class SessionCancelled(SessionError):
    """The analyst or an operator cancelled the session."""


class SiteLeft(SessionError):
    """This site left the session, was excluded from it, or had refused one of its tasks."""


class TaskRefused(SessionError):
    """This site refuses a task, which ends its part in the session; nothing was sent for it.

    ``reason`` is the rule that the task breaks, one of ``fedclust.schema.errors.TASK_RULES``. The
    coordinator learns this rule and nothing else.
    """

    def __init__(self, session: str, rule: TaskRule, message: str) -> None:
        super().__init__(session, f"this site refuses a task: {message} ({rule})", rule)
        self.rule = rule


# --- on the way -----------------------------------------------------------------------------------


class TransportError(FedclustError):
    """No usable answer came from the coordinator."""


class CoordinatorUnreachable(TransportError):
    """No answer within the time to give up. Running the same command again resumes."""


class TLSError(TransportError):
    """A certificate or the handshake was refused, here or there."""


class ProxyError(TransportError):
    """The proxy refused the connection."""


class ProtocolError(TransportError):
    """An answer came that this version of the protocol does not allow."""


# --- from the coordinator -------------------------------------------------------------------------


BY_SLUG: dict[str, type["CoordinatorError"]] = {}


class CoordinatorError(FedclustError):
    """The coordinator refused a request.

    Attributes
    ----------
    slug : str
        Problem type in the catalogue (``fedclust.wire.errors``); class constant.
    status : int
    detail : str
        What to do next.
    errors : tuple of FieldError
        The offending fields.
    request_id : str or None
        Quote it to the coordinator's operator.
    """

    slug: ClassVar[str] = ""

    def __init_subclass__(cls, slug: str, status: int) -> None:
        title = str(cls.__doc__).removesuffix(".")
        cls.slug = slug
        CATALOGUE[slug], BY_SLUG[slug] = (status, title), cls
        cls.__doc__ = f"{title}: problem type ``{slug}``, status {status}."

    def __init__(self, problem: Problem) -> None:
        fields = "; ".join(map(str, problem.errors))
        message = f"{problem.title} ({problem.status}): {problem.detail} {fields}".rstrip()
        if problem.status >= 500 and problem.request_id:
            message += f" Request id: {problem.request_id}"
        super().__init__(message)
        self.status, self.title, self.detail = problem.status, problem.title, problem.detail
        self.errors: tuple[FieldError, ...] = tuple(problem.errors)
        self.request_id = problem.request_id


# The first line of each docstring is the problem's title.


class MalformedRequest(CoordinatorError, slug="malformed-request", status=400):
    """The request cannot be read."""


class Unauthenticated(CoordinatorError, slug="unauthenticated", status=401):
    """A valid token is needed."""


class Forbidden(CoordinatorError, slug="forbidden", status=403):
    """This token's role may not do this."""


class NotAddressed(CoordinatorError, slug="not-addressed", status=403):
    """This round does not address this site."""


class NotFound(CoordinatorError, slug="not-found", status=404):
    """Not found."""


class MethodNotAllowed(CoordinatorError, slug="method-not-allowed", status=405):
    """This path does not take that method."""


class NotAcceptable(CoordinatorError, slug="not-acceptable", status=406):
    """No representation that the client accepts."""


class RequestTimeout(CoordinatorError, slug="request-timeout", status=408):
    """The request took too long to arrive."""


class NameTaken(CoordinatorError, slug="name-taken", status=409):
    """The name is in use with other contents."""


class WrongState(CoordinatorError, slug="wrong-state", status=409):
    """The session's state does not allow this."""


class ConsentMismatch(CoordinatorError, slug="consent-mismatch", status=409):
    """The consent is for another definition."""


class ConsentMissing(CoordinatorError, slug="consent-needed", status=409):
    """A consent that this session needs is missing."""


class SessionExpired(CoordinatorError, slug="session-expired", status=409):
    """The session takes no more sites."""


class TableChanged(CoordinatorError, slug="table-changed", status=409):
    """The site took part with another protected table."""


class TableHeadsNeeded(CoordinatorError, slug="table-heads-needed", status=409):
    """Earlier heads of the site's protected table are needed."""


class VersionUnsupported(CoordinatorError, slug="version-unsupported", status=409):
    """The version of the session is not supported."""


class LateJoiningRefused(CoordinatorError, slug="late-joining-refused", status=409):
    """The session's method takes no site after its start."""


class SitesUnsuitable(CoordinatorError, slug="sites-unsuitable", status=409):
    """These sites cannot serve the session's method."""


class QuorumMissing(CoordinatorError, slug="quorum-missing", status=409):
    """Too few sites for this."""


class NeedsAllSites(CoordinatorError, slug="needs-all-sites", status=409):
    """This phase waits for all its sites."""


class SubmissionDiffers(CoordinatorError, slug="submission-differs", status=409):
    """Another submission of this site is stored for this round."""


class TaskMismatch(CoordinatorError, slug="task-mismatch", status=409):
    """The submission answers another task."""


class LastOperatorToken(CoordinatorError, slug="last-operator-token", status=409):
    """No valid operator token would be left."""


class ResultNotReady(CoordinatorError, slug="result-not-ready", status=409):
    """The session has no result."""


class RoundClosed(CoordinatorError, slug="round-closed", status=410):
    """The round takes no more submissions."""


class BodyTooLarge(CoordinatorError, slug="body-too-large", status=413):
    """The body is larger than this coordinator takes."""


class UnsupportedMediaType(CoordinatorError, slug="unsupported-media-type", status=415):
    """The body's media type or encoding is not supported."""


class Invalid(CoordinatorError, slug="invalid", status=422):
    """The request's contents are not valid."""


class DisclosureRefused(CoordinatorError, slug="disclosure-refused", status=422):
    """The submission would disclose too much."""


class TooManyRequests(CoordinatorError, slug="too-many-requests", status=429):
    """This token has too many requests open."""


class HeadersTooLarge(CoordinatorError, slug="headers-too-large", status=431):
    """The request's headers are larger than this coordinator takes."""


class Internal(CoordinatorError, slug="internal", status=500):
    """The coordinator failed."""


class StoredDataDamaged(CoordinatorError, slug="stored-data-damaged", status=500):
    """Stored data is damaged."""


class Unavailable(CoordinatorError, slug="unavailable", status=503):
    """The coordinator cannot answer now."""


def from_problem(problem: Problem) -> CoordinatorError:
    """Return the error for a problem document; the base class for a type not in the catalogue."""
    return BY_SLUG.get(problem.slug, CoordinatorError)(problem)
