"""Registering, tokens, and who a token speaks for."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from fedclust.wire.models import PrincipalCreate, PrincipalPatch
from fedclust_service.domain.access import Refusal, Role
from fedclust_service.domain.tokens import TokenText, new_token
from fedclust_service.usecases import principals as use
from support.clock import ManualClock
from support.timeouts import eventually
from usecases.direct_api import ANALYST, OPERATOR, DirectApi, at_once, paged, refusal, site

DAY = 86_400


def issue(direct: DirectApi, name: str = "north", days: int = 365) -> str:
    return direct.issue(Role.SITE, name, days).token


def refused(direct: DirectApi, token: str) -> str:
    found = refusal(use.authenticate, direct.co, token)
    assert found.slug == "unauthenticated"
    assert token not in found.detail
    return found.detail


def test_an_address_is_seen_by_operators_and_its_owner_alone(direct: DirectApi) -> None:
    email = "it@north.example"
    body = PrincipalCreate(name="north", title="North", email=email)
    made, created = use.create_principal(direct.co, OPERATOR, Role.SITE, body)
    assert (made.email, created) == (email, True)
    assert use.create_principal(direct.co, OPERATOR, Role.SITE, body) == (made, False)
    without = PrincipalCreate(name="north", title="North")
    assert use.create_principal(direct.co, OPERATOR, Role.SITE, without)[1] is False
    other = PrincipalCreate(name="north", title="North", email="other@north.example")
    assert "PATCH" in refusal(use.create_principal, direct.co, OPERATOR, Role.SITE, other).detail
    assert use.get_principal(direct.co, ANALYST, Role.SITE, "north").email is None
    assert use.list_principals(direct.co, ANALYST, Role.SITE).items[0].email is None
    assert use.whoami(direct.co, site("north")).email == email

    def patch(**changes: str) -> str | None:
        new = PrincipalPatch(**changes)
        return use.patch_principal(direct.co, OPERATOR, Role.SITE, "north", new).email

    for _ in range(2):  # the second changes nothing
        assert patch(title="The North") == email
    assert len(direct.audit(action="site.titled")) == 1
    assert patch(email="new@north.example") == "new@north.example"
    assert patch(email="") is None
    assert use.whoami(direct.co, site("north")).email is None
    # The trail says that it changed, without the address.
    assert [details for _, _, details in direct.audit(action="site.addressed")] == [{}, {}]


@pytest.mark.parametrize(
    "email",
    [
        "it@north.example\nBcc: all@x.example",
        "it@north.example\r",
        "it north@x.example",
        "North <it@north.example>",
        "a@x.example,b@x.example",
        '"it"@x.example',
        "it@x.example.",
        ".it@x.example",
        "it@-x.example",
        "it@",
        "@x.example",
        "it@" + "x" * 255,
        "ü@x.example",
    ],
)
def test_what_is_no_address_is_refused(email: str) -> None:
    with pytest.raises(ValidationError):
        PrincipalCreate(name="north", email=email)
    with pytest.raises(ValidationError):
        PrincipalPatch(email=email)


def operator_token(direct: DirectApi, name: str, days: int = 365) -> str:
    """Return the id of a new token of an operator."""
    return direct.issue(Role.OPERATOR, name, days).id


def is_kept(call: Callable[..., object], *given: object) -> bool:
    """Say whether a call is refused because no operator token would be left."""
    try:
        call(*given)
    except Refusal as refusal:
        if refusal.slug != "last-operator-token":
            raise
        return "fedclust-service operator-token" in refusal.detail
    return False


def test_the_last_valid_operator_token_stays(both: DirectApi, clock: ManualClock) -> None:
    co, role = both.co, Role.OPERATOR
    first, second = operator_token(both, "grace"), operator_token(both, "grace")
    soon, other = operator_token(both, "grace", 1), operator_token(both, "henry")
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
    again = operator_token(both, "henry")
    assert is_kept(use.revoke_token, co, OPERATOR, role, "grace", second), "henry is disabled"
    use.patch_principal(co, OPERATOR, role, "henry", PrincipalPatch(disabled=False))
    assert not is_kept(use.patch_principal, co, OPERATOR, role, "grace", disable)
    assert is_kept(use.revoke_token, co, OPERATOR, role, "henry", again)
    who = OPERATOR.key
    assert both.audit(action="token.revoked") == [
        (who, "token.revoked", {"token_id": token_id}) for token_id in (other, first, soon)
    ]
    assert both.audit(action="operator.disabled") == [(who, "operator.disabled", {})] * 2


def test_of_many_who_revoke_each_other_one_operator_is_left(both: DirectApi) -> None:
    names = [f"operator-{number}" for number in range(8)]
    ids = [operator_token(both, name) for name in names]

    def end(number: int) -> bool:
        whom = (both.co, OPERATOR, Role.OPERATOR, names[number])
        if number % 2:
            return is_kept(use.patch_principal, *whom, PrincipalPatch(disabled=True))
        return is_kept(use.revoke_token, *whom, ids[number])

    assert sum(at_once(end, range(8))) == 1
    valid = both.store.read("valid", lambda tx: tx.tokens.any_valid(Role.OPERATOR, tx.now))
    assert valid


def test_the_coordinators_machine_lets_a_disabled_operator_in_again(direct: DirectApi) -> None:
    lost = use.bootstrap_operator(direct.co, "grace")
    operator_token(direct, "henry")
    use.patch_principal(direct.co, OPERATOR, Role.OPERATOR, "grace", PrincipalPatch(disabled=True))
    assert "disabled" in refused(direct, lost)
    assert use.authenticate(direct.co, use.bootstrap_operator(direct.co, "grace")).name == "grace"
    assert direct.audit(action="operator.enabled") == [("coordinator", "operator.enabled", {})]


def test_a_refused_token_is_told_why(direct: DirectApi, clock: ManualClock) -> None:
    token, short = issue(direct), issue(direct, days=2)
    operator, revoked = use.bootstrap_operator(direct.co, "grace"), issue(direct)
    for _ in range(2):
        use.revoke_token(direct.co, OPERATOR, Role.SITE, "north", revoked.split("_")[1])
    assert "revoked" in refused(direct, revoked)
    assert len(direct.audit(action="token.revoked")) == 1
    token_id, other = token.split("_")[1], "A" if token[30] != "A" else "B"
    unknown = (TokenText(role, token_id, "x" * 43).reveal() for role in (Role.SITE, Role.OPERATOR))
    assert "copy it again" in refused(direct, token[:30] + other + token[31:])
    for guess in (new_token(Role.SITE).reveal(), *unknown):
        assert "does not know" in refused(direct, guess)
    for disabled in (True, False):
        patch = PrincipalPatch(disabled=disabled)
        use.patch_principal(direct.co, OPERATOR, Role.SITE, "north", patch)
        if disabled:
            assert "disabled" in refused(direct, token)
    clock.advance(2 * DAY - 1)
    assert use.authenticate(direct.co, short).name == "north"
    clock.advance(1)
    assert "expired" in refused(direct, short)
    clock.advance(400 * DAY)
    assert "fedclust-service operator-token" in refused(direct, operator)


def test_use_is_recorded_at_most_once_a_minute(direct: DirectApi, clock: ManualClock) -> None:
    token = issue(direct)
    for seconds, recorded in ((0, 1), (59, 1), (1, 2)):
        clock.advance(seconds)
        use.authenticate(direct.co, token)
        eventually(lambda: not direct.co.touching)
        assert direct.calls("token.touch") == recorded
    info = use.get_principal(direct.co, OPERATOR, Role.SITE, "north")
    assert info.last_seen_at == clock.now()
    assert info.tokens[0].last_used_at == clock.now()


def test_secrets_are_stored_as_hmac_only_and_revoked_by_their_owners(direct: DirectApi) -> None:
    token = issue(direct)
    row = direct.store.read("test", lambda tx: tx.tokens.get(token.split("_")[1]))
    assert token.split("_")[2][:43] not in repr(row)
    assert len(row.secret_hmac) == 64
    direct.register("south")
    listed = use.list_principals(direct.co, OPERATOR, Role.SITE).items
    found = {each.name: [token.id for token in each.tokens or ()] for each in listed}
    assert found == {"north": [row.id], "south": []}
    refusal(use.revoke_token, direct.co, OPERATOR, Role.SITE, "south", row.id)


def test_lists_page_through_all_names_in_the_order_of_bytes(both: DirectApi) -> None:
    # A language-aware collation ignores the hyphen and puts a-z behind aa.
    names = ["a", "a-z", "a0", "aa", "b", "z-1", "z0", "zz"]
    both.register(*reversed(names))
    use.create_principal(both.co, OPERATOR, Role.ANALYST, PrincipalCreate(name="ab"))
    seen = paged(use.list_principals, both.co, ANALYST, Role.SITE, limit=3)
    assert [(each.name, each.tokens) for each in seen] == [(name, None) for name in names]
