"""A site's points at a real coordinator: charged, short, given back, and in a restored state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedclust import Site, errors
from fedclust.client import Client
from fedclust.site import prepare
from fedclust.site.backup import back_up, restore
from fedclust.site.charges import Charges
from fedclust.site.progress import Progress
from fedclust.site.state import SiteState
from support.command_line import CommandLine
from support.consortium import Consortium, declared
from support.local_coordinator import local_coordinator

ME, OTHERS = "me", ("alpha", "beta")
RNG = np.random.default_rng(5)
ROWS = pd.DataFrame(RNG.normal(size=(60, 2)), columns=["x0", "x1"]).assign(
    died=RNG.integers(0, 2, 60), patient=[f"me-{number}" for number in range(60)]
)
FEATURES = [*declared(2), {"name": "died", "kind": "binary", "role": "outcome"}]


class Joined(Exception):
    """The site has joined, and is called away."""


class Hospital:
    """A site that joins sessions at a coordinator."""

    def __init__(self, consortium: Consortium, directory: Path) -> None:
        self.consortium, self.state = consortium, SiteState(directory)

    @contextmanager
    def site(self) -> Iterator[Site]:
        token = self.consortium.site_tokens[ME]
        with Site(self.consortium.url, token, state_dir=self.state.directory) as site:
            yield site

    def join(self, session: str) -> None:
        """Create a session of all sites, and join it."""

        def away(progress: Progress) -> None:
            if progress.event == "joined":
                raise Joined

        self.consortium.create(session, 2, features=FEATURES, config={"n_clusters": 2})
        with self.site() as site, pytest.raises(Joined):
            site.participate(session, ROWS, person="patient", consent=True, on_progress=away)

    def status(self) -> None:
        with self.site() as site:
            site.status()

    def restored(self, backup: Path) -> None:
        lost = self.state.directory.with_name(f"{self.state.directory.name}-{backup.stem}")
        self.state.directory.rename(lost)
        restore(self.state, backup)

    @property
    def left(self) -> int:
        (found,) = Charges(self.state).overview()
        return found.left


def test_points_at_a_real_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    costs = {"died": 60}
    monkeypatch.setattr(prepare, "points_of", lambda _outcomes, _features: dict(costs))
    old, new = tmp_path / "old.sqlite3", tmp_path / "new.sqlite3"
    with local_coordinator(tmp_path, threads=True) as local:
        consortium = Consortium.found(local.base_url, local.operator_token, (ME, *OTHERS))
        mine, tokens = Hospital(consortium, tmp_path / ME), consortium.site_tokens

        def short(client: Client, session: str) -> dict[str, bool]:
            return {each.name: each.points_short for each in client.session(session).sites}

        mine.join("one")
        assert mine.left == 40
        back_up(mine.state, old)
        costs["died"] = 40
        mine.join("two")
        mine.join("three")
        assert mine.left == 0
        with consortium.analyst() as analyst, Client(consortium.url, tokens["alpha"]) as alpha:
            assert not any(short(analyst, "two").values())
            for client in (analyst, alpha):
                assert short(client, "three") == {ME: True, "alpha": False, "beta": False}
            analyst.cancel_session("one")
        token = tmp_path / "token"
        token.write_text(tokens[ME], "utf-8")
        token.chmod(0o600)
        monkeypatch.setenv("FEDCLUST_STATE_DIR", str(mine.state.directory))
        verify = ["ledger", "verify", "--against-coordinator", "--coordinator", local.base_url]
        assert (command_line.run(*verify, "--token-file", str(token)), mine.left) == (0, 60)
        assert "40 points are charged since" in command_line.out

        # The newest state, from a backup: the coordinator confirms it. What was open stays spent.
        back_up(mine.state, new)
        mine.restored(new)
        assert mine.left == 0
        mine.status()
        assert mine.left == 60

        # An older one lacks the second charge: refused, and without points for good.
        mine.restored(old)
        mine.status()
        assert mine.left == 0
        with pytest.raises(errors.TableChanged) as refused:
            mine.join("four")
        (lacking,) = Charges(mine.state).overview()
        assert lacking.allowance.lost == 40
        with Client(local.base_url, local.operator_token) as operator:
            words = str(refused.value).split()
            number, head = (words[words.index(name) + 1] for name in ("--number", "--head"))
            operator.accept_table(ME, lacking.table, int(number), head.strip(").,"))
        mine.join("five")
        assert mine.left == 0
        with consortium.analyst() as analyst:
            assert short(analyst, "five")[ME]
