"""The page that a steward signs: everything that is asked, as text, in one file."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust.data import DataWarning
from fedclust.result.session_terms import feature_text
from fedclust.site.consent import ConsentRequest
from fedclust.site.review import review_page
from fedclust.wire.codec import sha256
from fedclust.wire.errors import UsageError
from support.fake_coordinator import FakeCoordinator, three_clusters
from support.html_page import Page

NOW = datetime(2026, 2, 3, 9, 30, tzinfo=UTC)
MINE = three_clusters(80, 8)
OTHERS = {"alpha": three_clusters(50, 1), "beta": three_clusters(50, 2)}
MARKUP = 'Which <script>alert("1")</script> types & <img src="https://evil.example/x"> are there?'
FEATURES = ({"name": "x", "unit": "<b>mg</b>"}, {"name": "y"})
SUMS = "Sums over whole groups of your protected table."


def text_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def requested(place: Path, **definition: Any) -> ConsentRequest:
    fake = FakeCoordinator(OTHERS, features=FEATURES, **definition)
    return fake.site(place).check("heart", MINE)


def test_the_page_says_all_that_the_terminal_says_and_the_sites_figures(tmp_path: Path) -> None:
    request = requested(tmp_path, purpose=MARKUP)
    page = text_of(review_page(request, NOW))
    for heading, line in request.text(full=True):
        assert heading in page
        assert " ".join(line.split()) in page
    for text in (
        *(str(request.persons), request.size_band, str(request.figures.n_groups)),
        *(feature_text(feature) for feature in request.definition.features),
        *("name", "role", "date", "signature", "2026-02-03 09:30"),
        "What was sent cannot be recalled",
    ):
        assert text in page
    body = page.split("Annex")[1]
    assert "What an approval covers" in body
    for option in ("--code", "--name", "--min-group-size"):
        assert option not in body
    assert "two sites" not in body
    code = request.approval_code
    assert f"{code[:12]} {code[12:]}" in page


def test_the_page_explains_the_words_that_are_on_it_and_no_others(tmp_path: Path) -> None:
    def explained(**definition: Any) -> str:
        request = requested(tmp_path, **definition)
        return text_of(review_page(request, NOW)).split("Words on this page")[1]

    for word in ("group", "not released", "protected table", "record", "round", "silhouette"):
        assert f" {word} " in explained()
    assert "K The number of clusters" not in explained()
    assert "K The number of clusters" in explained(config={"n_clusters": [2, 3]})
    assert "candidate clustering" not in explained()
    assert "candidate clustering" in explained(algorithm="fkm")
    assert "How much closer" not in explained(config={"n_clusters": 3, "evaluate": False})


def test_settings_stand_at_the_end_and_terms_read_as_sentences(tmp_path: Path) -> None:
    request = requested(tmp_path)
    source = review_page(request, NOW)
    assert 'class="warning"' not in source
    page = text_of(source)
    assert page.count(SUMS) == 1
    assert f"counts, means (cells); counts, sums, costs (lloyd): {SUMS}" in page
    assert f"computed from groups of at least {request.p} of your persons." in page
    before, technical = page.split("Technical details")
    assert "tol: 0.000001" in technical
    assert "max_rounds: 4" in technical
    assert "tol:" not in before
    assert "max_rounds" not in before
    covered = before.split("What an approval covers")[1].split("This site's own figures")[0]
    assert "Each row counts as a person." in covered
    assert "express consent" not in covered
    assert not re.search(r"\b(yes|no)\b", covered.replace("no longer", ""))


def test_a_session_without_protection_stands_out(tmp_path: Path) -> None:
    source = review_page(requested(tmp_path, policy={"protection": "none"}), NOW)
    assert re.search(r'<dd class="warning"><p>NONE: this session works on exact rows', source)
    exact = text_of(source)
    assert "express consent This session works on exact rows, without protection." in exact
    assert "extreme values A value" not in exact


def test_values_outside_the_bounds_are_warned_of(tmp_path: Path) -> None:
    """The warning names no value, and an approval does not depend on it."""
    rows = np.where(np.arange(80)[:, None] < 11, [[-99.0, 1.0]], MINE)
    fake = FakeCoordinator(OTHERS, features=({"name": "x", "lower": -50, "upper": 50}, FEATURES[1]))
    with pytest.warns(DataWarning, match="11 values outside"):
        request = fake.site(tmp_path).check("heart", rows)
    warned = dict(request.text())["warning"]
    text = "column 'x': 11 values outside the session's bounds (-50 to 50). They count as measure"
    assert warned.startswith(text)
    assert "--sentinel x=NUMBER" in warned
    page = text_of(review_page(request, NOW))
    assert text in page
    assert "-99" not in page
    assert request.approval_code == replace(request, warnings=()).approval_code


def test_names_and_purpose_are_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    source = review_page(requested(tmp_path, purpose=MARKUP, title="<i>Types</i>"), NOW)
    # A Page has no address.
    assert not Page(source).names & {"script", "img", "link", "iframe", "i"}
    assert "url(" not in source
    assert "@import" not in source
    assert "default-src 'none'" in unescape(source)
    assert source.count("<b>") == 1, "only that of the code"
    assert MARKUP in text_of(source)


def test_a_site_with_too_few_persons_has_no_figures_of_groups(tmp_path: Path) -> None:
    request = FakeCoordinator(OTHERS).site(tmp_path).check("heart", MINE[:3])
    assert (request.persons, request.p) == (0, 5)
    page = text_of(review_page(request, NOW))
    assert "sends only empty submissions" in page
    assert "half of the persons are nearer" not in page


def test_the_ledger_keeps_the_hash_of_the_page(tmp_path: Path) -> None:
    site, out = FakeCoordinator(OTHERS).site(tmp_path / "journal"), tmp_path / "review.html"
    review = site.review("heart", MINE, out)
    assert review.page_sha256 == sha256(out.read_bytes())
    with pytest.raises(UsageError, match="cannot be written"):
        site.review("heart", MINE, tmp_path / "absent" / "review.html")
