"""The operator's and the analyst's client against a real coordinator in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedclust import errors
from fedclust.client import Client
from fedclust.wire.models import SessionPatch
from fedclust.wire.submissions import write_submission
from support.consortium import participation_in
from support.definitions import session_body
from support.local_coordinator import LocalCoordinator, local_coordinator

SITES = ("alpha", "beta", "gamma")
DEFINITION = session_body(
    {"name": "x", "lower": 0}, algorithm="lloyd", sites=list(SITES), start="manual"
)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCoordinator]:
    with local_coordinator(tmp_path_factory.mktemp("client")) as local:
        with Client(local.base_url, local.operator_token) as operator:
            for name in SITES:
                operator.add("sites", name, title=name.title())
            operator.add("analysts", "ada")
        yield local


def token(local: LocalCoordinator, kind: str, name: str) -> str:
    with Client(local.base_url, local.operator_token) as operator:
        return operator.issue_token(kind, name).token  # type: ignore[arg-type]


def test_sites_tokens_and_who_one_is(local: LocalCoordinator) -> None:
    with Client(local.base_url, local.operator_token) as operator:
        assert operator.whoami().role == "operator"
        assert operator.add("sites", "alpha", title="Alpha").name == "alpha"
        assert [site.name for site in operator.principals("sites")] == list(SITES)
        issued = operator.issue_token("sites", "alpha", expires_in_days=3)
        with Client(local.base_url, issued.token) as site:
            assert (site.whoami().role, site.whoami().name) == ("site", "alpha")
            operator.revoke_token("sites", "alpha", issued.id)
            with pytest.raises(errors.Unauthenticated):
                site.whoami()
        assert operator.change("sites", "gamma", title="Gamma Clinic").title == "Gamma Clinic"
        assert operator.change("sites", "gamma", disabled=True).disabled
        assert not operator.change("sites", "gamma", disabled=False).disabled
        assert operator.principal("sites", "gamma").title == "Gamma Clinic"
        with pytest.raises(errors.NotFound):
            operator.principal("sites", "no/such?site")


def test_algorithms_say_what_they_disclose(local: LocalCoordinator) -> None:
    with Client(local.base_url, token(local, "analysts", "ada")) as analyst:
        (found,) = [a for a in analyst.algorithms() if a.name == "lloyd"]
        assert analyst.algorithm("lloyd") == found
        assert all(phase.discloses for phase in found.phases)


def test_a_session_from_creation_to_cancellation(local: LocalCoordinator) -> None:
    with Client(local.base_url, token(local, "analysts", "ada")) as analyst:
        created = analyst.create_session(DEFINITION)
        assert analyst.create_session(DEFINITION) == created, "the same request, the same session"
        with pytest.raises(errors.NameTaken):
            analyst.create_session({**DEFINITION, "config": {"n_clusters": 3}})
        with pytest.raises(errors.Invalid) as caught:
            analyst.create_session({**DEFINITION, "name": "h2", "config": {"n_clusters": 0}})
        assert caught.value.errors[0].pointer == "/config/n_clusters"
        with pytest.raises(errors.QuorumMissing):
            analyst.start_session("heart")
        for name in SITES:
            with Client(local.base_url, token(local, "sites", name)) as site:
                assert site.join("heart", participation_in(created, "x")).state == "joined"
        assert analyst.start_session("heart").state == "running"
        assert [info.name for info in analyst.sessions()] == ["heart"]
        assert list(analyst.sessions("failed")) == []
        (opened,) = analyst.rounds("heart")
        assert analyst.round("heart", 1) == opened
        with pytest.raises(errors.QuorumMissing):
            analyst.close_round("heart", 1)
        with pytest.raises(errors.ResultNotReady):
            analyst.result("heart")
        later = opened.deadline.replace(year=opened.deadline.year + 1)
        analyst.patch_session("heart", SessionPatch(deadline=later))
        assert analyst.round("heart", 1).deadline == later
        with Client(local.base_url, token(local, "sites", "alpha")) as site:
            view, etag = site.task("heart")
            assert view.status == "work"
            assert site.task("heart", etag, wait_s=0) == (None, etag)
            with pytest.raises(errors.NotFound):
                site.task("elsewhere")
            body = write_submission("prepare", "0" * 64, None)
            with pytest.raises(errors.TaskMismatch):
                site.submit("heart", 1, body)
            site.leave("heart")
        analyst.exclude("heart", "beta")
        states = {site.name: site.state for site in analyst.session("heart").sites}
        assert states == {"alpha": "left", "beta": "excluded", "gamma": "joined"}
        assert analyst.cancel_session("heart").state == "cancelled"
        assert analyst.cancel_session("heart").state == "cancelled"


def test_lists_are_read_to_their_end(local: LocalCoordinator, tmp_path: Path) -> None:
    with Client(local.base_url, local.operator_token) as operator:
        for number in range(120):
            operator.add("sites", f"z-{number:03d}")
        names = [site.name for site in operator.principals("sites")]
        assert len(names) == len(set(names)) == 123


def test_something_else_that_answers_is_said_to(local: LocalCoordinator) -> None:
    with Client(local.base_url + "/docs", local.operator_token) as lost:
        with pytest.raises(errors.CoordinatorError):
            lost.whoami()
        assert "fco_" not in repr(lost)
