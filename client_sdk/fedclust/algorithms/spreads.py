"""Which spreads of a session may be told beside one another.

Where all rows of a set but those of fewer than p persons have one value of a column, the set's
count, mean and sum of squared deviations (M2) are equations enough for the others' value: its M2 is
held back. Holding back that number alone does not do it, for sums of squares add up. What the total
leaves when the other sets are taken off, what a set of another partition leaves when the part of it
that is told is taken off, and what a set's cost leaves when its other columns are, would be the
number that was held back.

So it is hidden behind another: of rows a in the set and rows b outside it, and of two columns, no
set is told that holds the one and not the other. One can then add to the squares of a in the first
column, and of b in the second, what one takes off b in the first and a in the second: totals, costs
and all that is told stay what they are, and the number is any that one likes. The rows a and b are
*atoms*, those that are together in every partition of the session whose spreads were told.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Memory, RunConfig, SiteData
from fedclust.algorithms.releasing import index_of
from fedclust.algorithms.spaces import binary_columns
from fedclust.privacy.counting import PersonIndex

__all__ = ["NAME", "few_differ", "tellable"]

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: The place of what was told in a site's memory.
NAME = "spreads"
#: With so many different values among these first rows, too many differ for one to be told.
_FIRST = 1_024
#: The price of breaking what hides something: more than all rows in all columns.
_BROKEN = 1e12
#: Atoms of a set that are tried, the largest first.
_MOST_TRIED = 64


def few_differ(values: FloatArray, rows: IntArray, index: PersonIndex, p: int) -> bool:
    """Return whether too few of some rows (m,), by number, have another than the usual value.

    ``values`` (m,) are theirs.
    """
    distinct, of, counts = np.unique(values, return_inverse=True, return_counts=True)
    usual = rows[of == counts.argmax()]
    if len(distinct) > 2 and not index.reaches(usual, p):
        return False
    others = rows[of != counts.argmax()]
    return not (index.allows(others, p) and index.allows(usual, p))


def tellable(
    data: SiteData,
    labels: IntArray,
    counts: IntArray,
    config: RunConfig,
    memory: Memory,
) -> tuple[BoolArray, Memory]:
    """Return which M2 (K, d) of a partition may be told, and the memory that records them.

    Those of yes/no columns follow from their shares, and those of empty sets are 0: they may.

    Parameters
    ----------
    data : SiteData
    labels : (n,) int64
        The set of each row; -1 for the rest, of which nothing is told.
    counts : (K,) int64
        Rows of each set.
    config : RunConfig
    memory : dict
        The session's memory at this site.
    """
    numeric = np.asarray(config.mask & ~binary_columns(config.columns))
    known = memory.get(NAME)
    before = np.zeros(len(labels), dtype=np.int64) if known is None else known["atoms"]
    pairs = before * (len(counts) + 1) + labels + 1
    found, atoms = np.unique(pairs, return_inverse=True)
    atoms = atoms.reshape(-1)
    old, own = np.divmod(found, len(counts) + 1)
    board = _Board(
        own=own - 1,
        widths=np.bincount(atoms, minlength=len(found)),
        told=(counts > 0)[:, None] & numeric,
        earlier=np.zeros((0, len(found)), dtype=np.bool_)
        if known is None
        else known["sets"][:, old],
        earlier_told=np.zeros((0, len(numeric)), dtype=np.bool_)
        if known is None
        else known["told"],
    )
    # The rest is a set of which nothing is told.
    sets = np.arange(-1, len(counts))[:, None] == board.own
    # The guard sees to it that nothing is told of fewer rows.
    wide = np.flatnonzero(board.widths >= config.p)
    single = np.arange(len(found)) == wide[:, None]
    unions = np.concatenate([single, board.earlier, sets])
    for inside, few in _few(data, atoms, unions, numeric, config):
        board.hide(inside, few)
    told = np.concatenate([np.zeros((1, len(numeric)), dtype=np.bool_), board.told])
    filled = sets.any(axis=1)
    memory = {
        **memory,
        NAME: {
            "atoms": atoms.astype(np.int64),
            "sets": np.concatenate([board.earlier, sets[filled]]),
            "told": np.concatenate([board.earlier_told, told[filled]]),
        },
    }
    return board.told | ~numeric | (counts == 0)[:, None], memory


class _Board:
    """What may be told of K sets, atom by atom; ``hide`` takes away from it.

    Parameters
    ----------
    own : (A,) int64
        The set of each atom, -1 for the rest.
    widths : (A,) int64
        Rows of each.
    told : (K, d) bool
    earlier : (S, A) bool
        The atoms in sets of other partitions.
    earlier_told : (S, d) bool
        The columns that were told of them.
    """

    def __init__(
        self,
        own: IntArray,
        widths: IntArray,
        told: BoolArray,
        earlier: BoolArray,
        earlier_told: BoolArray,
    ) -> None:
        self.own, self.widths, self.told = own, widths, told
        self.earlier, self.earlier_told = earlier, earlier_told
        self._rows = np.bincount(own[own >= 0], widths[own >= 0], minlength=len(told))
        self._numeric = np.flatnonzero(told.any(axis=0))

    def hide(self, inside: BoolArray, few: IntArray) -> None:
        """Hide the M2 of the columns ``few`` of some atoms (A,) behind those of others."""
        atoms = np.flatnonzero(inside)
        best: tuple[float, int, int, IntArray] | None = None
        for first in atoms[np.argsort(-self.widths[atoms], kind="stable")][:_MOST_TRIED].tolist():
            found = self._best(first, self._candidates(first, inside), few)
            if best is None or found[0] < best[0]:
                best = found
            if best[0] < _BROKEN:
                break  # No set told earlier holds one of the two.
        if best is not None:
            _, first, other, columns = best
            for place in {int(self.own[first]), int(self.own[other])} - {-1}:
                if first == other or self.own[first] != self.own[other]:
                    self.told[place, columns] = False

    def _candidates(self, first: int, inside: BoolArray) -> IntArray:
        """Return atoms outside, one of each set: if there are any, those that were with ``first``.

        No set told earlier holds the one of these and not the other. Where the set is all there
        is, ``first`` itself: a second column keeps the cost at least from telling.
        """
        if inside.all():
            return np.array([first])
        together = ~inside & (self.earlier == self.earlier[:, first][:, None]).all(axis=0)
        if together.any():
            found = np.flatnonzero(together)
            return found[np.unique(self.own[found], return_index=True)[1]]
        return np.flatnonzero(~inside)

    def _best(
        self, first: int, others: IntArray, few: IntArray
    ) -> tuple[float, int, int, IntArray]:
        """Return the cheapest of ``others`` to hide an atom behind: its price, both, and columns.

        The price is the rows of which less is told, and ``_BROKEN`` for each set told earlier that
        holds one of the two. The columns are ``few`` and, of one alone, the cheapest other.
        """
        apart = (self.earlier[:, others] != self.earlier[:, [first]]).astype(np.float64)
        here = np.append(self.told * self._rows[:, None], np.zeros((1, self.told.shape[1])), axis=0)
        own = here[self.own[first]]
        prices = own + here[self.own[others]]
        prices[self.own[others] == self.own[first]] = own if first in others else 0.0
        prices = prices + _BROKEN * (apart.T @ self.earlier_told)
        found = prices[:, few].sum(axis=1)
        rest = np.setdiff1d(self._numeric, few)
        if len(few) > 1 or not rest.size:
            place = int(found.argmin())
            return float(found[place]), first, int(others[place]), few
        both = found[:, None] + prices[:, rest]
        place, column = divmod(int(both.argmin()), len(rest))
        columns = np.append(few, rest[column])
        return float(both[place, column]), first, int(others[place]), columns


def _few(
    data: SiteData, atoms: IntArray, unions: BoolArray, numeric: BoolArray, config: RunConfig
) -> list[tuple[BoolArray, IntArray]]:
    """Return those of some unions (U, A) of atoms whose M2 tells of too few persons.

    Each with the columns (m,) of which it would. The largest come first.
    """
    order = np.argsort(atoms, kind="stable")
    widths = np.bincount(atoms, minlength=unions.shape[1])
    parts = np.split(order, np.cumsum(widths)[:-1])
    _, first = np.unique(unions, axis=0, return_index=True)
    index, found = index_of(data), []
    for inside in unions[np.sort(first)]:
        if not inside.any():
            continue
        rows = np.sort(np.concatenate([parts[atom] for atom in np.flatnonzero(inside)]))
        if not index.reaches(rows, config.p):
            continue  # the guard sees to it that nothing is told of them
        few = [j for j in np.flatnonzero(numeric) if _tells(data, index, rows, int(j), config)]
        if few:
            found.append((rows.size, inside, np.array(few, dtype=np.int64)))
    found.sort(key=lambda entry: -entry[0])
    return [(inside, few) for _, inside, few in found]


def _tells(
    data: SiteData, index: PersonIndex, rows: IntArray, column: int, config: RunConfig
) -> bool:
    """Return whether the M2 of some rows, by number, tells of too few persons."""
    known = rows if data.observed is None else rows[data.observed[rows, column]]
    if not known.size:
        return False
    if data.persons is None:
        # Rows with different values are different persons' then.
        first = np.unique(data.X[known[:_FIRST], column])
        if len(first) > max(config.p, 2):
            return False
    return few_differ(data.X[known, column], known, index, config.p)
