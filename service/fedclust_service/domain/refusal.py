"""The error with which a use case refuses a request."""

from typing import Any

from fedclust.schema.errors import RuleViolation
from fedclust.wire.problems import CATALOGUE, FieldError, Problem, problem

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
