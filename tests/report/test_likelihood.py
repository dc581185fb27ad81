"""The report's section on the likelihood of a mixture, and the same elsewhere."""

import json
from typing import Any

import numpy as np
import pytest

from fedclust import simulate
from fedclust.result.facts import Facts
from fedclust.result.page import sections
from fedclust.result.tables import json_text


def rows_of_sites() -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        np.concatenate([rng.normal(0, 1, (40, 2)), rng.normal(6, 1, (30, 2))]) for _ in range(3)
    ]


@pytest.fixture(scope="module")
def swept() -> Any:
    sites = dict(zip(("ada", "bern", "cork"), rows_of_sites(), strict=True))
    policy = {"protection": "none", "max_rounds": 10}
    return simulate("mixture", sites, config={"n_clusters": [2, 3]}, policy=policy)


def html_of(result: Any) -> dict[str, str]:
    return {each.key: each.html for each in sections(Facts(result.result, result.definition))}


def test_a_mixture_says_how_well_it_fits(swept: Any) -> None:
    fit = swept.result.likelihood
    soft = np.concatenate([swept.probabilities(rows) for rows in rows_of_sites()])
    entropy = -np.mean(np.sum(soft * np.log(np.maximum(soft, 1e-300)), axis=1))
    assert fit.entropy_per_person == pytest.approx(entropy, abs=1e-6)
    assert fit.log_likelihood_per_person == fit.log_likelihood / 210
    section = html_of(swept)["holds"]
    assert f"{fit.n_parameters} free parameters, BIC {fit.bic:.1f}, entropy per person" in section
    stored = json.loads(json_text(Facts(swept.result, swept.definition)))
    assert stored["likelihood"]["bic"] == fit.bic
    assert stored["likelihood"]["entropy_per_person"] == fit.entropy_per_person
    assert f"9 free parameters, BIC {fit.bic:.1f}, entropy per person" in repr(swept)


def test_every_number_of_classes_has_its_bic(swept: Any) -> None:
    by_k = swept.to_frame("k")
    stored = json.loads(json_text(Facts(swept.result, swept.definition)))["sweep"]
    for k, entry in zip((2, 3), stored, strict=True):
        bic = swept.at(k).result.likelihood.bic
        assert by_k.loc[k, "bic"] == bic == entry["likelihood"]["bic"]
        assert f"<td>{bic:.1f}</td>" in html_of(swept)["holds"]
        assert f"<td>{bic:.1f}</td>" in swept._repr_html_()


def test_another_method_has_no_likelihood() -> None:
    rows = rows_of_sites()
    result = simulate("lloyd", dict(zip("abc", rows, strict=True)), config={"n_clusters": [2, 3]})
    found = html_of(result)
    assert "BIC" not in found["holds"] + result._repr_html_()
    assert "bic" not in result.to_frame("k")
    assert json.loads(json_text(Facts(result.result, result.definition)))["likelihood"] is None
