"""Aggregate ``fkm`` for 1,000 sites x 100 cells x 784 features: seconds, inertia, slow requests.

The first part times the aggregation alone against one k-means++ start of scikit-learn's KMeans on
the same weighted cells, on well separated and on overlapping data: in turns, three times, medians.
The second part uses a running service to which 1,000 sites have sent their cells: it times small
requests while the service aggregates, and at rest. ``--skip-service`` and ``--skip-alone`` leave a
part out.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sklearn.cluster import KMeans

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust import rounds  # noqa: E402
from fedclust.client import Client  # noqa: E402
from fedclust.definition import freeze, plan_of  # noqa: E402
from fedclust.methods.common.kmeans_rounds import Cells  # noqa: E402
from fedclust.numeric.distances import squared_distances  # noqa: E402
from fedclust.schema.size_bands import size_band  # noqa: E402
from fedclust.schema.task import Contribution, Next  # noqa: E402
from fedclust.wire.codec import canonical_json  # noqa: E402
from fedclust.wire.models import Participation, SessionCreate  # noqa: E402
from fedclust.wire.submissions import BINARY, write_submission  # noqa: E402
from support.consortium import Consortium, columns  # noqa: E402
from support.server import running_server  # noqa: E402

CELLS, FEATURES, P = 100, 784, 5
SESSION: dict[str, Any] = {
    "algorithm": "fkm",
    "config": {"n_clusters": CELLS},
    "policy": {"scaling": "none", "missing": "drop", "round_timeout_s": 86_400},
    "seed": 7,
}
#: Spread of the clusters' centres, each feature; the cells' spread around them is 1.
SPREADS = {"separated": 4.0, "overlapping": 0.15}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--skip-service", action="store_true")
    parser.add_argument("--skip-alone", action="store_true")
    options = parser.parse_args()
    if not options.skip_alone:
        write(
            "aggregate",
            [_alone(kind, options.sites, options.runs) for kind in SPREADS],
            note=(
                f"{options.sites} sites x {CELLS} cells x {FEATURES} features, K = {CELLS}; "
                "scikit-learn: one k-means++ start, one thread as ours; medians of "
                f"{options.runs} runs in turn, the same each time but for the clock; ratio: at "
                "most .5; inertia of the best candidate over scikit-learn's: at most 1."
            ),
        )
    if not options.skip_service:
        _beside(options.sites)


def _cells(kind: str, n_sites: int) -> dict[str, Cells]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CELLS, FEATURES)) * SPREADS[kind]
    answers = {}
    for number in range(n_sites):
        counts = rng.integers(P, 40, CELLS)
        means = centres + rng.normal(size=centres.shape)
        answers[f"site{number:04}"] = Cells(counts=counts, means=means)
    return answers


def _alone(kind: str, n_sites: int, runs: int) -> dict[str, Any]:
    answers = _cells(kind, n_sites)
    request = {
        "name": "aggregate",
        "purpose": "What a benchmark measures on made-up rows.",
        "features": [{"name": name} for name in columns(FEATURES)],
        "sites": sorted(answers),
        **SESSION,
    }
    plan = plan_of(freeze(SessionCreate.model_validate_json(canonical_json(request)), 7))
    opened = rounds.start(plan, sorted(answers))
    sent = [Contribution(site, cells, P) for site, cells in answers.items()]
    means = np.concatenate([cells.means for cells in answers.values()])
    weights = np.concatenate([cells.counts for cells in answers.values()]).astype(float)
    fit = KMeans(CELLS, n_init=1, random_state=0).fit
    taken = []
    for _ in range(runs):
        step, *ours = _timed(lambda: rounds.advance(plan, opened.state, sent, sorted(answers)))
        kmeans, *theirs = _timed(lambda: fit(means, sample_weight=weights))
        taken.append((*ours, *theirs))
    assert isinstance(step, Next)
    candidates: Any = step.task.common
    inertia = min(_inertia(means, weights, each) for each in candidates.centroids)
    wall, cpu, their_wall, their_cpu = np.median(taken, axis=0)
    return {
        "data": kind,
        "aggregation s": round(wall, 2),
        "scikit-learn s": round(their_wall, 2),
        "ratio": round(wall / their_wall, 3),
        "CPU s": f"{cpu:.2f} / {their_cpu:.2f}",
        "CPU ratio": round(cpu / their_cpu, 3),
        "candidates": len(candidates.centroids),
        "inertia / scikit-learn's": round(inertia / float(kmeans.inertia_), 5),
    }


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return what was computed, and the seconds that it took, by the wall and of processor."""
    began, cpu = time.perf_counter(), time.process_time()
    done = work()
    return done, time.perf_counter() - began, time.process_time() - cpu


def _inertia(means: np.ndarray, weights: np.ndarray, centroids: np.ndarray) -> float:
    return float(weights @ squared_distances(means, centroids).min(axis=1))


# --- in the service -------------------------------------------------------------------------------


def _beside(n_sites: int) -> None:
    answers = _cells("overlapping", n_sites)
    names = tuple(answers)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "data") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, names)
        info = consortium.create("aggregate", FEATURES, **SESSION)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: _join(consortium, name, answers[name], info), names))
            rest = _latencies(consortium, until=_after(10.0))
            list(pool.map(lambda name: _send(consortium, name, answers[name]), names[:-1]))
        closed = threading.Event()
        watch = threading.Thread(target=_watch, args=(consortium, closed))
        _send(consortium, names[-1], answers[names[-1]])
        watch.start()
        began = time.perf_counter()
        busy = _latencies(consortium, until=closed.is_set)
        took = time.perf_counter() - began
        watch.join()
    rows = [
        {"what": "at rest", **_quantiles(rest)},
        {"what": f"while it aggregates ({took:.1f} s)", **_quantiles(busy)},
    ]
    ratio = rows[1]["p99 ms"] / rows[0]["p99 ms"]
    rows.append({"what": "p99, ratio (at most 2)", **dict.fromkeys(_quantiles(rest), "")})
    rows[2]["p99 ms"] = round(ratio, 2)
    write(
        "aggregate_beside",
        rows,
        note=f"GET /v1/whoami by the analyst, one after the other; {n_sites} sites.",
    )


def _join(consortium: Consortium, name: str, cells: Cells, info: Any) -> None:
    with Client(consortium.url, consortium.site_tokens[name], consortium.options) as site:
        site.join(
            "aggregate",
            Participation(
                definition_sha256=info.definition_sha256,
                features=tuple(columns(FEATURES)),
                size_band=size_band(int(cells.counts.sum())),
                sdk_version="benchmark",
                methods={"fkm": (info.definition.method_version,)},
                engine=(info.definition.engine_version,),
            ),
        )


def _send(consortium: Consortium, name: str, cells: Cells) -> None:
    with Client(consortium.url, consortium.site_tokens[name], consortium.options) as site:
        view, _ = site.task("aggregate")
        assert view is not None
        assert view.task is not None
        body = write_submission("cells", view.task.digest, cells, BINARY)
        site.submit("aggregate", 1, body)


def _watch(consortium: Consortium, closed: threading.Event) -> None:
    with consortium.analyst() as analyst:
        while analyst.round("aggregate", 1).state != "closed":
            time.sleep(0.2)
    closed.set()


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _latencies(consortium: Consortium, *, until: Callable[[], bool]) -> list[float]:
    """Return the seconds that each of a row of small requests took."""
    taken = []
    headers = {"Authorization": f"Bearer {consortium.analyst_token}"}
    with httpx.Client(headers=headers, timeout=60, trust_env=False) as http:
        while not until():
            began = time.perf_counter()
            http.get(f"{consortium.url}/v1/whoami").raise_for_status()
            taken.append(time.perf_counter() - began)
            time.sleep(0.005)
    return taken


def _quantiles(seconds: list[float]) -> dict[str, Any]:
    median, p99 = (1000 * float(np.quantile(seconds, q)) for q in (0.5, 0.99))
    return {
        "requests": len(seconds),
        "median ms": round(median, 2),
        "p99 ms": round(p99, 2),
        "most ms": round(1000 * max(seconds), 2),
    }


if __name__ == "__main__":
    main()
