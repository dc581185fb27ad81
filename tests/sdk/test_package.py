"""The package's front door: every name resolves, and importing it is light."""

from __future__ import annotations

import subprocess
import sys

import fedclust
from support.timeouts import TIMEOUT_S


def test_every_exported_name_resolves() -> None:
    for name in fedclust.__all__:
        assert getattr(fedclust, name) is not None
    assert set(fedclust.__all__) <= set(dir(fedclust))


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = (
        "('sklearn', 'scipy', 'httpx', 'pandas', 'threadpoolctl', 'fastapi', 'fedclust_service')"
    )
    code = f"import sys, fedclust; print([name for name in {heavy} if name in sys.modules])"
    command = "import fedclust.cli.main; print({'sklearn', 'scipy', 'pandas'} & {*sys.modules})"

    assert _python(f"{code}; {command}").split() == ["[]", "set()"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fedclust, "elbow")


def test_the_estimators_come_from_the_package() -> None:
    from fedclust.local import estimators

    assert fedclust.FederatedKMeans is estimators.FederatedKMeans
    assert fedclust.FederatedSpectralClustering is estimators.FederatedSpectralClustering
