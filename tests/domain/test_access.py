"""Who may do and see what."""

from datetime import UTC, datetime

import numpy as np

from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import Result, SiteDifferences
from fedclust_service.domain.access import Actor, Role, sees_session, visible_result
from support.outcome_results import DIED, outcome_result
from support.results import result_of

FAR = datetime(2030, 1, 1, tzinfo=UTC)
ANALYST = Actor(Role.ANALYST, "ada", "t2", FAR)
NORTH = Actor(Role.SITE, "north", "t3", FAR)


def test_an_operator_of_the_same_name_is_somebody_else() -> None:
    assert not sees_session(ANALYST, "operator:ada", takes_part=False)


def _result(sizes: tuple[int | None, ...], **by_site: tuple[int | None, ...]) -> Result:
    about = {"sizes": sizes, "site_sizes": dict(by_site), "mapping": dict.fromkeys(by_site, (0, 1))}
    return result_of(np.arange(float(len(sizes)))[:, None], profile=None, **about)


def test_a_site_reads_its_own_sizes_and_mapping_and_an_analyst_all_sizes_alone() -> None:
    found = _result((30, 12), north=(10, 7), south=(20, 5))
    shown = visible_result(NORTH, found)
    assert shown.site_sizes == {"north": (10, 7)}
    assert shown.mapping == {"north": (0, 1)}
    shown = visible_result(ANALYST, found)
    assert shown.site_sizes == {"north": (10, 7), "south": (20, 5)}
    assert shown.mapping == {}


def test_a_site_reads_its_own_outcomes_and_those_of_all_sites_together() -> None:
    died = outcome_result(DIED, 2)
    outcomes = Outcomes(n_clusters=2, reference=0, results=(died,), silent=("b", "west"))
    found = _result((30, 12), a=(10, 7), b=(20, 5)).model_copy(update={"outcomes": outcomes})
    own = Actor(Role.SITE, "b", "t4", FAR)
    # The comparisons that are made up are of site a alone.
    for actor, sites, compared in ((own, {"b"}, set()), (ANALYST, {"a", "b"}, {"a"})):
        shown = visible_result(actor, found).outcomes
        assert shown.results[0].clusters == died.clusters
        assert np.array_equal(shown.results[0].total, died.total)
        assert set(shown.results[0].tables) == sites
        assert set(shown.results[0].comparisons[0].by_site) == compared
        assert shown.silent == (("b",) if actor is own else ("b", "west"))


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
