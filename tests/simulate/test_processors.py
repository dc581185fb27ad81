"""Whole sessions of every method give the same result whatever kernels the processor has."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from threadpoolctl import threadpool_info

from fedclust import simulate
from fedclust.wire import codec
from support import few_clouds
from support.method_variants import ALL, IDS, SWEEP_IDS, SWEEPS
from support.processes import clean_environment
from support.site_rows import FloatArray, blobs, bounded
from support.timeouts import TIMEOUT_S

#: Kernels of OpenBLAS that run nearly everywhere, each with what it needs.
KERNELS = {"Nehalem": "SSE42", "Haswell": "AVX2"}


def processors() -> dict[str, dict[str, str]]:
    """Return environments in which this machine passes for others; the first is as it is."""
    found: dict[str, dict[str, str]] = {"as it is": {}}
    oldest: dict[str, str] = {}
    for kernel, feature in KERNELS.items():
        if __cpu_features__.get(feature):
            found[kernel] = {"OPENBLAS_CORETYPE": kernel}
            oldest = oldest or found[kernel]
    optional = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
    if optional:
        found["numpy's baseline"] = {"NPY_DISABLE_CPU_FEATURES": optional}
    found["oldest"] = {**oldest, **found.get("numpy's baseline", {})}
    return found


@pytest.mark.skipif("SSE42" not in __cpu_features__, reason="kernels are chosen by name on x86")
@pytest.mark.parametrize(
    ("names", "tried"),
    [
        # Where much is equal, the last digit decides most.
        pytest.param(("as it is", "oldest"), ("few values", "one sweep"), id="oldest"),
        pytest.param(None, ("continuous", "few values"), id="all", marks=pytest.mark.long),
    ],
)
def test_results_agree_between_processors(
    tmp_path: Path, names: tuple[str, ...] | None, tried: tuple[str, ...]
) -> None:
    running = {}
    every = processors()
    for number, name in enumerate(names or every):
        path = tmp_path / str(number)
        running[name] = (
            path,
            subprocess.Popen(
                [sys.executable, __file__, str(path), *tried],
                env=clean_environment(
                    {
                        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                        "OPENBLAS_NUM_THREADS": "1",
                        **every[name],
                    }
                ),
            ),
        )
    done: dict[str, dict[str, Any]] = {}
    for name, (path, process) in running.items():
        assert process.wait(TIMEOUT_S) == 0, name
        done[name] = codec.decode(path.read_bytes())
    for name, found in done.items():
        if name in KERNELS:
            assert found["blas"] == (name,)
    assert len({found["blas"] for found in done.values()}) >= 2
    expected, *others = done
    for other in others:
        for session, one in done[expected]["sessions"].items():
            agree(one, done[other]["sessions"][session], f"{other}: {session}")


def agree(one: Any, two: Any, at: str) -> None:
    """Assert that two trees are equal to 1e-9, and all but numbers and digests exactly."""
    assert type(one) is type(two), at
    if isinstance(one, dict):
        assert one.keys() == two.keys(), at
        for key in one:
            agree(one[key], two[key], f"{at}/{key}")
    elif isinstance(one, tuple):
        assert len(one) == len(two), at
        for index, pair in enumerate(zip(one, two, strict=True)):
            agree(*pair, f"{at}/{index}")
    elif isinstance(one, (np.ndarray, float)):
        np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-9, err_msg=at)
    elif not (isinstance(one, str) and re.fullmatch("[0-9a-f]{64}", one)):
        assert one == two, at


# --- what each process runs: OpenBLAS and numpy choose their kernels when they are loaded --------

SEED = 7
#: Clusters that overlap, so that a choice made otherwise would be seen.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def data() -> dict[str, dict[str, FloatArray]]:
    """Return rows by kind and site: all different; and of few values, so that much is equal."""
    rng = np.random.default_rng(3)
    few = {site: rng.integers(0, 4, (40, 3)).astype(float) for site in "abc"}
    return {"continuous": blobs(CORNERS, [10, 14, 12], 0.6, 5), "few values": few}


def sessions(tried: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run every variant of every method on these kinds of rows; all of them by name."""
    few_clouds.draw(few_clouds.FEW)
    done = {}
    n_sweeps = 1 if "one sweep" in tried else len(SWEEPS)
    for kind, sites in ((kind, sites) for kind, sites in data().items() if kind in tried):
        for name, (method, options) in zip(
            (*IDS, *SWEEP_IDS[:n_sweeps], "spectral-rbf"),
            (*ALL, *SWEEPS[:n_sweeps], ("spectral", {"alignment": "procrustes", "gamma": 0.5})),
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
                "result": codec.to_tree(found.result),
                "labels": found.labels_,
            }
    return done


if __name__ == "__main__":
    # All that left the sites, the results, the labels, and which kernels there were.
    blas = sorted({pool["architecture"] for pool in threadpool_info() if "architecture" in pool})
    found = codec.encode({"blas": blas, "sessions": sessions(sys.argv[2:])})
    Path(sys.argv[1]).write_bytes(found)
