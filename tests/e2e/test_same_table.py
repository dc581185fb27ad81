"""Over HTTP: sites with different rows and the same table send the same bytes.

Each world has a coordinator of its own, and other sites with the same rows in each. What the one
site sends is read from the wire.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedclust.site.state import SiteState
from support.consortium import Consortium
from support.method_variants import TRIED
from support.proxies import RecordingProxy, recorded
from support.same_table import (
    PERSON,
    SiteFile,
    changed_places,
    of_records,
    released_by,
    rows_for,
    site_of,
)
from support.server import running_server

ME = "me"
OTHERS = ("alpha", "beta")
SITE = site_of(("whole", "binary"), 12, np.random.default_rng(0))
PLACES = changed_places(SITE, 1)
_TABLE = re.compile(rb'"table_id":"[0-9a-f]{32}"|"heads":\["[0-9a-f]{16}"')


@dataclass
class World:
    """A coordinator, what passes on the way to it, the rows of its sites, and their state."""

    consortium: Consortium
    tap: RecordingProxy
    rows: dict[str, pd.DataFrame]
    place: Path

    def run(self, session: str, method: str) -> list[tuple[str, str, bytes]]:
        """Run a session; return all that the site under test sent, in order."""
        before = len(self.tap.exchanges)
        self.consortium.create(
            session,
            0,
            features=SITE.features(),
            algorithm=method,
            config={"n_clusters": 2, **TRIED[method].variants[0]},
            policy={"max_rounds": 6},
        )
        self.consortium.at(self.tap.url).run(session, self.rows, self.place, person=PERSON)
        token = self.consortium.site_tokens[ME]
        sent = [each for each in self.tap.exchanges[before:] if each.token == token]
        # How often a site asks for its task follows from the clock; a table's id is random.
        return [
            (each.method, each.path, _TABLE.sub(b"", each.body))
            for each in sent
            if each.method != "GET"
        ]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, World]]:
    """Return worlds in which the site has other rows and the same table.

    In ``places`` it forms the table in its first session; in the others it has it before.
    """
    place = tmp_path_factory.mktemp("worlds")
    own, second, tried = (SiteState(place / name / ME) for name in ("own", "records", "tried"))
    table = SITE.form(own)
    released = released_by(table, SITE, own.secret())
    records = of_records(SITE, table, own.secret())
    assert released_by(records.form(second), SITE, second.secret()) == released
    assert released_by(PLACES.form(tried), SITE, tried.secret()) == released
    files = {"own": SITE, "places": PLACES, "records": records}
    with ExitStack() as stack:
        yield {name: world(stack, file, place / name) for name, file in files.items()}


def world(stack: ExitStack, file: SiteFile, place: Path) -> World:
    server = stack.enter_context(running_server(place / "server"))
    tap = stack.enter_context(recorded(server.base_url))
    consortium = Consortium.found(server.base_url, server.operator_token, (ME, *OTHERS))
    rows = {ME: file.frame()}
    for seed, name in enumerate(OTHERS):
        ids = [f"{name}-{number}" for number in range(80)]
        rows[name] = rows_for(SITE.features(), 80, seed).assign(**{PERSON: ids})
    return World(consortium, tap, rows, place)


@pytest.mark.parametrize(
    "method",
    [
        # `site/test_non_interference.py` has every phase of every method, without a server.
        pytest.param(name, marks=[] if name in ("lloyd", "kfed", "dual") else [pytest.mark.long])
        for name in TRIED
    ],
)
def test_a_whole_session_sends_the_same_bytes_real_record(
    worlds: dict[str, World], method: str
) -> None:
    sent = {name: world.run(method.replace("_", "-"), method) for name, world in worlds.items()}
    own = sent.pop("own")
    assert [kind for kind, _, _ in own[:2]] == ["PUT", "PUT"]
    for name, other in sent.items():
        assert other == own, name
