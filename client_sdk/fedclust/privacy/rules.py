"""The error that every broken rule raises, at a site and at the coordinator."""

from __future__ import annotations


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
