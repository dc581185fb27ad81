"""An operator gets an e-mail when a site is late: real processes, a real mail server, commands."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support import processes
from support.api_caller import ApiCaller
from support.certificates import Authority
from support.local_coordinator import local_coordinator
from support.mail_server import OK, mail_server, webhook_receiver
from support.processes import COMMAND, clean_environment
from support.server import running_server, service
from support.timeouts import TIMEOUT_S, eventually

OPS = "ops@hospital.example"
PASSWORD = "correct-horse-battery-staple"
SECRET = "s" * 40


def test_an_operator_gets_a_mail_when_a_site_is_late(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("localhost", "127.0.0.1", name="mail")
    with (
        mail_server(pair, login=("fedclust", PASSWORD)) as mails,
        webhook_receiver(pair) as receiver,
    ):
        env = {
            "FEDCLUST_SMTP_HOST": "localhost",
            "FEDCLUST_SMTP_PORT": str(mails.port),
            "FEDCLUST_SMTP_FROM": "fedclust@hospital.example",
            "FEDCLUST_SMTP_USER": "fedclust",
            "FEDCLUST_SMTP_PASSWORD": PASSWORD,
            "FEDCLUST_OPERATOR_EMAILS": OPS,
            "FEDCLUST_WEBHOOK_URL": f"https://localhost:{receiver.port}/hook",
            "FEDCLUST_WEBHOOK_HOSTS": "localhost",
            "FEDCLUST_WEBHOOK_SECRET": SECRET,
            "FEDCLUST_NOTIFY_CA": str(authority.bundle),
            "FEDCLUST_NOTIFY_KINDS": "overdue,finished",
        }
        with running_server(tmp_path / "coordinator", env=env) as server:
            api = ApiCaller(server.base_url, server.operator_token)
            sites = ["north", "south", "west"]
            api.register("sites", *sites)
            api.register("analysts", "ada")
            api.begin("ada", "heart", sites)
            deadline = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
            api.ok("PATCH", "/v1/sessions/heart", "ada", json={"deadline": deadline})
            eventually(lambda: mails.mails, server.output)
            ((_, recipients, mail),) = mails.mails
            assert recipients == [OPS]
            eventually(lambda: receiver.requests, server.output)
            body = json.loads(receiver.requests[0][1])
            output = server.output()
        said = mail.get_content()
    assert mail["Subject"].endswith("of the session heart is overdue: 3 sites are late")
    assert "Late: north, south, west" in said
    assert "fedclust session show heart" in said
    assert (body["kind"], body["session"], body["sites"]) == ("overdue", "heart", sites)
    for secret in (PASSWORD, SECRET, OPS, "fcs_", "fca_"):
        assert secret not in re.sub(r"operator token .*", "", output), secret
        assert secret not in json.dumps(body)
    assert "fcs_" not in said


def test_an_agent_without_sessions_runs_the_sites_command(tmp_path: Path) -> None:
    state, got = tmp_path / "state", tmp_path / "got.json"
    state.mkdir()
    keep = f"import pathlib,sys; pathlib.Path({str(got)!r}).write_text(sys.stdin.read())"
    command = json.dumps([sys.executable, "-S", "-c", keep])
    (state / "site.toml").write_text(f"[agent]\nnotify_command = {command}\n", "utf-8")
    with local_coordinator(tmp_path) as local:
        api = ApiCaller.found(local, ("north", "south", "west"))
        api.define("ada", "heart", ["north", "south", "west"])
        settings = {
            "FEDCLUST_COORDINATOR": local.base_url,
            "FEDCLUST_TOKEN": api.tokens["north"],
            "FEDCLUST_STATE_DIR": str(state),
        }
        arguments = [sys.executable, "-c", COMMAND, "agent", "--until-done"]
        first = processes.run(arguments, env=clean_environment(settings), timeout=TIMEOUT_S)
        body = json.loads(got.read_text("utf-8"))
        got.unlink()
        again = processes.run(arguments, env=clean_environment(settings), timeout=TIMEOUT_S)
    assert (body["kind"], body["session"], body["sites"]) == ("invited", "heart", ["north"])
    assert (first.returncode, again.returncode) == (0, 0)
    assert not got.exists()


def test_notify_test_says_for_each_channel_what_happened(tmp_path: Path) -> None:
    env = {"FEDCLUST_DATA_DIR": str(tmp_path / "none")}
    with mail_server() as mails, webhook_receiver() as receiver:
        env |= {
            "FEDCLUST_SMTP_HOST": "127.0.0.1",
            "FEDCLUST_SMTP_PORT": str(mails.port),
            "FEDCLUST_SMTP_SECURITY": "none",
            "FEDCLUST_SMTP_FROM": "fedclust@hospital.example",
            "FEDCLUST_OPERATOR_EMAILS": f"{OPS},gone@hospital.example",
            "FEDCLUST_WEBHOOK_URL": f"http://127.0.0.1:{receiver.port}/hook/hidden",
            "FEDCLUST_WEBHOOK_HOSTS": "127.0.0.1",
            "FEDCLUST_WEBHOOK_SECRET": SECRET,
        }
        mails.replies["RCPT"] = [OK, "550 gone"]
        receiver.statuses.append(500)
        both = service("notify-test", env=env)
        good = service("notify-test", "--to", "me@hospital.example", env=env)
        bad = service("notify-test", "--to", "me@hospital.example\nBcc: x@x", env=env)
    assert both.returncode == 1
    unread, *lines = both.stdout.splitlines()
    assert unread.startswith("e-mail: the operators' accounts were not read: the database ")
    assert lines == [
        f"e-mail to {OPS}: delivered (the mail server has accepted it)",
        (
            "e-mail to gone@hospital.example: not delivered: the mail server refuses the recipient "
            "(550): correct the address of the account or operator_emails"
        ),
        (
            f"webhook http://127.0.0.1:{receiver.port}/***: not delivered: webhook_url: 127.0.0.1 "
            f"port {receiver.port} answers with status 500"
        ),
    ]
    assert good.returncode == 0
    assert [recipients for _, recipients, _ in mails.mails] == [[OPS], ["me@hospital.example"]]
    assert json.loads(receiver.requests[-1][1])["kind"] == "test"
    assert (bad.returncode, len(mails.mails)) == (2, 2)
    assert not (tmp_path / "none").exists()


def test_notify_test_knows_the_addresses_of_operators_accounts(tmp_path: Path) -> None:
    with local_coordinator(tmp_path) as local, mail_server() as mails:
        api = ApiCaller(local.base_url, local.operator_token)
        api.ok("POST", "/v1/operators", "operator", json={"name": "grace", "email": OPS})
        env = {
            "FEDCLUST_DATA_DIR": str(local.settings.data_dir),
            "FEDCLUST_SMTP_HOST": "127.0.0.1",
            "FEDCLUST_SMTP_PORT": str(mails.port),
            "FEDCLUST_SMTP_SECURITY": "none",
            "FEDCLUST_SMTP_FROM": "fedclust@hospital.example",
        }
        done = service("notify-test", env=env)
    assert done.stdout == f"e-mail to {OPS}: delivered (the mail server has accepted it)\n"
