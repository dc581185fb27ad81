"""The heads of a site's table: chained over its changes, stored before they are sent."""

from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import errors
from fedclust.protection.cohort import Cohort
from fedclust.site import cohorts
from fedclust.site.cohorts import CohortRecord, CohortStore, table_heads
from fedclust.site.state import SiteState
from fedclust.wire.models import Participation, TableHeads
from support.fake_coordinator import FakeCoordinator, another, joins, refusal, three_clusters

MINE = three_clusters(120, 3)
IDS = [f"p{i}" for i in range(120)]


def take_part(fake: FakeCoordinator, place: Path, n: int = 80) -> None:
    rows: NDArray[np.float64] = MINE[:n]
    fake.site(place).participate("heart", rows, person=IDS[:n], consent=True)


def stored(place: Path) -> TableHeads:
    store = CohortStore(SiteState(place))
    (table_id,) = store.records()
    return store.heads(table_id, every=True)


def sent_heads(request: httpx.Request) -> TableHeads:
    heads = Participation.model_validate_json(request.content).heads
    assert heads is not None
    return heads


def test_a_head_covers_its_change_and_all_before_it() -> None:
    lines = [{"change": number, "persons": 9} for number in range(1, 5)]
    whole = table_heads(lines)
    assert (whole.first, len(set(whole.heads))) == (1, 4)
    assert table_heads(lines[:3]).heads == whole.heads[:3]
    # As after a restart: the order of keys is not part of a change.
    assert table_heads([dict(reversed(line.items())) for line in lines]) == whole
    for place in range(4):
        changed = table_heads([*lines[:place], {"change": 0}, *lines[place + 1 :]]).heads
        same = [a == b for a, b in zip(changed, whole.heads, strict=True)]
        assert same == [True] * place + [False] * (4 - place)


def test_no_head_can_be_found_by_guessing_the_counts_of_its_change() -> None:
    empty = CohortRecord(Cohort.empty("0" * 32, 5), ())
    now = datetime(2026, 11, 1, tzinfo=UTC)
    first, second = (empty.after(empty.cohort, "created", now, persons=80) for _ in range(2))
    assert table_heads(first.history) != table_heads(second.history)


def test_the_last_thousand_heads_are_sent_and_all_if_asked() -> None:
    lines = [{"change": number} for number in range(2_500)]
    last, every = table_heads(lines), table_heads(lines, every=True)
    assert (last.first, last.last, len(last.heads)) == (1_501, 2_500, 1_000)
    assert (every.first, every.last) == (1, 2_500)
    assert every.heads[-1_000:] == last.heads
    assert every.at(1_501) == last.at(1_501) == last.heads[0]
    assert last.at(1_500) is last.at(2_501) is None


def test_changes_are_stored_before_their_heads_leave(tmp_path: Path) -> None:
    """Also where the site crashes in between: then its chain is longer than what was sent."""
    fake = another()
    seen: list[bool] = []

    def crash(request: httpx.Request) -> httpx.Response | None:
        if joins(request):
            seen.append(sent_heads(request) == stored(tmp_path / "a"))
            if len(seen) == 1:
                raise ZeroDivisionError
        return None

    fake.before = crash
    with pytest.raises(ZeroDivisionError):
        take_part(fake, tmp_path / "a")
    # Newcomers between the crash and the next run.
    other = another()
    take_part(other, tmp_path / "a", n=100)
    take_part(fake, tmp_path / "a", n=100)
    assert seen == [True, True]


def test_all_heads_are_sent_to_a_coordinator_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_part(another(), tmp_path / "a")
    monkeypatch.setattr(cohorts, "_LAST_HEADS", 1)
    fake = another()
    firsts: list[int] = []

    def needs_all(request: httpx.Request) -> httpx.Response | None:
        if not joins(request):
            return None
        firsts.append(sent_heads(request).first)
        return refusal("table-heads-needed") if firsts[-1] > 1 else None

    fake.before = needs_all
    take_part(fake, tmp_path / "a", n=100)
    assert firsts == [2, 1]
    assert fake.joined.heads == stored(tmp_path / "a")


def test_a_refusal_stands_if_nothing_was_stored_since(tmp_path: Path) -> None:
    for slug, error in (
        ("table-changed", errors.TableChanged),
        ("table-heads-needed", errors.TableHeadsNeeded),
    ):
        fake = another()
        fake.before = lambda request, slug=slug: refusal(slug) if joins(request) else None
        with pytest.raises(error, match="do something else"):
            take_part(fake, tmp_path / "a")
        assert sum(each.endswith("/participation") for each in fake.requests) == 1
        assert fake.puts == []


def test_a_change_that_another_process_stores_meanwhile_refuses_nobody(tmp_path: Path) -> None:
    """Another session of this site joins with it first: the coordinator is ahead of this join."""
    fake = another()
    sent: list[TableHeads] = []

    def overtaken(request: httpx.Request) -> httpx.Response | None:
        if not joins(request):
            return None
        sent.append(sent_heads(request))
        if len(sent) > 1:
            return None
        CohortStore(SiteState(tmp_path / "a")).withdraw(IDS[0], datetime.now(UTC))
        return refusal("table-changed")

    fake.before = overtaken
    take_part(fake, tmp_path / "a")
    assert [each.last for each in sent] == [1, 2]
    assert fake.joined.heads == stored(tmp_path / "a")
