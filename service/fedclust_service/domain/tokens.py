"""Bearer tokens, ``fcs_`` (site), ``fca_`` (analyst), ``fco_`` (operator), and sign-ins.

A token has the form ``<prefix>_<id>_<secret><checksum>``. The id (12 of ``a-z0-9``) names the row.
Only the holder knows the secret (43 base62 digits, over 255 bits). The checksum (6 base62 digits,
CRC-32 of everything before it) detects copying errors. The coordinator stores an HMAC-SHA256 of id
and secret.

A sign-in is a token exchanged for a cookie, so that a browser need not keep the token. The cookie
has the form of a token, with the prefix ``fcw_``, and is stored as one.
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

#: By role, and by None that of a cookie.
PREFIXES = {Role.SITE: "fcs", Role.ANALYST: "fca", Role.OPERATOR: "fco", None: "fcw"}
_ROLES = {prefix: role for role, prefix in PREFIXES.items()}
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_DIGITS = string.digits + string.ascii_lowercase
_ID_LENGTH, _SECRET_LENGTH, _CHECKSUM_LENGTH = 12, 43, 6
_SHAPE = re.compile(
    rf"(fc[saow])_([0-9a-z]{{{_ID_LENGTH}}})_"
    rf"([0-9A-Za-z]{{{_SECRET_LENGTH}}})([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)


@dataclass(frozen=True)
class TokenText:
    """A token with its secret, as its holder has it; without a role, the cookie of a sign-in."""

    role: Role | None
    id: str
    secret: str = field(repr=False)

    @property
    def signed_text(self) -> str:
        """What the HMAC is of. It begins with the kind of secret: no kind passes for another."""
        return f"{PREFIXES[self.role]}_{self.id}_{self.secret}"

    @property
    def csrf(self) -> str:
        """What a form must contain. It follows from the secret, but does not reveal it."""
        return hmac.new(self.secret.encode(), b"csrf", hashlib.sha256).hexdigest()

    def reveal(self) -> str:
        """Return the text for the holder."""
        return self.signed_text + _checksum(self.signed_text)


def new_token(role: Role | None) -> TokenText:
    """Draw a token, or a cookie, from the operating system's randomness."""
    token_id = _random_text(_ID_DIGITS, _ID_LENGTH)
    return TokenText(role, token_id, _random_text(_DIGITS, _SECRET_LENGTH))


def parse_token(text: str, *, cookie: bool = False) -> TokenText | None:
    """Parse a token, or a cookie; None if its form or checksum is wrong."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        return None
    prefix, token_id, secret, checksum = match.groups()
    role = _ROLES[prefix]
    if (role is None) is not cookie:
        return None
    if not hmac.compare_digest(_checksum(text[: -len(checksum)]), checksum):
        return None
    return TokenText(role, token_id, secret)


#: How long a sign-in's row stays after its latest end, so that its browser can be shown why.
SIGN_IN_KEPT_FOR = timedelta(days=1)


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


class SecretKeys:
    """``FEDCLUST_SECRET_KEY``: one key or more, whose length the settings check.

    The first key signs, all verify, so that keys can be rotated.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(bytes(key) for key in keys)

    def __len__(self) -> int:
        return len(self._keys)

    def sign(self, secret: TokenText) -> str:
        """Return the HMAC to store, as 64 hexadecimal digits."""
        return _hmac(self._keys[0], secret)

    def verify(self, secret: TokenText, stored: str) -> bool:
        """Whether a stored HMAC is this secret's, in constant time."""
        # Every key is tried, so that the time does not depend on which one matches.
        matches = [hmac.compare_digest(_hmac(key, secret), stored) for key in self._keys]
        return any(matches)


def _hmac(key: bytes, secret: TokenText) -> str:
    return hmac.new(key, secret.signed_text.encode(), hashlib.sha256).hexdigest()


def _random_text(digits: str, length: int) -> str:
    return "".join(secrets.choice(digits) for _ in range(length))


def _checksum(text: str) -> str:
    value, out = zlib.crc32(text.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        value, digit = divmod(value, len(_DIGITS))
        out = _DIGITS[digit] + out
    return out
