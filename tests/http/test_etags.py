"""Entity tags: one for each representation, and changes only of what the client has read."""

from __future__ import annotations

from typing import Any

import pytest

from fedclust.wire.submissions import BINARY, JSON
from support.timeouts import eventually

from .conftest import Running

TASK = "/v1/sessions/heart/task"


def get(running: Running, path: str, reader: str, known: str = "", accept: str = JSON) -> Any:
    headers = {"Accept": accept, **({"If-None-Match": known} if known else {})}
    return running.api.request("GET", path, reader, headers=headers)


def test_a_task_has_a_tag_for_each_representation(running: Running) -> None:
    tags = {accept: get(running, TASK, "north", accept=accept).headers["ETag"] for accept in FORMS}
    assert len(set(tags.values())) == len(FORMS)
    for accept in FORMS:
        for form, tag in tags.items():
            answer = get(running, TASK, "north", tag, accept)
            assert answer.status_code == (304 if form == accept else 200)
        assert get(running, TASK, "north", ", ".join(tags.values()), accept).status_code == 304


FORMS = (JSON, BINARY)


@pytest.mark.parametrize("path", ["/v1/sessions/heart", "/v1/sites/north"])
def test_a_change_needs_the_tag_of_what_is_there(running: Running, path: str) -> None:
    api = running.api
    change: dict[str, Any] = {"deadline": "2031-01-01T00:00:00Z"}
    if "sites" in path:
        change = {"title": "North hospital"}

    def patched(tag: str | None) -> Any:
        headers = {} if tag is None else {"If-Match": tag}
        return api.request("PATCH", path, "operator", json=change, headers=headers)

    read = get(running, path, "operator")
    known = read.headers["ETag"]
    assert get(running, path, "operator", known).status_code == 304
    for wrong in ('"other"', f"W/{known}", ""):
        refused = patched(wrong)
        assert refused.status_code == 412
        assert refused.json()["type"].endswith("precondition-failed")
        assert get(running, path, "operator").content == read.content
    if "sites" in path:
        # The site shows its token: the document is another one, but nobody changed it.
        running.clock.advance(3600)
        assert get(running, "/v1/sessions/heart", "north").status_code == 200
        eventually(lambda: get(running, path, "operator", known).status_code == 200)
        assert get(running, path, "operator").headers["ETag"] != known
    assert patched(f'"other", {known}').status_code == 200
    after = get(running, path, "operator")
    if "sites" in path:
        assert after.headers["ETag"] != known
        assert patched(known).status_code == 412
    for right in ("*", None, after.headers["ETag"]):
        assert patched(right).status_code == 200
