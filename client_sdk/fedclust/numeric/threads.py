"""One numerical thread: another number of threads gives other last digits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


class _Libraries:
    """The numerical libraries of this process.

    Looking for them takes milliseconds, which is longer than many a step. It is done again once a
    module has been imported: nothing else brings another library along.
    """

    def __init__(self) -> None:
        self._known: tuple[int, Any] = (0, None)

    def limit(self) -> AbstractContextManager[Any]:
        """Return a context in which each of them has one thread."""
        return self._found().limit(limits=1)  # type: ignore[no-any-return]

    def several(self) -> bool:
        """Return whether any BLAS has more than one thread."""
        found = self._found().lib_controllers
        return any(each.user_api == "blas" and each.num_threads != 1 for each in found)

    def _found(self) -> Any:
        modules, found = self._known
        if found is None or modules != len(sys.modules):
            # Imported here: it comes with scikit-learn and is not needed to import the package.
            from threadpoolctl import ThreadpoolController

            # Counted first: what is imported meanwhile is looked for the next time.
            modules = len(sys.modules)
            found = ThreadpoolController()
            self._known = modules, found
        return found


_libraries = _Libraries()


class _Keeper:
    """Holds the process's number of BLAS threads at 1 while anyone wants it.

    OpenBLAS has one number for the whole process, and threadpoolctl lets one thread at a time
    change it. So a thread of its own changes it, for all that are inside; another that is done
    earlier, or never, takes nothing away from the rest. Where it is 1 anyway, nobody is asked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._holds = False
        self._held = ExitStack()
        self._thread: ThreadPoolExecutor | None = None

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0 and _libraries.several():
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedclust-blas")
                self._thread.submit(lambda: self._held.enter_context(_libraries.limit())).result()
                self._holds = True
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._holds and self._thread is not None:
                self._thread.submit(self._held.close).result()
                self._holds = False


_keeper = _Keeper()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread: another number gives other last bits.

    Any number of threads of a process may be inside at once.
    """
    _keeper.enter()
    try:
        # OpenMP's number is each thread's own.
        with _libraries.limit():
            yield
    finally:
        _keeper.leave()
