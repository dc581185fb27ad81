"""Tables of outcomes from sites become estimates, whatever the sites send."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from fedclust.rounds.outcome_statistics import summarise
from fedclust.schema.feature import Outcome
from fedclust.schema.outcomes import Estimate, Outcomes

sms = pytest.importorskip("statsmodels.stats.api")

BINARY = Outcome(name="died", role="outcome", kind="binary")
CATEGORICAL = Outcome(
    name="ward", role="outcome", kind="categorical", levels=("icu", "ward", "home")
)
ORDERED = Outcome(name="stay", role="outcome", kind="ordered", edges=(3, 7, 14), unit="days")
VALUED = ORDERED.model_copy(update={"values": (1.5, 5.0, 10.0, 20.0)})
TIME = Outcome(name="death", role="outcome", kind="time", edges=(30, 90, 180, 365), event="died")
KINDS = [BINARY, CATEGORICAL, ORDERED, VALUED, TIME]


def _tables(seed: int = 0, n_clusters: int = 3, persons: int = 400) -> dict[str, tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    found = {}
    for site in ("b", "a", "d", "c"):
        own = []
        for outcome in KINDS:
            n_cells = len(outcome.cells)
            shares = rng.dirichlet(np.full(n_cells, 3.0), n_clusters + 1)
            sizes = persons // np.arange(1, n_clusters + 2)
            own.append(
                np.stack([rng.multinomial(n, p) for n, p in zip(sizes, shares, strict=True)])
            )
        found[site] = tuple(own)
    return found


def _persons(tables: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {site: own[0][:-1].sum(axis=1) for site, own in tables.items()}


def _summary(tables: dict[str, tuple[Any, ...]], *, exact: bool = False) -> Outcomes:
    return summarise(tables, KINDS, _persons(tables), exact=exact)


def test_exact_odds_ratios_and_tests_are_those_of_statsmodels() -> None:
    tables = _tables()
    found = _summary(tables, exact=True)
    assert found.reference == 0
    died = found.results[0]
    assert died.sigma == 0
    ratios = [each for each in died.comparisons if each.measure == "odds_ratio"]
    for each in ratios:
        squares = [own[0][[each.cluster, 0], 1::-1] for own in tables.values()]
        theirs = sms.StratifiedTable(squares)
        limits = theirs.oddsratio_pooled_confint()
        assert _numbers(each.estimate) == pytest.approx([theirs.oddsratio_pooled, *limits], 1e-12)
        assert each.p_value == pytest.approx(theirs.test_null_odds().pvalue, 1e-12)
        assert each.homogeneity_p == pytest.approx(theirs.test_equal_odds(True).pvalue, 1e-12)
        one = sms.Table2x2(tables["a"][0][[each.cluster, 0], 1::-1])
        own = _numbers(each.by_site["a"])
        assert own == pytest.approx([one.oddsratio, *one.oddsratio_confint()], 1e-12)


def _numbers(found: Estimate) -> list[Any]:
    return [found.value, found.lower, found.upper]


def test_each_kind_has_its_measures() -> None:
    found = _summary(_tables())
    both = ("odds_ratio", "risk_difference")
    assert [
        [(each.measure, each.level) for each in result.comparisons if each.cluster == 2]
        for result in found.results
    ] == [
        [(name, "") for name in both],
        [(name, level) for name in both for level in ("icu", "ward", "home")],
        [("superiority", "")],
        [("superiority", ""), ("mean_difference", "")],
        [("rate_ratio", "")],
    ]
    for result in found.results:
        assert [each.cluster for each in result.comparisons[:2]] == [1, 2]
        assert all(each.p_value is not None for each in result.comparisons)
    died, ward, stay, valued, death = (each.clusters[0] for each in found.results)
    assert [len(each.shares) for each in (died, ward, stay, valued, death)] == [1, 3, 4, 4, 0]
    assert (stay.mean, valued.mean is None) == (None, False)
    assert [point.time for point in death.survival] == [0, 30, 90, 180, 365]
    assert death.survival[0].survival == Estimate(value=1, lower=1, upper=1)
    assert death.restricted_mean is not None
    assert found.results[0].sigma == 5


def test_the_order_of_sites_changes_no_bit() -> None:
    tables = _tables()
    texts = set()
    for sites in itertools.permutations(tables):
        ordered = {site: tables[site] for site in sites}
        persons = {site: _persons(tables)[site] for site in sites[::-1]}
        found = summarise(ordered, KINDS, persons, exact=False, silent=sites[:0])
        texts.add(found.model_dump_json())
    assert len(texts) == 1


def test_a_site_sees_its_own_table_and_the_totals() -> None:
    tables = _tables()
    persons = {**_persons(tables), "e": np.array([50, 20, 9]), "f": np.array([50, 20, 9])}
    every = summarise(tables, KINDS, persons, exact=False, silent=["f", "e"])
    assert every.silent == ("e", "f")
    own = every.of_sites({"a", "f"})
    assert own.silent == ("f",)
    for mine, all_of_it in zip(own.results, every.results, strict=True):
        assert list(mine.tables) == ["a"]
        np.testing.assert_array_equal(mine.total, sum(all_of_it.tables.values()))
        assert mine.clusters == all_of_it.clusters
        for one, other in zip(mine.comparisons, all_of_it.comparisons, strict=True):
            assert set(one.by_site) <= {"a"}
            assert one.estimate == other.estimate


def test_sites_without_the_column_are_left_out() -> None:
    tables = _tables()
    tables["b"] = (None, *tables["b"][1:])
    persons = {site: own[1][:-1].sum(axis=1) for site, own in tables.items()}
    died = summarise(tables, KINDS, persons, exact=False).results[0]
    assert list(died.tables) == ["a", "c", "d"]
    nobody = {site: (None,) * len(KINDS) for site in tables}
    for result in summarise(nobody, KINDS, persons, exact=False).results:
        assert result.tables == {}
        assert not result.total.any()
        for each in result.comparisons:
            assert (each.estimate, each.p_value, each.by_site) == (Estimate(), None, {})


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("hostile", ["zeros", "negative", "huge", "mixed", "one cell"])
def test_hostile_counts_read_cannot_tell_and_never_fail(hostile: str, exact: bool) -> None:
    rng = np.random.default_rng(5)
    for attempt in range(8):
        tables = _tables(attempt)
        bad = []
        for table in tables["a"]:
            sign = rng.choice([-1, 1], table.shape)
            bad.append(
                {
                    "zeros": 0 * table,
                    "negative": -table,
                    "huge": sign * 10**11,
                    "mixed": sign * rng.integers(0, 10, table.shape) ** 11,
                    "one cell": np.where(np.arange(table.size) == attempt, 1, 0).reshape(
                        table.shape
                    ),
                }[hostile]
            )
        sites = ("a",) if attempt % 2 else ("a", "b", "c", "d")
        sent = {site: tables[site] for site in sites} | {"a": tuple(bad)}
        found = summarise(sent, KINDS, _persons(tables), exact=exact)
        # Strict JSON: neither NaN nor infinity.
        assert Outcomes.model_validate_json(found.model_dump_json()).n_clusters == 3
        for result in found.results:
            for each in result.comparisons:
                _consistent(each.estimate)
                for own in each.by_site.values():
                    _consistent(own)
                assert each.p_value is None or 0 <= each.p_value <= 1


def _consistent(found: Estimate) -> None:
    lower = -math.inf if found.lower is None else found.lower
    upper = math.inf if found.upper is None else found.upper
    assert lower <= upper
    if found.value is not None:
        assert lower <= found.value <= upper


def test_a_table_of_zeros_tells_nothing() -> None:
    tables = {s: tuple(0 * table for table in own) for s, own in _tables().items()}
    for exact in (True, False):
        found = summarise(tables, KINDS, _persons(_tables()), exact=exact)
        for result in found.results:
            assert all(each.estimate == Estimate() for each in result.comparisons)
            assert not any(each.by_site for each in result.comparisons)
            for own in result.clusters:
                assert own.persons == 0
                assert own.median is None
                assert all(share.value is None for share in own.shares)


def test_effects_by_site_are_shown_where_noise_is_smaller_than_sampling() -> None:
    tables = _tables(persons=20_000)
    small = {"z": tuple(np.round(table / 1000).astype(np.int64) for table in tables["a"])}
    found = _summary(tables | small).results[0].comparisons[0]
    assert sorted(found.by_site) == ["a", "b", "c", "d"]
    exact = _summary(tables | small, exact=True).results[0].comparisons[0]
    assert sorted(exact.by_site) == ["a", "b", "c", "d", "z"]


def test_a_single_cluster_has_nobody_to_be_compared_with() -> None:
    tables = _tables(n_clusters=1)
    found = _summary(tables)
    assert (found.n_clusters, found.reference) == (1, 0)
    assert all(result.comparisons == () for result in found.results)
