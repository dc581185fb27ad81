"""Tables of transitions: what they allow, what they refuse, and the page drawn from them."""

from enum import StrEnum
from itertools import product
from pathlib import Path

import pytest

import states
from fedclust_service.domain.round import ROUND_TRANSITIONS, RoundState
from fedclust_service.domain.session import (
    PARTICIPATION_TRANSITIONS,
    SESSION_TRANSITIONS,
    IllegalTransition,
    ParticipationState,
    SessionState,
    Transition,
    next_state,
)

TABLES = [
    (SESSION_TRANSITIONS, SessionState),
    (PARTICIPATION_TRANSITIONS, ParticipationState),
    (ROUND_TRANSITIONS, RoundState),
]

Table = tuple[Transition, ...]


@pytest.mark.parametrize(("table", "names"), TABLES)
def test_only_rows_are_allowed_and_lead_to_every_state(table: Table, names: type[StrEnum]) -> None:
    allowed = {(row.source, row.target) for row in table}
    for source, target in product(names, names):
        if (source, target) in allowed:
            assert next_state(table, source, target) is target
        else:
            with pytest.raises(IllegalTransition, match=f"{source.value} -> {target.value}"):
                next_state(table, source, target)
    reached = {next(iter(names))}
    while True:
        more = {row.target for row in table if row.source in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(names)


def test_nothing_leaves_an_ended_session() -> None:
    assert {state for state in SessionState if state.ended} == set(SessionState) - {
        row.source for row in SESSION_TRANSITIONS
    }


def test_the_page_is_what_the_tables_render() -> None:
    page = Path(states.__file__).with_suffix(".md")
    assert page.read_text(encoding="utf-8") == states.page(), "run `make docs`"


@pytest.mark.parametrize("name", states.TABLES)
def test_the_figure_draws_every_row(name: str) -> None:
    """Except for those of states that the figure leaves out."""
    figure = states.draw(name)
    rows = [row for row in states.TABLES[name] if "held" not in (row.source, row.target)]
    for row in rows:
        assert f"from {row.source.value} to {row.target.value}: {row.why}" in figure.description
        assert f">{row.source.value}</text>" in figure.svg
        assert f">{row.target.value}</text>" in figure.svg
    # One head for each arrow, and one for the arrow that leads to the first state.
    assert figure.svg.count("<polygon") == len(rows) + 1
