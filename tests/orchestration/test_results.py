"""The result, and what of it each reader sees."""

from __future__ import annotations

import pytest

from fedclust.wire.codec import sha256
from fedclust.wire.models import SessionPatch
from fedclust_service.domain.access import Role
from fedclust_service.domain.refusal import Refusal
from fedclust_service.orchestration import participation, results, sessions
from support.office import ANALYST, OPERATOR, Office, actor, site


def refused(office: Office, who: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        results.get_result(office.co, who, "heart")  # type: ignore[arg-type]
    return caught.value


def test_not_before_completion(office: Office) -> None:
    office.session()
    refusal = refused(office, ANALYST)
    assert (refusal.slug, refusal.retry_after_s) == ("result-not-ready", 10)
    sessions.cancel_session(office.co, ANALYST, "heart")
    ended = refused(office, ANALYST)
    assert (ended.slug, ended.retry_after_s) == ("result-not-ready", None)


def test_the_result_and_what_it_rests_on(office: Office) -> None:
    info = office.session(rounds=2)
    body = office.body("heart", "north")
    office.put("heart", "north", body)
    done = office.finish("heart")
    assert (done.state, done.stopped_because, done.failure) == ("completed", "converged", None)
    document = results.get_result(office.co, ANALYST, "heart")
    assert document.result["extra"]["tally"].tolist() == [1.0] * 6
    provenance = document.provenance
    assert provenance.definition_sha256 == info.definition_sha256
    assert (provenance.algorithm, provenance.method_version, provenance.seed) == ("tally", 1, 7)
    assert provenance.sites == ("north", "south", "west")
    assert len(provenance.submissions) == 6
    first = provenance.submissions[0]
    assert (first.round, first.site, first.sha256) == (1, "north", sha256(body))
    assert {"numpy", "scipy", "scikit-learn", "blas", "machine", "python"} <= set(
        provenance.platform
    )


def test_a_site_reads_its_own_hashes_only(office: Office) -> None:
    office.session(rounds=2)
    office.finish("heart")
    document = results.get_result(office.co, site("south"), "heart")
    assert [each.site for each in document.provenance.submissions] == ["south", "south"]


def test_strangers_find_nothing_and_the_excluded_are_refused(office: Office) -> None:
    office.session(sites=("a", "b", "c", "d", "e"), rounds=1)
    participation.exclude(office.co, ANALYST, "heart", "d")
    office.answer("heart", "e")
    participation.leave(office.co, site("e"), "heart")
    office.finish("heart")
    assert refused(office, site("stranger")).slug == "not-found"
    assert refused(office, actor(Role.ANALYST, "eve")).slug == "not-found"
    assert refused(office, site("d")).slug == "forbidden"
    for reader in (OPERATOR, site("a"), site("e")):
        assert results.get_result(office.co, reader, "heart").session == "heart"
    readers = [who for who, _, _ in office.audit(action="result.read")]
    assert readers == ["operator:root", "site:a", "site:e"]


def test_readers_invited_afterwards_read(office: Office) -> None:
    office.session(rounds=1)
    office.finish("heart")
    office.register("reader")
    assert refused(office, site("reader")).slug == "not-found"
    sessions.patch_session(office.co, ANALYST, "heart", SessionPatch(invite=("reader",)))
    assert results.get_result(office.co, site("reader"), "heart").provenance.submissions == ()


def test_max_rounds_is_a_completion(office: Office) -> None:
    office.session(rounds=9, policy={"max_rounds": 2})
    done = office.finish("heart")
    assert (done.state, done.stopped_because, done.round) == ("completed", "max_rounds", 2)
