"""The order in which the workers of pytest-xdist run the tests.

Tests of whole programs, of browsers and of pages wait for processes most of the time; others
compute. In the order of their names the former would come together, with cores that idle, and some
of them last, with workers that wait for one another. So each worker gets its part of them, between
tests that compute, and tests of a few milliseconds at the end: a worker that is done takes these
from another, and needs no fixture for them that the other has. The tests of a module stay together.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

Item = TypeVar("Item")

#: The folders of tests that wait, with how many tests of a module come at most in a row: all where
#: a fixture of the module is dear.
SLOW = {"docs": 1, "e2e": 8, "browser": 100}
#: The folders whose tests come last.
QUICK = {"data", "domain", "numeric", "report", "schema", "wire"}
#: The part of a worker's other tests between which the slow ones are placed.
_BEFORE = 0.7


def mixed(items: Sequence[Item], workers: int, module: Callable[[Item], str]) -> list[Item]:
    """Return the tests so that equal parts of them, one a worker, are alike.

    Parameters
    ----------
    items : sequence
        In the order of their modules.
    workers : int
    module : callable
        Returns the path of a test's module below ``tests``.
    """
    slow: list[list[Item]] = []
    others: list[list[Item]] = []
    quick: list[Item] = []
    for path, group in groupby(items, module):
        of_module = list(group)
        folder = path.partition("/")[0]
        size = SLOW.get(folder)
        if folder in QUICK:
            quick += of_module
        elif size is None:
            others.append(of_module)
        else:
            slow += [of_module[at : at + size] for at in range(0, len(of_module), size)]
    ordered: list[Item] = []
    for worker in range(workers):
        own = slow[worker::workers]
        # Long modules and short ones for each, in the order of their names.
        dealt = sorted(others, key=len)[worker::workers]
        part = [item for of_module in others if of_module in dealt for item in of_module]
        # As xdist divides them.
        n = (len(items) - len(ordered)) // (workers - worker) - sum(map(len, own)) - len(part)
        rest = [*part, *quick[: max(n, 0)]]
        del quick[: max(n, 0)]
        ordered += _between(own, [list(group) for _, group in groupby(rest, module)])
    return ordered


def _between(slow: Sequence[list[Item]], others: Iterable[list[Item]]) -> list[Item]:
    """Return groups of tests, the slow ones at even distances between the others."""
    others = list(others)
    distance = _BEFORE * sum(map(len, others)) / max(len(slow), 1)
    placed, n_others, n_slow = list[Item](), 0, 0
    for group in others:
        while n_slow < len(slow) and n_slow * distance <= n_others:
            placed += slow[n_slow]
            n_slow += 1
        placed += group
        n_others += len(group)
    return placed + [item for group in slow[n_slow:] for item in group]
