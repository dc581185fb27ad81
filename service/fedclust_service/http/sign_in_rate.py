"""A limit on failed attempts to sign in, by the address that they come from."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

from fedclust_service.domain.refusal import Refusal

_FAILURES, _SECONDS = 10, 300.0
#: The most addresses that are remembered. Beyond it the longest unseen one is forgotten.
_ADDRESSES = 10_000


class SignInRate:
    """Refuses an address after 10 failed attempts within five minutes.

    A token cannot be guessed. The limit keeps a program that tries from loading the database, and
    shows in the log. Each process counts for itself. Only one thread at a time uses an instance, or
    a count is off by one, which does no harm.

    Parameters
    ----------
    clock : callable
        Returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise Refusal ``too-many-requests`` for an address that failed too often."""
        times = self._failed.get(address)
        if times is None or len(times) < _FAILURES:
            return
        wait = times[0] + _SECONDS - self._clock()
        if wait > 0:
            raise Refusal(
                "too-many-requests",
                "Too many attempts to sign in failed from this address. Wait a few minutes.",
                retry_after_s=int(wait) + 1,
            )

    def failed(self, address: str) -> None:
        """Count a failed attempt."""
        times = self._failed.setdefault(address, deque(maxlen=_FAILURES))
        times.append(self._clock())
        self._failed.move_to_end(address)
        if len(self._failed) > _ADDRESSES:
            self._failed.popitem(last=False)
