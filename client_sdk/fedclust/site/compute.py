"""Check a coordinator's task and compute the answer. No I/O.

Neither side trusts the other. A site recomputes the definition's hash and each task's digest,
checks the session's policy and number of rounds against its consent, and checks its own answer as
the coordinator will, before anything is written or sent.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fedclust import rounds
from fedclust.data.outcome_rows import OutcomeBlock, label_persons
from fedclust.definition import DefinitionError, canonical, check_definition, plan_of
from fedclust.numeric.array_types import IntArray
from fedclust.protection.outcome_counts import count_outcomes
from fedclust.rounds import Plan, outcomes
from fedclust.rounds.stages import leaves
from fedclust.schema.errors import RuleViolation, broken_task_rule
from fedclust.schema.feature import Outcome
from fedclust.schema.field_names import field_path
from fedclust.schema.model import Memory
from fedclust.schema.result import Result
from fedclust.schema.task import Count, Points
from fedclust.site.consent import ConsentRequest
from fedclust.site.journal import ComputedAnswer
from fedclust.wire import codec, errors
from fedclust.wire.models import SessionInfo, TaskDocument
from fedclust.wire.submissions import write_submission


def accepted_plan(session: str, info: SessionInfo) -> Plan:
    """Return a session's plan if its definition matches its hash and follows the rules.

    Raises
    ------
    VersionUnsupported
        This SDK does not support the method's pinned version; the message says how to upgrade.
    ProtocolError
    """
    definition = info.definition
    if definition.name != session or codec.sha256(canonical(definition)) != info.definition_sha256:
        raise errors.ProtocolError("the session's definition does not have the hash it claims")
    try:
        plan = plan_of(definition)
    except DefinitionError as error:
        raise errors.VersionUnsupported(errors.problem("version-unsupported", str(error))) from None
    try:
        check_definition(definition)
    except DefinitionError as error:
        raise errors.ProtocolError(f"the definition breaks the protocol's rules: {error}") from None
    return plan


def refuse_foreign(plan: Plan, session: str, number: int, document: TaskDocument) -> None:
    """Raise TaskRefused unless a task matches its digest, round and session."""
    common = document.common
    named = (common.get("session"), common.get("round"), common.get("phase"))
    if codec.task_digest(common, document.site) != document.digest:
        message = f"that of round {number} does not have the digest it claims"
        raise errors.TaskRefused(session, "task-digest", message)
    if named != (session, number, document.phase):
        message = f"that of round {number} belongs to another round or session"
        raise errors.TaskRefused(session, "task-place", message)
    if not 1 <= number <= rounds.most_rounds(plan):
        message = f"round {number} is beyond what was consented to"
        raise errors.TaskRefused(session, "task-rounds", message)


def first_task(request: ConsentRequest, roster: Sequence[str]) -> TaskDocument:
    """Return the first task that the coordinator will send once the session starts."""
    plan, session, site = request.plan, request.session, request.site
    task = rounds.start(plan, sorted(roster), {site: request.mask}).task
    document = rounds.task_document(plan, session, 1, task, site)
    # Pass it through the codec, as it will arrive.
    return codec.decode_model(TaskDocument, codec.encode_model(document))


def compute_answer(
    request: ConsentRequest,
    data: Points,
    number: int,
    document: TaskDocument,
    memory: Memory,
    media: str,
    count: Count | None = None,
) -> ComputedAnswer:
    """Compute the answer to an accepted task; the engine checks it.

    ``count`` counts outcomes; without it the site answers no question about them.

    Raises
    ------
    DisclosureError
        The answer would break a rule.
    TaskRefused
        The task breaks one.
    """
    plan, p, band = request.plan, request.p, request.size_band
    try:
        task = rounds.read_task(plan, document.common, document.site)
        payload, after = rounds.local_step(
            plan,
            task,
            data,
            site=request.site,
            round_number=number,
            p=p,
            size_band=band,
            memory=memory,
            mask=request.mask,
            count=count,
        )
    except RuleViolation as error:
        rule = broken_task_rule(error)
        if rule is not None:
            raise errors.TaskRefused(request.session, rule, error.message) from None
        raise errors.DisclosureError(error.rule, error.message) from None
    body = write_submission(task.phase, document.digest, payload, media)
    fields, smallest = summary(payload)
    if task.phase == outcomes.NAME and not request.protection_none:
        # Counts with noise are no numbers of persons.
        smallest = None
    return ComputedAnswer(
        phase=task.phase, body=body, fields=fields, smallest_count=smallest, memory=after
    )


def count_persons(
    request: ConsentRequest, persons: Callable[[], Iterator[OutcomeBlock]] | None
) -> Count:
    """Return what counts the outcomes of a site's persons: each call draws noise.

    Without ``persons`` it gives tables of the right shapes, and neither reads rows nor draws noise.
    """
    exact = persons is None or request.protection_none

    def count(model: Result, memory: Memory) -> outcomes.OutcomesPayload:
        blocks = persons() if persons else ()
        clusters, cells = label_persons(
            request.plan, model, blocks, memory, request.site, request.mask
        )

        def table(place: int, outcome: Outcome) -> IntArray | None:
            if outcome.name not in request.features:
                return None
            variance = Fraction(0) if exact else outcome.variance
            k, n_cells = len(model.centroids), len(outcome.cells)
            return count_outcomes(clusters, cells[:, place], k, n_cells, variance)

        tables = (table(place, outcome) for place, outcome in enumerate(request.plan.outcomes))
        return outcomes.OutcomesPayload(cells=tuple(tables))

    return count


def summary(payload: Any) -> tuple[dict[str, str], int | None]:
    """Describe an answer for the ledger: its fields with shapes, and its smallest count above 0.

    Integers in an answer are counts of persons, except ``points``, which counts groups.
    """
    fields: dict[str, str] = {}
    counts: list[int] = []
    for pointer, value in leaves(payload or ()):
        name = field_path(pointer)
        if isinstance(value, np.ndarray):
            fields[name] = f"{value.dtype.name}{list(value.shape)}"
            if value.dtype.kind in "iu" and name.rpartition(".")[2] != "points":
                counts += [int(count) for count in value.ravel() if count > 0]
        elif value is not None:
            fields[name] = type(value).__name__
            if type(value) is int and value > 0:
                counts.append(value)
    return dict(sorted(fields.items())), min(counts, default=None)
