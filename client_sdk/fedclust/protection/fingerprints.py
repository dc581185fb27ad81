"""Rule: a cohort recognises persons and values without storing either.

It stores hashes keyed with the site's own secret. Whoever has the secret can test a guess of an id
or a value, so the store is as confidential as the site's rows.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

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


def column_seed(secret: bytes, name: str) -> np.uint64:
    """Return a seed by which equal values of two columns get different fingerprints."""
    digest = hmac.digest(secret, b"column " + name.encode(), "sha256")
    return np.uint64(int.from_bytes(digest[:8], "little"))


def fingerprints(values: FloatArray, masks: WordArray, seed: np.uint64) -> ByteArray:
    """Return a byte (n,) for each person's value; two values share it in 1 of 256 cases."""
    mixed = _mix(_mix(_value_bits(values) ^ masks) ^ seed)
    return (mixed >> np.uint64(56)).astype(np.uint8)


def signatures(values: Sequence[FloatArray], seeds: Sequence[np.uint64]) -> WordArray:
    """Return a hash (n,) of each person's values in several columns together; never 0."""
    found = np.zeros(len(values[0]), dtype=np.uint64)
    for each, seed in zip(values, seeds, strict=True):
        found = _mix(found ^ _mix(_value_bits(each) ^ seed))
    return np.maximum(found, np.uint64(1))


class RowIds:
    """Makes ids for rows without any: a row's signature, and how many equal rows came before."""

    def __init__(self) -> None:
        self._earlier = np.zeros(0, dtype=np.uint64)

    def of(self, signed: WordArray) -> list[str]:
        """Return the ids of the next rows, given their signatures (n,)."""
        order = np.argsort(signed, kind="stable")
        ordered = signed[order]
        ranks = np.arange(len(signed)) - np.searchsorted(ordered, ordered)
        ranks += np.searchsorted(self._earlier, ordered, "right")
        ranks -= np.searchsorted(self._earlier, ordered, "left")
        repeats = np.empty(len(signed), dtype=np.int64)
        repeats[order] = ranks
        self._earlier = np.sort(np.concatenate([self._earlier, signed]))
        pairs = zip(signed.tolist(), repeats.tolist(), strict=True)
        return [f"{signature:016x} {repeat}" for signature, repeat in pairs]


def _value_bits(values: FloatArray) -> WordArray:
    bits = (values + 0.0).view(np.uint64)  # + 0.0: minus zero is zero
    bits = np.where(np.isnan(values), _MISSING, bits)
    return np.asarray((bits + np.uint64(1 << (_LOST_BITS - 1))) >> np.uint64(_LOST_BITS))


def _mix(words: WordArray) -> WordArray:
    """Return words each bit of which depends on all bits (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
