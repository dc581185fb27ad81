"""The figures that a site sees of its own table, against plain computations over all persons."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.data import table_figures
from fedclust.data.table_figures import TableFigures, measure_table
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import ProtectedTable
from protection.drawn_sites import rows_of, sites
from support.cohorts import Memory

IntArray = NDArray[np.int64]


def _formed(sources: list[SourceColumn], p: int) -> tuple[ProtectedTable, IntArray]:
    memory, ids = Memory(p), [f"P{i}" for i in range(len(sources[0].values))]
    memory.update_sources(ids, sources)
    return memory.cohort.table([each.name for each in sources]), memory.groups_of(ids)


def _expected(
    table: ProtectedTable, sources: list[SourceColumn], groups: IntArray, p: int
) -> TableFigures:
    """Compute the figures person by person."""
    one_value, unreleased, steps, coarse, all_equal, squares = {}, {}, {}, [], [], []
    for column, source, records in zip(table.columns, sources, table.released, strict=True):
        members = [source.values[groups == group] for group in groups]
        one_value[column.name] = np.mean(
            [len(set(own.tolist())) == 1 and own[0] == own[0] for own in members]
        )
        unreleased[column.name] = np.mean(np.isnan(records[groups]))
        known = records[~np.isnan(records)]
        if len(set(known.tolist())) == 1:
            all_equal.append(column.name)
        if column.n_levels is not None:
            continue
        if not set(known.tolist()) <= {0.0, 1.0}:
            steps[column.name] = column.step
            if len(set(known.tolist())) > 1 and column.step > known.std() / 2:
                coarse.append(column.name)
        gaps = source.values - records[groups]
        there = source.values[~np.isnan(gaps)]
        spread = there.std() if len(set(there.tolist())) > 1 else np.inf
        squares.append(np.nan_to_num(gaps / spread) ** 2)
    return TableFigures(
        p=p,
        n_persons=len(groups),
        n_groups=len(table.sizes),
        group_sizes=(int(table.sizes.min()), int(table.sizes.max())),
        distance_sd=float(np.median(np.sqrt(np.mean(squares, axis=0)))) if squares else None,
        one_value=one_value,
        unreleased=unreleased,
        steps=steps,
        all_equal=tuple(all_equal),
        coarse=tuple(coarse),
    )


@given(sites(), st.data())
def test_the_figures_are_those_of_all_persons_in_whatever_blocks(
    site: tuple[list[SourceColumn], int], data: st.DataObject
) -> None:
    sources, p = site
    table, groups = _formed(sources, p)
    n = len(groups)
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=4)))
    # Known persons of later files come in another order: groups cross blocks.
    order = np.random.default_rng(n).permutation(n)
    blocks = [(rows_of(sources, rows), groups[rows]) for rows in np.split(order, cuts)]

    found, expected = measure_table(table, blocks, p), _expected(table, sources, groups, p)

    assert (found.n_persons, found.n_groups) == (expected.n_persons, expected.n_groups)
    assert found.group_sizes == expected.group_sizes
    for name in ("one_value", "unreleased", "steps"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    assert found.all_equal == expected.all_equal
    assert found.coarse == expected.coarse
    assert found.distance_sd == pytest.approx(expected.distance_sd, abs=1e-6)


def test_the_distance_at_a_large_site_is_measured_on_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    # Sorted: a sample of the first persons, or of the last, would be far off.
    values = np.sort(rng.exponential(size=9_000))
    sources = [SourceColumn("x", values), SourceColumn("y", rng.normal(size=9_000))]
    table, groups = _formed(sources, 5)
    blocks = [
        (rows_of(sources, part), groups[part]) for part in np.array_split(np.arange(9_000), 7)
    ]
    whole = measure_table(table, blocks, 5)
    monkeypatch.setattr(table_figures, "_SAMPLE", 1_000)
    some = measure_table(table, blocks, 5)

    assert some.distance_sd != whole.distance_sd
    assert some.distance_sd == pytest.approx(whole.distance_sd, rel=0.1)
    assert (some.one_value, some.unreleased) == (whole.one_value, whole.unreleased)


def test_a_table_without_persons_has_no_figures() -> None:
    table, groups = _formed([SourceColumn("x", np.arange(20.0))], 5)
    assert measure_table(table, [([SourceColumn("x", np.zeros(0))], groups[:0])], 5) is None


def test_a_column_whose_step_hides_it_and_a_trait_that_vanishes_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    ph = np.round(rng.normal(7.4, 0.05, 12), 2)
    rare = (np.arange(12) == 3).astype(float)
    table, groups = _formed([SourceColumn("ph", ph), SourceColumn("rare", rare)], 5)
    blocks = [([SourceColumn("ph", ph), SourceColumn("rare", rare)], groups)]
    figures_ = measure_table(table, blocks, 5)

    assert "rare" in figures_.all_equal
    # Two groups: a two-hundredth of 7.4 is .037, and the step .02.
    assert figures_.steps == {"ph": 0.02}
    said = " ".join(figures_.warnings())
    assert "rare" in said
    assert "outcome" in said
