"""The report's section on transfer, and the same as a table."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import SessionResult, simulate
from fedclust.result.facts import Facts
from fedclust.result.methods_text import methods_text
from fedclust.result.page import html, sections, transfer_sentences
from fedclust.result.tables import json_text
from support.results import PROVENANCE

CENTRES = np.array([[0.0, 0.0, 4.0, 4.0], [4.0, 0.0, 0.0, 4.0], [0.0, 4.0, 4.0, 0.0]])
FEATURES = ["age", "heart rate", "<crp>", "lactate"]


@pytest.fixture(scope="module")
def sites() -> dict[str, NDArray[np.float64]]:
    """Five hospitals, of which Riga reverses a column."""
    rng = np.random.default_rng(5)
    sites = {
        site: CENTRES[rng.integers(0, 3, 120)] + rng.normal(size=(120, 4)) * 0.6
        for site in ("berlin", "madrid", "oslo", "porto", "riga")
    }
    sites["riga"][:, 2] = 4.0 - sites["riga"][:, 2]
    return sites


@pytest.fixture(scope="module")
def found(sites: dict[str, NDArray[np.float64]]) -> SessionResult:
    return session(sites)


def session(sites: dict[str, NDArray[np.float64]], protection: str = "groups") -> SessionResult:
    config, policy = {"n_clusters": 3, "transfer": True}, {"protection": protection}
    return simulate("lloyd", sites, config=config, features=FEATURES, policy=policy)


def facts_of(found: SessionResult) -> Facts:
    return Facts(found.result, found.definition)


def section(facts: Facts) -> str:
    return {each.key: each.html for each in sections(facts)}["holds"]


def test_a_sentence_names_the_hospital_and_the_column(found: SessionResult) -> None:
    shown = section(facts_of(found))
    assert "riga seems to code &lt;crp&gt; otherwise" in shown
    assert shown.count("seems to code") == 1
    assert "Would each hospital have found this alone?" in html(facts_of(found))


def test_a_site_reads_only_of_itself(found: SessionResult) -> None:
    result, names = found.result, frozenset({"oslo"})
    sizes = {site: result.site_sizes[site] for site in names}
    own = {"transfer": result.transfer.of_sites(names), "site_sizes": sizes}
    facts = Facts(result.model_copy(update=own), found.definition, PROVENANCE)
    shown = section(facts)
    assert "your site" in shown
    assert "Your site does not seem to code a column otherwise" in shown
    assert "riga" not in shown
    assert "crp" not in shown
    assert "code a column otherwise" not in methods_text(facts)


def test_the_same_is_in_json_in_the_methods_section_and_in_a_frame(found: SessionResult) -> None:
    facts = facts_of(found)
    stored = json.loads(json_text(facts))["transfer"]["sites"]["riga"]
    assert stored["differing_columns"] == ["<crp>"]
    assert "code a column otherwise than the others: 1." in methods_text(facts)
    frame = found.to_frame("transfer")
    assert list(frame.index) == ["berlin", "madrid", "oslo", "porto", "riga"]
    assert frame.loc["riga", "differing_columns"] == ("<crp>",)
    assert frame.loc["oslo", "own_ari"] is None
    assert stored["own_ari"] is stored["own_table"] is found.transfer_.sites["oslo"].own_ari is None


def test_without_protection_all_readers_have_the_agreement(
    sites: dict[str, NDArray[np.float64]],
) -> None:
    rows = session(sites, "none")
    own = rows.result.transfer.sites["oslo"]
    assert own.own_ari > 0.8
    assert rows.to_frame("transfer").loc["oslo", "own_ari"] == own.own_ari
    assert rows.transfer_ is rows.result.transfer
    assert json.loads(json_text(rows))["transfer"]["sites"]["oslo"]["own_ari"] == own.own_ari
    shown = section(rows)
    lines = re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', shown)[:5]
    cells = {site: re.findall(r"<td[^>]*>(.*?)</td>", line) for site, line in lines}
    assert {site: row[-1] for site, row in cells.items()} == {
        **dict.fromkeys(("berlin", "madrid", "oslo", "porto"), "none"),
        "riga": "&lt;crp&gt;",
    }
    assert cells["berlin"][0] == "120"
    assert cells["berlin"][5] == "yes"
    assert "Persons by own and common clusters" in shown
    assert "Cannot tell" not in shown


@pytest.mark.parametrize("site", [None, "oslo"])
def test_of_groups_no_reader_has_the_agreement(found: SessionResult, site: str | None) -> None:
    facts = facts_of(found)
    if site:
        own = {"transfer": found.result.transfer.of_sites(frozenset({site}))}
        own["site_sizes"] = {site: found.result.site_sizes[site]}
        facts = Facts(found.result.model_copy(update=own), found.definition, PROVENANCE)
    shown = section(facts)
    assert f"Cannot tell whether {'your site' if site else 'a hospital'} would have" in shown
    for words in ("ARI", "kappa", "found alone", "own and common"):
        assert words not in shown
    transfer = facts.result.transfer
    sites = transfer.sites.values()
    assert {field for own in sites for field in own.model_dump(exclude_defaults=True)} == {
        "n_rows",
        "differing_columns",
    } - ({"differing_columns"} if site else set())
    assert transfer.cramers_v == found.result.transfer.cramers_v
    assert "Hubert" not in html(facts)


def test_without_transfer_there_is_no_section(found: SessionResult) -> None:
    none = replace(found, result=found.result.model_copy(update={"transfer": None}))
    assert "Would each hospital" not in section(facts_of(none))
    assert transfer_sentences(facts_of(none)) == ()
