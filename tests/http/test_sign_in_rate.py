"""The limit on failed attempts to sign in."""

from types import SimpleNamespace

import pytest

from fedclust_service.domain.access import Refusal
from fedclust_service.http import sign_in
from fedclust_service.http.sign_in import SignInRate

SECONDS = 300


def wait_of(rate: SignInRate, address: str, token_id: str = "") -> int | None:
    """Return how long a token has to wait at an address, None if it may try."""
    try:
        rate.check(address, token_id)
    except Refusal as refusal:
        return refusal.retry_after_s if refusal.status == 429 else -1
    return None


def test_an_address_waits_after_ten_failures_in_five_minutes() -> None:
    watch = SimpleNamespace(seconds=0.0)
    rate = SignInRate(lambda: watch.seconds)
    for second in range(10):
        watch.seconds = second
        assert wait_of(rate, "192.0.2.1") is None
        rate.failed("192.0.2.1", "")
    assert wait_of(rate, "192.0.2.1") == SECONDS - 9 + 1
    assert wait_of(rate, "192.0.2.1", "north") is None
    assert wait_of(rate, "192.0.2.2") is None
    watch.seconds = SECONDS - 0.1
    assert wait_of(rate, "192.0.2.1") == 1
    # The oldest failure no longer counts: one attempt, then the second oldest does.
    watch.seconds = SECONDS
    assert wait_of(rate, "192.0.2.1") is None
    rate.failed("192.0.2.1", "")
    assert wait_of(rate, "192.0.2.1") == 2


@pytest.mark.parametrize(
    ("address", "other", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "testclient", False),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, other: str, together: bool) -> None:
    rate = SignInRate(lambda: 0.0)
    for _ in range(10):
        rate.failed(address, "")
    assert wait_of(rate, address) == SECONDS + 1
    assert (wait_of(rate, other) is not None) is together


def test_only_so_many_counts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in, "_COUNTS", 3)
    rate = SignInRate(lambda: 0.0)
    for _ in range(10):
        rate.failed("192.0.2.1", "")
    for last in (2, 3, 1, 4, 5):  # 1 is seen again in between
        rate.failed(f"192.0.2.{last}", "")
    assert len(rate._failed) == 3
    assert wait_of(rate, "192.0.2.1") is not None
    rate.failed("192.0.2.6", "")
    rate.failed("192.0.2.7", "")
    rate.failed("192.0.2.8", "")
    assert wait_of(rate, "192.0.2.1") is None
