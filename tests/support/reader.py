"""Somebody who reads the pages at a coordinator and posts their forms, without a browser."""

import re
import ssl
from collections.abc import Sequence

import httpx

from support.timeouts import TIMEOUT_S

_CSRF = re.compile(r'name="csrf" value="([^"]+)"')

#: For clients of plain HTTP. Without it each of them reads who is trusted: 40 ms of CPU.
NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Reader:
    """A reader who has signed in with a token; ``client`` keeps the cookie."""

    def __init__(self, base_url: str, token: str) -> None:
        self.client = httpx.Client(
            base_url=base_url, timeout=TIMEOUT_S, trust_env=False, verify=NOBODY
        )
        answer = self.client.post("/ui/sign-in", data={"token": token})
        assert answer.status_code == 303, answer.text

    def open(self, path: str, *, status: int = 200) -> str:
        """Return the HTML of a page; redirects of this coordinator are followed."""
        answer = self.client.get(path, follow_redirects=True)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text}"
        return answer.text

    def csrf(self) -> str:
        """Return the token of this sign-in's forms."""
        found = _CSRF.search(self.open("/ui/account"))
        return found.group(1)

    def post(
        self, path: str, fields: Sequence[tuple[str, str]] = (), *, csrf: str | None = None
    ) -> httpx.Response:
        """Post a form with its CSRF token, or with another one."""
        token = self.csrf() if csrf is None else csrf
        pairs = httpx.QueryParams([("csrf", token), *fields])
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.client.post(path, content=str(pairs), headers=headers)
