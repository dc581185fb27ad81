"""The ServerApp: an analyst's run of a session over the sites of a Flower federation.

It keeps nothing between runs. A run that died is started again with the same definition: the sites
answer with the same bytes from their journals.
"""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedclust import rounds
from fedclust.definition import check_own_features, plan_of, read_definition
from fedclust.flower.messages import Ask, Declaration, Reply, pack, unpack
from fedclust.local.simulate import run_rounds
from fedclust.result.provenance import platform_of, result_document
from fedclust.result.session_result import SessionResult, read_result
from fedclust.rounds.collecting import Attendance
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.task import Contribution, Task
from fedclust.wire.codec import sha256
from fedclust.wire.errors import SessionFailed
from fedclust.wire.models import ProvenanceEntry, ResultDocument, TaskDocument
from fedclust.wire.submissions import BINARY, SubmissionError, read_submission

#: Below Flower's own logger: `flwr run --stream` and `flwr log` show it.
_LOG = logging.getLogger("flwr.fedclust")


#: Seconds between two looks for replies.
_POLL_S = 0.2


def server_app(definition: Path) -> ServerApp:
    """Return the ServerApp of a session.

    Parameters
    ----------
    definition : Path
        The file that the sites have reviewed. The run's configuration has ``output``, the folder
        of the results, and ``join-wait-s`` and ``again-after-s``, see :class:`FlowerSession`.
    """

    def main(grid: Grid, context: Context) -> None:
        given = context.run_config
        waits = float(given["join-wait-s"]), float(given["again-after-s"])
        result = FlowerSession(grid, definition.read_bytes(), *waits).run()
        folder, name = Path(str(given["output"])), result.definition.name
        folder.mkdir(parents=True, exist_ok=True)
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
    join_s : float
        Seconds for sites to declare themselves; then the session starts with those that have.
    again_s : float
        Seconds until an unanswered message is sent again, then twice as many each time: a node
        takes messages one by one.
    clock
        With ``monotonic`` and ``sleep``, as the module ``time``.
    """

    def __init__(
        self, grid: Grid, definition: bytes, join_s: float, again_s: float, clock: Any = time
    ) -> None:
        self._grid, self._join_s, self._again_s, self._clock = grid, join_s, again_s, clock
        self.definition = read_definition(definition)
        self._plan, self._declare = plan_of(self.definition), Ask(definition=definition)
        #: The sites that take part. One that refused a task, or whose answer broke a rule, is out.
        self._sites: dict[str, Declaration] = {}
        #: How many there were at the start; 0 before.
        self._n_started = 0
        self._names: dict[int, str] = {}
        #: What each site has still to answer.
        self._asked: dict[str, Ask] = {}
        #: By node: what it was asked last, and when. By message: the node, and what it was asked.
        self._sent: dict[int, tuple[Ask, float]] = {}
        self._waiting: dict[str, tuple[int, Ask]] = {}
        self._answers: list[Contribution] = []
        self._submissions: list[ProvenanceEntry] = []

    def run(self) -> SessionResult:
        """Run the session to its end, and tell the sites.

        Raises
        ------
        SessionFailed
        """
        try:
            # Start without the sites that do not declare themselves in time.
            self._exchange_for(self._join_s, lambda: len(self._sites) < len(self.definition.sites))
            if len(self._sites) < self.definition.policy.sites_needed:
                away = ", ".join(sorted(set(self.definition.sites) - set(self._sites)))
                raise MethodFailure("too_few_contributors", f"these sites have not joined: {away}")
            self._n_started = len(self._sites)
            held = {name: own.features for name, own in self._sites.items()}
            short = [name for name, own in self._sites.items() if own.points_short]
            found = run_rounds(self._plan, held, self._ask, short, self._clock.monotonic)
        except (MethodFailure, RuleViolation) as failure:
            self._end(None)
            raise SessionFailed(self.definition.name, failure.message) from None
        content, now = self._declare.definition, datetime.now(UTC)
        platform = platform_of(self.definition.algorithm)
        result = result_document(content, found, now, platform, self._submissions)
        # After another error the run may be started again: the session has not ended.
        self._end(result)
        return read_result(result, self.definition)

    def _end(self, result: ResultDocument | None) -> None:
        """Tell the sites that the session has ended: points that were not used go back."""
        ended = self._declare.model_copy(update={"ended": True, "result": result})
        self._asked, self._waiting = dict.fromkeys(self._names.values(), ended), {}
        self._exchange_for(self._again_s, lambda: bool(self._asked))

    def _ask(self, number: int, task: Task, addressed: list[str]) -> Iterator[Attendance]:
        """Ask the sites for their answers to a round, and yield who has answered."""
        self._answers, self._asked = [], {}
        for site in addressed:
            document = rounds.task_document(self._plan, self.definition.name, number, task, site)
            answered = tuple(each.round for each in self._submissions if each.site == site)
            update = {"round": number, "task": document, "answered": answered}
            self._asked[site] = self._declare.model_copy(update=update)
        _LOG.info("round %d (%s): %d sites", number, task.phase, len(addressed))
        while True:
            self._exchange()
            refused = len(self._sites) < self._n_started
            yield Attendance(self._answers, self._asked, sorted(self._sites), refused)

    # --- messages ---------------------------------------------------------------------------------

    def _exchange_for(self, seconds: float, waiting: Callable[[], bool]) -> None:
        until = self._clock.monotonic() + seconds
        while waiting() and self._clock.monotonic() < until:
            self._exchange()

    def _exchange(self) -> None:
        """Send what is due to the nodes that are connected, and take the replies."""
        now = self._clock.monotonic()
        for node in sorted(self._grid.get_node_ids()):
            asked = self._asked.get(self._names[node]) if node in self._names else self._declare
            last, at = self._sent.get(node, (None, now))
            unanswered = sum(to == node and it is asked for to, it in self._waiting.values())
            wait_s = self._again_s * 2 ** max(unanswered - 1, 0)
            if asked is not None and (asked is not last or now >= at + wait_s):
                self._sent[node] = asked, now
                message = Message(pack(asked), node, "query", group_id=str(asked.round))
                # Flower gives no number to a message that it could not take.
                sent = filter(None, self._grid.push_messages([message]))
                self._waiting.update(dict.fromkeys(sent, (node, asked)))
        for reply in self._grid.pull_messages(list(self._waiting)) if self._waiting else ():
            node, asked = self._waiting.pop(reply.metadata.reply_to_message_id)
            try:
                self._take(node, asked, unpack(Reply, reply))
            except (ValueError, KeyError, TypeError) as error:
                said = reply.error.code if reply.has_error() else type(error).__name__
                _LOG.warning("node %d: error %s", node, said)
        self._clock.sleep(_POLL_S)

    def _take(self, node: int, asked: Ask, reply: Reply) -> None:
        """Take a reply: a refusal, a declaration, or an answer."""
        site = self._names.get(node, "")
        # A message that was sent again gets a second reply, perhaps in a later round.
        current = self._asked.get(site) is asked
        if reply.refused:
            _LOG.warning("%s: %s", site or f"node {node}", reply.refused)
        if reply.final or (current and asked.ended):
            self._put_out(site)
        elif reply.declared is not None:
            self._meet(node, reply.site, reply.declared)
        elif reply.body is not None and current and asked.task is not None:
            self._take_answer(site, asked.round, asked.task, reply.body)

    def _meet(self, node: int, name: str, own: Declaration) -> None:
        """Note which node is a site, if it declares what this session allows."""
        # After the start no site joins.
        invited = self._sites if self._n_started else self.definition.sites
        if name not in invited or check_own_features(self.definition, own.features):
            _LOG.warning("node %d, %s: not invited, or with other features", node, name)
            return
        others = {each: known for each, known in self._names.items() if known != name}
        doubles = self._names.keys() - others.keys() - {node}
        if doubles.intersection(self._grid.get_node_ids()):
            _LOG.warning("nodes %s and %d both call themselves %s", doubles, node, name)
        elif self._sites.setdefault(name, own) == own:
            self._names = {**others, node: name}

    def _put_out(self, site: str) -> None:
        self._sites.pop(site, None)
        self._asked.pop(site, None)

    def _take_answer(self, site: str, number: int, document: TaskDocument, body: bytes) -> None:
        """Take an answer that keeps the rules; a site that sends another one is out."""
        plan, own = self._plan, self._sites[site]
        p = max(plan.policy.min_group_size, own.min_group_size or 0)
        try:
            head, payload = read_submission(rounds.phase(plan, document.phase), body, BINARY)
            if (head.phase, head.task_digest) != (document.phase, document.digest):
                return
            task = rounds.read_task(plan, document.common, document.site)
            mask = plan.has_features(own.features)
            rounds.check(plan, task, payload, p=p, size_band=own.size_band, mask=mask)
        except (SubmissionError, RuleViolation) as error:
            _LOG.warning("%s: its answer is refused: %s", site, error)
            self._put_out(site)
        else:
            del self._asked[site]
            self._answers.append(Contribution(site, payload, p))
            entry = ProvenanceEntry(round=number, site=site, sha256=sha256(body))
            self._submissions.append(entry)
