"""What a report says of how sites differ."""

import json

import numpy as np
import pytest

from fedclust import SessionResult, simulate
from fedclust.result.facts import Facts
from fedclust.result.methods_text import methods_text
from fedclust.result.page import sections, site_sentences
from fedclust.result.tables import json_text
from fedclust.schema.result import SiteDifferences
from support.results import PROVENANCE

CENTRES = np.array([[0.0, 0.0, 4.0, 4.0], [4.0, 0.0, 0.0, 4.0], [0.0, 4.0, 4.0, 0.0]])
FEATURES = ["age", "heart rate", "<crp>", "lactate"]


@pytest.fixture(scope="module")
def found() -> SessionResult:
    """Five hospitals, of which Riga reverses a column."""
    rng = np.random.default_rng(5)
    sites = {
        site: CENTRES[rng.integers(0, 3, 120)] + rng.normal(size=(120, 4)) * 0.6
        for site in ("berlin", "madrid", "oslo", "porto", "riga")
    }
    sites["riga"][:, 2] = 4.0 - sites["riga"][:, 2]
    config = {"n_clusters": 3, "evidence": True}
    return simulate("lloyd", sites, config=config, features=FEATURES)


def section(facts: Facts) -> str:
    return {each.key: each.html for each in sections(facts)}["holds"]


def changed(found: SessionResult, differ: SiteDifferences | None) -> Facts:
    return Facts(found.result.model_copy(update={"site_differences": differ}), found.definition)


def test_a_sentence_names_the_hospital_and_the_column(found: SessionResult) -> None:
    shown = section(found)
    assert "<h3>Sites</h3>" in shown
    assert "riga seems to code &lt;crp&gt; otherwise" in shown
    assert shown.count("seems to code") == 1
    assert "code a column otherwise: 1." in methods_text(found)
    assert found.site_differences_ == found.result.site_differences
    told = json.loads(json_text(found))["site_differences"]
    assert told == {"columns": {"riga": ["<crp>"]}, "cramers_v": None}


def test_a_site_reads_only_of_itself(found: SessionResult) -> None:
    result, names = found.result, frozenset({"oslo"})
    sizes = {site: result.site_sizes[site] for site in names}
    own = {"site_differences": result.site_differences.of_sites(names), "site_sizes": sizes}
    facts = Facts(result.model_copy(update=own), found.definition, PROVENANCE)
    shown = section(facts)
    assert "Your site does not seem to code a column otherwise" in shown
    assert "riga" not in shown
    assert "crp" not in shown
    assert "code a column otherwise" not in methods_text(facts)


def test_what_cannot_be_told_is_said(found: SessionResult) -> None:
    # 120 persons are fewer than 30 groups.
    assert "Cannot tell how well the site predicts the cluster: too few groups" in section(found)
    unknown = site_sentences(changed(found, SiteDifferences()))
    assert unknown[0] == "Columns were not compared: it takes at least 4 sites with persons."
    assert unknown[1].startswith("Cannot tell")
    agree = site_sentences(changed(found, SiteDifferences(columns={}, cramers_v=0.31)))
    assert agree[0] == "No site seems to code a column otherwise than the other sites."
    assert agree[1].startswith("The site moderately predicts the cluster: Cramér's V of groups is")
    assert len(unknown) == len(agree) == 2
    # Without a comparison there is no heading.
    assert site_sentences(changed(found, None)) == ()
    assert "<h3>Sites</h3>" not in section(changed(found, None))
