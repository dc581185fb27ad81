"""Steps, centres, orders of levels and records are those of plain loops written from the rules."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.protection.cohort import Cohort
from fedclust.protection.columns import SourceColumn, find_step
from protection.drawn_sites import MAKERS, draw_columns, rows_of
from support import reference_table as reference
from support.cohorts import SECRET, Memory, groups_of
from support.reference_table import Rule

NAN = np.nan


@dataclass
class Expected:
    """What the groups of a site have released by the reference.

    Attributes
    ----------
    records : dict of column to records by group
    """

    p: int
    rules: dict[str, Rule] = field(default_factory=dict)
    records: dict[str, dict[int, float]] = field(default_factory=dict)

    def release(self, cohort: Cohort, ids: Sequence[str], sources: Sequence[SourceColumn]) -> None:
        """Release the columns of a file, given the groups of its persons."""
        groups = groups_of(cohort, ids)
        for source in sources:
            records = self.records.setdefault(source.name, {})
            whole = [
                group
                for group, size in enumerate(cohort.sizes)
                if cohort.used[group] and group not in records and (groups == group).sum() == size
            ]
            rule, found = reference.release_column(
                [source.values[groups == group].tolist() for group in whole],
                self.p,
                source.n_levels,
                self.rules.get(source.name),
                [(0.0, int(cohort.sizes[group])) for group in records],
            )
            self.rules[source.name] = rule
            pairs = zip(whole, found, strict=True)
            records |= {group: record for group, record in pairs if not np.isnan(record)}

    def compare(self, cohort: Cohort) -> None:
        """Compare what a cohort has released."""
        for pinned in cohort.columns:
            column, rule = pinned.column, self.rules[pinned.column.name]
            assert column.step == rule.step, column
            assert list(column.order) == rule.order, column
            if rule.step:
                assert column.centre == pytest.approx(float(rule.centre), rel=1e-12, abs=1e-12), (
                    column
                )
            records = self.records[column.name]
            expected = [records.get(group, NAN) for group in range(len(cohort.sizes))]
            np.testing.assert_allclose(
                pinned.released, expected, 1e-12, 1e-300, err_msg=str(column)
            )


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_later_files_release_what_the_rules_say(first: int) -> None:
    """New columns, newcomers, absences, changed values and withdrawals, one file after another."""
    for seed in range(first, first + 40):
        rng = np.random.default_rng(seed)
        p = int(rng.integers(3, 7))
        memory, expected = Memory(p), Expected(p)
        kinds = rng.choice(MAKERS, int(rng.integers(1, 6))).tolist()
        everybody = draw_columns(kinds, 80, rng)
        ids = np.array([f"P{number}" for number in range(80)])
        n = int(rng.integers(p, 60))
        n_columns = int(rng.integers(1, len(everybody) + 1))
        for session in range(4):
            here = rng.permutation(n)
            if session and rng.random() < 0.5:
                here = here[: max(p, n - int(rng.integers(0, 5)))]
            if session == 2:
                somebody = str(rng.choice(ids[groups_of(memory.cohort, ids.tolist()) >= 0]))
                memory.cohorts = [memory.cohort.withdraw(SECRET, somebody)]
            columns = rows_of(everybody[: n_columns if session == 0 else None], here)
            memory.update_sources(ids[here].tolist(), columns, any_persons=True)
            expected.release(memory.cohort, ids[here].tolist(), columns)
            expected.compare(memory.cohort)
            n = min(80, n + int(rng.integers(0, 2 * p)))
            for each in everybody:
                # Too few for a file of other people.
                each.values[rng.integers(0, 80, 2)] = rng.choice(each.values)


# --- the step -------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.floats(-1e12, 1e12), st.integers(-20, 20).map(float), st.sampled_from([0.0, 0.1])
            ),
            st.integers(3, 60),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_step_is_the_largest_that_the_rule_allows(groups: list[tuple[float, int]]) -> None:
    middles, sizes = zip(*groups, strict=True)
    found = find_step(np.array(middles), np.array(sizes))

    # A bound that is a step itself may be missed by the last digit.
    scaled = ([factor * m for m in middles] for factor in (1 - 1e-9, 1 + 1e-9))
    below, above = (reference.find_step(each, sizes) for each in scaled)
    assert below <= found <= above


@pytest.mark.parametrize(
    ("middles", "step"),
    [
        ([0.0, 10.0, 20.0], 0.5),  # a tenth of 8.16
        ([100_000.0, 100_001.0, 100_002.0], 50.0),  # a two-thousandth of the largest
        ([0.0, 10.0], 0.05),  # two groups: a two-hundredth of the largest
        ([-4_711.13], 20.0),
        ([7.0, 7.0, 7.0], 0.02),
        ([0.1, 0.1, 0.1, 0.1], 0.0005),  # no spread, whatever a sum of tenths is
        ([0.0, 0.0, 1.0], 0.02),
        ([0.0, 0.0], 0.0),
        ([0.0, 0.0, 0.0], 0.0),
    ],
)
def test_steps_by_hand(middles: list[float], step: float) -> None:
    assert find_step(np.array(middles), np.full(len(middles), 5)) == step


def test_a_pilot_of_a_few_persons_gives_nobodys_exact_cost() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for n in [7, 10, 20, 40] * 20:
        costs = np.round(np.exp(rng.normal(8.0, 1.5, n)), 2)
        memory = Memory(5)
        memory.update_sources([f"P{i}" for i in range(n)], [SourceColumn("cost", costs)])
        (pinned,) = memory.cohort.columns
        assert pinned.column.step > 0.0
        hits += int(np.isin(pinned.released, costs).sum())
    assert hits == 0
