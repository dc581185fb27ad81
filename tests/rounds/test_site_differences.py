"""How sites differ: columns that one codes otherwise, and Cramér's V of site and cluster."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import SessionResult, simulate
from fedclust.methods.common.kmeans_rounds import Cells, local_kmeans
from fedclust.numeric.agreement import cramers_v
from fedclust.rounds import column_differences, preparation
from fedclust.rounds.column_differences import differing_columns
from fedclust.schema.feature import Feature
from fedclust.schema.result import SiteDifferences
from fedclust.schema.task import Contribution, row_points
from support.points import config_of

CENTRES = np.array([[0.0, 0.0, 4.0, 4.0], [4.0, 0.0, 0.0, 4.0], [0.0, 4.0, 4.0, 0.0]])


def rows_of(
    rng: np.random.Generator, n: int, shares: list[float] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    labels = rng.choice(3, size=n, p=shares)
    return CENTRES[labels] + rng.normal(size=(n, 4)) * 0.7, labels.astype(np.int64)


def cells_of(rows: NDArray[np.float64]) -> Cells:
    cells = local_kmeans(row_points(rows), 60, 2, np.random.default_rng(0))
    held = cells.counts > 0
    return Cells(means=cells.means[held], counts=cells.counts[held])


def consortium(mixes: list[list[float] | None]) -> dict[str, tuple[NDArray, NDArray]]:
    rng = np.random.default_rng(3)
    return {f"site-{i}": rows_of(rng, 150 + 60 * i, mix) for i, mix in enumerate(mixes)}


def found_in(sites: dict[str, tuple[NDArray, NDArray]]) -> dict[str, tuple[int, ...]] | None:
    cells = {site: cells_of(rows) for site, (rows, _) in sites.items()}
    return differing_columns(cells, np.zeros(4, dtype=np.bool_), 3, 3, 0, {})


@pytest.mark.parametrize(
    "miscode",
    [
        lambda column: 10.0 * column,
        lambda column: (column + 20.0) / 10.0 - 20.0,
        lambda column: 4.0 - column,
        lambda column: column + 6.0,
    ],
    ids=["tenfold", "tenth", "reversed", "shifted"],
)
def test_a_column_that_one_site_codes_otherwise_is_named(miscode) -> None:
    sites = consortium([None] * 5)
    sites["site-3"][0][:, 2] = miscode(sites["site-3"][0][:, 2])
    assert found_in(sites) == {"site-3": (2,)}


def test_all_columns_that_sites_code_otherwise_are_named() -> None:
    sites = consortium([None] * 5)
    sites["site-3"][0][:, 1:3] *= 10.0
    sites["site-0"][0][:, 0] = 4.0 - sites["site-0"][0][:, 0]
    assert found_in(sites) == {"site-0": (0,), "site-3": (1, 2)}
    # Of five sites, three cannot differ from the others.
    sites["site-1"][0][:, 3] *= 10.0
    assert len(found_in(sites)) == 2


def test_another_mix_of_persons_or_a_kind_that_only_one_site_has_names_no_column() -> None:
    mixes = [[0.8, 0.1, 0.1], [0.1, 0.9, 0.0], None, [0.0, 0.2, 0.8], None]
    assert found_in(consortium(mixes)) == {}
    sites = consortium([None] * 5)
    rows, _ = sites["site-2"]
    rows[:100] += np.array([-6.0, -6.0, 6.0, 6.0])
    assert found_in(sites) == {}


def test_columns_that_the_preparation_found_are_named_and_disturb_no_others() -> None:
    sites = consortium([None] * 5)
    # Clipped values: other columns of the site, and other sites, must not be charged with them.
    sites["site-3"][0][:, 2] = 3.0
    sites["site-0"][0][:, 0] = 4.0 - sites["site-0"][0][:, 0]
    cells = {site: cells_of(rows) for site, (rows, _) in sites.items()}
    found = {"site-3": (2,), "a site without persons": (1,)}
    binary = np.zeros(4, dtype=np.bool_)
    assert differing_columns(cells, binary, 3, 3, 0, found) == {"site-0": (0,), "site-3": (2,)}


# --- means and spreads ----------------------------------------------------------------------------


def differing(
    means: list[float | None], spreads: list[float], kind: Any = "numeric", **policy: Any
) -> dict[str, tuple[int, ...]]:
    """Return what the preparation names of one column; None: the site has no value of it."""
    config = config_of(None, features=(Feature(name="x0", kind=kind),), **policy)
    sent = [
        preparation.SiteMoments(
            n=50,
            observed=np.array([0 if mean is None else 50]),
            mean=np.array([mean or 0.0]),
            m2=np.array([50.0 * spread**2]),
        )
        for mean, spread in zip(means, spreads, strict=True)
    ]
    answers = [Contribution(f"s{i}", each, config.p) for i, each in enumerate(sent)]
    return preparation.merge(answers, config)[2]


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_a_site_more_than_four_times_as_far_as_the_next_is_named(scaling: str) -> None:
    policy = {"scaling": scaling, "missing": "impute"}
    # Distances are the roots of squared spread and distance to the middle: here 0 and 2.
    assert differing([0.0] * 4, [1.0, 2.0, 1.5, 8.01], **policy) == {"s3": (0,)}
    assert differing([0.0] * 4, [1.0, 2.0, 1.5, 7.99], **policy) == {}
    assert differing([2.0, 2.0, 2.0, 10.01], [2.0, 1.0, 1.5, 0.0], **policy) == {"s3": (0,)}
    assert differing([2.0, 2.0, 2.0, 9.99], [2.0, 1.0, 1.5, 0.0], **policy) == {}


def test_all_sites_beyond_the_gap_are_named_where_most_lie_before_it() -> None:
    spreads = [1.0, 12.0, 1.0, 10.0, 1.0]
    policy = {"scaling": "standard"}
    assert differing([0.0] * 5, spreads, **policy) == {"s1": (0,), "s3": (0,)}
    # Two of four: nobody can say which of them differ. Nor with a third site that has no values.
    assert differing([0.0] * 4, spreads[:4], **policy) == {}
    assert differing([0.0, 0.0, 0.0, None], [1.0, 1.0, 12.0, 1.0], **policy) == {}
    assert differing([0.0, 0.0, None, 0.0, 0.0], [*spreads[:1], 12.0, 1.0, 1.0, 1.0], **policy) == {
        "s1": (0,)
    }


def test_shares_and_columns_of_one_value_are_not_compared_by_their_spread() -> None:
    policy = {"scaling": "standard"}
    assert differing([0.01, 0.01, 0.01, 0.9], [0.1, 0.1, 0.1, 0.3], "binary", **policy) == {}
    assert differing([0.01, 0.01, 0.01, 0.9], [0.1, 0.1, 0.1, 0.3], **policy) == {"s3": (0,)}
    assert differing([7.0, 7.0, 7.0, 1.0], [0.0, 0.0, 0.0, 1.0], **policy) == {}


# --- in a session ---------------------------------------------------------------------------------


def session(sites: dict[str, NDArray[np.float64]], **more: Any) -> SessionResult:
    config = {"n_clusters": 3, "evidence": True, **more.pop("config", {})}
    return simulate("lloyd", sites, config=config, **more)


def groups_of(found: SessionResult, place: int = 0) -> NDArray[np.int64]:
    """Return the groups of each site in each cluster (S, K) of one K."""
    sent = [entry.payload for entry in found.trace_ if entry.phase == "evidence"]
    return np.stack([each.parts[place].points for each in sent if each is not None])


@pytest.fixture(scope="module")
def hospitals() -> dict[str, NDArray[np.float64]]:
    """Five hospitals, one of which reverses the third column; and one of four persons."""
    sites = {site: each[0] for site, each in consortium([None] * 5).items()}
    sites["site-3"][:, 2] = 4.0 - sites["site-3"][:, 2]
    return {**sites, "tiny": CENTRES[[0, 1, 2, 0]]}


@pytest.mark.parametrize(
    ("middle", "miscode"),
    [(0.0, lambda x: 10.0 * x), (5.0, lambda x: 18.0 * x), (37.0, lambda x: 1.8 * x + 32.0)],
    ids=["tenfold", "mg/dl", "Fahrenheit"],
)
def test_a_session_names_the_hospital_with_another_unit(middle: float, miscode: Any) -> None:
    """In a column that tells no clusters apart."""
    rng = np.random.default_rng(9)
    sites = {
        f"site-{i}": np.column_stack([rows_of(rng, 60)[0], middle + rng.normal(size=60)])
        for i in range(4)
    }
    assert session(sites).site_differences_.columns == {}
    sites["site-1"][:, 4] = miscode(sites["site-1"][:, 4])
    assert session(sites).site_differences_.columns == {"site-1": ("x4",)}


def test_with_fewer_than_30_groups_a_site_nobody_knows_cramers_v() -> None:
    sites = {site: each[0] for site, each in consortium([[0.8, 0.1, 0.1], None]).items()}
    few = {site: rows[:150] for site, rows in sites.items()}
    policy = {"min_sites": 2}
    protected, exact = session(few, policy=policy), {**policy, "protection": "none"}
    assert 25 <= groups_of(protected).sum() / 2 < 30
    assert protected.site_differences_.cramers_v is None
    more = session({**few, "site-1": sites["site-1"][:200]}, policy=policy)
    assert 30 <= groups_of(more).sum() / 2 < 35
    assert more.site_differences_.cramers_v > 0.3
    # Without protection a point is a person.
    rows = session({site: rows[:20] for site, rows in few.items()}, policy=exact)
    labels = [np.bincount(own, minlength=3) for own in rows.labels_.values()]
    assert rows.site_differences_.cramers_v == cramers_v(np.stack(labels)) > 0.3


def test_one_site_has_no_cramers_v(hospitals: dict[str, NDArray[np.float64]]) -> None:
    alone = session({"site-4": hospitals["site-4"]}, policy={"min_sites": 1})
    assert groups_of(alone).sum() > 30
    assert alone.site_differences_ == SiteDifferences()


def test_without_enough_other_sites_no_column_is_compared() -> None:
    sites = {site: each[0] for site, each in consortium([None] * 3).items()}
    sites["site-1"][:, 2] *= 10.0
    assert session(sites).site_differences_.columns is None


@pytest.mark.parametrize(
    ("config", "phase"),
    [
        ({}, "evidence"),
        ({"n_clusters": [2, 3], "evidence": False}, "evidence"),
        ({"stability": 20}, "resampling"),
    ],
)
def test_sites_are_compared_once_whenever_they_send_cells(
    hospitals: dict[str, NDArray[np.float64]],
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    phase: str,
) -> None:
    asked = []

    def compare(sites: Any, binary: Any, n_clusters: int, *rest: Any) -> Any:
        asked.append(n_clusters)
        return differing_columns(sites, binary, n_clusters, *rest)

    monkeypatch.setattr(column_differences, "differing_columns", compare)
    found = session(hospitals, config=config)
    assert found.history_[-1].phase == phase
    assert asked == [3]
    for place, own in enumerate([each.result for each in found.sweep_ or ()] or [found.result]):
        assert own.site_differences.columns == {"site-3": ("x2",)}
        # The persons of a group go together; `tiny` is smaller than a group, and answers empty.
        groups = groups_of(found, place)
        assert len(groups) == 5
        assert own.site_differences.cramers_v == cramers_v(groups) < 0.3


def test_sites_that_send_no_cells_are_not_compared(
    hospitals: dict[str, NDArray[np.float64]],
) -> None:
    assert session(hospitals, config={"evidence": False}).site_differences_ is None
