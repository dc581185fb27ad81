"""Exit codes of ``fedclust-service``, and the errors that carry one."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of all commands; docs/reference/exit-codes.md has their meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    SETTINGS = 3
    ADDRESS = 4
    DATABASE = 5
    SCHEMA = 6
    LOCKED = 7
    CLOCK = 8


class StartFailure(Exception):
    """The coordinator cannot run; has a line for the operator and the exit code."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


class SettingsError(StartFailure):
    """The settings are invalid. The message names each setting, never its value."""

    def __init__(self, message: str) -> None:
        super().__init__(Exit.SETTINGS, message)
