"""Sign-ins: a token exchanged for a cookie, so that a browser need not keep the token.

A cookie has the form ``<id>.<secret>``. The id (12 of ``a-z0-9``) names the row. Only the browser
knows the secret (256 bits in base64url). The coordinator stores an HMAC-SHA256 of id and secret.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fedclust_service.domain.tokens import new_id

#: How long a sign-in's row stays after its latest end, so that its browser can be shown why.
KEPT_FOR = timedelta(days=1)
_SECRET_BYTES = 32
_SHAPE = re.compile(r"([0-9a-z]{12})\.([0-9A-Za-z_-]{43})")


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
    match = _SHAPE.fullmatch(text)
    return None if match is None else CookieText(*match.groups())
