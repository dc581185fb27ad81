"""Tokens: their form, their checksum, their HMAC under several keys."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust_service.domain.access import Role
from fedclust_service.domain.tokens import SecretKeys, TokenText, new_token, parse_token

OLD, NEW, OTHER = (secrets.token_bytes(32) for _ in range(3))


@pytest.mark.parametrize(
    ("role", "prefix"), [(Role.SITE, "fcs_"), (Role.ANALYST, "fca_"), (Role.OPERATOR, "fco_")]
)
def test_a_token_names_its_role_reads_back_and_is_unlike_any_other(role: Role, prefix: str) -> None:
    token = new_token(role)
    text = token.reveal()
    assert text.startswith(prefix)
    assert parse_token(text) == token
    # Two tokens share nothing.
    other = new_token(role)
    assert token.id != other.id
    assert token.secret != other.secret


def test_a_cookie_is_no_token_and_a_token_no_cookie() -> None:
    cookie, token = new_token(None), new_token(Role.SITE)
    assert parse_token(cookie.reveal(), cookie=True) == cookie
    assert parse_token(cookie.reveal()) is None
    assert parse_token(token.reveal(), cookie=True) is None


@given(position=st.integers(0, 65), letter=st.sampled_from("0Aa_z~ é"))
def test_one_wrong_letter_is_not_a_token(position: int, letter: str) -> None:
    text = TokenText(Role.SITE, "0123456789ab", "s" * 43).reveal()
    changed = text[:position] + letter + text[position + 1 :]
    if changed == text:
        return
    assert parse_token(changed) is None


@pytest.mark.parametrize("cut", [0, 1, 10, 64])
def test_a_cut_or_padded_token_is_not_one(cut: int) -> None:
    text = new_token(Role.ANALYST).reveal()
    for changed in (text[:cut], text + " ", text + "\n", " " + text, text[cut + 1 :]):
        assert parse_token(changed) is None


def test_the_secret_is_in_no_repr() -> None:
    token = new_token(Role.SITE)
    assert token.secret not in repr(token)
    keys = SecretKeys([OLD])
    assert OLD.hex() not in repr(keys)
    assert repr(OLD) not in repr(keys)


def test_the_first_key_signs_and_all_verify() -> None:
    token = new_token(Role.SITE)
    before = SecretKeys([OLD]).sign(token)
    rotated = SecretKeys([NEW, OLD])
    assert rotated.verify(token, before)
    assert rotated.sign(token) != before
    assert SecretKeys([NEW]).verify(token, rotated.sign(token))
    assert not SecretKeys([OTHER]).verify(token, before)


def test_the_hmac_covers_role_id_and_secret() -> None:
    keys = SecretKeys([OLD])
    token = new_token(Role.SITE)
    stored = keys.sign(token)
    others = [
        TokenText(Role.OPERATOR, token.id, token.secret),
        TokenText(Role.SITE, token.id[::-1] + "x", token.secret),
        TokenText(Role.SITE, token.id, token.secret[:-1] + "~"),
    ]
    assert not any(keys.verify(other, stored) for other in others)
