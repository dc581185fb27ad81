"""What a site is told to do."""

from __future__ import annotations

import pytest

from fedclust_service.domain.round import RoundState, TaskStatus, status_of
from fedclust_service.domain.session import ParticipationState, SessionState

J = ParticipationState.JOINED
RUN = SessionState.RUNNING


@pytest.mark.parametrize(
    ("session", "own", "current", "addressed", "answered", "expected"),
    [
        (SessionState.RECRUITING, ParticipationState.INVITED, None, False, False, "invited"),
        (SessionState.RECRUITING, J, None, False, False, "waiting"),
        (RUN, ParticipationState.INVITED, RoundState.COLLECTING, False, False, "invited"),
        (RUN, J, RoundState.COLLECTING, False, False, "waiting"),
        (RUN, J, RoundState.COLLECTING, True, False, "work"),
        (RUN, J, RoundState.COLLECTING, True, True, "answered"),
        (RUN, J, RoundState.AGGREGATING, True, True, "answered"),
        (RUN, J, RoundState.AGGREGATING, True, False, "waiting"),
        (RUN, ParticipationState.LEFT, RoundState.COLLECTING, True, True, "left"),
        (RUN, ParticipationState.EXCLUDED, RoundState.COLLECTING, False, False, "left"),
        (RUN, ParticipationState.REFUSED, RoundState.COLLECTING, False, False, "left"),
        (SessionState.COMPLETED, J, RoundState.CLOSED, True, True, "ended"),
        (SessionState.FAILED, ParticipationState.LEFT, RoundState.FAILED, True, False, "ended"),
        (SessionState.CANCELLED, ParticipationState.INVITED, None, False, False, "ended"),
    ],
)
def test_what_a_site_is_told(
    session: SessionState,
    own: ParticipationState,
    current: RoundState | None,
    addressed: bool,
    answered: bool,
    expected: str,
) -> None:
    status = status_of(session, own, current, addressed=addressed, answered=answered)
    assert status is TaskStatus(expected)
