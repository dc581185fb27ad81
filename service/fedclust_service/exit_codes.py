"""Exit codes of ``fedclust-service``, and the error that carries one."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of all commands.

    Attributes
    ----------
    OK : int
        The command did what it was asked to do.
    FAILED : int
        An unexpected error. Also: the demo failed, the audit trail has a fault, or a test
        notification was not delivered.
    USAGE : int
        A wrong command line.
    SETTINGS : int
        A setting is unknown, wrong or contradicts another one; no TLS beyond loopback; a secret key
        that is missing or cannot be used; a package that is not installed; no channel to test.
    ADDRESS : int
        The address cannot be listened on: the port is in use, or the address is not this machine's.
    DATABASE : int
        The database cannot be reached or written, or is damaged.
    SCHEMA : int
        The database's schema is older or newer than the program.
    LOCKED : int
        Another coordinator serves the same SQLite file.
    CLOCK : int
        The clock differs from the database's, or is earlier than the last entry of the audit trail.
    """

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
        self.message = message
