"""A limit on failed attempts to sign in, by the address that they come from."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from fedclust_service.domain.refusal import Refusal

_FAILURES, _SECONDS = 10, 300.0
#: The most addresses that are remembered. Beyond it the longest unseen one is forgotten.
_ADDRESSES = 10_000


class SignInRate:
    """Refuses an address after 10 failed attempts within five minutes.

    A token cannot be guessed. The limit keeps a program that tries from loading the database, and
    shows in the log. Each process counts for itself. Any thread may use an instance.

    Parameters
    ----------
    clock : callable
        Returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Raise Refusal ``too-many-requests`` for an address that failed too often."""
        with self._lock:
            times = self._failed.get(_group(address))
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
        group = _group(address)
        with self._lock:
            times = self._failed.setdefault(group, deque(maxlen=_FAILURES))
            times.append(self._clock())
            self._failed.move_to_end(group)
            if len(self._failed) > _ADDRESSES:
                self._failed.popitem(last=False)


def _group(address: str) -> str:
    """Return what an address is counted under: of IPv6 the network of its host."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(IPv6Network((int(ip), 64), strict=False))
