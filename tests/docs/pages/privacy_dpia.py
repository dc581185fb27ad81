"""A session that invites a hospital, and the hospital's file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page
from docs.pages.privacy_thresholds import create_session, write_cohort


@contextmanager
def around(page: Page) -> Iterator[None]:
    create_session(page)
    write_cohort(page)
    page.save_token(page.operator.issue_token("sites", "north").token, "north.token")
    page.env |= {"FEDCLUST_COORDINATOR": page.url, "FEDCLUST_TOKEN_FILE": "north.token"}
    yield
    written = (page.place / "review.html").read_text("utf-8")
    assert all(heading in written for heading in ("this site", "read as", "leaves", "remains"))
