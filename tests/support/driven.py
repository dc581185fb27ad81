"""Drive the engine by hand, with sites that come late, leave, or miss a round."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedclust import rounds
from fedclust.data.outcome_rows import label_persons
from fedclust.data.persons import read_persons
from fedclust.data.site_data import form_counted, session_rows, site_data
from fedclust.methods import lloyd
from fedclust.protection.outcome_counts import RandBelow, count_outcomes
from fedclust.rounds import Plan
from fedclust.rounds.outcomes import OutcomesPayload
from fedclust.schema.feature import Feature
from fedclust.schema.model import Memory
from fedclust.schema.result import Result
from fedclust.schema.run_config import Policy
from fedclust.schema.task import Contribution, Count, Next, Points, SiteTask


def plan_for(
    d: int, config: Mapping[str, Any], policy: Mapping[str, Any] | None = None, seed: int = 0
) -> Plan:
    """Return a lloyd plan over features x0, x1, ..."""
    options = lloyd.Config(**config)
    features = tuple(Feature(name=f"x{j}") for j in range(d))
    return Plan(lloyd.METHOD, options, features, Policy(**(policy or {})), seed)


#: By features, policy and rows. Sites of tests have the same rows in many sessions and rounds.
_POINTS: dict[Any, Points] = {}


def data_of(plan: Plan, rows: ArrayLike) -> Points:
    """Return what a site with these rows (n, d), every row a person, hands to the engine."""
    if not isinstance(rows, np.ndarray):
        return _form_points(plan, rows)
    key = (plan.features, plan.outcomes, plan.policy, rows.dtype.str, rows.shape, rows.tobytes())
    if key not in _POINTS:
        _POINTS[key] = _form_points(plan, rows)
    # Without what a session has derived from them.
    return replace(_POINTS[key])


def _form_points(plan: Plan, rows: ArrayLike) -> Points:
    return site_data(plan, rows, session_rows(plan, rows), plan.policy.min_group_size)[0]


def count_of(
    plan: Plan, rows: ArrayLike, site: str, randbelow: RandBelow = secrets.randbelow
) -> Count:
    """Return what counts the outcomes of these rows, every row a person, with noise."""

    def count(model: Result, memory: Memory) -> OutcomesPayload:
        persons = read_persons(rows, plan.features, outcomes=plan.outcomes)
        _, blocks = form_counted(plan, persons, plan.policy.min_group_size)
        mask = np.ones(len(plan.columns), dtype=np.bool_)
        clusters, cells = label_persons(plan, model, blocks, memory, site, mask)
        k = len(model.centroids)
        tables = []
        for j, outcome in enumerate(plan.outcomes):
            own, n_cells = cells[:, j], len(outcome.cells)
            drawn = count_outcomes(clusters, own, k, n_cells, outcome.variance, randbelow=randbelow)
            tables.append(drawn)
        return OutcomesPayload(cells=tuple(tables))

    return count


def site_step(
    plan: Plan,
    task: SiteTask,
    points: Points,
    site: str,
    number: int,
    *,
    p: int | None = None,
    memory: Memory | None = None,
    count: Count | None = None,
) -> tuple[Any, Memory]:
    """Return a site's answer to the task of a round, and what it remembers."""
    least = plan.policy.min_group_size if p is None else p
    return rounds.local_step(
        *(plan, task, points),
        site=site,
        round_number=number,
        p=least,
        size_band=None,
        memory={} if memory is None else memory,
        count=count,
    )


@dataclass
class Round:
    """A round as it happened."""

    number: int
    phase: str
    tasks: dict[str, SiteTask]
    payloads: dict[str, Any]
    state: rounds.EngineState


@dataclass
class Run:
    """A session as it happened."""

    rounds: list[Round] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    result: Result | None = None


def drive(
    plan: Plan,
    sites: Mapping[str, NDArray[np.float64] | Points],
    *,
    roster: Callable[[int], Sequence[str]] | None = None,
    silent: Callable[[int], Sequence[str]] | None = None,
    without: Sequence[str] = (),
    count: Callable[[str], Count | None] = lambda _site: None,
) -> Run:
    """Run a session to its result.

    Parameters
    ----------
    plan : Plan
    sites : mapping of site to rows (n, d), or to its points
    roster : callable, optional
        ``round -> sites`` that are joined when the round opens; by default all.
    silent : callable, optional
        ``round -> sites`` that do not answer it.
    without : sequence of str
        Sites that take part without outcomes.
    count : callable, optional
        ``site -> what counts its outcomes``; None answers their round empty.
    """

    def joined(number: int) -> Sequence[str]:
        return sorted(sites) if roster is None else roster(number)

    run = Run(memory={site: {} for site in sites})
    data = {
        site: rows if isinstance(rows, Points) else data_of(plan, rows)
        for site, rows in sites.items()
    }
    step: Any = rounds.start(plan, joined(1))
    number = 0
    while isinstance(step, Next):
        number += 1
        tasks: dict[str, SiteTask] = {}
        payloads: dict[str, Any] = {}
        for site in step.task.sites or joined(number):
            if silent is not None and site in silent(number):
                continue
            common, part = rounds.write_task(plan, "session", number, step.task, site)
            tasks[site] = rounds.read_task(plan, common, part)
            payloads[site], run.memory[site] = site_step(
                *(plan, tasks[site], data[site], site, number),
                memory=run.memory[site],
                count=count(site),
            )
        run.rounds.append(Round(number, step.task.phase, tasks, payloads, step.state))
        answers = [
            Contribution(site, payload, plan.policy.min_group_size)
            for site, payload in payloads.items()
        ]
        step = rounds.advance(plan, step.state, answers, joined(number + 1), silent=without)
    run.result = step.result
    return run
