"""Does a session give what the rows give? A study of `examples/` against its pooled rows.

The rows' numbers come from scikit-learn, statsmodels, lifelines and SciPy. The study is SUPPORT, or
another file like `examples/support_study.py`: `make bench support ARGS="--study FILE.py"`. Rows are
scaled by their mean and standard deviation, and the mean stands for a missing value.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from lifelines import KaplanMeierFitter
from lifelines.utils import restricted_mean_survival_time
from scipy.optimize import linear_sum_assignment
from scipy.stats import mannwhitneyu
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, confusion_matrix
from statsmodels.stats.contingency_tables import StratifiedTable

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from study import Study

from _report import write
from fedclust import SessionResult, simulate
from fedclust.data.persons import read_persons
from fedclust.data.site_data import form_once
from fedclust.definition import plan_of
from fedclust.protection.outcome_counts import count_outcomes
from fedclust.result.outcomes import CANNOT_TELL, outcome_rows
from fedclust.rounds.outcome_statistics import summarise
from fedclust.schema.outcomes import Outcomes
from outcomes import discrete_gaussian

Sites = dict[str, pd.DataFrame]
UNPROTECTED = {"protection": "none"}
PROTECTIONS: dict[str, dict[str, Any]] = {
    "p = 5": {"min_group_size": 5},
    "p = 10": {"min_group_size": 10},
    "none": UNPROTECTED,
}
#: An estimate's outcome, what it is of, and its cluster.
Key = tuple[str, str, int]
INSIDE = ("yes", "no", CANNOT_TELL)


# --- rows in one place ----------------------------------------------------------------------------


class Central(NamedTuple):
    """k-means of the pooled rows.

    ``Z`` (n, d) are the scaled rows, ``labels`` (n,) their clusters; ``center`` and ``spread`` (d,)
    scale them. Each bootstrap sample's model gives all rows a cluster, in ``boot_labels``
    (models, n), matched with ``labels``; ``boot_cost`` is the mean cost of these models.
    """

    Z: Any
    labels: Any
    cost: float
    center: Any
    spread: Any
    boot_cost: float
    boot_labels: Any


_CENTRAL: dict[tuple[Any, ...], Central] = {}


def central(rows: pd.DataFrame, columns: list[str], k: int, models: int) -> Central:
    """Cluster the rows, and bootstrap samples of them as a yardstick; the same rows only once."""
    key = (rows.index.to_numpy().tobytes(), *columns, k, models)
    if key not in _CENTRAL:
        X = rows[columns].fillna(rows[columns].mean()).to_numpy()
        center, spread = X.mean(axis=0), X.std(axis=0)
        Z = (X - center) / spread
        fitted = KMeans(k, n_init=30, random_state=0).fit(Z)
        rng, costs, labels = np.random.default_rng(0), [], []
        for seed in range(models):
            sample = Z[rng.integers(0, len(Z), len(Z))]
            model = KMeans(k, n_init=10, random_state=seed).fit(sample)
            costs.append(-model.score(Z) / fitted.inertia_)
            labels.append(matched(model.predict(Z), fitted.labels_))
        cost, boot_cost = float(fitted.inertia_), float(np.mean(costs))
        _CENTRAL[key] = Central(
            Z, fitted.labels_, cost, center, spread, boot_cost, np.array(labels)
        )
    return _CENTRAL[key]


def matched(labels: Any, others: Any) -> Any:
    """Return labels (n,) with the numbers of the clusters of ``others`` that they share most."""
    _, match = linear_sum_assignment(-confusion_matrix(labels, others))
    return match[labels]


def numbers_of_rows(
    study: Study, rows: pd.DataFrame, labels: Any, site: Any, reference: int
) -> dict[Key, float]:
    """Return what the report prints, computed from rows that all have a cluster (n,) and a site."""
    found: dict[Key, float] = {}
    clusters = range(int(labels.max()) + 1)
    of_kind = {"binary": _binary, "ordered": _ordered, "time": _time}
    for about in (each for each in study.outcomes if each["kind"] in of_kind):
        columns = [about["name"], *([about["event"]] if "event" in about else [])]
        known = rows[columns].notna().all(axis=1).to_numpy()
        values, label, at = rows[columns].to_numpy(float)[known], labels[known], site[known]
        for k in clusters:
            one = values[label == k]
            pairs = [
                (values[(label == k) & (at == s)], values[(label == reference) & (at == s)])
                for s in np.unique(at)
            ]
            for what, value in of_kind[about["kind"]](about, one, pairs, k != reference):
                found[about["name"], what, k] = float(value)
    return found


Pairs = list[tuple[Any, Any]]


def _over_sites(pairs: Pairs, top: Any) -> float:
    """Return the sum over sites of ``top`` over that of n1 n0, each divided by the site's n."""
    sizes = [(len(x1), len(x0)) for x1, x0 in pairs]
    weights = [1 / (n1 + n0) if n1 and n0 else 0.0 for n1, n0 in sizes]
    each = [w * top(x1, x0) if w else 0.0 for w, (x1, x0) in zip(weights, pairs, strict=True)]
    return sum(each) / sum(w * n1 * n0 for w, (n1, n0) in zip(weights, sizes, strict=True))


def _binary(_: Any, one: Any, pairs: Pairs, compared: bool) -> Iterator[tuple[str, float]]:
    yield "yes", one.mean()
    if compared:
        counts = [[x.sum(), len(x) - x.sum()] for pair in pairs for x in pair]
        tables = np.array(counts).reshape(-1, 2, 2)
        yield "odds_ratio", StratifiedTable(list(tables)).oddsratio_pooled
        difference = _over_sites(pairs, lambda x1, x0: x1.sum() * len(x0) - x0.sum() * len(x1))
        yield "risk_difference", difference


def _ordered(about: Any, one: Any, pairs: Pairs, compared: bool) -> Iterator[tuple[str, float]]:
    def cells(values: Any) -> Any:
        return np.digitize(values[:, 0], about["edges"])

    for number in range(len(about["edges"]) + 1):
        yield f"cell {number}", (cells(one) == number).mean()
    yield "median", np.median(one)
    if compared:
        yield (
            "superiority",
            _over_sites(pairs, lambda x1, x0: mannwhitneyu(cells(x1), cells(x0)).statistic),
        )


def _time(about: Any, one: Any, pairs: Pairs, compared: bool) -> Iterator[tuple[str, float]]:
    edges = about["edges"]
    curve = KaplanMeierFitter().fit(one[:, 0], one[:, 1])
    for edge in edges:
        yield f"S({edge:g})", curve.predict(edge)
    yield "restricted mean", restricted_mean_survival_time(curve, t=edges[-1])
    if compared:
        top = bottom = 0.0
        for x1, x0 in pairs:
            for begin, end in zip([0, *edges], edges, strict=False):
                (d1, t1), (d0, t0) = (_follow_up(x, begin, end) for x in (x1, x0))
                if t1 + t0 > 0:
                    top, bottom = top + d1 * t0 / (t1 + t0), bottom + d0 * t1 / (t1 + t0)
        yield "rate_ratio", top / bottom


def _follow_up(values: Any, begin: float, end: float) -> tuple[float, float]:
    """Return the events and the person-time of an interval."""
    time, event = values.T
    return event[(time > begin) & (time <= end)].sum(), (np.clip(time, begin, end) - begin).sum()


# --- the session ----------------------------------------------------------------------------------


def layouts(study: Study, seed: int) -> dict[str, Sites]:
    """Return the hospitals of the study, and 20 equal ones of random patients."""
    found = {f"{len(study.said['HOSPITALS'])} hospitals": study.split(seed)}
    order = np.random.default_rng(seed).permutation(len(study.rows))
    for size in (400, 50):
        if 20 * size <= len(order):
            parts = np.split(order[: 20 * size], 20)
            rows = study.rows[study.columns(more=True)]
            found[f"20 x {size}"] = {f"s{i:02}": rows.iloc[x] for i, x in enumerate(parts)}
    return found


def session(
    study: Study, sites: Sites, policy: Any, *, more: bool = False, k: Any = None
) -> SessionResult:
    """Run the study's session, at its K unless ``k`` says otherwise."""
    columns = study.columns(more=more)
    return simulate(
        "fkm",
        {name: rows[columns] for name, rows in sites.items()},
        config={"n_clusters": k or study.said["K"]},
        policy=policy,
        features=study.features(more=more) + study.outcomes,
        outcomes_k=study.said["K"] if k else None,
        seed=study.said["SEED"],
        progress=False,
    )


def printed(outcomes: Outcomes) -> dict[Key, tuple[float, float, float]]:
    """Return value and limits of each estimate over all sites; NaN where there is none.

    Of those that :func:`numbers_of_rows` computes, too: no level of a category, no mean of cells.
    """
    found = {}
    for row in outcome_rows(outcomes):
        computed = row["kind"] != "categorical" and row["what"] not in ("mean", "mean_difference")
        if row["site"] == "all sites" and computed:
            cells = next(x.cells for x in outcomes.results if x.name == row["outcome"])
            what = row["what"]
            if row["kind"] == "ordered" and what in cells:
                what = f"cell {cells.index(what)}"
            limits = [math.nan if (x := row[w]) is None else x for w in ("value", "lower", "upper")]
            found[row["outcome"], what, row["cluster"]] = tuple(limits)
    return found


def not_released(result: SessionResult, sites: Sites) -> float:
    """Return the share of known values of features that the persons' groups do not release."""
    plan, hidden, all_known = plan_of(result.definition), 0, 0
    for rows in sites.values():
        persons = read_persons(rows, plan.features, outcomes=plan.outcomes)
        table, groups = form_once(persons, plan.policy.min_group_size)
        released = ~np.isnan(np.column_stack(table.released))
        known = rows[list(table.names())].notna().to_numpy()
        hidden += int((known & ~(released[groups] & (groups >= 0)[:, None])).sum())
        all_known += int(known.sum())
    return hidden / all_known


# --- what is compared -----------------------------------------------------------------------------


def verdicts(study: Study, splits: int) -> list[dict[str, Any]]:
    """Say what sessions with several K choose, and what the same test on rows does."""
    found = []
    for seed in range(splits):
        sites = study.split(seed)
        row: dict[str, Any] = {"split": seed}
        for name, policy in PROTECTIONS.items():
            result = session(study, sites, policy, k=study.said["SEVERAL_K"]).result
            clouds = [entry.result.one_cloud for entry in result.sweep or ()]
            shown = " ".join("-" if x is None or x.p is None else f"{x.p:.2g}" for x in clouds)
            row |= {name: f"{result.choice}, K = {result.n_clusters}", f"p_K, {name}": shown}
        found.append({**row, "goal": "p = 5 as none", "met": row["p = 5"] == row["none"]})
    return found


class Compared(NamedTuple):
    """A session beside the pooled rows of its sites.

    ``rows`` and ``site`` (n,) are sorted by patient. ``label`` and ``own`` (n,) are the clusters of
    the session's model and those of the rows, matched. ``centres`` (K, d) are scaled.
    """

    result: SessionResult
    rows: pd.DataFrame
    site: Any
    label: Any
    own: Any
    centres: Any
    by_rows: Central

    @property
    def outcomes(self) -> Outcomes:
        assert self.result.outcomes_ is not None
        return self.result.outcomes_

    def numbers_of(self, study: Study, label: Any) -> dict[Key, float]:
        """Return the rows' numbers for these clusters, with the session's reference."""
        return numbers_of_rows(study, self.rows, label, self.site, self.outcomes.reference)


def compare(study: Study, sites: Sites, policy: Any, models: int, more: bool = False) -> Compared:
    """Run a session, and put it beside the clusters of its rows."""
    result = session(study, sites, policy, more=more)
    site = np.repeat(list(sites), [len(each) for each in sites.values()])
    label = np.concatenate([result.labels_[name] for name in sites])
    rows = pd.concat(sites.values())
    order = np.argsort(rows.index)
    rows, site, label = rows.iloc[order], site[order], label[order]
    columns = [each["name"] for each in study.features(more=more)]
    by_rows = central(rows, columns, study.said["K"], models)
    own = matched(by_rows.labels, label)
    centres = (result.cluster_centers_ - by_rows.center) / by_rows.spread
    return Compared(result, rows, site, label, own, centres, by_rows)


def clusters(study: Study, splits: int, models: int) -> Iterator[dict[str, Any]]:
    """Compare clusters, centres, sizes, and the share with the first yes/no outcome, by split."""
    cases = [(layout, False) for layout in layouts(study, 0)]
    if study.said.get("MORE_FEATURES"):
        cases.append((cases[0][0], True))
    for layout, more in cases:
        for name, policy in PROTECTIONS.items():
            about = {"sites": layout, "columns": len(study.features(more=more)), "p": name}
            for seed in range(splits):
                sites = layouts(study, seed)[layout]
                one = compare(study, sites, policy, models, more)
                hidden = 0.0 if policy == UNPROTECTED else not_released(one.result, sites)
                yield {**about, "split": seed, **_figures(study, one), "not released": hidden}


def means(by_split: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean of each figure over the splits, and the least ARI."""
    groups = pd.DataFrame(by_split).groupby(["sites", "columns", "p"], sort=False)
    # The worst split says more than a spread of a few.
    found = groups.mean().drop(columns="split").assign(**{"least ARI": groups["ARI"].min()})
    return found.reset_index().to_dict("records")


def _figures(study: Study, one: Compared) -> dict[str, float]:
    first = next(each["name"] for each in study.outcomes if each["kind"] == "binary")
    by_rows, n = one.by_rows, len(one.rows)
    events, ks = one.rows[first].to_numpy(float), range(study.said["K"])
    own = np.array([by_rows.Z[one.own == k].mean(axis=0) for k in ks])
    share, of_own, of_rows = (
        np.array([events[x == k].mean() for k in ks]) for x in (one.label, one.own, by_rows.labels)
    )
    drawn = [[events[x == k].mean() for k in ks] for x in by_rows.boot_labels]
    told = np.array([printed(one.outcomes)[first, "yes", k][0] for k in ks])
    sizes = np.array(one.result.sizes_) / n - np.bincount(one.label, minlength=len(told)) / n
    return {
        "cost": float(((by_rows.Z - one.centres[one.label]) ** 2).sum()) / by_rows.cost,
        "ARI": float(adjusted_rand_score(by_rows.labels, one.label)),
        "bootstrap cost": by_rows.boot_cost,
        "bootstrap ARI": float(
            np.mean([adjusted_rand_score(by_rows.labels, x) for x in by_rows.boot_labels])
        ),
        "centres, sd": float(np.sqrt(((one.centres - own) ** 2).mean())),
        "sizes": float(np.abs(sizes).max()),
        "share": float(np.abs(share - of_own).max()),
        "bootstrap share": float(np.abs(drawn - of_rows).max(axis=1).mean()),
        "share with noise": float(np.abs(told - share).max()),
        "in the result": sum(one.result.sizes_ or ()) / n,
    }


def numbers(study: Study, one: Compared) -> list[dict[str, Any]]:
    """Put every estimate that the report prints beside that of the rows."""
    same, own = one.numbers_of(study, one.label), one.numbers_of(study, one.own)
    found = []
    for key, (value, lower, upper) in printed(one.outcomes).items():
        about = dict(zip(("outcome", "what", "cluster"), key, strict=True))
        limits = {"printed": value, "lower": lower, "upper": upper}
        inside = _inside(same[key], lower, upper)
        found.append({**about, **limits, "rows": same[key], "own": own[key], "inside": inside})
    return found


def _inside(value: float, lower: float, upper: float) -> str:
    if math.isnan(lower) and math.isnan(upper):
        return CANNOT_TELL
    return "no" if value < lower or value > upper else "yes"


def profile(study: Study, one: Compared) -> list[dict[str, Any]]:
    """Put every centre beside the rows' mean: with the same label, and in the rows' clusters."""
    found = []
    for k, centre in enumerate(one.result.cluster_centers_):
        for j, name in enumerate(each["name"] for each in study.features()):
            same, own = (one.rows[name][each == k].mean() for each in (one.label, one.own))
            off = [(centre[j] - each) / one.by_rows.spread[j] for each in (same, own)]
            about = {"cluster": k, "column": name, "printed": centre[j], "rows": same, "own": own}
            found.append({**about, "off, sd": off[0], "off own, sd": off[1]})
    return found


def noise(study: Study, draws: int, models: int) -> list[dict[str, Any]]:
    """Count how often intervals hold the rows' number of the same clusters, over draws of noise."""
    found = []
    for layout, sites in layouts(study, study.said["SEED"]).items():
        for name in ("p = 5", "p = 10"):
            one = compare(study, sites, PROTECTIONS[name], models)
            truth = one.numbers_of(study, one.label)
            exact = {x: _exact_tables(one.result, x, rows) for x, rows in sites.items()}
            persons = {x: np.array(one.result.result.site_sizes[x]) for x in sites}
            outcomes, rng = plan_of(one.result.definition).outcomes, np.random.default_rng(0)
            held, silent = [], []
            for _ in range(draws):
                tables = {
                    x: tuple(table + _noise(table, about, rng) for table, about in each)
                    for x, each in ((x, zip(exact[x], outcomes, strict=True)) for x in sites)
                }
                estimates = printed(summarise(tables, outcomes, persons, exact=False))
                said = [_inside(truth[key], *limits[1:]) for key, limits in estimates.items()]
                held.append([each != "no" for each in said])
                silent.append([each == CANNOT_TELL for each in said])
            share = float(np.mean(held))
            about = {"sites": layout, "p": name, "numbers": len(truth), "draws": draws}
            least = float(np.mean(held, axis=0).min())
            about |= {"inside": share, "goal": ">= .94", "met": share >= 0.94}
            found.append({**about, "least of a number": least, CANNOT_TELL: float(np.mean(silent))})
    return found


def _noise(table: Any, outcome: Any, rng: Any) -> Any:
    return discrete_gaussian(float(outcome.variance) ** 0.5, table.shape, rng).astype(np.int64)


def _exact_tables(result: SessionResult, site: str, rows: pd.DataFrame) -> tuple[Any, ...]:
    """Return a site's counts (K + 1, J) of each outcome, without noise."""
    plan, k = plan_of(result.definition), len(result.cluster_centers_)
    persons = read_persons(rows, plan.features, outcomes=plan.outcomes)
    cells = np.concatenate([block.cells for block in persons.blocks()])
    return tuple(
        count_outcomes(result.labels_[site], cells[:, i], k, len(outcome.cells), Fraction(0))
        for i, outcome in enumerate(plan.outcomes)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    file = Path(__file__).parents[1] / "examples" / "support_study.py"
    parser.add_argument("--study", type=Path, default=file)
    parser.add_argument("--splits", type=int, default=3, help="splits into hospitals")
    parser.add_argument("--models", type=int, default=20, help="bootstrap samples of the rows")
    parser.add_argument("--draws", type=int, default=200, help="draws of noise")
    options = parser.parse_args()
    study = Study.read(options.study)
    note = f"Means over {options.splits} splits. The bootstrap has {options.models} models."
    by_split = list(clusters(study, options.splits, options.models))
    write("support_splits", by_split)
    write("support_clusters", means(by_split), note=note)
    write("support_verdicts", verdicts(study, options.splits))
    inside = []
    for name, policy in PROTECTIONS.items():
        one = compare(study, study.split(study.said["SEED"]), policy, options.models)
        file = name.replace(" = ", "")
        write(f"support_profile_{file}", profile(study, one))
        rows = numbers(study, one)
        write(f"support_numbers_{file}", rows)
        counts = {each: sum(row["inside"] == each for row in rows) for each in INSIDE}
        inside.append({"p": name, "numbers": len(rows), **counts})
    write("support_inside", inside)
    write("support_noise", noise(study, options.draws, options.models))


if __name__ == "__main__":
    main()
