"""The errors that lower packages raise, at a site and at the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

#: Why a site refuses a task: the rules that a task of the coordinator can break. A site sends this
#: name to the coordinator, and nothing else about its refusal.
TaskRule = Literal[
    "task", "task-answered", "task-digest", "task-place", "task-phase", "task-rounds", "task-space"
]
#: What is wrong with a task that breaks each rule.
TASK_RULES: dict[TaskRule, str] = {
    "task": "contents that the definition does not provide for, or that cannot be read",
    "task-answered": "another task for a round that the site has answered, or the same too often",
    "task-digest": "not the digest that it names",
    "task-place": "the task of another session or round",
    "task-phase": "a phase that the definition does not provide for, or that is over",
    "task-rounds": "more rounds than the definition allows",
    "task-space": "another scaled space than the session's",
}


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


@contextmanager
def broken_at(pointer: str = "", where: str = "") -> Iterator[None]:
    """Put a place before the pointer of a RuleViolation, and ``where`` before its message."""
    try:
        yield
    except RuleViolation as broken:
        message, pointer = where + broken.message, pointer + broken.pointer
        raise RuleViolation(broken.rule, message, pointer) from None


def broken_task_rule(violation: RuleViolation) -> TaskRule | None:
    """Return the rule that a task breaks; None if something else breaks one."""
    return next((rule for rule in TASK_RULES if rule == violation.rule), None)


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
