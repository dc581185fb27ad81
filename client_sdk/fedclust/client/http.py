"""HTTP to the coordinator. The only module that imports an HTTP library.

HTTPS uses the system's certificates or a given bundle, an optional client certificate, and proxies
from the environment or an argument. Plain HTTP is only for loopback. Redirects are refused, since
they would send the token elsewhere. A request that may be repeated is retried with capped
exponential backoff and jitter, respecting Retry-After, until the time to give up.
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import logging
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import truststore
from pydantic import ValidationError

from fedclust.wire.errors import (
    CoordinatorUnreachable,
    Problem,
    ProtocolError,
    ProxyError,
    TLSError,
    TransportError,
    UsageError,
    causes,
    from_problem,
)

_log = logging.getLogger("fedclust.http")
_RETRIED_STATUS = frozenset({408, 429, 502, 503, 504})
_FIRST_DELAY_S, _LONGEST_DELAY_S, _LONGEST_ASKED_S = 0.5, 60.0, 3_600.0
_CLOSED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
_PROXY_CREDENTIALS = (
    "the proxy needs a user and password, or others: set FEDCLUST_PROXY or HTTPS_PROXY to "
    "http://user:password@host:port"
)
_TRANSIENT_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
#: OpenSSL's codes for faults that a CA bundle cannot fix: not yet valid, expired, wrong host or IP.
_NOT_ABOUT_TRUST = frozenset({9, 10, 62, 64})


@dataclass(frozen=True)
class ConnectionOptions:
    """How to reach the coordinator.

    Attributes
    ----------
    ca_bundle : path, optional
        PEM file of the authorities to trust, instead of the system's.
    client_cert, client_key : path, optional
        PEM files of a client certificate; the key may be in the same file.
    proxy : str, optional
        ``http://user:password@host:port``; by default what HTTPS_PROXY and NO_PROXY say.
    give_up_after_s : float
        How many seconds one request is repeated while no usable answer arrives.
    timeout_s : float
        For connecting and for each wait for bytes; a long poll's wait is added to it.
    max_answer : int
        Size of the largest answer that is read, in bytes.
    """

    ca_bundle: str | os.PathLike[str] | None = None
    client_cert: str | os.PathLike[str] | None = None
    client_key: str | os.PathLike[str] | None = None
    proxy: str | None = field(default=None, repr=False)
    give_up_after_s: float = 60.0
    timeout_s: float = 10.0
    max_answer: int = 2**28


@dataclass(frozen=True)
class Reply:
    """An answer with a status below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Http:
    """One coordinator, one token. ``transport``, ``sleep`` and ``monotonic`` are for tests."""

    def __init__(
        self,
        url: str,
        token: str,
        options: ConnectionOptions | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or ConnectionOptions()
        self.url, plain = _checked_url(url)
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise UsageError("this is not a token: copy the complete line that was issued")
        if plain and self.options.proxy:
            raise UsageError("plain HTTP is for this machine and takes no proxy: use https://")
        #: Seconds for which one request is repeated; longer for a site that has joined.
        self.patience_s = self.options.give_up_after_s
        self._sleep, self._monotonic = sleep, monotonic
        self._plain, self._unproven = plain, True
        #: The coordinator's certificate, as at the last answer; None for plain HTTP.
        self.certificate: Mapping[str, Any] | None = None
        tls = None if plain else _tls_context(self.options)
        try:
            self._client = httpx.Client(
                headers={
                    "Authorization": f"Bearer {token}",
                    "Accept-Encoding": "identity",
                    "User-Agent": f"fedclust/{importlib.metadata.version('fedclust')}",
                },
                # Plain HTTP gets an empty context: loading the trusted authorities takes long.
                verify=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                proxy=_httpx_proxy(self.options.proxy, tls),
                # Plain HTTP must not leave this machine, so it ignores proxies.
                trust_env=not plain,
                follow_redirects=False,
                transport=transport,
            )
        except (ValueError, ImportError, httpx.InvalidURL):
            # The address is not repeated: it may contain a password.
            where = "--proxy or proxy=" if self.options.proxy else "HTTPS_PROXY or ALL_PROXY"
            raise UsageError(
                f"the proxy of {where} cannot be used: it is http://[user:password@]host:port"
            ) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # What a request may need; all but the first two have defaults.
    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        media: str = "application/json",
        accept: str = "application/json",
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        repeatable: bool = True,
    ) -> Reply:
        """Send a request, and repeat it until an answer arrives.

        Parameters
        ----------
        path : str
            Below the coordinator's address, for example ``/v1/whoami``.
        wait_s : float
            How long the coordinator may keep the request open.
        repeatable : bool
            Whether sending it twice has the same effect as once. If not, it is repeated only
            when no connection was made.

        Raises
        ------
        CoordinatorError
            The coordinator answered with a problem document; the class follows its type.
        TransportError
            No usable answer arrived.
        """
        sent = {"Accept": f"{accept}, application/problem+json", **(headers or {})}
        if body is not None:
            sent["Content-Type"] = media
        timeout = httpx.Timeout(self.options.timeout_s, read=self.options.timeout_s + wait_s)
        give_up, attempt = self._monotonic() + self.patience_s, 0
        # Complete: httpx parses an address again for each part that it adds.
        url = f"{self.url}{path}" + (f"?{urlencode(params)}" if params else "")
        request = self._client.build_request(
            method, url, content=body, headers=sent, timeout=timeout
        )
        while True:
            try:
                return self._once(request)
            except _Retry as retry:
                if not (repeatable or retry.unsent):
                    raise retry.error from None
                delay = retry.delay(attempt)
                if self._monotonic() + delay > give_up:
                    raise retry.error from None
                attempt += 1
                _log.info("%s %s: %s; again in %.1f s", method, path, retry.what, delay)
            self._sleep(delay)

    def _once(self, request: httpx.Request) -> Reply:
        try:
            response = self._client.send(request, stream=True)
            connection = response.extensions.get("network_stream")
            tls = connection and connection.get_extra_info("ssl_object")
            self.certificate = tls and tls.getpeercert()
            try:
                body = self._read(response)
            finally:
                response.close()
        except httpx.TransportError as error:
            raise self._classified(error) from None
        self._unproven = False
        status, headers = response.status_code, response.headers
        if status < 300 or status == 304:
            return Reply(status, headers, body)
        if status < 400:
            raise ProtocolError(f"{self.url} redirects elsewhere; give the address itself")
        if status == 407:
            raise ProxyError(_PROXY_CREDENTIALS)
        refusal = from_problem(_problem_of(status, body))
        if status in _RETRIED_STATUS:
            # A server that answers 429 has not started to work on the request.
            unsent, after_s = status == 429, _retry_after(headers)
            raise _Retry(refusal, f"status {status}", unsent=unsent, after_s=after_s)
        raise refusal

    def _read(self, response: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        for part in response.iter_raw():
            size += len(part)
            if size > self.options.max_answer:
                raise ProtocolError(f"the answer exceeds {self.options.max_answer} bytes")
            parts.append(part)
        return b"".join(parts)

    def _classified(self, error: httpx.TransportError) -> TransportError | _Retry:
        """Return an error to retry, or one that waiting cannot fix."""
        tls = next((each for each in causes(error) if isinstance(each, ssl.SSLError)), None)
        if tls is not None and not isinstance(tls, _TRANSIENT_TLS):
            return tls_failure(self.url, tls, with_bundle=self.options.ca_bundle is not None)
        if isinstance(error, httpx.ProxyError) and "407" in str(error):
            return ProxyError(_PROXY_CREDENTIALS)
        unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError))
        what = type(error).__name__
        if self._unproven and isinstance(error, _CLOSED):
            # A refused client certificate, plain HTTP to a TLS port and a coordinator that is
            # being stopped all look like this, so the request is repeated.
            kind: type[TransportError] = CoordinatorUnreachable if self._plain else TLSError
            hint = "use https:// if it speaks TLS"
            if not self._plain:
                hint = "it may need a client certificate (--client-cert)"
            what = f"the connection is closed without an answer: {hint}"
            return _Retry(kind(f"{self.url}: {what}"), what)
        # The operating system's, such as an unknown host name.
        reasons = (each.strerror for each in causes(error) if isinstance(each, OSError))
        reason = next(filter(None, reasons), None)
        message = f"{self.url} cannot be reached ({reason or what})"
        if unsent:
            message += ": check the address and the firewall"
            message += ", and the proxy" if self.options.proxy else "; a network may need --proxy"
        message += "; run the same command again to resume"
        return _Retry(CoordinatorUnreachable(message), reason or what, unsent=unsent)


class _Retry(Exception):
    """A failure that waiting may fix; ``error`` is raised when the time is up."""

    def __init__(
        self, error: Exception, what: str, *, unsent: bool = False, after_s: float | None = None
    ) -> None:
        super().__init__(what)
        self.error, self.what, self.unsent, self.after_s = error, what, unsent, after_s

    def delay(self, attempt: int) -> float:
        backoff = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(attempt, 16))
        jittered = backoff * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, no secret
        return max(jittered, min(self.after_s or 0.0, _LONGEST_ASKED_S))


def _checked_url(url: str) -> tuple[str, bool]:
    """Return the address without a trailing slash, and whether it is plain HTTP."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise UsageError("the coordinator's address is not a URL: https://host[:port]") from None
    if parsed.scheme not in ("http", "https"):
        raise UsageError("the coordinator's address begins with https:// (http:// on this machine)")
    if parsed.userinfo or parsed.query or parsed.fragment or not parsed.host:
        raise UsageError("the coordinator's address must be https://host[:port][/path]")
    plain = parsed.scheme == "http"
    if plain and not _is_loopback(parsed.host):
        raise UsageError(
            f"plain HTTP to {parsed.host} would show the token and the answers to the network: "
            "use https:// (http:// is only for this machine)"
        )
    return str(parsed).rstrip("/"), plain


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _httpx_proxy(address: str | None, tls: ssl.SSLContext | None) -> httpx.Proxy | None:
    if address is None:
        return None
    secure = address.lower().startswith("https:")
    return httpx.Proxy(address, ssl_context=tls if secure else None)


def _tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    context: ssl.SSLContext
    named = [options.ca_bundle]
    try:
        if options.ca_bundle is None:
            context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        else:
            context = ssl.create_default_context(cafile=Path(options.ca_bundle))
        named = [path for path in (options.client_cert, options.client_key) if path is not None]
        if options.client_cert is not None:
            # With an empty password an encrypted key is refused, instead of asking for one.
            context.load_cert_chain(options.client_cert, options.client_key, password="")
        elif options.client_key is not None:
            raise UsageError("a client key needs its certificate: client_cert")
    except OSError as error:  # an ssl.SSLError too
        files = " with ".join(str(path) for path in named)
        raise UsageError(
            f"{files}: no certificate or key in PEM form that can be read, or the key is "
            f"encrypted or another's ({error.strerror})"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _problem_of(status: int, body: bytes) -> Problem:
    try:
        return Problem.model_validate_json(body)
    except ValidationError:
        detail = "the answer is not the coordinator's: a proxy or another server may be in between"
        return Problem(type="about:blank", title="Refused", status=status, detail=detail)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After, seconds or an HTTP date; None where it is neither."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def tls_failure(url: str, error: OSError, *, with_bundle: bool = False) -> TLSError:
    """Return the error for a handshake that failed, with what it may mean and the remedy."""
    reasons = (getattr(error, name, None) for name in ("verify_message", "reason"))
    reason = next(filter(None, reasons), "the handshake failed")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        reason += (
            "; what answers there does not speak TLS: another port, or http:// on this machine?"
        )
    code = getattr(error, "verify_code", None)
    if code in _NOT_ABOUT_TRUST:
        reason += "; check the address and this machine's date, and tell the coordinator's operator"
    elif isinstance(error, ssl.SSLCertVerificationError) and with_bundle:
        reason += "; the file of --ca-bundle (ca_bundle=) lacks the certificate's authority"
    elif isinstance(error, ssl.SSLCertVerificationError):
        reason += (
            "; if the certificate is self-signed or of your own authority, give its PEM file, or "
            "the authority's, with --ca-bundle or ca_bundle="
        )
    return TLSError(f"TLS with {url} failed: {reason}")
