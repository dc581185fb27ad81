"""One site of a million rows in a session of `kfed`: the time from reading rows to labels.

A coordinator, the large site in a separate process, and two small sites. The time covers all of
`fedclust participate`: reading the Parquet file, forming and storing the groups, the figures on the
consent screen, the rounds, labels. It is compared with one scikit-learn pass over the rows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust import Site  # noqa: E402
from scale import D, K, centres, made  # noqa: E402
from support.consortium import Consortium  # noqa: E402
from support.processes import clean_environment  # noqa: E402
from support.server import running_server  # noqa: E402

SMALL = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(take_part(*options.child)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["FEDCLUST_STATE_DIR"] = str(folder / "small")
        path = made(folder / "large.parquet", options.rows)
        with running_server(folder / "server") as server:
            people = Consortium.found(server.base_url, server.operator_token, ("large", "u", "v"))
            people.create("large", D, algorithm="kfed", config={"n_clusters": K}, seed=7)
            small = threading.Thread(target=_small_sites, args=(people, folder))
            small.start()
            env = clean_environment({"FEDCLUST_STATE_DIR": str(folder / "groups")})
            token = people.site_tokens["large"]
            command = [sys.executable, __file__, "--child", server.base_url, token, str(path)]
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
            small.join()
    found = json.loads(done.stdout)
    total = found["until it joins, CPU s"] + found["rounds and labels, CPU s"]
    found |= {"end to end, CPU s": total, "of a pass": total / found["scikit-learn pass, CPU s"]}
    write(
        "large_site",
        [{"n": options.rows, **found}],
        note=f"d = {D}, K = {K}, three sites. At most 15 s are asked for at a million rows.",
    )


def _small_sites(people: Consortium, folder: Path) -> None:
    rng = np.random.default_rng(1)
    rows = {
        site: centres()[rng.integers(0, K, SMALL)] + rng.normal(size=(SMALL, D))
        for site in ("u", "v")
    }
    people.run("large", rows, folder / "states")


def take_part(url: str, token: str, path: str) -> dict[str, float]:
    """Run in the child: take part from the file to labels, then one pass of scikit-learn."""
    from sklearn.cluster import KMeans

    joined: list[float] = []
    state = Path(path).parent / "state"
    began, begun = time.process_time(), time.perf_counter()
    with Site(url, token=token, state_dir=state) as site:
        result = site.participate(
            "large",
            path,
            consent=True,
            on_progress=lambda _: joined.append(time.process_time()),
        )
    ended, wall = time.process_time(), time.perf_counter() - begun
    assert result.labels_ is not None
    import pyarrow.parquet as pq

    X = np.ascontiguousarray(np.column_stack([*pq.read_table(path).columns]), dtype=np.float64)
    # Once to warm up.
    for _ in range(2):
        start = time.process_time()
        KMeans(K, init=X[:K], n_init=1, max_iter=1).fit(X)
        passed = time.process_time() - start
    return {
        "until it joins, CPU s": joined[0] - began,
        "rounds and labels, CPU s": ended - joined[0],
        "end to end, wall s": wall,
        "scikit-learn pass, CPU s": passed,
    }


if __name__ == "__main__":
    main()
