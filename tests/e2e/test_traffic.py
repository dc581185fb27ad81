"""How often a site calls, and that a coordinator which goes away ends its waits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from support.consortium import Consortium
from support.proxies import recorded
from support.server import running_server


def test_a_site_makes_two_requests_a_round(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    data = {name: rng.random((60, 3)) for name in ("north", "south", "west")}
    with (
        running_server(tmp_path / "server") as server,
        recorded(server.base_url) as tap,
    ):
        consortium = Consortium.found(server.base_url, server.operator_token, tuple(data))
        consortium.create("counted", 3, config={"n_clusters": 3}, policy={"max_rounds": 8})
        consortium.at(tap.url).run("counted", data, tmp_path / "journals")
        n_rounds = len(list(consortium.analyst().rounds("counted")))
    assert n_rounds >= 4
    names = {token: name for name, token in consortium.site_tokens.items()}
    made = Counter(
        (names[e.token], e.method, e.path.split("?")[0].split("/")[-1]) for e in tap.exchanges
    )
    for name in data:
        assert made[name, "PUT", "submission"] == n_rounds
        # One GET a round; before the first one finds the invitation and one that others have yet
        # to join, after the last one finds the session ended.
        assert made[name, "GET", "task"] <= n_rounds + 3
    assert all(e.status is not None and e.status < 400 for e in tap.exchanges)
