"""A site's state that is restored and then gets other newcomers, and what heads cost a join.

``python benchmarks/restored_state.py`` plays backup, newcomers, loss, restore and one newcomer more
through a real coordinator over HTTP. It prints how often the restored state was refused, and how
close an attacker comes to the last newcomer by subtracting what left before from what left after
an operator had accepted the state: against the record of the newcomer's group, which anyone sees.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust import errors  # noqa: E402
from fedclust.client import Client  # noqa: E402
from fedclust.protection.columns import SourceColumn  # noqa: E402
from fedclust.protection.recognition import PersonSource  # noqa: E402
from fedclust.site import Site  # noqa: E402
from fedclust.site.backup import back_up, restore  # noqa: E402
from fedclust.site.cohorts import CohortStore  # noqa: E402
from fedclust.site.state import SiteState  # noqa: E402
from fedclust.wire.models import TableHeads  # noqa: E402
from support.api_caller import ApiCaller  # noqa: E402
from support.consortium import Consortium  # noqa: E402
from support.local_coordinator import local_coordinator  # noqa: E402

SITES, COLUMNS, P = ("me", "alpha", "beta"), ["x0", "x1", "x2", "x3"], 5


def _people(rows: np.ndarray[Any, Any]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.assign(patient=[f"p{number}" for number in range(len(rows))])


def _sums(state: SiteState) -> np.ndarray[Any, Any]:
    """Return the sum of each column over the table, which the first answer of a session holds."""
    (record,) = CohortStore(state).records().values()
    table = record.cohort.table(COLUMNS)
    return np.array([table.values(name) @ table.sizes for name in COLUMNS])


def _attack(place: Path, seed: int) -> dict[str, Any]:
    """Return whether the restored state was refused, and the median errors of both guesses."""
    rng = np.random.default_rng(seed)
    mine, others = rng.normal(size=(66, 4)), rng.normal(size=(2, 60, 4))
    states, backup = place / "states", place / "backup"
    state = SiteState(states / "me")
    with local_coordinator(place, threads=True) as local:
        consortium = Consortium.found(local.base_url, local.operator_token, SITES)

        def run(session: str, n: int, *, new: bool = True) -> None:
            if new:
                consortium.create(session, 4, config={"n_clusters": 2}, policy={"max_rounds": 1})
            rows = dict(zip(SITES, map(_people, (mine[:n], *others)), strict=True))
            consortium.run(session, rows, states, person="patient")

        run("first", 60)
        back_up(state, backup)
        run("second", 65)
        before = _sums(state)
        state.directory.rename(place / "lost")
        restore(state, backup)
        consortium.create("third", 4, config={"n_clusters": 2}, policy={"max_rounds": 1})
        token, refused = consortium.site_tokens["me"], False
        try:
            with Site(local.base_url, token, state_dir=state.directory) as site:
                site.participate("third", _people(mine), person="patient", consent=True)
        except errors.TableChanged:
            refused = True
        (table,) = CohortStore(state).records()
        heads = CohortStore(state).heads(table)
        with Client(local.base_url, local.operator_token) as operator:
            operator.accept_table("me", table, heads.last, heads.heads[-1])
        run("third", 66, new=False)
        difference = _sums(state) - before
        (record,) = CohortStore(state).records().values()
        row = record.cohort.table_rows(state.secret(), ["p65"])[0]
        table_now = record.cohort.table(COLUMNS)
        released = np.array([table_now.values(name)[row] for name in COLUMNS])
    errors_of = [float(np.median(np.abs(guess - mine[65]))) for guess in (difference, released)]
    return {"run": seed, "refused": refused, "subtraction": errors_of[0], "record": errors_of[1]}


def _milliseconds(work: Callable[[int], object], n: int) -> float:
    times = []
    for number in range(n):
        start = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def _changed_often(place: Path, n: int) -> CohortStore:
    """Return a site's groups after n changes: persons are withdrawn one after the other."""
    store, rng = CohortStore(SiteState(place)), np.random.default_rng(0)
    people = n + 200
    sources = [SourceColumn(name, rng.normal(size=people)) for name in COLUMNS]
    ids, rules = [f"p{number}" for number in range(people)], dict.fromkeys(COLUMNS, "number")
    source = PersonSource(lambda: [(ids, sources)], rules, n_persons=people)
    now = datetime.now(UTC)
    store.keep(store.draft(source, p=P, now=now))
    for number in range(n - 1):
        store.withdraw(f"p{number}", now)
    return store


def _cost(place: Path, n: int, repeats: int) -> dict[str, Any]:
    """Return what a join with n heads costs the site and the coordinator."""
    store = _changed_often(place / "state", n)
    (table,) = store.records()
    heads = store.heads(table)
    with local_coordinator(place) as local:
        api = ApiCaller(local.base_url, local.operator_token)
        api.register("sites", "north", "south", "west")
        api.register("analysts", "ada")
        bodies = []
        for number in range(repeats):
            api.define("ada", f"s{number}", ["north", "south", "west"])
            body = api.participation("north", f"s{number}")
            bodies.append(body | {"table_id": table, "heads": _json(heads)})

        def join(number: int) -> None:
            path = f"/v1/sessions/s{number}/participation"
            answer = api.request("PUT", path, "north", json=bodies[number])
            assert answer.status_code == 201, answer.text

        joined = _milliseconds(join, repeats)
    return {
        "changes": n,
        "heads sent": len(heads.heads),
        "bytes": len(heads.model_dump_json()),
        "site: groups read, ms": _milliseconds(lambda _: store.records(), repeats),
        "site: heads, ms": _milliseconds(lambda _: store.heads(table), repeats),
        "join over HTTP, ms": joined,
    }


def _json(heads: TableHeads) -> dict[str, Any]:
    return heads.model_dump(mode="json")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--changes", type=int, nargs="+", default=[1, 1_000])
    given = parser.parse_args()
    os.environ.pop("FEDCLUST_STATE_DIR", None)
    with tempfile.TemporaryDirectory() as place:
        rows = [_attack(_made(Path(place) / str(seed)), seed) for seed in range(given.runs)]
    write("restored_state", rows, note="errors in standard deviations, median of four columns")
    with tempfile.TemporaryDirectory() as place:
        rows = [_cost(_made(Path(place) / str(n)), n, 20) for n in given.changes]
    write("heads", rows, note="medians of 20")


def _made(place: Path) -> Path:
    place.mkdir()
    return place


if __name__ == "__main__":
    main()
