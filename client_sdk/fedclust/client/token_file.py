"""Tokens as people give them: the text, or a file that only its owner may read."""

import os
import re
from pathlib import Path

from fedclust.data.secret_files import read_secret
from fedclust.wire.errors import UsageError

_TOKEN = re.compile(r"fc[aos]_\S+")


def read_token_file(path: str | os.PathLike[str]) -> str:
    """Return the token of a file; UsageError for a file that cannot be used."""
    token = read_secret(Path(path), "token")
    if not token:
        raise UsageError(f"{path} is empty: it holds the token, fcs_..., and nothing else")
    return token


def choose_token(token: str | None, token_file: str | os.PathLike[str] | None) -> str | None:
    """Return the token that was given, without spaces and line breaks around it; None for none.

    Raises
    ------
    UsageError
        Both were given, the file cannot be used, or ``token`` is the path of a file.
    """
    if token_file is not None:
        if token:
            raise UsageError("token and token_file contradict each other: give one")
        return read_token_file(token_file)
    found = (token or "").strip()
    if found and not _TOKEN.fullmatch(found) and len(found) < 256 and Path(found).is_file():
        raise UsageError("token is the path of a file: give it as token_file=")
    return found or None
