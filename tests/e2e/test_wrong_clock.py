"""The real coordinator on a machine whose clock is set wrong and right again."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from fedclust_service.exit_codes import Exit
from support.api_caller import ApiCaller
from support.processes import WRONG_TIME
from support.server import ServerProcess
from support.timeouts import TIMEOUT_S, eventually

DAY = 86_400
SITES = ("north", "south", "west")


class WrongTime:
    """A coordinator and its machine's clock."""

    def __init__(self, place: Path) -> None:
        self._ahead = place / "ahead"
        self.set(0)
        command = (sys.executable, "-c", WRONG_TIME, str(self._ahead))
        flags = ("--sweep-every-s", "0.05")
        self.server = ServerProcess(place / "server", flags, command=command)

    def set(self, seconds: float) -> None:
        draft = self._ahead.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.replace(self._ahead)

    def reasons(self) -> list[str]:
        url = f"{self.server.base_url}/readyz"
        answer = httpx.get(url, timeout=TIMEOUT_S, trust_env=False)
        return [] if answer.status_code == 200 else list(answer.json()["reasons"])

    def wait_for(self, reasons: list[str]) -> None:
        eventually(lambda: self.reasons() == reasons, lambda: str(self.reasons()))

    def sweep(self, times: int = 5) -> None:
        """Wait for some sweeps: each begins by looking for rounds that are due."""
        name = 'fedclust_store_calls_total{transaction="sweep.look"}'

        def swept() -> float:
            url = f"{self.server.base_url}/metrics"
            text = httpx.get(url, timeout=TIMEOUT_S, trust_env=False).text
            return next((float(x.split()[1]) for x in text.splitlines() if x.startswith(name)), 0.0)

        until = swept() + times
        eventually(lambda: swept() >= until)

    def payloads(self) -> int:
        with closing(sqlite3.connect(self.server.data_dir / "fedclust.db")) as database:
            query = "SELECT count(*) FROM submissions WHERE payload IS NOT NULL"
            return int(database.execute(query).fetchone()[0])


def test_a_wrong_clock_loses_nothing(tmp_path: Path) -> None:
    wrong = WrongTime(tmp_path)
    server = wrong.server
    try:
        server.start()
        api = ApiCaller(server.base_url, server.operator_token)
        api.register("sites", *SITES)
        api.register("analysts", "ada")
        api.define("ada", "heart", list(SITES))
        for site in SITES:
            api.join(site, "heart")
        assert api.finish("heart", SITES) == "completed"
        kept = wrong.payloads()
        assert kept > 0
        # Ahead by 31 days for a moment, and right again.
        wrong.set(31 * DAY)
        wrong.wait_for(["machine-clock"])
        wrong.sweep()
        wrong.set(0)
        wrong.wait_for([])
        wrong.sweep()
        assert "clock_refused" in server.output()
        # Wrong when it starts.
        server.kill()
        wrong.set(31 * DAY)
        server.start()
        wrong.sweep()
        assert wrong.payloads() == kept
        server.kill()
        wrong.set(-DAY)
        with pytest.raises(AssertionError, match="behind the last entry of the audit trail"):
            server.start()
        assert server.process is not None
        assert server.process.wait(TIMEOUT_S) == Exit.CLOCK
    finally:
        server.kill()
