"""The states of sessions, rounds and sites: those that are known, and any that an answer has."""

from typing import Annotated, Any, Literal, get_args

from pydantic import StringConstraints, WithJsonSchema

SessionState = Literal["recruiting", "running", "held", "completed", "failed", "cancelled"]
RoundState = Literal["collecting", "aggregating", "closed", "failed"]
ParticipationState = Literal["invited", "joined", "left", "excluded", "refused"]
TaskStatus = Literal["invited", "waiting", "work", "answered", "left", "ended"]
#: Session states that are final. A client waits in every other, also in one that it does not know.
ENDED = ("completed", "failed", "cancelled")


def _may_grow(known: Any) -> Any:
    """Return the description of a state in an answer: later coordinators may have others."""
    return WithJsonSchema({"type": "string", "enum": list(get_args(known))})


_STATE = StringConstraints(pattern=r"^[a-z][a-z_-]{0,39}$")
AnySessionState = Annotated[str, _STATE, _may_grow(SessionState)]
AnyRoundState = Annotated[str, _STATE, _may_grow(RoundState)]
AnyParticipationState = Annotated[str, _STATE, _may_grow(ParticipationState)]
AnyTaskStatus = Annotated[str, _STATE, _may_grow(TaskStatus)]
