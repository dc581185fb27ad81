"""Counts of outcomes at a site: whose, drawn once, stored before anybody sees them."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from fedclust import errors, rounds, simulate
from fedclust.data.outcome_rows import label_persons
from fedclust.data.persons import read_persons
from fedclust.data.site_data import form_counted
from fedclust.protection.outcome_counts import count_outcomes
from fedclust.rounds.outcomes import OutcomesPayload, OutcomesTask
from fedclust.schema.errors import RuleViolation
from fedclust.site import Preview, compute
from fedclust.site.charges import Charges
from fedclust.site.cohorts import CohortStore
from fedclust.site.journal import Journal
from fedclust.site.prepare import SiteRows
from fedclust.site.state import SiteState
from fedclust.wire.submissions import BINARY, read_submission
from support.fake_coordinator import EPOCH, URL, FakeCoordinator
from support.ledgers import body_lines

DIED = {"name": "died", "kind": "binary", "role": "outcome"}
STAY = {"name": "stay", "kind": "ordered", "edges": [3, 8], "role": "outcome", "points": 40}
FEATURES: tuple[dict[str, Any], ...] = ({"name": "x"}, {"name": "y"}, DIED, STAY)


def rows(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    place = rng.integers(0, 3, n)
    return pd.DataFrame(
        {
            "x": rng.normal(size=n) + 6 * place,
            "y": rng.normal(size=n),
            "died": rng.choice([0.0, 1.0, np.nan], n, p=[0.6, 0.3, 0.1]),
            "stay": rng.gamma(2.0, 3.0, n),
            "mrn": [f"P{number}" for number in range(n)],
        }
    )


MINE = rows(80, 3)
OTHERS = {"alpha": rows(60, 1), "beta": rows(50, 2)}


def coordinator(**definition: Any) -> FakeCoordinator:
    return FakeCoordinator(OTHERS, **{"features": FEATURES, **definition})


@pytest.fixture
def fake() -> FakeCoordinator:
    return coordinator()


def take_part(fake: FakeCoordinator, place: Path, data: Any = MINE, **more: Any) -> Any:
    return fake.site(place).participate("heart", data, **{"person": "mrn", "consent": True, **more})


def outcome_round(fake: FakeCoordinator) -> int:
    return max(fake.accepted)


def sent(fake: FakeCoordinator) -> tuple[Any, ...]:
    """Return the tables that the site sent."""
    phase = rounds.phase(fake.plan, "outcomes")
    payload = read_submission(phase, fake.accepted[outcome_round(fake)], BINARY)[1]
    assert isinstance(payload, OutcomesPayload)
    return payload.cells


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[Fraction]:
    """Count without noise, and return the variance of the noise of each table."""
    asked: list[Fraction] = []

    def count(clusters: Any, cells: Any, k: int, j: int, variance: Fraction) -> Any:
        asked.append(variance)
        return count_outcomes(clusters, cells, k, j, Fraction(0))

    monkeypatch.setattr(compute, "count_outcomes", count)
    return asked


def exact(data: pd.DataFrame, labels: Any, k: int = 3) -> list[Any]:
    """Return the tables of persons with these labels, -1 for none."""
    died = np.where(data.died.isna(), 2, data.died).astype(int)
    stay = np.where(data.stay.isna(), 3, np.digitize(data.stay, [3, 8])).astype(int)
    found = []
    for cells, width in ((died, 3), (stay, 4)):
        table = np.zeros((k + 1, width), dtype=int)
        np.add.at(table, (labels, cells), 1)
        found.append(table)
    return found


def equal(here: Any, there: Any) -> None:
    assert [each.tolist() for each in here] == [each.tolist() for each in there]


# --- who counts -----------------------------------------------------------------------------------


def test_persons_in_groups_are_counted_by_their_own_rows(
    tmp_path: Path, draws: list[Fraction], fake: FakeCoordinator
) -> None:
    result = take_part(fake, tmp_path)
    equal(sent(fake), exact(MINE, result.labels_))
    assert draws == [Fraction(25), Fraction(25, 4)]
    assert set(result.outcomes_.results[0].tables) >= {"me"}


def test_noise_is_added_and_the_ledger_takes_no_count_from_it(tmp_path: Path) -> None:
    fake = coordinator()
    result = take_part(fake, tmp_path)
    for table, clean, sd in zip(sent(fake), exact(MINE, result.labels_), (5, 2.5), strict=True):
        assert (table != clean).any()
        assert np.abs(table - clean).max() < 40 * sd
    (line,) = [each for each in body_lines(tmp_path) if each["phase"] == "outcomes"]
    assert line["smallest_count"] is None
    assert line["fields"] == {"cells[0]": "int64[4, 3]", "cells[1]": "int64[4, 4]"}


def test_each_person_counts_once_whatever_the_number_of_rows(
    tmp_path: Path, draws: list[Fraction]
) -> None:
    """Their commonest cell, and the cluster of the mean of their rows."""
    visits = pd.concat([MINE, MINE.assign(x=MINE.x + 0.2, stay=0.5), MINE.assign(died=np.nan)])
    fake = coordinator()
    take_part(fake, tmp_path, visits.sort_values("mrn"))
    died, stay = sent(fake)
    assert died.sum() == stay.sum() == 80
    assert died.sum(axis=0).tolist() == exact(MINE, np.zeros(80, dtype=int))[0].sum(axis=0).tolist()
    # Two rows of the original stay, and one of half a day.
    assert (stay.sum(axis=0) == exact(MINE, np.zeros(80, dtype=int))[1].sum(axis=0)).all()


def test_who_waits_or_was_withdrawn_is_not_counted(tmp_path: Path, draws: list[Fraction]) -> None:
    take_part(coordinator(title="first"), tmp_path)
    newcomers = rows(3, 9).assign(mrn=["N0", "N1", "N2"])
    more = pd.concat([newcomers, MINE], ignore_index=True)
    fake = coordinator(title="second")
    result = take_part(fake, tmp_path, more, other_persons="the board")
    assert draws[-1] == Fraction(25, 4)
    equal(sent(fake), exact(MINE, result.labels_[3:]))
    # 10 + 40 points are spent twice: another set of persons.
    store = CohortStore(SiteState(tmp_path))
    (record,) = store.records().values()
    group = record.cohort.table_rows(store.state.secret(), MINE.mrn.tolist())
    store.withdraw("P7", EPOCH)
    # The others of the group join no other group.
    left = group != group[7]
    fake = coordinator(title="third", policy={"protection": "groups"})
    prepared = fake.site(tmp_path)._open("heart", _rows(MINE)).prepared
    blocks = list(prepared.counted())
    assert sum(len(block.X) for block in blocks) == left.sum() <= 75
    np.testing.assert_array_equal(
        np.concatenate([block.X for block in blocks]), MINE.loc[left, ["x", "y"]]
    )


def _rows(data: Any, **more: Any) -> Any:
    return SiteRows(data, "mrn", **more)


def test_new_ids_of_known_persons_are_found_by_the_list_of_ids(
    tmp_path: Path, draws: list[Fraction]
) -> None:
    take_part(coordinator(title="first"), tmp_path, MINE)
    renamed = MINE.assign(mrn=[f"Q{number}" for number in range(80)])
    ids = dict(zip(renamed.mrn, MINE.mrn, strict=True))
    fake = coordinator(title="second")
    result = take_part(fake, tmp_path, renamed, id_map=ids)
    equal(sent(fake), exact(MINE, result.labels_))


def test_everybody_in_a_union_of_groups_counts(tmp_path: Path, draws: list[Fraction]) -> None:
    """Also for unions, a group takes part if the whole union releases every column."""
    holed = MINE.copy()
    holed.loc[:44, "x"] = np.nan
    for missing, known in (("drop", False), ("impute", True)):
        place = tmp_path / missing
        fake = coordinator(policy={"missing": missing, "max_rounds": 4})
        run = fake.site(place)._open("heart", _rows(holed))
        CohortStore(SiteState(place)).keep(run.prepared.draft)
        run = fake.site(place)._open("heart", _rows(holed, min_group_size=20))
        prepared = run.prepared
        assert (prepared.p, prepared.data.sizes.min() >= 20) == (20, True)
        (block,) = prepared.counted()
        assert len(block.X) == 80
        complete = ~np.isnan(prepared.data.X).any(axis=1)
        persons = prepared.data.sizes[complete].sum() if missing == "drop" else 80
        assert block.takes_part.sum() == persons
        assert block.takes_part[:45].all() == known


# --- drawn once -----------------------------------------------------------------------------------


def stored(fake: FakeCoordinator, place: Path) -> dict[int, bytes]:
    journal = Journal(SiteState(place), URL, "me", "heart", fake.sha256)
    return {number: answer.body for number, answer in journal.answers.items()}


def test_counts_are_stored_before_they_are_shown_and_a_no_keeps_them(
    tmp_path: Path, draws: list[Fraction], fake: FakeCoordinator
) -> None:
    shown: list[bytes] = []

    def ask(preview: Preview) -> bool:
        if preview.phase == "outcomes":
            assert preview.body is not None
            assert stored(fake, tmp_path)[preview.round or 0] == preview.body
            shown.append(preview.body)
            return len(shown) > 3
        return True

    for _ in range(3):
        with pytest.raises(errors.ConsentDeclined):
            take_part(fake, tmp_path, ask=ask)
    # Also with another person at the keyboard: the counts are the same, and nothing is drawn.
    assert fake.site(tmp_path).preview("heart", MINE, person="mrn").body == shown[0]
    take_part(fake, tmp_path, ask=ask)
    assert len(shown) == 4
    assert set(shown) == {fake.accepted[outcome_round(fake)]}
    assert len(draws) == 2


def test_a_preview_and_other_outcomes_in_the_session_draw_nothing(
    tmp_path: Path, draws: list[Fraction], fake: FakeCoordinator
) -> None:

    def stop(request: httpx.Request) -> None:
        asks = request.url.path.endswith("/task") and fake.step is not None
        if asks and fake.step.task.phase == "outcomes":
            raise ZeroDivisionError

    fake.before = stop
    with pytest.raises(ZeroDivisionError):
        take_part(fake, tmp_path)
    fake.before = lambda _request: None
    for _ in range(2):
        preview = fake.site(tmp_path).preview("heart", MINE, person="mrn")
        assert (preview.phase, preview.body) == ("outcomes", None)
        assert preview.fields == {"cells[0]": "int64[4, 3]", "cells[1]": "int64[4, 4]"}
        assert "sd of died 5, stay 2.5" in preview.note
    assert not any(draws)
    # A change of an outcome in the session is other data.
    previewed = list(draws)
    for other in (
        MINE.assign(died=np.where(np.arange(80) == 5, 1 - MINE.died.fillna(0), MINE.died)),
        MINE.assign(stay=np.where(np.arange(80) == 5, 0.01, MINE.stay)),
    ):
        with pytest.raises(errors.OtherData):
            take_part(fake, tmp_path, other)
    assert draws == previewed
    take_part(fake, tmp_path)
    assert len([*filter(None, draws)]) == 2


def test_a_coordinator_that_lost_the_answer_gets_the_same_bytes(
    tmp_path: Path, draws: list[Fraction], fake: FakeCoordinator
) -> None:
    kept: list[Any] = []

    def remember(_: httpx.Request) -> None:
        if fake.state == "running":
            kept[:] = [fake.step, dict(fake.answers)]

    def lose(_: httpx.Request) -> None:
        if fake.state == "completed" and kept:
            fake.before = lambda _request: None
            fake.state, (fake.step, fake.answers) = "running", kept
            del fake.accepted[fake.round]
            kept.clear()

    fake.before, fake.after = remember, lose
    take_part(fake, tmp_path)
    sent = [body for number, body in fake.puts if number == outcome_round(fake)]
    assert (len(sent), len(set(sent)), len(draws)) == (2, 1, 2)


def test_points_that_are_given_back_while_it_counts_are_not_drawn_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeCoordinator
) -> None:
    """Another command of the site finds meanwhile that the session has ended."""

    def count(*given: Any) -> Any:
        charges = Charges(SiteState(tmp_path))
        for charge in charges.open_charges():
            assert charges.give_back(charge.key, EPOCH, ended=True) == 50
        return count_outcomes(*given)

    monkeypatch.setattr(compute, "count_outcomes", count)
    with pytest.raises(errors.StateError, match="no points are charged"):
        take_part(fake, tmp_path)
    assert stored(fake, tmp_path).keys() == fake.accepted.keys()


# --- crafted models -------------------------------------------------------------------------------


def test_a_model_of_another_form_is_refused_before_noise_is_drawn(
    tmp_path: Path, draws: list[Fraction], fake: FakeCoordinator
) -> None:
    """Which forms are refused is in ``rounds/test_outcomes.py``."""

    def swap(_request: httpx.Request) -> None:
        step = fake.step
        if step is not None and step.task.phase == "outcomes":
            prototypes = {"prototypes": np.zeros((4, 2)), "prototype_labels": (0, 1, 2, 7)}
            model = step.task.common.model.model_copy(update=prototypes)
            task = dataclasses.replace(step.task, common=OutcomesTask(model=model))
            fake.step = dataclasses.replace(step, task=task)

    fake.before = swap
    with pytest.raises(errors.TaskRefused):
        take_part(fake, tmp_path)
    ((number, rule),) = fake.refused
    assert rule in ("task", "task-space")
    assert max(stored(fake, tmp_path)) < number
    assert draws == []


@pytest.mark.parametrize(
    ("method", "options", "crafts"),
    [
        ("kfed", {"refine": 0, "labels": "cells"}, [{"mapping": {"me": (0,)}}]),
        ("overlap_oneshot", {}, [{"mapping": {"me": (0,)}}]),
        ("mixture", {}, [{"soft": None}, {"soft": {"proportions": np.zeros((1, 1))}}]),
        ("spectral", {}, [{"prototypes": np.zeros((60, 5))}, {"prototype_labels": ()}]),
        ("lloyd", {}, [{"center": np.zeros(5)}, {"centroids": np.zeros((2, 3))}]),
    ],
)
def test_a_model_that_cannot_label_rows_breaks_the_task(
    method: str, options: dict[str, Any], crafts: list[dict[str, Any]]
) -> None:
    """Whatever the method's error is: a KeyError, an IndexError, or other shapes."""
    sites = {**OTHERS, "me": MINE}
    found = simulate(method, sites, config={"n_clusters": 3, **options}, features=list(FEATURES))
    plan, site = found._plan, "me"
    blocks, own = _blocks(plan), found._sites[site]
    for craft in crafts:
        model = found.result.model_copy(update=craft)
        with pytest.raises(RuleViolation) as broken:
            label_persons(plan, model, blocks, own.memory, site, found._has(own.features))
        assert broken.value.rule == "task", craft


def test_a_cluster_that_the_model_does_not_have_is_no_cluster() -> None:
    """A refusal would say that somebody is near that part of a crafted model."""
    found = simulate(
        "spectral", {**OTHERS, "me": MINE}, config={"n_clusters": 3}, features=list(FEATURES)
    )
    labels = [99 if label == 1 else label for label in found.result.prototype_labels or ()]
    model = found.result.model_copy(update={"prototype_labels": tuple(labels)})
    own, plan = found._sites["me"], found._plan
    mask = found._has(own.features)
    clusters, _ = label_persons(plan, model, _blocks(plan), own.memory, "me", mask)
    assert set(clusters.tolist()) == {0, -1, 2}
    # Nor has who is in a group that does not take part a cluster, however complete the own row.
    out = [dataclasses.replace(each, takes_part=each.takes_part & False) for each in _blocks(plan)]
    clusters, _ = label_persons(plan, found.result, out, own.memory, "me", mask)
    assert set(clusters.tolist()) == {-1}


def _blocks(plan: Any) -> Any:
    persons = read_persons(MINE, plan.features, outcomes=plan.outcomes)
    return form_counted(plan, persons, 5)[1]
