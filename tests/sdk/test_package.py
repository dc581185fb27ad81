"""The package's front door: every name resolves, and importing it is light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fedclust
from support.code_lines import code_lines
from support.timeouts import TIMEOUT_S

#: Code lines of this package that a site loads; lower it when code goes.
MOST_LOADED = 18_306


def test_every_exported_name_resolves() -> None:
    for name in fedclust.__all__:
        assert getattr(fedclust, name) is not None
    assert set(fedclust.__all__) <= set(dir(fedclust))
    assert not hasattr(fedclust, "elbow")


def _python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, text=True, timeout=TIMEOUT_S).strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = (
        "('sklearn', 'scipy', 'httpx', 'pandas', 'threadpoolctl', 'fastapi', 'fedclust_service')"
    )
    code = f"import sys, fedclust; print([name for name in {heavy} if name in sys.modules])"
    command = "import fedclust.cli.main; print({'sklearn', 'scipy', 'pandas'} & {*sys.modules})"

    assert _python(f"{code}; {command}").split() == ["[]", "set()"]


def test_a_site_loads_nothing_that_draws_or_describes_results() -> None:
    code = """
import sys
from fedclust import Site
for name, module in sys.modules.items():
    if name.startswith("fedclust."):
        print(module.__file__)
"""
    files = map(Path, _python(code).splitlines())
    assert sum(map(code_lines, files)) <= MOST_LOADED
