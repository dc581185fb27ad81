"""A site's state is restored from its backup: refused, until the operator accepts it."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedclust import Site, errors
from fedclust.client import Client
from fedclust.site.backup import back_up, restore
from fedclust.site.cohorts import CohortStore
from fedclust.site.ledger import Ledger
from fedclust.site.progress import Progress
from fedclust.site.state import SiteState
from support.consortium import Consortium
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from support.local_coordinator import local_coordinator

ME, OTHERS = "me", ("alpha", "beta")
RNG = np.random.default_rng(5)
ROWS = {name: RNG.normal(size=(120, 2)) for name in (ME, *OTHERS)}
ASKED = re.compile(r"--table (\w+) --number (\d+) --head (\w{16})")


def frame(name: str, *people: range) -> pd.DataFrame:
    """Return the rows of a site's persons with these numbers."""
    numbers = [number for each in people for number in each]
    rows = pd.DataFrame(ROWS[name][numbers], columns=["x0", "x1"])
    return rows.assign(patient=[f"{name}-{number}" for number in numbers])


def test_a_restored_state_is_refused_and_then_accepted_with_its_groups(
    database_url: str, tmp_path: Path
) -> None:
    states, backup = tmp_path / "states", tmp_path / "backup.sqlite3"
    state = SiteState(states / ME)
    place = {"database_url": database_url}
    with local_coordinator(tmp_path, threads=True, **place) as local:
        consortium = Consortium.found(local.base_url, local.operator_token, (ME, *OTHERS))

        def run(session: str, mine: pd.DataFrame, *, new: bool = True) -> None:
            if new:
                consortium.create(session, 2, config={"n_clusters": 2}, policy={"max_rounds": 3})
            rows = {ME: mine} | {name: frame(name, range(60)) for name in OTHERS}
            consortium.run(session, rows, states, person="patient")

        run("first", frame(ME, range(60)))
        back_up(state, backup)
        run("second", frame(ME, range(80)))

        # The disk is lost.
        state.directory.rename(tmp_path / "lost")
        restore(state, backup)
        restored = CohortStore(state).records()
        consortium.create("third", 2, config={"n_clusters": 2}, policy={"max_rounds": 3})
        mine = frame(ME, range(60), range(80, 110))

        def accepted(_: Progress) -> None:
            """A site that joins would wait for the others for ever."""
            pytest.fail("the coordinator accepted the state")

        with (
            Site(local.base_url, consortium.site_tokens[ME], state_dir=state.directory) as site,
            pytest.raises(errors.TableChanged, match="newer state") as refused,
        ):
            site.participate("third", mine, person="patient", consent=True, on_progress=accepted)
        table, text, head = ASKED.search(str(refused.value)).groups()
        number = int(text)
        with consortium.analyst() as analyst:
            joined = {each.name: each.state for each in analyst.session("third").sites}
        assert joined[ME] == "invited"

        with Client(local.base_url, local.operator_token) as operator:
            (before,) = operator.site_tables(ME)
            # Restoring is a change too, and the newcomers are the next one.
            assert (before.table_id, before.number, number) == (table, 2, 3)
            assert before.head != head
            operator.accept_table(ME, table, number, head)
        run("third", mine, new=False)
        events = [line for line in Ledger(state).events() if line["event"].startswith("table ")]
        assert [(each["event"], each["table_id"], each["session"]) for each in events] == [
            ("table refused", table, "third"),
            ("table accepted", table, "third"),
        ]
        assert (events[0]["number"], events[0]["head"]) == (number, head)
        # The restored groups are kept; the newcomers came into groups of their own.
        now = CohortStore(state).records()
        assert now.keys() == restored.keys()
        kept_groups, after = restored[table].cohort, now[table].cohort
        assert len(after.keys) > len(kept_groups.keys)
        grouped = kept_groups.groups >= 0
        same = after.groups[after.find(kept_groups.keys)][grouped] == kept_groups.groups[grouped]
        assert same.all()
