"""What people do between the lines of the transcript, as the page says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from docs.page import Page
from operation_bodies import SITES
from support.api_caller import ApiCaller

SESSION = "heart-2026"


@contextmanager
def around(page: Page) -> Iterator[None]:
    if shutil.which("curl") is None and not os.environ.get("CI"):
        pytest.skip("no curl here")
    api = ApiCaller(page.url, page.operator_token)
    page.names["definition"] = json.loads(page.block("json", '"algorithm":"lloyd"'))
    page.env |= {"URL": page.url, "OPERATOR": page.operator_token, "NO_PROXY": "*"}

    def register_north() -> None:
        api.tokens["north"] = api.ok("POST", "/v1/sites/north/tokens", api.operator)["token"]
        page.terminal.run(f"NORTH={api.tokens['north']}")

    def register_others() -> None:
        api.register("sites", *SITES[1:])
        api.register("analysts", "ada")
        page.terminal.run(f"ANALYST={api.tokens['ada']}")

    def others_join() -> None:
        for site in SITES[1:]:
            api.join(site, SESSION)

    page.before('$NORTH" $URL/v1/whoami', register_north)
    page.before("definition.json <<", register_others)
    page.before("-D headers", others_join)
    page.before("text/csv", lambda: api.finish(SESSION, SITES))
    yield
