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
    """Return FEDCLUST_JOURNAL_DIR, or fedclust's part of this platform's state directory."""
    if given := os.environ.get("FEDCLUST_JOURNAL_DIR"):
        return Path(given)
    return _platform_directory("--journal-dir, FEDCLUST_JOURNAL_DIR or journal_dir=")


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


def coordinator_directory(directory: Path, coordinator: str) -> Path:
    """Return the directory of the sessions at one coordinator; the first join makes it."""
    # Safe on every file system; the hash keeps addresses apart.
    host = re.sub(r"[^a-z0-9.-]+", "_", urlsplit(coordinator).netloc.lower())
    return directory / f"{host}.{sha256(coordinator.encode())[:8]}"
