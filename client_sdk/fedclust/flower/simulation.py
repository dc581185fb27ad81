"""The ClientApp of a simulation: virtual sites whose rows are files of the analyst's machine.

A virtual site has no state, approval or ledger. What it remembers is in the context that Flower
keeps for it during the run. Its noise comes from the session's seed, as in
:func:`fedclust.simulate`: only code chooses this app, no configuration or message of a real site.
"""

import functools
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedclust import rounds
from fedclust.definition import plan_of, read_definition
from fedclust.flower.messages import KEY, Ask, Declaration, Reply, pack, unpack
from fedclust.local.simulate import SimulatedSite, answer_task, read_site
from fedclust.rounds import Plan
from fedclust.schema.size_bands import size_band
from fedclust.wire import codec
from fedclust.wire.submissions import write_submission


def simulation_app(folder: Path) -> ClientApp:
    """Return the ClientApp of virtual sites; ``folder`` has ``NAME.csv`` for each.

    A node is the site whose number, in the order of the definition's names, is its
    ``partition-id``. Ray pickles the app for each of its processes.
    """

    def handle(message: Message, context: Context) -> Message:
        reply = _answer(folder, unpack(Ask, message), context)
        return Message(pack(reply), reply_to=message)

    app = ClientApp()
    app.query()(handle)
    return app


@functools.cache
def _read(definition: bytes, folder: Path, number: int) -> tuple[Plan, SimulatedSite]:
    found = read_definition(definition)
    plan, name = plan_of(found), sorted(found.sites)[number]
    return plan, read_site(plan, name, folder / f"{name}.csv", None)


def _answer(folder: Path, asked: Ask, context: Context) -> Reply:
    number = int(context.node_config["partition-id"])
    if number >= len(read_definition(asked.definition).sites):
        return Reply(refused="not invited")
    plan, site = _read(asked.definition, folder, number)
    if asked.task is None:
        band = size_band(int(site.points.sizes.sum()))
        return Reply(site=site.name, declared=Declaration(features=site.held, size_band=band))
    kept = context.state.get(KEY, {"round": 0})
    # A message that was sent again, and perhaps overtaken: memory never goes back, and the server
    # takes the answer for the round that it belongs to.
    if kept["round"] < asked.round:
        site.memory = codec.decode(kept["memory"]) if kept["round"] else {}
        task = rounds.read_task(plan, asked.task.common, asked.task.site)
        payload = answer_task(plan, task, asked.round, site)
        body = write_submission(asked.task.phase, asked.task.digest, payload)
        kept = {"round": asked.round, "body": body, "memory": codec.encode(site.memory)}
        context.state[KEY] = ConfigRecord(kept)
    return Reply(site=site.name, body=kept["body"])
