"""Where randomness comes from, and one numerical thread: the two halves of "same bytes again".

Every generator is derived from the session's seed and from what it is for, never shared: one
generator used by all sites in turn made results depend on the order of arrival.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np


def _generator(*parts: str | int) -> np.random.Generator:
    # The unit separator cannot occur in a slug or a number, so different parts never collide.
    text = "\x1f".join(str(part) for part in ("fedclust", *parts))
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def site_rng(seed: int, site: str, round_number: int) -> np.random.Generator:
    """Return a site's generator for one round. The coordinator knows the seed: never for noise."""
    return _generator("site", seed, site, round_number)


def server_rng(seed: int, purpose: str) -> np.random.Generator:
    """Return the coordinator's generator for one named purpose."""
    return _generator("server", seed, purpose)


class _Keeper:
    """Holds the process's number of BLAS threads at 1 while anyone wants it.

    OpenBLAS has one number for the whole process, and threadpoolctl lets one thread at a time
    change it. So a thread of its own changes it, for all that are inside; another that is done
    earlier, or never, takes nothing away from the rest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._held = ExitStack()
        self._thread: ThreadPoolExecutor | None = None

    def enter(self, limit: Callable[[], AbstractContextManager[Any]]) -> None:
        with self._lock:
            if self._inside == 0:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedclust-blas")
                self._thread.submit(lambda: self._held.enter_context(limit())).result()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._thread is not None:
                self._thread.submit(self._held.close).result()


_keeper = _Keeper()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread: another number gives other last bits.

    Any number of threads of a process may be inside at once.
    """
    # Imported here: it comes with scikit-learn and is not needed to import the package.
    from threadpoolctl import threadpool_limits

    def limit() -> AbstractContextManager[Any]:
        return threadpool_limits(limits=1)  # type: ignore[no-any-return]

    _keeper.enter(limit)
    try:
        # OpenMP's number is each thread's own.
        with limit():
            yield
    finally:
        _keeper.leave()
