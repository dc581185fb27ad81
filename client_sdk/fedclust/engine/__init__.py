"""The rounds of any session: preparation, the method's rounds, closing, choosing K."""

from __future__ import annotations

from fedclust.engine.checks import MAX_COUNT, check
from fedclust.engine.coordinator import advance, check_roster, start
from fedclust.engine.outside import OutsideLimits, outside_limits
from fedclust.engine.placement import (
    Placement,
    goes_by_distance,
    label_by_distance,
    place,
    place_by_distance,
)
from fedclust.engine.plan import VERSION, Plan, check_evidence, has_features, max_rounds
from fedclust.engine.site import label, local_step, probabilities
from fedclust.engine.stage import EngineState
from fedclust.engine.stages import CLOSING_PHASES, all_phases, most_rounds, phase, possible_phases
from fedclust.engine.tasks import TaskCommon, TaskSpace, read_task, write_task
from fedclust.engine.workload import aggregation_seconds, check_workload

__all__ = [
    "CLOSING_PHASES",
    "MAX_COUNT",
    "VERSION",
    "EngineState",
    "OutsideLimits",
    "Placement",
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
    "goes_by_distance",
    "has_features",
    "label",
    "label_by_distance",
    "local_step",
    "max_rounds",
    "most_rounds",
    "outside_limits",
    "phase",
    "place",
    "place_by_distance",
    "possible_phases",
    "probabilities",
    "read_task",
    "start",
    "write_task",
]
