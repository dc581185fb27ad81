"""Whatever happens to a site's persons, no combination of releases concerns fewer than p of them.

A state machine lets persons join, leave, come back, withdraw and change, and columns come under
new names and as later measurements. An attacker who is told which persons each released sum holds,
and which of their values, looks for combinations of sums that leave 1 to p - 1 persons.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fedclust.protection.cohort import CohortRefused
from fedclust.protection.columns import SourceColumn
from fedclust.protection.fingerprints import person_keys
from support.cohorts import SECRET, Memory, Released

P = 3


class Site(RuleBasedStateMachine):
    """A site whose file changes; after each change a table is made from the file."""

    @initialize(seed=st.integers(0, 2**32 - 1), n=st.integers(9, 16), levels=st.booleans())
    def begin(self, seed: int, n: int, levels: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.levels = levels
        self.memory = Memory(p=P)
        #: True values by person and column, and who is in the file.
        self.values: dict[str, dict[str, float]] = {}
        self.present: set[str] = set()
        self.names = {"a": "a", "b": "b"}
        self.later: dict[str, str] = {}
        self.withdrawn: set[str] = set()
        self.released = Released(P)
        self.join(n)
        self.look()

    def draw(self, column: str) -> float:
        whole = column == "yes" or (column == "b" and self.levels)
        return float(self.rng.integers(0, 2)) if whole else float(self.rng.normal())

    @rule(n=st.integers(1, 7))
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

    @rule(data=st.data(), back=st.booleans())
    def correct(self, data: st.DataObject, back: bool) -> None:
        """Change some persons of a group, or bring back values that they had before."""
        column = data.draw(st.sampled_from(sorted(self.names)))
        cohort = self.memory.cohorts[0]
        people = sorted(self.values)
        groups = cohort.table_rows(SECRET, people)
        group = data.draw(st.sampled_from(sorted(set(groups.tolist()))))
        members = [
            name for name, at in zip(sorted(self.values), groups, strict=True) if at == group
        ]
        for person in data.draw(st.sets(st.sampled_from(members), min_size=1)):
            earlier = sorted(
                {v for each in self.released.sums.get(column, ()) for p, v in each if p == person}
            )
            self.values[person][column] = (
                data.draw(st.sampled_from(earlier)) if back and earlier else self.draw(column)
            )

    @rule(column=st.sampled_from(["c", "yes"]))
    def add_column(self, column: str) -> None:
        if column not in self.names:
            self.names[column] = column
            for row in self.values.values():
                row[column] = self.draw(column)

    @rule(data=st.data())
    def lose_a_value(self, data: st.DataObject) -> None:
        person = data.draw(st.sampled_from(sorted(self.values)))
        self.values[person][data.draw(st.sampled_from(sorted(self.names)))] = float("nan")

    @rule(column=st.sampled_from(["a", "b"]), data=st.data())
    def rename(self, column: str, data: st.DataObject) -> None:
        """Rename a column and change one person in it before anybody looks: it is refused.

        A column with p or more other values and a new name is a new column, as is a yes/no column
        most of whose rarer values have changed.
        """
        if column == "b" and self.levels:
            return
        last = {p: value for sum_ in self.released.sums.get(column, ()) for p, value in sum_}
        changed = sum(self.values[p][column] != last.get(p) for p in self.present)
        if changed <= P - 2 and self.look():
            name = self.names[column]
            self.names[column] = f"other {column}"
            person = data.draw(st.sampled_from(sorted(self.present)))
            self.values[person][column] = self.draw(column)
            assert not self.look()
            self.names[column] = name

    @rule(column=st.sampled_from(["a", "b"]))
    def measure_again(self, column: str) -> None:
        """Give a column's values of now as a later measurement."""
        name = self.names[column]
        self.names[column] = f"{column}'{len(self.later)}"
        self.later[self.names[column]] = column
        if not self.look():
            del self.later[self.names[column]]
            self.names[column] = name

    @precondition(lambda self: len(self.withdrawn) < 3)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        person = data.draw(st.sampled_from(sorted(self.values)))
        cohort = self.memory.cohorts[0]
        if cohort.find(person_keys(SECRET, [person])[0])[0] < 0:
            with pytest.raises(CohortRefused):
                cohort.withdraw(SECRET, person)
        else:
            self.memory.cohorts[0] = cohort.withdraw(SECRET, person)
            self.withdrawn.add(person)

    @rule(blocks=st.integers(1, 3))
    def read(self, blocks: int) -> None:
        self.look(blocks)

    def look(self, blocks: int = 1) -> bool:
        """Make a table from the file, and note what it tells that was not told before."""
        people = sorted(self.present)
        if len(people) < blocks:
            return False
        sources = [
            SourceColumn(name, np.array([self.values[p][column] for p in people]))
            for column, name in self.names.items()
        ]
        before = self.memory.cohorts[0] if self.memory.cohorts else None
        try:
            self.memory.update_sources(
                people, sources, blocks=blocks, any_persons=True, later=self.later
            )
        except CohortRefused as refused:
            if refused.rule not in {"other-values", "same-column"}:
                raise
            return False
        assert len(self.memory.cohorts) == 1
        after = self.memory.cohorts[0]
        noted = self.released.note(before, after, self.values, column=self.column)
        assert not self.withdrawn & noted
        return True

    def column(self, pinned: str) -> str:
        return pinned.split("'")[0]

    @invariant()
    def no_combination_concerns_fewer_than_p_persons_real_record(self) -> None:
        assert not hasattr(self, "released") or not self.released.tells_of_few()

    @invariant()
    def a_table_is_of_whole_groups_without_withdrawn_persons(self) -> None:
        if not getattr(self, "values", None) or not self.memory.cohorts:
            return
        cohort = self.memory.cohorts[0]
        people = sorted(self.values)
        rows = cohort.table_rows(SECRET, people)
        sizes = np.bincount(rows[rows >= 0], minlength=int(cohort.used.sum()))
        np.testing.assert_array_equal(sizes, cohort.sizes[cohort.used])
        assert all(row < 0 for p, row in zip(people, rows, strict=True) if p in self.withdrawn)


TestSite = Site.TestCase
TestSite.settings = settings(
    # More with `make bench long_checks`, whose profile asks for five times as many.
    max_examples=settings.default.max_examples * 15 // 100,
    stateful_step_count=20,
    phases=[Phase.generate],
)
