"""Mixed data: k-prototypes against the package ``kmodes`` on pooled rows, and what it refuses."""

import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.definition import DefinitionError, check_definition, freeze
from fedclust.methods import lloyd
from fedclust.methods.common import kmeans_rounds
from fedclust.methods.registry import METHODS
from fedclust.numeric.distances import N_CELLS, MedianRule, ModeRule
from fedclust.result.session_terms import SessionTerms
from fedclust.schema.encoding import columns_of
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import Policy
from fedclust.schema.scaling import declared_space, gamma_of
from fedclust.schema.task import SiteTask
from fedclust.wire.models import OperatorInfo
from support.definitions import session_request
from support.points import answer_task, check_answer, config_of, violation, weighted

pd = pytest.importorskip("pandas")

LEVELS = ("a", "b", "c", "d")
FEATURES: list[dict[str, Any]] = [
    {"name": "age"},
    {"name": "crp"},
    {"name": "sex", "kind": "binary"},
    {"name": "pain", "kind": "categorical", "levels": LEVELS},
]
COLUMNS = columns_of(tuple(Feature(**each) for each in FEATURES))
SITES = 3
K_PROTOTYPES = {"dissimilarity": "k-prototypes", "protection": "none"}


def patients(n: int = 150, seed: int = 0) -> Any:
    """Return rows of three kinds of patients, who differ in every column."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n) % 3
    pain = [rng.choice(4, p=np.roll([0.7, 0.1, 0.1, 0.1], k)) for k in kind]
    return pd.DataFrame(
        {
            "age": rng.normal(40.0 + 15 * kind, 5),
            "crp": rng.normal(20.0 - 6 * kind, 4),
            "sex": (rng.random(n) < np.array([0.1, 0.5, 0.9])[kind]).astype(float),
            "pain": np.array(LEVELS)[pain],
        }
    )


def by_site(rows: Any) -> dict[str, Any]:
    return {f"s{i}": rows[i::SITES].reset_index(drop=True) for i in range(SITES)}


def pooled(labels: dict[str, NDArray[np.int64]], n: int) -> NDArray[np.int64]:
    found = np.empty(n, dtype=np.int64)
    for i in range(SITES):
        found[i::SITES] = labels[f"s{i}"]
    return found


def cluster(rows: Any, method: str = "lloyd", features: Any = FEATURES, **options: Any) -> Any:
    policy = options.pop("policy", K_PROTOTYPES)
    config = {"n_clusters": 3, **options}
    features = [each for each in features if each["name"] in rows]
    return simulate(
        method, by_site(rows), config=config, policy=policy, features=features, progress=False
    )


@pytest.mark.parametrize("gamma", [None, 2.5])
@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_it_equals_kmodes_on_the_pooled_rows_from_the_same_start(
    gamma: float | None, scaling: str
) -> None:
    from kmodes.kprototypes import KPrototypes

    rows = patients()
    numbers = rows[["age", "crp"]].to_numpy()
    center, width = np.zeros(2), np.ones(2)
    if scaling == "standard":
        center, width = numbers.mean(axis=0), numbers.std(axis=0)
    first = rows[:3]
    codes = np.array(
        [
            [sex, *(pain == level for level in LEVELS)]
            for sex, pain in zip(first["sex"], first["pain"], strict=True)
        ],
        dtype=float,
    )
    start = np.column_stack([first[["age", "crp"]], codes])
    policy = {**K_PROTOTYPES, "scaling": scaling, "gamma": gamma}
    found = cluster(rows, start="given", centroids=start.tolist(), policy=policy)

    scaled = np.column_stack(
        [(numbers - center) / width, rows["sex"], rows["pain"].map(LEVELS.index)]
    )
    init = [scaled[:3, :2], scaled[:3, 2:]]
    central = KPrototypes(3, init=init, n_init=1, gamma=gamma, random_state=0)
    labels = central.fit_predict(scaled, categorical=[2, 3])

    result = found.result
    assert result.quality.inertia == pytest.approx(central.cost_, rel=1e-9)
    assert gamma_of(COLUMNS, result.scale) == pytest.approx(central.gamma)
    together = labels[:, None] == labels
    own = pooled(found.labels_, len(rows))
    assert ((own[:, None] == own) == together).all()
    # Every centroid holds one level: the commonest of its persons.
    shares = result.profile.means[:, 3:]
    assert (result.centroids_original[:, 3:] == np.eye(4)[shares.argmax(axis=1)]).all()


@pytest.mark.parametrize("protection", ["groups", "none"])
def test_the_order_of_sites_rows_and_levels_changes_no_cluster(protection: str) -> None:
    rows = patients()
    policy = {**K_PROTOTYPES, "protection": protection}
    first = cluster(rows, "fkm", policy=policy)
    order = np.random.default_rng(1).permutation(len(rows) // SITES)
    sites = {site: own.iloc[order] for site, own in reversed(by_site(rows).items())}
    features = [*FEATURES[:3], {**FEATURES[3], "levels": LEVELS[::-1]}]
    again = simulate(
        "fkm", sites, config={"n_clusters": 3}, policy=policy, features=features, progress=False
    )
    for site, labels in again.labels_.items():
        together = labels[:, None] == labels
        own = first.labels_[site][order]
        assert ((own[:, None] == own) == together).all()
    assert again.result.quality.inertia == pytest.approx(first.result.quality.inertia, rel=1e-9)


@pytest.mark.parametrize("method", ["fkm", "kfed", "lloyd"])
def test_the_methods_that_take_it_find_the_kinds_of_patients(method: str) -> None:
    rows = patients()
    found = cluster(rows, method, policy={"dissimilarity": "k-prototypes"})
    assert found.result.dissimilarity == "k-prototypes"
    own = pooled(found.labels_, len(rows))
    assert (own.reshape(-1, 3) == own[:3]).mean() > 0.9
    assert len(set(own[:3].tolist())) == 3
    assert (found.predict(by_site(rows)["s1"]) == found.labels_["s1"]).all()


def test_without_numbers_gamma_is_1_and_clusters_are_those_of_k_modes() -> None:
    rows = patients()[["sex", "pain"]]
    result = cluster(rows).result
    assert set(result.centroids_original.ravel().tolist()) == {0.0, 1.0}
    codes = np.column_stack([rows["sex"], *(rows["pain"] == level for level in LEVELS)])
    apart = np.abs(codes[:, None] - result.centroids_original)
    mismatches = apart[:, :, 0] + apart[:, :, 1:].sum(axis=2) / 2
    assert result.quality.inertia == pytest.approx(mismatches.min(axis=1).sum())


def test_a_known_gamma_without_scaling_or_imputing_needs_no_preparation() -> None:
    policy = {**K_PROTOTYPES, "gamma": 1.0, "scaling": "none", "missing": "drop"}
    phases = [entry.phase for entry in cluster(patients(), policy=policy).result.history]
    assert "prepare" not in phases
    policy["gamma"] = None
    assert cluster(patients(), policy=policy).result.history[0].phase == "prepare"


def test_of_equally_common_levels_the_first_is_the_mode_and_no_before_yes() -> None:
    rule = ModeRule((np.array([0]), np.array([1, 2, 3])), np.array([2.0, 3.0, 3.0, 3.0, 1.0]))
    tie = 1e-15
    means = np.array([[1.0 + tie, 0.9, 1.2, 1.2 + tie, 0.7], [1.1, 0.0, 0.0, 3.0, -4.0]])
    assert rule(means).tolist() == [[0, 0, 3, 0, 0.7], [2, 0, 0, 3, -4]]


def _faults(algorithm: str, config: dict[str, Any], **policy: Any) -> list[tuple[str, str]]:
    age = {"name": "age", "lower": 0, "upper": 120}
    with pytest.raises(DefinitionError) as caught:
        check_definition(
            session_request(
                age, algorithm=algorithm, config={"n_clusters": 3, **config}, policy=policy
            )
        )
    return [(error.pointer, error.message) for error in caught.value.errors]


def test_other_methods_and_variants_refuse_it_and_name_those_that_take_it() -> None:
    takes = [name for name, each in METHODS.items() if "k-prototypes" in each.dissimilarities]
    assert sorted(takes) == ["fkm", "kfed", "lloyd"]
    ((pointer, message),) = _faults("spectral", {}, dissimilarity="k-prototypes")
    assert pointer == "/policy/dissimilarity"
    assert message.endswith("These do: fkm, kfed, lloyd")
    for method in ("fkm", "kfed"):
        paper = {"variant": "paper"}
        ((pointer, message),) = _faults(method, paper, dissimilarity="k-prototypes")
        assert (pointer, "variant: default takes" in message) == ("/config/variant", True)
    ((pointer, _),) = _faults("lloyd", {}, gamma=1.0)
    assert pointer == "/policy/gamma"


def test_the_default_leaves_the_canonical_form_as_it_was() -> None:
    assert not {"dissimilarity", "gamma"} & set(Policy().model_dump())
    said = Policy(dissimilarity="k-prototypes", gamma=0.5)
    assert Policy.model_validate(said.model_dump()) == said


def test_the_report_names_the_dissimilarity_and_shows_each_mode_with_its_share(
    tmp_path: Path,
) -> None:
    rows = patients()
    for policy, says in (
        ({"dissimilarity": "k-prototypes"}, "k-prototypes (Huang 1998)"),
        ({}, "squared Euclidean distance, numbers in standard deviations. A yes/no feature"),
        ({"scaling": "none"}, "numbers in their own units. A yes/no feature"),
    ):
        found = cluster(rows, "fkm", policy=policy)
        assert says in found.dissimilarity
        found.save_report(tmp_path / "report.html")
        page = (tmp_path / "report.html").read_text()
        for part in found.dissimilarity.split("(Huang 1998)"):
            assert escape(part) in page
        shares = found.result.profile.means[:, 3:]
        for k, level in enumerate(shares.argmax(axis=1)):
            (line,) = [row for row in found.table_one().rows if row[0] == f"  {LEVELS[level]}"]
            assert line[2 + k] == f"{100 * shares[k, level]:.1f}"
            assert f"<td>{line[2 + k]}</td>" in page
    bare = cluster(rows, evaluate=False)
    bare.save_report(tmp_path / "report.json")
    first = json.loads((tmp_path / "report.json").read_text())["clusters"][0]
    # The centroid holds the mode: without the evaluation no share of persons is known.
    assert first["modes"][0]["share"] is None
    assert [each["value"] for each in first["columns"][2:]] == [None] * 5


# --- Gower ----------------------------------------------------------------------------------------

GOWER = {"dissimilarity": "gower", "scaling": "bounds"}
BOUNDED = [
    {**FEATURES[0], "lower": 0, "upper": 120},
    {**FEATURES[1], "lower": -10, "upper": 40, "weight": 2.0},
    *FEATURES[2:],
]


def gower(rows: Any, others: Any) -> NDArray[np.float64]:
    """Return Gower's dissimilarities (n, m) of rows, by its definition."""
    ranges, total = {"age": 120.0, "crp": 50.0}, 0.0
    for name, weight in (("age", 1.0), ("crp", 2.0), ("sex", 1.0), ("pain", 1.0)):
        one, other = rows[name].to_numpy()[:, None], others[name].to_numpy()
        width = ranges.get(name)
        total = total + weight * (one != other if width is None else np.abs(one - other) / width)
    return np.asarray(total / 5.0)


def centres(result: Any) -> Any:
    """Return centroids as rows: numbers, and the level that they hold."""
    found = pd.DataFrame(result.centroids_original[:, :3], columns=["age", "crp", "sex"])
    found["pain"] = np.array(LEVELS)[result.centroids_original[:, 3:].argmax(axis=1)]
    return found


@pytest.mark.parametrize("method", ["lloyd", "fkm"])
def test_gower_assigns_to_the_least_dissimilar_centre_and_centres_are_medians_and_modes(
    method: str,
) -> None:
    rows = patients()
    found = cluster(rows, method, BOUNDED, policy={**GOWER, "protection": "none"})
    result = found.result
    apart = gower(rows, centres(result))
    own = pooled(found.labels_, len(rows))
    assert (own == apart.argmin(axis=1)).all()
    assert result.quality.inertia == pytest.approx(apart.min(axis=1).sum())
    for k in range(3):
        held = rows[own == k]
        assert centres(result)["pain"][k] == held["pain"].mode()[0]
        for name, step in (("age", 1.2), ("crp", 0.5)):
            # Within one part of a hundred of the range.
            assert abs(centres(result)[name][k] - held[name].median()) <= step
    between = np.sort(apart, axis=1)
    terms = (between[:, 1] - between[:, 0]) / between[:, 1]
    assert result.quality.simplified_silhouette == pytest.approx(terms.mean())
    assert (found.predict(by_site(rows)["s1"]) == found.labels_["s1"]).all()
    assert "Gower's (1971)" in found.dissimilarity


def test_gower_runs_on_protected_tables_and_finds_the_kinds_of_patients() -> None:
    rows = patients(300)
    found = cluster(rows, "fkm", BOUNDED, policy=GOWER)
    own = pooled(found.labels_, len(rows))
    assert (own.reshape(-1, 3) == own[:3]).mean() > 0.8


def test_sums_of_codes_give_the_best_border_of_each_range_and_the_means() -> None:
    rng = np.random.default_rng(0)
    rule = MedianRule((np.array([1]),), np.array([0.5, 0.25]))
    X = np.column_stack([0.5 * rng.beta(2, 5, 60), 0.25 * rng.integers(0, 2, 60)])
    sizes, labels = rng.integers(1, 9, 60), rng.integers(0, 3, 60)
    codes = rule.add_up(X, sizes, labels, 3)
    counts = np.bincount(labels, weights=sizes)
    assert codes.shape == (3, rule.width) == (3, N_CELLS + 1)
    found = rule(codes / counts[:, None])
    borders = 0.5 * np.arange(N_CELLS + 1) / N_CELLS
    for k in range(3):
        values, weights = X[labels == k], sizes[labels == k]
        costs = np.abs(values[:, :1] - borders).T @ weights
        assert found[k, 0] == pytest.approx(borders[costs.argmin()])
        mean = np.average(values, axis=0, weights=weights)
        np.testing.assert_allclose(rule.means(codes / counts[:, None])[k], mean)


def test_a_site_that_claims_a_cost_below_its_own_means_is_refused() -> None:
    features = tuple(Feature(**each) for each in BOUNDED)
    columns = columns_of(features)
    policy = Policy(dissimilarity="gower", scaling="bounds")
    space = declared_space(columns, policy)
    config = config_of(
        lloyd.Config(n_clusters=2),
        features=features,
        space=space,
        dissimilarity="gower",
        scaling="bounds",
    )
    points = weighted(np.full((4, len(columns)), 0.01), 5)
    task = SiteTask("lloyd", kmeans_rounds.StepTask(centroids=np.zeros((2, len(columns)))))
    step = answer_task(lloyd.METHOD, task, points, config)
    assert isinstance(step, kmeans_rounds.Step)
    cheap, large = (
        violation(check_answer, lloyd.METHOD, task, step.model_copy(update=change), config)
        for change in ({"costs": step.costs / 2}, {"sums": step.sums * 30})
    )
    assert (cheap.rule, cheap.pointer) == ("cost", "/costs/0")
    assert large.rule == "bounds"


def test_gower_needs_bounds_and_methods_that_take_it() -> None:
    assert _faults("lloyd", {}, dissimilarity="gower")[0][0] == "/policy/scaling"
    ((pointer, message),) = _faults("kfed", {}, **GOWER)
    assert pointer == "/policy/dissimilarity"
    assert message.endswith("These do: fkm, lloyd")
    ((pointer, _),) = _faults("fkm", {"stability": 20}, **GOWER)
    assert pointer == "/config/stability"


def test_a_consent_screen_says_how_many_sums_gower_needs() -> None:
    request = session_request(*BOUNDED, algorithm="lloyd", policy=GOWER)
    definition = freeze(request, seed=0)
    terms = SessionTerms(
        coordinator="https://coordinator.example",
        site="a",
        analyst="ada",
        operator=OperatorInfo(),
        definition=definition,
        p=5,
    )
    (sums,) = [line for phase in terms.phases for line in phase.discloses if line.field == "sums"]
    assert sums.shape == f"2 x {2 * N_CELLS + 5} numbers"
    assert f"{N_CELLS} columns" in sums.meaning
    assert any("Gower's (1971)" in line for _, line in terms.text())


def test_models_of_resampled_data_have_modes_too() -> None:
    # Otherwise each site has one kind of patients.
    rows = patients(300).sample(frac=1.0, random_state=0)
    policy = {"dissimilarity": "k-prototypes"}
    found = cluster(rows, "fkm", policy=policy, stability=20).result.stability
    assert found.jaccard.min() > 0.75
