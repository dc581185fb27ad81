"""The method of docs/adding-a-method.md, taken from the page and installed as a distribution."""

import json
import os
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from support.consortium import Consortium
from support.plugins import install
from support.processes import SERVICE, clean_environment, run
from support.server import running_server

ROOT = Path(__file__).parents[2]
#: The parts of the module, from the options to the method.
PARTS = re.compile(r"^```python\n(.*?)```", re.DOTALL | re.MULTILINE)
#: The name and the entry points of the distribution.
DECLARED = re.compile(r"^`pyproject\.toml`.*?\n```toml\n(.*?)```", re.DOTALL | re.MULTILINE)
SITES = {"ada": 60, "brno": 50, "cadiz": 55}
#: Some of the tests that hold for every method.
SHARED = ("tests/e2e/test_same_bytes.py", "tests/simulate/test_any_rows.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's distribution is installed, and the rows of three sites."""
    place = tmp_path_factory.mktemp("damped")
    page = (ROOT / "docs" / "adding-a-method.md").read_text("utf-8")
    project = tomllib.loads(DECLARED.findall(page)[0])["project"]
    methods = project["entry-points"]["fedclust.methods"]
    module = "\n\n".join(PARTS.findall(page[: page.index("## Try it")]))
    install(place, project["name"], methods, {"fedclust_damped.py": module}, project["version"])
    rng = np.random.default_rng(5)
    for name, n in SITES.items():
        rows = 8.0 * rng.integers(0, 3, (n, 1)) + rng.normal(size=(n, 2))
        np.savetxt(place / f"{name}.csv", rows, "%.17g", ",", header="x,y", comments="")
    return place


def environment(place: Path) -> dict[str, str]:
    return clean_environment({"PYTHONPATH": str(place)})


#: The other sites, in Python: {site: token} is the second argument. And the same in one process.
OTHERS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from fedclust import Site, simulate

def take_part(name, token):
    with Site(sys.argv[1], token=token, state_dir=name) as site:
        site.participate("far", f"{name}.csv", consent=True)

with ThreadPoolExecutor() as pool:
    list(pool.map(take_part, *zip(*json.loads(sys.argv[2]).items())))
files = {name: f"{name}.csv" for name in sys.argv[3:]}
found = simulate("damped", files, config={"n_clusters": 3}, features=["x", "y"], seed=7)
found.save_report("a.json")
"""


def command(place: Path, *arguments: str, **env: str) -> str:
    """Run ``fedclust`` in an interpreter of its own, and return what it prints."""
    return python(place, "-m", "fedclust.cli", *arguments, **env)


def python(place: Path, *arguments: str, **env: str) -> str:
    done = run([sys.executable, *arguments], env={**environment(place), **env}, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_command_and_service_find_a_method_of_another_distribution(place: Path) -> None:
    """A session over HTTP gives what ``simulate`` does, and consent lists what leaves."""
    program = (sys.executable, "-c", f"{SERVICE}\n")
    with running_server(place / "server", env=environment(place), command=program) as server:
        consortium = Consortium.found(server.base_url, server.operator_token, tuple(SITES))
        features = [{"name": "x"}, {"name": "y"}]
        config = {"n_clusters": 3}
        consortium.create("far", 2, algorithm="damped", config=config, features=features)
        coordinator = {"FEDCLUST_COORDINATOR": server.base_url}
        tokens = dict(consortium.site_tokens)
        own = {"FEDCLUST_STATE_DIR": str(place / "ada"), "FEDCLUST_TOKEN": tokens.pop("ada")}
        asked = ["participate", "far", "--data=ada.csv", "--yes", "--full", "--give-up-after=20"]
        with ThreadPoolExecutor() as pool:
            given = (server.base_url, json.dumps(tokens), *SITES)
            others = pool.submit(python, place, "-c", OTHERS, *given)
            try:
                said = " ".join(command(place, *asked, **coordinator, **own).split())
            finally:
                # Without this site the others would wait.
                if sys.exc_info()[0]:
                    server.kill()
            others.result()
        analyst = {**coordinator, "FEDCLUST_TOKEN": consortium.analyst_token}
        command(place, "session", "result", "far", "--report=b.json", **analyst)
    assert "Each site assigns its points to the nearest centroid and adds them up." in said
    assert "The sum of each column over these, scaled." in said
    in_process, over_http = (
        json.loads((place / name).read_text()) for name in ("a.json", "b.json")
    )
    assert len(over_http["clusters"]) == 3
    assert over_http["clusters"] == in_process["clusters"]
    assert over_http["history"] == in_process["history"]


@pytest.mark.long
def test_the_shared_tests_of_methods_hold_for_it(place: Path) -> None:
    """As the page says: in a pytest of its own, with the module that names its variants."""
    page = (ROOT / "docs" / "adding-a-method.md").read_text("utf-8")
    for name in ("try_damped.py", "test_damped.py"):
        (module,) = re.findall(rf"`{re.escape(name)}`.*?```python\n(.*?)```", page, re.DOTALL)
        (place / name).write_text(module, "utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([str(ROOT / "tests"), str(place)])
    pytest_of_its_own = (sys.executable, "-m", "pytest", "-q", "-p", "try_damped", "-k", "damped")
    modules = (*SHARED, str(place / "test_damped.py"))
    done = run([*pytest_of_its_own, *modules], env={**own, "PYTHONPATH": path}, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
