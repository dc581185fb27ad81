"""The result, and what of it each reader sees."""

from fedclust import rounds
from fedclust.wire.codec import sha256
from fedclust.wire.models import SessionPatch
from fedclust_service.domain.access import Refusal, Role
from fedclust_service.usecases import audit, participation, results, sessions
from usecases.direct_api import ANALYST, OPERATOR, DirectApi, actor, refusal, site


def refused(direct: DirectApi, who: object) -> Refusal:
    return refusal(results.get_result, direct.co, who, "heart")


def test_not_before_completion(direct: DirectApi) -> None:
    direct.session()
    early = refused(direct, ANALYST)
    assert (early.slug, early.retry_after_s) == ("result-not-ready", 10)
    sessions.cancel_session(direct.co, ANALYST, "heart")
    ended = refused(direct, ANALYST)
    assert (ended.slug, ended.retry_after_s) == ("result-not-ready", None)


def test_the_result_and_what_it_rests_on(direct: DirectApi) -> None:
    info = direct.session(rounds=2)
    body = direct.body("heart", "north")
    direct.put("heart", "north", body)
    done = direct.finish("heart")
    assert (done.state, done.stopped_because, done.failure) == ("completed", "converged", None)
    document = results.get_result(direct.co, ANALYST, "heart")
    assert document.result["extra"]["votes"].tolist() == [1.0] * 6
    provenance = document.provenance
    assert provenance.definition_sha256 == info.definition_sha256
    assert (provenance.algorithm, provenance.method_version, provenance.seed) == ("counting", 1, 7)
    assert provenance.engine_version == rounds.VERSION
    assert provenance.sites == ("north", "south", "west")
    assert len(provenance.submissions) == 6
    first = provenance.submissions[0]
    assert (first.round, first.site, first.sha256) == (1, "north", sha256(body))
    assert {"numpy", "scipy", "scikit-learn", "blas", "machine", "python"} <= set(
        provenance.platform
    )


def test_every_reader_gets_the_sealed_entry_of_the_completion(direct: DirectApi) -> None:
    direct.session(rounds=1)
    direct.finish("heart")
    assert results.get_result(direct.co, ANALYST, "heart").provenance.audit_head is None
    direct.co.sealer.run_once()
    heads = [
        results.get_result(direct.co, who, "heart").provenance.audit_head
        for who in (ANALYST, OPERATOR, site("south"))
    ]
    assert heads[0] is not None
    assert heads[1:] == heads[:2]
    # Any token may ask for the hash of the number.
    entry = direct.store.read("test", lambda tx: tx.audit.last("heart", "session.completed"))
    assert entry.number == heads[0].number
    assert audit.head_at(direct.co, ANALYST, entry.number) == heads[0]
    # Later entries do not change it.
    direct.co.sealer.run_once()
    assert results.get_result(direct.co, ANALYST, "heart").provenance.audit_head == heads[0]


def test_strangers_find_nothing_and_the_excluded_are_refused(direct: DirectApi) -> None:
    direct.session(sites=("a", "b", "c", "d", "e"), rounds=1)
    participation.exclude(direct.co, ANALYST, "heart", "d")
    direct.answer("heart", "e")
    participation.leave(direct.co, site("e"), "heart")
    direct.finish("heart")
    assert refused(direct, site("stranger")).slug == "not-found"
    assert refused(direct, actor(Role.ANALYST, "eve")).slug == "not-found"
    assert refused(direct, site("d")).slug == "forbidden"
    for reader in (OPERATOR, site("a"), site("e")):
        assert results.get_result(direct.co, reader, "heart").session == "heart"
    readers = [who for who, _, _ in direct.audit(action="result.read")]
    assert readers == ["operator:root", "site:a", "site:e"]


def test_readers_invited_afterwards_read(direct: DirectApi) -> None:
    direct.session(rounds=9, policy={"max_rounds": 2})
    done = direct.finish("heart")
    assert (done.state, done.stopped_because, done.round) == ("completed", "max_rounds", 2)
    direct.register("reader")
    assert refused(direct, site("reader")).slug == "not-found"
    sessions.patch_session(direct.co, ANALYST, "heart", SessionPatch(invite=("reader",)))
    assert results.get_result(direct.co, site("reader"), "heart").provenance.submissions == ()
    assert direct.view("heart", "reader").response.status == "ended"
    assert refusal(direct.join, "heart", "reader").slug == "wrong-state"
