"""Mail through a real SMTP server on this machine: TLS, login, failures with their setting."""

import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from fedclust_service.delivery import smtp
from fedclust_service.delivery.smtp import SmtpSender, mail
from fedclust_service.domain.notification import DeliveryFailed
from fedclust_service.settings import Settings
from support.certificates import Authority
from support.clock import BEGIN
from support.mail_server import MailServer, dripping, mail_server

PASSWORD = "correct-horse-battery-staple"
OPS = "ops@hospital.example"
BODY: dict[str, Any] = {"id": "a" * 32, "kind": "overdue", "text": "Round 3 is overdue\n\nAct.\n"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def server(authority: Authority) -> Iterator[MailServer]:
    pair = authority.issue("localhost", "127.0.0.1", name="mail")
    with mail_server(pair, login=("fedclust", PASSWORD)) as running:
        yield running


def sender(server: MailServer, authority: Authority | None) -> SmtpSender:
    context = ssl.create_default_context(cafile=str(authority.bundle) if authority else None)
    settings = Settings(
        smtp_host="localhost",
        smtp_port=server.port,
        smtp_from="fedclust@hospital.example",
        smtp_user="fedclust",
        smtp_password=SecretStr(PASSWORD),
    )
    return SmtpSender(settings, context)


def test_a_mail_arrives_over_starttls_after_login(server: MailServer, authority: Authority) -> None:
    assert sender(server, authority).send(BODY, OPS, BEGIN) == "the mail server has accepted it"
    ((source, recipients, message),) = server.mails
    assert (source, recipients) == ("fedclust@hospital.example", [OPS])
    assert server.encrypted == [True]
    assert message["Subject"] == "fedclust: Round 3 is overdue"
    assert message["To"] == OPS
    assert message["Date"] == "Mon, 05 Jan 2026 08:00:00 +0000"
    assert message["Message-ID"] == f"<{'a' * 32}@hospital.example>"
    assert message["Fedclust-Notification-Id"] == "a" * 32
    assert message["Auto-Submitted"] == "auto-generated"
    assert message.get_content_type() == "text/plain"
    assert message.get_content().splitlines() == BODY["text"].splitlines()


def test_a_server_whose_certificate_is_not_trusted_gets_no_password(server: MailServer) -> None:
    with pytest.raises(DeliveryFailed, match="notify_ca"):
        sender(server, None).send(BODY, OPS, BEGIN)
    assert server.mails == []


def test_without_starttls_nothing_is_sent_in_the_clear(authority: Authority) -> None:
    with (
        mail_server() as plain,
        pytest.raises(DeliveryFailed, match=r"smtp_security.*no STARTTLS: set tls") as caught,
    ):
        sender(plain, authority).send(BODY, OPS, BEGIN)
    assert plain.mails == []
    assert not caught.value.final


@pytest.mark.parametrize(
    ("replies", "setting", "final"),
    [
        ({"AUTH": ["535 who are you, ops@hospital.example"]}, "smtp_password", False),
        ({"MAIL": ["550 not you"]}, "smtp_from", False),
        ({"MAIL": ["530 log in"]}, "smtp_user, smtp_password", False),
        ({"MAIL": ["451 later"]}, "temporary", False),
        ({"RCPT": ["530 log in"]}, "smtp_user, smtp_password", False),
        ({"RCPT": ["550 nobody of this name"]}, "address of the account", True),
        ({"RCPT": ["451 later"]}, "temporary", False),
        ({"DATA": ["554 spam"]}, "refuses the mail", False),
        ({"EHLO": [""], "HELO": [""]}, "smtp_host", False),
    ],
)
def test_a_failure_names_its_setting_and_repeats_no_text_of_the_server(
    server: MailServer,
    authority: Authority,
    replies: dict[str, list[str]],
    setting: str,
    final: bool,
) -> None:
    server.replies.update(replies)
    with pytest.raises(DeliveryFailed, match=setting) as caught:
        sender(server, authority).send(BODY, OPS, BEGIN)
    assert caught.value.final is final
    for text in ("who are you", "nobody of", "spam", PASSWORD, OPS):
        assert text not in caught.value.reason


def test_a_long_subject_is_on_one_line() -> None:
    subject = f"Round 3 of the session {'x' * 63} is overdue: {'y' * 63} is late"
    made = bytes(mail("fedclust@x.example", {**BODY, "text": subject}, OPS, BEGIN))
    assert f"Subject: fedclust: {subject}\r\n".encode() in made


def test_a_mail_that_was_accepted_is_not_sent_again_for_a_failed_goodbye(
    server: MailServer, authority: Authority
) -> None:
    server.replies["QUIT"] = [""]
    assert sender(server, authority).send(BODY, OPS, BEGIN)
    assert len(server.mails) == 1


@pytest.mark.parametrize("sent", [b"220-", b"220 here\r\n250-"])
def test_a_server_that_drips_ends_at_one_deadline(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes soon after the one before, the greeting or the next answer never ends."""
    monkeypatch.setattr(smtp, "DEADLINE_S", 0.3)
    with dripping(sent, b"x") as port:
        server = Settings(
            smtp_host="127.0.0.1",
            smtp_port=port,
            smtp_security="none",
            smtp_from="me@hospital.example",
        )
        with pytest.raises(DeliveryFailed, match=r"has not taken a mail in 0\.3 s"):
            SmtpSender(server, ssl.create_default_context()).send(BODY, OPS, BEGIN)


def test_hosts_that_are_not_there(authority: Authority) -> None:
    with mail_server() as ended:
        pass
    with pytest.raises(DeliveryFailed, match="nothing listens at localhost port"):
        sender(ended, authority).send(BODY, OPS, BEGIN)


def test_no_text_adds_a_header() -> None:
    evil = {**BODY, "text": "Round 3\rBcc: x@example.org\r\nBcc: x@example.org\n"}
    made = mail("fedclust@hospital.example", evil, OPS, BEGIN)
    assert "Bcc" not in made
    assert b"\nBcc" not in bytes(made).partition(b"\r\n\r\n")[0]
    with pytest.raises(ValueError, match=r"linefeed|newline|carriage"):
        mail("fedclust@hospital.example", BODY, f"{OPS}\nBcc: x@example.org", BEGIN)
