"""Fixtures that several folders of tests share. Databases: see `support.databases`.

What only tests with a database or a clock need is imported in its fixture: others start faster.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings
from typer import main as typer

from fedclust.site import cohorts, state
from support.running_order import mixed

if TYPE_CHECKING:
    from fedclust_service.store import Store
    from support.clock import ManualClock
    from support.command_line import CommandLine
    from support.databases import PostgresServer

DATABASES = ("sqlite", "postgresql")


def _keep_files_in_memory() -> None:
    """Let temporary files be in memory where Linux has room there.

    A disk takes milliseconds for each of many thousand calls of fsync. No test pulls a plug.
    """
    memory = Path("/dev/shm")  # noqa: S108
    if memory.is_dir() and "TMPDIR" not in os.environ:
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize > 4 * 2**30 and not found.f_flag & os.ST_NOEXEC:
            os.environ["TMPDIR"] = str(memory)
            tempfile.tempdir = None


_keep_files_in_memory()

# The same examples in every run, and no limits of time: a machine with other work to do is slow,
# not wrong. `make bench long_checks` looks for other examples.
settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "other", settings.get_profile("same"), derandomize=False, max_examples=500, print_blob=True
)
settings.load_profile("same")
with contextlib.suppress(ImportError):
    from hypothesis.internal.conjecture import providers

    # Otherwise it draws constants of all modules imported so far, which differ with the order of
    # the tests.
    providers._get_local_constants = lambda: providers._local_constants

# Collecting the tests makes a million objects that stay. No collection of garbage looks at them.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Let numba compile once while the workers collect, and not in each of them."""
    if getattr(config.option, "numprocesses", None):
        program = "import fedclust_dual.branch_and_bound"
        compiling = subprocess.Popen([sys.executable, "-c", program])
        config.add_cleanup(compiling.wait)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker rewrite the assertions of some modules, which the others then find."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    modules = sorted(Path(__file__).parent.rglob("test_*.py"))
    for path in modules[int(worker["workerid"][2:]) :: worker["workercount"]]:
        folder = rewrite.get_cache_dir(path)
        kept = folder / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, kept) is None and rewrite.try_makedirs(folder):
            source, code = rewrite._rewrite_test(path, session.config)
            rewrite._write_pyc(session.config.stash[rewrite.assertstate_key], code, source, kept)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        folder = Path(__file__).parent
        items[:] = mixed(items, workers, lambda item: item.path.relative_to(folder).as_posix())


# Typer builds all commands of a program at each call: 25 ms, and tests make many hundred calls.
typer.get_command = functools.cache(typer.get_command)


_tests = itertools.count()


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the groups of a test's sites apart from those of other tests, and of this account.

    Their secrets are the same in every run: with a random one, one in 256
    changed values looks unchanged.
    """
    # `mktemp` looks for the next number among all directories of all tests: 3 ms in the end.
    directory = tmp_path_factory.getbasetemp() / "states" / str(next(_tests))
    directory.mkdir(0o700, parents=True)
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(directory))
    drawn = random.Random(0)
    drawing = SimpleNamespace(
        # Whichever site begins first.
        token_bytes=lambda n: random.Random(0).randbytes(n),
        token_hex=lambda n: drawn.randbytes(n).hex(),
    )
    monkeypatch.setattr(cohorts, "secrets", drawing)
    monkeypatch.setattr(state, "secrets", drawing)


@pytest.fixture(scope="session", autouse=True)
def _few_clouds() -> None:
    from support import few_clouds

    few_clouds.draw(few_clouds.FEW)


@pytest.fixture(scope="module")
def all_clouds() -> Iterator[None]:
    """Draw as many clouds as sessions do outside tests."""
    from support import few_clouds

    with few_clouds.all_drawn():
        yield


@pytest.fixture
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """Return the command ``fedclust``, which runs in this process."""
    from support.command_line import CommandLine

    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that the test moves."""
    from support.clock import ManualClock

    return ManualClock()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Return the test run's PostgreSQL server."""
    from support.databases import PostgresServer

    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the address of a migrated SQLite file."""
    from support.sqlite_file import create_sqlite

    return create_sqlite(tmp_path)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Return the address of a migrated PostgreSQL database."""
    name = postgres_server.create()
    yield postgres_server.url(name)
    postgres_server.give_back(name)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """Return the address of a migrated database, on each kind."""
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture(params=DATABASES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the address of a database without tables, on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'fedclust.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create(migrated=False)
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def store(database_url: str, clock: ManualClock) -> Iterator[Store]:
    """Return an open store on each kind of database."""
    from fedclust_service.store import Store

    opened = Store.open(database_url, clock)
    yield opened
    opened.close()
