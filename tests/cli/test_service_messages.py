"""What ``fedclust-service`` ends with: its text, and the exit code. In this process."""

import errno
import re
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedclust_service
from fedclust_service import cli
from fedclust_service.bootstrap import open_coordinator
from fedclust_service.domain.access import Refusal, Role
from fedclust_service.exit_codes import Exit, StartFailure
from fedclust_service.server import listen
from fedclust_service.settings import load_settings
from fedclust_service.store import tables
from fedclust_service.usecases import principals, sign_ins

SECRET = "s3cret-s3cret-s3cret-s3cret-s3cret"
MAIL = "notify-test --smtp-host 127.0.0.1 --smtp-security none --smtp-from me@x.example"
HOOK = "https://hook.example/s3cret"
PG = {"DATABASE_URL": "postgresql+psycopg://u:s3cret@127.0.0.1:1/x"}
BEYOND = "serve --behind-proxy 10.0.0.0/8"
Run = Callable[[str], tuple[int, str]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with files that are not what a setting asks for."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("s3cret", "utf-8")
    keys = {"open": (SECRET, 0o644), "short": ("s3cret", 0o600), "odd": ("\u00e9" * 50, 0o600)}
    for name, (content, mode) in keys.items():
        key = Path(name, "secret.key")
        key.parent.mkdir()
        key.write_text(content, "utf-8")
        key.chmod(mode)
    Path("files").mkdir()
    Path("files", "fedclust_nope").write_text("s3cret", "utf-8")
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command: its exit code, and what it prints as one line."""

    def act(line: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedclust-service", *shlex.split(line)])
        return cli.main(), " ".join(" ".join(capsys.readouterr()).split())

    return act


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("line", "env", "code", "text"),
    [
        # Settings, by name.
        ("config show", {"SECRET_KEYY": "x"}, 3, "FEDCLUST_SECRET_KEYY; `fedclust-service config"),
        ("config show --secrets-dir files", {}, 3, "unknown settings: FEDCLUST_NOPE"),
        ("config show --secrets-dir no", {}, 3, "secrets_dir: no is not a directory that can be"),
        ("config show --port 99999", {}, 3, "port: "),
        ("config show --public-url https://u@h/", {}, 3, "public_url: use https://HOST[:PORT]"),
        ("config show --behind-proxy 10.0.0.300/8", {}, 3, "behind_proxy: use networks such as"),
        ("config show", {"SECRET_KEY": "s3cret"}, 3, "secret_key: each key needs at least 32"),
        ("config show", {"DATABASE_URL": "mysql://u:s3cret@h/x"}, 3, "database_url: use sqlite:/"),
        ("config show --tls-cert text", {}, 3, "tls_cert and tls_key go together: set both"),
        ("config show --tls-client-ca text", {}, 3, "tls_client_ca needs tls_cert and tls_key"),
        # Settings of notifications.
        ("config show --operator-emails a@b.example", {}, 3, "smtp_user need smtp_host"),
        ("config show --smtp-host mail.example", {}, 3, "smtp_host needs smtp_from, the address"),
        (f"{MAIL} --smtp-user u", {}, 3, "smtp_user and smtp_password go together: set both"),
        (f"{MAIL} --smtp-host mail.example", {}, 3, "smtp_security none is allowed only if smtp"),
        (f"{MAIL} --operator-emails a@b.example,s3cret", {}, 3, "operator_emails: address 2 is no"),
        ("notify-test", {"WEBHOOK_URL": HOOK}, 3, "hook.example is not one of webhook_hosts"),
        (
            "notify-test --webhook-hosts hook.example",
            {"WEBHOOK_URL": HOOK},
            3,
            "needs webhook_secret",
        ),
        ("notify-test", {}, 3, "no channel is configured: set smtp_host, smtp_from and"),
        ("notify-test --to me", {}, 2, "--to: use an address such as it@hospital.example"),
        (MAIL, {}, 1, "e-mail: set operator_emails, or give --to ADDRESS"),
        (f"{MAIL} --notify-ca no", {}, 3, "notify_ca: no cannot be read: No such file"),
        (f"{MAIL} --notify-ca text", {}, 3, "notify_ca: text holds no PEM certificate"),
        # Files and directories.
        ("init --data-dir text/x", {}, 5, "the data directory text/x cannot be made"),
        ("init --data-dir open", {}, 3, "run chmod 600 open/secret.key"),
        ("init --data-dir short", {}, 3, "holds no key of at least 32 characters: restore it"),
        ("init --data-dir odd", {}, 3, "holds no key of at least 32 characters: restore it"),
        ("init --token-out text", {}, 2, "--token-out: text cannot be written: File exists"),
        ("operator-token --name Op", {}, 2, "--name: use a-z, 0-9 and -, at most 63"),
        ("audit verify --head xyz", {}, 2, "--head: give 64 hexadecimal digits, or NUMBER:HASH"),
        ("audit verify --data-dir no", {}, 5, "there is no database"),
        ("backup --data-dir no --out x", {}, 5, "no backup was made: there is no database"),
        ("restore --data-dir files --from no", {}, 5, "nothing was restored: there is no file no"),
        ("db current --database-url sqlite:///text", {}, 5, "it is not an SQLite database; move"),
        ("serve --port 0", PG, 5, "check that the database runs"),
        ("backup --out x", PG, 3, "PostgreSQL is copied by its own tools"),
        ("restore --from x", PG, 3, "PostgreSQL is restored by its own tools, into an empty"),
        # Each command has its own options only.
        ("backup --out x --port 80", {}, 2, "No such option: --port"),
        ("init --smtp-host x", {}, 2, "No such option: --smtp-host"),
        ("notify-test --retention-days 3", {}, 2, "No such option: --retention-days"),
        ("backup x", {}, 2, "Missing option '--out'"),
        # What serving needs.
        ("serve --port 0 --ready-file no/ready", {}, 3, "ready file"),
        ("serve --host 0.0.0.0", {}, 3, "set --tls-cert and --tls-key, or --behind-proxy"),
        ("serve --tls-cert text --tls-key no", {}, 3, "tls_key: no is not there, or this account"),
        ("serve --tls-cert text --tls-key text", {}, 3, "give a certificate and its private key"),
        (f"{BEYOND} --host 203.0.113.5 --port 8499", {}, 4, "203.0.113.5 port 8499 cannot be lis"),
        (
            f"{BEYOND} --host no.such.invalid",
            {},
            4,
            "there is no address no.such.invalid to listen",
        ),
    ],
)
def test_what_a_command_ends_with(
    monkeypatch: pytest.MonkeyPatch, run: Run, line: str, env: dict[str, str], code: int, text: str
) -> None:
    """One line that names the setting, flag or file, and holds no secret."""
    for name, value in env.items():
        monkeypatch.setenv(f"FEDCLUST_{name}", value)
    ended, said = run(line)
    assert (ended, text in said) == (code, True), said
    assert "s3cret" not in said
    assert "_ssl.c" not in said


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "s3cret", "/data/file")

    monkeypatch.setattr(cli, "app", full)
    assert run("") == (Exit.FAILED, "fedclust-service: /data/file: the disk is full")


def test_a_backup_before_an_upgrade_is_made_and_not_recorded(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    copy = tmp_path / "copy.db"
    monkeypatch.setattr(tables, "SCHEMA_REVISION", "of-tomorrow")
    code, said = run(f"backup --out {copy} --data-dir {tmp_path}")
    assert (code, "the backup is not recorded: " in said) == (0, True)
    assert copy.is_file()


def test_a_lost_key_is_replaced_only_on_request(tmp_path: Path, run: Run) -> None:
    """Without it no token can be verified: none is shown as valid under another key."""
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    key, database = data / "secret.key", data / "fedclust.db"
    settings = load_settings({"data_dir": str(data)}, None)
    at = f"--data-dir {data}"
    _, said = run(f"init {at}")
    old = said.split()[-1]
    with open_coordinator(settings, serving=True) as opened:
        cookie, _ = sign_ins.sign_in(opened.coordinator, old)
        assert run(f"backup --out {copy} {at}")[0] == Exit.OK
        code, said = run(f"init --new-key {at}")
        assert (code, "another coordinator serves" in said) == (Exit.LOCKED, True)
    database.unlink()
    assert run(f"restore --from {copy} {at}")[0] == Exit.OK
    with open_coordinator(settings, serving=True) as opened, pytest.raises(Refusal):
        sign_ins.signed_in(opened.coordinator, cookie)
    key.unlink()
    for command in ("serve --port 0", "init", "operator-token"):
        code, said = run(f"{command} {at}")
        assert code == Exit.SETTINGS
        assert f"{key} is missing, and the tokens of the database are signed with it" in said
        assert "`fedclust-service init --new-key`" in said
    database.unlink()
    code, said = run(f"restore --from {copy} {at}")
    assert (code, f"{key} is missing" in said) == (Exit.SETTINGS, True)
    assert not key.exists()
    assert not database.exists()
    code, said = run(f"restore --from {copy} --new-key {at}")
    assert (code, "all tokens are void and all sign-ins have ended" in said) == (Exit.OK, True)
    token = re.search(r"operator token \(shown once\): (fco_\S+)", said)
    with open_coordinator(settings, serving=True) as opened:
        co = opened.coordinator
        operator = principals.authenticate(co, token[1])
        (known,) = principals.list_principals(co, operator, Role.OPERATOR).items
        assert [each.revoked_at is None for each in known.tokens] == [False, True]
        for text, refuse in ((old, principals.authenticate), (cookie, sign_ins.signed_in)):
            with pytest.raises(Refusal):
                refuse(co, text)
        done = [each.action for each in co.store.read("audit", lambda tx: tx.audit.list(9))]
        # The entry before it is the backup's last, so the overview says what is lost.
        assert done.index("database.restored") > done.index("token.all_revoked")


def test_without_its_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cli", "settings"):
        monkeypatch.delitem(sys.modules, f"fedclust_service.{name}")
        monkeypatch.delattr(fedclust_service, name)
    monkeypatch.setitem(sys.modules, "pydantic_settings", None)
    assert fedclust_service.main() == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert 'pydantic_settings is missing: pip install "fedclust[service]"' in said


def test_a_port_of_privileged_accounts_names_the_capability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(StartFailure, match="below 1024") as caught:
        listen("127.0.0.1", 443)
    assert caught.value.code == Exit.ADDRESS
