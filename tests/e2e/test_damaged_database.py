"""The real coordinator on a database that is damaged while it runs, and while it does not."""

from pathlib import Path

import pytest

from fedclust_service.exit_codes import Exit
from support.api_caller import ApiCaller
from support.damage import overwrite, root_page
from support.reader import Reader
from support.server import ServerProcess, running_server
from support.timeouts import TIMEOUT_S

SITES = ("north", "south", "west")


def world_of(server: ServerProcess) -> ApiCaller:
    """Return people with a session that all its sites have joined."""
    api = ApiCaller.found(server, SITES)
    api.begin("ada", "heart", SITES, policy={"scaling": "none", "missing": "drop"})
    return api


def test_a_damaged_file_is_not_served(tmp_path: Path) -> None:
    """That a backup takes its place: `test_backup.py`."""
    with running_server(tmp_path / "server") as server:
        world_of(server)
        server.stop()
        path = server.data_dir / "fedclust.db"
        overwrite(path, root_page(path, "submissions"), b"\x5a" * 64)
        with pytest.raises(AssertionError, match="it is damaged; move it aside and put a backup"):
            server.start()
        assert server.process.wait(TIMEOUT_S) == Exit.DATABASE


def test_damage_that_is_met_while_serving(tmp_path: Path) -> None:
    """503 for what the damage is in the way of, and not ready; the log says it once."""
    with running_server(tmp_path / "server") as server:
        api = world_of(server)
        assert api.put("north", "heart", 1, api.answer("north", "heart")).status_code == 201
        server.stop()
        path = server.data_dir / "fedclust.db"
        whole = path.read_bytes()
        server.restart()
        reader = Reader(server.base_url, server.operator_token)
        # Behind the check at the start, before any connection has read the page.
        overwrite(path, root_page(path, "submissions"), b"\x5a" * 64)
        refused = api.request("GET", "/v1/sessions", server.operator_token)
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        answer = server.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, ["database-damaged"])
        assert refused.json()["detail"] == answer.json()["detail"]
        assert "The database is damaged, or its file was" in reader.open("/ui/overview")
        # Nothing is written from then on, wherever it would go.
        added = api.request("POST", "/v1/sites", server.operator_token, json={"name": "another"})
        assert added.status_code == 503
        assert server.output().count('"database_damaged"') == 1
        server.kill()
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(whole)
        server.restart()
        assert server.get("/readyz").status_code == 200
