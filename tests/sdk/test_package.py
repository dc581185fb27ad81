"""The package's front door: every name resolves, and importing it is light."""

import subprocess
import sys
from pathlib import Path

import fedclust
from fedclust.methods.registry import BUILT_IN
from support.code_lines import code_lines
from support.timeouts import TIMEOUT_S

#: Code lines of this package that a site loads; lower it when code goes.
MOST_LOADED = 17_450


def test_every_exported_name_resolves() -> None:
    for name in fedclust.__all__:
        assert getattr(fedclust, name) is not None
    assert set(fedclust.__all__) <= set(dir(fedclust))
    assert not hasattr(fedclust, "elbow")


def _python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, text=True, timeout=TIMEOUT_S).strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    # The server and the databases are extras: none may be needed to import the SDK.
    extras = {"sklearn", "pandas", "fastapi", "sqlalchemy", "uvicorn", "structlog", "rocrate"}
    heavy = extras | {"scipy", "httpx", "threadpoolctl", "fedclust_service"}
    code = f"import sys, fedclust; print({heavy} & {{*sys.modules}})"
    command = f"import fedclust.cli.main; print({extras | {'scipy'}} & {{*sys.modules}})"
    site = f"import fedclust.site, fedclust.client; print({extras} & {{*sys.modules}})"

    assert _python(f"{code}; {command}; {site}").split() == ["set()"] * 3


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


def test_a_site_loads_no_method_but_that_of_its_session(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from fedclust import Site
print(*sys.modules)
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.fake_coordinator import FakeCoordinator, three_clusters
fake = FakeCoordinator({{"alpha": three_clusters(60, 1), "beta": three_clusters(50, 2)}})
fake.site(Path({str(tmp_path)!r})).participate("heart", three_clusters(80, 3), consent=True)
print(*sys.modules)
"""
    methods = {f"fedclust.methods.{name}" for name in BUILT_IN}
    before, after = (methods.intersection(line.split()) for line in _python(code).splitlines())
    assert before == set()
    assert after == {"fedclust.methods.lloyd"}
