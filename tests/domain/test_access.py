"""Who may do and see what."""

from datetime import UTC, datetime

import numpy as np

from fedclust.schema.outcomes import (
    Estimate,
    OutcomeComparison,
    OutcomeInCluster,
    OutcomeResult,
    Outcomes,
)
from fedclust.schema.result import Result, SiteDifferences
from fedclust_service.domain.access import Actor, Role, sees_session, visible_result

FAR = datetime(2030, 1, 1, tzinfo=UTC)
OPERATOR = Actor(Role.OPERATOR, "ada", "t1", FAR)
ANALYST = Actor(Role.ANALYST, "ada", "t2", FAR)
NORTH = Actor(Role.SITE, "north", "t3", FAR)


def test_sessions_are_seen_by_creator_participants_and_operators() -> None:
    assert sees_session(OPERATOR, "analyst:eve", takes_part=False)
    assert sees_session(ANALYST, "analyst:ada", takes_part=False)
    assert not sees_session(ANALYST, "analyst:eve", takes_part=False)
    # An operator of the same name is somebody else.
    assert not sees_session(ANALYST, "operator:ada", takes_part=False)
    assert sees_session(NORTH, "analyst:eve", takes_part=True)
    assert not sees_session(NORTH, "analyst:eve", takes_part=False)


def _result(sizes: tuple[int | None, ...], **by_site: tuple[int | None, ...]) -> Result:
    k = len(sizes)
    return Result(
        centroids=np.arange(float(k))[:, None],
        centroids_original=np.arange(float(k))[:, None],
        center=np.zeros(1),
        scale=np.ones(1),
        sizes=sizes,
        site_sizes=dict(by_site),
        mapping=dict.fromkeys(by_site, (0, 1)),
    )


def test_a_site_reads_its_own_sizes_and_mapping_only() -> None:
    shown = visible_result(NORTH, _result((30, 12), north=(10, 7), south=(20, 5)))
    assert shown.site_sizes == {"north": (10, 7)}
    assert shown.mapping == {"north": (0, 1)}


def test_a_site_reads_its_own_outcomes_and_those_of_all_sites_together() -> None:
    estimate = Estimate(value=2.0, lower=1.0, upper=4.0)
    row = (OutcomeInCluster(persons=20.0, shares=(estimate,)),) * 2
    table = np.arange(9).reshape(3, 3)
    died = OutcomeResult(
        name="died",
        unit="",
        kind="binary",
        cells=("no", "yes", "no value"),
        points=10,
        sigma=5.0,
        n_sites=2,
        tables={"north": table, "south": 2 * table},
        total=3 * table,
        clusters=row,
        comparisons=(
            OutcomeComparison(
                cluster=1,
                measure="odds_ratio",
                estimate=estimate,
                p_value=0.1,
                homogeneity_p=None,
                by_site=dict.fromkeys(("north", "south"), estimate),
            ),
        ),
    )
    found = _result((30, 12), north=(10, 7), south=(20, 5))
    outcomes = Outcomes(n_clusters=2, reference=0, results=(died,), silent=("north", "west"))
    found = found.model_copy(update={"outcomes": outcomes})
    for actor, sites in ((NORTH, {"north"}), (ANALYST, {"north", "south"})):
        shown = visible_result(actor, found).outcomes
        assert shown.results[0].clusters == row
        assert np.array_equal(shown.results[0].total, 3 * table)
        assert set(shown.results[0].tables) == sites
        assert set(shown.results[0].comparisons[0].by_site) == sites
        assert shown.silent == (("north",) if actor is NORTH else ("north", "west"))


def test_a_site_reads_of_its_own_columns_alone() -> None:
    columns = dict.fromkeys(("north", "south"), ("crp",))
    found = _result((30, 12), north=(10, 7), south=(20, 5))
    for given in (columns, None):
        differ = SiteDifferences(columns=given, cramers_v=0.1)
        shown = visible_result(NORTH, found.model_copy(update={"site_differences": differ}))
        assert shown.site_differences.columns == (given and {"north": ("crp",)})
        assert shown.site_differences.cramers_v == 0.1
        all_sites = visible_result(ANALYST, found.model_copy(update={"site_differences": differ}))
        assert all_sites.site_differences == differ


def test_analysts_read_sizes_by_site_and_no_mapping() -> None:
    shown = visible_result(ANALYST, _result((30, 12), north=(10, 7), south=(20, 5)))
    assert shown.site_sizes == {"north": (10, 7), "south": (20, 5)}
    assert shown.mapping == {}
