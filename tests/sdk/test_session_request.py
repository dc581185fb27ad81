"""Sessions and studies as analysts write them in Python: mappings, names, another's definition."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust import Feature, Site, errors
from fedclust.client import Client
from fedclust.client.session_request import inherit, read_study
from fedclust.client.token_file import choose_token
from support.consortium import Consortium
from support.local_coordinator import local_coordinator
from support.purpose import PURPOSE

SITES = ("alpha", "beta", "gamma")
STUDY: dict[str, Any] = {
    "name": "tumours",
    "purpose": PURPOSE,
    "sites": SITES,
    "features": [Feature(name="mean_radius", lower=0.0, upper=40.0), {"name": "mean_texture"}],
    "defaults": {"policy": {"min_group_size": np.int64(7)}},
}
SESSION: dict[str, Any] = {
    "name": "t-1",
    "study": "tumours",
    "algorithm": "fkm",
    "config": {"n_clusters": (2, 3), "candidates": 3},
}


@pytest.fixture(scope="module")
def analyst(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An analyst of a coordinator that has the study and one session of it."""
    with local_coordinator(tmp_path_factory.mktemp("requests")) as local:
        there = Consortium.found(local.base_url, local.operator_token, SITES)
        with there.analyst() as client:
            client.create_study(STUDY)
            client.create_session(SESSION)
            yield client


def test_a_mapping_makes_a_study_and_its_sessions(analyst: Client) -> None:
    study = analyst.create_study(STUDY)
    assert study.features[0].upper == 40.0
    made = analyst.session("t-1").definition
    assert (made.config["n_clusters"], made.policy.min_group_size) == ([2, 3], 7)
    named = analyst.create_session({**SESSION, "name": "t-2", "features": ["mean_radius"]})
    assert named.definition.features == (study.features[0],), "as the study declares it"
    with pytest.raises(errors.UsageError, match=r'no feature "mean_raduis".*mean "mean_radius"'):
        analyst.create_session({**SESSION, "name": "t-3", "features": ["mean_raduis"]})


def test_a_session_starts_from_another(analyst: Client) -> None:
    first = analyst.session("t-1").definition
    again = analyst.create_session(
        {"name": "t-4", "config": {"n_clusters": 4}}, from_session="t-1"
    ).definition
    assert again.config == {**first.config, "n_clusters": 4}
    assert again.seed != first.seed
    with pytest.warns(UserWarning, match=r"not taken over from t-1: options of fkm \(candidates"):
        other = analyst.create_session({"name": "t-5", "algorithm": "lloyd"}, from_session="t-1")
    assert other.definition.config["n_clusters"] == [2, 3]
    assert "candidates" not in other.definition.config
    body, dropped = inherit(first, {"name": "x", "study": "other"})
    assert "sites" not in body
    assert not dropped


def test_a_token_comes_from_text_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ada.token"
    file.write_text("fca_abc\n", "utf-8")
    file.chmod(0o600)
    assert choose_token("fca_abc\n", None) == choose_token(None, file) == "fca_abc"
    assert choose_token(None, None) is None
    for make in (Client, Site):
        with pytest.raises(errors.UsageError, match="give it as token_file="):
            make("http://127.0.0.1:9", "ada.token")
        make("http://127.0.0.1:9", token_file="ada.token").close()
    with pytest.raises(errors.UsageError, match="contradict"):
        Client("http://127.0.0.1:9", "fca_abc", token_file=file)


def test_lists_and_what_they_hold_are_shown_in_words(analyst: Client) -> None:
    shown = repr(analyst.sessions())
    assert shown.splitlines()[0].split() == ["session", "study", "method", "K", "state", "joined"]
    assert "t-1" in shown
    assert "0 of 3" in analyst.sessions()._repr_html_()
    one = analyst.session("t-1")._repr_html_()
    assert "invited: alpha, beta, gamma" in one
    assert "SitePresence" not in one
    study = analyst.study("tumours")._repr_html_()
    assert "mean_radius, mean_texture" in study
    assert "policy: {" in study
    assert "tumours" in repr(analyst.studies())
    assert repr(analyst.sessions("failed")) == "(none)"
    with pytest.raises(errors.NotFound):
        analyst.sessions(study="tumors")


def test_a_study_of_wrong_fields_is_refused() -> None:
    with pytest.raises(errors.UsageError, match='unknown field "purpoes": did you mean "purpose"'):
        read_study({"name": "tumours", "purpoes": PURPOSE, "sites": SITES})
    named = read_study({**STUDY, "features": ["a", "b"]}).features
    assert [each.name for each in named] == ["a", "b"]


def test_the_coordinators_refusal_is_one_sentence_after_another(analyst: Client) -> None:
    with pytest.raises(errors.Invalid) as caught:
        analyst.create_session({**SESSION, "name": "t-6", "config": {"candidats": 3}})
    assert 'config: unknown option of this variant "candidats"' in str(caught.value)
    assert ".;" not in str(caught.value)
