"""A limit on failed attempts to sign in, by the address that they come from and the token."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from fedclust_service.domain.refusal import Refusal

_FAILURES, _SECONDS = 10, 300.0
#: The most counts that are kept, about 10 MB. Beyond it the longest unseen one is forgotten.
_COUNTS = 10_000


class SignInRate:
    """Refuses a token from an address after 10 failed attempts within five minutes.

    All attempts with tokens that do not exist count together for an address. So who varies the
    token has 10 attempts, and 10 more for each existing token whose id is known. Nobody who shares
    the address and has another token waits. A token cannot be guessed: the limit ends the attempts
    of a program that repeats a wrong one. Each process counts for itself. Any thread may use an
    instance.

    Parameters
    ----------
    clock : callable
        Returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str, token_id: str) -> None:
        """Raise Refusal ``too-many-requests`` for what failed too often.

        ``token_id`` is the id of an existing token, or empty.
        """
        with self._lock:
            times = self._failed.get((_group(address), token_id))
            if times is None or len(times) < _FAILURES:
                return
            wait = times[0] + _SECONDS - self._clock()
        if wait > 0:
            raise Refusal(
                "too-many-requests",
                "Too many attempts to sign in failed from this address with this token, or with "
                "tokens that do not exist. Wait a few minutes, or use another token.",
                retry_after_s=int(wait) + 1,
            )

    def failed(self, address: str, token_id: str) -> None:
        """Count a failed attempt."""
        key = _group(address), token_id
        with self._lock:
            times = self._failed.setdefault(key, deque(maxlen=_FAILURES))
            times.append(self._clock())
            self._failed.move_to_end(key)
            if len(self._failed) > _COUNTS:
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
