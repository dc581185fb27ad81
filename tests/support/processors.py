"""Sessions of every method, run as ``python -m support.processors FILE`` on a given processor.

The processor is what the environment says: OpenBLAS and numpy choose their kernels when they are
loaded. All that left the sites, the results and the labels go to the file, to be compared with
those of another processor.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from fedclust import simulate
from fedclust.wire import codec
from support.method_variants import ALL, IDS, SWEEP_IDS, SWEEPS
from support.site_rows import FloatArray, blobs, bounded

SEED = 7
#: Clusters that overlap, so that a choice made otherwise would be seen.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def data() -> dict[str, dict[str, FloatArray]]:
    """Return rows by kind and site: all different; and of few values, so that much is equal."""
    rng = np.random.default_rng(3)
    few = {site: rng.integers(0, 4, (60, 3)).astype(float) for site in "abc"}
    return {"continuous": blobs(CORNERS, [10, 14, 12], 0.6, 5), "few values": few}


def sessions() -> dict[str, dict[str, Any]]:
    """Run every variant of every method on each kind of rows; all of them by name."""
    done = {}
    for kind, sites in data().items():
        for name, (method, options) in zip(
            (*IDS, *SWEEP_IDS, "spectral-rbf"),
            (*ALL, *SWEEPS, ("spectral", {"alignment": "procrustes", "gamma": 0.5})),
            strict=True,
        ):
            found = simulate(
                method,
                sites,
                config={"n_clusters": 3, **options},
                policy={"max_rounds": 5},
                features=bounded(sites),
                seed=SEED,
            )
            done[f"{name}, {kind}"] = {
                "sent": [
                    [entry.phase, entry.site, entry.payload and codec.to_tree(entry.payload)]
                    for entry in found.trace_
                ],
                "result": codec.to_tree(found.result_),
                "labels": found.labels_,
            }
    return done


def main() -> None:
    """Write the sessions, and which kernels there were."""
    blas = sorted({pool["architecture"] for pool in threadpool_info() if "architecture" in pool})
    Path(sys.argv[1]).write_bytes(codec.encode({"blas": blas, "sessions": sessions()}))


if __name__ == "__main__":
    main()
