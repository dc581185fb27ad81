"""Files with a password or token, which only their owner may read: a database's address."""

import re
import sys
from pathlib import Path
from typing import Final

from fedclust.wire.errors import UsageError

#: Environment variable of the database's address, which contains a password. There is no option
#: for it, because other users can see a command line.
URL_VARIABLE: Final = "FEDCLUST_SQL_URL"
#: ``scheme:/``, at the start or, once a path was made absolute, after a slash; ``pathlib`` joins
#: the two slashes of an address. A single letter is a drive of Windows.
_SCHEME: Final = re.compile(r"(?:^|[\\/])[A-Za-z][\w+.-]+:[\\/]")
_CREDENTIAL: Final = re.compile(r":.*@", re.DOTALL)


def refuse_address(path: str, what: str) -> str:
    """Return a path; UsageError, which does not repeat it, if it is a database's address.

    Parameters
    ----------
    path : str
        As given, or made absolute.
    what : str
        What was given it, for the message: the name of an option.
    """
    if _SCHEME.search(path) or (_CREDENTIAL.search(path) and not Path(path).exists()):
        raise UsageError(
            f"{what} names a file, and was given what looks like the address of a database. Write "
            f"the address into a file that only you can read, and name that file (sql_url_file=, "
            f"--sql-url-file); or set {URL_VARIABLE}. An address on a command line is visible "
            "to others: if it held a password, change the password"
        )
    return path


def read_secret(path: Path, what: str) -> str:
    """Return what a file holds, without blanks around it; UsageError that calls it ``what``.

    Also if others can read the file (POSIX only).
    """
    try:
        if path.is_file() and sys.platform != "win32" and path.stat().st_mode & 0o077:
            raise UsageError(f"{path} can be read by others: chmod 600 {path}")
        return path.read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise UsageError(f"{path}: the {what} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: this is no file with {what} in it") from None


def read_address(path: str) -> str:
    """Read a database's address from a file that only its owner may read; UsageError."""
    return read_secret(Path(refuse_address(path, "sql_url_file (--sql-url-file)")), "address")
