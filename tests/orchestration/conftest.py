"""An office on SQLite by default; ``both_office`` on SQLite and on PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import structlog

from fedclust.methods.registry import METHODS
from fedclust_service.orchestration import definitions
from fedclust_service.store import Store
from support import tally
from support.clock import ManualClock
from support.logs import through_logging
from support.office import Office


@pytest.fixture(autouse=True)
def _tally(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(METHODS, tally.NAME, tally.method())
    definitions._plan.cache_clear()
    yield
    tally.HOOK.clear()
    tally.CHECKED.clear()
    tally.CONTRIBUTED.clear()
    definitions._plan.cache_clear()


@pytest.fixture
def office(sqlite_url: str, clock: ManualClock) -> Iterator[Office]:
    store = Store.open(sqlite_url, clock)
    yield Office(store, clock)
    store.close()


@pytest.fixture
def both_office(store: Store, clock: ManualClock) -> Office:
    return Office(store, clock)


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Return ``caplog`` with the service's lines in it, whatever a test before has configured."""
    through_logging()
    for name, module in list(sys.modules.items()):
        # A logger keeps the configuration under which it was used first.
        if name.startswith("fedclust_service.orchestration") and hasattr(module, "log"):
            monkeypatch.setattr(module, "log", structlog.get_logger(name))
    caplog.set_level("INFO")
    return caplog
