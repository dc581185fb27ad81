"""What attackers learn of one person from the protected table of a site.

Each attack goes through the site's real state, 20 times with other persons. `make bench
restored_state` plays the first one through a coordinator, which refuses the restored state. The
limit is what the threat model says that remains; where nothing remains, it is 0.

rollback
    The state is restored from a backup and gets one more newcomer. The attacker subtracts what the
    newcomers' group released before from what it releases now.
dominating value
    One person's costs are twenty times everybody's. The attacker takes record times size, or a
    record, for a person's value.
description, waiting newcomer
    One person who is in no group is in a file with a new column, with an extreme value of it. The
    attacker compares all that is released with what is released without that person.
controlled newcomers
    The attacker knows, or made up, the values of all newcomers of a group but one.
later measurement
    One person of each group has another value in a column under a new name.
cells
    Yes/no columns in a session each. The attacker enumerates all states of each group, and knows
    the columns' centres.
membership
    Who of 60 persons is among the 30 of a site? The attacker knows all their values.
neighbours
    Records are near to persons. The attacker knows who is in which group.
members but one
    The attacker knows the values of all persons of each group but one.
sub-samples
    One, two or forty columns hold one quantity, for seven of ten persons each. The attacker knows
    which, and everybody's group.
groupings
    The same persons are in eight tables, and everybody's group is known in each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust.protection.cohort import Cohort  # noqa: E402
from fedclust.protection.columns import SourceColumn  # noqa: E402
from fedclust.protection.recognition import PersonSource  # noqa: E402
from fedclust.protection.table import within_shares  # noqa: E402
from fedclust.site.backup import back_up, restore  # noqa: E402
from fedclust.site.cohorts import CohortStore  # noqa: E402
from fedclust.site.state import SiteState  # noqa: E402
from support.small_cells import proven, records, states  # noqa: E402

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Figures of one run by name.
Figures = dict[str, float]
P = 5


class Site:
    """A site's state directory, and the table of its persons."""

    def __init__(self, place: Path) -> None:
        self.state = SiteState(place)

    def update(
        self, columns: Mapping[str, FloatArray], rows: Sequence[int] | None = None, **how: Any
    ) -> Cohort:
        """Give a file with these persons, and return the site's table."""
        chosen = list(range(len(next(iter(columns.values()))))) if rows is None else list(rows)
        ids = [f"p{row}" for row in chosen]
        sources = [SourceColumn(name, values[chosen]) for name, values in columns.items()]
        rules = dict.fromkeys(columns, "number")
        source = PersonSource(lambda: [(ids, sources)], rules, n_persons=len(ids))
        store = CohortStore(self.state)
        draft = store.draft(source, p=P, now=datetime.now(UTC), permanent_ids=True, **how)
        return store.keep(draft)

    def groups(self, cohort: Cohort, n: int) -> IntArray:
        """Return the row of the table that each person (n,) is in; -1 if none."""
        return cohort.table_rows(self.state.secret(), [f"p{row}" for row in range(n)])


def _numbers(values: FloatArray) -> dict[str, FloatArray]:
    return {f"x{place}": column for place, column in enumerate(values.T)}


def _values(cohort: Cohort, names: Sequence[str] | None = None) -> FloatArray:
    """Return the records (m, columns)."""
    table = cohort.table(names or list(cohort.rules()))
    return np.column_stack([table.values(name) for name in names or table.names()])


# --- the attacks that succeeded -------------------------------------------------------------------


def rollback(place: Path, rng: np.random.Generator) -> Figures:
    values = rng.normal(size=(66, 4))
    site = Site(place / "site")
    site.update(_numbers(values[:60]))
    back_up(site.state, place / "backup")
    before = site.update(_numbers(values[:65]))
    site.state.directory.rename(place / "lost")
    restore(site.state, place / "backup")
    after = site.update(_numbers(values))
    old, new = _values(before)[-1], _values(after)[-1]
    sizes = before.sizes[-1], after.sizes[-1]
    assert sizes == (5, 6)
    guesses = {
        "subtracted": sizes[1] * new - sizes[0] * old,
        "continued": new + (new - old),
        "record": new,
    }
    return {name: float(np.median(np.abs(each - values[65]))) for name, each in guesses.items()}


def dominating_value(place: Path, rng: np.random.Generator) -> Figures:
    costs = np.where(rng.random(60) < 0.6, 0.0, np.round(np.exp(rng.normal(6.0, 1.0, 60)), 2))
    extreme = 20.0 * costs.max()
    costs[rng.integers(60)] = extreme
    site = Site(place)
    cohort = site.update({"costs": costs} | _numbers(rng.normal(size=(60, 3))))
    released = _values(cohort, ["costs"])[:, 0]
    largest = float((released * cohort.sizes).max()), float(released.max())
    above = np.flatnonzero(released > 0.0)
    groups, claimed = site.groups(cohort, 60), released[above]
    right = [
        (
            np.abs(costs[groups == row] - released[row] * cohort.sizes[row])
            <= 0.1 * costs[groups == row]
        )
        & (costs[groups == row] > 0.0)
        for row in above
    ]
    return {
        "claims right": float(np.mean([each.any() for each in right])) if right else 0.0,
        "extreme named": float(any(abs(each - extreme) <= 0.1 * extreme for each in largest)),
        "exact": float(np.isin(claimed, costs).mean()) if len(claimed) else 0.0,
    }


def waiting(place: Path, rng: np.random.Generator) -> Figures:
    values = np.column_stack([rng.normal(size=(61, 3)), np.exp(rng.normal(size=(61, 2)))])
    values[60] = rng.choice([-1.0, 1.0], 5) * 10.0 ** rng.uniform(0.0, 12.0, 5)
    names = _numbers(values)
    seen = []
    for n in (60, 61):
        site = Site(place / str(n))
        site.update({name: names[name] for name in ("x0", "x1")}, range(60))
        cohort = site.update(names, range(n))
        table = cohort.table(list(names))
        shares = within_shares(_values(cohort), table.sizes, table.neighbours)
        steps = [column.step for column in table.columns]
        seen.append(repr((steps, _values(cohort).tolist(), table.sizes.tolist(), shares.tolist())))
    return {"changed": float(seen[0] != seen[1])}


def later_measurement(place: Path, rng: np.random.Generator) -> Figures:
    values = rng.normal(size=(200, 3))
    site = Site(place)
    cohort = site.update(_numbers(values))
    groups = site.groups(cohort, 200)
    later = values[:, 0].copy()
    changed = np.array(
        [rng.choice(np.flatnonzero(groups == row)) for row in range(groups.max() + 1)]
    )
    later[changed] = rng.normal(size=len(changed))
    after = site.update(_numbers(values) | {"later": later})
    first, second = _values(after, ["x0", "later"]).T
    steps = sum(column.step for column in after.table(["x0", "later"]).columns)
    change = later[changed] - values[changed, 0]
    computed = (second - first) * after.sizes
    moved = np.abs(second - first) > steps / 2.0
    near = np.abs(second - later[changed]) <= 0.4
    return {
        "within 10 %": float((np.abs(computed - change) <= 0.1 * np.abs(change)).mean()),
        "side certain": float(moved.mean()),
        "near, moved": float(near[moved].mean()),
        "near, all": float(near.mean()),
    }


#: Columns by cell, see `tests/protection/test_small_cells.py`.
CELLS: dict[str, list[list[float]]] = {
    "exclusive": [[0, 1, 0], [0, 0, 1]],
    "nested": [[0, 1, 1], [0, 0, 1]],
    "three levels one by one": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "four levels one by one": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
    "any": [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1]],
    "both": [[0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]],
    "exactly one": [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]],
    "missing unless another is yes": [[0, 1, 1], [np.nan, 0, 1]],
}


def cells(place: Path, rng: np.random.Generator) -> Figures:
    found = {}
    for name, columns in CELLS.items():
        n_cells = len(columns[0])
        own = rng.choice(n_cells, 200, p=rng.dirichlet(np.full(n_cells, 2.0)))
        yes_no = {f"c{place}": np.array(each)[own] for place, each in enumerate(columns)}
        site = Site(place / name)
        numbers = _numbers(rng.normal(size=(200, 3)))
        site.update(numbers)
        for each in yes_no:
            cohort = site.update(numbers | {each: yes_no[each]})
        released = _values(cohort, list(yes_no))
        rules = cohort.table(list(yes_no)).columns
        certain = 0
        for size in np.unique(cohort.sizes):
            held = states(int(size), n_cells)
            each = [
                records(held, values, rule, P) for values, rule in zip(columns, rules, strict=True)
            ]
            is_proven = proven(held, each, P)
            table = np.nan_to_num(np.column_stack(each), nan=-1.0)
            for row in np.nan_to_num(released[cohort.sizes == size], nan=-1.0):
                # Multiples of a step of .005 or less, or open.
                same = (np.abs(table - row) < 1e-6).all(axis=1)
                assert same.any()
                certain += int(is_proven[same].all())
        found[name] = certain / len(cohort.sizes)
    return found


# --- what remains ---------------------------------------------------------------------------------


def controlled_newcomers(place: Path, rng: np.random.Generator) -> Figures:
    values = rng.normal(size=(65, 3))
    # Two of the attacker's are far below, and two far above.
    values[60:64] = np.array([-9.0, -9.0, 9.0, 9.0])[:, None]
    site = Site(place)
    site.update(_numbers(values[:60]))
    cohort = site.update(_numbers(values))
    steps = [column.step for column in cohort.table(list(cohort.rules())).columns]
    return {"read": float((np.abs(_values(cohort)[-1] - values[64]) <= steps).mean())}


def membership(place: Path, rng: np.random.Generator) -> Figures:
    values = rng.normal(size=(60, 8))
    cohort = Site(place).update(_numbers(values[:30]))
    released = _values(cohort)
    nearest = ((values[:, None] - released) ** 2).sum(axis=2).min(axis=1)
    return {"AUC": float(roc_auc_score(np.arange(60) < 30, -nearest))}


def neighbours(place: Path, rng: np.random.Generator) -> Figures:
    cancer = load_breast_cancer().data
    rows = rng.permutation(len(cancer))[:142]
    cancer = (cancer / cancer.std(axis=0))[rows]
    found = {}
    for d in (8, 30):
        site = Site(place / str(d))
        cohort = site.update(_numbers(cancer[:, :d]))
        own = _values(cohort)[site.groups(cohort, len(rows))]
        found[f"within .1 sd, d = {d}"] = float((np.abs(own - cancer[:, :d]) <= 0.1).mean())
    return found


def members_but_one(place: Path, rng: np.random.Generator) -> Figures:
    """The share whose value is no other member's and is released: the attacker reads it."""
    values = rng.normal(size=(100, 4))
    site = Site(place)
    cohort = site.update(_numbers(values))
    groups, steps = site.groups(cohort, 100), [c.column.step for c in cohort.columns]
    read = 0
    for person, group in enumerate(groups):
        others = values[(groups == group) & (np.arange(100) != person)]
        record = _values(cohort)[group]
        of_another = (np.abs(others - record) <= np.array(steps) / 2.0).any(axis=0)
        read += int((~of_another).sum())
    return {"read": read / values.size}


def sub_samples(place: Path, rng: np.random.Generator) -> Figures:
    values, quantity = rng.normal(size=(120, 3)), rng.normal(size=120)
    site = Site(place)
    groups = site.groups(site.update(_numbers(values)), 120)
    found = {}
    for n_columns in (1, 2, 40):
        inside = rng.random((n_columns, 120)) < (0.7 if n_columns > 1 else 1.1)
        columns = {
            f"q{n_columns}-{place}": np.where(each, quantity, np.nan)
            for place, each in enumerate(inside)
        }
        released = _values(site.update(_numbers(values) | columns), list(columns))
        guess = np.zeros(120)
        for group in range(groups.max() + 1):
            own = groups == group
            guess[own] = _posterior_means(released[group], inside[:, own], rng)
        near = np.abs(guess - quantity) <= 0.25
        found[f"within .25 sd, {n_columns}"] = float(near.mean())
    return found


def _posterior_means(
    released: FloatArray, inside: NDArray[np.bool_], rng: np.random.Generator
) -> FloatArray:
    """Return the mean of the values (n,) that n persons may have, sampled by Metropolis's rule.

    Parameters
    ----------
    released : (columns,) float64
        Records of one group.
    inside : (columns, n) bool
        Who has a value of each column.
    rng : numpy.random.Generator
    """
    there = ~np.isnan(released)
    released, inside = released[there], inside[there]
    if not len(released):
        return np.zeros(inside.shape[1])
    rows, known = np.arange(len(released)), inside.sum(axis=1)

    def fit(values: FloatArray) -> float:
        held = np.sort(np.where(inside, values, np.inf), axis=1)
        middles = np.stack([held[rows, (known - 1) // 2], held[rows, known // 2]])
        gaps = np.abs(middles - released).min(axis=0)
        return float(-np.minimum(gaps / 0.05, 20.0).sum() - (values**2).sum() / 2.0)

    values = rng.choice(released, inside.shape[1])
    now, sums, n_sums = fit(values), np.zeros(len(values)), 0
    for step in range(3_000):
        proposed = values.copy()
        # A person is one of the middle values, or anything.
        proposed[rng.integers(len(values))] = (
            rng.choice(released) + rng.normal(0.0, 0.05) if rng.random() < 0.5 else rng.normal()
        )
        then = fit(proposed)
        if np.log(rng.random()) < (then - now) * min(1.0, 0.1 + step / 1_000):
            values, now = proposed, then
        if step >= 1_000:
            sums, n_sums = sums + values, n_sums + 1
    return np.asarray(sums / n_sums)


def groupings(place: Path, rng: np.random.Generator) -> Figures:
    """The mean of the eight records of each person's groups."""
    values = rng.normal(size=(120, 1))
    sums = np.zeros(120)
    for table in range(8):
        site = Site(place / str(table))
        # Other columns each time group the persons otherwise.
        others = rng.normal(size=(120, 7))
        cohort = site.update(_numbers(np.column_stack([values, others])))
        sums += _values(cohort)[site.groups(cohort, 120), 0]
        if table == 0:
            one = float((np.abs(sums - values[:, 0]) <= 0.25).mean())
    return {"one": one, "eight": float((np.abs(sums / 8.0 - values[:, 0]) <= 0.25).mean())}


# --- the table of figures -------------------------------------------------------------------------

#: Attack, name of a figure, of what it is the mean, and the largest value that the threat model
#: allows, or what it says that remains.
LIMITS: list[tuple[Callable[[Path, np.random.Generator], Figures], str, str, float | str]] = [
    (rollback, "subtracted", "error, sd", ">= record"),
    (rollback, "continued", "error, sd", ">= record"),
    (rollback, "record", "error, sd", "everybody sees it"),
    (dominating_value, "extreme named", "sites", 0.0),
    (dominating_value, "claims right", "claims", 0.2),
    (dominating_value, "exact", "records above 0", 0.02),
    (waiting, "changed", "tables", 0.0),
    (later_measurement, "within 10 %", "groups", 0.05),
    (later_measurement, "side certain", "groups", 0.44),
    (later_measurement, "near, moved", "groups that moved", 0.41),
    (later_measurement, "near, all", "groups", "by chance"),
    (cells, "exclusive", "groups", 0.0),
    (cells, "nested", "groups", 0.0),
    (cells, "three levels one by one", "groups", "said: <= .24 of states"),
    (cells, "four levels one by one", "groups", "said: <= .29 of states"),
    (cells, "any", "groups", "said: <= .12 of states"),
    (cells, "both", "groups", "said: <= .12 of states"),
    (cells, "exactly one", "groups", "said: <= .26 of states"),
    (cells, "missing unless another is yes", "groups", "said: <= .58 of states"),
    (controlled_newcomers, "read", "values", "said: all"),
    (membership, "AUC", "sites", 0.74),
    (neighbours, "within .1 sd, d = 8", "values", 0.46),
    (neighbours, "within .1 sd, d = 30", "values", 0.38),
    (members_but_one, "read", "values", "said: one of n"),
    (sub_samples, "within .25 sd, 1", "persons", "a third"),
    (sub_samples, "within .25 sd, 2", "persons", "said: a third"),
    (sub_samples, "within .25 sd, 40", "persons", 0.67),
    (groupings, "one", "persons within .25 sd", "one table"),
    (groupings, "eight", "persons within .25 sd", 0.67),
]


def main() -> None:
    """Print what each attack gains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    os.environ.pop("FEDCLUST_STATE_DIR", None)
    found: dict[str, list[Figures]] = {}
    for attack in dict.fromkeys(each[0] for each in LIMITS):
        for run in range(options.runs):
            with tempfile.TemporaryDirectory() as place:
                figures = attack(Path(place), np.random.default_rng(run))
            found.setdefault(attack.__name__, []).append(figures)
    rows = []
    for attack, name, of, limit in LIMITS:
        value = statistics.mean(each[name] for each in found[attack.__name__])
        met: bool | str = ""
        if isinstance(limit, float):
            met = value <= limit + 1e-12
        elif limit == ">= record":
            # .58 and .61 were measured before.
            met = value >= 0.9 * statistics.mean(each["record"] for each in found["rollback"])
        rows.append(
            {
                "attack": attack.__name__.replace("_", " "),
                "figure": name,
                "of": of,
                "value": value,
                "limit": f"<= {limit}" if isinstance(limit, float) else limit,
                "met": met,
            }
        )
    write("table_attackers", rows, note=f"{options.runs} runs each, p = {P}; means.")


if __name__ == "__main__":
    main()
