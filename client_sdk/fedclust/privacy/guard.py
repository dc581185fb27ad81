"""The differencing guard: what may be sent, given all that was sent before (rules 2 and 3).

Whoever keeps a session's payloads can subtract them: a cell of one round from the same cell of
the next, cells from totals. The guard sees to it that no such difference is made of fewer than p
persons. It looks at sets of rows only; sums, counts and costs are computed afterwards, from the
partition it gives back.

It goes further than the rule as written in four places. Unions of sets are compared as well
(``cuts``): with four cells or more, a row that moves alone can hide among larger moves in the
difference of every single cell and still stand alone in that of two cells together. All sums of
the session are looked at together (``spans``): three payloads or thirty can be combined so that
all rows but one cancel. A candidate's first partition is measured against the most similar one of
the session, so that being a few rows away from it does not cost whole cells. And where rows would
be withheld, sending the last partition again is weighed against it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.privacy.counting import BoolVector, Labels, PersonIndex, stretches
from fedclust.privacy.cuts import Overlaps
from fedclust.privacy.drafting import Draft
from fedclust.privacy.shares import Shares

__all__ = ["Guard"]

Flags = NDArray[np.bool_]

_MOST_CELLS: Final = 32_000
_FORMAT: Final = 2


class Guard:
    """Decides which partition of a site's rows may be sent for a task.

    Parameters
    ----------
    index : PersonIndex
        Counts persons in sets of the site's rows.
    p : int
        Smallest number of persons.
    views : sequence of (n,) bool
        Row sets that single features' sums concern, where values are imputed: every rule holds
        within each of them as well. See ``counting.distinct_views``.
    memory : dict, optional
        What :meth:`memory` gave after the session's last answer. None or empty: nothing was sent.
    differencing : bool
        False: only sizes and complement are looked at, not what was sent before.

    Raises
    ------
    ValueError
        If ``memory`` was made for other rows, or a view holds 1 to p - 1 persons.
    """

    def __init__(
        self,
        index: PersonIndex,
        p: int,
        *,
        views: Sequence[BoolVector] = (),
        memory: dict[str, Any] | None = None,
        differencing: bool = True,
    ) -> None:
        if not all(index.allows(view, p) for view in views):
            raise ValueError(f"a feature observed in fewer than {p} persons may not be sent at all")
        self._index = index
        self._p = p
        self._views = tuple(views)
        # With p = 1 every set may be sent, and so may every difference.
        self._differencing = differencing and p > 1
        #: Partitions: 0 is the rest, 1 + c cell c; one byte a row where there are few cells.
        self._sent: list[Labels] = []
        self._packed: list[bytes] = []
        #: Of each, and of all before it.
        self._digests: list[bytes] = []
        self._cells: list[int] = []
        #: Which shares of yes/no features were rounded, (K, b) each, in bits; empty where no
        #: share of a partition was sent.
        self._rounded: list[bytes] = []
        #: The partition released last, where it is one of those remembered.
        self._place: int | None = None
        self._last: dict[str, int] = {}
        #: Whether, at the last release, so much had been sent in the session that nothing new can
        #: be judged: sets are sent as they were before, or not at all.
        self.exhausted = False
        if memory:
            self._recall(memory)

    def release(self, labels: Labels, n_cells: int, candidate: str = "0") -> Labels:
        """Return the partition to send in place of the one that is wanted, and remember it.

        Parameters
        ----------
        labels : (n,) int
            Wanted cell of each row, 0 to ``n_cells`` - 1; -1 for rows wanted in none.
        n_cells : int
        candidate : str
            Whose partition it is. A cell number means the same cell in every partition of one
            candidate: phases that number their cells differently take different names.

        Returns
        -------
        (n,) int
            Cell of each row, of the same type; -1 for the rest, which may not be sent in any form.

        Raises
        ------
        ValueError
            If ``labels`` has another length or holds other numbers, or there are too many cells.
        """
        if not 0 <= n_cells <= _MOST_CELLS:
            raise ValueError(f"a partition has at most {_MOST_CELLS} cells")
        wanted = np.asarray(labels)
        if wanted.shape != (self._index.n,):
            raise ValueError("one cell number is needed for each row")
        if wanted.min(initial=0) < -1 or wanted.max(initial=-1) >= n_cells:
            raise ValueError("cell numbers run from 0 to n_cells - 1; -1 is the rest")
        draft = Draft(
            self._index,
            self._p,
            self._views,
            self._sent if self._differencing else (),
            self._digests if self._differencing else (),
            wanted.astype(np.int16, copy=False),
            n_cells,
            self._last_of(candidate, n_cells),
        )
        released = draft.settled().astype(wanted.dtype, copy=False)
        self.exhausted = draft.exhausted
        if self._differencing:
            self._remember(released, n_cells, candidate)
        return released

    def round_shares(self, shares: Shares, released: Labels, n_cells: int) -> Flags:
        """Return which shares (K, b) of the partition released last go rounded, and remember it.

        A partition that is sent again, under whatever numbers of its cells, tells nothing new:
        the same shares of it are rounded as before.
        """
        if self._place is None:
            return shares.to_round(released, n_cells)
        rounded = self._rounded_before(shares, released, n_cells)
        if rounded is None:
            before = [
                (_labels(sets), self._flags(place, shares.n_features))
                for place, sets in enumerate(self._sent)
                if self._rounded[place] and shares.n_features
            ]
            rounded = shares.to_round(released, n_cells, before)
        self._rounded[self._place] = np.packbits(rounded).tobytes()
        return rounded

    def _rounded_before(self, shares: Shares, released: Labels, n_cells: int) -> Flags | None:
        if not shares.n_features:
            return None
        for place, sets in enumerate(self._sent):
            if not self._rounded[place]:
                continue
            pairs = Overlaps(released + 1, sets)
            alike = np.unique(pairs.first).size == np.unique(pairs.second).size == pairs.rows.size
            if alike and ((pairs.first == 0) == (pairs.second == 0)).all():
                cells = pairs.first > 0
                rounded = np.zeros((n_cells, shares.n_features), dtype=np.bool_)
                flags = self._flags(place, shares.n_features)
                rounded[pairs.first[cells] - 1] = flags[pairs.second[cells] - 1]
                return rounded
        return None

    def _flags(self, place: int, n_features: int) -> Flags:
        shape = (self._cells[place], n_features)
        bits = np.frombuffer(self._rounded[place], dtype=np.uint8)
        return np.unpackbits(bits, count=shape[0] * shape[1]).reshape(shape).astype(np.bool_)

    def memory(self) -> dict[str, Any]:
        """Return what was sent so far, as a tree for the site's journal. Never leaves the site."""
        return {
            "format": _FORMAT,
            "rows": self._index.n,
            "cells": np.array(self._cells, dtype=np.int64),
            "partitions": tuple(self._packed),
            "rounded": tuple(self._rounded),
            "last": dict(self._last),
        }

    def _last_of(self, candidate: str, n_cells: int) -> NDArray[np.int16] | None:
        place = self._last.get(candidate)
        if not self._differencing or place is None or self._cells[place] != n_cells:
            return None
        return _labels(self._sent[place])

    def _remember(self, released: Labels, n_cells: int, candidate: str) -> None:
        self._place = None
        # All rows in the rest: nothing was sent, and the total counts as sent in any case.
        if not (released >= 0).any():
            return
        sets = self._index.room(_kind(n_cells))
        np.add(released, 1, out=sets, casting="unsafe")
        for place, earlier in enumerate(self._sent):
            if self._cells[place] == n_cells and np.array_equal(earlier, sets):
                self._last[candidate] = self._place = place
                return
        self._packed.append(_pack(sets, self._sent[-1] if self._sent else None))
        self._cells.append(n_cells)
        self._rounded.append(b"")
        self._take(sets)
        self._last[candidate] = self._place = len(self._sent) - 1

    def _recall(self, memory: dict[str, Any]) -> None:
        if memory.get("format") != _FORMAT or memory.get("rows") != self._index.n:
            raise _foreign()
        self._cells = [int(cells) for cells in memory["cells"]]
        for packed, cells in zip(memory["partitions"], self._cells, strict=True):
            self._packed.append(packed)
            known = self._index.sent.get(self._digest())
            if known is None:
                known = self._index.room(_kind(cells))
                _unpack(packed, known, self._sent[-1] if self._sent else None)
            self._take(known)
        self._rounded = [bytes(flags) for flags in memory["rounded"]]
        self._last = {str(name): int(place) for name, place in memory["last"].items()}
        # Those of this session alone: rows may serve another.
        self._index.sent = dict(zip(self._digests, self._sent, strict=True))

    def _digest(self) -> bytes:
        """Return the digest of the partition packed last and of all before it."""
        before = self._digests[-1] if self._digests else b""
        return hashlib.blake2b(before + self._packed[-1]).digest()

    def _take(self, sets: Labels) -> None:
        self._digests.append(self._digest())
        self._sent.append(sets)
        self._index.sent[self._digests[-1]] = sets


def _kind(n_cells: int) -> type[np.generic]:
    return np.uint8 if n_cells < 255 else np.int16


def _labels(sets: Labels) -> NDArray[np.int16]:
    """Return sets (n,) as cell numbers, -1 for the rest."""
    return sets.astype(np.int16) - np.int16(1)


def _pack(sets: Labels, before: Labels | None) -> bytes:
    """Deflate what changed since the partition before: after a few rounds, next to nothing."""
    deflate = zlib.compressobj(1)
    packed = []
    for part in stretches(len(sets)):
        changes = _labels(sets[part])
        if before is not None:
            changes ^= _labels(before[part])
        packed.append(deflate.compress(changes.astype("<i2").tobytes()))
    return b"".join([*packed, deflate.flush()])


def _unpack(packed: bytes, out: Labels, before: Labels | None) -> None:
    """Write the sets (n,) that :func:`_pack` packed to ``out``."""
    inflate = zlib.decompressobj()
    waiting, data = b"", packed
    for part in stretches(len(out)):
        size = 2 * (part.stop - part.start)
        while len(waiting) < size:
            more = inflate.decompress(data, size - len(waiting))
            data = inflate.unconsumed_tail
            if not more and not data:
                raise _foreign()
            waiting += more
        changes = np.frombuffer(waiting[:size], dtype="<i2").astype(np.int16)
        waiting = waiting[size:]
        if before is not None:
            changes ^= _labels(before[part])
        out[part] = changes + 1
    if waiting or inflate.decompress(data, 1):
        raise _foreign()


def _foreign() -> ValueError:
    return ValueError("the session's disclosure memory belongs to other rows")
