"""The cost of a sweep over K compared with one run, and its results compared with separate runs.

First table: scikit-learn's digits over four sites, K = 2 to 10 in one session against a session
with K = 10 and ``evidence``, as several K are compared with one cloud too. With a real service and
one process for each site. Wall time is from the session's start to its end as the coordinator
stores them; requests are all that it answered in between, including long polls. Sites have loaded
everything before they join. Sessions take turns.

Second table: CPU of the same in ``simulate``; both form the tables. Each K of a sweep gives the
same bits as a separate run (the tests check this). Third table: which K the sweep of some data
recommends.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, make_blobs

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _data import digits, label_skew  # noqa: E402
from _report import write  # noqa: E402
from fedclust import simulate  # noqa: E402
from floor import _start, _until  # noqa: E402
from support.consortium import Consortium  # noqa: E402
from support.server import running_server  # noqa: E402

KS = list(range(2, 11))
SITES = 4
METHODS = ("fkm", "lloyd", "kfed")
COMPARED = ("K = 10", 10), ("K = 2 to 10", KS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--splits", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write(
            "sweep",
            [
                row
                for method in METHODS
                for kind in ("even", "skewed")
                for row in service_rows(method, kind, options.repeats, Path(name))
            ],
            note=(
                f"Medians of {options.repeats} sessions on other splits; digits, {SITES} sites, "
                "policy and options by default. At most 3 is asked for of requests and wall. "
                "even: rows dealt at random; skewed: classes by Dirichlet(.5)."
            ),
        )
    write(
        "sweep_time",
        [time_row(method, options.splits) for method in METHODS],
        note=f"Digits, {SITES} sites, medians of {options.splits} even splits. At most 4 is asked.",
    )
    write("sweep_recommends", recommendations(), note="fkm by default, four sites, even.")


def deal(X: np.ndarray, y: np.ndarray, kind: str, seed: int) -> dict[str, np.ndarray]:
    """Return the rows of each site."""
    if kind == "skewed":
        return {site: X[rows] for site, rows in label_skew(y, SITES, 0.5, seed).items()}
    order = np.random.default_rng(seed).permutation(len(X))
    return {f"site-{i}": X[rows] for i, rows in enumerate(np.array_split(order, SITES))}


# --- at the service -------------------------------------------------------------------------------


def service_rows(method: str, kind: str, repeats: int, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of sweep and single run, and their ratios."""
    X, y = digits()
    runs: dict[str, list[dict[str, float]]] = {"K = 10": [], "K = 2 to 10": []}
    for repeat in range(repeats):
        sites = deal(X, y, kind, repeat)
        for number, (what, ks) in enumerate(COMPARED):
            place = folder / f"{method}-{kind}-{repeat}-{number}"
            place.mkdir()
            runs[what].append(
                one_session(method, {"n_clusters": ks, "evidence": True}, sites, place)
            )
    rows: list[dict[str, Any]] = []
    for what, figures in runs.items():
        middle = {name: median(f[name] for f in figures) for name in figures[0]}
        rows.append({"method": method, "split": kind, "what": what, **middle})
    ratio: dict[str, Any] = {"method": method, "split": kind, "what": "ratio (least - most)"}
    for name in runs["K = 10"][0]:
        each = [many[name] / one[name] for one, many in zip(*runs.values(), strict=True)]
        ratio[name] = f"{median(each):.2f} ({min(each):.2f} - {max(each):.2f})"
    return [*rows, ratio]


def one_session(
    method: str, config: dict[str, Any], sites: dict[str, np.ndarray], folder: Path
) -> dict[str, float]:
    """Run one session through; return its rounds, the sites' requests and wall seconds."""
    for site, rows in sites.items():
        np.save(folder / f"{site}.npy", rows)
    with running_server(folder / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, tuple(sites))
        width = next(iter(sites.values())).shape[1]
        consortium.create("floor", width, algorithm=method, config=config, seed=7)
        for site, token in consortium.site_tokens.items():
            said = {"url": server.base_url, "token": token}
            (folder / f"{site}.json").write_text(json.dumps(said), "ascii")
        running = [_start("sdk", folder, site) for site in sites]
        try:
            _until(lambda: all((folder / f"{site}.warm").exists() for site in sites))
            (folder / "go").touch()
            for process in running:
                assert process.wait(300) == 0, "a site failed"
        finally:
            for process in running:
                process.kill()
                process.wait()
        with consortium.analyst() as analyst:
            info = analyst.session("floor")
        assert info.started_at is not None
        assert info.ended_at is not None, info.state
        polls, answers = (answered(server.base_url, route) for route in ("task", "submission"))
        return {
            "rounds": answers / len(sites),
            "requests": polls + answers,
            "wall s": (info.ended_at - info.started_at).total_seconds(),
        }


def answered(url: str, route: str) -> int:
    """Return how many requests of a route the coordinator has answered."""
    count = r'^fedclust_http_request_seconds_count\{[^}]*route="[^"]*/' + route + r'"[^}]*\} (\S+)$'
    text = httpx.get(f"{url}/metrics").text
    return int(sum(float(n) for n in re.findall(count, text, re.MULTILINE)))


# --- in one process -------------------------------------------------------------------------------


def time_row(method: str, splits: int) -> dict[str, Any]:
    """Return the CPU seconds of sweep and single run, and the median of their ratios."""
    X, y = digits()
    seconds: dict[str, list[float]] = {"K = 10": [], "K = 2 to 10": []}
    for split in range(splits):
        sites = deal(X, y, "even", split)
        for what, ks in COMPARED:
            before = time.process_time()
            simulate(method, sites, config={"n_clusters": ks, "evidence": True}, seed=7)
            seconds[what].append(time.process_time() - before)
    ratio = median(many / one for one, many in zip(*seconds.values(), strict=True))
    return {"method": method, **{what: median(s) for what, s in seconds.items()}, "ratio": ratio}


def recommendations() -> list[dict[str, Any]]:
    """Return what the sweep of some data recommends, and why."""
    blobs = make_blobs(
        600, n_features=5, centers=4, cluster_std=1.0, center_box=(-8, 8), random_state=3
    )
    data = {
        "blobs, 4 clusters": blobs,
        "iris, 3 classes": load_iris(return_X_y=True),
        "breast cancer, 2 classes": load_breast_cancer(return_X_y=True),
        "digits, 10 classes": digits(),
    }
    rows = []
    for name, (X, y) in data.items():
        sites = deal(X, y, "even", 0)
        result = simulate("fkm", sites, config={"n_clusters": KS}, seed=7).result
        rows.append({"data": name, "K": result.n_clusters, "why": result.recommendation})
    return rows


if __name__ == "__main__":
    main()
