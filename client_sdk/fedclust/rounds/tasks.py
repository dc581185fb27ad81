"""Tasks as they travel: written at the coordinator, read at a site."""

from pydantic import ValidationError

from fedclust.numeric.arrays import FloatVector
from fedclust.rounds import preparation
from fedclust.rounds.plan import Plan
from fedclust.rounds.stages import phase
from fedclust.schema.encoding import Space
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model, Slug, Tree
from fedclust.schema.task import SiteTask, Task
from fedclust.wire.codec import task_digest
from fedclust.wire.models import TaskDocument


def write_task(
    plan: Plan, session: str, round_number: int, task: Task, site: str | None
) -> tuple[Tree, Tree | None]:
    """Return what travels to a site: the part common to all, and that site's own or None."""
    space = task.space
    common = {
        "session": session,
        "round": round_number,
        "phase": task.phase,
        "space": None if space is None else dict(vars(space)),
        "parameters": task.common.model_dump(mode="python"),
    }
    part = None if site is None else task.per_site.get(site)
    if part is None or phase(plan, task.phase).site_part is None:
        return common, None
    return common, part.model_dump(mode="python")


def task_document(
    plan: Plan, session: str, round_number: int, task: Task, site: str
) -> TaskDocument:
    """Return the task of a round as a site gets it."""
    common, part = write_task(plan, session, round_number, task, site)
    digest = task_digest(common, part)
    return TaskDocument(phase=task.phase, digest=digest, common=common, site=part)


def read_task(plan: Plan, common: Tree, site: Tree | None) -> SiteTask:
    """Read what :func:`write_task` wrote; RuleViolation where it is not a task of this plan."""
    try:
        envelope = TaskCommon.model_validate(common)
        described = phase(plan, envelope.phase)
        parameters = described.task.model_validate(envelope.parameters)
        part = None
        if site is not None:
            if described.site_part is None:
                raise RuleViolation("task", "this phase has no part of a site's own")
            part = described.site_part.model_validate(site)
    except KeyError:
        known = ", ".join(each.name for each in plan.method.phases)
        message = f"{plan.method.name} has no phase {envelope.phase!r}; it has: {known}"
        raise RuleViolation("task-phase", message, "/phase") from None
    except ValidationError:
        raise RuleViolation("task", "the task does not have its phase's form") from None
    space = None if envelope.space is None else _read_space(plan, envelope.space)
    if (space is None) != (envelope.phase == preparation.NAME):
        message = "every task but the preparation's names the space"
        raise RuleViolation("task-space", message, "/space")
    return SiteTask(phase=envelope.phase, common=parameters, site=part, space=space)


class TaskSpace(Model):
    """The scaled space in a task: ``center``, ``scale`` and ``impute`` (d,) in own units.

    ``limit`` (d,): scaled values count as at most so far from 0.
    """

    center: FloatVector
    scale: FloatVector
    impute: FloatVector | None
    limit: FloatVector | None


class TaskCommon(Model):
    """The part of a task that all sites get; ``parameters`` are the phase's own."""

    session: Slug
    round: int
    phase: str
    space: TaskSpace | None
    parameters: dict[str, Tree]


def _read_space(plan: Plan, tree: TaskSpace) -> Space:
    d = len(plan.columns)
    vectors = [each for each in (tree.impute, tree.limit) if each is not None]
    vectors += [tree.center, tree.scale]
    positive = (tree.scale > 0).all() and (tree.limit is None or (tree.limit > 0).all())
    if any(vector.shape != (d,) for vector in vectors) or not positive:
        raise RuleViolation("task-space", "the space does not fit the session's features", "/space")
    if (tree.impute is not None) != (plan.policy.missing != "drop"):
        message = "values are imputed as the definition says"
        raise RuleViolation("task-space", message, "/space/impute")
    if (tree.limit is not None) != (plan.policy.scaling == "standard"):
        raise RuleViolation("task-space", "scaling: standard alone has a limit", "/space/limit")
    return Space(tree.center, tree.scale, tree.impute, tree.limit)
