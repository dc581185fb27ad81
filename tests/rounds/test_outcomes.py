"""The last round of a session with outcomes: when it is asked, of whom, and what is checked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from fedclust import rounds
from fedclust.definition import DefinitionError, freeze, plan_of
from fedclust.rounds import outcomes
from fedclust.rounds.outcomes import OutcomesPayload, OutcomesSitePart
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Outcome
from fedclust.schema.result import Result
from fedclust.schema.task import SiteTask, row_points
from support.definitions import session_request
from support.driven import Run, drive, site_step
from support.points import violation

SITES = ("berlin", "oslo", "porto", "riga")
DIED = {"name": "died", "role": "outcome", "kind": "binary"}
DAYS = {"name": "days", "role": "outcome", "kind": "ordered", "edges": [3, 7], "points": 40}
CENTRES = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
ROWS = dict(
    zip(SITES, np.array_split(make_blobs(240, centers=CENTRES, random_state=1)[0], 4), strict=True)
)


def plan(*declared: Mapping[str, Any], **more: Any) -> rounds.Plan:
    given = {"algorithm": "lloyd", "config": {"n_clusters": 3}, "sites": SITES}
    asked = {**given, "policy": {"protection": "none"}, **more}
    request = session_request("x", "y", *map(dict, declared or (DIED, DAYS)), **asked)
    return plan_of(freeze(request, 1, simulated=True))


def counted(model: Result, site: str, declared: tuple[Outcome, ...]) -> OutcomesPayload:
    """Count a site's rows: all have the first cell of each outcome."""
    labels = rounds.label(plan(), model, ROWS[site])
    tables = []
    for outcome in declared:
        table = np.zeros((len(model.centroids) + 1, len(outcome.cells)), dtype=np.int64)
        table[:-1, 0] = np.bincount(labels, minlength=len(model.centroids))
        tables.append(table)
    return OutcomesPayload(cells=tuple(tables))


def run(session: rounds.Plan, *, silent: Sequence[str] = (), absent: Sequence[str] = ()) -> Run:
    """Run a session; ``absent`` sites answer the last round empty."""

    def count(site: str) -> Any:
        return None if site in absent else lambda model, _: counted(model, site, session.outcomes)

    points = {site: row_points(rows) for site, rows in ROWS.items()}
    return drive(session, points, without=silent, count=count)


@pytest.mark.parametrize("config", [{}, {"stability": 20}, {"evidence": True}])
def test_outcomes_are_the_last_round_whatever_came_before(config: dict[str, Any]) -> None:
    session = plan(config={"n_clusters": 3, **config})
    done = run(session)
    assert [each.phase for each in done.rounds].count("outcomes") == 1
    assert done.rounds[-1].phase == "outcomes"
    assert len(done.rounds) <= rounds.most_rounds(session)
    found = done.result.outcomes
    sizes = done.result.sizes
    for result in found.results:
        assert result.total[:-1, 0].tolist() == list(sizes or ())
        assert set(result.tables) == set(SITES)
        assert result.sigma == 0.0
    assert done.result.history[-1].phase == "outcomes"


def test_no_message_before_the_last_round_depends_on_the_outcomes() -> None:
    with_outcomes = run(plan()).rounds
    without = run(plan({"name": "died"}, features=[{"name": "x"}, {"name": "y"}])).rounds
    for one, two in zip(with_outcomes[:-1], without, strict=True):
        assert one.phase == two.phase
        for site in SITES:
            assert one.payloads[site].model_dump_json() == two.payloads[site].model_dump_json()


def test_a_site_that_is_silent_is_not_asked() -> None:
    done = run(plan(), silent=("oslo",))
    assert [*done.rounds[-1].payloads] == ["berlin", "porto", "riga"]
    found = done.result.outcomes
    assert found.silent == ("oslo",)
    assert set(found.results[0].tables) == {"berlin", "porto", "riga"}


def test_with_too_few_sites_that_answer_nothing_is_asked() -> None:
    done = run(plan(), silent=("oslo", "porto"))
    assert done.rounds[-1].phase == "evidence"
    assert done.result.outcomes.results == ()
    assert any("outcomes are not known" in warning for warning in done.result.warnings)


def test_a_round_that_too_few_sites_answer_leaves_the_clusters_as_they_were() -> None:
    whole = run(plan())
    done = run(plan(), absent=("oslo", "porto"))
    assert done.rounds[-1].phase == "outcomes"
    assert np.array_equal(done.result.centroids, whole.result.centroids)
    assert done.result.sizes == whole.result.sizes
    assert done.result.outcomes is None


def test_outcomes_stand_at_the_number_of_clusters_that_was_asked_for() -> None:
    done = run(plan(config={"n_clusters": [2, 3, 4]}, outcomes_k=2))
    assert [each.phase for each in done.rounds][-2:] == ["evidence", "outcomes"]
    for entry in done.result.sweep or ():
        assert (entry.result.outcomes is not None) == (entry.n_clusters == 2)
    best = run(plan(config={"n_clusters": [2, 3, 4]}, outcomes_k="recommended"))
    assert best.result.outcomes.n_clusters == best.result.n_clusters


def test_without_a_number_of_clusters_that_stands_out_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    for site in SITES:
        monkeypatch.setitem(ROWS, site, rng.uniform(size=(60, 2)))
    done = run(plan(config={"n_clusters": [4, 5, 6, 7]}, outcomes_k="recommended"))
    assert done.rounds[-1].phase == "evidence"
    assert done.result.outcomes is None
    assert any("no single number of clusters" in warning for warning in done.result.warnings)


# --- what is checked ------------------------------------------------------------------------------


def last_task(session: rounds.Plan) -> tuple[SiteTask, OutcomesPayload]:
    last = run(session).rounds[-1]
    return last.tasks["oslo"], last.payloads["oslo"]


@pytest.mark.parametrize(
    ("protection", "count", "rule"),
    [
        ("none", 60, None),
        ("none", 61, "count-range"),
        ("none", -1, "count-range"),
        ("groups", 60 + 200, None),
        ("groups", -260, None),
        ("groups", 261, "count-range"),
    ],
)
def test_the_coordinator_refuses_counts_that_no_noise_explains(
    protection: str, count: int, rule: str | None
) -> None:
    # The noise of 10 points has sd 5: 40 of it are 200.
    session = plan(DIED)
    task, payload = last_task(session)
    session = replace(session, policy=session.policy.model_copy(update={"protection": protection}))
    table = np.array(payload.cells[0])
    table[0, 1] = count
    # Persons without a cluster are not limited: the closing round did not count them.
    table[-1, 1] = 10**9
    changed = OutcomesPayload(cells=(table,))
    if rule is None:
        rounds.check(session, task, changed, p=5, size_band=None)
        return
    assert violation(rounds.check, session, task, changed, p=5, size_band=None).rule == rule


def test_tables_have_the_shape_of_the_declaration() -> None:
    session = plan()
    task, payload = last_task(session)
    table, other = payload.cells
    for wrong in ((table,), (table[:-1], other), (table[:, :-1], other), (other, table)):
        with pytest.raises(RuleViolation):
            rounds.check(session, task, OutcomesPayload(cells=wrong), p=5, size_band=None)
    # A site without a column for an outcome sends none of it.
    rounds.check(session, task, OutcomesPayload(cells=(None, other)), p=5, size_band=None)


def at_oslo(session: rounds.Plan, task: SiteTask, count: Any) -> Any:
    """Return what a site answers to a task of the last round."""
    return site_step(session, task, row_points(ROWS["oslo"]), "oslo", 9, p=1, count=count)


@pytest.mark.parametrize(
    "update",
    [
        {"center": np.array([9.0, 9.0])},
        {"scale": np.full(2, 2.0)},
        {"mask": np.ones((1, 2), dtype=bool)},
        {"dissimilarity": "gower"},
        {"centroids": np.zeros((0, 2)), "centroids_original": np.zeros((0, 2))},
        {"centroids": np.full((3, 2), np.nan)},
        {"centroids": np.zeros((3, 5)), "centroids_original": np.zeros((3, 5))},
        {"centroids_original": np.zeros((2, 2))},
        {"prototypes": np.zeros((2, 2)), "prototype_labels": (0, 1)},
    ],
    ids=lambda update: "-".join(update),
)
def test_a_site_refuses_another_model_than_the_definition_provides_for(
    update: dict[str, Any],
) -> None:
    session = plan()
    task, _ = last_task(session)
    model = task.common.model.model_copy(update=update)  # type: ignore[attr-defined]
    crafted = replace(task, common=outcomes.OutcomesTask(model=model))
    broken = violation(
        at_oslo, session, crafted, lambda *_: pytest.fail("a crafted model reached the rows")
    )
    assert broken.rule in ("task", "task-space")


def test_a_site_counts_at_the_number_of_clusters_of_the_definition_alone() -> None:
    session = plan(config={"n_clusters": [2, 3, 4]}, outcomes_k=3)
    task, _ = last_task(session)
    for k, asked in ((2, True), (None, True), (5, False)):
        model = task.common.model.model_copy(update={"n_clusters": k})  # type: ignore[attr-defined]
        crafted = replace(task, common=outcomes.OutcomesTask(model=model))
        other = session if asked else replace(session, outcomes_k="recommended")
        assert violation(at_oslo, other, crafted, None).rule == "task"


def test_whether_a_site_answers_does_not_depend_on_its_counts() -> None:
    session = plan(DIED)
    task, payload = last_task(session)
    # A coordinator claims that the site has no persons: the site answers as always.
    crafted = replace(task, site=OutcomesSitePart(persons=0))
    assert at_oslo(session, crafted, lambda _model, _memory: payload)[0] == payload


# --- the definition -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        ({**DIED, "levels": ["a", "b"]}, "only a categorical outcome has levels"),
        ({**DIED, "edges": [1, 2]}, "only an ordered outcome or a time has edges"),
        ({**DAYS, "edges": [3]}, "give 2 to 5 numbers, each where a range begins"),
        ({**DAYS, "edges": [7, 3]}, "edges ascend"),
        ({**DAYS, "values": [1, 2]}, "one value is needed for each cell"),
        ({**DAYS, "event": "died"}, "only a time outcome has event"),
        ({"name": "t", "role": "outcome", "kind": "time", "edges": [1, 2, 3, 4]}, "says whether"),
        (
            {"name": "t", "role": "outcome", "kind": "time", "edges": [0, 2, 3, 4], "event": "e"},
            "every edge is above it",
        ),
        ({"name": "c", "role": "outcome", "kind": "categorical"}, "2 to 12 levels"),
        (
            {"name": "c", "role": "outcome", "kind": "categorical", "levels": ["a", "a"]},
            "named once",
        ),
        ({"name": "x", "role": "outcome", "kind": "binary"}, "another kind"),
        (
            {"name": "x", "role": "outcome", "kind": "ordered", "edges": [1, 2], "unit": "m"},
            "is in",
        ),
    ],
)
def test_a_wrong_outcome_is_refused_with_what_to_change(outcome: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        plan(outcome)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"config": {"n_clusters": [2, 3]}, "outcomes_k": 4}, "one K only: give 2, 3 or"),
        ({"outcomes_k": 3}, "several numbers of clusters"),
        ({"config": {"n_clusters": 3, "evaluate": False}}, "leave evaluate on"),
        *(
            (
                {"algorithm": "spectral", "config": {"n_clusters": 3, "alignment": alignment}},
                "which spectral lacks with these options: take its default ones",
            )
            for alignment in ("sign", "procrustes", "none")
        ),
    ],
)
def test_outcomes_need_a_number_of_clusters(more: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        plan(**more)


def test_of_several_k_the_recommended_one_counts_unless_one_is_named() -> None:
    several = {"n_clusters": [2, 3]}
    assert plan(config=several).outcomes_k == "recommended"
    assert plan(config=several, outcomes_k=2).outcomes_k == 2
    assert plan().outcomes_k is None
