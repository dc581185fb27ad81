"""What ``doctor`` finds, line by line."""

import errno
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedclust import durable_files, errors
from fedclust.cli import doctor
from fedclust.cli.options import Connection, Reading, WhoseRows, exit_code
from fedclust.client.http import Http
from fedclust.site.cohorts import CohortStore
from fedclust.site.settings import settings_path
from fedclust.site.state import SiteState, state_directory
from fedclust.wire import models
from support.certificates import Authority
from support.cohorts import persons, source_of
from support.fake_coordinator import answer, in_json, refusal
from support.proxies import served


class Clinic(httpx.BaseTransport):
    """A coordinator as one machine sees it."""

    def __init__(self) -> None:
        #: The clock's lead; None where the coordinator cannot be reached.
        self.ahead: timedelta | None = timedelta(0)
        self.days, self.protocol, self.role = 200, models.PROTOCOL_VERSION, "site"
        self.refused = False
        self.requests: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        now = datetime.now(UTC)
        if self.ahead is None:
            raise httpx.ConnectError("nobody answers", request=request)
        if request.url.path == "/healthz":
            return answer(200, Date=format_datetime(now + self.ahead))
        if self.refused:
            return refusal("unauthenticated", "ask your operator for a token")
        return in_json(
            models.WhoAmI(
                role=self.role,
                name="me",
                expires_at=now + timedelta(days=self.days, hours=1),
                server_version="1",
                protocol_version=self.protocol,
            )
        )


class Visit:
    """Runs ``doctor`` on this machine."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clinic, self.place = Clinic(), place
        self.transport: httpx.BaseTransport | None = self.clinic
        monkeypatch.setenv("FEDCLUST_STATE_DIR", str(place / "state"))
        self.token = place / "token"
        self.token.write_text("fcs_secret", "utf-8")
        self.token.chmod(0o600)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FEDCLUST_PROXY"):
            for each in (name, name.lower()):
                monkeypatch.delenv(each, raising=False)

        def reach(url: str, token: str, options: Any) -> Http:
            return Http(url, token, options, transport=self.transport, sleep=lambda _: None)

        monkeypatch.setattr(doctor, "Http", reach)

    def findings(
        self, url: str = "http://127.0.0.1:9", data: Path | None = None, **connection: Any
    ) -> tuple[dict[str, tuple[str, str]], int]:
        worst: list[errors.FedclustError] = []
        whose = WhoseRows(id_column=connection.pop("id_column", None))
        reach = Connection(coordinator=url, token_file=self.token, **connection)
        read = None if data is None else lambda: Reading().source(str(data), whose)
        found = doctor._findings(reach, read, None, worst)
        lines = {each.check: (each.state, each.said) for each in found}
        return lines, exit_code(worst[0]) if worst else 0

    def finds(self, check: str, state: str, code: int, *texts: str) -> dict[str, tuple[str, str]]:
        """Assert what one check finds and with which exit code, and return what all find."""
        lines, ended = self.findings()
        assert (lines[check][0], ended) == (state, code)
        assert all(text in lines[check][1] for text in texts), lines[check][1]
        return lines


@pytest.fixture
def visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visit:
    return Visit(tmp_path, monkeypatch)


def test_all_is_well(visit: Visit) -> None:
    lines, code = visit.findings()
    assert {state for state, _ in lines.values()} == {"ok"}
    assert code == 0
    assert "valid for 200 days" in lines["token"][1]
    assert all("fcs_secret" not in said for _, said in lines.values())
    # Nothing is changed there by looking.
    assert all(request.startswith("GET") for request in visit.clinic.requests)


def test_the_sites_settings_are_shown_and_a_wrong_one_is_a_failure(visit: Visit) -> None:
    lines, _ = visit.findings()
    path = settings_path(state_directory())
    defaults = f"require_approval = false, agent.notify_command = [] (default; no {path})"
    assert lines["site.toml"] == ("ok", defaults)
    path.write_text("require_approval = true\n", "utf-8")
    lines, code = visit.findings()
    in_use = f"{path}: require_approval = true, agent.notify_command = []"
    assert lines["site.toml"] == ("ok", in_use)
    assert code == 0
    path.write_text("approval = true\n", "utf-8")
    visit.finds("site.toml", "failed", 2, "approval: there is no such setting")


@pytest.mark.parametrize("minutes", [-5, 5])
def test_clocks_that_differ(visit: Visit, minutes: int) -> None:
    visit.clinic.ahead = timedelta(minutes=minutes)
    _, said = visit.finds("clock", "warning", 0, "set this machine's clock")["clock"]
    assert abs(int(said.split()[0]) - 300) <= 2


def test_tokens_that_end_soon_or_are_of_no_use_here(visit: Visit) -> None:
    visit.clinic.days = 3
    visit.finds("token", "warning", 0, "ask its operator")
    visit.clinic.role = "operator"
    visit.finds("token", "warning", 0, "needs the token of a site")
    visit.clinic.protocol = models.PROTOCOL_VERSION + 1
    visit.finds("token", "failed", 6, "pip install --upgrade fedclust")
    visit.clinic.refused = True
    visit.finds("token", "failed", 5, "ask your operator")


def test_a_full_disk_a_missing_file_and_a_missing_proxy(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LEAST_DISK", 2**62)
    lines, code = visit.findings(data=visit.place / "absent.csv")
    assert (lines["disk"][0], lines["data"][0], code) == ("failed", "failed", 8)
    # The first fault does not hide what is looked at after it.
    assert lines["token"][0] == "ok"
    monkeypatch.setenv("HTTPS_PROXY", "http://user:s3cret@proxy.example:3128")
    lines, _ = visit.findings("https://coordinator.example")
    assert lines["proxy"][1] == "from the environment, for https"
    assert all("s3cret" not in said for _, said in lines.values())


def test_an_id_column_that_the_table_lacks_is_found(visit: Visit) -> None:
    path = visit.place / "cohort.csv"
    path.write_text("mrn,age\na,60\nb,61\n", "utf-8")
    lines, code = visit.findings(data=path, id_column="mrn")
    assert (lines["data"][0], code) == ("ok", 0)
    lines, code = visit.findings(data=path, id_column="mnr")
    assert (lines["data"][0], code) == ("failed", 3)
    assert "mnr" in lines["data"][1]


def test_without_a_token_the_way_to_the_coordinator_is_looked_at(visit: Visit) -> None:
    """The network's people and the token's are not the same: one visit is for both."""
    visit.token.unlink()
    lines = visit.finds("token", "failed", 2, str(visit.token))
    assert (lines["coordinator"][0], lines["clock"][0]) == ("ok", "ok")


def test_a_state_that_cannot_be_kept_there(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(durable_files, "_lock", none)
        visit.finds("state", "failed", 8, "No locks available")
    assert list((visit.place / "state").iterdir()) == []
    (visit.place / "file").write_text("", "utf-8")
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(visit.place / "file"))
    assert visit.findings()[0]["state"][0] == "failed"


def test_a_network_file_system_is_refused(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedclust.site.state.network_file_system", lambda _: "nfs4")
    visit.finds("state", "failed", 8, "nfs4", "FEDCLUST_STATE_DIR")


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_a_state_that_others_can_look_into(visit: Visit) -> None:
    (visit.place / "state").mkdir(mode=0o755)
    visit.finds("state", "warning", 0, "chmod 700")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE ledger SET text = replace(text, 'created', 'updated')", "table"),
        ("UPDATE cohorts SET content = substr(content, 2)", "checksum"),
        ("DELETE FROM documents WHERE name = 'key'", "key"),
    ],
)
def test_the_whole_state_is_verified(visit: Visit, statement: str, said: str) -> None:
    state = SiteState()
    store = CohortStore(state)
    store.keep(store.draft(source_of(persons(40)), p=5, now=datetime.now(UTC)))
    state_line = visit.findings()[0]["state"]
    assert state_line[0] == "ok"
    assert "1 tables, 0 sessions, 1 lines in the ledger; verified" in state_line[1]
    with state.write() as connection:
        connection.execute(statement)
    visit.finds("state", "failed", 8, said)


def test_the_last_line_says_what_it_comes_to() -> None:
    def found(*states: Any) -> list[doctor.Finding]:
        return [doctor.Finding(f"check-{n}", state, "") for n, state in enumerate(states)]

    assert "fedclust check" in doctor._conclusion(found("ok", "skipped"))
    some = doctor._conclusion(found("ok", "warning"))
    assert some.startswith("ready today")
    assert some.endswith("check-1")
    worse = doctor._conclusion(found("failed", "warning", "failed"))
    assert worse.startswith("fix this first")
    assert worse.endswith("check-0, check-2")


def test_a_certificate_that_ends_soon(visit: Visit) -> None:
    authority = Authority(visit.place / "pki")
    pair = authority.issue("127.0.0.1", name="server")
    visit.transport = None
    with served(visit.clinic, pair) as url:
        lines, code = visit.findings(url, ca_bundle=authority.bundle)
    assert (lines["tls"][0], lines["token"][0], code) == ("warning", "ok", 0)
    assert "expires in 9 days" in lines["tls"][1]


def test_a_coordinator_that_cannot_be_reached(visit: Visit) -> None:
    visit.clinic.ahead = None
    lines = visit.finds("coordinator", "failed", 6)
    assert {lines[check][0] for check in ("tls", "clock", "token")} == {"skipped"}
