"""The pages of the API's description work without any other server."""

import hashlib
import json
import re
from importlib.metadata import version
from pathlib import Path

import httpx

from fedclust_service.http.docs import STATIC
from support.timeouts import TIMEOUT_S

from .conftest import Running


def test_the_page_may_load_nothing_from_elsewhere(running: Running) -> None:
    response = running.api.request("GET", "/docs")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/html")
    assert "://" not in response.text
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'; style-src 'self';" in policy
    assert "connect-src 'self';" in policy
    assert not re.search(r"https?:|\*", policy)
    scripts = re.findall(r"<script([^>]*)>([^<]*)</script>", response.text)
    assert all("src=" in attributes and not content for attributes, content in scripts)


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def test_the_address_itself_says_what_answers(running: Running) -> None:
    page = running.api.request("GET", "/", headers={"Accept": BROWSER})
    assert page.status_code == 200
    assert page.headers["Content-Type"].startswith("text/html")
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert 'action="/ui/sign-in"' in page.text
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"/docs", "/openapi.json"} < set(linked)
    for name in linked:
        assert running.api.request("GET", name).status_code == 200, name
    for accept in ("*/*", "application/json"):
        about = running.api.request("GET", "/", headers={"Accept": accept})
        assert about.headers["Content-Type"] == "application/json"
        assert about.json()["docs"] == "/docs"
        assert about.headers["Vary"] == "Accept"
        # Who runs which version is told to those with a token, and by openapi.json.
        assert version("fedclust") not in about.text + page.text
    head = running.api.request("HEAD", "/", headers={"Accept": BROWSER})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(page.content))
    assert running.api.request("POST", "/").status_code == 405
    picture = running.api.request("GET", "/", headers={"Accept": "image/png"})
    assert picture.status_code == 406


def test_own_scripts_name_nothing_elsewhere() -> None:
    for name in ("docs.js", "ui.js", "ui.css"):
        assert "://" not in (STATIC / name).read_text("utf-8")


def test_the_description_is_served(running: Running) -> None:
    answer = running.api.request("GET", "/openapi.json")
    assert answer.headers["Cache-Control"] == "no-cache"
    kept = Path(__file__).resolve().parents[2] / "docs" / "openapi" / "openapi.json"
    assert answer.json() == json.loads(kept.read_text("utf-8"))


def test_vendored_files_are_those_of_the_manifest() -> None:
    manifest = json.loads((STATIC / "vendored.json").read_text("utf-8"))
    named = {
        f"{folder}/{name}": said["sha256"]
        for folder, part in manifest.items()
        for name, said in part["files"].items()
    }
    there = {
        path.relative_to(STATIC).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in STATIC.rglob("*")
        if path.is_file() and path.parent != STATIC
    }
    assert there == named
    for folder, part in manifest.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", part["version"])
        assert re.fullmatch("[0-9a-f]{64}", part["archive_sha256"])
        assert (STATIC / folder / "LICENSE").stat().st_size > 500
        assert part["package"] in (STATIC / "VENDORED.md").read_text("utf-8")
        assert part["licence"] in (STATIC / "VENDORED.md").read_text("utf-8")
        for said in part["files"].values():
            # What is not as its maker published it says so, and how.
            assert ("change" in said) == ("upstream_sha256" in said)
    assert sum(path.stat().st_size for path in STATIC.rglob("*.*")) < 4 * 2**20


def test_nothing_but_the_assets_is_served(running: Running) -> None:
    for path in ("/static/", "/static/swagger-ui", "/static/../app.py", "/static//etc/passwd"):
        url = httpx.URL(running.local.base_url).copy_with(raw_path=path.encode())
        assert httpx.get(url, timeout=TIMEOUT_S, trust_env=False).status_code == 404
    assert not list(Path(STATIC).rglob("*.py"))
