"""The rounds of any session: preparation, the method's rounds, closing, choosing K."""

from fedclust.rounds.coordinator import advance, check_roster, start
from fedclust.rounds.plan import VERSION, Plan, check_evidence
from fedclust.rounds.site import label, local_step, probabilities
from fedclust.rounds.stage import EngineState
from fedclust.rounds.stages import (
    CLOSING_PHASES,
    MAX_COUNT,
    TaskCommon,
    TaskSpace,
    all_phases,
    check,
    most_rounds,
    phase,
    possible_phases,
    read_task,
    task_document,
    write_task,
)
from fedclust.rounds.workload import aggregation_seconds, check_workload

__all__ = [
    "CLOSING_PHASES",
    "MAX_COUNT",
    "VERSION",
    "EngineState",
    "Plan",
    "TaskCommon",
    "TaskSpace",
    "advance",
    "aggregation_seconds",
    "all_phases",
    "check",
    "check_evidence",
    "check_roster",
    "check_workload",
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
