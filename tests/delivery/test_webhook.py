"""The webhook over real HTTP: the signature, what counts as delivered, where it does not go."""

import json
import re
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedclust_service.delivery import webhook
from fedclust_service.delivery.webhook import WebhookSender
from fedclust_service.domain.notification import DeliveryFailed
from support.certificates import Authority
from support.clock import BEGIN
from support.mail_server import dripping, webhook_receiver
from support.processes import run

SECRET = b"s" * 32
BODY: dict[str, Any] = {"id": "a" * 32, "kind": "overdue", "text": "Round 3 is overdue\n"}
PAGE = Path(__file__).parents[2] / "docs" / "details" / "notifications.md"


def sender(port: int, scheme: str = "http", context: ssl.SSLContext | None = None) -> WebhookSender:
    url = f"{scheme}://127.0.0.1:{port}/hook?k=hidden"
    return WebhookSender(url, SECRET, context or ssl.create_default_context())


def test_the_documented_check_accepts_what_was_sent_and_nothing_else() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(compile(snippet, str(PAGE), "exec"), names)  # noqa: S102
    accepts = names["is_genuine"]
    with webhook_receiver() as receiver:
        assert sender(receiver.port).send(BODY, None, BEGIN) == "status 204"
    ((headers, content),) = receiver.requests
    assert json.loads(content) == BODY
    assert headers["Content-Type"] == "application/json"
    assert headers["Fedclust-Notification-Id"] == "a" * 32
    now = BEGIN.timestamp() + 60
    assert accepts(SECRET, headers, content, now)
    assert not accepts(b"t" * 32, headers, content, now)
    assert not accepts(SECRET, headers, content + b" ", now)
    assert not accepts(SECRET, {**headers, "Fedclust-Timestamp": str(int(now))}, content, now)
    # A replay.
    assert not accepts(SECRET, headers, content, now + 600)


_LOGGED = """
import ssl, sys
from datetime import UTC, datetime
from fedclust_service.delivery.webhook import WebhookSender
from fedclust_service.logging import configure
configure("debug", "json")
url = f"http://127.0.0.1:{sys.argv[1]}/TOPSECRET?token=TOPSECRET"
WebhookSender(url, b"s" * 32, ssl.create_default_context()).send(
    {"id": "a", "text": "x"}, None, datetime.now(UTC)
)
"""


def test_no_log_line_holds_the_address() -> None:
    with webhook_receiver() as receiver:
        done = run([sys.executable, "-c", _LOGGED, str(receiver.port)])
    assert len(receiver.requests) == 1
    assert "TOPSECRET" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("status", "setting"),
    [
        *((status, "webhook_secret") for status in (401, 403)),
        *((status, "webhook_url") for status in (301, 400, 410, 500, 503)),
    ],
)
def test_any_other_status_is_a_failure_and_no_redirect_is_followed(
    status: int, setting: str
) -> None:
    """One that refuses the signature names the secret."""
    with webhook_receiver() as receiver:
        receiver.statuses.append(status)
        with pytest.raises(DeliveryFailed, match=f"{setting}: .* status {status}") as caught:
            sender(receiver.port).send(BODY, None, BEGIN)
    assert len(receiver.requests) == 1
    assert "hidden" not in caught.value.reason
    assert not caught.value.final


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook_receiver() as receiver, webhook_receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        sender(receiver.port).send(BODY, None, BEGIN)
    assert (len(receiver.requests), len(proxy.requests)) == (1, 0)


def test_the_receivers_certificate_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1", name="hook")
    with webhook_receiver(pair) as receiver:
        with pytest.raises(DeliveryFailed, match="notify_ca"):
            sender(receiver.port, "https").send(BODY, None, BEGIN)
        assert receiver.requests == []
        trusted = ssl.create_default_context(cafile=str(authority.bundle))
        sender(receiver.port, "https", trusted).send(BODY, None, BEGIN)
    assert len(receiver.requests) == 1


def test_receivers_that_are_not_there_or_never_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook_receiver() as ended:
        pass
    with pytest.raises(DeliveryFailed, match="webhook_url: no connection"):
        sender(ended.port).send(BODY, None, BEGIN)
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DeliveryFailed, match="no answer"),
    ):
        sender(silent.getsockname()[1]).send(BODY, None, BEGIN)


def test_an_answer_that_drips_ends_at_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes soon after the one before, the status line never ends."""
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.3)
    with (
        dripping(b"HTTP/1.1 2", b"0") as port,
        pytest.raises(DeliveryFailed, match=r"no answer .* in 0\.3 s"),
    ):
        sender(port).send(BODY, None, BEGIN)


def test_the_sender_is_the_only_file_that_imports_httpx() -> None:
    service = Path(webhook.__file__).parents[1]
    users = [
        path.name
        for path in service.rglob("*.py")
        if re.search(r"^\s*(import|from) httpx", path.read_text("utf-8"), re.M)
    ]
    assert users == ["webhook.py"]
    assert httpx.__version__
