"""One thread for numerical libraries: the number of threads changes the last digits of results."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Blas:
    """The limit of the process's BLAS, and how many threads are inside :func:`one_thread`.

    OpenBLAS has one setting for the whole process, so only the first thread to enter sets it and
    the last one to leave restores it.
    """

    lock = threading.Lock()
    users = 0
    n_modules = 0
    controller: Any = None
    limit: Any = None


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread; several threads of a process may be inside at once.

    The limit covers libraries that are loaded at the start. Code that imports another one inside
    uses this once more, after the import.
    """
    with _Blas.lock:
        # Finding libraries takes milliseconds. Only an import can have loaded another.
        if _Blas.n_modules != len(sys.modules):
            # Imported here: they come with scikit-learn, which ``import fedclust`` can lack.
            # scipy's BLAS would have more threads if it were loaded inside.
            import scipy.linalg  # noqa: F401
            from threadpoolctl import ThreadpoolController

            # Counted first: a module imported meanwhile triggers the next search.
            _Blas.n_modules = len(sys.modules)
            _Blas.controller = ThreadpoolController()
        controller = _Blas.controller
        if _Blas.users == 0:
            _Blas.limit = controller.limit(limits=1, user_api="blas")
        _Blas.users += 1
    try:
        # OpenMP keeps a setting for each thread.
        with controller.limit(limits=1):
            yield
    finally:
        with _Blas.lock:
            _Blas.users -= 1
            if _Blas.users == 0:
                _Blas.limit.restore_original_limits()
