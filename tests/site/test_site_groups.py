"""A site answers sessions from its groups: the same in every session, at every coordinator."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import errors
from fedclust.site.cohorts import CohortRecord, CohortStore
from fedclust.site.progress import Preview
from fedclust.site.state import SiteState
from support.fake_coordinator import FakeCoordinator, another, three_clusters

MINE = three_clusters(80, 3)
IDS = [f"p{i}" for i in range(80)]


def tables(place: Path) -> dict[str, CohortRecord]:
    return CohortStore(SiteState(place)).records()


def take_part(fake: FakeCoordinator, place: Path, rows: NDArray[np.float64] = MINE, **more: Any):
    options = {"person": IDS[: len(rows)], "consent": True, **more}
    return fake.site(place).participate("heart", rows, **options)


def declared(fake: FakeCoordinator) -> tuple[str | None, bool]:
    return fake.joined.table_id, fake.joined.separate_groups


def preview(fake: FakeCoordinator, place: Path, **more: Any) -> Preview:
    return fake.site(place).preview("heart", MINE, **{"person": IDS, **more})


def test_a_known_person_is_answered_from_the_store_real_record(tmp_path: Path) -> None:
    """Two sessions, between which one value changes, send the same: nothing to subtract."""
    take_part(another(), tmp_path)
    before = preview(another(), tmp_path).body
    changed = MINE.copy()
    changed[7, 0] += 100.0

    after = another().site(tmp_path).preview("heart", changed, person=IDS).body

    assert before == after
    departed = np.delete(MINE, 7, axis=0)
    ids = IDS[:7] + IDS[8:]
    assert another().site(tmp_path).preview("heart", departed, person=ids).body == before


def test_a_withdrawal_ends_the_sites_part_in_a_session_that_runs(tmp_path: Path) -> None:
    fake = another()
    with pytest.raises(errors.ConsentDeclined):
        take_part(fake, tmp_path, ask=lambda next_one: next_one.round == 1)
    CohortStore(SiteState(tmp_path)).withdraw("p7", fake.site(tmp_path)._now())

    with pytest.raises(errors.OtherData, match="a person was withdrawn"):
        take_part(fake, tmp_path)


def test_two_sessions_that_begin_at_once_use_one_table_and_ask_once(tmp_path: Path) -> None:
    """The second one finds that the first was faster, and takes its groups."""
    first, second = another(), another()
    asked: list[str] = []

    def consent(request: Any) -> bool:
        asked.append(request.approval_code)
        if len(asked) == 1:
            take_part(first, tmp_path)
        return True

    take_part(second, tmp_path, consent=consent)

    (record,) = tables(tmp_path).values()
    assert declared(first) == declared(second) == (record.cohort.table_id, False)
    assert [line["what"] for line in record.history] == ["created"]
    assert len(asked) == len(set(asked))


def test_other_persons_are_declared_and_have_their_own_table(tmp_path: Path) -> None:
    first, second = another(), another()
    take_part(first, tmp_path)
    other = np.random.default_rng(9).normal(size=(60, 2))
    ids = [f"q{i}" for i in range(60)]
    with pytest.raises(errors.PersonsRefused, match="--other-persons"):
        take_part(second, tmp_path, other, person=ids)
    take_part(second, tmp_path, other, person=ids, other_persons="board 7")
    assert declared(first) != declared(second)
    assert (second.joined.other_persons, second.joined.separate_groups) == (True, False)
    take_part(second, tmp_path, other, person=ids)
    assert second.joined.other_persons, "the session was joined with it"


def test_another_file_is_refused_also_where_the_session_was_joined_before(tmp_path: Path) -> None:
    """Known persons under new ids would get second groups."""
    fake = another()
    new_ids = [f"new-{each}" if place < 40 else each for place, each in enumerate(IDS)]
    fake.stop_at("/task")
    with pytest.raises(ZeroDivisionError):
        take_part(fake, tmp_path)
    fake.before = lambda _request: None
    before = tables(tmp_path)
    with pytest.raises(errors.PersonsRefused, match="40 of the 80 persons"):
        take_part(fake, tmp_path, person=new_ids)
    assert {name: each.history for name, each in tables(tmp_path).items()} == {
        name: each.history for name, each in before.items()
    }
    take_part(fake, tmp_path)


def test_an_approval_of_persons_who_wait_need_not_be_repeated(tmp_path: Path) -> None:
    take_part(another(), tmp_path)
    fake = another()
    few, ids = MINE[:7], [*IDS[:3], *(f"q{i}" for i in range(4))]
    with pytest.raises(errors.ConsentDeclined):
        take_part(fake, tmp_path, few, person=ids, other_persons="board 7", ask=lambda _: False)
    take_part(fake, tmp_path, few, person=ids)
    assert fake.joined.other_persons


def test_a_table_of_persons_in_no_other_one_is_declared_so(tmp_path: Path) -> None:
    first, second, third = another(), another(), another()
    take_part(first, tmp_path)
    other = np.random.default_rng(9).normal(size=(60, 2))
    stated = {"person": [f"q{i}" for i in range(60)], "no_person_in_another_table": True}
    for wrong in ({}, {"other_persons": "board 7", "separate_groups": "board 7"}):
        with pytest.raises(errors.UsageError, match="--other-persons"):
            take_part(second, tmp_path, other, **stated, **wrong)
    take_part(second, tmp_path, other, **stated, other_persons="board 7")
    # Also later, when nobody has to state it again.
    take_part(third, tmp_path, other, person=stated["person"])
    for fake, said in ((first, False), (second, True), (third, True)):
        assert fake.joined.no_person_in_another_table == said
    created = [record.history[0] for record in tables(tmp_path).values()]
    assert sum("no_person_in_another_table" in line for line in created) == 1
    assert not any("shares_with" in line for line in created)


def test_separate_groups_are_declared_and_formed_once(tmp_path: Path) -> None:
    take_part(another(), tmp_path)
    fake = another()
    with pytest.raises(errors.ConsentDeclined):
        take_part(
            fake, tmp_path, separate_groups="board 7", ask=lambda next_one: next_one.round == 1
        )
    take_part(fake, tmp_path, separate_groups="board 7")

    table, separate = declared(fake)
    assert separate
    assert len(tables(tmp_path)) == 2
    with pytest.raises(errors.PersonsRefused, match="--cohort"):
        take_part(another(), tmp_path)
    third = another()
    take_part(third, tmp_path, cohort=table[:6])
    # A coordinator that knows the first table alone would refuse this one without the approval.
    assert declared(third) == (table, True)


def test_without_protection_there_is_no_table(tmp_path: Path) -> None:
    fake = another(policy={"protection": "none", "max_rounds": 4})
    take_part(fake, tmp_path, consent=True)
    assert declared(fake) == (None, False)
    assert tables(tmp_path) == {}
