"""Outcomes in a whole session: who is counted, what is sent and what the result holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import FederatedKMeans, SessionResult, simulate
from fedclust.cli.result_output import result_facts
from fedclust.schema.feature import Outcome

DIED = {"name": "died", "kind": "binary", "role": "outcome"}
STAY = {"name": "stay", "kind": "ordered", "edges": [3, 8], "role": "outcome", "points": 100}
TIME = {"name": "t", "kind": "time", "edges": [1, 2, 3, 4], "event": "died", "role": "outcome"}
FEATURES: list[Any] = ["x", "y", DIED, STAY, TIME]
OUTCOMES = [Outcome.model_validate(each, strict=False) for each in (DIED, STAY, TIME)]
#: With the methods' options: single rows, and groups.
METHODS = ["lloyd", "fkm", "kfed", "overlap", "overlap_oneshot", "mixture", "spectral"]


def hospital(seed: int, n: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sick = rng.integers(0, 3, n) == 0
    died = (rng.random(n) < np.where(sick, 0.4, 0.1)).astype(float)
    found = pd.DataFrame(
        {
            "x": rng.normal(size=n) + 7 * sick,
            "y": rng.normal(size=n),
            "died": died,
            "stay": rng.gamma(2.0, 3.0, n),
            "t": rng.exponential(3.0, n),
        }
    )
    for name in ("died", "stay", "t"):
        found.loc[rng.random(n) < 0.1, name] = np.nan
    return found


SITES = {name: hospital(seed) for seed, name in enumerate(("berlin", "oslo", "porto"))}


def run(method: str = "lloyd", sites: Any = None, **config: Any) -> Any:
    named = {k: config.pop(k) for k in ("policy", "persons", "seed", "outcomes_k") if k in config}
    features = config.pop("features", FEATURES)
    config = {"n_clusters": 2, **config}
    return simulate(method, sites or SITES, config=config, features=features, **named)


def tables(found: Any) -> dict[str, tuple[Any, ...]]:
    """Return what each site sent about outcomes."""
    return {each.site: each.payload.cells for each in found.trace_ if each.phase == "outcomes"}


def counted(rows: pd.DataFrame, labels: Any, k: int = 2) -> list[Any]:
    """Return the exact tables of died, stay and t by cluster, the last row for none."""
    died = rows.died.fillna(2)
    stay = np.where(rows.stay.isna(), 3, np.digitize(rows.stay, [3, 8]))
    time = np.where(rows.t > 4, 8, 2 * np.floor(rows.t) + (rows.died == 0))
    time = np.where(rows.t.isna() | rows.died.isna(), 9, time)
    found = []
    for cells, outcome in zip((died, stay, time), OUTCOMES, strict=True):
        table = np.zeros((k + 1, len(outcome.cells)))
        np.add.at(table, (labels, np.asarray(cells, dtype=int)), 1)
        found.append(table)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_exact_tables_are_those_of_the_label_files(method: str) -> None:
    found = run(method, policy={"protection": "none", "missing": "impute"})
    for name, rows in SITES.items():
        for table, expected in zip(
            tables(found)[name], counted(rows, found.labels_[name]), strict=True
        ):
            np.testing.assert_array_equal(table, expected)
            assert table.sum() == 240
    assert [entry.phase for entry in found.history_][-1] == "outcomes"
    died = found.outcomes_.results[0]
    assert died.sigma == 0
    np.testing.assert_array_equal(died.total, sum(died.tables.values()))
    assert found.outcomes_.reference == int(np.argmax(found.sizes_))


# Each method's labels of rows are tried above: here one of rows, one of groups' cells, one of
# landmarks.
@pytest.mark.parametrize("method", ["lloyd", "kfed", "spectral"])
def test_persons_in_groups_are_counted_by_their_own_rows(method: str) -> None:
    """With noise, so the difference from the rows' own counts is that of the noise."""
    found = run(method)
    off: list[list[float]] = [[] for _ in OUTCOMES]
    for name, rows in SITES.items():
        for place, (table, expected) in enumerate(
            zip(tables(found)[name], counted(rows, found.labels_[name]), strict=True)
        ):
            off[place] += (table - expected).ravel().tolist()
    for outcome, differences in zip(OUTCOMES, off, strict=True):
        sd = float(outcome.variance) ** 0.5
        assert sd / 2 < np.std(differences) < 2 * sd
        assert abs(np.mean(differences)) < 5 * sd / len(differences) ** 0.5


def test_noise_depends_on_seed_site_and_outcome_and_on_nothing_else() -> None:
    one, same, other = run(), run(), run(seed=1)
    for name in SITES:
        for here, there in zip(tables(one)[name], tables(same)[name], strict=True):
            np.testing.assert_array_equal(here, there)
        assert (tables(one)[name][0] != tables(other)[name][0]).any()
    alike = run(sites=dict.fromkeys(SITES, hospital(1)))
    berlin, oslo = tables(alike)["berlin"], tables(alike)["oslo"]
    assert all((a != b).any() for a, b in zip(berlin, oslo, strict=True))


def test_a_group_that_lacks_a_column_is_in_no_cluster_where_rows_are_dropped() -> None:
    sites = {name: rows.copy() for name, rows in SITES.items()}
    for rows in sites.values():
        rows.loc[:59, "x"] = np.nan
    features = ["x", "y", {**DIED, "points": 10_000}]
    dropped = run(sites=sites, features=features, policy={"missing": "drop"})
    imputed = run(sites=sites, features=features, policy={"missing": "impute"})
    for name in sites:
        (table,) = tables(dropped)[name]
        # 60 incomplete persons, and complete ones who are in a group with some of them.
        assert 58 <= table[-1].sum() <= 80
        assert abs(table.sum() - 240) <= 4
        assert abs(table[:-1].sum() - sum(dropped.result.site_sizes[name])) <= 4
        (table,) = tables(imputed)[name]
        assert abs(table[-1]).sum() <= 3
        assert abs(table.sum() - 240) <= 4


@pytest.mark.filterwarnings("ignore:.*there is no column:UserWarning")
@pytest.mark.parametrize(
    ("method", "missing"), [("overlap", "mask"), ("lloyd", "impute"), ("fkm", "drop")]
)
def test_a_site_takes_part_without_outcomes_in_every_session(method: str, missing: str) -> None:
    every = {**SITES, "riga": hospital(9)}
    sites = {**every, "riga": every["riga"].drop(columns="died")}
    found = run(method, sites, policy={"missing": missing})
    # The time needs its event.
    assert [table is None for table in tables(found)["riga"]] == [True, False, True]
    died, stay, time = found.outcomes_.results
    assert (set(died.tables), set(stay.tables)) == (set(SITES), {*SITES, "riga"})
    assert [each.n_sites for each in (died, stay, time)] == [3, 4, 3]
    assert found.outcomes_.silent == ()
    # The clustering does not depend on it.
    complete = run(method, every, policy={"missing": missing})
    assert complete.outcomes_.results[0].n_sites == 4
    assert found.result.centroids.tobytes() == complete.result.centroids.tobytes()
    for name, labels in complete.labels_.items():
        np.testing.assert_array_equal(found.labels_[name], labels)
    # Without any column it is not asked, and the session goes on.
    sites["riga"] = every["riga"][["x", "y"]]
    found = run(method, sites, policy={"missing": missing})
    assert "riga" not in tables(found)
    assert found.outcomes_.silent == ("riga",)
    np.testing.assert_array_equal(found.labels_["riga"], complete.labels_["riga"])


@pytest.mark.filterwarnings("ignore:.*there is no column:UserWarning")
def test_an_outcome_of_fewer_sites_than_min_sites_is_not_shown() -> None:
    """Else each of two sites could subtract its own counts, and one alone shows them."""
    sites = {name: rows.copy() for name, rows in SITES.items()}
    del sites["oslo"]["stay"]
    found = run(sites=sites)
    assert found.outcomes_.withheld == ("stay",)
    assert "stay" not in [each.name for each in found.outcomes_.results]
    found = run(sites=sites, policy={"min_sites": 2})
    _, stay, _ = found.outcomes_.results
    assert (stay.n_sites, set(stay.tables)) == (2, {"berlin", "porto"})
    assert stay.total.sum() > 0
    assert found.outcomes_.withheld == ()


def test_of_one_cloud_everybody_sees_the_k_of_the_outcomes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(360, 2)), columns=["x", "y"])
    rows["died"] = (rng.random(360) < 0.3).astype(float)
    sites = {name: rows.iloc[i::3] for i, name in enumerate(SITES)}
    found = run(sites=sites, n_clusters=[2, 3, 4], outcomes_k=3, features=["x", "y", DIED], seed=1)
    assert (found.result.choice, found.result.n_clusters) == ("one-cloud", 3)
    assert all(found.labels_[site].max() == 2 for site in SITES)
    why = "No K is recommended; K = 3 is shown because outcomes were counted there."
    found.save_report(tmp_path / "report.html")
    found.save(tmp_path / "found.fedclust")
    for text in (repr(found), found._repr_html_(), (tmp_path / "report.html").read_text("utf-8")):
        assert why in text
        assert "No separate clusters were found" in text
        assert "The clusters show no clear difference in died" in " ".join(text.split())
    shown = "3 (tried K = 2, 3, 4; no K is recommended; K = 3 is shown)"
    assert shown in result_facts(found).values()
    assert SessionResult.load(tmp_path / "found.fedclust").result.n_clusters == 3


def test_an_estimator_takes_an_array_with_the_columns_of_outcomes_last() -> None:
    rows = pd.concat(SITES.values())[["x", "y", "t", "died"]].to_numpy(float)
    model = FederatedKMeans(2, features=["x", "y", TIME], policy={"protection": "none"})
    model.fit(rows, sites=np.repeat(list(SITES), 240))
    assert model.n_features_in_ == 2
    assert model.result_.outcomes_.results[0].total.sum() == 720
    np.testing.assert_array_equal(model.predict(rows[:, :2]), model.labels_)
