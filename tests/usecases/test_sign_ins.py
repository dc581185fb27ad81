"""Signing in: what a cookie is good for, and when it ends."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from fedclust.wire.models import PrincipalPatch
from fedclust_service.domain.access import Role
from fedclust_service.domain.tokens import SecretKeys, TokenText, parse_token
from fedclust_service.usecases import principals, sessions
from fedclust_service.usecases import sign_ins as use
from fedclust_service.usecases.sweeper import tidy
from support.clock import ManualClock
from support.timeouts import eventually
from usecases.direct_api import LIMITS, OPERATOR, DirectApi, refusal

MINUTE, HOUR, DAY = 60, 3_600, 86_400


def issue(direct: DirectApi, name: str = "ada", days: int = 365) -> str:
    return direct.issue(Role.ANALYST, name, days).token


def refused(direct: DirectApi, cookie: str) -> str:
    found = refusal(use.signed_in, direct.co, cookie)
    assert found.slug == "unauthenticated"
    assert refusal(use.signed_in, direct.co, cookie, used=False).detail == found.detail
    assert not any(part and part in found.detail for part in cookie.split("_"))
    return found.detail


def test_a_cookie_speaks_for_the_owner_of_the_token(direct: DirectApi) -> None:
    token = issue(direct)
    cookie, first = use.sign_in(direct.co, token)
    signed = use.signed_in(direct.co, cookie)
    assert signed == first
    owner = principals.authenticate(direct.co, token)
    assert signed.actor == dataclasses.replace(owner, via="page", expires_at=signed.ends_at)
    assert use.signed_in(direct.co, cookie, used=False).actor == signed.actor
    assert (signed.idle_until - signed.created_at).total_seconds() == 30 * MINUTE
    assert (signed.ends_at - signed.created_at).total_seconds() == 12 * HOUR
    assert signed.sent_form(signed.csrf)
    assert not signed.sent_form("ü" + signed.csrf)
    assert direct.audit(action="sign_in.created") == [
        ("analyst:ada", "sign_in.created", {"token_id": signed.actor.token_id})
    ]


def test_a_refused_token_does_not_sign_in(direct: DirectApi) -> None:
    token = issue(direct)
    assert refusal(use.sign_in, direct.co, token[:-1]).slug == "unauthenticated"
    principals.revoke_token(direct.co, OPERATOR, Role.ANALYST, "ada", token[4:16])
    assert "revoked" in refusal(use.sign_in, direct.co, token).detail
    assert direct.audit(action="sign_in.created") == []


def test_idle_and_absolute_end(direct: DirectApi, clock: ManualClock) -> None:
    token = issue(direct)
    cookie, _ = use.sign_in(direct.co, token)
    clock.advance(30 * MINUTE)
    assert "nothing here for 30 minutes" in refused(direct, cookie)
    cookie, signed = use.sign_in(direct.co, token)
    for _ in range(12 * 3 - 1):
        clock.advance(20 * MINUTE)
        last = use.signed_in(direct.co, cookie)
        eventually(lambda: not direct.co.touching)
    assert last.idle_until == last.ends_at == signed.ends_at
    clock.advance(20 * MINUTE)
    assert "12 hours ago" in refused(direct, cookie)


def test_what_a_page_loads_by_itself_keeps_no_sign_in_open(direct: DirectApi) -> None:
    cookie, signed = use.sign_in(direct.co, issue(direct))
    for _ in range(2):
        direct.clock.advance(14 * MINUTE)
        assert use.signed_in(direct.co, cookie, used=False).idle_until == signed.idle_until
    direct.clock.advance(3 * MINUTE)
    refused(direct, cookie)


def test_it_ends_with_its_token(direct: DirectApi, clock: ManualClock) -> None:
    direct.co.limits = dataclasses.replace(LIMITS, sign_in_s=3 * DAY, sign_in_idle_s=3 * DAY)
    token = issue(direct, days=1)
    cookie, signed = use.sign_in(direct.co, token)
    assert (signed.ends_at - signed.created_at).total_seconds() == DAY
    assert signed.actor.expires_at == signed.idle_until == signed.ends_at
    clock.advance(DAY)
    assert "token has expired" in refused(direct, cookie)

    token = issue(direct)
    cookie, signed = use.sign_in(direct.co, token)
    other, _ = use.sign_in(direct.co, issue(direct))
    principals.revoke_token(direct.co, OPERATOR, Role.ANALYST, "ada", signed.actor.token_id)
    assert "token has been revoked" in refused(direct, cookie)
    patch = PrincipalPatch(disabled=True)
    principals.patch_principal(direct.co, OPERATOR, Role.ANALYST, "ada", patch)
    assert "disabled" in refused(direct, other)


def test_signing_out(both: DirectApi) -> None:
    token = issue(both)
    cookie, _ = use.sign_in(both.co, token)
    other, _ = use.sign_in(both.co, token)
    for each in (cookie, cookie, "", "garbled", _with(cookie, secret="A" * 43)):
        use.sign_out(both.co, each)
    assert "signed out" in refused(both, cookie)
    assert use.signed_in(both.co, other).actor.name == "ada"
    assert len(both.audit(action="sign_in.ended")) == 1


def test_signing_out_everywhere(both: DirectApi, clock: ManualClock) -> None:
    token, second = issue(both), issue(both)
    idle, _ = use.sign_in(both.co, token)
    clock.advance(30 * MINUTE)
    cookies = [use.sign_in(both.co, each)[0] for each in (token, second, second)]
    others, _ = use.sign_in(both.co, issue(both, "eve"))
    signed = use.signed_in(both.co, cookies[0])
    listed = use.list_sign_ins(both.co, signed.actor)
    assert {each.id for each in listed} == {each.split("_")[1] for each in cookies}
    assert use.sign_out_everywhere(both.co, signed) == 3
    for each in (*cookies, idle):
        assert "signed out" in refused(both, each)
    assert not use.list_sign_ins(both.co, signed.actor)
    assert use.signed_in(both.co, others).actor.name == "eve"
    assert both.audit(action="sign_in.all_ended") == [
        ("analyst:ada", "sign_in.all_ended", {"count": 3})
    ]


def test_those_that_are_good_for_something_are_listed(both: DirectApi, clock: ManualClock) -> None:
    both.co.limits = dataclasses.replace(LIMITS, sign_in_idle_s=3 * DAY)
    first, second = issue(both), issue(both)
    _, ended = use.sign_in(both.co, first)
    clock.advance(1)
    early, late = (use.sign_in(both.co, token)[1] for token in (first, second))

    def listed() -> set[str]:
        return {each.id for each in use.list_sign_ins(both.co, late.actor)}

    clock.advance(12 * HOUR - 2)
    assert listed() == {ended.id, early.id, late.id}
    clock.advance(1)
    assert listed() == {early.id, late.id}
    principals.revoke_token(both.co, OPERATOR, Role.ANALYST, "ada", early.actor.token_id)
    assert listed() == {late.id}
    patch = PrincipalPatch(disabled=True)
    principals.patch_principal(both.co, OPERATOR, Role.ANALYST, "ada", patch)
    assert listed() == set()


def test_the_oldest_end_when_there_are_too_many(direct: DirectApi, clock: ManualClock) -> None:
    token, other = issue(direct), issue(direct, "bob")
    cookies = []
    for _ in range(use.MOST_OPEN + 2):
        cookies.append(use.sign_in(direct.co, token)[0])
        clock.advance(1)
    bystander = use.sign_in(direct.co, other)[0]
    assert "signed out" in refused(direct, cookies[0])
    assert "signed out" in refused(direct, cookies[1])
    signed = use.signed_in(direct.co, cookies[2])
    assert len(use.list_sign_ins(direct.co, signed.actor)) == use.MOST_OPEN
    use.signed_in(direct.co, bystander)


def test_all_end_after_a_restore(both: DirectApi) -> None:
    use.end_every(both.co)
    cookies = [use.sign_in(both.co, issue(both, each))[0] for each in ("ada", "eve")]
    use.end_every(both.co)
    for each in cookies:
        assert "signed out" in refused(both, each)
    ((who, _, details),) = both.audit(action="sign_in.all_ended")
    assert (who, details) == ("coordinator", {"count": 2})


def test_the_trail_says_how_somebody_acted(direct: DirectApi) -> None:
    _, signed = use.sign_in(direct.co, issue(direct))
    direct.define()
    sessions.cancel_session(direct.co, signed.actor, "heart")
    trail = direct.store.read("test", lambda tx: tx.audit.list(1000))
    ways = {row.action: row.details.get("via") for row in trail}
    assert (ways["sign_in.created"], ways["session.cancelled"]) == ("page", "page")
    assert ways["session.created"] == "api"


def test_uses_are_recorded_once_a_minute(direct: DirectApi, clock: ManualClock) -> None:
    cookie, signed = use.sign_in(direct.co, issue(direct))

    eventually(lambda: not direct.co.touching)
    before = direct.calls("token.touch")
    clock.advance(59)
    use.signed_in(direct.co, cookie)
    assert (direct.calls("token.touch"), direct.co.touching) == (before, set())
    clock.advance(1)
    use.signed_in(direct.co, cookie)
    eventually(lambda: not direct.co.touching)
    use.signed_in(direct.co, cookie)
    assert (direct.calls("token.touch"), direct.co.touching) == (before + 1, set())
    clock.advance(60)
    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(use.signed_in, direct.co, cookie) for _ in range(8)]:
            assert each.result().idle_until == clock.now() + timedelta(minutes=30)
    eventually(lambda: not direct.co.touching)
    found = direct.store.read("test", lambda tx: tx.sign_ins.with_owner(signed.id))
    row, token, owner = found
    assert row.last_used_at == token.last_used_at == owner.last_seen_at == clock.now()
    # It never goes back.
    direct.store.run_tx("t", lambda tx: tx.sign_ins.touch_used(signed.id, signed.created_at))
    assert direct.store.read("t", lambda tx: tx.sign_ins.with_owner(signed.id)) == found


def test_the_sweeper_removes_a_sign_in_a_day_after_its_end(both: DirectApi) -> None:
    cookie, _ = use.sign_in(both.co, issue(both))
    both.clock.advance(12 * HOUR + DAY + 1)
    tidy(both.co)  # the time is not trusted yet
    assert "12 hours ago" in refused(both, cookie)
    for _ in range(3):
        both.co.clock.check()
        both.clock.advance(HOUR)
    kept, _ = use.sign_in(both.co, issue(both))
    tidy(both.co)
    assert "not signed in" in refused(both, cookie)
    assert use.signed_in(both.co, kept).actor.name == "ada"


def _with(cookie: str, **changes: str) -> str:
    return dataclasses.replace(parse_token(cookie, cookie=True), **changes).reveal()


def test_nothing_shows_the_secret_keys_rotate_and_a_stolen_row_signs_nobody_in(
    direct: DirectApi,
) -> None:
    cookie, signed = use.sign_in(direct.co, issue(direct))
    text = parse_token(cookie, cookie=True)
    found, *_ = direct.store.read("test", lambda tx: tx.sign_ins.with_owner(signed.id))
    stolen = found.secret_hmac
    for shown in (repr(text), repr(signed), repr(found)):
        for secret in (text.secret, signed.csrf, stolen):
            assert secret not in shown
    assert text.secret not in str(vars(found))
    for secret in (stolen[:43], stolen[-43:], signed.csrf[:43]):
        assert "not signed in" in refused(direct, TokenText(None, signed.id, secret).reveal())
    for each in ("", "_", cookie + "\n", cookie[:-1], _with(cookie, id="0" * 12)):
        assert "not signed in" in refused(direct, each)

    direct.co.keys = SecretKeys([b"n" * 32, b"k" * 32])
    assert use.signed_in(direct.co, cookie) == signed
    direct.co.keys = SecretKeys([b"n" * 32])
    assert "not signed in" in refused(direct, cookie)
