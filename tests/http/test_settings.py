"""Settings: where they come from, what is refused, what is never shown."""

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from fedclust.wire.models import OperatorInfo
from fedclust_service import bootstrap
from fedclust_service.addresses import is_loopback, masked_url
from fedclust_service.exit_codes import SettingsError
from fedclust_service.settings import CLIENT_VARIABLES, Settings, load_settings
from fedclust_service.usecases.core import Limits
from support.certificates import Authority

SECRET = "correct-horse-battery-staple-0123456789"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.upper().startswith("FEDCLUST_"):
            monkeypatch.delenv(name)


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".env"
    file.write_text("FEDCLUST_PORT=1111\nFEDCLUST_LOG_LEVEL=error\nOTHER_THING=1\n")
    assert load_settings({}, file).port == 1111
    monkeypatch.setenv("FEDCLUST_PORT", "2222")
    assert load_settings({}, file).port == 2222
    settings = load_settings({"port": "3333", "host": None}, file)
    assert (settings.port, settings.log_level, settings.host) == (3333, "error", "127.0.0.1")


def test_unknown_settings_of_a_file_are_errors(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("FEDCLUST_PROT=1111\n")
    with pytest.raises(SettingsError, match="FEDCLUST_PROT"):
        load_settings({}, file)


def test_the_clients_variables_may_stand_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLIENT_VARIABLES:
        monkeypatch.setenv(name, "something")
    assert load_settings({}, None).port == 8400


def test_every_variable_of_the_clients_is_known() -> None:
    import fedclust

    sources = Path(fedclust.__file__).parent.rglob("*.py")
    named = {
        name
        for source in sources
        for name in re.findall(r"FEDCLUST_[A-Z][A-Z_]*", source.read_text("utf-8"))
    }
    assert named <= CLIENT_VARIABLES


BAD = [
    ("port", "http"),
    ("port", SECRET),
    ("body_limit", "1"),
    ("host", ""),
    ("long_poll_max", "26"),
    ("long_poll_max", "nan"),
    ("lease_s", "inf"),
    ("lease_s", "0"),
    ("log_level", SECRET),
    ("log_format", "xml"),
    ("behind_proxy", SECRET),
    ("behind_proxy", "10.0.0.1/8"),
    ("retention_days", "-1"),
    ("shutdown_grace_s", "0"),
    ("notify_kinds", SECRET),
    ("notify_kinds", ","),
    ("operator_emails", "ops@x.example\nBcc: all@x.example"),
    ("smtp_from", "Ops <ops@x.example>"),
    ("smtp_security", "ssl"),
    ("public_url", "https://x.example/?a=b"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_what_is_refused_is_named_but_not_repeated(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value}, None)
    assert name in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


MAIL = {"smtp_host": "mail.x.example", "smtp_from": "fedclust@x.example"}
HOOK = {
    "webhook_url": f"https://hook.x.example:8443/{SECRET}",
    "webhook_hosts": "other.example,Hook.X.example",
    "webhook_secret": SECRET,
}


def test_mail_and_webhook_of_notifications() -> None:
    settings = load_settings({**MAIL, **HOOK, "public_url": "https://x.example/"}, None)
    assert (settings.mail_port, settings.smtp_security) == (587, "starttls")
    assert settings.public_url == "https://x.example"
    assert len(settings.notify_kinds) == 6
    shown = settings.shown()
    assert shown["webhook_url"] == "https://hook.x.example:8443/***"
    assert shown["notify_kinds"].startswith("invited,overdue,")
    assert SECRET not in str(shown)
    assert SECRET not in repr(settings)
    assert load_settings({**MAIL, "smtp_security": "tls"}, None).mail_port == 465
    local = {**MAIL, "smtp_host": "127.0.0.1", "smtp_security": "none"}
    assert load_settings(local, None).mail_port == 25
    load_settings({**HOOK, "webhook_url": "http://localhost/x", "webhook_hosts": "localhost"}, None)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({**MAIL, "smtp_host": "mail.x.example:587"}, "and its port in smtp_port"),
        ({**HOOK, "webhook_url": "http://hook.x.example/"}, "webhook_url"),
        ({**HOOK, "webhook_url": f"https://u:{SECRET}@hook.x.example/"}, "webhook_url"),
        ({**HOOK, "webhook_url": "https://hook.x.example@evil.example/"}, "webhook_url"),
        ({**HOOK, "webhook_url": "https://hook.x.example.evil.example/"}, "webhook_hosts"),
        ({**HOOK, "webhook_url": "ftp://hook.x.example/"}, "webhook_url"),
        ({**HOOK, "webhook_hosts": "hook.x.example:8443"}, "name hosts there without port"),
        ({**HOOK, "webhook_secret": "short"}, "webhook_secret"),
    ],
)
def test_settings_of_notifications_that_do_not_go_together(
    changes: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingsError, match=named) as caught:
        load_settings(changes, None)
    assert SECRET not in str(caught.value)


def test_an_empty_line_of_a_setting_of_notifications_counts_as_not_set(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    names = ("SMTP_HOST", "SMTP_PORT", "SMTP_USER", "SMTP_PASSWORD", "SMTP_FROM", "SMTP_SECURITY")
    hook = ("WEBHOOK_URL", "WEBHOOK_SECRET", "NOTIFY_CA", "NOTIFY_KINDS", "OPERATOR_EMAILS")
    env.write_text("".join(f"FEDCLUST_{name}=\n" for name in (*names, *hook, "PUBLIC_URL")))
    assert load_settings({}, env) == load_settings({}, None)
    env.write_text("FEDCLUST_SMTP_USER=\nFEDCLUST_SMTP_PASSWORD=\n", "utf-8")
    assert load_settings(MAIL, env) == load_settings(MAIL, None)


def test_lists_are_separated_by_commas() -> None:
    settings = load_settings({"behind_proxy": "10.0.0.0/8, ::1/128"}, None)
    assert [str(network) for network in settings.behind_proxy] == ["10.0.0.0/8", "::1/128"]


def test_what_is_shown_masks_secrets() -> None:
    url = f"postgresql+psycopg://fedclust:{SECRET}@db.example/fedclust?sslpassword={SECRET}"
    settings = load_settings({"database_url": url, "secret_key": SECRET}, None)
    shown = settings.shown()
    assert set(shown) == set(Settings.model_fields)
    assert SECRET not in str(shown)
    assert SECRET not in repr(settings)
    assert shown["database_url"] == "postgresql+psycopg://fedclust:***@db.example/fedclust"


def test_passwords_in_urls_are_masked() -> None:
    for url in ("sqlite:///a/b.db", "postgresql+psycopg://h/x", "postgresql+psycopg://u@h/x"):
        assert masked_url(url) == url
    assert masked_url("postgresql+psycopg://u:p@ss@h/x") == "postgresql+psycopg://u:***@h/x"


def test_loopback() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", ""):  # noqa: S104
        assert not is_loopback(host), host


def test_listening_beyond_loopback(tmp_path: Path) -> None:
    everywhere = {"host": "::"}
    with pytest.raises(SettingsError, match="TLS"):
        load_settings(everywhere, None).check_listening()
    load_settings({"host": "127.0.0.1"}, None).check_listening()
    load_settings({**everywhere, "behind_proxy": "10.0.0.0/8"}, None).check_listening()
    files = {"tls_cert": str(tmp_path / "c"), "tls_key": str(tmp_path / "k")}
    load_settings({**everywhere, **files}, None).check_listening()


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("coordinator.example", name="coordinator")
    other = authority.issue("x.example", name="other").key
    good = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    assert load_settings(good, None).ssl_context()

    text = tmp_path / "text.pem"
    text.write_text("this is no certificate")
    locked = tmp_path / "locked.pem"
    private = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    for change in (
        {"tls_key": str(other)},
        {"tls_key": str(locked)},
        {"tls_client_ca": str(text)},
        {"tls_client_ca": str(tmp_path / "missing")},
    ):
        with pytest.raises(SettingsError, match=next(iter(change))):
            load_settings({**good, **change}, None).ssl_context()


def test_secrets_are_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As container engines mount them: a file a setting; what is said elsewhere wins."""
    url = f"postgresql+psycopg://fedclust:{SECRET}@db/fedclust"
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "fedclust_database_url").write_text(url + "\n")
    (folder / "fedclust_secret_key").write_text(f"{SECRET},{SECRET[::-1]}\n")
    (folder / "another_programs_secret").write_text("x")
    by_flag = load_settings({"secrets_dir": str(folder)}, None)
    monkeypatch.setenv("FEDCLUST_SECRETS_DIR", str(folder))
    for settings in (by_flag, load_settings({}, None)):
        assert settings.store_url == url
        assert [key.get_secret_value() for key in settings.secret_key] == [SECRET, SECRET[::-1]]
        assert SECRET not in str(settings.shown())
    other = {"secrets_dir": str(folder), "database_url": "sqlite:///x.db"}
    assert load_settings(other, None).store_url == "sqlite:///x.db"


def test_how_long_a_sign_in_lasts_reaches_the_core() -> None:
    limits = bootstrap._limits(
        load_settings({"sign_in_idle_minutes": "5", "sign_in_hours": "2"}, None)
    )
    assert (limits.sign_in_idle_s, limits.sign_in_s) == (300, 7_200)
    # Without settings as with their defaults.
    standard, usual = Limits(), bootstrap._limits(load_settings({}, None))
    assert (usual.sign_in_idle_s, usual.sign_in_s) == (standard.sign_in_idle_s, standard.sign_in_s)


def test_who_runs_the_coordinator_reaches_those_who_read_a_session(tmp_path: Path) -> None:
    given = {"data_dir": str(tmp_path), "operated_by": "Registry, 1 Road", "retention_days": "9"}
    with bootstrap.open_coordinator(load_settings(given, None), serving=False) as opened:
        said = opened.coordinator.operator
    assert said == OperatorInfo(name="Registry, 1 Road", retention_days=9)
