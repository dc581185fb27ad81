"""The engine's states and the results."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, update

from fedclust.wire import codec
from fedclust_service.store import tables
from fedclust_service.store._sql import Repository
from fedclust_service.store.errors import DataDamaged

_S, _R = tables.states.c, tables.results.c
_NUMBERED = select(_S.state, _S.sha256).where(
    _S.session_id == bindparam("session_id"), _S.round_number == bindparam("round_number")
)


@dataclass(frozen=True)
class StoredResult:
    """A completed session's result and provenance, in canonical binary form.

    ``cluster_names`` are by K.
    """

    session_id: int
    result: bytes
    provenance: bytes
    completed_at: datetime
    cluster_names: dict[str, list[str]]


class States(Repository):
    """Engine states, one for each round."""

    def put(self, session_id: int, round_number: int, state: bytes) -> None:
        """Store the state after a round; StoreError if that round has one."""
        values = {
            "session_id": session_id,
            "round_number": round_number,
            "state": state,
            "sha256": codec.sha256(state),
        }
        self._insert(tables.states, values)

    def get(self, session_id: int, round_number: int) -> bytes | None:
        """Return the state after one round; None once scrubbed. DataDamaged if its hash differs."""
        return self._one(_intact_state, _NUMBERED, session_id=session_id, round_number=round_number)


def _intact_state(*, state: bytes, sha256: str | None) -> bytes:
    if sha256 != codec.sha256(state):
        raise DataDamaged("state")
    return state


class Results(Repository):
    """Results, one for each session."""

    def put(
        self, session_id: int, result: bytes, provenance: bytes, completed_at: datetime
    ) -> None:
        """Store a result; StoreError if the session has one."""
        values = {
            "session_id": session_id,
            "result": result,
            "provenance": provenance,
            "completed_at": completed_at,
            "sha256": codec.sha256(result + provenance),
        }
        self._insert(tables.results, values)

    def name_clusters(self, session_id: int, names: dict[str, list[str]]) -> None:
        """Store the names of clusters, by K."""
        one = update(tables.results).where(_R.session_id == session_id)
        self._all(one.values(cluster_names=names))

    def get(self, session_id: int) -> StoredResult | None:
        """Return a session's result; DataDamaged if its hash differs."""
        return self._one(_intact, select(tables.results).where(_R.session_id == session_id))


def _intact(*, sha256: str | None, **columns: Any) -> StoredResult:
    if sha256 != codec.sha256(columns["result"] + columns["provenance"]):
        raise DataDamaged("result")
    return StoredResult(**columns | {"cluster_names": columns["cluster_names"] or {}})
