"""How long tests wait for something that must happen.

A busy machine is slow, not wrong. So all waits of all tests have one limit, far beyond what any
step takes. It ends a run that hangs; no assertion depends on it. Tests do not assert how long
something takes: benchmarks measure that. `test_repository` refuses other limits.
"""

import threading
from collections.abc import Callable

#: Seconds. Half of pytest's own limit, so that a test can say what it waited for.
TIMEOUT_S = 600.0
_LOOK_S = 0.005


def eventually(holds: Callable[[], object], what: Callable[[], object] = str) -> None:
    """Wait until a condition holds; raise AssertionError after ``TIMEOUT_S``.

    Parameters
    ----------
    holds : callable
        The condition, checked every 5 ms.
    what : callable
        Returns the error's message.
    """
    pause = threading.Event()
    for _ in range(int(TIMEOUT_S / _LOOK_S)):
        if holds():
            return
        pause.wait(_LOOK_S)
    raise AssertionError(f"the condition did not hold in {TIMEOUT_S:.0f} s: {what()}")
