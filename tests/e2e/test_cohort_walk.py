"""A study over HTTP in which a site's persons come, go and change from session to session.

Two who work together look on: an analyst, who keeps every result, and all other sites, who
subtract what is theirs. What is left of the results are sums of the records of one site's groups.
What a group has released stays, rests on at least p of its persons while all of them are there, and
no withdrawn person is served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fedclust import Site, errors
from fedclust.protection.cohort import Cohort
from fedclust.protection.table import TooFewPersons
from fedclust.site.cohorts import CohortStore
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState
from support.cohorts import Released
from support.consortium import Consortium
from support.server import running_server

P = 3
PERSON = "patient"
ME, OTHERS = "me", ("alpha", "beta", "gamma")
#: What happens between two sessions, in an order that each seed draws.
STEPS = (
    "join",
    "correct few",
    "leave",
    "withdraw",
    "new column",
    "rename",
    "larger p",
    "join",
    "correct all",
    "correct few",
    "other ids",
    "lost groups",
)

FloatArray = NDArray[np.float64]


@dataclass
class Study:
    """A site whose file changes, and what was released of it.

    Attributes
    ----------
    values : dict of person to values by column
        The true ones of all who were ever there; ``present`` are in the file.
    names : dict of str to str
        What each column is called now.
    released : Released
    table_id : str
        Of the site's table.
    """

    consortium: Consortium
    place: Path
    rng: np.random.Generator
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    present: list[str] = field(default_factory=list)
    withdrawn: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=lambda: {"age": "age", "crp": "crp"})
    released: Released = field(default_factory=lambda: Released(P))
    table_id: str = ""
    sessions: int = 0

    # --- the site ---------------------------------------------------------------------------------

    def happen(self, step: str) -> None:
        """Let something happen, and run a session after it."""
        policy: dict[str, Any] = {}
        match step:
            case "join":
                self.bring(int(self.rng.integers(1, 8)))
            case "leave":
                self.present = [p for p in self.values if self.rng.random() > 0.1]
            case "correct few" | "correct all":
                self.correct(few=step == "correct few")
            case "withdraw":
                self.withdraw()
            case "new column":
                self.names |= {"smoker": "smoker", "stay": "stay"}
                for row in self.values.values():
                    row |= {"smoker": self.draw("smoker"), "stay": self.draw("stay")}
            case "rename":
                self.rename()
            case "larger p":
                policy = {"min_group_size": 8}
            case "other ids":
                # The values tell the site, or the table's id the coordinator.
                changed = self.frame(prefix=f"new-{self.sessions}-")
                self.refused(changed, (errors.PersonsRefused, errors.TableChanged))
            case "lost groups":
                # The coordinator knows the table's id.
                self.refused(self.frame(), errors.TableChanged, state="lost")
        self.session(policy)

    def bring(self, n: int) -> None:
        for _ in range(n):
            person = f"P{len(self.values)}"
            self.values[person] = {column: self.draw(column) for column in self.names}
            self.present.append(person)

    def draw(self, column: str) -> float:
        return float(self.rng.integers(0, 2) if column == "smoker" else self.rng.normal(50.0, 10.0))

    def rename(self) -> None:
        """Rename a column and change one person in it: it is a new column."""
        self.values[str(self.rng.choice(self.present))]["age"] = self.draw("age")
        self.names["age"] = "age_2"

    def correct(self, *, few: bool) -> None:
        """Change a column's values of 1 to p - 1 persons of a group, or of all."""
        groups = self.table().table_rows(self.secret, self.present)
        column = str(self.rng.choice(list(self.names)))
        members = np.flatnonzero(groups == self.rng.choice(groups[groups >= 0]))
        for place in members[: int(self.rng.integers(1, P))] if few else members:
            self.values[self.present[place]][column] = self.draw(column)

    def withdraw(self) -> None:
        groups = self.table().table_rows(self.secret, self.present)
        person = self.present[int(self.rng.choice(np.flatnonzero(groups >= 0)))]
        self.store().withdraw(person, datetime.now(UTC))
        self.withdrawn.add(person)

    def table(self) -> Cohort:
        return self.store().records()[self.table_id].cohort

    def store(self, site: str = ME) -> CohortStore:
        return CohortStore(SiteState(self.place / site))

    @property
    def secret(self) -> bytes:
        return self.store().state.secret()

    def frame(self, prefix: str = "") -> pd.DataFrame:
        rows = [[self.values[person][column] for column in self.names] for person in self.present]
        ids = [prefix + person for person in self.present]
        return pd.DataFrame(rows, columns=list(self.names.values())).assign(**{PERSON: ids})

    # --- sessions ---------------------------------------------------------------------------------

    def create(self, **policy: Any) -> str:
        self.sessions += 1
        session = f"{self.place.name}-{self.sessions}"
        names = self.names.values()
        self.consortium.create(
            session,
            0,
            features=[{"name": name, "lower": 0.0, "upper": 200.0} for name in names],
            config={"n_clusters": 2 + self.sessions % 4},
            seed=self.sessions,
            policy={
                "min_group_size": P,
                "scaling": "none",
                "max_rounds": 4,
                "missing": "drop",
                **policy,
            },
        )
        return session

    def session(self, policy: dict[str, Any]) -> None:
        """Run a session with the site's file, and look at what is released."""
        before = self.table() if self.table_id else None
        session = self.create(**policy)
        if before is not None and self.other_values(session):
            return
        self.run(session)
        self.table_id = self.table_id or self.table_of(ME).table_id
        self.note(self.released, self.table())
        self.compare(session, policy.get("min_group_size", P))

    def separate(self, approval: str) -> None:
        """Run a session in which the sites have other groups than before."""
        known = set(self.store().records())
        self.run(self.create(), separate_groups=approval)
        apart = Released(P)
        for name, record in self.store().records().items():
            if name not in known:
                self.note(apart, record.cohort)
        assert apart.records

    def note(self, released: Released, cohort: Cohort) -> None:
        """Check what a table releases after a file."""
        values = {
            person: {self.names[column]: value for column, value in row.items()}
            for person, row in self.values.items()
        }
        assert not self.withdrawn & released.note(cohort, values, self.present, self.secret)

    def run(self, session: str, **options: Any) -> None:
        rows = {ME: self.frame()} | {name: self.rows_of(name) for name in OTHERS}
        self.consortium.run(session, rows, self.place, person=PERSON, **options)

    def other_values(self, session: str) -> bool:
        """Return whether the site refuses its file: too much of it has changed."""
        try:
            with self.site() as site:
                site.check(session, self.frame(), person=PERSON)
        except errors.PersonsRefused as refused:
            if refused.rule not in {"other-values", "unknown-persons"}:
                raise
            return True
        return False

    def refused(
        self,
        file: pd.DataFrame,
        error: type[Exception] | tuple[type[Exception], ...],
        state: str = ME,
    ) -> None:
        """See that the site does not join with a file, or with other groups, and sends nothing."""
        session = self.create()
        with self.site(state) as site, pytest.raises(error):
            site.participate(session, file, person=PERSON, consent=True)
        with self.consortium.analyst() as analyst:
            states = {each.name: each.state for each in analyst.session(session).sites}
        assert states[ME] == "invited"

    def site(self, state: str = ME) -> Site:
        token = self.consortium.site_tokens[ME]
        return Site(self.consortium.url, token, state_dir=self.place / state)

    def rows_of(self, name: str) -> pd.DataFrame:
        """Return the rows of another site, which do not change."""
        rng = np.random.default_rng(OTHERS.index(name))
        columns = {column: rng.uniform(0.0, 100.0, 40) for column in ("age", "crp", "stay")}
        columns["smoker"] = rng.integers(0, 2, 40).astype(np.float64)
        found = pd.DataFrame({self.names[column]: columns[column] for column in self.names})
        return found.assign(**{PERSON: [f"{name}-{number}" for number in range(40)]})

    # --- what the others come to know -------------------------------------------------------------

    def compare(self, session: str, p: int) -> None:
        """See that what is left of a result are sums of the site's whole groups."""
        result = self.consortium.result(session).result
        centroids = np.array(result["centroids_original"])
        counts = np.array(result["sizes"])
        sums = counts[:, None] * np.array(result["profile"]["means"])
        for name in OTHERS:
            theirs = self.sums(self.table_of(name), centroids, p)
            counts, sums = counts - theirs[0], sums - theirs[1]
        own = self.sums(self.table(), centroids, p)
        np.testing.assert_array_equal(counts, own[0])
        np.testing.assert_allclose(sums, own[1], atol=1e-6)

    def sums(self, cohort: Cohort, centroids: FloatArray, p: int) -> tuple[FloatArray, FloatArray]:
        """Return how many persons of a table (K,) each cluster has, and their sums (K, d)."""
        K = len(centroids)
        try:
            table = cohort.table(list(self.names.values()), p)
        except TooFewPersons:
            return np.zeros(K), np.zeros_like(centroids)
        points = np.column_stack([table.values(name) for name in self.names.values()])
        whole = ~np.isnan(points).any(axis=1)
        points, sizes = points[whole], table.sizes[whole]
        apart = ((points[:, None] - centroids[None]) ** 2).sum(axis=2)
        cells = apart.argmin(axis=1)[:, None] == np.arange(K)
        return sizes @ cells, (cells * sizes[:, None]).T @ points

    def table_of(self, site: str) -> Cohort:
        """Return a site's first table."""
        return next(each.cohort for each in self.store(site).records().values())


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    with running_server(tmp_path / "server") as server:
        yield Consortium.found(server.base_url, server.operator_token, (ME, *OTHERS))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))]
)
def test_no_walk_changes_what_was_released_of_p_persons_real_record(
    consortium: Consortium, tmp_path: Path, seed: int
) -> None:
    study = Study(consortium, tmp_path / f"walk-{seed}", np.random.default_rng(seed))
    study.bring(12)
    study.session({})
    for step in study.rng.permutation(STEPS):
        study.happen(str(step))
    first = study.store().records()

    # With an approval there may be other groups, and the first ones stay as they are.
    study.separate("board 7")
    records = study.store().records()
    assert len(records) == len(first) + 1
    assert all(records[name].history == record.history for name, record in first.items())
    approvals = [line.get("separate_groups") for line in Ledger(SiteState(study.place / ME)).read()]
    assert approvals.count("board 7") == 1
