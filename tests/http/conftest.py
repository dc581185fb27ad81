"""A coordinator with a session in its first round."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedclust_service.store import Tx
from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.contract_watch import Watch, watched_coordinator
from support.local_coordinator import LocalCoordinator, local_coordinator

SITES = ("north", "south", "west")


@dataclass
class Running:
    """Session ``heart`` of analyst ``ada``, all three sites joined, round 1 open."""

    local: LocalCoordinator
    api: ApiCaller
    clock: ManualClock

    def stored(self) -> int:
        """Return how many submissions the database holds."""

        def count(tx: Tx) -> int:
            latest = tx.rounds.latest(tx.sessions.get("heart").id)
            return len(tx.submissions.list(latest.id))

        return self.local.coordinator.store.read("test.count", count)


@contextmanager
def round_1(place: Path, *, threads: bool = False, **settings: object) -> Iterator[Running]:
    """Run a coordinator whose session ``heart`` is in its first round."""
    clock, texts = ManualClock(), {name: str(value) for name, value in settings.items()}
    with local_coordinator(place, clock=clock, threads=threads, **texts) as local:
        api = ApiCaller.found(local, SITES)
        api.begin("ada", "heart", SITES, policy={"missing": "drop"})
        yield Running(local, api, clock)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCoordinator]:
    """Return a coordinator of the module's own; its clock stands still, no threads run."""
    with local_coordinator(tmp_path_factory.mktemp("served"), clock=ManualClock()) as local:
        yield local


@pytest.fixture(scope="module")
def aggregating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCoordinator]:
    """Return a coordinator of the module's own, with its threads."""
    with local_coordinator(tmp_path_factory.mktemp("aggregating"), threads=True) as local:
        yield local


#: Of each kind somebody with a token that nobody uses.
OTHERS = {"sites": "south", "analysts": "bob", "operators": "grace"}


def two_analysts(local: LocalCoordinator) -> tuple[ApiCaller, dict[str, str]]:
    """Make a study and a session in round 1 for each of two analysts, of three sites each.

    Also returns the ids of tokens of ``OTHERS``.
    """
    api = ApiCaller(local.base_url, local.operator_token)
    sessions = {"ada": ["north", "south", "west"], "bob": ["lima", "oslo", "rome"]}
    api.register("sites", *sessions["ada"], *sessions["bob"])
    api.register("analysts", *sessions)
    api.register("operators", "grace")
    for analyst, sites in sessions.items():
        api.study(analyst, f"of-{analyst}", sites)
        api.begin(analyst, f"of-{analyst}", sites, study=f"of-{analyst}")
    issued = {
        kind: api.ok("POST", f"/v1/{kind}/{name}/tokens", "operator")
        for kind, name in OTHERS.items()
    }
    return api, {kind: each["id"] for kind, each in issued.items()}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Return a session in round 1, shared by a module; nothing aggregates."""
    with round_1(tmp_path_factory.mktemp("running")) as running:
        yield running


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Running]:
    """Return a session in round 1 of a coordinator of the test's own, with its threads."""
    with round_1(tmp_path, threads=True) as running:
        yield running


@pytest.fixture
def watch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watch]:
    """Return a watch over a coordinator on SQLite, or on the database that the test names."""
    fixtures = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}
    url = request.getfixturevalue(fixtures[getattr(request, "param", "sqlite")])
    with watched_coordinator(tmp_path / "coordinator", url) as watching:
        yield watching
