"""Bearer tokens, ``fcs_`` (site), ``fca_`` (analyst), ``fco_`` (operator), and sign-ins.

A token has the form ``<prefix>_<id>_<secret><checksum>``. The id (12 of ``a-z0-9``) names the row.
Only the holder knows the secret (43 base62 digits, over 255 bits). The checksum (6 base62 digits,
CRC-32 of everything before it) detects copying errors. The coordinator stores an HMAC-SHA256 of id
and secret.

A sign-in is a token exchanged for a cookie, so that a browser need not keep the token. The cookie
has the form ``<id>.<secret>``; its secret has 256 bits in base64url. The coordinator stores an
HMAC-SHA256 of it as of a token.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fedclust_service.domain.access import Role

PREFIXES = {Role.SITE: "fcs", Role.ANALYST: "fca", Role.OPERATOR: "fco"}
_ROLES = {prefix: role for role, prefix in PREFIXES.items()}
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_DIGITS = string.digits + string.ascii_lowercase
_ID_LENGTH, _SECRET_LENGTH, _CHECKSUM_LENGTH = 12, 43, 6
_SHAPE = re.compile(
    rf"(fc[sao])_([0-9a-z]{{{_ID_LENGTH}}})_"
    rf"([0-9A-Za-z]{{{_SECRET_LENGTH}}})([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)


@dataclass(frozen=True)
class TokenText:
    """A token with its secret, as its holder has it."""

    role: Role
    id: str
    secret: str = field(repr=False)

    @property
    def signed_text(self) -> str:
        """What the HMAC is of. It begins with the kind of secret: no kind passes for another."""
        return f"{PREFIXES[self.role]}_{self.id}_{self.secret}"

    def reveal(self) -> str:
        """Return the text for the holder."""
        return self.signed_text + _checksum(self.signed_text)


def new_token(role: Role) -> TokenText:
    """Draw a token from the operating system's randomness."""
    return TokenText(role, new_id(), _random_text(_DIGITS, _SECRET_LENGTH))


def new_id() -> str:
    """Draw an id of a token or a sign-in, which is no secret."""
    return _random_text(_ID_DIGITS, _ID_LENGTH)


def parse_token(text: str) -> TokenText | None:
    """Parse a token; None if its form or checksum is wrong."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        return None
    prefix, token_id, secret, checksum = match.groups()
    if not hmac.compare_digest(_checksum(text[: -len(checksum)]), checksum):
        return None
    return TokenText(_ROLES[prefix], token_id, secret)


#: How long a sign-in's row stays after its latest end, so that its browser can be shown why.
SIGN_IN_KEPT_FOR = timedelta(days=1)
_SECRET_BYTES = 32
_COOKIE_SHAPE = re.compile(r"([0-9a-z]{12})\.([0-9A-Za-z_-]{43})")


@dataclass(frozen=True)
class SignIn:
    """A sign-in without its secret; ``secret_hmac`` under ``FEDCLUST_SECRET_KEY``."""

    id: str
    token_id: str
    secret_hmac: str = field(repr=False)
    created_at: datetime
    last_used_at: datetime
    #: It ends then at the latest, however often it is used.
    ends_at: datetime
    #: When its holder signed out.
    ended_at: datetime | None = None


@dataclass(frozen=True)
class CookieText:
    """A cookie with its secret, as the browser has it."""

    id: str
    secret: str = field(repr=False)

    @property
    def signed_text(self) -> str:
        return f"sign-in_{self.id}_{self.secret}"

    @property
    def csrf(self) -> str:
        """What a form must contain. It follows from the secret, but does not reveal it."""
        return hmac.new(self.secret.encode(), b"csrf", hashlib.sha256).hexdigest()

    def reveal(self) -> str:
        """Return the text for the browser."""
        return f"{self.id}.{self.secret}"


def new_cookie() -> CookieText:
    """Draw a cookie from the operating system's randomness."""
    return CookieText(new_id(), secrets.token_urlsafe(_SECRET_BYTES))


def parse_cookie(text: str) -> CookieText | None:
    """Parse a cookie; None if it is not one of ours."""
    match = _COOKIE_SHAPE.fullmatch(text)
    return None if match is None else CookieText(*match.groups())


class SecretKeys:
    """``FEDCLUST_SECRET_KEY``: one key or more, whose length the settings check.

    The first key signs, all verify, so that keys can be rotated.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(bytes(key) for key in keys)

    def __len__(self) -> int:
        return len(self._keys)

    def sign(self, secret: TokenText | CookieText) -> str:
        """Return the HMAC to store, as 64 hexadecimal digits."""
        return _hmac(self._keys[0], secret)

    def verify(self, secret: TokenText | CookieText, stored: str) -> bool:
        """Whether a stored HMAC is this secret's, in constant time."""
        # Every key is tried, so that the time does not depend on which one matches.
        matches = [hmac.compare_digest(_hmac(key, secret), stored) for key in self._keys]
        return any(matches)


def _hmac(key: bytes, secret: TokenText | CookieText) -> str:
    return hmac.new(key, secret.signed_text.encode(), hashlib.sha256).hexdigest()


def _random_text(digits: str, length: int) -> str:
    return "".join(secrets.choice(digits) for _ in range(length))


def _checksum(text: str) -> str:
    value, out = zlib.crc32(text.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        value, digit = divmod(value, len(_DIGITS))
        out = _DIGITS[digit] + out
    return out
