"""Who may do and see what, and the error of a refusal. No other module decides who may."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from fedclust.schema.errors import RuleViolation
from fedclust.schema.result import Result
from fedclust.wire.errors import CATALOGUE, FieldError, Problem, problem
from fedclust_service.domain.session import Participation, ParticipationState

#: Rules of `fedclust.protection.message_checks` about contents that would disclose too much.
_DISCLOSURE_RULES = frozenset({"smallest-count", "complement"})


class Refusal(Exception):
    """A request that is refused; ``slug`` names the problem type of the wire's catalogue.

    ``detail`` says what to do next and never repeats what was sent.
    """

    def __init__(
        self,
        slug: str,
        detail: str,
        errors: list[FieldError] | None = None,
        retry_after_s: int | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(slug)
        self.slug = slug
        self.detail = detail
        self.errors = errors or []
        self.retry_after_s = retry_after_s
        self.extra = extra

    @property
    def status(self) -> int:
        return CATALOGUE[self.slug][0]

    @property
    def retry_headers(self) -> dict[str, str]:
        """The header that says when to try again, if that helps."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}

    def to_problem(self) -> Problem:
        return problem(self.slug, self.detail, self.errors, **self.extra)


def wrong_field(pointer: str, rule: str, message: str, detail: str) -> Refusal:
    """Return the refusal of one field of a body, or of one parameter."""
    return Refusal("invalid", detail, [FieldError(pointer=pointer, rule=rule, message=message)])


def broken_rule(violation: RuleViolation, detail: str, at: str = "") -> Refusal:
    """Return the refusal of contents that break a rule; ``at`` is their pointer in the body."""
    broken = FieldError(
        pointer=at + violation.pointer, rule=violation.rule, message=violation.message
    )
    slug = "disclosure-refused" if violation.rule in _DISCLOSURE_RULES else "invalid"
    return Refusal(slug, detail, [broken])


class Role(StrEnum):
    OPERATOR = "operator"
    ANALYST = "analyst"
    SITE = "site"


@dataclass(frozen=True)
class Principal:
    """A registered operator, analyst or site. Notifications go to its ``email``, if it has one."""

    id: int
    role: Role
    name: str
    title: str
    disabled: bool
    created_at: datetime
    last_seen_at: datetime | None = None
    email: str | None = None

    @property
    def key(self) -> str:
        """The principal in stored rows, such as ``site:north``."""
        return f"{self.role.value}:{self.name}"


@dataclass(frozen=True)
class Token:
    """A token without its secret; ``secret_hmac`` under ``FEDCLUST_SECRET_KEY``."""

    id: str
    principal_id: int
    secret_hmac: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


@dataclass(frozen=True)
class Actor:
    """The caller of a request: a principal with one of its tokens.

    ``via`` says whether it showed the token itself, or the cookie that it got for the token.
    """

    role: Role
    name: str
    token_id: str
    expires_at: datetime
    via: Literal["api", "page"] = "api"

    @property
    def key(self) -> str:
        """The actor in stored rows. It has the role, because two roles may share a name."""
        return f"{self.role.value}:{self.name}"


@dataclass(frozen=True)
class AuditEntry:
    """An entry of the audit trail. It never holds a payload, a token or a record.

    ``number`` and ``hash`` are None until the entry is sealed.
    """

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, str | int | float | bool | None]
    number: int | None = None
    hash: str | None = None


@dataclass(frozen=True)
class AuditSearch:
    """Which entries of the audit trail are wanted; an entry matches all that is given.

    ``subject``, ``actor`` and ``action`` are whole, ``text`` is a part of one of the three.
    ``since`` is included, ``until`` is not.
    """

    subject: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None


# --- what a role may do ---------------------------------------------------------------------------

#: The roles that may ask for each use case. The functions below decide which rows they see.
PERMISSIONS: dict[str, frozenset[Role]] = {
    "admin.read": frozenset({Role.OPERATOR}),
    "metrics.read": frozenset({Role.OPERATOR}),
    "database.back_up": frozenset({Role.OPERATOR}),
    "principal.create": frozenset({Role.OPERATOR}),
    "principal.change": frozenset({Role.OPERATOR}),
    "site.read": frozenset({Role.OPERATOR, Role.ANALYST}),
    "analyst.read": frozenset({Role.OPERATOR}),
    "operator.read": frozenset({Role.OPERATOR}),
    "token.issue": frozenset({Role.OPERATOR}),
    "token.revoke": frozenset({Role.OPERATOR}),
    "table.read": frozenset({Role.OPERATOR, Role.SITE}),
    "table.accept": frozenset({Role.OPERATOR}),
    "session.create": frozenset({Role.OPERATOR, Role.ANALYST}),
    "session.read": frozenset(Role),
    "session.manage": frozenset({Role.OPERATOR, Role.ANALYST}),
    "session.retry": frozenset({Role.OPERATOR}),
    "session.join": frozenset({Role.SITE}),
    "study.create": frozenset({Role.OPERATOR, Role.ANALYST}),
    "study.read": frozenset(Role),
    "study.manage": frozenset({Role.OPERATOR, Role.ANALYST}),
    "task.read": frozenset({Role.SITE}),
    "submission.put": frozenset({Role.SITE}),
    "receipt.read": frozenset({Role.SITE}),
    "round.read": frozenset(Role),
    "audit.head": frozenset(Role),
    "result.read": frozenset(Role),
}


def require(actor: Actor, action: str) -> None:
    """Raise Refusal ``forbidden`` unless the actor's role may do this."""
    allowed = PERMISSIONS[action]
    if actor.role not in allowed:
        names = ", ".join(role.value for role in Role if role in allowed)
        raise Refusal("forbidden", f"Use a token with one of these roles: {names}.")


def absent(what: str) -> Refusal:
    """Return the refusal for what does not exist or the actor may not see."""
    detail = f"There is no {what} of this name that this token may see: check name and token."
    return Refusal("not-found", detail)


# --- which rows a role reaches --------------------------------------------------------------------


def sees_session(actor: Actor, created_by: str, *, takes_part: bool) -> bool:
    """Operators see every session and study, analysts those they created, sites their own."""
    if actor.role is Role.OPERATOR:
        return True
    if actor.role is Role.ANALYST:
        return created_by == actor.key
    return takes_part


class Visible(NamedTuple):
    """Which sessions and studies are listed: those created by somebody, or with a site.

    A site has a participation in its sessions, in any state, and is named by its studies.
    """

    created_by: str | None = None
    site: str | None = None


ALL = Visible()


def visible_to(actor: Actor) -> Visible:
    """Return what lists show to an actor, as :func:`sees_session` says of each."""
    created_by = actor.key if actor.role is Role.ANALYST else None
    return Visible(created_by, actor.name if actor.role is Role.SITE else None)


def sees_whole_study(actor: Actor) -> bool:
    """Whether the actor sees more of a study than what its own sessions say anyway."""
    return actor.role is not Role.SITE


def reads_result(own: Participation | None) -> bool:
    """Everybody who sees a session reads its result, except an excluded site."""
    return own is None or own.state is not ParticipationState.EXCLUDED


def sees_tables(actor: Actor, site: str) -> bool:
    """Operators see the protected tables of every site, a site its own."""
    return actor.role is Role.OPERATOR or actor.name == site


def sees_account_details(actor: Actor) -> bool:
    """Whether others' e-mail addresses, token metadata (never a secret) and traffic are shown."""
    return actor.role is Role.OPERATOR


def sees_answer_details(actor: Actor, site: str) -> bool:
    """Whether the actor sees when ``site`` answered, whether the answer was empty, and its hash.

    Of other sites, a site reads only the name and whether they answered or are late.
    """
    return actor.role is not Role.SITE or actor.name == site


def visible_result(actor: Actor, result: Result) -> Result:
    """Limit a result to what the actor may see.

    A site reads its own sizes, outcomes, differences and mapping. Analysts and operators read
    sizes, outcomes and differences by site and no mapping. The same holds for every K of a sweep.
    """
    if result.sweep is not None:
        entries = tuple(
            entry.model_copy(update={"result": visible_result(actor, entry.result)})
            for entry in result.sweep
        )
        result = result.model_copy(update={"sweep": entries})
    if actor.role is not Role.SITE:
        return result.model_copy(update={"mapping": {}})
    own = frozenset({actor.name})
    sizes = {site: row for site, row in result.site_sizes.items() if site in own}
    mapping = {site: row for site, row in result.mapping.items() if site in own}
    outcomes = None if result.outcomes is None else result.outcomes.of_sites(own)
    differences = None if result.site_differences is None else result.site_differences.of_sites(own)
    update = {"site_sizes": sizes, "mapping": mapping, "outcomes": outcomes}
    return result.model_copy(update={**update, "site_differences": differences})
