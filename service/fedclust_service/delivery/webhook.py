"""Posts notifications to the webhook, signed. The only file of the service that imports httpx."""

import asyncio
import hashlib
import hmac
import ssl
from datetime import datetime

import httpx

from fedclust.wire.codec import canonical_json
from fedclust.wire.errors import causes
from fedclust_service.domain.notification import Body, DeliveryFailed

#: Longest time for a whole delivery, however slowly its answer drips.
TIMEOUT_S = 10.0


class WebhookSender:
    """Posts JSON to one address. It follows no redirect and uses no proxy."""

    def __init__(self, url: str, secret: bytes, context: ssl.SSLContext) -> None:
        self._url = httpx.URL(url)
        self._secret = secret
        self._context = context

    def send(self, body: Body, address: str | None, now: datetime) -> str:  # noqa: ARG002
        """Post a notification; DeliveryFailed unless the status is 2xx."""
        content, timestamp = canonical_json(body), str(int(now.timestamp()))
        headers = {
            "Content-Type": "application/json",
            "Fedclust-Notification-Id": str(body["id"]),
            "Fedclust-Timestamp": timestamp,
            "Fedclust-Signature": signature(self._secret, timestamp, content),
        }
        place = f"{self._url.host} port {self._url.port or 443}"
        try:
            status = asyncio.run(self._post(content, headers))
        except (TimeoutError, httpx.TimeoutException):
            raise DeliveryFailed(
                f"webhook_url: no answer from {place} in {TIMEOUT_S:g} s"
            ) from None
        except httpx.ConnectError as error:
            if any(isinstance(each, ssl.SSLError) for each in causes(error)):
                raise DeliveryFailed(
                    f"notify_ca: no TLS with {place}, or its certificate is not trusted"
                ) from None
            raise DeliveryFailed(f"webhook_url: no connection to {place}") from None
        except httpx.HTTPError as error:
            raise DeliveryFailed(
                f"webhook_url: no HTTP with {place} ({type(error).__name__})"
            ) from None
        if status in (401, 403):
            raise DeliveryFailed(
                f"webhook_secret: {place} answers with status {status}; give both sides the same "
                "secret, and check webhook_url"
            )
        if not 200 <= status < 300:
            raise DeliveryFailed(f"webhook_url: {place} answers with status {status}")
        return f"status {status}"

    async def _post(self, content: bytes, headers: dict[str, str]) -> int:
        """Post, and return the status; TimeoutError at the deadline."""
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx.AsyncClient(verify=self._context, trust_env=False, timeout=TIMEOUT_S) as client,
            # Only the status is read: nobody needs the rest, however long it is.
            client.stream("POST", self._url, content=content, headers=headers) as reply,
        ):
            return reply.status_code


def signature(secret: bytes, timestamp: str, content: bytes) -> str:
    """Return the header ``Fedclust-Signature`` of a body that is sent at a time."""
    digest = hmac.new(secret, timestamp.encode() + b"." + content, hashlib.sha256)
    return f"v1={digest.hexdigest()}"
