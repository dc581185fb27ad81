"""The channels that notifications leave by, built from the settings."""

import secrets
import ssl
from collections.abc import Iterable, Iterator
from datetime import datetime

from fedclust.schema.notification_texts import with_address
from fedclust.schema.times import write_time
from fedclust_service.delivery.smtp import SmtpSender
from fedclust_service.delivery.webhook import WebhookSender
from fedclust_service.domain.notification import Body, Channel, DeliveryFailed, Outgoing, Sender
from fedclust_service.settings import Settings, trust


def outgoing(settings: Settings) -> Outgoing:
    """Return what the settings say about notifications; SettingsError if a file is unusable."""
    senders: dict[Channel, Sender] = {}
    context = ssl.create_default_context()  # with the system's authorities
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.notify_ca is not None:
        trust(context, "notify_ca", settings.notify_ca)
    if settings.smtp_host is not None:
        senders[Channel.EMAIL] = SmtpSender(settings, context)
    if settings.webhook_url is not None and settings.webhook_secret is not None:
        senders[Channel.WEBHOOK] = WebhookSender(
            settings.webhook_url.get_secret_value(),
            settings.webhook_secret.get_secret_value().encode(),
            context,
        )
    return Outgoing(
        senders,
        frozenset(settings.notify_kinds),
        settings.operator_emails,
        settings.public_url,
    )


def try_channels(
    settings: Settings, to: str | None, operators: Iterable[str], now: datetime
) -> Iterator[tuple[bool, str]]:
    """Send a test through every configured channel; yield whether it was delivered, and a line.

    The mail goes to ``to``, or to ``operator_emails`` and ``operators``, to each by itself.
    """
    sent = outgoing(settings)
    text = "A test of this coordinator's notifications\n\nNobody needs to do anything.\n"
    body: Body = {
        "kind": "test",
        "time": write_time(now),
        **dict.fromkeys(("session", "round", "state", "account", "expires_at", "link")),
        "sites": [],
        "text": with_address(text, sent.public_url),
    }
    for channel, sender in sent.senders.items():
        named: dict[str, str | None] = {f"webhook {settings.shown()['webhook_url']}": None}
        if channel is Channel.EMAIL:
            addresses = (*sent.operator_emails, *operators) if to is None else (to,)
            named = {f"e-mail to {each}": each for each in addresses}
        if not named:
            yield False, "e-mail: set operator_emails, or give --to ADDRESS"
        for name, address in named.items():
            try:
                answer = sender.send({**body, "id": secrets.token_hex(16)}, address, now)
                yield True, f"{name}: delivered ({answer})"
            except DeliveryFailed as failed:
                yield False, f"{name}: not delivered: {failed.reason}"
