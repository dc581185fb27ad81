"""A coordinator without HTTP: ``direct`` on SQLite, ``both`` on SQLite and on PostgreSQL."""

import sys
from collections.abc import Iterator

import pytest
import structlog

from fedclust.methods.registry import METHODS
from fedclust_service.store import Store
from fedclust_service.usecases import definitions
from support.clock import ManualClock
from support.local_coordinator import through_logging
from usecases import counting_method
from usecases.direct_api import DirectApi


@pytest.fixture(autouse=True)
def _counting_method(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(METHODS, counting_method.NAME, counting_method.method())
    definitions._plan.cache_clear()
    yield
    counting_method.HOOK.clear()
    counting_method.CHECKED.clear()
    counting_method.CONTRIBUTED.clear()
    definitions._plan.cache_clear()


@pytest.fixture
def direct(sqlite_url: str, clock: ManualClock) -> Iterator[DirectApi]:
    store = Store.open(sqlite_url, clock)
    yield DirectApi(store, clock)
    store.close()


@pytest.fixture
def both(store: Store, clock: ManualClock) -> DirectApi:
    return DirectApi(store, clock)


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Return ``caplog`` with the service's lines in it, whatever a test before has configured."""
    through_logging()
    for name, module in list(sys.modules.items()):
        # A logger keeps the configuration under which it was used first.
        if name.startswith("fedclust_service.usecases") and hasattr(module, "log"):
            monkeypatch.setattr(module, "log", structlog.get_logger(name))
    caplog.set_level("INFO")
    return caplog
