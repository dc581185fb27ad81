"""A site that dies at any moment: before or after any write, sync, request or answer.

Every such moment of a whole session is tried; of those that leave the same bytes in all files, and
the coordinator with the same requests, the first. The next run has to end with what an undisturbed
one ends with, without two different bodies for a round, without a line too many in the ledger, and
without anything sent that was not written first.
"""

from collections import defaultdict
from contextlib import suppress
from itertools import count
from pathlib import Path
from shutil import copytree

import httpx
import numpy as np
import pytest

from fedclust.site import journal
from fedclust.site.backup import verify_state
from fedclust.site.charges import Charges
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState
from fedclust.wire import codec
from support.crashes import Death, ticking
from support.fake_coordinator import URL, FakeCoordinator, three_clusters
from support.ledgers import body_lines

FEATURES = ({"name": "x"}, {"name": "y"}, {"name": "died", "kind": "binary", "role": "outcome"})


def rows(n: int, seed: int) -> np.ndarray:
    died = np.random.default_rng(seed).integers(0, 2, n)
    return np.column_stack([three_clusters(n, seed), died])


MINE = rows(25, 3)


class World:
    """A coordinator and a site whose every durable or visible step is counted."""

    def __init__(self, directory: Path, dies_at: int | None = None) -> None:
        self._first = self.directory = directory
        self.dies_at, self.step = dies_at, 0
        self._copies = count()
        self._answered = 0
        #: What a death at each step of an undisturbed run would leave.
        self.leaves: list[tuple[int, dict[str, bytes]]] = []
        self.fake = FakeCoordinator(
            {"alpha": rows(20, 1), "beta": rows(20, 2)}, features=FEATURES, policy={"max_rounds": 2}
        )
        self.fake.before = self._before
        self.fake.after = self._after

    def moments(self) -> list[int]:
        """Return the steps of an undisturbed run at which a death leaves something else."""
        pairs = zip([None, *self.leaves], self.leaves, strict=False)
        return [step for step, (before, here) in enumerate(pairs) if before != here]

    def tick(self) -> None:
        if self.dies_at is None:
            files = {
                path.name: path.read_bytes()
                for path in self.directory.rglob("*")
                # The index of the log, which SQLite makes anew.
                if path.is_file() and not path.name.endswith("-shm")
            }
            self.leaves.append((self._answered, files))
        self.step += 1
        if self.step - 1 == self.dies_at:
            # The files as kill -9 leaves them: the dying process tidies up the others.
            left = self._first.with_name(f"{self._first.name}-{next(self._copies)}")
            if self.directory.exists():
                copytree(self.directory, left)
            self.directory = left
            raise Death

    def _after(self, _request: httpx.Request) -> None:
        self._answered += 1
        self.tick()

    def _before(self, request: httpx.Request) -> None:
        self.tick()
        if "submission" in request.url.path:
            # Nothing leaves that is not in the journal, whole and synced.
            number = int(request.url.path.split("/")[-2])
            written = journal.Journal(
                SiteState(self.directory), URL, "me", "heart", self.fake.sha256
            )
            assert written.answers[number].body == request.content

    def run(self) -> np.ndarray:
        with ticking(self.tick):
            site = self.fake.site(self.directory)
            return site.participate("heart", MINE, consent=True).labels_


def without_noise(accepted: dict[int, bytes]) -> dict[int, bytes]:
    """Return the accepted bodies but the last, which counts outcomes with noise."""
    assert len(accepted) > 3
    return {number: body for number, body in accepted.items() if number < max(accepted)}


@pytest.mark.parametrize("part", range(4))
def test_dying_at_any_moment(tmp_path: Path, part: int) -> None:
    calm = World(tmp_path / "calm")
    labels = calm.run()
    moments = calm.moments()
    assert calm.step > 100
    assert len(moments) > 30
    for moment in moments[part::4]:
        world = World(tmp_path / str(moment), dies_at=moment)
        with pytest.raises(Death):
            world.run()
        np.testing.assert_array_equal(world.run(), labels, err_msg=f"moment {moment}")
        assert world.fake.accepted.keys() == calm.fake.accepted.keys(), moment
        assert without_noise(world.fake.accepted) == without_noise(calm.fake.accepted), moment
        bodies = defaultdict(set)
        for number, body in world.fake.puts:
            bodies[number].add(body)
        assert all(len(different) == 1 for different in bodies.values()), moment
        assert len(world.fake.puts) <= len(calm.fake.puts) + 1, moment
        sound = verify_state(SiteState(world.directory))
        assert (sound.tables, sound.sessions, sound.in_flight) == (1, 1, 0), moment
        assert [a.spent for a in Charges(SiteState(world.directory)).allowances().values()] == [10]
        entries = body_lines(world.directory)
        assert [entry["round"] for entry in entries] == sorted(calm.fake.accepted), moment
        assert [entry["sha256"] for entry in entries] == [
            codec.sha256(world.fake.accepted[entry["round"]]) for entry in entries
        ]
        assert all(entry["receipt"] for entry in entries), moment


def test_dying_again_and_again(tmp_path: Path) -> None:
    """Every run gets a little further than the one before, and the end is the same."""
    calm = World(tmp_path / "calm")
    labels = calm.run()
    world = World(tmp_path / "state")
    for deaths in range(200):
        world.step, world.dies_at = 0, 24 + deaths % 7
        with suppress(Death):
            np.testing.assert_array_equal(world.run(), labels)
            break
    assert 5 < deaths < 199
    assert without_noise(world.fake.accepted) == without_noise(calm.fake.accepted)
    assert len({body for _, body in world.fake.puts}) == len(calm.fake.accepted)
    assert Ledger(SiteState(world.directory)).verify() == []
    assert len(body_lines(world.directory)) == len(calm.fake.accepted)
