"""How a cohort knows persons and values again without keeping either.

All of it is keyed with the site's own secret. Whoever has the secret and a guess of a person's id
or value can test the guess, so the store is as private as the site's rows are.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "column_seed",
    "fingerprints",
    "numbered_rows",
    "person_keys",
    "signatures",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.uint8]
WordArray = NDArray[np.uint64]
KeyArray = NDArray[Any]

#: Bits of a number that are left out, about four decimal digits: the mean of a person's rows may
#: differ in the last ones when the rows come in another order.
_LOST_BITS = 16
_MISSING = np.uint64(0x7FF8 << 48)


def person_keys(secret: bytes, ids: Iterable[str]) -> tuple[KeyArray, WordArray]:
    """Return each person's key, and the mask for the person's fingerprints, which is not kept.

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
    """Return what makes the fingerprints of one column differ from those of others."""
    digest = hmac.digest(secret, b"column " + name.encode(), "sha256")
    return np.uint64(int.from_bytes(digest[:8], "little"))


def fingerprints(values: FloatArray, masks: WordArray, seed: np.uint64) -> ByteArray:
    """Return a byte (n,) for each person's value: it differs for most other values."""
    mixed = _mix(_mix(_bits(values) ^ masks) ^ seed)
    return (mixed >> np.uint64(56)).astype(np.uint8)


def signatures(values: Sequence[FloatArray], seeds: Sequence[np.uint64]) -> WordArray:
    """Return a number (n,) for the values of each person in several columns together; never 0."""
    found = np.zeros(len(values[0]), dtype=np.uint64)
    for each, seed in zip(values, seeds, strict=True):
        found = _mix(found ^ _mix(_bits(each) ^ seed))
    return np.maximum(found, np.uint64(1))


def numbered_rows(found: WordArray, earlier: WordArray) -> list[str]:
    """Return ids for rows that have none: the signature, and which of its repeats the row is."""
    order = np.argsort(found, kind="stable")
    ranks = np.arange(len(found)) - np.searchsorted(found[order], found[order])
    earlier = np.sort(earlier)
    ranks += np.searchsorted(earlier, found[order], "right")
    ranks -= np.searchsorted(earlier, found[order], "left")
    number = np.empty(len(found), dtype=np.int64)
    number[order] = ranks
    return [f"{row:016x} {rank}" for row, rank in zip(found.tolist(), number.tolist(), strict=True)]


def _bits(values: FloatArray) -> WordArray:
    bits = (values + 0.0).view(np.uint64)  # + 0.0: minus zero is zero
    bits = np.where(np.isnan(values), _MISSING, bits)
    return np.asarray((bits + np.uint64(1 << (_LOST_BITS - 1))) >> np.uint64(_LOST_BITS))


def _mix(words: WordArray) -> WordArray:
    """Return words whose every bit depends on all bits (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
