"""The base class of the service's long-running threads."""

import threading


class BackgroundThread:
    """Runs :meth:`_run` in a daemon thread until it is asked to stop.

    A daemon thread never keeps the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the thread to end soon. Any thread may call this."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        raise NotImplementedError
