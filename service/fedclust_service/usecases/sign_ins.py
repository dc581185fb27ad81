"""Signing in: a browser exchanges a token for a cookie, and shows that with every request.

A sign-in ends when its holder signs out, after a time without use, a time after it was made, and
with its token: revoked, expired, or its principal disabled.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from fedclust_service.domain.access import Actor, Principal, Refusal, Token
from fedclust_service.domain.tokens import SignIn, TokenText, new_token, parse_token
from fedclust_service.store import Tx
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.principals import authenticate, check_valid, record_use, touch_token
from fedclust_service.usecases.unit_of_work import COORDINATOR, UnitOfWork, commit

#: The most open sign-ins of a principal; a further one ends the oldest. Each has a budget of open
#: requests of its own, so with more of them one token could take all connections.
MOST_OPEN = 32


@dataclass(frozen=True)
class SignedIn:
    """Who shows a cookie, and how long it is good for.

    ``csrf`` is what its forms must contain. Unless it is used, the sign-in ends at ``idle_until``;
    in any case at ``ends_at``.
    """

    actor: Actor
    id: str
    csrf: str = field(repr=False)
    created_at: datetime
    idle_until: datetime
    ends_at: datetime

    def sent_form(self, csrf: str) -> bool:
        """Whether ``csrf`` comes from one of its own forms, in constant time."""
        return hmac.compare_digest(csrf.encode(), self.csrf.encode())


def known_token(co: Coordinator, token: str) -> str:
    """Return the id that a token names, even with a wrong secret; empty if no token has it."""
    text = parse_token(token)
    if text is None:
        return ""
    found = co.store.read("token.named", lambda tx: tx.tokens.get(text.id))
    return "" if found is None else text.id


def sign_in(co: Coordinator, token: str) -> tuple[str, SignedIn]:
    """Exchange a token for a cookie: return its text and who signed in.

    Refusal ``unauthenticated`` for a token that `authenticate` refuses.
    """
    actor = replace(authenticate(co, token), via="page")
    cookie = new_token(None)

    def work(uow: UnitOfWork) -> SignIn:
        ends_at = uow.now + timedelta(seconds=co.limits.sign_in_s)
        new = SignIn(cookie.id, actor.token_id, co.keys.sign(cookie), uow.now, uow.now, ends_at)
        for oldest in _open(co, uow.tx, actor, uow.now)[MOST_OPEN - 1 :]:
            uow.tx.sign_ins.end(oldest.id, uow.now)
        uow.tx.sign_ins.add(new)
        uow.audit(actor, "sign_in.created", actor.key, token_id=actor.token_id)
        return new

    return cookie.reveal(), _signed_in(co, cookie, commit(co, "sign_in", work), actor)


def signed_in(co: Coordinator, cookie: str, *, used: bool = True) -> SignedIn:
    """Return who shows a cookie; Refusal ``unauthenticated``.

    ``used``: whether this counts as use of the sign-in, which then stays open longer.
    """
    text, now = _parsed(cookie), co.clock.now()
    found = co.store.read("sign_in.check", lambda tx: tx.sign_ins.with_owner(text.id))
    row, token, principal = _valid(co, text, found, now)
    if not used:
        return _signed_in(co, text, row, _actor(token, principal))

    def write(uow: UnitOfWork) -> None:
        uow.tx.sign_ins.touch_used(row.id, now)
        touch_token(uow, token, principal, now)

    # An id of a token has no space.
    record_use(co, f"sign-in {row.id}", row.last_used_at, now, write)
    return _signed_in(co, text, replace(row, last_used_at=now), _actor(token, principal))


def sign_out(co: Coordinator, cookie: str) -> None:
    """End the sign-in of a cookie. Idempotent; a cookie that nobody knows is no error."""
    text = parse_token(cookie, cookie=True)
    if text is None:
        return

    def work(uow: UnitOfWork) -> None:
        found = uow.tx.sign_ins.with_owner(text.id)
        if found is None or not co.keys.verify(text, found[0].secret_hmac):
            return
        row, token, principal = found
        if uow.tx.sign_ins.end(row.id, uow.now):
            uow.audit(
                _actor(token, principal), "sign_in.ended", principal.key, token_id=row.token_id
            )

    commit(co, "sign_out", work)


def sign_out_everywhere(co: Coordinator, signed: SignedIn) -> int:
    """End all sign-ins of a principal, of all its tokens; return how many were open."""
    actor = signed.actor

    def work(uow: UnitOfWork) -> int:
        # All end, even those without recent use: a longer idle time would open them again.
        count = len(_open(co, uow.tx, actor, uow.now))
        uow.tx.sign_ins.end_all(actor.role, actor.name, uow.now)
        uow.audit(actor, "sign_in.all_ended", actor.key, count=count)
        return count

    return commit(co, "sign_out.everywhere", work)


def end_every(co: Coordinator) -> None:
    """End the sign-ins of all principals, as after a restore: it opens again what was ended."""

    def work(uow: UnitOfWork) -> None:
        count = uow.tx.sign_ins.end_every(uow.now)
        if count:
            uow.audit(COORDINATOR, "sign_in.all_ended", "database", count=count)

    commit(co, "sign_out.every", work)


def list_sign_ins(co: Coordinator, actor: Actor) -> Sequence[SignIn]:
    """Return the actor's own open sign-ins, newest first."""
    now = co.clock.now()
    return co.store.read("sign_in.list", lambda tx: _open(co, tx, actor, now))


def _open(co: Coordinator, tx: Tx, actor: Actor, now: datetime) -> Sequence[SignIn]:
    used_after = now - timedelta(seconds=co.limits.sign_in_idle_s)
    return tx.sign_ins.open(actor.role, actor.name, now, used_after)


def _parsed(cookie: str) -> TokenText:
    text = parse_token(cookie, cookie=True)
    if text is None:
        raise _unknown()
    return text


def _valid(
    co: Coordinator,
    text: TokenText,
    found: tuple[SignIn, Token, Principal] | None,
    now: datetime,
) -> tuple[SignIn, Token, Principal]:
    if found is None or not co.keys.verify(text, found[0].secret_hmac):
        raise _unknown()
    row, token, principal = found
    if row.ended_at is not None:
        raise Refusal("unauthenticated", "You have been signed out. Sign in again with your token.")
    check_valid(token, principal, now)
    if row.ends_at <= now:
        hours = (row.ends_at - row.created_at) / timedelta(hours=1)
        raise Refusal(
            "unauthenticated",
            f"You signed in {hours:g} hours ago or more. Sign in again with your token.",
        )
    if _idle_until(co, row) <= now:
        minutes = co.limits.sign_in_idle_s / 60
        raise Refusal(
            "unauthenticated",
            f"You did nothing here for {minutes:g} minutes. Sign in again with your token.",
        )
    return found


def _unknown() -> Refusal:
    return Refusal("unauthenticated", "You are not signed in. Sign in with your token.")


def _idle_until(co: Coordinator, row: SignIn) -> datetime:
    return row.last_used_at + timedelta(seconds=co.limits.sign_in_idle_s)


def _actor(token: Token, principal: Principal) -> Actor:
    return Actor(principal.role, principal.name, token.id, token.expires_at, via="page")


def _signed_in(co: Coordinator, text: TokenText, row: SignIn, actor: Actor) -> SignedIn:
    ends_at = min(row.ends_at, actor.expires_at)
    return SignedIn(
        actor=replace(actor, expires_at=ends_at),
        id=row.id,
        csrf=text.csrf,
        created_at=row.created_at,
        idle_until=min(_idle_until(co, row), ends_at),
        ends_at=ends_at,
    )
