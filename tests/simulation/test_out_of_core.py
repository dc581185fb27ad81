"""Rows that memory does not hold: the same answers as in memory, and nothing left behind."""

from __future__ import annotations

import os
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import MethodFailure, Site, simulate
from fedclust.algorithms import engine, local_cells, rows
from fedclust.algorithms.base import Feature, Memory, RuleViolation, SiteData, SiteTask, Space
from fedclust.algorithms.lloyd import StepTask
from fedclust.algorithms.local_cells import local_kmeans
from fedclust.algorithms.rows import ArrayRows, Rows, rows_of
from fedclust.algorithms.totals import SitePart
from fedclust.data import Dataset, SqlQuery, load, passes
from fedclust.data.scratch import Scratch
from fedclust.errors import CoordinatorUnreachable, DataError, DisclosureError
from fedclust.privacy.counting import PersonIndex, row_hashes
from fedclust.privacy.moments import CellMoments, round_prevalence
from fedclust.simulate import SimulationResult
from fedclust.wire.codec import encode_model
from fedclust.wire.submissions import payload_bytes
from support.consortium import Consortium
from support.fake_coordinator import FakeCoordinator
from support.server import running_server

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("dask.dataframe")

RUN = 128
NUMERIC = ("a", "b", "c")
MIXED: tuple[Any, ...] = (
    {"name": "a"},
    {"name": "b"},
    {"name": "flag", "kind": "binary"},
    {"name": "level", "kind": "categorical", "levels": ["u", "v", "w"]},
)


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs at a few hundred rows."""
    monkeypatch.setattr(rows, "RUN", RUN)
    monkeypatch.setattr(passes, "RUN", RUN)


def frame(n: int, seed: int, *, gaps: bool = False) -> Any:
    """Return rows of four groups; with ``gaps`` some values are missing, and one level is rare."""
    rng = np.random.default_rng(seed)
    of = rng.integers(0, 4, n)
    made = pd.DataFrame(
        {
            "a": rng.normal(3 * of, 1.0),
            "b": rng.normal(-2 * of, 1.5) * 1000 + 5e5,
            "c": rng.normal(size=n),
            "flag": (rng.random(n) < np.where(of == 1, 0.01, 0.4)).astype(float),
            "level": np.array(["u", "v", "w"])[rng.choice(3, n, p=[0.6, 0.39, 0.01])],
            "person": [f"p{i // 2}" for i in range(n)],
        }
    )
    if gaps:
        made.loc[rng.random(n) < 0.05, "b"] = np.nan
        made.loc[rng.random(n) < 0.03, "flag"] = np.nan
    return made


def parquet(path: Path, table: Any, group: int = 90) -> Path:
    table.to_parquet(path, row_group_size=group)
    return path


def lazily(table: Any) -> Any:
    """Return a Dask DataFrame of three partitions and an empty one in between."""
    import dask.dataframe as dd

    parts = np.array_split(np.arange(len(table)), 3)
    pieces = [table.iloc[part] for part in (parts[0], parts[1], parts[2][:0], parts[2])]
    return dd.concat([dd.from_pandas(piece, npartitions=1) for piece in pieces])


def run(method: str, config: dict[str, Any], sites: Any, **how: Any) -> SimulationResult:
    with warnings.catch_warnings():
        # What the guard says is the same both ways, and not asked here.
        warnings.simplefilter("ignore", RuntimeWarning)
        return simulate(method, sites, config={"n_clusters": 4, **config}, seed=3, **how)


def numbers(payload: Any) -> dict[str, NDArray[np.float64]]:
    """Return a payload's numbers by field."""
    found: dict[str, NDArray[np.float64]] = {}
    for name in type(payload).model_fields:
        value = getattr(payload, name)
        if value is None or isinstance(value, tuple):
            continue
        if hasattr(value, "model_fields"):
            found |= {f"{name}/{inner}": array for inner, array in numbers(value).items()}
        else:
            found[name] = np.asarray(value, dtype=np.float64)
    return found


# --- whole sessions -------------------------------------------------------------------------------

CASES = [
    ("lloyd", {}, "numeric"),
    ("lloyd", {}, "mixed"),
    ("fkm", {"candidates": 2}, "mixed"),
    ("kfed", {"refine": 1, "local_clusters": 6}, "numeric"),
    ("kfed", {"projection": "on", "local_clusters": 6}, "mixed"),
]


@pytest.mark.parametrize(("method", "config", "kind"), CASES)
def test_a_session_out_of_core_is_the_session_in_memory(
    method: str,
    config: dict[str, Any],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From Parquet to the last byte, from Dask to rounding: totals to evaluation, and labels."""
    mixed = kind == "mixed"
    if not mixed:
        # Local k-means in passes, as at a site of many rows.
        monkeypatch.setattr(local_cells, "_LIBRARY", RUN)
    tables = {site: frame(400 + 37 * i, i, gaps=mixed) for i, site in enumerate("xyz")}
    how: dict[str, Any] = {"features": MIXED if mixed else NUMERIC}
    how["policy"] = {"missing": "impute" if mixed else "drop", "min_group_size": 5}
    if mixed:
        how["persons"] = {site: table.person.tolist() for site, table in tables.items()}
    files = {site: parquet(tmp_path / f"{site}.parquet", t) for site, t in tables.items()}

    memory = run(method, config, tables, **how)
    stored = run(method, config, {s: Dataset(f, out_of_core=True) for s, f in files.items()}, **how)
    lazy = {site: Dataset(lazily(table), out_of_core=True) for site, table in tables.items()}
    spread = run(method, config, lazy, **how)

    assert len(memory.trace_) == len(stored.trace_) == len(spread.trace_)
    for here, there, far in zip(memory.trace_, stored.trace_, spread.trace_, strict=True):
        assert payload_bytes(here.payload) == payload_bytes(there.payload)
        if here.payload is None:
            assert far.payload is None
            continue
        of_far = numbers(far.payload)
        for name, values in numbers(here.payload).items():
            scale = np.maximum(np.abs(values).max(initial=0.0), 1.0)
            np.testing.assert_allclose(of_far[name], values, rtol=0, atol=1e-9 * scale)
    for site, labels in memory.labels_.items():
        assert np.array_equal(labels, stored.labels_[site])
        assert np.array_equal(labels, spread.labels_[site])
        assert len(labels) == len(tables[site])


def test_rows_with_missing_values_are_dropped_wherever_they_are(tmp_path: Path) -> None:
    tables = {site: frame(300, i, gaps=True) for i, site in enumerate("xyz")}
    files = {site: parquet(tmp_path / f"{site}.parquet", t) for site, t in tables.items()}
    how: dict[str, Any] = {"features": MIXED, "policy": {"missing": "drop"}}

    memory = run("lloyd", {}, tables, **how)
    stored = run("lloyd", {}, {s: Dataset(f, out_of_core=True) for s, f in files.items()}, **how)

    for here, there in zip(memory.trace_, stored.trace_, strict=True):
        assert payload_bytes(here.payload) == payload_bytes(there.payload)
    for site, table in tables.items():
        assert ((stored.labels_[site] == -1) == table.isna().any(axis=1)).all()


def test_a_sweep_runs_out_of_core(tmp_path: Path) -> None:
    tables = {site: frame(260, i) for i, site in enumerate("xyz")}
    files = {site: parquet(tmp_path / f"{site}.parquet", t) for site, t in tables.items()}
    stored = {site: Dataset(file, out_of_core=True) for site, file in files.items()}
    ks = {"n_clusters": [2, 4], "evaluate": True}

    memory = run("lloyd", ks, tables, features=NUMERIC)
    found = run("lloyd", ks, stored, features=NUMERIC)

    assert encode_model(memory.result_) == encode_model(found.result_)


def test_spreads_that_few_would_make_up_are_held_back_alike(tmp_path: Path) -> None:
    """Values are told apart by digests where memory does not hold them."""
    whole, stored = {}, {}
    for seed, name in enumerate(("x", "y", "z")):
        table, rng = frame(600, seed)[list(NUMERIC[:2])], np.random.default_rng(seed)
        table["dose"] = np.where(rng.random(600) < 0.01, rng.normal(3.0, 1.0, 600), 0.0)
        path = parquet(tmp_path / f"{name}.parquet", table)
        whole[name], stored[name] = path, Dataset(path, out_of_core=True)
    features = [{"name": column} for column in ("a", "b", "dose")]
    one, other = (
        run("lloyd", {"n_clusters": [2, 4]}, sites, features=features) for sites in (whole, stored)
    )
    held = [(part.m2 == 0).any() for part in one.trace_[-1].payload.parts]
    assert any(held)
    for expected, found in zip(one.trace_, other.trace_, strict=True):
        assert encode_model(found.payload) == encode_model(expected.payload)


def test_a_site_takes_part_in_a_session_of_the_service_out_of_core(tmp_path: Path) -> None:
    tables = {site: frame(200 + i, i)[list(NUMERIC)] for i, site in enumerate(("ada", "brno"))}
    sources: dict[str, Any] = {
        "ada": Dataset(parquet(tmp_path / "ada.parquet", tables["ada"]), out_of_core=True),
        "brno": tables["brno"],
    }
    policy = {"min_sites": 2}
    with running_server(tmp_path / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, tuple(sources))
        with consortium.analyst() as analyst:
            body = {
                "name": "stored",
                "algorithm": "lloyd",
                "config": {"n_clusters": 4},
                "features": [{"name": name} for name in NUMERIC],
                "sites": list(sources),
                "policy": policy,
                "seed": 3,
            }
            analyst.create_session(body)
        found = consortium.run("stored", sources, tmp_path / "journals")
    expected = run("lloyd", {}, tables, features=NUMERIC, policy=policy)
    for site in sources:
        assert np.array_equal(found[site].labels_, expected.labels_[site])
        assert np.array_equal(found[site].cluster_centers_, expected.cluster_centers_)


def test_a_sweep_of_kfed_labels_its_own_rows_alike(tmp_path: Path) -> None:
    """By what the site remembers of each K, wherever its rows are."""
    tables = {site: frame(150, i)[list(NUMERIC)] for i, site in enumerate("xyz")}
    files = {site: parquet(tmp_path / f"{site}.parquet", t) for site, t in tables.items()}
    ks = {"n_clusters": [2, 3], "local_clusters": 4}

    memory = run("kfed", ks, tables, features=NUMERIC)
    stored = {site: Dataset(file, out_of_core=True) for site, file in files.items()}
    found = run("kfed", ks, stored, features=NUMERIC)

    by_centroid = 0
    for k in (2, 3):
        for site in tables:
            own = memory.at(k).labels_[site]
            assert np.array_equal(own, found.at(k).labels_[site])
            by_centroid += (own != memory.at(k).predict(tables[site])).sum()
    assert by_centroid > 0  # Else this shows nothing.


@pytest.mark.parametrize("columns", [["a", "b", "c"], ["a", "b"]])
def test_new_rows_are_labelled_alike_where_features_are_masked(
    columns: list[str], tmp_path: Path
) -> None:
    """A column that is empty in one run of rows is no feature that all rows lack."""
    tables = {site: frame(200, i)[list(NUMERIC)] for i, site in enumerate("xyz")}
    tables["x"] = tables["x"].drop(columns="c")
    policy = {"missing": "mask"}
    found = run("overlap", {"n_clusters": 3}, tables, features=NUMERIC, policy=policy)
    new = frame(2 * RUN + 1, 9)[columns]
    new.loc[: RUN + 5, "b"] = np.nan
    new.loc[2 * RUN, "a"] = np.nan
    path = parquet(tmp_path / "new.parquet", new)
    for site in (None, "x", "y"):
        expected = found.predict(path, site)
        assert len(set(expected)) > 1
        for source in (path, lazily(new)):
            own = found.predict(Dataset(source, out_of_core=True), site)
            assert np.array_equal(own, expected)


@pytest.mark.parametrize("n_levels", [1, 2])
@pytest.mark.parametrize(("n", "p"), [(19, 2), (49, 8), (147, 6)])
def test_shares_half_way_are_rounded_alike_however_rows_were_added_up(
    n: int, p: int, n_levels: int
) -> None:
    """Half a multiple of p would go either way with a mean's last bit."""
    every = np.arange(n + 1)
    for count in every[every % p == p // 2]:
        share = count / n
        outcomes = set()
        for noise in (-1e-15, 0.0, 1e-15):
            near = np.array([share + noise, 1.0 - share - noise])[None, :n_levels]
            moments = round_prevalence(
                CellMoments(np.array([n]), near, np.zeros_like(near)),
                np.ones_like(near, dtype=np.bool_),
                p,
                center=np.zeros(n_levels),
                scale=np.ones(n_levels),
                blocks=[np.arange(n_levels)] if n_levels > 1 else [],
            )
            outcomes.add(moments.means.tobytes())
        assert len(outcomes) == 1


@pytest.mark.parametrize("resumed", ["parquet", "longer runs", "dask", "memory"])
def test_a_session_is_resumed_with_the_same_rows_wherever_they_are(
    resumed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an answer was lost: the same bytes again, and then what was not interrupted sends."""
    features = tuple({"name": name} for name in NUMERIC)
    others = {site: frame(150, i)[list(NUMERIC)].to_numpy() for i, site in enumerate("ab")}
    table = frame(300, 7)[list(NUMERIC)]
    path = parquet(tmp_path / "mine.parquet", table)
    undisturbed = FakeCoordinator(others, features=features)
    undisturbed.site(tmp_path / "one").participate("heart", table, consent=True)

    fake = FakeCoordinator(others, features=features)

    def lose(request: httpx.Request) -> None:
        if request.method == "PUT" and len(fake.puts) > 1:
            raise httpx.ReadError("the connection broke")

    fake.after = lose
    with pytest.raises(CoordinatorUnreachable):
        fake.site(tmp_path / "two").participate(
            "heart", Dataset(path, out_of_core=True), consent=True
        )
    fake.after = lambda _request: None
    source: Any = Dataset(path, out_of_core=True)
    if resumed == "longer runs":
        monkeypatch.setattr(rows, "RUN", 4 * RUN)
        monkeypatch.setattr(passes, "RUN", 4 * RUN)
    elif resumed == "dask":
        source = Dataset(lazily(table), out_of_core=True)
    elif resumed == "memory":
        source = table
    found = fake.site(tmp_path / "two").participate("heart", source)

    sent = dict(fake.puts)
    assert len(fake.puts) == len(sent) + 1  # The lost one twice: dict() shows that ...
    assert len(set(fake.puts)) == len(sent)  # ... and this, that it was the same bytes.
    assert sorted(sent) == sorted(dict(undisturbed.puts))
    if resumed in ("parquet", "memory"):
        assert sent == dict(undisturbed.puts)
    expected = undisturbed.site(tmp_path / "one").participate("heart", table)
    assert np.array_equal(found.labels_, expected.labels_)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-9)


# --- rows -----------------------------------------------------------------------------------------


def _stored(path: Path, **options: Any) -> Rows:
    source = Dataset(path, out_of_core=True, **options)
    return rows_of(load(source, [Feature(name=name) for name in NUMERIC]).X)


def test_stored_rows_are_what_an_array_of_them_is(tmp_path: Path) -> None:
    table = frame(500, 1)
    X = table[list(NUMERIC)].to_numpy()
    stored, here = _stored(parquet(tmp_path / "a.parquet", table)), ArrayRows(X)
    chosen = np.random.default_rng(0).random(500) < 0.6
    numbers_of = np.array([17, 3, 3, 250])

    for one, other, n in ((stored, here, 500), (stored.kept(chosen), here.kept(chosen), None)):
        assert one.shape == other.shape
        along = np.arange(one.shape[0])
        runs = [list(each.map(lambda run, part: (run, part), along)) for each in (one, other)]
        for (run_one, part_one), (run_other, part_other) in zip(*runs, strict=True):
            assert np.array_equal(run_one, run_other)
            assert np.array_equal(part_one, part_other)
        assert np.array_equal(one.take(numbers_of), other.take(numbers_of))
        doubled = one.changed(lambda run: run * 2)
        assert np.array_equal(doubled.take(numbers_of), other.take(numbers_of) * 2)
        assert n in (None, sum(len(run) for run, _ in runs[0]))
    inner = np.random.default_rng(1).random(int(chosen.sum())) < 0.5
    assert np.array_equal(
        stored.kept(chosen).kept(inner).take(np.array([0, 5])), X[chosen][inner][[0, 5]]
    )
    with pytest.raises(TypeError, match="not in memory"):
        np.asarray(stored)


def test_a_digest_is_that_of_the_rows_wherever_they_are(tmp_path: Path) -> None:
    table = frame(300, 2, gaps=True)
    features = [Feature(name=name) for name in NUMERIC]
    path = parquet(tmp_path / "a.parquet", table)
    sources = (table, path, Dataset(path, out_of_core=True))
    assert len({load(source, features, person="person").digest() for source in sources}) == 1
    lazy = Dataset(lazily(table), out_of_core=True)
    assert load(lazy, features).digest() == load(table, features).digest()


def test_arrays_on_disk_have_no_name_that_anybody_could_open(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    array = Scratch(str(folder)).array((3, 1000), np.int64)
    array[1] = np.arange(1000)
    assert array.sum() == 499_500
    assert os.listdir(folder) == []  # noqa: PTH208  (a list to show where it is none)
    part = Scratch(str(folder)).written([np.arange(5), np.arange(2)], np.int32)
    assert part.tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_a_step_takes_no_more_memory_for_more_rows(tmp_path: Path) -> None:
    """But for what sorting out identical rows takes: 24,000 more rows are 1.5 MB of numbers.

    Both are several runs long: a shorter one holds less than a run takes.
    """
    peaks = []
    for n in (72_000, 96_000):
        file = parquet(tmp_path / f"{n}.parquet", frame(n, 0)[["a", "b", "c"]], group=2_000)
        features = tuple(Feature(name=name) for name in NUMERIC)
        centroids = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
        plan = _plan(features, centroids)
        data = SiteData(load(Dataset(file, out_of_core=True), features).X)
        memory: Memory = {}
        space = Space(np.array([0.0, 5e5, 0.0]), np.array([1.0, 2e3, 1.0]))
        for round_number in (1, 2):
            task = SiteTask("lloyd", StepTask(centroids=centroids), SitePart(), space)
            tracemalloc.start()
            _, memory = engine.local_step(
                plan,
                task,
                data,
                site="x",
                round_number=round_number,
                p=5,
                size_band=None,
                memory=memory,
            )
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 8 * 24_000


def _plan(features: tuple[Feature, ...], centroids: NDArray[np.float64]) -> engine.Plan:
    from fedclust.algorithms import lloyd
    from fedclust.algorithms.base import Policy

    return engine.Plan(
        method=lloyd.METHOD,
        options=lloyd.Config(n_clusters=len(centroids), start="given", centroids=centroids),
        features=features,
        policy=Policy(protection="none"),
        seed=0,
    )


@pytest.mark.parametrize("distinct", [3, 40, 100_000])
def test_persons_are_counted_alike_from_keys_and_from_rows(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    X = rng.normal(size=(distinct, 2))[rng.integers(0, distinct, 900)]
    owners = rng.integers(0, 50, 900) * 7
    for here, there in (
        (PersonIndex(X), PersonIndex.of_keys(row_hashes(X), persons=False, room=np.zeros)),
        (PersonIndex(X, owners), PersonIndex.of_keys(owners, persons=True, room=np.zeros)),
    ):
        assert here.total == there.total
        for p in (1, 2, 5, 20):
            assert here.certain(p) == there.certain(p)
        for _ in range(50):
            some = rng.permutation(900)[: rng.integers(0, 12)]
            assert here.count(some) == there.count(some)
        if here.declared:
            weights = here.weights()
            assert weights is not None
            assert weights.tolist() == there.weights().tolist()


# --- local k-means --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_k_means_in_passes_finds_what_scikit_learn_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cells, "_LIBRARY", RUN)
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(600, 3)) * [1.0, 5.0, 0.2] + 100 * (seed % 2)

    found = local_kmeans(X, 6, 3, np.random.default_rng(seed))

    state = int(np.random.default_rng(seed).integers(2**31))
    central = KMeans(6, n_init=3, random_state=state, algorithm="lloyd").fit(X)
    cost = sum(((X[found == k] - X[found == k].mean(axis=0)) ** 2).sum() for k in range(6))
    assert cost <= central.inertia_ * (1 + 1e-6)


def test_k_means_in_passes_leaves_cells_empty_where_rows_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_cells, "_LIBRARY", RUN)
    X = np.repeat(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 9.0]]), 100, axis=0)
    labels = local_kmeans(X, 7, 2, np.random.default_rng(0))
    assert len(np.unique(labels)) == 3
    assert len(np.unique(np.column_stack([labels, X]), axis=0)) == 3


# --- what is refused ------------------------------------------------------------------------------


def test_a_file_that_changes_while_it_is_used_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", frame(300, 1))
    stored = _stored(path)
    parquet(path, frame(301, 1))
    with pytest.raises(DataError, match=r"a\.parquet: it has other rows than when it was read"):
        list(stored.map(len))


def swapped(table: Any) -> Any:
    return table.iloc[[1, 0, *range(2, len(table))]]


def nudged(table: Any) -> Any:
    other = table.copy()
    other.loc[250, "c"] = np.nextafter(other.loc[250, "c"], np.inf)
    return other


def crossed(table: Any) -> Any:
    return table.assign(a=table.c, c=table.a)


@pytest.mark.parametrize("kind", ["parquet", "csv", "dask"])
@pytest.mark.parametrize("change", [swapped, nudged, crossed])
def test_as_many_other_rows_are_refused(
    kind: str, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows in another order, one last bit, two columns: whatever the file's clock says."""
    import dask.dataframe as dd

    table = frame(300, 1)[list(NUMERIC)]
    now, path = [table], tmp_path / f"a.{kind}"
    features = [Feature(name=name) for name in NUMERIC]
    lazy = dd.from_pandas(table, npartitions=3).map_partitions(
        lambda part: now[0].iloc[part.index[0] : part.index[-1] + 1][list(NUMERIC)], meta=table
    )

    def written(rows: Any) -> None:
        now[0] = rows
        if kind == "parquet":
            parquet(path, rows)
        elif kind == "csv":
            rows.to_csv(path, index=False, float_format="%.17g")

    written(table)
    monkeypatch.setattr("fedclust.data.parquet.ParquetReader.stamp", lambda _: ())
    stored = rows_of(load(Dataset(lazy if kind == "dask" else path, out_of_core=True), features).X)
    assert sum(stored.map(len)) == 300
    written(table.copy())
    assert sum(stored.map(len)) == 300
    written(change(table))
    with pytest.raises(DataError, match="other rows"):
        list(stored.map(len))


def test_a_partition_that_changes_before_the_first_pass_is_refused() -> None:
    import dask.dataframe as dd

    table, calls = frame(300, 1)[list(NUMERIC)], [0]

    def shuffled(part: Any) -> Any:
        calls[0] += 1
        return part.sample(frac=1.0, random_state=calls[0])

    lazy = dd.from_pandas(table, npartitions=3).map_partitions(shuffled, meta=table)
    stored = load(Dataset(lazy, out_of_core=True), [Feature(name=name) for name in NUMERIC])
    with pytest.raises(DataError, match="other rows"):
        list(rows_of(stored.X).map(len))


def test_a_worker_that_fails_shows_nothing_of_its_rows() -> None:
    """A task that raises would be logged with what it was called with."""
    import dask.dataframe as dd

    table = frame(200, 1)[list(NUMERIC)]
    lazy = dd.from_pandas(table, npartitions=4)
    stored = rows_of(
        load(Dataset(lazy, out_of_core=True), [Feature(name=name) for name in NUMERIC]).X
    )
    calls = []

    def fails(run: NDArray[np.float64]) -> int:
        calls.append(len(run))
        if run[0, 0] == table.a[50]:
            raise ValueError(f"saw {run[0, 0]}")
        return len(run)

    with pytest.raises(
        DataError, match=r"partition 1 could not be worked on \(ValueError\)"
    ) as seen:
        list(stored.map(fails))
    assert str(table.a[50]) not in str(seen.value)
    assert seen.value.__cause__ is None
    assert len(calls) == 4  # Nothing was raised where it was computed.


@pytest.mark.parametrize("n", [299, 301])
def test_other_rows_are_refused_even_where_the_file_looks_the_same(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "a.parquet", frame(300, 1))
    stored = _stored(path)
    monkeypatch.setattr("fedclust.data.parquet.ParquetReader.stamp", lambda _: ())
    stored._source._stamp = ()  # type: ignore[attr-defined]
    parquet(path, frame(n, 1))
    with pytest.raises(DataError, match="other rows"):
        list(stored.map(len))


def test_values_that_break_a_rule_are_named_without_being_shown(tmp_path: Path) -> None:
    table = frame(300, 1)
    table.loc[217, "b"] = np.inf
    with pytest.raises(DataError, match=r"a\.parquet, row 217, column 'b': infinite") as caught:
        _stored(parquet(tmp_path / "a.parquet", table))
    assert "inf," not in str(caught.value)


def test_a_partition_that_fails_is_named_and_what_it_says_is_not(tmp_path: Path) -> None:
    import dask.dataframe as dd

    secret = "4711.25"
    calls: list[int] = []

    def fails_later(part: Any) -> Any:
        calls.append(len(part))
        if len(calls) > 6:
            raise ValueError(secret)
        return part

    table = frame(200, 1)[list(NUMERIC)]
    lazy = dd.from_pandas(table, npartitions=2).map_partitions(fails_later, meta=table)
    stored = load(Dataset(lazy, out_of_core=True), [Feature(name=name) for name in NUMERIC])

    def passes_until_it_fails() -> None:
        for _ in range(6):
            list(rows_of(stored.X).map(len))

    with pytest.raises(DataError, match="could not be computed") as caught:
        passes_until_it_fails()
    assert secret not in str(caught.value)


def test_methods_that_need_all_rows_say_so_and_what_to_do(tmp_path: Path) -> None:
    files = {s: parquet(tmp_path / f"{s}.parquet", frame(90, i)) for i, s in enumerate("xyz")}
    stored = {site: Dataset(file, out_of_core=True) for site, file in files.items()}
    for method, config in (
        ("spectral", {}),
        ("overlap", {}),
        ("overlap_oneshot", {}),
        ("fkm", {"variant": "paper"}),
        ("kfed", {"variant": "paper"}),
    ):
        with pytest.raises(RuleViolation, match="leave out_of_core away") as caught:
            run(method, config, stored, features=NUMERIC)
        assert caught.value.rule == "out-of-core"


def test_a_site_says_so_before_it_joins(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", frame(90, 1)[list(NUMERIC)])
    with running_server(tmp_path / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, ("ada", "brno"))
        body = {"name": "s", "algorithm": "spectral", "config": {"n_clusters": 2}}
        body |= {"features": [{"name": name} for name in NUMERIC], "sites": ["ada", "brno"]}
        with consortium.analyst() as analyst:
            analyst.create_session({**body, "policy": {"min_sites": 2}})
            site = Site(
                server.base_url, consortium.site_tokens["ada"], journal_dir=tmp_path / "journal"
            )
            with site, pytest.raises(DisclosureError, match="leave out_of_core away"):
                site.participate("s", Dataset(file, out_of_core=True), consent=True)
            assert {each.state for each in analyst.session("s").sites} == {"invited"}


def test_a_query_and_a_folder_without_room_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    query = SqlQuery("SELECT a, b, c FROM t", url=f"sqlite:///{tmp_path / 'a.db'}")
    import sqlite3

    with sqlite3.connect(tmp_path / "a.db") as database:
        frame(50, 1)[list(NUMERIC)].to_sql("t", database, index=False)
    features = [Feature(name=name) for name in NUMERIC]
    with pytest.raises(DataError, match="a query may answer differently"):
        load(Dataset(query, out_of_core=True), features)
    stored = _stored(parquet(tmp_path / "a.parquet", frame(50, 1)), scratch=tmp_path / "none")
    with pytest.raises(DataError, match="--scratch names another folder"):
        stored.array(np.int16)


def test_empty_and_tiny_files_are_as_in_memory(tmp_path: Path) -> None:
    """A file of one row answers empty; one without rows is refused."""
    table = frame(300, 1)
    tiny = parquet(tmp_path / "one.parquet", table.iloc[:1])
    sites: dict[str, Any] = {"x": Dataset(tiny, out_of_core=True), "y": table, "z": frame(200, 2)}
    policy = {"min_sites": 2}
    found = run("lloyd", {}, sites, features=NUMERIC, policy=policy)
    assert all(entry.payload is None for entry in found.trace_ if entry.site == "x")
    assert len(found.labels_["x"]) == 1
    with pytest.raises(MethodFailure):
        run("lloyd", {}, {"x": sites["x"]}, features=NUMERIC, policy={"min_sites": 1})
    with pytest.raises(DataError, match="no rows"):
        _stored(parquet(tmp_path / "none.parquet", table.iloc[:0]))
