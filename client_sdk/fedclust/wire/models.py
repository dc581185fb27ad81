"""Models of every request and response body of protocol version 1.

Each refuses unknown fields, as requests need it. ``fedclust.client`` reads answers with
:func:`read_reply`, which ignores fields and keeps states that a later coordinator has added.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, ValidationError

from fedclust.schema import states
from fedclust.schema.display import session_fields, session_row
from fedclust.schema.errors import TaskRule
from fedclust.schema.feature import Declared
from fedclust.schema.model import (
    EmailAddress,
    FeatureName,
    Model,
    Slug,
    Tree,
    Visible,
    Written,
    leave_out,
)
from fedclust.schema.result import Result
from fedclust.schema.run_config import Policy
from fedclust.schema.task import Disclosure
from fedclust.schema.times import Timestamp
from fedclust.wire.codec import CONTENT_TYPE, canonical_json, decode

PROTOCOL_VERSION = 1
M = TypeVar("M", bound=BaseModel)
P = TypeVar("P")
MAX_SEED = 2**53 - 1

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
#: One line of text: PostgreSQL texts cannot contain NUL, and logs are written by line.
_TEXT = r"^[^\x00-\x1f\x7f]*$"
Line = Annotated[str, StringConstraints(max_length=200, pattern=_TEXT), Visible]
#: Fewest and most characters of one to five sentences.
PURPOSE_CHARACTERS = (20, 1_000)
Purpose = Annotated[
    str, StringConstraints(max_length=PURPOSE_CHARACTERS[1], pattern=_TEXT), Visible
]
#: 16 random bytes in hexadecimal, with or without a UUID's hyphens.
TABLE_ID = r"^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$"
TableId = Annotated[str, StringConstraints(pattern=TABLE_ID)]
#: The first 8 bytes of a head of a table, in hexadecimal.
Head = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
#: A join names the heads of at most so many changes.
MOST_HEADS = 100_000
ChangeNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]
Role = Literal["operator", "analyst", "site"]


# --- principals -----------------------------------------------------------------------------------


class WhoAmI(Model):
    """The account of a token, where its notifications go, and the versions of this coordinator."""

    role: Role
    name: str
    expires_at: Timestamp
    email: str | None = None
    server_version: str
    protocol_version: int


class PrincipalCreate(Model):
    """Register a site, an analyst or an operator; notifications go to ``email``."""

    name: Slug
    title: Line = ""
    email: EmailAddress | None = None


class PrincipalPatch(Model):
    """Change a site, an analyst or an operator; a disabled one's tokens stop working.

    An empty ``email`` removes the address.
    """

    title: Line | None = None
    email: EmailAddress | Literal[""] | None = None
    disabled: bool | None = None


class TokenInfo(Model):
    """A token without its secret."""

    id: str
    created_at: Timestamp
    expires_at: Timestamp
    revoked_at: Timestamp | None = None
    last_used_at: Timestamp | None = None


class PrincipalInfo(Model):
    """A site, an analyst or an operator. Operators alone see address and token metadata."""

    name: Slug
    title: str
    disabled: bool
    created_at: Timestamp
    last_seen_at: Timestamp | None = None
    email: str | None = None
    tokens: tuple[TokenInfo, ...] | None = None


class TokenCreate(Model):
    """Issue a token."""

    expires_in_days: Annotated[int, Field(ge=1, le=3650)] = 365


class TokenIssued(Model):
    """A new token with its secret, which is shown only here."""

    id: str
    token: str
    expires_at: Timestamp


class TableAcceptance(Model):
    """An operator accepts a site's table as it is after change ``number``, with this head."""

    number: ChangeNumber
    head: Head


class SiteTableInfo(Model):
    """What the coordinator accepted last of a site's protected table."""

    table_id: TableId
    number: int
    head: Head
    accepted_at: Timestamp


# --- algorithms -----------------------------------------------------------------------------------


class PhaseInfo(Model):
    """A phase of a method and every field that leaves a site in it."""

    name: str
    summary: str
    needs_all: bool
    discloses: tuple[Disclosure, ...]


class AlgorithmInfo(Model):
    """A method that this coordinator runs."""

    name: str
    title: str
    version: int
    citation: str
    joins_late: bool
    default_max_rounds: int
    config_schema: dict[str, Any]
    phases: tuple[PhaseInfo, ...]


# --- sessions -------------------------------------------------------------------------------------


class SessionCreate(Written):
    """An analyst's definition of a session. Frozen when the session is created."""

    name: Slug
    """In commands and addresses: a-z, 0-9 and hyphens."""
    study: Slug | None = None
    """The study that the session belongs to."""
    title: Line = ""
    """The title of the session, for the people who decide at a site; at most 200 characters."""
    purpose: Purpose = ""
    """Why the sites should take part, in one to five sentences (20 to 1,000 characters): they
    decide by it.
    """
    contact: Line = ""
    """Who is responsible: name, institution and address, also for questions."""
    approval: Line = ""
    """The ethics approval or the contract."""
    expires: Timestamp | None = None
    """No site joins from then on, by the coordinator's clock. With its offset from UTC, such as
    `2026-12-31T00:00:00Z`.
    """
    algorithm: Line
    """The clustering method; `fkm` suits most sessions."""
    config: dict[str, Any]
    """The method's options; see the page of the method."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    """The same seed gives the same result. None: drawn when the session is created."""
    features: Annotated[tuple[Declared, ...], Field(min_length=1, max_length=10_000)]
    """What every site is asked for, in this order: columns to cluster by, and outcomes."""
    sites: Annotated[tuple[Slug, ...], Field(min_length=1, max_length=10_000)]
    """The sites to invite, which the operator has registered."""
    outcomes_k: Annotated[int, Field(ge=1)] | Literal["recommended"] | None = None
    """With several numbers of clusters: the one that outcomes are counted at. None: `recommended`.
    If no single one is recommended, nothing is counted and no points are used.
    """
    start: Literal["when_all_joined", "manual"] = "when_all_joined"
    """Whether the session starts by itself, or an analyst starts it."""
    policy: Policy = Policy()
    """Protection, number of sites and pace."""

    _written = leave_out(study=None, outcomes_k=None)


class Definition(SessionCreate):
    """A frozen definition: the seed is drawn, versions and the method's defaults are pinned.

    ``engine_version`` is that of the rounds that all methods share.
    """

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    method_version: int
    engine_version: int


def _read_definition(value: Any) -> Any:
    # By itself, so that an unknown field is refused also in an answer: the hash covers it.
    return Definition.model_validate_json(canonical_json(value)) if type(value) is dict else value


def _read_if_known(value: Any) -> Any:
    try:
        return _read_definition(value)
    except ValidationError:
        return None


class SiteStanding(Model):
    """What operators see of a site in a session besides. Byte counts are of bodies, each once.

    ``last_seen_at`` is the last time in any session, to the minute; ``sdk_version`` that of the
    last join. ``refusals`` counts the answers of the site that were refused.
    """

    last_seen_at: Timestamp | None
    sdk_version: str | None
    table_id: str | None
    separate_groups: bool
    other_persons: bool
    refusals: int
    bytes_in: int
    bytes_out: int


class SitePresence(Model):
    """What others see of a site: its name, and whether it takes part and has answered.

    ``refused_task`` is the rule that a task broke, if the site refused it. ``points_short`` is
    whether the site answers no outcomes, because its allowance has too few points. Only operators
    who read a session or list sessions see ``standing``.
    """

    name: Slug
    state: states.AnyParticipationState
    answered: bool | None = None
    late: bool | None = None
    refused_task: str | None = None
    points_short: bool = False
    standing: SiteStanding | None = None


class SessionEntry(Model):
    """A session in a list, or after it was cancelled.

    ``definition`` is null if the stored one is damaged; the SDK also shows null where another
    version wrote it. ``cannot_start`` says why the method cannot serve the sites that have joined,
    and what to change; only analysts and operators who read a single recruiting session see it.
    ``deadline`` is that of the round that collects answers now. ``scrubbed_at`` is when the
    session's payloads were deleted.
    """

    name: Slug
    state: states.AnySessionState
    created_by: str
    created_at: Timestamp
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    stopped_because: str | None = None
    failure: str | None = None
    scrubbed_at: Timestamp | None = None
    cannot_start: str | None = None
    round: int | None = None
    deadline: Timestamp | None = None
    study: Slug | None = None
    definition: Annotated[Definition | None, BeforeValidator(_read_if_known)]
    definition_sha256: Sha256
    sites: tuple[SitePresence, ...]

    def _row(self) -> dict[str, Any]:
        return session_row(self)

    def _shown(self) -> list[tuple[str, Any]]:
        return [*session_fields(self).items()]


class OperatorInfo(Model):
    """Who runs the coordinator, as they say, and how long it keeps what sites have sent.

    ``name`` is empty where they say nothing. ``retention_days`` counts from a session's end.
    """

    name: Line = ""
    retention_days: int | None = None


class SessionInfo(SessionEntry):
    """A session, for its analyst, its sites and operators.

    ``title_of_creator`` is the title of the account ``created_by``. Only who reads a single session
    sees ``operator``.
    """

    definition: Annotated[Definition, BeforeValidator(_read_definition)]
    title_of_creator: str = ""
    operator: OperatorInfo = OperatorInfo()

    @property
    def asker(self) -> str:
        """Who created the session: the account, with its title if it has one."""
        name = self.created_by
        return f"{self.title_of_creator} (analyst {name})" if self.title_of_creator else name


#: What an analyst calls a cluster; empty for no name.
ClusterName = Annotated[
    str,
    StringConstraints(max_length=60, pattern=_TEXT, strip_whitespace=True),
    Visible,
]


class SessionPatch(Model):
    """Move the open round's deadline, invite more sites, or name the clusters of a result.

    As many ``cluster_names`` as a clustering of the result has clusters, in their order; an empty
    one removes a name.
    """

    deadline: Timestamp | None = None
    invite: Annotated[tuple[Slug, ...], Field(max_length=10_000)] = ()
    cluster_names: Annotated[tuple[ClusterName, ...], Field(max_length=10_000)] = ()


class Consents(Model):
    """Express consents beyond the definition itself."""

    two_sites_with: Slug | None = None
    protection_none: bool = False


class TableHeads(Model):
    """The heads of a protected table's last changes: of number ``first``, ``first + 1``, ..."""

    first: ChangeNumber
    heads: Annotated[tuple[Head, ...], Field(min_length=1, max_length=MOST_HEADS, repr=False)]

    @property
    def last(self) -> int:
        """The number of the last change."""
        return self.first + len(self.heads) - 1

    def at(self, number: int) -> str | None:
        """Return the head of a change; None if it is not among these."""
        return self.heads[number - self.first] if self.first <= number <= self.last else None


class Participation(Model):
    """A site joins: its consent, its features and size, and the versions of its SDK.

    Attributes
    ----------
    table_id : str or None
        The random id of the site's protected table; null without one.
    heads : TableHeads or None
        The heads of its changes; null where ``table_id`` is.
    separate_groups : bool
        Whether the site knowingly joins with another table of the same persons.
    other_persons : bool
        Whether it was approved that persons take part whom the site's tables do not know.
    no_person_in_another_table : bool
        Whether the same approval states this of a new table, which then has points of its own.
    points_short : bool
        Whether the site answers no outcomes, because its allowance has too few points.
    methods : dict of method to tuple of int
        The versions of the session's method that the SDK supports; other methods do not matter.
    engine : tuple of int
        The versions of the rounds that all methods share.
    """

    definition_sha256: Sha256
    consents: Consents = Consents()
    features: Annotated[tuple[FeatureName, ...], Field(max_length=10_000)]
    min_group_size: Annotated[int, Field(ge=3, le=1_000_000)] | None = None
    size_band: Line
    table_id: TableId | None = None
    heads: TableHeads | None = None
    separate_groups: bool = False
    other_persons: bool = False
    no_person_in_another_table: bool = False
    points_short: bool = False
    sdk_version: Line
    methods: dict[str, tuple[int, ...]]
    engine: tuple[int, ...]


class ParticipationInfo(Model):
    """A site's participation, for the site itself."""

    session: Slug
    site: Slug
    state: states.AnyParticipationState
    joined_at: Timestamp | None = None
    min_group_size: int | None = None
    size_band: str | None = None
    table_id: TableId | None = None


# --- rounds ---------------------------------------------------------------------------------------


class TaskDocument(Model):
    """The task of a site in a round. ``digest`` covers ``common`` and ``site``."""

    phase: str
    digest: Sha256
    common: dict[str, Tree]
    site: dict[str, Tree] | None = None


class RoundProgress(Model):
    """The progress of a round, for sites that wait. It does not change the task's ETag."""

    answered: int
    addressed: int
    overdue: bool = False


class TaskResponse(Model):
    """What a site has to do now in a session."""

    session_state: states.AnySessionState
    status: states.AnyTaskStatus
    round: int | None = None
    deadline: Timestamp | None = None
    task: TaskDocument | None = None
    progress: RoundProgress | None = None


class TaskRefusal(Model):
    """A site refuses a task: the rule that it breaks, and nothing else."""

    rule: TaskRule


class SubmissionHead(Model):
    """The envelope of a submission; ``payload`` null is an empty answer."""

    phase: Line
    task_digest: Sha256


class AuditHead(Model):
    """An entry of the coordinator's audit trail: its number in the chain, and its hash."""

    number: int
    hash: Sha256

    @property
    def noted(self) -> str:
        """``NUMBER:HASH``, as people note it and ``fedclust-service audit verify`` takes it."""
        return f"{self.number}:{self.hash}"


class Receipt(Model):
    """Proof that a submission is stored durably."""

    session: Slug
    site: Slug
    round: int
    phase: str
    sha256: Sha256
    size: int
    received_at: Timestamp


class SubmissionReceipt(Receipt):
    """A receipt; ``next``, if asked for, is what the site should do now that this has changed."""

    next: TaskResponse | None = None


class RoundSite(Model):
    """Whether a site has answered a round. Sites see only names and states."""

    name: Slug
    answered: bool
    answered_at: Timestamp | None = None
    empty: bool | None = None
    late: bool


class RoundInfo(Model):
    """A round without any payload."""

    session: Slug
    number: int
    phase: str
    state: states.AnyRoundState
    overdue: bool
    needs_all: bool
    opened_at: Timestamp
    deadline: Timestamp
    closed_at: Timestamp | None = None
    close_reason: str | None = None
    aggregation_s: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    sites: tuple[RoundSite, ...]


class Page(Model, Generic[P]):
    """A page of a list."""

    items: tuple[P, ...]
    next: Annotated[
        str | None, Field(description="The cursor of the next page; null on the last one.")
    ] = None

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Return the name of the schema, such as ``RoundInfoPage``."""
        return f"{params[0].__name__}Page"


# --- results --------------------------------------------------------------------------------------


class ProvenanceEntry(Model):
    """A submission that the result was computed from. A site sees only its own."""

    round: int
    site: Slug
    sha256: Sha256


class Provenance(Model):
    """The inputs and versions that the result was computed from.

    ``audit_head`` is the audit entry that records the session's completion. It is null until that
    entry is sealed, which takes about a second.
    """

    definition_sha256: Sha256
    algorithm: str
    method_version: int
    engine_version: int
    seed: int
    sites: tuple[Slug, ...]
    server_version: str
    platform: dict[str, str]
    submissions: tuple[ProvenanceEntry, ...]
    audit_head: AuditHead | None = None


class ResultDocument(Model):
    """``result`` is a :class:`fedclust.schema.result.Result`, as far as its reader may see.

    ``cluster_names`` has the names of clusters by their number K, where somebody gave them.
    """

    session: Slug
    completed_at: Timestamp
    features: tuple[Declared, ...]
    result: dict[str, Tree]
    provenance: Provenance
    cluster_names: dict[str, tuple[ClusterName, ...]] = Field(default_factory=dict)

    def clustering(self) -> Result:
        """Return the result without what a later coordinator has added; ValidationError."""
        return Result.model_validate(self.result, extra="ignore")


def read_reply(
    model: type[M], body: bytes, media: str, extra: Literal["forbid", "ignore"] = "ignore"
) -> M:
    """Read an answer in either form; CodecError or ValidationError.

    Unknown fields are ignored at every level. Only what a hash covers is read strictly, for nobody
    consented to a field of it that is not understood: the definition, and a task, which stays a
    tree until its digest is recomputed.
    """
    if media == CONTENT_TYPE:
        return model.model_validate(decode(body), extra=extra)
    return model.model_validate_json(body, extra=extra)
