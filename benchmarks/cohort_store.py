"""The stored groups of a large site: their size on disk, and the time of an update.

``python benchmarks/cohort_store.py`` prints both for a million persons and 32 columns.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np

from fedclust.protection.columns import SourceColumn
from fedclust.protection.recognition import PersonSource
from fedclust.site.cohorts import CohortStore
from fedclust.site.state import SiteState


def _timed(what: str, work: Callable[[], object]) -> None:
    start = time.perf_counter()
    work()
    print(f"{what:<44}{time.perf_counter() - start:8.1f} s")


def main() -> None:
    """Print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--persons", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=32)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    ids = [f"patient-{i}" for i in range(given.persons)]
    sources = [SourceColumn(f"x{j}", rng.normal(size=given.persons)) for j in range(given.columns)]
    rules = {each.name: "number" for each in sources}
    with tempfile.TemporaryDirectory() as place:
        state = SiteState(place)
        store = CohortStore(state)

        def update() -> None:
            source = PersonSource(lambda: [(ids, sources)], rules, n_persons=len(ids))
            draft = store.draft(source, p=5, now=datetime.now(UTC))
            store.keep(draft)

        _timed("first table, formed and written", update)
        _timed("opened and verified", store.records)
        _timed("an update in which nothing changed", update)
        print(f"{'on disk':<44}{state.path.stat().st_size / 1e6:8.1f} MB")


if __name__ == "__main__":
    main()
