"""The mistakes of a first day: each is told in one line that says what to do."""

import json
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedclust import SessionResult
from fedclust.cli.session_file import slug
from fedclust.cli.session_options import SessionOptions, StudyOptions
from fedclust.client import Client
from fedclust.client.http import tls_failure
from fedclust.client.session_request import read_model
from fedclust.definition import DefinitionError, check_definition
from fedclust.definition.json_text import read_json
from fedclust.wire.errors import UsageError
from fedclust.wire.models import SessionCreate
from support.command_line import CommandLine
from support.definitions import session_body, session_request

BODY = session_body("age", sites=["north", "south"])
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine) -> Run:
    """Run ``fedclust`` where no coordinator answers; return exit code and standard error."""
    token = tmp_path / "token"
    token.write_text("fco_secret\n", "utf-8")
    token.chmod(0o600)
    monkeypatch.setenv("FEDCLUST_COORDINATOR", "http://127.0.0.1:1")
    monkeypatch.setenv("FEDCLUST_TOKEN_FILE", str(token))

    def act(*arguments: str) -> tuple[int, str]:
        return command_line.run(*arguments), command_line.err

    return act


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"policy": {"minimum_sites": 2}},
            'policy in the definition: unknown field "minimum_sites": did you mean "min_sites"?',
        ),
        ({"method": "fkm"}, 'unknown field "method". There are: name, study'),
        ({"name": "Heart 2026"}, "name in the definition: a name is a-z, 0-9 and hyphens"),
        ({"sites": "north"}, "sites in the definition: "),
        ({"config": {"n_clusters": float("nan")}}, "only text, finite numbers"),
        ({"config": {"tol": {1}}}, "only text, finite numbers"),
        ({"features": [{"name": "x", "lower": "0"}]}, "features[0].lower in the definition: it"),
    ],
)
def test_a_definition_with_a_slip(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        read_model(SessionCreate, {**BODY, **change})
    assert str(caught.value).count(";") == 0, "one fault is told once"
    assert "pydantic" not in str(caught.value)
    read_model(SessionCreate, BODY)


def test_a_slip_is_no_unexpected_error(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "heart.json"
    wrong: list[dict[str, Any]] = [{"policy": 3}, {"policy": 3}, {"config": []}]
    options = ("--min-sites", "--min-group-size", "--clusters")
    for change, option in zip(wrong, options, strict=True):
        file.write_text(json.dumps({**BODY, **change}), "utf-8")
        code, said = run("session", "create", "heart", "--file", str(file), option, "3")
        assert (code, "one JSON object" in said) == (2, True)
    code, said = run("session", "create", "Heart", "--file", str(file))
    assert (code, said.count("\n")) == (2, 1)
    for group in ("site", "analyst"):
        code, said = run(group, "add", "South")
        assert (code, "a-z, 0-9 and hyphens" in said) == (2, True)


def test_options_leave_what_else_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "heart.json"
    own = {"config": {"n_clusters": 3, "tol": 0.1}, "policy": {"min_sites": 2, "quorum": 2}}
    file.write_text(json.dumps({**BODY, **own}), "utf-8")
    client = Client("http://127.0.0.1:1", "fca_secret")  # which nothing here asks
    options = SessionOptions(file=file, stability=100, evidence=True, min_group_size=11)
    asked = options.definition("heart", client)
    assert asked.config == {**own["config"], "stability": 100, "evidence": True}
    policy = asked.policy
    assert (policy.min_group_size, policy.min_sites, policy.quorum) == (11, 2, 2)
    body = {**{key: BODY[key] for key in ("purpose", "sites")}, "defaults": {"config": {"tol": 1}}}
    file.write_text(json.dumps(body), "utf-8")
    study = StudyOptions(file=file, stability=50, min_group_size=10, min_sites=2)
    assert study.definition("hearts").defaults.model_dump(exclude_unset=True) == {
        "config": {"tol": 1, "stability": 50},
        "policy": {"min_sites": 2, "min_group_size": 10},
    }


@pytest.mark.parametrize("name", ["", "South", "a b", "-a", "a\n", "a" * 64, "ä"])
def test_what_no_name_can_be(name: str) -> None:
    with pytest.raises(UsageError):
        slug(name)


def test_two_sites_by_default_are_told_how() -> None:
    with pytest.raises(DefinitionError) as two:
        check_definition(session_request("age", sites=["north", "south"]))
    assert "set this number to 2" in two.value.errors[0].message
    assert "consent" in two.value.errors[0].message
    with pytest.raises(DefinitionError) as one:
        check_definition(session_request("age", sites=["a"]))
    assert "min_sites" not in one.value.errors[0].message
    check_definition(read_model(SessionCreate, {**BODY, "policy": {"min_sites": 2}}))


def test_a_failure_of_tls_says_what_to_do() -> None:
    refused = ssl.SSLCertVerificationError(1, "self-signed certificate")
    said = str(tls_failure("https://c.example", refused, with_bundle=True))
    assert "lacks the certificate's authority" in said
    refused.verify_code = 10  # it has expired
    assert "this machine's date" in str(tls_failure("https://c.example", refused))


# --- JSON that people hand on ---------------------------------------------------------------------


FAULTS = {
    "{": "line 1: this is not JSON",
    '{"a": 1, "a": 2}': "the key 'a' twice",
    '{"a": NaN}': "no number NaN",
    '{"a": -1e400}': "no number -1e400",
    '{"a": "\\ud800"}': "half of a pair of characters",
    '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}": "nested too deeply",
    '{"a": 1' + "0" * 10_000 + "}": "too many digits",
}


@pytest.mark.parametrize(("text", "fault"), FAULTS.items(), ids=FAULTS.values())
def test_a_fault_is_named_with_the_file(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text, "utf-8")
    for read in (lambda: read_json(text, path), lambda: SessionResult.load(path)):
        with pytest.raises(UsageError, match=fault) as error:
            read()
        assert str(path) in str(error.value)
        assert len(str(error.value)) < 300


def test_what_is_no_text_in_utf_8_is_said_to_be() -> None:
    with pytest.raises(UsageError, match="x: this is not text in UTF-8"):
        read_json(b'{"a": "\xff"}', "x")
    assert read_json("\ufeff{}".encode(), "x") == {}
