"""Rule: a cohort recognises persons and values without storing either.

It stores hashes keyed with the site's own secret. Whoever has the secret can test a guess of an id
or a value, so the state is as confidential as the site's rows.
"""

import hmac
from collections.abc import Iterable

import numpy as np

from fedclust.numeric.array_types import ByteArray, FloatArray, KeyArray, WordArray

#: Bits of a number that are left out, about four decimal digits: the mean of a person's rows may
#: differ in the last ones if the rows come in another order.
_LOST_BITS = 16
_MISSING = np.uint64(0x7FF8 << 48)


def person_keys(secret: bytes, ids: Iterable[str]) -> tuple[KeyArray, WordArray]:
    """Return each person's key, and the mask for the person's fingerprints, which is not stored.

    Returns
    -------
    keys : (n,) bytes of length 16
        The first half of HMAC-SHA256 of the id.
    masks : (n,) uint64
        From the other half.
    """
    digests = b"".join(hmac.digest(secret, each.encode(), "sha256") for each in ids)
    raw = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)
    keys = np.ascontiguousarray(raw[:, :16]).view("S16").ravel()
    return keys, np.ascontiguousarray(raw[:, 16:24]).view("<u8").ravel().astype(np.uint64)


def row_ids(first: int, n: int) -> list[str]:
    """Return the ids of n rows without ids, from row number ``first`` on."""
    # No source has ids that begin with this character.
    return [f"\0{first + place}" for place in range(n)]


def column_seed(secret: bytes, name: str) -> np.uint64:
    """Return a seed by which equal values of two columns get different fingerprints."""
    digest = hmac.digest(secret, b"column " + name.encode(), "sha256")
    return np.uint64(int.from_bytes(digest[:8], "little"))


def fingerprints(values: FloatArray, masks: WordArray, seed: np.uint64) -> ByteArray:
    """Return a byte (n,) for each person's value; two values share it in 1 of 256 cases."""
    mixed = _mix(_mix(_value_bits(values) ^ masks) ^ seed)
    return (mixed >> np.uint64(56)).astype(np.uint8)


def _value_bits(values: FloatArray) -> WordArray:
    bits = (values + 0.0).view(np.uint64)  # + 0.0: minus zero is zero
    bits = np.where(np.isnan(values), _MISSING, bits)
    return np.asarray((bits + np.uint64(1 << (_LOST_BITS - 1))) >> np.uint64(_LOST_BITS))


def _mix(words: WordArray) -> WordArray:
    """Return words each bit of which depends on all bits (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
