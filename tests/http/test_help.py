"""``/help`` serves a built site, and says how to build one where there is none."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fedclust_service.http import docs
from support.local_coordinator import local_coordinator


@pytest.fixture
def site(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    (folder / "_static").mkdir(parents=True)
    (folder / "index.html").write_text("<title>front page</title>", "utf-8")
    (folder / "_static" / "site.css").write_text("a { color: red }", "utf-8")
    (tmp_path / "secret.txt").write_text("not of the site", "utf-8")


@pytest.fixture
def visitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """Return a client of a coordinator, whose site is built where a test asks for `site` first."""
    monkeypatch.setattr(docs, "_SITE", tmp_path / "site")
    with local_coordinator(tmp_path) as local:
        visitor = local.http()
        visitor.post("/ui/sign-in", data={"token": local.operator_token})
        yield visitor


@pytest.mark.usefixtures("site")
def test_a_built_site_is_served_under_a_strict_policy(visitor: httpx.Client) -> None:
    moved = visitor.get("/help")
    assert (moved.status_code, moved.headers["Location"]) == (307, "/help/")
    for path in ("/help/", "/help/index.html"):
        page = visitor.get(path)
        assert page.status_code == 200
        assert "front page" in page.text
        policy = page.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
    style = visitor.get("/help/_static/site.css")
    assert style.headers["Content-Type"].startswith("text/css")
    again = visitor.get("/help/_static/site.css", headers={"If-None-Match": style.headers["ETag"]})
    assert again.status_code == 304
    for path in ("/help/nowhere.html", "/help/_static/", "/help/%2e%2e/secret.txt"):
        missing = visitor.get(path)
        assert missing.status_code == 404
        assert missing.headers["Content-Type"].startswith("text/html")
        assert "There is no page at this address" in missing.text
    refused = visitor.post("/help/")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    overview = visitor.get("/ui/overview").text
    assert 'href="/help/"' in overview
    assert overview.count("Read how") == 3


def test_without_a_site_the_page_says_how_to_build_it(visitor: httpx.Client) -> None:
    for path in ("/help/", "/help/data.html"):
        page = visitor.get(path)
        assert page.status_code == 404
        assert page.headers["Content-Type"].startswith("text/html")
        assert "make docs-site" in page.text
    overview = visitor.get("/ui/overview").text
    assert "First steps" in overview
    assert "/help" not in overview


def test_what_the_pages_link_is_a_page_of_the_documentation() -> None:
    root = Path(__file__).parents[2]
    templates = (root / "service" / "fedclust_service" / "http" / "ui" / "templates").glob("*.html")
    linked = {
        found
        for path in templates
        for found in re.findall(r'"/help/([^"]+)\.html', path.read_text("utf-8"))
    }
    assert "privacy/overview" in linked
    assert [each for each in linked if not (root / "docs" / f"{each}.md").exists()] == []
