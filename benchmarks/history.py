"""Run three coordinators on one PostgreSQL under random faults and check what sites have seen.

For each seed: workers are killed, stopped and disconnected, connections to sites are cut, and the
machines' clocks are hours apart (``tests/e2e/fault_injection.py``). A model checks what sites and
database have seen (``tests/e2e/session_history.py``). Prints a line per seed and every violation,
and fails if there is one. ``--seed N --seeds 1`` replays one seed. Threads and processes run at
their own pace, so the same faults may hit other requests.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from e2e.fault_injection import LEASE_S, STILL_S, FaultReport, run_with_faults  # noqa: E402
from e2e.session_history import Fault, Request  # noqa: E402
from support.databases import PostgresServer  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--faults", type=int, default=15, help="for each seed")
    options = parser.parse_args()
    postgres = PostgresServer()
    done: list[FaultReport] = []
    try:
        for seed in range(options.seed, options.seed + options.seeds):
            with tempfile.TemporaryDirectory() as name:
                done.append(run_with_faults(Path(name), postgres, seed, options.faults))
    finally:
        postgres.stop()
    write("history", [_row(each) for each in done], note=_NOTE)
    found = [violation for each in done for violation in each.violations]
    for violation in found:
        print(violation)
    print(f"{len(found)} violations")
    return bool(found)


_NOTE = (
    f"Leases of {LEASE_S} s; stopped or out of reach for {STILL_S} s. wakes: how long after the "
    "first site the others heard of a round, while no fault was injected."
)


def _row(report: FaultReport) -> dict[str, object]:
    requests = [each for history in report.histories for each in history.requests]
    late = [
        each
        for history in report.histories
        for each in _wakes(history.requests, report.faults, 2 * STILL_S)
    ]
    statuses = Counter(each.status for each in requests)
    return {
        "seed": report.seed,
        "faults": len(report.faults),
        "sessions": len(report.histories),
        "requests": len(requests),
        "unanswered": statuses[None],
        "503": statuses[503],
        "repeated": sum(each.kind == "submit" and each.status == 200 for each in requests),
        "takeovers": report.takeovers,
        "wakes": len(late),
        "p50 s": float(np.quantile(late, 0.5)),
        "p99 s": float(np.quantile(late, 0.99)),
        "most s": max(late),
        "seconds": report.seconds,
        "violations": len(report.violations),
    }


def _wakes(requests: Sequence[Request], faults: Sequence[Fault], apart_s: float) -> list[float]:
    """Return how long sites waited for a round that another site had been told already.

    Parameters
    ----------
    requests : sequence of Request
    faults : sequence of Fault
    apart_s : float
        A wake this close to a fault is left out.
    """
    found = []
    tasks = [r for r in requests if r.kind == "task" and r.status == 200 and r.round is not None]
    for number in {r.round for r in tasks}:
        first: dict[str, Request] = {}
        for each in sorted(tasks, key=lambda r: r.ended):
            if each.round == number:
                first.setdefault(each.site, each)
        opened = min(each.ended for each in first.values())
        for each in first.values():
            quiet = all(
                each.ended < fault.began or opened > fault.ended + apart_s for fault in faults
            )
            if quiet and each.ended > opened:
                found.append(each.ended - max(opened, each.began))
    return found


if __name__ == "__main__":
    sys.exit(main())
