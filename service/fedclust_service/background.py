"""The base class of the service's long-running threads."""

import threading


class BackgroundThread(threading.Thread):
    """Runs until it is asked to stop. A daemon thread never keeps the process from ending."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._stopping = threading.Event()

    def ask_to_stop(self) -> None:
        """Ask the thread to end soon. Any thread may call this."""
        self._stopping.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end, if it has started."""
        if self.ident is not None:
            super().join(timeout)
