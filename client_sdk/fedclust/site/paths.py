"""Directories of a site's lasting state: journals, the ledger, and the groups of its persons."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from fedclust.errors import UsageError
from fedclust.wire.codec import sha256


def default_directory() -> Path:
    """Return the directory of journal and ledger.

    FEDCLUST_JOURNAL_DIR, else FEDCLUST_STATE_DIR, else fedclust's part of this platform's state
    directory.
    """
    for name in ("FEDCLUST_JOURNAL_DIR", "FEDCLUST_STATE_DIR"):
        if given := os.environ.get(name):
            return Path(given)
    return _platform_directory("--journal-dir, FEDCLUST_STATE_DIR or journal_dir=")


def state_directory() -> Path:
    """Return FEDCLUST_STATE_DIR, or fedclust's part of this platform's state directory.

    It does not depend on the journal directory: a person belongs to one group at all coordinators.
    """
    if given := os.environ.get("FEDCLUST_STATE_DIR"):
        return Path(given)
    return _platform_directory("FEDCLUST_STATE_DIR")


def _platform_directory(otherwise: str) -> Path:
    if given := os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME"):
        return Path(given) / "fedclust"
    try:
        home = Path.home()
    except RuntimeError:
        raise UsageError(
            "this user has no home directory to keep state in: name a lasting directory with "
            f"{otherwise}"
        ) from None
    if sys.platform == "win32":
        return home / "AppData" / "Local" / "fedclust"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "fedclust"
    return home / ".local" / "state" / "fedclust"


def has_joined(directory: Path, session: str) -> bool:
    """Return whether a journal directory holds the record of joining a session."""
    # See site.journal: coordinator, site, session and the start of the definition's hash.
    return any(directory.glob(f"*/*/{session}.{'[0-9a-f]' * 12}/session"))


def coordinator_directory(directory: Path, coordinator: str) -> Path:
    """Return the directory of the sessions at one coordinator; the first join makes it."""
    # Safe on every file system; the hash keeps addresses apart.
    host = re.sub(r"[^a-z0-9.-]+", "_", urlsplit(coordinator).netloc.lower())
    return directory / f"{host}.{sha256(coordinator.encode())[:8]}"
