"""The rounds of any session: preparation, the method's rounds, closing, choosing K."""

from fedclust.rounds.coordinator import advance, check_roster, start
from fedclust.rounds.plan import VERSION, Plan
from fedclust.rounds.site import label, local_step, probabilities
from fedclust.rounds.stage import EngineState
from fedclust.rounds.stages import (
    all_phases,
    check,
    most_rounds,
    phase,
    possible_phases,
    read_task,
    task_document,
    write_task,
)

__all__ = [
    "VERSION",
    "EngineState",
    "Plan",
    "advance",
    "all_phases",
    "check",
    "check_roster",
    "label",
    "local_step",
    "most_rounds",
    "phase",
    "possible_phases",
    "probabilities",
    "read_task",
    "start",
    "task_document",
    "write_task",
]
