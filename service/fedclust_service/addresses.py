"""What is an address: of a machine, of a page, of a mailbox, of a database."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from fedclust.schema.model import EmailAddress


def host_of(url: str) -> str | None:
    """Return the host of an http or https address; None if there is anything odd about it."""
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not port_is_valid or not url.isprintable():
        return None
    if parts.username is not None or parts.fragment or " " in url:
        return None
    return parts.hostname


def is_email(text: str) -> bool:
    """Whether a text is an e-mail address that mail is sent to."""
    try:
        TypeAdapter(EmailAddress).validate_python(text)
    except ValidationError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether listening on ``host`` is reachable from this machine alone."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is a number of IP."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def masked_url(url: str) -> str:
    """Return a database URL without its password and query."""
    scheme, _, rest = url.partition("://")
    rest = rest.partition("?")[0]
    account, at, place = rest.rpartition("@")
    if not at:
        return f"{scheme}://{rest}"
    user, colon, _ = account.partition(":")
    return f"{scheme}://{user}{colon and ':***'}@{place}"
