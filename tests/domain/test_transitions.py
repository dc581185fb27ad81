"""Tables of transitions: what they allow, what they refuse, and the page drawn from them."""

from __future__ import annotations

import runpy
from enum import StrEnum
from itertools import product
from pathlib import Path

import pytest

from fedclust_service.domain.round import ROUND_TRANSITIONS, RoundState
from fedclust_service.domain.session import (
    PARTICIPATION_TRANSITIONS,
    SESSION_TRANSITIONS,
    ParticipationState,
    SessionState,
)
from fedclust_service.domain.transition import IllegalTransition, Transition, next_state

TABLES = [
    (SESSION_TRANSITIONS, SessionState),
    (PARTICIPATION_TRANSITIONS, ParticipationState),
    (ROUND_TRANSITIONS, RoundState),
]
PAGE = Path(__file__).parents[2] / "docs" / "states.md"
DRAWN = runpy.run_path(str(PAGE.with_suffix(".py")))

Table = tuple[Transition, ...]


@pytest.mark.parametrize(("table", "states"), TABLES)
def test_only_rows_of_the_table_are_allowed(table: Table, states: type[StrEnum]) -> None:
    allowed = {(row.source, row.target) for row in table}
    for source, target in product(states, states):
        if (source, target) in allowed:
            assert next_state(table, source, target) is target
        else:
            with pytest.raises(IllegalTransition, match=f"{source.value} -> {target.value}"):
                next_state(table, source, target)


@pytest.mark.parametrize(("table", "states"), TABLES)
def test_every_state_is_reached_from_the_first(table: Table, states: type[StrEnum]) -> None:
    reached = {next(iter(states))}
    while True:
        more = {row.target for row in table if row.source in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(states)


def test_nothing_leaves_an_ended_session() -> None:
    assert {state for state in SessionState if state.ended} == set(SessionState) - {
        row.source for row in SESSION_TRANSITIONS
    }


def test_the_page_is_what_the_tables_render() -> None:
    assert PAGE.read_text(encoding="utf-8") == DRAWN["page"]()


def test_the_diagram_draws_every_row() -> None:
    drawn = DRAWN["diagram"](SESSION_TRANSITIONS, SessionState)
    assert "[*] --> recruiting" in drawn
    for row in SESSION_TRANSITIONS:
        assert f"{row.source.value} --> {row.target.value}: {row.why}" in drawn
    assert drawn.count("--> [*]") == 3
