"""What attackers learn of one person from the protected table of a site.

Each attack goes through the site's real state, 20 times with other persons. With ``--service`` the
site takes part in sessions of a coordinator, over HTTP, and the attacker sees nothing but what the
coordinator stores. The limit is what the threat model says that remains; where nothing remains, it
is 0.

rollback
    The state is restored from a backup and gets one more newcomer. The attacker subtracts what the
    newcomers' group released before from what it releases now. A coordinator refuses the restored
    state; then its operator accepts it.
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

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust import errors, rounds  # noqa: E402
from fedclust.client import Client  # noqa: E402
from fedclust.client.http import ConnectionOptions  # noqa: E402
from fedclust.definition import plan_of  # noqa: E402
from fedclust.protection.columns import SourceColumn, TableColumn  # noqa: E402
from fedclust.protection.recognition import PersonSource  # noqa: E402
from fedclust.protection.table import within_shares  # noqa: E402
from fedclust.site import Site as SiteAtCoordinator  # noqa: E402
from fedclust.site.backup import back_up, restore  # noqa: E402
from fedclust.site.cohorts import CohortStore  # noqa: E402
from fedclust.site.state import SiteState  # noqa: E402
from fedclust.wire.submissions import payload_from_bytes  # noqa: E402
from fedclust_service.domain.round import Submission  # noqa: E402
from fedclust_service.domain.session import Participation  # noqa: E402
from fedclust_service.store import Tx  # noqa: E402
from support.consortium import Consortium  # noqa: E402
from support.local_coordinator import LocalCoordinator, local_coordinator  # noqa: E402
from support.small_cells import proven, records, states  # noqa: E402

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Figures of one run by name.
Figures = dict[str, float]
P = 5


@dataclass(frozen=True)
class View:
    """What an attacker has of a site after a file.

    Attributes
    ----------
    columns : tuple of TableColumn
        Side knowledge: how each column is released.
    sizes : (m,) int64
    values : (m, columns) float64
        Records; NaN where a group does not release a column.
    groups : (n,) int64
        Side knowledge: the row of each person, -1 if none.
    everything : str
        All that left, except for heads.
    """

    columns: tuple[TableColumn, ...]
    sizes: IntArray
    values: FloatArray
    groups: IntArray
    everything: str

    @property
    def steps(self) -> FloatArray:
        return np.array([column.step for column in self.columns])

    def of(self, name: str) -> FloatArray:
        """Return the records (m,) of a column."""
        return self.values[:, [column.name for column in self.columns].index(name)]


class Site:
    """A site's state directory; the attacker sees the table of its persons."""

    def __init__(self, place: Path) -> None:
        self.state = SiteState(place)
        #: Whether a state was refused.
        self.refused = False

    def update(self, columns: Mapping[str, FloatArray], rows: Sequence[int] | None = None) -> View:
        """Give a file with these persons, of whom it returns the view."""
        n = len(next(iter(columns.values())))
        chosen = list(range(n)) if rows is None else list(rows)
        ids = [f"p{row}" for row in chosen]
        self._release(ids, {name: values[chosen] for name, values in columns.items()})
        (record,) = CohortStore(self.state).records().values()
        table = record.cohort.table(list(columns))
        values = np.column_stack([table.values(name) for name in table.names()])
        shares = within_shares(values, table.sizes, table.neighbours)
        everything = repr((table.columns, values.tolist(), table.sizes.tolist(), shares.tolist()))
        groups = record.cohort.table_rows(self.state.secret(), [f"p{row}" for row in range(n)])
        view = View(table.columns, table.sizes, values, groups, everything)
        return self._seen(view)

    def _release(self, ids: list[str], columns: Mapping[str, FloatArray]) -> None:
        sources = [SourceColumn(name, values) for name, values in columns.items()]
        rules = dict.fromkeys(columns, "number")
        source = PersonSource(lambda: [(ids, sources)], rules, n_persons=len(ids))
        store = CohortStore(self.state)
        store.keep(store.draft(source, p=P, now=datetime.now(UTC), permanent_ids=True))

    def _seen(self, view: View) -> View:
        """Return the attacker's view of what just left."""
        return view


class ServedSite(Site):
    """The same site in a coordinator's sessions; the attacker sees what the coordinator stores.

    `spectral` with more landmarks than groups asks for the whole table.
    """

    _serial = itertools.count()

    def __init__(self, place: Path, local: LocalCoordinator, analyst: str) -> None:
        super().__init__(place)
        place.mkdir(parents=True, exist_ok=True)
        (place / "site.toml").write_text('ids = "permanent"\n', "utf-8")
        self._place, self._local = place, local
        number = next(self._serial)
        self._me, self._other = f"me-{number}", f"other-{number}"
        with Client(local.base_url, local.operator_token) as operator:
            tokens = {}
            for name in (self._me, self._other):
                operator.add("sites", name)
                tokens[name] = operator.issue_token("sites", name).token
        self._consortium = Consortium(local.base_url, analyst, tokens, ConnectionOptions())
        self._session, self._asked = "", (list[str](), dict[str, FloatArray]())

    def _release(self, ids: list[str], columns: Mapping[str, FloatArray], seed: int = 7) -> None:
        self._session, self._asked = f"session-{next(self._serial)}", (ids, dict(columns))
        self._consortium.create(
            self._session,
            len(columns),
            algorithm="spectral",
            features=[{"name": name} for name in columns],
            config={"n_clusters": 2, "landmarks": 1_000},
            seed=seed,
            policy={"scaling": "none", "missing": "impute", "min_sites": 2, "min_group_size": P},
        )
        # The same persons each time.
        others = {
            name: np.random.default_rng(zlib.crc32(name.encode())).normal(size=20)
            for name in columns
        }
        with ThreadPoolExecutor() as pool:
            other = pool.submit(
                self._take_part, self._other, [f"p{row}" for row in range(20)], others
            )
            self._take_part(self._me, ids, columns)
            other.result()

    def _take_part(self, name: str, ids: list[str], columns: Mapping[str, FloatArray]) -> None:
        people = pd.DataFrame({"patient": ids, **columns})
        directory = self.state.directory if name == self._me else self._place.with_name(name)
        token = self._consortium.site_tokens[name]
        with SiteAtCoordinator(self._local.base_url, token, state_dir=directory) as site:
            try:
                site.participate(self._session, people, person="patient", consent=True)
            except errors.TableChanged:
                self.refused = True
                self._accept()
                site.participate(self._session, people, person="patient", consent=True)

    def _accept(self) -> None:
        """Do as an operator who accepts the state that was refused."""
        store = CohortStore(self.state)
        (table,) = store.records()
        heads = store.heads(table)
        with Client(self._local.base_url, self._local.operator_token) as operator:
            operator.accept_table(self._me, table, heads.last, heads.heads[-1])

    def _seen(self, view: View) -> View:
        payloads, everything = self._stored()
        for seed in range(8, 20):
            if payloads["landmarks", self._me].counts.all():
                break
            # Two groups are in one cell: ask again.
            self._release(*self._asked, seed)
            payloads, everything = self._stored()
        moments = [payloads["prepare", site] for site in (self._me, self._other)]
        observed = sum(each.observed for each in moments)
        imputed = sum(each.observed * each.mean for each in moments) / observed
        landmarks = payloads["landmarks", self._me]
        # Which cell is which group, and which records are imputed, is side knowledge: a record may
        # equal the mean by chance. Nothing but the groups is in the cells.
        known = np.where(np.isnan(view.values), imputed, view.values)
        cells = ((known[:, None] - landmarks.means) ** 2).sum(axis=2).argmin(axis=1)
        assert sorted(cells) == list(range(len(landmarks.counts)))
        values = landmarks.means[cells]
        assert np.allclose(values, known, rtol=1e-9, atol=1e-9)
        values[np.isnan(view.values)] = np.nan
        sizes = landmarks.counts[cells]
        return replace(view, sizes=sizes, values=values, everything=everything)

    def _stored(self) -> tuple[dict[tuple[str, str], Any], str]:
        """Return the payloads that are stored by phase and site, and all of this site as text."""

        def read(tx: Tx) -> tuple[list[Submission], list[Participation]]:
            session = tx.sessions.get(self._session)
            assert session is not None
            every = tx.rounds.list(session.id, limit=100)
            answers = [each for found in every for each in tx.submissions.list(found.id)]
            return answers, list(tx.participations.list(session.id))

        answers, joined = self._local.coordinator.store.run_tx("attack", read)
        with self._consortium.analyst() as analyst:
            plan = plan_of(analyst.session(self._session).definition)
        payloads = {
            (each.phase, each.site): payload_from_bytes(
                rounds.phase(plan, each.phase), each.payload
            )
            for each in answers
        }
        sent = [(each.phase, each.payload) for each in answers if each.site == self._me]
        declared = [
            (each.size_band, each.min_group_size, each.features, each.points_short)
            for each in joined
            if each.site == self._me
        ]
        return payloads, repr((sent, declared))


#: Makes a site whose state is at a place.
Sites = Callable[[Path], Site]


def _numbers(values: FloatArray) -> dict[str, FloatArray]:
    return {f"x{place}": column for place, column in enumerate(values.T)}


# --- the attacks that succeeded -------------------------------------------------------------------


def rollback(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    values = rng.normal(size=(66, 4))
    site = sites(place / "site")
    site.update(_numbers(values[:60]))
    back_up(site.state, place / "backup")
    before = site.update(_numbers(values[:65]))
    site.state.directory.rename(place / "lost")
    restore(site.state, place / "backup")
    after = site.update(_numbers(values))
    old, new = before.values[-1], after.values[-1]
    sizes = before.sizes[-1], after.sizes[-1]
    assert sizes == (5, 6)
    guesses = {
        "subtracted": sizes[1] * new - sizes[0] * old,
        "continued": new + (new - old),
        "record": new,
    }
    errors_of = {
        name: float(np.median(np.abs(each - values[65]))) for name, each in guesses.items()
    }
    return errors_of | {"refused": float(site.refused)}


def dominating_value(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    costs = np.where(rng.random(60) < 0.6, 0.0, np.round(np.exp(rng.normal(6.0, 1.0, 60)), 2))
    extreme = 20.0 * costs.max()
    costs[rng.integers(60)] = extreme
    view = sites(place).update({"costs": costs} | _numbers(rng.normal(size=(60, 3))))
    released = view.of("costs")
    largest = float((released * view.sizes).max()), float(released.max())
    above = np.flatnonzero(released > 0.0)
    groups, claimed = view.groups, released[above]
    right = [
        (
            np.abs(costs[groups == row] - released[row] * view.sizes[row])
            <= 0.1 * costs[groups == row]
        )
        & (costs[groups == row] > 0.0)
        for row in above
    ]
    return {
        "claims right": float(np.mean([each.any() for each in right])) if right else 0.0,
        "extreme named": float(any(abs(each - extreme) <= 0.1 * extreme for each in largest)),
        "exact": float(np.isclose(claimed[:, None], costs, rtol=1e-9, atol=0.0).any(axis=1).mean())
        if len(claimed)
        else 0.0,
    }


def waiting(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    values = np.column_stack([rng.normal(size=(61, 3)), np.exp(rng.normal(size=(61, 2)))])
    values[60] = rng.choice([-1.0, 1.0], 5) * 10.0 ** rng.uniform(0.0, 12.0, 5)
    names = _numbers(values)
    seen = []
    for n in (60, 61):
        site = sites(place / str(n))
        site.update({name: names[name] for name in ("x0", "x1")}, range(60))
        seen.append(site.update(names, range(n)).everything)
    return {"changed": float(seen[0] != seen[1])}


def later_measurement(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    values = rng.normal(size=(200, 3))
    site = sites(place)
    groups = site.update(_numbers(values)).groups
    later = values[:, 0].copy()
    changed = np.array(
        [rng.choice(np.flatnonzero(groups == row)) for row in range(groups.max() + 1)]
    )
    later[changed] = rng.normal(size=len(changed))
    after = site.update(_numbers(values) | {"later": later})
    first, second = after.of("x0"), after.of("later")
    steps = after.steps[0] + after.steps[-1]
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


def cells(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    found = {}
    for name, columns in CELLS.items():
        n_cells = len(columns[0])
        own = rng.choice(n_cells, 200, p=rng.dirichlet(np.full(n_cells, 2.0)))
        yes_no = {f"c{place}": np.array(each)[own] for place, each in enumerate(columns)}
        site = sites(place / name)
        numbers = _numbers(rng.normal(size=(200, 3)))
        site.update(numbers)
        views = [site.update(numbers | {each: yes_no[each]}) for each in yes_no]
        released = np.column_stack([view.values[:, -1] for view in views])
        rules, sizes = [view.columns[-1] for view in views], views[-1].sizes
        certain = 0
        for size in np.unique(sizes):
            held = states(int(size), n_cells)
            each = [
                records(held, values, rule, P) for values, rule in zip(columns, rules, strict=True)
            ]
            is_proven = proven(held, each, P)
            table = np.nan_to_num(np.column_stack(each), nan=-1.0)
            for row in np.nan_to_num(released[sizes == size], nan=-1.0):
                # Multiples of a step of .005 or less, or open.
                same = (np.abs(table - row) < 1e-6).all(axis=1)
                assert same.any()
                certain += int(is_proven[same].all())
        found[name] = certain / len(sizes)
    return found


# --- what remains ---------------------------------------------------------------------------------


def controlled_newcomers(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    values = rng.normal(size=(65, 3))
    # Two of the attacker's are far below, and two far above.
    values[60:64] = np.array([-9.0, -9.0, 9.0, 9.0])[:, None]
    site = sites(place)
    site.update(_numbers(values[:60]))
    view = site.update(_numbers(values))
    return {"read": float((np.abs(view.values[-1] - values[64]) <= view.steps).mean())}


def membership(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    values = rng.normal(size=(60, 8))
    released = sites(place).update(_numbers(values[:30])).values
    nearest = ((values[:, None] - released) ** 2).sum(axis=2).min(axis=1)
    return {"AUC": float(roc_auc_score(np.arange(60) < 30, -nearest))}


def neighbours(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    cancer = load_breast_cancer().data
    rows = rng.permutation(len(cancer))[:142]
    cancer = (cancer / cancer.std(axis=0))[rows]
    found = {}
    for d in (8, 30):
        view = sites(place / str(d)).update(_numbers(cancer[:, :d]))
        own = view.values[view.groups]
        found[f"within .1 sd, d = {d}"] = float((np.abs(own - cancer[:, :d]) <= 0.1).mean())
    return found


def members_but_one(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    """The share whose value is no other member's and is released: the attacker reads it."""
    values = rng.normal(size=(100, 4))
    view = sites(place).update(_numbers(values))
    read = 0
    for person, group in enumerate(view.groups):
        others = values[(view.groups == group) & (np.arange(100) != person)]
        of_another = (np.abs(others - view.values[group]) <= view.steps / 2.0).any(axis=0)
        read += int((~of_another).sum())
    return {"read": read / values.size}


def sub_samples(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    values, quantity = rng.normal(size=(120, 3)), rng.normal(size=120)
    site = sites(place)
    groups = site.update(_numbers(values)).groups
    found = {}
    for n_columns in (1, 2, 40):
        inside = rng.random((n_columns, 120)) < (0.7 if n_columns > 1 else 1.1)
        columns = {
            f"q{n_columns}-{place}": np.where(each, quantity, np.nan)
            for place, each in enumerate(inside)
        }
        released = site.update(_numbers(values) | columns).values[:, 3:]
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


def groupings(sites: Sites, place: Path, rng: np.random.Generator) -> Figures:
    """The mean of the eight records of each person's groups."""
    values = rng.normal(size=(120, 1))
    sums = np.zeros(120)
    for table in range(8):
        # Other columns each time group the persons otherwise.
        others = rng.normal(size=(120, 7))
        view = sites(place / str(table)).update(_numbers(np.column_stack([values, others])))
        sums += view.values[view.groups, 0]
        if table == 0:
            one = float((np.abs(sums - values[:, 0]) <= 0.25).mean())
    return {"one": one, "eight": float((np.abs(sums / 8.0 - values[:, 0]) <= 0.25).mean())}


# --- the table of figures -------------------------------------------------------------------------

#: Attack, name of a figure, of what it is the mean, and the largest value that the threat model
#: allows, or what it says that remains.
LIMITS: list[tuple[Callable[..., Figures], str, str, float | str]] = [
    (rollback, "refused", "restored states", "all, by a coordinator"),
    (rollback, "subtracted", "error, sd", ">= record"),
    (rollback, "continued", "error, sd", ">= record"),
    (rollback, "record", "error, sd", "everybody sees it"),
    (dominating_value, "extreme named", "sites", 0.0),
    (dominating_value, "claims right", "claims", 0.2),
    (dominating_value, "exact", "records above 0", 0.02),
    (waiting, "changed", "tables", 0.0),
    (later_measurement, "within 10 %", "groups", 0.05),
    (later_measurement, "side certain", "groups", 0.4),
    (later_measurement, "near, moved", "groups that moved", 0.3),
    (later_measurement, "near, all", "groups", "by chance"),
    (cells, "exclusive", "groups", 0.0),
    (cells, "nested", "groups", 0.0),
    (cells, "three levels one by one", "groups", "said: <= .29 of states"),
    (cells, "four levels one by one", "groups", "said: <= .29 of states"),
    (cells, "any", "groups", "said: <= .12 of states"),
    (cells, "both", "groups", "said: <= .12 of states"),
    (cells, "exactly one", "groups", "said: <= .26 of states"),
    (cells, "missing unless another is yes", "groups", "said: <= .43 of states"),
    (controlled_newcomers, "read", "values", "said: all"),
    (membership, "AUC", "sites", 0.7),
    (neighbours, "within .1 sd, d = 8", "values", 0.39),
    (neighbours, "within .1 sd, d = 30", "values", 0.36),
    (members_but_one, "read", "values", "said: one of n"),
    (sub_samples, "within .25 sd, 1", "persons", "a third"),
    (sub_samples, "within .25 sd, 2", "persons", "said: a third"),
    (sub_samples, "within .25 sd, 40", "persons", 0.4),
    (groupings, "one", "persons within .25 sd", "one table"),
    (groupings, "eight", "persons within .25 sd", 0.51),
]


def main() -> None:
    """Print what each attack gains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--service", action="store_true", help="Through a coordinator, over HTTP.")
    parser.add_argument("--only", nargs="+", help="Attacks by name, such as later_measurement.")
    options = parser.parse_args()
    os.environ.pop("FEDCLUST_STATE_DIR", None)
    limits = [each for each in LIMITS if options.only is None or each[0].__name__ in options.only]
    found: dict[str, list[Figures]] = {}
    with ExitStack() as stack:
        sites: Sites = Site
        if options.service:
            at = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            sites = _served(stack.enter_context(local_coordinator(at, threads=True)))
        for attack in dict.fromkeys(each[0] for each in limits):
            for run in range(options.runs):
                with tempfile.TemporaryDirectory() as place:
                    figures = attack(sites, Path(place) / "site", np.random.default_rng(run))
                found.setdefault(attack.__name__, []).append(figures)
    rows = []
    for attack, name, of, limit in limits:
        value = statistics.mean(each[name] for each in found[attack.__name__])
        met: bool | str = ""
        if isinstance(limit, float):
            met = value <= limit + 1e-12
        elif limit == ">= record":
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
    way = "through a coordinator over HTTP" if options.service else "through the site's state"
    name = "table_attackers_service" if options.service else "table_attackers"
    write(name, rows, note=f"{options.runs} runs each, {way}, p = {P}; means.")


def _served(local: LocalCoordinator) -> Sites:
    """Return what makes sites of a coordinator."""
    with Client(local.base_url, local.operator_token) as operator:
        operator.add("analysts", "ada")
        analyst = operator.issue_token("analysts", "ada").token
    return lambda place: ServedSite(place, local, analyst)


if __name__ == "__main__":
    main()
