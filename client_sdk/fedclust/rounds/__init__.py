"""The rounds of any session: preparation, the method's rounds, closing, choosing K."""

from fedclust.rounds.coordinator import advance as advance
from fedclust.rounds.coordinator import check_roster as check_roster
from fedclust.rounds.coordinator import start as start
from fedclust.rounds.plan import VERSION as VERSION
from fedclust.rounds.plan import Plan as Plan
from fedclust.rounds.site import label as label
from fedclust.rounds.site import local_step as local_step
from fedclust.rounds.site import probabilities as probabilities
from fedclust.rounds.stage import EngineState as EngineState
from fedclust.rounds.stages import all_phases as all_phases
from fedclust.rounds.stages import check as check
from fedclust.rounds.stages import most_rounds as most_rounds
from fedclust.rounds.stages import phase as phase
from fedclust.rounds.stages import possible_phases as possible_phases
from fedclust.rounds.stages import read_task as read_task
from fedclust.rounds.stages import task_document as task_document
from fedclust.rounds.stages import write_task as write_task
