"""The coordinator's side of the rounds: start a session, aggregate its rounds, end it."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from fedclust.numeric.array_types import BoolArray
from fedclust.numeric.threads import one_thread
from fedclust.rounds import evidence, preparation
from fedclust.rounds.plan import Plan
from fedclust.rounds.stage import Closed, EngineState, Round
from fedclust.rounds.stages import STAGES
from fedclust.rounds.sweep import update_each
from fedclust.schema.encoding import Space
from fedclust.schema.errors import MethodFailure
from fedclust.schema.result import HistoryEntry, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import binary_columns
from fedclust.schema.task import Contribution, Done, Next

Masks: TypeAlias = Mapping[str, BoolArray]


def check_roster(plan: Plan, roster: Sequence[str], masks: Masks | None = None) -> None:
    """Raise RuleViolation where these sites cannot serve the method; it says what to change."""
    plan.method.check_roster(_run_config(plan, None, roster, masks))


def start(plan: Plan, roster: Sequence[str], masks: Masks | None = None) -> Next:
    """Return the state and the task of round 1.

    Parameters
    ----------
    plan : Plan
    roster : sequence of str
        The sites that take part.
    masks : mapping of site to (d,) bool, optional
        The columns that each site has; by default, and where a site is not named, all.
    """
    state = EngineState(stage=STAGES[0].name, round=0)
    with one_thread():
        before = Round(plan, state, _run_config(plan, state.space, roster, masks))
        opened = _go_on(before, Closed(state), -1)
    if isinstance(opened, Done):
        raise ValueError("a session has a round")
    return opened


def advance(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    roster: Sequence[str],
    masks: Masks | None = None,
    silent: Collection[str] = (),
) -> Next | Done:
    """Aggregate a round and return the next one's task, or the result.

    Parameters
    ----------
    plan : Plan
    state : EngineState
        What the previous call returned (or what was stored of it).
    contributions : sequence of Contribution
        One for each site that answered, in any order; an empty answer has payload None.
    roster : sequence of str
        The sites that the next round would address.
    masks : mapping of site to (d,) bool, optional
        The columns that each site has, those that have left included; by default all.
    silent : collection of str
        The sites that joined without enough points to answer about outcomes.

    Returns
    -------
    Next or Done

    Raises
    ------
    MethodFailure
        Too few sites answered with something, or the method cannot go on.
    """
    names = [contribution.site for contribution in contributions]
    if len(set(names)) != len(names):
        raise ValueError("a site answers a round once")
    ordered = sorted(contributions, key=lambda contribution: contribution.site)
    closing = Round(plan, state, _run_config(plan, state.space, roster, masks, silent), ordered)
    place = next(i for i, stage in enumerate(STAGES) if stage.name == state.stage)
    enough = closing.answered >= plan.policy.min_sites
    with one_thread(), np.errstate(over="raise", invalid="raise"):
        try:
            closed = STAGES[place].aggregate(closing) if enough else STAGES[place].give_up(closing)
            outcome = _go_on(closing, _recorded(closing, closed), place)
            if not np.isfinite(list(outcome.metrics.values())).all():
                raise FloatingPointError
            return outcome
        except FloatingPointError:
            raise MethodFailure(
                "overflow",
                "the sites' numbers are too large to be added up: declare bounds for the features",
            ) from None


def _recorded(closing: Round, closed: Closed) -> Closed:
    """Return what a round came to, with it in the history."""
    if closed.metrics is None:
        return closed
    metrics, state = {"n_sites": float(closing.answered), **closed.metrics}, closing.state
    entry = HistoryEntry.of(state.round, state.phase, closing.answered, metrics)
    state = closed.state.model_copy(update={"history": (*state.history, entry)})
    return replace(closed, state=state, metrics=metrics)


def _go_on(closing: Round, closed: Closed, place: int) -> Next | Done:
    """Open the next round of the stage at ``place``, or of the first later one that has any."""
    state, task, metrics = closed.state, closed.task, closed.metrics or {}
    while task is None and place + 1 < len(STAGES):
        place += 1
        config = replace(closing.config, space=state.space or closing.config.space)
        state, task = STAGES[place].task(replace(closing, state=state, config=config))
    if task is None:
        binary = bool(binary_columns(closing.plan.columns).all())
        result = with_rounds(state, {each.name for each in closing.plan.method.phases})
        return Done(report_recommended(result, binary=binary), metrics)
    update = {"stage": STAGES[place].name, "round": state.round + 1, "phase": task.phase}
    task = replace(task, space=state.space)
    return Next(state.model_copy(update=update), task, metrics, closed.warnings)


def _run_config(
    plan: Plan,
    space: Space | None,
    roster: Sequence[str],
    masks: Masks | None,
    silent: Collection[str] = (),
) -> RunConfig:
    every = np.ones(len(plan.columns), dtype=np.bool_)
    return plan.config(
        plan.policy.min_group_size,
        space,
        roster=tuple(sorted(roster)),
        masks=defaultdict(lambda: every, dict.fromkeys(roster, every) | dict(masks or {})),
        silent=frozenset(silent),
    )


def with_rounds(state: EngineState, own: Collection[str]) -> Result:
    """Return a state's result with the rounds that each of its clusterings took.

    ``own`` are the method's phases. Of a sweep each clustering has counted its rounds of these.
    """
    if state.found.sweep is None:
        update = {"history": state.history, "n_rounds": state.method_rounds}
        return state.found.model_copy(update=update)
    before = [each for each in state.history if each.phase == preparation.NAME]
    after = [each for each in state.history[len(before) :] if each.phase not in own]

    def taken(_place: int, found: Result) -> dict[str, Any]:
        measured = {} if found.quality is None else {"inertia": found.quality.inertia}
        rounds = [r.model_copy(update={"round": r.round + len(before)}) for r in found.history]
        closing = [r.model_copy(update=measured if r.phase == evidence.NAME else {}) for r in after]
        return {"history": (*before, *rounds, *closing), "n_rounds": len(rounds)}

    return update_each(state.found, taken)


def report_recommended(result: Result, *, binary: bool) -> Result:
    """Return what sites and analysts read of a complete result.

    Of a sweep that is the recommended K's clustering, and every K. ``binary``: whether all columns
    are yes/no columns.
    """
    entries = result.sweep
    if entries is None:
        return result
    # Imported here: a site does not load what only a coordinator computes.
    from fedclust.rounds.model_selection import choose

    choice = choose(entries, binary=binary)
    best = next(entry.result for entry in entries if entry.n_clusters == choice.n_clusters)
    return best.model_copy(
        update={
            "sweep": entries,
            "choice": choice.reason,
            "tied": choice.tied,
            "recommendation": choice.text,
            "warnings": (*result.warnings, *best.warnings),
        }
    )
