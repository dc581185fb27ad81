"""Which records prove that 1 to p - 1 persons of a group have something: all states enumerated.

A state is how many of a group's n persons are in each cell, such as "a and not b". An attacker
knows n, p, which cells exist, and the records of the group. Something is proven if all states with
these records have 1 to p - 1 persons in a set of cells. Columns that do not depend on each other
prove nothing, nor do two that exclude each other or of which one implies the other, nor a column of
levels. What can be proven by columns that are functions of each other is written down below: it is
the exception that the threat model names.
"""

import numpy as np
import pytest

from fedclust.protection.columns import TableColumn
from support.small_cells import proven, records, states

NAN = np.nan

#: Columns by cell. The last entries are the sets of columns that may release the upper of two
#: middle values: their centre is above a half. So it cannot be of two that exclude each other, nor
#: of one that implies another alone.
INDEPENDENT: dict[str, tuple[list[list[float]], list[set[int]]]] = {
    "one": ([[0, 1]], [set(), {0}]),
    "one, may be missing": ([[0, 1, NAN]], [set(), {0}]),
    "two": ([[0, 0, 1, 1], [0, 1, 0, 1]], [set(), {0}, {0, 1}]),
    "exclusive": ([[0, 1, 0], [0, 0, 1]], [set(), {0}]),
    "nested": ([[0, 1, 1], [0, 0, 1]], [set(), {0}, {0, 1}]),
    "nested twice": ([[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]], [set(), {0}, {0, 1}, {0, 1, 2}]),
}
#: The same, and the largest share of states in which something is proven, for n from p to 3p. The
#: threat model quotes those of p = 5.
DEPENDENT: dict[str, tuple[list[list[float]], list[set[int]], dict[int, float]]] = {
    "two levels one by one": ([[1, 0], [0, 1]], [set(), {0}], {3: 0.20, 5: 0.14, 10: 0.09}),
    "three levels one by one": (
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [set(), {0}],
        {3: 0.20, 5: 0.22, 10: 0.24},
    ),
    "four levels one by one": (
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
        [set(), {0}],
        {3: 0.20, 5: 0.29, 10: 0.0},
    ),
    "any": (
        [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1]],
        [set(), {2}, {0, 2}, {0, 1, 2}],
        {3: 0.11, 5: 0.12, 10: 0.12},
    ),
    "both": (
        [[0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]],
        [set(), {0}, {0, 1}, {0, 1, 2}],
        {3: 0.11, 5: 0.12, 10: 0.12},
    ),
    "number of": (
        [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 2]],
        [set(), {2}, {0, 2}, {0, 1, 2}],
        {3: 0.26, 5: 0.25, 10: 0.25},
    ),
    "exactly one": (
        [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]],
        [set(), {0}, {2}, {0, 2}, {0, 1}],
        {3: 0.26, 5: 0.26, 10: 0.26},
    ),
    "missing unless another is yes": (
        [[0, 1, 1], [NAN, 0, 1]],
        [set(), {0}],
        {3: 0.30, 5: 0.43, 10: 0.61},
    ),
}


def _most_proven(columns: list[list[float]], uppers: list[set[int]], n: int, p: int) -> float:
    """Return the largest share of states in which something is proven."""
    held = states(n, len(columns[0]))
    shares = []
    for upper in uppers:
        rules = [
            TableColumn("x", step=0.01, centre=0.9 if place in upper else 0.1)
            for place in range(len(columns))
        ]
        released = [records(held, *each, p) for each in zip(columns, rules, strict=True)]
        shares.append(float(proven(held, released, p).mean()))
    return max(shares)


def _sizes(p: int) -> list[int]:
    return [*range(p, 2 * p + 2), 3 * p] if p < 10 else [10, 11, 12, 17, 18, 19, 20, 21, 30]


@pytest.mark.parametrize("p", [3, 5, 10])
@pytest.mark.parametrize("case", INDEPENDENT)
def test_columns_that_are_no_functions_of_each_other_prove_nothing_real_record(
    case: str, p: int
) -> None:
    for n in _sizes(p):
        assert _most_proven(*INDEPENDENT[case], n, p) == 0.0, n


@pytest.mark.parametrize("p", [3, 5, 10])
@pytest.mark.parametrize("case", DEPENDENT)
def test_what_columns_that_are_functions_of_each_other_prove(case: str, p: int) -> None:
    columns, uppers, most = DEPENDENT[case]

    shares = {n: _most_proven(columns, uppers, n, p) for n in _sizes(p)}

    assert round(max(shares.values()), 2) == most[p], shares
    assert shares[2 * p + 1] == shares[3 * p] == 0.0


@pytest.mark.parametrize("p", [3, 5, 10])
@pytest.mark.parametrize("n_levels", [2, 3, 4])
def test_one_column_of_levels_proves_nothing_real_record(n_levels: int, p: int) -> None:
    for n in _sizes(p):
        for cells in (list(range(n_levels)), [*range(n_levels), NAN]):
            held = states(n, len(cells))
            column = TableColumn("x", n_levels, order=tuple(range(n_levels)))
            assert not proven(held, [records(held, cells, column, p)], p).any(), n


def test_counts_would_prove_it() -> None:
    """What fell: a group that released how many persons have something."""
    held = states(7, 2)
    assert proven(held, [held[:, 0].astype(np.float64)], 5).mean() > 0.7
