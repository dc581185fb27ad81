"""The rounds of any session: preparation, the method's rounds, evaluation, choosing K."""

from __future__ import annotations

from fedclust.engine.rounds import (
    MAX_COUNT,
    EngineState,
    Plan,
    TaskCommon,
    TaskSpace,
    advance,
    all_phases,
    check,
    check_installed,
    check_roster,
    has_features,
    label,
    local_step,
    max_rounds,
    most_rounds,
    phase,
    possible_phases,
    read_task,
    start,
    write_task,
)

__all__ = [
    "MAX_COUNT",
    "EngineState",
    "Plan",
    "TaskCommon",
    "TaskSpace",
    "advance",
    "all_phases",
    "check",
    "check_installed",
    "check_roster",
    "has_features",
    "label",
    "local_step",
    "max_rounds",
    "most_rounds",
    "phase",
    "possible_phases",
    "read_task",
    "start",
    "write_task",
]
