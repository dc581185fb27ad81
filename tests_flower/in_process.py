"""A Flower federation in this process: ClientApps called as functions, and a clock that is set."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedclust.definition import canonical, freeze
from fedclust.flower import site
from fedclust.flower.messages import Ask, Reply, pack, unpack
from fedclust.flower.server import FlowerSession
from fedclust.result.session_result import SessionResult
from fedclust.site.approvals import Approvals
from fedclust.site.review import write_review
from fedclust.site.state import SiteState
from fedclust.wire.codec import sha256
from fedclust.wire.models import SessionCreate

SIZES = {"ada": 41, "brno": 73, "cadiz": 55, "delft": 30}
FEATURES: list[dict[str, Any]] = [
    {"name": name, "lower": -1e5, "upper": 1e5} for name in ("x0", "x1", "x2")
]
OUTCOMES: list[dict[str, Any]] = [{"name": "died", "role": "outcome", "kind": "binary"}]
PURPOSE = "Which patients of these hospitals are alike?"


def frames() -> dict[str, pd.DataFrame]:
    """Return the rows of each site: three numbers around four centres, and an outcome."""
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(4, 3)) * 4
    found = {}
    for name, n in SIZES.items():
        cluster = rng.integers(0, 4, n)
        X = centres[cluster] + rng.normal(size=(n, 3)) + [100.0, 0.0, 1e4]
        found[name] = pd.DataFrame(X, columns=["x0", "x1", "x2"])
        found[name]["died"] = (rng.random(n) < 0.1 + 0.2 * cluster).astype(int)
    return found


def write_files(place: Path) -> dict[str, Path]:
    """Write a file for each site; pandas' digits give the same numbers back."""
    files = {name: place / f"{name}.csv" for name in SIZES}
    for name, rows in frames().items():
        rows.to_csv(files[name], index=False)
    return files


def define(sites: Iterable[str], **session: Any) -> bytes:
    """Return a frozen definition of the session ``heart`` in canonical form."""
    request = {"name": "heart", "purpose": PURPOSE, "sites": sorted(sites), "seed": 7, **session}
    return canonical(freeze(SessionCreate.model_validate_json(json.dumps(request)), 7))


@contextmanager
def state_of(place: Path | None) -> Iterator[None]:
    """Set FEDCLUST_STATE_DIR, as the environment of a SuperNode does."""
    with pytest.MonkeyPatch.context() as patch:
        if place is not None:
            patch.setenv("FEDCLUST_STATE_DIR", str(place))
        yield


@dataclass
class Node:
    """A SuperNode: its app and what stays there; ``fault`` may answer instead of it."""

    app: ClientApp
    context: Context
    state: Path | None = None
    fault: Callable[[Ask], Reply | None] = lambda _: None
    alive: bool = True
    replies: list[tuple[Ask, Reply]] = field(default_factory=list)

    def __call__(self, message: Message) -> Message | None:
        asked = unpack(Ask, message)
        faulty = self.fault(asked)
        if not self.alive:
            return None
        with state_of(self.state):
            reply = message_of(faulty, message) if faulty else self.app(message, self.context)
        self.replies.append((asked, unpack(Reply, reply)))
        return reply


def message_of(reply: Reply, message: Message) -> Message:
    return Message(pack(reply), reply_to=message)


class InProcessGrid:
    """What a ServerApp gets: messages are handled as they are pushed."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self._replies: dict[str, Message] = {}
        self._number = itertools.count(1)

    def get_node_ids(self) -> list[int]:
        return [number for number, node in self.nodes.items() if node.alive]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"message-{next(self._number)}"
            message.metadata.__dict__["_message_id"] = number
            reply = self.nodes[message.metadata.dst_node_id](message)
            if reply is not None:
                self._replies[number] = reply
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self._replies.pop(each) for each in numbers if each in self._replies]


@dataclass
class Clock:
    """Time that passes only where the server sleeps; ``at`` is called then."""

    time: float = 0.0
    at: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.time

    def sleep(self, _: float) -> None:
        self.time += 1.0
        self.at()


def context(number: int, config: Mapping[str, Any] = MappingProxyType({})) -> Context:
    return Context(1, number, dict(config), RecordDict(), {})


class Federation:
    """Sites with files and states of their own.

    Parameters
    ----------
    place : Path
    files : mapping of str to Path
    """

    def __init__(self, place: Path, files: Mapping[str, Path]) -> None:
        self.place, self.files = place, files
        self.nodes = {
            number: Node(site.app, context(number), place / name)
            for number, name in enumerate(sorted(files), 1)
        }
        self.grid, self.clock = InProcessGrid(self.nodes), Clock()

    @property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def state(self, name: str) -> SiteState:
        return SiteState(self.place / name)

    def node(self, name: str) -> Node:
        return self.nodes[sorted(self.files).index(name) + 1]

    def approve(self, definition: bytes, *names: str) -> None:
        """Review and approve a session, as two people at each site do."""
        for name in names or self.files:
            state, page = self.state(name), self.place / f"{name}.html"
            (state.directory / "results").mkdir(parents=True, exist_ok=True)
            own = site.ReviewedSession(
                site=name,
                data=str(self.files[name]),
                labels_out=str(self.place / name / "results" / "heart.csv"),
                result_out=str(self.place / name / "results" / "heart.fedclust"),
            )
            opened = site.open_session(state, own, definition)
            review = write_review(opened.request, page, opened.approvals, self.now)
            site.reviewed_session(state, sha256(definition)).update(lambda _, own=own: own)
            Approvals(state).approve(review, "Dr Ruth Levi", review.code)

    def run(self, definition: bytes, join_s: float = 3_600.0) -> SessionResult:
        return FlowerSession(self.grid, definition, join_s, 60.0, self.clock).run()
