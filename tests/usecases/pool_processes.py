"""Processes of the pool with the method of the tests, in which a test can have anything happen."""

import sys
from pathlib import Path

import pytest

from fedclust_service.usecases import aggregation_pool as module
from fedclust_service.usecases.core import Limits
from usecases.direct_api import LIMITS, DirectApi

ALWAYS = Limits(pooled_above_s=-1, heartbeat_s=0.01, driver_poll_s=0.01)
#: The process as it is, to which the method of the tests was added; a hook as in `counting_method`.
WITH_TALLY = """
import sys, threading
sys.path.insert(0, {tests!r})
from fedclust.schema.errors import MethodFailure
from fedclust.methods.registry import METHODS
from fedclust_service.usecases import aggregation_pool
from usecases import counting_method
METHODS[counting_method.NAME] = counting_method.method()
def hook():
    {hook}
counting_method.HOOK.append(hook)
aggregation_pool.main()
"""
HANG = "threading.Event().wait()"


def process_runs(monkeypatch: pytest.MonkeyPatch, hook: str = "pass") -> None:
    """Have the processes to come run a hook in the middle of their aggregation."""
    script = WITH_TALLY.format(tests=str(Path(__file__).parents[1]), hook=hook)
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", script))


def process_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes to come die at once, before they have imported anything."""
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-I", "-S", "-c", ""))


def healed(direct: DirectApi) -> None:
    """Carry the session to its end in this thread, and look for what was counted twice."""
    direct.co.limits = LIMITS
    assert direct.co.driver.run_once()
    assert direct.votes("heart")[0].tolist() == [1, 1, 1]
    assert direct.finish("heart").state == "completed"
