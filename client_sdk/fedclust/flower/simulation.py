"""The ClientApp of a simulation: virtual sites whose rows are files of the analyst's machine.

A virtual site has no state, approval or ledger. What it remembers is in the context that Flower
keeps for it during the run. Its noise comes from the session's seed, as in
:func:`fedclust.simulate`: only code chooses this app, no configuration or message of a real site.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedclust import rounds
from fedclust.definition import plan_of, read_definition
from fedclust.flower.messages import Ask, Reply, pack, unpack
from fedclust.local.simulate import SimulatedSite, answer_task, read_site
from fedclust.schema.size_bands import size_band
from fedclust.wire import codec
from fedclust.wire.models import Participation
from fedclust.wire.submissions import write_submission

_KEY = "fedclust"


def simulation_app(files: Mapping[str, Path]) -> ClientApp:
    """Return the ClientApp of virtual sites; ``files`` has the rows of each by its name.

    A node is the site whose number, in the order of names, is its ``partition-id``. Ray pickles
    the app for each of its processes.
    """
    names = sorted(files)

    def handle(message: Message, context: Context) -> Message:
        asked = unpack(Ask, message)
        number = int(context.node_config["partition-id"])
        reply = Reply(refused="not invited")
        if number < len(names):
            name = names[number]
            site = _read(asked.definition, name, files[name])
            reply = _reply(asked, site, context)
        return Message(pack(reply), reply_to=message)

    app = ClientApp()
    app.query()(handle)
    return app


@functools.cache
def _read(definition: bytes, name: str, file: Path) -> SimulatedSite:
    return read_site(plan_of(read_definition(definition)), name, file, None)


def _reply(asked: Ask, site: SimulatedSite, context: Context) -> Reply:
    plan = plan_of(read_definition(asked.definition))
    kept = context.state.get(_KEY, {"round": 0})
    if asked.ended:
        return Reply(site=site.name)
    if asked.task is None:
        return Reply(site=site.name, participation=_declare(asked, site))
    if kept["round"] == asked.round:
        return Reply(site=site.name, body=kept["body"])
    if kept["round"] > asked.round:
        # A message that was sent again, and overtaken: memory never goes back.
        return Reply(refused="answered")
    site.memory = codec.decode(kept["memory"]) if kept["round"] else {}
    task = rounds.read_task(plan, asked.task.common, asked.task.site)
    payload = answer_task(plan, task, asked.round, site)
    body = write_submission(asked.task.phase, asked.task.digest, payload)
    kept = {"round": asked.round, "body": body, "memory": codec.encode(site.memory)}
    context.state[_KEY] = ConfigRecord(kept)
    return Reply(site=site.name, body=body)


def _declare(asked: Ask, site: SimulatedSite) -> Participation:
    return Participation(
        definition_sha256=codec.sha256(asked.definition),
        features=site.held,
        size_band=size_band(int(site.points.sizes.sum())),
        sdk_version="simulation",
        methods={},
        engine=(),
    )
