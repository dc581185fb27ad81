"""When a coordinator accepts a site's table: every short history of its store, enumerated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import TypeAlias

import pytest

from fedclust.site.cohorts import table_heads
from fedclust.wire.models import TableHeads
from fedclust_service.domain.site_table import SiteTable, TableVerdict, accepts

STEPS = 8
NOW = datetime(2026, 1, 5, tzinfo=UTC)
#: The changes of a store, each with a number that no other has.
Chain: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[SiteTable, TableHeads], TableVerdict]


@cache
def heads(chain: Chain, most: int | None = None) -> TableHeads:
    """Return the heads of a chain; of its last ``most`` changes."""
    found = table_heads([{"change": each} for each in chain])
    if most is None or most >= len(chain):
        return found
    return TableHeads(first=len(chain) - most + 1, heads=found.heads[-most:])


def table(chain: Chain) -> SiteTable:
    """Return what a coordinator keeps that has accepted a chain."""
    return SiteTable("north", "0" * 32, len(chain), heads(chain).heads[-1], NOW)


@dataclass(frozen=True)
class World:
    """A store, its snapshot, and the chain that each coordinator has accepted last."""

    chain: Chain
    saved: Chain
    accepted: tuple[Chain | None, ...]
    made: int = 1
    restored: bool = False

    def changed(self) -> World:
        return replace(self, chain=(*self.chain, self.made), made=self.made + 1)

    def joined(self, place: int, rule: Rule) -> tuple[World, TableVerdict]:
        """Send two heads, and all of them if the coordinator asks for them."""
        before = self.accepted[place]
        verdict = TableVerdict.ACCEPTED
        if before is not None:
            for most in (2, None):
                verdict = rule(table(before), heads(self.chain, most))
                if verdict is not TableVerdict.HEADS_NEEDED:
                    break
        if verdict is not TableVerdict.ACCEPTED:
            return self, verdict
        kept = (*self.accepted[:place], self.chain, *self.accepted[place + 1 :])
        return replace(self, accepted=kept), verdict


def steps(world: World, rule: Rule, found: Counter[str]) -> Iterator[World]:
    """Yield what can come next, and count what must not happen."""
    # A change, and a crash after the store was written: the site sends nothing.
    yield world.changed()
    yield replace(world, saved=world.chain)
    if world.saved != world.chain:
        yield replace(world, chain=world.saved, restored=True)
    for place, before in enumerate(world.accepted):
        first, verdict = world.joined(place, rule)
        continues = before is None or world.chain[: len(before)] == before
        found["branches"] += verdict is TableVerdict.ACCEPTED and not continues
        found["refused"] += verdict is not TableVerdict.ACCEPTED and continues
        found["honest refused"] += verdict is not TableVerdict.ACCEPTED and not world.restored
        # A lost answer: the same once more.
        found["moved by a lost answer"] += first.joined(place, rule) != (first, verdict)
        yield first


def faults(rule: Rule, coordinators: int) -> Counter[str]:
    """Return what happens in any history of so many steps that must not happen."""
    found: Counter[str] = Counter()
    worlds = {World((0,), (0,), (None,) * coordinators)}
    for _ in range(STEPS):
        worlds = {after for world in worlds for after in steps(world, rule, found)}
    return +found


def by_id(_accepted: SiteTable, _sent: TableHeads) -> TableVerdict:
    return TableVerdict.ACCEPTED


def by_number(accepted: SiteTable, sent: TableHeads) -> TableVerdict:
    """Know the number and the last head alone."""
    if accepted.number == sent.last:
        return TableVerdict.ACCEPTED if accepted.head == sent.heads[-1] else TableVerdict.BRANCHED
    return TableVerdict.ACCEPTED if accepted.number < sent.last else TableVerdict.OLDER


def test_no_coordinator_accepts_two_branches_and_no_honest_site_is_refused() -> None:
    assert faults(accepts, coordinators=2) == Counter()


@pytest.mark.parametrize("rule", [by_id, by_number])
def test_weaker_rules_accept_two_branches(rule: Rule) -> None:
    assert faults(rule, coordinators=1)["branches"] > 0
