"""Limits on the open requests of each token, so that one token cannot block the others."""

from collections import Counter
from dataclasses import dataclass

from starlette.types import Scope

from fedclust_service.domain.refusal import Refusal


class Budget:
    """Counts open requests by token. Only the event loop's thread may use it.

    The key is the complete token as it was sent, before any look into the database. So a refusal
    costs little, and knowing a token's id is not enough to use up its budget. One token may have
    ``each`` requests open, all tokens together ``most``.
    """

    def __init__(self, each: int, most: int, retry_after_s: int) -> None:
        self.each, self.most, self.retry_after_s = each, most, retry_after_s
        self._open: Counter[str] = Counter()
        self._all = 0

    def enter(self, token: str) -> Refusal | None:
        """Count a request in, or return why it is refused."""
        if self._all >= self.most:
            return Refusal(
                "unavailable",
                "The coordinator has too many open requests of this kind. Try again.",
                retry_after_s=self.retry_after_s,
            )
        if self._open[token] >= self.each:
            return Refusal(
                "too-many-requests",
                f"This token has {self.each} requests of this kind open; end one, or wait.",
                retry_after_s=self.retry_after_s,
            )
        self._open[token] += 1
        self._all += 1
        return None

    def leave(self, token: str) -> None:
        """Count a request out."""
        self._all -= 1
        self._open[token] -= 1
        if not self._open[token]:
            del self._open[token]


@dataclass(frozen=True)
class Budgets:
    """One budget for each kind of request."""

    #: Long polls, stored submissions that wait for the next task, and event streams.
    wait: Budget
    #: The files of the API's description and of the documentation, which need no token. Each
    #: download holds an open file or much memory.
    download: Budget
    #: All other requests, including those whose bodies still arrive.
    request: Budget

    def of(self, scope: Scope, token: str | None) -> tuple[str, Budget, str | None]:
        """Return a request's kind, its budget, and the key to count it under; None: do not count.

        Requests without a token are not counted: they are answered or refused at once.
        """
        path: str = scope["path"]
        if path.endswith("/events") or (path.endswith("/task") and scope["query_string"]):
            return "wait", self.wait, token
        if path.startswith(("/static/", "/help/", "/openapi.json")):
            return "download", self.download, "anyone"
        return "request", self.request, token
