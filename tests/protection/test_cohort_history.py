"""Whatever happens to a site's persons, what was released stays, and rests on p of them.

A state machine lets persons join, leave, come back, withdraw, change, lose and get values, and
columns come under new names. After each file: what a group or a union has released has not
changed, no group has fewer than p persons or newcomers than they need, a group releases what p of
its persons have while all of them are in the file, and no withdrawn person is served.
"""

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedclust.protection.cohort import CohortRefused, person_keys
from fedclust.protection.columns import SourceColumn
from support.cohorts import SECRET, Memory, Released, groups_of

P = 3
LEVELS = {"code": 3}


class Site(RuleBasedStateMachine):
    """A site whose file changes; after each change a table is made from the file."""

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        n=st.integers(P, 30),
        missing=st.sampled_from([0.0, 0.0, 0.2, 0.6]),
    )
    def begin(self, seed: int, n: int, missing: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.missing = missing
        self.memory = Memory(p=P)
        #: Values by person and column, and who is in the file.
        self.values: dict[str, dict[str, float]] = {}
        self.present: set[str] = set()
        self.names = ["a", "b"]
        self.withdrawn: set[str] = set()
        self.released = Released(P)
        self.join(n)
        self.look()

    def draw(self, column: str) -> float:
        if self.rng.random() < self.missing:
            return float("nan")
        match column[0]:
            case "y":
                return float(self.rng.random() < 0.4)
            case "c":
                return float(self.rng.integers(0, LEVELS["code"]))
            case "z":
                return float(self.rng.choice([0.0] * 9 + [5.0]))
            case _:
                return float(self.rng.normal() * self.rng.choice([1.0, 1.0, 1.0, 1e12]))

    @rule(n=st.integers(1, 9))
    def join(self, n: int) -> None:
        for _ in range(n):
            person = f"P{len(self.values)}"
            self.values[person] = {column: self.draw(column) for column in self.names}
            self.present.add(person)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        # Those who leave at once are few: the rest of a test is about who is there.
        away = data.draw(st.sets(st.sampled_from(sorted(self.values)), max_size=4))
        self.present = set(self.values) - away

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        """Change, lose or get the values of some persons of a group."""
        column = data.draw(st.sampled_from(self.names))
        people = sorted(self.values)
        groups = groups_of(self.memory.cohort, people).tolist()
        group = data.draw(st.sampled_from(sorted(set(groups))))
        members = [name for name, at in zip(people, groups, strict=True) if at == group]
        to_nothing = data.draw(st.booleans())
        for person in data.draw(st.sets(st.sampled_from(members), min_size=1)):
            self.values[person][column] = np.nan if to_nothing else self.draw(column)

    @precondition(lambda self: len(self.names) < 7)
    @rule(column=st.sampled_from(["yes", "code", "zeros", "number"]))
    def add_column(self, column: str) -> None:
        name = f"{column}{len(self.names)}"
        self.names.append(name)
        for row in self.values.values():
            row[name] = self.draw(name)

    @precondition(lambda self: len(self.names) < 7)
    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        """Give a column's values of now a new name, as a later measurement has one."""
        column = data.draw(st.sampled_from(self.names))
        name = f"{column}'{len(self.names)}"
        self.names.append(name)
        for row in self.values.values():
            row[name] = row[column]

    @precondition(lambda self: len(self.withdrawn) < 4)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        person = data.draw(st.sampled_from(sorted(self.values)))
        cohort = self.memory.cohort
        if cohort.find(person_keys(SECRET, [person])[0])[0] < 0:
            with pytest.raises(CohortRefused):
                cohort.withdraw(SECRET, person)
        else:
            self.memory.cohorts = [cohort.withdraw(SECRET, person)]
            self.withdrawn.add(person)

    @rule(blocks=st.integers(1, 3), larger_p=st.sampled_from([0, 4, 6, 9]))
    def read(self, blocks: int, larger_p: int) -> None:
        for p in (larger_p, 6):
            self.look(blocks, p)

    def look(self, blocks: int = 1, larger_p: int = 0) -> None:
        """Make a table from the file, and check what is released by it."""
        people = sorted(self.present)
        if len(people) < blocks:
            return
        sources = [
            SourceColumn(
                name,
                np.array([self.values[each][name] for each in people]),
                LEVELS["code"] if name.startswith("c") else None,
            )
            for name in self.names
        ]
        try:
            change = self.memory.update_sources(
                people, sources, blocks=blocks, p=larger_p, any_persons=True
            )
        except CohortRefused as refused:
            assert refused.rule == "other-values"  # noqa: PT017
            return
        cohort = self.memory.cohort
        new = self.released.note(cohort, self.values, self.present)
        assert not self.withdrawn & new
        assert change.waiting < max(cohort.least, 2 * P)

    @invariant()
    def a_table_is_of_whole_groups_without_withdrawn_persons_real_record(self) -> None:
        if not getattr(self, "values", None) or not self.memory.cohorts:
            return
        cohort, people = self.memory.cohort, sorted(self.values)
        for larger_p in (0, *(each.p for each in cohort.unions)):
            rows = cohort.table_rows(SECRET, people, larger_p)
            assert all(row < 0 for p, row in zip(people, rows, strict=True) if p in self.withdrawn)
            if (rows >= 0).any():
                sizes = cohort.table(self.names[:2], larger_p).sizes
                np.testing.assert_array_equal(np.bincount(rows[rows >= 0]), sizes)
                assert sizes.min() >= max(P, larger_p)


TestSite = Site.TestCase
TestSite.settings = settings(
    # More with `make bench long_checks`, whose profile asks for five times as many.
    max_examples=settings.default.max_examples * 60 // 100,
    stateful_step_count=20,
    phases=[Phase.generate],
)
