"""The cookie of a reader who has signed in, and a limit on failed attempts to sign in."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from fedclust_service.domain.access import Refusal

#: A browser accepts the prefix `__Host-` only over HTTPS, and then from this host alone.
_SECURE, _LOOPBACK = "__Host-fedclust", "fedclust"


def _name(secure: bool) -> str:
    return _SECURE if secure else _LOOPBACK


def cookie_of(connection: HTTPConnection) -> str | None:
    """Return the text of the reader's cookie, None without one."""
    return connection.cookies.get(_name(connection.url.scheme == "https"))


def set_cookie(request: Request, response: Response, text: str) -> None:
    """Give the browser a cookie. It keeps it until it is closed; the coordinator ends it sooner."""
    secure = request.url.scheme == "https"
    response.set_cookie(
        _name(secure), text, path="/", secure=secure, httponly=True, samesite="strict"
    )


def delete_cookie(request: Request, response: Response) -> None:
    """Have the browser forget its cookie."""
    secure = request.url.scheme == "https"
    response.delete_cookie(_name(secure), path="/", secure=secure, httponly=True, samesite="strict")


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
