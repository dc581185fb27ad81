"""Registering, tokens, and who a token speaks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedclust.wire.models import PrincipalCreate, PrincipalPatch, TokenCreate
from fedclust_service.domain.access import Role
from fedclust_service.domain.refusal import Refusal
from fedclust_service.domain.tokens import SecretKeys, TokenText, new_token
from fedclust_service.orchestration import principals as use
from support.clock import ManualClock
from support.office import ANALYST, OPERATOR, Office, site
from support.patience import PATIENCE_S, eventually

DAY = 86_400


def issue(office: Office, name: str = "north", days: int = 365) -> str:
    office.register(name)
    body = TokenCreate(expires_in_days=days)
    return use.issue_token(office.co, OPERATOR, Role.SITE, name, body).token


def refused(office: Office, token: str) -> str:
    with pytest.raises(Refusal) as caught:
        use.authenticate(office.co, token)
    assert caught.value.slug == "unauthenticated"
    assert token not in caught.value.detail
    return caught.value.detail


def test_a_token_speaks_for_its_site(office: Office) -> None:
    actor = use.authenticate(office.co, issue(office))
    assert (actor.role, actor.name) == (Role.SITE, "north")
    told = use.whoami(office.co, actor)
    assert (told.role, told.name, told.protocol_version) == ("site", "north", 1)


def test_several_tokens_are_valid_until_revoked(office: Office) -> None:
    one, two = issue(office), issue(office)
    token_id = use.authenticate(office.co, one).token_id
    use.revoke_token(office.co, OPERATOR, Role.SITE, "north", token_id)
    use.revoke_token(office.co, OPERATOR, Role.SITE, "north", token_id)
    assert "revoked" in refused(office, one)
    assert use.authenticate(office.co, two).name == "north"
    assert len(office.audit(action="token.revoked")) == 1


def operator_token(office: Office, name: str, days: int = 365) -> str:
    """Register an operator and issue a token; return the token's id."""
    use.create_principal(office.co, OPERATOR, Role.OPERATOR, PrincipalCreate(name=name))
    body = TokenCreate(expires_in_days=days)
    return use.issue_token(office.co, OPERATOR, Role.OPERATOR, name, body).id


def is_kept(call: Callable[..., object], *given: object) -> bool:
    """Say whether a call is refused because no operator token would be left."""
    try:
        call(*given)
    except Refusal as refusal:
        if refusal.slug != "last-operator-token":
            raise
        return "fedclust-service operator-token" in refusal.detail
    return False


def test_the_last_valid_operator_token_stays(both_office: Office, clock: ManualClock) -> None:
    office = both_office
    co, role = office.co, Role.OPERATOR
    first, second = operator_token(office, "grace"), operator_token(office, "grace")
    soon, other = operator_token(office, "grace", 1), operator_token(office, "henry")
    disable = PrincipalPatch(disabled=True)
    clock.advance(2 * DAY)  # the third has expired
    assert not is_kept(use.revoke_token, co, OPERATOR, role, "henry", other)
    assert not is_kept(use.revoke_token, co, OPERATOR, role, "grace", first)
    for _ in range(2):
        assert is_kept(use.revoke_token, co, OPERATOR, role, "grace", second)
        assert is_kept(use.patch_principal, co, OPERATOR, role, "grace", disable)
    # What is not valid any more is no way in: it may go.
    assert not is_kept(use.revoke_token, co, OPERATOR, role, "grace", soon)
    assert not is_kept(use.patch_principal, co, OPERATOR, role, "henry", disable)
    again = operator_token(office, "henry")
    assert is_kept(use.revoke_token, co, OPERATOR, role, "grace", second), "henry is disabled"
    use.patch_principal(co, OPERATOR, role, "henry", PrincipalPatch(disabled=False))
    assert not is_kept(use.patch_principal, co, OPERATOR, role, "grace", disable)
    assert is_kept(use.revoke_token, co, OPERATOR, role, "henry", again)
    who = OPERATOR.key
    assert office.audit(action="token.revoked") == [
        (who, "token.revoked", {"token_id": token_id}) for token_id in (other, first, soon)
    ]
    assert office.audit(action="operator.disabled") == [(who, "operator.disabled", {})] * 2


def test_of_many_who_revoke_each_other_one_operator_is_left(both_office: Office) -> None:
    office = both_office
    crowd = 8
    names = [f"operator-{number}" for number in range(crowd)]
    ids = [operator_token(office, name) for name in names]
    ready = threading.Barrier(crowd)

    def end(number: int) -> bool:
        ready.wait(PATIENCE_S)
        if number % 2:
            given = (
                office.co,
                OPERATOR,
                Role.OPERATOR,
                names[number],
                PrincipalPatch(disabled=True),
            )
            return is_kept(use.patch_principal, *given)
        given_id = (office.co, OPERATOR, Role.OPERATOR, names[number], ids[number])
        return is_kept(use.revoke_token, *given_id)

    with ThreadPoolExecutor(crowd) as pool:
        assert sum(pool.map(end, range(crowd))) == 1
    valid = office.store.read("valid", lambda tx: tx.tokens.any_valid(Role.OPERATOR, tx.now))
    assert valid


def test_the_coordinators_machine_lets_a_disabled_operator_in_again(office: Office) -> None:
    lost = use.bootstrap_operator(office.co, "grace")
    operator_token(office, "henry")
    use.patch_principal(office.co, OPERATOR, Role.OPERATOR, "grace", PrincipalPatch(disabled=True))
    assert "disabled" in refused(office, lost)
    assert use.authenticate(office.co, use.bootstrap_operator(office.co, "grace")).name == "grace"
    assert office.audit(action="operator.enabled") == [("coordinator", "operator.enabled", {})]


def test_a_refused_operator_is_told_who_issues_tokens(office: Office, clock: ManualClock) -> None:
    token = use.bootstrap_operator(office.co, "grace")
    clock.advance(400 * DAY)
    assert "fedclust-service operator-token" in refused(office, token)


def test_a_token_expires(office: Office, clock: ManualClock) -> None:
    token = issue(office, days=2)
    clock.advance(2 * DAY - 1)
    use.authenticate(office.co, token)
    clock.advance(1)
    assert "expired" in refused(office, token)


def test_a_disabled_site_is_refused_and_can_be_enabled(office: Office) -> None:
    token = issue(office)
    patch = use.patch_principal
    patch(office.co, OPERATOR, Role.SITE, "north", PrincipalPatch(disabled=True))
    assert "disabled" in refused(office, token)
    patch(office.co, OPERATOR, Role.SITE, "north", PrincipalPatch(disabled=False))
    assert use.authenticate(office.co, token).name == "north"


def test_a_typo_is_told_from_a_wrong_token(office: Office) -> None:
    token = issue(office)
    other = "A" if token[30] != "A" else "B"
    assert "copy it again" in refused(office, token[:30] + other + token[31:])
    assert "does not know" in refused(office, new_token(Role.SITE).reveal())


def test_a_known_id_with_another_secret_or_role_is_unknown(office: Office) -> None:
    token_id = use.authenticate(office.co, issue(office)).token_id
    for guess in (
        TokenText(Role.SITE, token_id, "x" * 43),
        TokenText(Role.OPERATOR, token_id, "x" * 43),
    ):
        assert "does not know" in refused(office, guess.reveal())


def test_keys_rotate_without_new_tokens(office: Office) -> None:
    token = issue(office)
    office.co.keys = SecretKeys([b"n" * 32, b"k" * 32])
    assert use.authenticate(office.co, token).name == "north"
    office.co.keys = SecretKeys([b"n" * 32])
    assert "does not know" in refused(office, token)


def test_use_is_recorded_at_most_once_a_minute(office: Office, clock: ManualClock) -> None:
    token = issue(office)

    def writes() -> int:
        found = office.store.metrics().get("token.touch")
        return found.calls if found else 0

    def written() -> bool:
        return not office.co.touching

    use.authenticate(office.co, token)
    eventually(written)
    clock.advance(59)
    use.authenticate(office.co, token)
    eventually(written)
    assert writes() == 1
    clock.advance(1)
    use.authenticate(office.co, token)
    eventually(written)
    assert writes() == 2
    info = use.get_principal(office.co, OPERATOR, Role.SITE, "north")
    assert info.last_seen_at == clock.now()
    assert info.tokens is not None
    assert info.tokens[0].last_used_at == clock.now()


def test_secrets_are_stored_as_hmac_only(office: Office) -> None:
    token = issue(office)
    row = office.store.read("test", lambda tx: tx.tokens.get(token.split("_")[1]))
    assert row is not None
    assert token.split("_")[2][:43] not in repr(row)
    assert len(row.secret_hmac) == 64


def test_the_first_operator_is_made_here_and_a_lost_token_replaced(office: Office) -> None:
    first = use.bootstrap_operator(office.co)
    second = use.bootstrap_operator(office.co)
    assert first != second
    for token in (first, second):
        assert use.authenticate(office.co, token).role is Role.OPERATOR


def test_creating_twice_is_one_site_and_another_title_is_refused(office: Office) -> None:
    body = PrincipalCreate(name="north", title="North Hospital")
    assert use.create_principal(office.co, OPERATOR, Role.SITE, body)[1]
    assert not use.create_principal(office.co, OPERATOR, Role.SITE, body)[1]
    with pytest.raises(Refusal) as caught:
        use.create_principal(office.co, OPERATOR, Role.SITE, PrincipalCreate(name="north"))
    assert caught.value.slug == "name-taken"


def test_lists_page_through_all_names(office: Office) -> None:
    office.register("c", "a", "b")
    seen, cursor = [], None
    while True:
        page = use.list_principals(office.co, ANALYST, Role.SITE, 2, cursor)
        seen += [each.name for each in page.items]
        assert all(each.tokens is None for each in page.items)
        cursor = page.next
        if cursor is None:
            break
    assert seen == ["a", "b", "c"]


def test_what_is_not_there_is_not_found(office: Office) -> None:
    office.register("north")
    for call in (
        lambda: use.get_principal(office.co, OPERATOR, Role.SITE, "nowhere"),
        lambda: use.issue_token(office.co, OPERATOR, Role.ANALYST, "north", TokenCreate()),
        lambda: use.revoke_token(office.co, OPERATOR, Role.SITE, "north", "unknown"),
    ):
        with pytest.raises(Refusal) as caught:
            call()
        assert caught.value.slug == "not-found"


def test_a_token_of_somebody_else_is_not_revoked_by_the_wrong_path(office: Office) -> None:
    token_id = use.authenticate(office.co, issue(office, "north")).token_id
    office.register("south")
    with pytest.raises(Refusal):
        use.revoke_token(office.co, OPERATOR, Role.SITE, "south", token_id)


def test_only_operators_register_and_issue(office: Office) -> None:
    office.register("north")
    for actor in (ANALYST, site("north")):
        with pytest.raises(Refusal) as caught:
            use.issue_token(office.co, actor, Role.SITE, "north", TokenCreate())
        assert caught.value.slug == "forbidden"
