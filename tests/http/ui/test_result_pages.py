"""Pages of results: the numbers of the API, what each role sees, and every download."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pytest
from bs4 import BeautifulSoup

from fedclust.client import Client
from fedclust.result.comparison import compare
from fedclust.result.drawing import Figure, short
from fedclust.result.facts import Facts
from fedclust.result.figures.plots import Plots, drawn_figures
from fedclust.result.methods_text import WRITE_UP
from fedclust.result.page import body
from fedclust.result.session_result import SessionResult, read_result
from fedclust.result.tables import report_bytes
from fedclust.wire import codec
from fedclust.wire.errors import UsageError
from fedclust.wire.models import Definition, ResultDocument
from fedclust.wire.submissions import BINARY
from fedclust_service.http.ui import result_pages
from support.api_caller import ApiCaller
from support.command_line import CommandLine
from support.local_coordinator import LocalCoordinator

SITES = ["east", "north", "south", "west"]
MARKUP = "<script>alert(1)</script>&\"'"
LONG = "n" * 128
FEATURES = [
    {"name": MARKUP, "unit": "<u>"},
    {"name": "שם של מדידה", "unit": "ק"},
    {"name": LONG},
    {"name": "sex", "kind": "binary"},
]
TITLE = f"{MARKUP} מחקר {'t' * 150}"
REPORTS = ("report.html", "report.json", "report.csv")


class Text:
    """The words of each section of a page, its tags, and where its links lead."""

    def __init__(self, html: str) -> None:
        page = BeautifulSoup(html, "html.parser")
        elements = page.find_all(True)
        given = {name for each in elements for name in each.attrs}
        assert not [name for name in given if name.startswith("on") or name == "style"]
        self.tags = {each.name for each in elements}
        self.links = [str(each["href"]) for each in page.select("[href]")]
        self.ids = [str(each["id"]) for each in page.select("[id]")]
        sections = [each.extract() for each in page.select("section[id]")]
        self.words = {str(each["id"]): [*each.stripped_strings] for each in sections}
        self.words[""] = [*page.stripped_strings]


@pytest.fixture(scope="module")
def api(aggregating: LocalCoordinator) -> ApiCaller:
    """A sweep, a method with clusters of each site's own, and sessions without a result."""
    api = ApiCaller.found(aggregating, SITES, "ada", "eve")
    api.data = {site: _rows(number) for number, site in enumerate(SITES)}
    given: dict[str, Any] = {"features": FEATURES, "title": TITLE, "purpose": f"Why? {MARKUP}"}
    api.begin("ada", "swept", SITES, algorithm="fkm", config={"n_clusters": [2, 3]}, **given)
    own = {"n_clusters": 3, "variant": "paper"}
    api.begin("ada", "joined-up", SITES, algorithm="kfed", config=own, features=FEATURES)
    for session in ("swept", "joined-up"):
        assert api.finish(session, SITES) == "completed"
    for session in ("open", "over"):
        api.define("ada", session, SITES)
    api.ok("POST", "/v1/sessions/over/cancel", "ada")
    api.define("eve", "hers", SITES)
    # From now on two reads of a result name the same entry of the audit trail.
    aggregating.coordinator.sealer.run_once()
    return api


def _rows(number: int) -> Any:
    rng = np.random.default_rng(number)
    of = rng.choice(3, 60, p=[[0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.3, 0.4, 0.3]][number % 3])
    rows = rng.normal(0, 1, (60, 4)) + np.array([[0, 0, 9, 0], [9, 0, 0, 0], [9, 9, 9, 0]])[of]
    rows[:, 3] = rng.random(60) < 0.3 * of
    return rows


def facts_for(api: ApiCaller, name: str, session: str, query: str = "") -> Facts:
    """Return what the SDK makes of the API's answer."""
    path, headers = f"/v1/sessions/{session}/result{query}", {"Accept": BINARY}
    document = api.request("GET", path, name, headers=headers).content
    definition = api.ok("GET", f"/v1/sessions/{session}", name)["definition"]
    return Facts.of(
        codec.decode_model(ResultDocument, document),
        Definition.model_validate_json(json.dumps(definition)),
    )


def reads_of(api: ApiCaller, session: str) -> int:
    path = f"/v1/admin/audit?action=result.read&session={session}&limit=200"
    return len(api.ok("GET", path, "operator")["items"])


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?k=2"])
def test_the_page_holds_the_report(api: ApiCaller, query: str) -> None:
    facts = facts_for(api, "ada", "swept", query)
    html = api.reader("ada").open(f"/ui/sessions/swept/result{query}")
    assert body(facts) in html
    words = Text(html).words
    inertias = {short(each.inertia) for each in facts.result.history if each.inertia}
    assert inertias | {facts.provenance.definition_sha256} <= set(words["provenance"])
    for entry in facts.result.sweep or ():
        assert {short(entry.inertia), short(entry.start_agreement)} <= set(words["holds"])


def test_a_sweep_leads_to_each_of_its_clusterings(api: ApiCaller) -> None:
    best = facts_for(api, "ada", "swept").result.n_clusters
    other = {2: 3, 3: 2}[best or 0]
    me = api.reader("ada")
    assert "/ui/sessions/swept/result" in Text(me.open("/ui/sessions/swept")).links
    page = Text(me.open("/ui/sessions/swept/result"))
    assert f"/ui/sessions/swept/result?k={other}" in page.links
    assert "recommended" in page.words[""]
    shown = Text(me.open(f"/ui/sessions/swept/result?k={other}"))
    # Everything below leads on with the same K.
    assert f"/ui/sessions/swept/result/report.html?k={other}" in shown.links
    assert f"--k {other} --out swept.json" in " ".join(shown.words["terminal"])
    for wrong in ("4", "x", "0", "9" * 40, "0000000021", "٣"):
        assert "another number" in me.open(f"/ui/sessions/swept/result?k={wrong}", status=422)


def test_the_page_is_one_line_of_the_audit_trail_and_each_download_another(api: ApiCaller) -> None:
    me, before = api.reader("ada"), reads_of(api, "swept")
    me.open("/ui/sessions/swept/result?k=2")
    assert reads_of(api, "swept") == before + 1
    me.open("/ui/sessions/swept/result/figures/sizes.svg")
    me.open("/ui/sessions/swept/result/centroids.csv")
    assert reads_of(api, "swept") == before + 3
    # What a reader may not see or what is not there was not read.
    me.open("/ui/sessions/swept/result/labels.csv", status=404)
    api.reader("eve").open("/ui/sessions/swept/result", status=404)
    assert reads_of(api, "swept") == before + 3


def test_texts_of_people_are_words_and_nothing_else(api: ApiCaller) -> None:
    me = api.reader("ada")
    html = me.open("/ui/sessions/swept/result")
    page = Text(html)
    assert not page.tags & {"u", "style", "iframe", "img"}
    assert "alert(1)</script>" not in html
    assert f"Why? {MARKUP}" in page.words[""]
    for name in (MARKUP, LONG, "שם של מדידה"):
        assert any(name in word for word in page.words["clusters"])
    for name in drawn_figures(Plots(facts_for(api, "ada", "swept"))):
        svg = me.open(f"/ui/sessions/swept/result/figures/{name}.svg")
        drawing = ElementTree.fromstring(svg)  # noqa: S314 - our own
        assert "script" not in {element.tag.rpartition("}")[2] for element in drawing.iter()}


# --- roles ----------------------------------------------------------------------------------------


def test_a_site_reads_its_own_part_and_nothing_of_others(api: ApiCaller) -> None:
    own = facts_for(api, "north", "joined-up")
    every = facts_for(api, "ada", "joined-up")
    html = api.reader("north").open("/ui/sessions/joined-up/result")
    page = Text(html)
    assert "your site" in page.words["clusters"]
    assert not {"east", "south", "west"} & set(page.words["clusters"])
    assert "You read this as site" in page.words[""]
    mapping = own.result.mapping["north"]
    found = [str(cluster) if cluster >= 0 else "not sent" for cluster in mapping]
    assert page.words["mapping"][-2 * len(found) + 1 :: 2] == found
    for submission in every.provenance.submissions:
        assert (submission.sha256 in html) == (submission.site == "north")
    assert "mapping" not in Text(api.reader("ada").open("/ui/sessions/joined-up/result")).words
    report = api.reader("north").open("/ui/sessions/joined-up/result/report.json")
    assert list(json.loads(report)["sizes_by_site"]) == ["north"]


@pytest.mark.parametrize(("session", "says"), [("open", "has not started"), ("over", "cancelled")])
def test_a_session_without_a_result_says_so(api: ApiCaller, session: str, says: str) -> None:
    for name in ("ada", "north"):
        html = api.reader(name).open(f"/ui/sessions/{session}/result", status=409)
        assert says in html
        assert f"/ui/sessions/{session}" in Text(html).links
    api.reader("ada").open(f"/ui/sessions/{session}/result/report.html", status=409)


# --- downloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "query"), [("ada", "?k=2"), ("north", "")])
def test_downloads_and_the_ro_crate_are_what_the_sdk_makes_of_the_api(
    api: ApiCaller, name: str, query: str, tmp_path: Path
) -> None:
    facts, me = facts_for(api, name, "swept", query), api.reader(name)
    stem = "swept-k2" if query else "swept"
    expected = {file: report_bytes(facts, file) for file in REPORTS}
    path, headers = f"/v1/sessions/swept/result{query}", {"Accept": "text/csv"}
    expected["centroids.csv"] = api.request("GET", path, name, headers=headers).content
    expected |= {
        f"figures/{figure}.svg": f"{drawn.titled_svg}\n".encode()
        for figure, drawn in drawn_figures(Plots(facts)).items()
    }
    expected |= {file: write(facts).encode() for file, write in WRITE_UP.items()}
    binary = api.request("GET", path, name, headers={"Accept": BINARY}).content
    document = codec.decode_model(ResultDocument, binary)
    result = read_result(document, facts.definition, "north" if name == "north" else "")
    expected["result.json"] = result.to_json()
    linked = Text(me.open(f"/ui/sessions/swept/result{query}")).links
    for file, content in expected.items():
        path = f"/ui/sessions/swept/result/{file}{query}"
        assert path in linked
        answer = me.client.get(path)
        assert answer.status_code == 200
        assert answer.content == content, file
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        said = answer.headers["Content-Disposition"]
        assert said.startswith(f'attachment; filename="{stem}')
        assert said.endswith(f'.{file.rpartition(".")[2]}"')
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "script" not in answer.headers["Content-Security-Policy"]

    with Client(api.base_url, api.tokens[name]) as client:
        result = client.result("swept")
    result = result.at(2) if query else result
    for licence in ("", "CC0-1.0"):
        result.save_ro_crate(tmp_path / "crate.zip", licence)
        joined = f"{query or '?'}&license={licence}"
        answer = me.client.get(f"/ui/sessions/swept/result/ro-crate.zip{joined}")
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/zip")
        assert answer.content == (tmp_path / "crate.zip").read_bytes()
        said = f'attachment; filename="{stem}-ro-crate.zip"'
        assert answer.headers["Content-Disposition"] == said
    provenance = result.provenance
    with zipfile.ZipFile(tmp_path / "crate.zip") as archive:
        everything = b"".join(map(archive.read, archive.namelist())).decode()
    assert provenance.audit_head.noted in everything
    assert api.tokens[name] not in everything
    # A site's crate says nothing of others' submissions.
    sent = facts_for(api, "ada", "swept").provenance
    for submission in sent.submissions:
        assert (submission.sha256 in everything) == (name in ("ada", submission.site))


def test_an_odd_licence_is_refused_before_the_result_is_read(api: ApiCaller) -> None:
    before = reads_of(api, "swept")
    path = "/ui/sessions/swept/result/ro-crate.zip?license=all%20rights"
    assert "SPDX identifier" in api.reader("ada").open(path, status=422)
    assert reads_of(api, "swept") == before
    page = api.reader("ada").open("/ui/sessions/swept/result")
    assert 'action="/ui/sessions/swept/result/ro-crate.zip"' in page


def test_a_figure_is_a_png_or_a_refusal_that_says_what_is_missing(
    api: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = api.reader("ada")
    answer = me.client.get("/ui/sessions/swept/result/figures/sizes.png?k=2")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/png")
    assert answer.content.startswith(b"\x89PNG\r\n\x1a\n")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="swept-k2-sizes.png"'

    none = UsageError("no font found on the machine: install one there, such as DejaVu Sans")
    monkeypatch.setattr(Figure, "png", Mock(side_effect=none))
    refused = me.open("/ui/sessions/swept/result/figures/sizes.png?k=2", status=503)
    assert "cannot draw a PNG: no font found on the machine: install one there" in refused
    for wrong in ("bounds.svg", "sizes.pdf", "__init__.svg", "drawn.svg"):
        me.open(f"/ui/sessions/swept/result/figures/{wrong}", status=404)


# --- two results ----------------------------------------------------------------------------------


def test_two_results_stand_side_by_side(api: ApiCaller) -> None:
    first, second = facts_for(api, "ada", "swept"), facts_for(api, "ada", "joined-up")
    me, before = api.reader("ada"), reads_of(api, "swept")
    html = me.open("/ui/compare?first=swept&second=joined-up")
    page = Text(html)
    places = [html.index(section.html) for section in compare(first, second).sections]
    assert places == sorted(places)
    assert html.count(Plots(first).profile().svg) == html.count(Plots(second).profile().svg) == 1
    assert not page.tags & {"u", "style", "iframe", "img"}
    assert len(page.ids) == len(set(page.ids))
    assert {TITLE, str(sum(first.result.sizes or ()))} <= set(page.words[""])
    assert reads_of(api, "swept") == before + 1


def test_each_k_of_a_sweep_can_be_compared_with_the_others(api: ApiCaller) -> None:
    best = facts_for(api, "ada", "swept").result.n_clusters or 0
    other = {2: 3, 3: 2}[best]
    me, before = api.reader("ada"), reads_of(api, "swept")
    page = Text(me.open("/ui/compare?first=swept&second=swept"))
    assert "The two results describe the same clusters" in " ".join(page.words["agreement"])
    assert reads_of(api, "swept") == before + 1
    address = f"/ui/compare?first=swept&second=swept&second_k={other}"
    assert address in page.links
    shown = Text(me.open(address))
    assert {"2", "3"} <= set(shown.words["agreement"])
    # The K of a side stays as long as its session is chosen.
    kept = f"{address.replace('first=swept', 'first=joined-up')}&second_k_of=swept"
    assert f"swept with K = {other}" in " ".join(Text(me.open(kept)).words[""])
    assert "K = 2" in me.open(f"{address}&second_k=2&second_k_of=joined-up")
    # From there the first can change, too, and the second keeps its K.
    assert f"/ui/compare?first=swept&first_k={other}&second=swept&second_k={other}" in shown.links
    of_one_k = "/ui/compare?first=joined-up&second=swept&first_k=2"
    assert "another number" in me.open(of_one_k, status=422)


def test_a_comparison_reads_only_what_its_reader_may_see(api: ApiCaller) -> None:
    eve = api.reader("eve")
    assert "No session has completed yet" in eve.open("/ui/compare")
    eve.open("/ui/compare?first=hers&second=swept", status=404)
    eve.open("/ui/compare?first=swept", status=404)
    assert "has not started" in eve.open("/ui/compare?first=hers", status=409)


def test_the_form_offers_what_has_completed(api: ApiCaller) -> None:
    html = api.reader("ada").open("/ui/compare?first=joined-up")
    assert '<option value="joined-up" selected>' in html
    assert '<option value="swept">' in html
    assert 'value="open"' not in html
    assert "Choose two results" in html
    assert "/ui/compare?first=joined-up" in api.reader("ada").open("/ui/sessions/joined-up/result")


def test_results_that_cannot_be_compared_are_refused_in_words(
    api: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlike = UsageError("the two results share no feature: choose others")
    monkeypatch.setattr(result_pages, "compare", Mock(side_effect=unlike))
    page = Text(api.reader("ada").open("/ui/compare?first=joined-up&second=swept"))
    assert "The two results share no feature: choose others" in " ".join(page.words[""])
    assert "agreement" not in page.words
    assert "Both profiles" in page.words["profiles"]


# --- names ----------------------------------------------------------------------------------------


def test_names_of_clusters_stand_wherever_the_result_is_shown(
    api: ApiCaller, tmp_path: Path
) -> None:
    before = api.ok("GET", "/v1/sessions/joined-up", "ada")["definition_sha256"]
    me, names = api.reader("ada"), ["Elderly", "<Young>", "Others"]
    assert '<label for="name-2">Cluster 2</label>' in me.open("/ui/sessions/joined-up/names")
    same = [("name", name) for name in ("Cluster 1", "", "x")]
    refused = me.post("/ui/sessions/joined-up/names", same)
    assert "Give other names. Two clusters have the same name." in refused.text
    early = api.request("PATCH", "/v1/sessions/open", "ada", json={"cluster_names": ["a", "b"]})
    assert early.json()["type"].endswith(":result-not-ready")
    refused = me.post("/ui/sessions/joined-up/names", [("name", "N" * 61)] * 3)
    assert refused.text.count("It should have at most 60 characters.") == 1
    assert f'value="{"N" * 61}"' in refused.text
    named = me.post("/ui/sessions/joined-up/names", [("name", name) for name in names])
    assert named.headers["Location"] == "/ui/sessions/joined-up/result?notice=clusters-named"
    assert "The clusters have their names." in me.open(named.headers["Location"])
    shown = Text(api.reader("north").open("/ui/sessions/joined-up/result"))
    assert set(names) <= set(shown.words[""]) & set(shown.words["clusters"])
    figure = "/ui/sessions/joined-up/result/figures/profile.svg"
    assert "Elderly" in api.reader("north").open(figure)
    with Client(api.base_url, api.tokens["ada"]) as client:
        client.name_clusters("joined-up", names)  # Again, the same.
        result = client.result("joined-up")
    assert result.cluster_names == tuple(names)
    result.save(tmp_path / "named.fedclust")
    assert SessionResult.load(tmp_path / "named.fedclust").cluster_names == tuple(names)
    report = json.loads(me.open("/ui/sessions/joined-up/result/report.json"))
    assert [each["name"] for each in report["clusters"]] == names
    assert api.ok("GET", "/v1/sessions/joined-up", "ada")["definition_sha256"] == before
    path = "/v1/admin/audit?action=result.named&session=joined-up"
    assert len(api.ok("GET", path, "operator")["items"]) == 2


def test_an_empty_name_removes_the_name(
    api: ApiCaller, command_line: CommandLine, tmp_path: Path
) -> None:
    me, path = api.reader("ada"), "/ui/sessions/swept/names?k=2"
    token = tmp_path / "token"
    token.write_text(api.tokens["ada"], "utf-8")
    token.chmod(0o600)
    given = ["--coordinator", api.base_url, "--token-file", str(token)]

    def known() -> dict[str, list[str]]:
        return dict(api.ok("GET", "/v1/sessions/swept/result", "ada")["cluster_names"])

    assert f'href="{path}">Name clusters' in me.open("/ui/sessions/swept/result?k=2")
    named = me.post(path, [("name", "Elderly"), ("name", "Young")])
    # The form leads back to the K whose clusters it named.
    assert named.headers["Location"].endswith("/swept/result?notice=clusters-named&k=2")
    assert known() == {"2": ["Elderly", "Young"]}
    me.post(path, [("name", ""), ("name", "Young")])
    assert known() == {"2": ["", "Young"]}
    assert re.findall(r'name="name" value="([^"]*)"', me.open(path)) == ["", "Young"]
    page = Text(me.open("/ui/sessions/swept/result?k=2"))
    assert {"Cluster 0", "Young"} <= set(page.words[""])
    with Client(api.base_url, api.tokens["ada"]) as client:
        client.name_clusters("swept", ["Elderly", ""])
        assert client.result("swept").at(2).labels == ("0 (Elderly)", "1")
    assert command_line.run("session", "name", "swept", ",", *given) == 0
    assert "0 of 2 clusters are named" in command_line.out + command_line.err
    assert known() == {}
    assert "Elderly" not in me.open("/ui/sessions/swept/result?k=2")
    found = api.ok("GET", "/v1/admin/audit?action=result.named&session=swept", "operator")["items"]
    assert sorted(each["details"]["named"] for each in found) == [0, 1, 1, 2]


def test_the_form_tells_no_size_that_no_result_has_told(api: ApiCaller) -> None:
    new = ["moved", "plain"]
    api.register("sites", *new)
    api.register("analysts", "kim")
    api.data |= {site: _rows(number) for number, site in enumerate(new)}
    given: dict[str, Any] = {"features": FEATURES, "start": "manual"}
    api.begin("kim", "kept-few", [*SITES, "moved"], **given)
    without = {"n_clusters": 2, "evaluate": False}
    api.begin("kim", "unmeasured", [*SITES, "plain"], config=without, **given)
    for session, site in (("kept-few", "moved"), ("unmeasured", "plain")):
        stays = site == "plain"
        if not stays:
            api.ok("DELETE", f"/v1/sessions/{session}/participation", site)
        api.ok("POST", f"/v1/sessions/{session}/start", "kim")
        assert api.finish(session, [*SITES, *([site] * stays)]) == "completed"
    fields = [("/sites", site) for site in (*SITES, *new)]
    fields += [("/config/n_clusters", "3"), ("check", "1")]
    said = api.reader("kim").post("/ui/new-session", fields).text
    given = ", ".join(f"{site} (50-199)" for site in sorted(SITES))
    assert f"By what sites gave in your completed sessions: enough at {given}." in said
    # Whoever has no result with these sites does not learn their sizes here.
    asked = api.reader("eve").post("/ui/new-session", fields).text
    assert "you need at least 30 patients a site" in asked
    assert "50-199" not in asked
