"""One thread for numerical libraries: the number of threads changes the last digits of results."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _BlasLimit:
    """Limits the process's BLAS to one thread while any thread needs that.

    OpenBLAS has one setting for the whole process, so only the first thread to enter sets it and
    the last one to leave restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limit: Any = None
        self._controller: Any = None
        self._n_modules = 0

    def acquire(self) -> Any:
        """Limit BLAS and return a controller of all numerical libraries that are loaded."""
        with self._lock:
            # Finding libraries takes milliseconds. Only an import can have loaded another.
            if self._n_modules != len(sys.modules):
                # Imported here: they come with scikit-learn, which ``import fedclust`` can lack.
                # scipy's BLAS would have more threads if it were loaded inside.
                import scipy.linalg  # noqa: F401
                from threadpoolctl import ThreadpoolController

                # Counted first: a module imported meanwhile triggers the next search.
                self._n_modules = len(sys.modules)
                self._controller = ThreadpoolController()
            if self._users == 0:
                self._limit = self._controller.limit(limits=1, user_api="blas")
            self._users += 1
            return self._controller

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limit.restore_original_limits()


_blas_limit = _BlasLimit()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread; several threads of a process may be inside at once.

    The limit covers libraries that are loaded at the start. Code that imports another one inside
    uses this once more, after the import.
    """
    controller = _blas_limit.acquire()
    try:
        # OpenMP keeps a setting for each thread.
        with controller.limit(limits=1):
            yield
    finally:
        _blas_limit.release()
