"""The ServerApp: an analyst's run of a session over the sites of a Flower federation.

It keeps nothing between runs. A run that died is started again with the same definition: the sites
answer with the same bytes from their journals.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedclust import rounds
from fedclust.definition import plan_of, read_definition
from fedclust.flower.messages import Ask, Reply, pack, unpack
from fedclust.local.simulate import run_rounds
from fedclust.methods.registry import METHODS
from fedclust.result.provenance import platform_of, server_version
from fedclust.result.session_result import SessionResult, read_result
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.task import Contribution, Task
from fedclust.wire import codec
from fedclust.wire.errors import SessionFailed
from fedclust.wire.models import (
    Participation,
    Provenance,
    ProvenanceEntry,
    ResultDocument,
    TaskDocument,
)
from fedclust.wire.submissions import BINARY, SubmissionError, read_submission

#: Below Flower's own logger: `flwr run --stream` and `flwr log` show it.
_LOG = logging.getLogger("flwr.fedclust")


@dataclass
class Pace:
    """How long the server waits; all in seconds.

    Attributes
    ----------
    join : float
        For sites to declare themselves; then the session starts with those that have.
    again : float
        Until an unanswered message is sent again. A repeated message costs a site nothing.
    poll : float
    now, sleep
        The clock.
    """

    join: float = 3_600.0
    again: float = 60.0
    poll: float = 0.2
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def server_app(definition: Path) -> ServerApp:
    """Return the ServerApp of a session.

    Parameters
    ----------
    definition : Path
        The file that the sites have reviewed. The run's configuration has ``output``, the folder
        of the results, ``join-wait-s`` and ``again-after-s`` (:class:`Pace`).
    """

    def main(grid: Grid, context: Context) -> None:
        given = context.run_config
        pace = Pace(float(given.get("join-wait-s", 3_600)), float(given.get("again-after-s", 60)))
        result = FlowerSession(grid, definition.read_bytes(), pace).run()
        folder = Path(str(given.get("output", "results")))
        folder.mkdir(parents=True, exist_ok=True)
        name = result.definition.name
        result.save(folder / f"{name}.fedclust")
        result.save_report(folder / f"{name}.html")
        result.save_ro_crate(folder / f"{name}.zip")
        _LOG.warning("session %s completed: %s", name, folder.resolve())

    app = ServerApp()
    app.main()(main)
    return app


class FlowerSession:
    """One run of a session over the nodes of a grid.

    Parameters
    ----------
    grid : Grid
    definition : bytes
        In canonical form.
    pace : Pace
    """

    def __init__(self, grid: Grid, definition: bytes, pace: Pace) -> None:
        self._grid, self._bytes, self._pace = grid, definition, pace
        self.definition = read_definition(definition)
        self._digest, self._plan = codec.sha256(definition), plan_of(self.definition)
        self._sites: dict[str, Participation] = {}
        self._masks: dict[str, Any] = {}
        self._node_of: dict[str, int] = {}
        #: Sites that refused a task, or whose answer broke a rule: they are not asked again.
        self._gone: set[str] = set()
        self._sent: dict[tuple[int, int], float] = {}
        self._waiting: dict[str, int] = {}
        self._number, self._tasks = 0, dict[str, TaskDocument]()
        self._answers: dict[str, Model | None] = {}
        self._submissions: list[ProvenanceEntry] = []

    def run(self) -> SessionResult:
        """Run the session to its end, and tell the sites.

        Raises
        ------
        SessionFailed
        """
        try:
            self._recruit()
            result = self._document(self._run_rounds())
        except (MethodFailure, RuleViolation) as failure:
            self._end(None)
            raise SessionFailed(self.definition.name, failure.message) from None
        # After another error the run may be started again: the session has not ended.
        self._end(result)
        return read_result(result, self.definition)

    # --- from joining to the result ---------------------------------------------------------------

    def _recruit(self) -> None:
        """Wait for the sites, and start without those that do not declare themselves in time."""
        until, policy = self._pace.now() + self._pace.join, self.definition.policy
        while (away := set(self.definition.sites) - set(self._sites)) and self._pace.now() < until:
            self._exchange()
        if len(self._sites) < max(policy.min_sites, policy.quorum or 0):
            raise _too_few(f"these sites have not joined: {', '.join(sorted(away))}")
        for name, own in self._sites.items():
            self._masks[name] = rounds.has_features(self._plan, own.features)
        rounds.check_roster(self._plan, sorted(self._sites), self._masks)

    def _run_rounds(self) -> Result:
        silent = [
            name
            for name, own in self._sites.items()
            if own.points_short or rounds.lacks_outcomes(self._plan, own.features)
        ]
        return run_rounds(self._plan, sorted(self._sites), self._masks, silent, self._collect)

    def _document(self, result: Result) -> ResultDocument:
        own, sent = self.definition, self._submissions
        provenance = Provenance(
            definition_sha256=self._digest,
            algorithm=own.algorithm,
            method_version=own.method_version,
            engine_version=own.engine_version,
            seed=own.seed,
            sites=tuple(sorted({each.site for each in sent})),
            server_version=server_version(),
            platform=json.loads(platform_of(METHODS.distribution(own.algorithm))),
            submissions=tuple(sorted(sent, key=lambda each: (each.round, each.site))),
        )
        return ResultDocument(
            session=own.name,
            completed_at=datetime.now(UTC),
            features=own.features,
            result=codec.to_tree(result),
            provenance=provenance,
        )

    def _end(self, result: ResultDocument | None) -> None:
        """Tell the sites that the session has ended: points that were not used go back."""
        self._tasks, self._waiting = {}, {}
        until = self._pace.now() + self._pace.again
        for node in self._node_of.values():
            self._send(node, Ask(definition=self._bytes, ended=True, result=result))
        while self._waiting and self._pace.now() < until:
            self._take_replies()

    # --- one round --------------------------------------------------------------------------------

    def _collect(self, number: int, task: Task) -> tuple[list[Contribution], list[str]]:
        """Ask the sites until the round is complete, or its deadline has passed."""
        addressed = self._present() if task.sites is None else sorted(task.sites)
        self._number, self._answers = number, {}
        self._tasks = {name: self._task(number, task, name) for name in addressed}
        policy, phase = self.definition.policy, rounds.phase(self._plan, task.phase)
        deadline = self._pace.now() + policy.round_timeout_s
        while pending := self._pending():
            left = len(addressed) - len(pending) - len(self._answers)
            if phase.ends_with_site and left:
                break
            n, now = sum(each is not None for each in self._answers.values()), self._pace.now()
            enough = n >= max(policy.quorum or len(addressed) - left, policy.min_sites)
            if now >= deadline and enough and not (task.needs_all or phase.needs_all):
                break
            if now >= deadline + policy.fail_after_s:
                if phase.optional:
                    break
                raise _too_few(f"round {number} lacks {', '.join(pending)}")
            self._exchange()
        _LOG.info("round %d (%s): %d answers", number, task.phase, len(self._answers))
        found = [Contribution(name, own, self._p(name)) for name, own in self._answers.items()]
        return found, self._present()

    def _present(self) -> list[str]:
        return sorted(self._sites.keys() - self._gone)

    def _pending(self) -> list[str]:
        return [name for name in self._tasks if name not in {*self._answers, *self._gone}]

    def _p(self, site: str) -> int:
        return max(self._plan.policy.min_group_size, self._sites[site].min_group_size or 0)

    def _task(self, number: int, task: Task, site: str) -> TaskDocument:
        common, part = rounds.write_task(self._plan, self.definition.name, number, task, site)
        digest = codec.task_digest(common, part)
        return TaskDocument(phase=task.phase, digest=digest, common=common, site=part)

    # --- messages ---------------------------------------------------------------------------------

    def _exchange(self) -> None:
        """Send what is due to the nodes that are connected, and take the replies."""
        names, pending = self._names(), self._pending()
        for node in sorted(self._grid.get_node_ids()):
            name, now = names.get(node), self._pace.now()
            if name is None:
                asked = Ask(definition=self._bytes)
            elif name in pending:
                answered = tuple(each.round for each in self._submissions if each.site == name)
                asked = Ask(
                    definition=self._bytes,
                    round=self._number,
                    task=self._tasks[name],
                    answered=answered,
                )
            else:
                continue
            last = self._sent.get((node, asked.round))
            if last is None or now >= last + self._pace.again:
                self._sent[node, asked.round] = now
                self._send(node, asked)
        self._take_replies()

    def _names(self) -> dict[int, str]:
        return {node: name for name, node in self._node_of.items()}

    def _send(self, node: int, asked: Ask) -> None:
        message = Message(pack(asked), node, "query", group_id=str(asked.round))
        # Flower gives no number to a message that it could not take.
        for number in filter(None, self._grid.push_messages([message])):
            self._waiting[number] = node

    def _take_replies(self) -> None:
        for message in self._grid.pull_messages(list(self._waiting)) if self._waiting else ():
            node = self._waiting.pop(message.metadata.reply_to_message_id)
            if message.has_error():
                _LOG.warning("node %d: error %d", node, message.error.code)
                continue
            try:
                self._take(node, unpack(Reply, message))
            except (ValueError, KeyError, TypeError) as error:
                _LOG.warning("node %d: %s", node, type(error).__name__)
        self._pace.sleep(self._pace.poll)

    def _take(self, node: int, reply: Reply) -> None:
        """Take a reply: a refusal, a declaration, or an answer."""
        site = self._names().get(node)
        if reply.refused:
            _LOG.warning("%s: %s", site or f"node {node}", reply.refused)
            if reply.final and site is not None:
                self._gone.add(site)
        elif reply.participation is not None:
            self._meet(node, reply.site, reply.participation)
        elif reply.body is not None and site in self._pending():
            self._take_answer(site, reply.body)

    def _meet(self, node: int, name: str, own: Participation) -> None:
        """Note which node is a site; after the start only for sites that took part from there."""
        holder = self._node_of.get(name)
        wanted = name in self._sites if self._number else name in self.definition.sites
        if not wanted or own.definition_sha256 != self._digest:
            return
        if holder not in (None, node) and holder in set(self._grid.get_node_ids()):
            _LOG.warning("nodes %s and %d both call themselves %s", holder, node, name)
            return
        if self._sites.setdefault(name, own) == own:
            self._node_of[name] = node

    def _take_answer(self, site: str, body: bytes) -> None:
        """Take an answer that keeps the rules; a site that sends another one is out."""
        plan, document, own = self._plan, self._tasks[site], self._sites[site]
        try:
            head, payload = read_submission(rounds.phase(plan, document.phase), body, BINARY)
            if (head.phase, head.task_digest) != (document.phase, document.digest):
                return
            task = rounds.read_task(plan, document.common, document.site)
            mask, band = self._masks[site], own.size_band
            rounds.check(plan, task, payload, p=self._p(site), size_band=band, mask=mask)
        except (SubmissionError, RuleViolation) as error:
            _LOG.warning("%s: its answer is refused: %s", site, error)
            self._gone.add(site)
            return
        self._answers[site] = payload
        entry = ProvenanceEntry(round=self._number, site=site, sha256=codec.sha256(body))
        self._submissions.append(entry)


def _too_few(message: str) -> MethodFailure:
    return MethodFailure("too_few_contributors", message)
