"""A coordinator as a process, on each kind of database that a test asks for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import ServerProcess, running_server


@pytest.fixture
def server(tmp_path: Path, database_url: str) -> Iterator[ServerProcess]:
    env = {"FEDCLUST_DATABASE_URL": database_url}
    with running_server(tmp_path / "server", env=env) as server:
        yield server
