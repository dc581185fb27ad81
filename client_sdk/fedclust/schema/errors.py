"""The errors that lower packages raise, at a site and at the coordinator."""

from __future__ import annotations

__all__ = ["MethodFailure"]


class RuleViolation(ValueError):
    """A payload, configuration or table breaks a rule.

    Parameters
    ----------
    rule : str
        Short stable name of the rule, for example ``"smallest-count"``.
    message : str
        What is wrong and what to do, without repeating any value of the data.
    pointer : str
        JSON pointer to the offending field, relative to the thing that was checked.
    """

    def __init__(self, rule: str, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.pointer = pointer

    def __reduce__(self) -> tuple[type[RuleViolation], tuple[str, str, str]]:
        return type(self), (self.rule, self.message, self.pointer)


class MethodFailure(RuntimeError):
    """The method cannot continue with what the sites sent: the session fails.

    ``reason`` is a stable snake_case code, ``message`` says what to change. Neither may contain
    anything that a site sent.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __reduce__(self) -> tuple[type[MethodFailure], tuple[str, str]]:
        return type(self), (self.reason, self.message)
