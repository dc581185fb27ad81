"""Models for ``openapi.json`` where the wire's own models leave a field open.

A session's options, a task's parameters and a submission's payload depend on the method or the
phase. The wire's models accept any map there, and the engine checks the rest. A generated client
needs a name and a discriminator for each of these maps, so this module derives one model for every
method or phase. No body is read or written with them.

The definition in an answer stays open: a session may pin an older version of its method with other
options, and a client should be able to list sessions of methods that it does not know.
"""

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, Field, RootModel, create_model

from fedclust import rounds
from fedclust.definition.study import SessionOfStudy, SessionRequest
from fedclust.methods.common.options import takes_several
from fedclust.methods.registry import BUILT_IN, METHODS, SEPARATE
from fedclust.rounds import sweep
from fedclust.rounds.stages import TaskCommon
from fedclust.rounds.sweep import SweepPayload, SweepTask
from fedclust.schema.method import AnyMethod
from fedclust.schema.result import Result
from fedclust.schema.task import Phase
from fedclust.wire import models


def described_methods() -> dict[str, AnyMethod]:
    """Return this project's methods that are installed, in the order of the description."""
    return {name: METHODS[name] for name in (*BUILT_IN, *SEPARATE) if name in METHODS}


def derived() -> list[type[BaseModel]]:
    """Return the models, which replace those of the same names that the routes have."""
    by_name = phases()
    tasks = _choice_model(
        "TaskDocument",
        models.TaskDocument.__doc__,
        "phase",
        [_task(name, each) for name, each in by_name.items()],
    )
    task = _with(models.TaskResponse, task=(tasks | None, None))
    whole = _choice_model(
        "SessionCreate",
        models.SessionCreate.__doc__,
        "algorithm",
        [_definition_model(name) for name in described_methods()],
    )
    return [
        _root_model("SessionRequest", SessionRequest.__doc__, whole | SessionOfStudy),
        _with(models.ResultDocument, result=Result),
        task,
        _with(models.SubmissionReceipt, next=(task | None, None)),
        _choice_model(
            "Submission",
            "A site's answer to a round.",
            "phase",
            [_submission(name, each) for name, each in by_name.items()],
        ),
    ]


def phases() -> dict[str, list[Phase]]:
    """Return the phases of this project's methods by name, including those of sweeps."""
    found: dict[str, list[Phase]] = {}
    for method in described_methods().values():
        several = (sweep.for_several(method),) if takes_several(method.options) else ()
        for each in (method, *several):
            for phase in rounds.all_phases(each):
                found.setdefault(phase.name, []).append(phase)
    return found


def _task(name: str, users: Sequence[Phase]) -> type[BaseModel]:
    parameters = _union(sorted((phase.task for phase in users), key=_demands, reverse=True))
    common = create_model(
        f"{_camel(name)}TaskCommon",
        __base__=TaskCommon,
        __doc__=TaskCommon.__doc__,
        phase=_only(name),
        parameters=parameters,
    )
    parts = [phase.site_part for phase in users if phase.site_part is not None]
    return create_model(
        f"{_camel(name)}TaskDocument",
        __base__=models.TaskDocument,
        __doc__=f"The task of the phase `{name}`.",
        phase=_only(name),
        common=common,
        site=(_union([*parts, None]), None),
    )


def _submission(name: str, users: Sequence[Phase]) -> type[BaseModel]:
    return create_model(
        f"{_camel(name)}Submission",
        __base__=models.SubmissionHead,
        __doc__=f"An answer in the phase `{name}`; `payload` null is an empty one.",
        phase=_only(name),
        payload=_union([*sorted((p.payload for p in users), key=_demands, reverse=True), None]),
    )


def _definition_model(method: str) -> type[BaseModel]:
    return create_model(
        f"{_camel(method)}SessionCreate",
        __base__=models.SessionCreate,
        __doc__=f"A session of the method `{method}`.",
        purpose=(models.Purpose, Field(min_length=models.PURPOSE_CHARACTERS[0])),
        algorithm=_only(method),
        config=METHODS[method].options,
    )


def _with(model: type[BaseModel], **fields: Any) -> type[BaseModel]:
    """Return a model with other types for some fields."""
    changed: type[BaseModel] = create_model(
        model.__name__, __base__=model, __doc__=model.__doc__, **fields
    )
    return changed


def _choice_model(
    name: str, doc: str | None, discriminator: str, variants: Sequence[type[BaseModel]]
) -> type[BaseModel]:
    return _root_model(name, doc, Annotated[_union(variants), Field(discriminator=discriminator)])


def _root_model(name: str, doc: str | None, root: Any) -> type[BaseModel]:
    base = cast("type[BaseModel]", RootModel.__class_getitem__(root))
    return create_model(name, __base__=base, __doc__=doc)


def _only(value: str) -> Any:
    return Literal[value]


def _union(kinds: Iterable[Any]) -> Any:
    return reduce(operator.or_, dict.fromkeys(kinds))


def _demands(body: type[BaseModel]) -> tuple[bool, int]:
    """Return a sort key: the first alternative whose required fields are present is the right one.

    Some generated clients read alternatives in this way. Sweeps come first, then models with more
    required fields.
    """
    several, model = issubclass(body, SweepTask | SweepPayload), body
    if several:
        (model, _) = get_args(body.model_fields["parts"].annotation)
        model = next(iter(get_args(model)), model)  # of a payload, it or null
    return several, sum(field.is_required() for field in model.model_fields.values())


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
