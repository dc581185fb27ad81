"""A session as an algorithm of vantage6 4: an example, not a product (docs/details/engines.md).

A node gives an algorithm no folder that lasts. What a site remembers therefore travels with its
answers, and each session forms another table of the same persons. Outcomes are refused: their noise
would come from the seed, which the analyst knows.
"""

import base64
from collections.abc import Iterator
from typing import Any

from vantage6.algorithm.tools.decorators import algorithm_client, data

from fedclust import rounds
from fedclust.definition import plan_of, read_definition
from fedclust.local.simulate import answer_task, read_site, run_rounds
from fedclust.rounds.collecting import Attendance
from fedclust.schema.task import Contribution, Task
from fedclust.wire import codec
from fedclust.wire.submissions import payload_bytes, payload_from_bytes


@algorithm_client
def session(client: Any, definition: str) -> str:
    """Run a session over the organizations that its definition names; return the encoded result."""
    plan, names = _read(definition)
    memory: dict[str, Any] = {name: {} for name in names}
    number_of = {each["name"]: each["id"] for each in client.organization.list()}

    def ask(name: str, **asked: Any) -> dict[str, Any]:
        arguments = {"definition": definition, "name": name, "asked": _pack(asked)}
        input_ = {"method": "answer", "kwargs": arguments}
        task = client.task.create(input_=input_, organizations=[number_of[name]])
        return _unpack(client.wait_for_results(task["id"])[0])

    def exchange(number: int, task: Task, addressed: list[str]) -> Iterator[Attendance]:
        answers = []
        for name in addressed:
            common, part = rounds.write_task(plan, "session", number, task, name)
            reply = ask(name, common=common, part=part, number=number, memory=memory[name])
            memory[name] = reply["memory"]
            payload = payload_from_bytes(rounds.phase(plan, task.phase), reply["body"])
            answers.append(Contribution(name, payload, p=plan.policy.min_group_size))
        yield Attendance(answers, (), names)

    held = {name: ask(name)["held"] for name in names}
    return _pack(codec.to_tree(run_rounds(plan, held, exchange)))


@data(1)
def answer(rows: Any, definition: str, name: str, asked: str) -> str:
    """Return which columns a site has; or with a task its answer and what it remembers."""
    (plan, _), given = _read(definition), _unpack(asked)
    if plan.outcomes or plan.policy.protection == "none":
        raise ValueError("this example answers neither outcomes nor exact rows")
    site = read_site(plan, name, rows, None)
    if "common" not in given:
        return _pack({"held": site.held})
    site.memory = given["memory"]
    task = rounds.read_task(plan, given["common"], given["part"])
    body = payload_bytes(answer_task(plan, task, given["number"], site))
    return _pack({"body": body, "memory": site.memory})


def _read(definition: str) -> tuple[rounds.Plan, list[str]]:
    found = read_definition(definition.encode())
    return plan_of(found), sorted(found.sites)


def _pack(tree: dict[str, Any]) -> str:
    return base64.b64encode(codec.encode(tree)).decode()


def _unpack(text: str) -> dict[str, Any]:
    return dict(codec.decode(base64.b64decode(text)))
