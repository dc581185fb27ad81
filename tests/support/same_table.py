"""Sites with different rows and the same protected table.

Either each column's values change places among the persons of a group: the site forms the same
table by itself. Or every person gets the group's middle value, and no value of what the group does
not release: the groups are then given.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.protection import groups
from fedclust.protection.cohort import Cohort
from fedclust.protection.columns import choose_nearer, find_middles, group_members
from fedclust.protection.groups import one_part
from fedclust.schema.feature import Feature
from fedclust.site.cohorts import CohortStore
from fedclust.site.prepare import SiteRows, draft_table
from fedclust.site.state import SiteState
from support.fake_coordinator import EPOCH

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

P = 5
#: Outcomes that every site's file has.
OUTCOMES: tuple[dict[str, Any], ...] = (
    {"name": "died", "role": "outcome", "kind": "binary"},
    {"name": "stay", "role": "outcome", "kind": "time", "edges": [1, 2, 4, 8], "event": "died"},
)
PERSON = "patient"
KINDS = ("decimals", "continuous", "whole", "binary", "codes")
LEVELS = ("none", "mild", "severe")
#: Columns in which groups lie apart: any two groups differ in four of them, as the words of
#: Hamming's extended code do. That outweighs all that differs within groups.
_APART = (1, 2, 4, 8, 14, 13, 11, 7)


@dataclass(frozen=True)
class SiteFile:
    """A site: its persons, and the groups that these are in.

    Attributes
    ----------
    ids : (n,) str
    columns : mapping of str to (n,) float64
        Named after their kinds. Of codes the places of the levels; NaN where missing.
    groups : (n,) int64
    given : bool
        Whether the site has these groups; else it forms them itself.
    """

    ids: NDArray[np.str_]
    columns: Mapping[str, FloatArray]
    groups: IntArray
    given: bool = False

    def frame(self) -> pd.DataFrame:
        """Return the site's file: one row a person, with outcomes that no table depends on."""
        rng = np.random.default_rng(crc32(" ".join(self.ids.tolist()).encode()))
        found: dict[str, Any] = {
            PERSON: self.ids,
            "died": rng.choice([0.0, 1.0, np.nan], len(self.ids)),
            "stay": rng.exponential(5.0, len(self.ids)),
        }
        for name, values in self.columns.items():
            found[name] = values
            if name.startswith("codes"):
                found[name] = [None if np.isnan(v) else LEVELS[int(v)] for v in values]
        return pd.DataFrame(found)

    def features(self) -> list[dict[str, Any]]:
        """Return the columns as a session may ask for them."""
        return [feature(name) for name in self.columns]

    def form(self, state: SiteState | None = None) -> Cohort:
        """Form and keep the site's table, by default in the state directory that is set."""
        store = CohortStore(state or SiteState())
        asked = [Feature(**each) for each in self.features()]
        with self._given():
            reading = SiteRows(self.frame(), person=PERSON)
            draft = draft_table(store, reading, asked, P, EPOCH, lacking=True)[1]
        return store.keep(draft)

    @contextmanager
    def _given(self) -> Iterator[None]:
        """Give the groups instead of finding them in the rows."""
        if not self.given:
            yield
            return
        parts = one_part(P, len(self.columns))
        with (
            mock.patch.object(groups, "find_parts", return_value=parts),
            mock.patch.object(groups, "form_groups", return_value=self.groups),
        ):
            yield


def feature(name: str) -> dict[str, Any]:
    """Return a column as a session may ask for it."""
    if name.startswith("codes"):
        return {"name": name, "kind": "categorical", "levels": LEVELS}
    if name.startswith("binary"):
        return {"name": name, "kind": "binary"}
    return {"name": name, "lower": -1e3, "upper": 1e4}


@st.composite
def sites(draw: st.DrawFn, kinds: Sequence[str] = KINDS, *, lacking: bool = True) -> SiteFile:
    """Draw a site whose groups lie so far apart that they do not depend on single values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    drawn = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    site = site_of(drawn, draw(st.integers(3, 16)), rng)
    columns = dict(site.columns)
    for name in list(columns)[: len(drawn)]:
        if lacking and draw(st.sampled_from((False, False, True))):
            # All persons of some groups lack the value.
            without = np.isin(site.groups, rng.choice(site.groups, len(columns)))
            columns[name] = np.where(without, np.nan, columns[name])
    return replace(site, columns=columns)


def site_of(kinds: Sequence[str], m: int, rng: np.random.Generator) -> SiteFile:
    """Return a site of ``m`` groups that lie far apart.

    They do so in the last columns. The first ones are of these kinds, and do not tell the groups
    apart.
    """
    groups = np.repeat(np.arange(m), rng.integers(P, 2 * P, m))
    columns = {f"{kind}{place}": _values(kind, groups, rng) for place, kind in enumerate(kinds)}
    words = rng.permutation(16)[:m]
    for mask in _APART:
        bits = np.array([int(word & mask).bit_count() % 2 for word in words])
        noise = rng.normal(0.0, np.ptp(bits), len(groups))
        columns[f"apart{mask}"] = np.round(100.0 * bits[groups] + noise, 1)
    ids = np.array([f"P{number}" for number in rng.permutation(len(groups))])
    return _shuffled(SiteFile(ids, columns, groups), rng)


def rows_for(features: Sequence[Mapping[str, Any]], n: int, seed: int) -> pd.DataFrame:
    """Return rows of another site that fit a session's features."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for each in features:
        kind, lower, upper = each.get("kind"), each.get("lower", 0.0), each.get("upper", 900.0)
        if kind == "categorical":
            found[each["name"]] = rng.choice(each["levels"], n)
        else:
            binary = kind == "binary"
            found[each["name"]] = rng.integers(0, 2, n) if binary else rng.uniform(lower, upper, n)
    return pd.DataFrame(found)


def _values(kind: str, groups: IntArray, rng: np.random.Generator) -> FloatArray:
    m, n = int(groups.max()) + 1, len(groups)
    match kind:
        case "decimals":
            return np.round(rng.integers(0, 3, m)[groups] + rng.normal(0.0, 0.3, n), 1)
        case "continuous":
            return rng.integers(0, 3, m)[groups] + rng.normal(0.0, 0.3, n)
        case "whole":
            return (rng.integers(0, 3, m)[groups] + rng.integers(0, 2, n)).astype(np.float64)
        case "binary":
            return (rng.random(n) < rng.choice([0.0, 0.4, 1.0], m)[groups]).astype(np.float64)
        case _:
            common = rng.integers(0, 3, m)[groups]
            return np.where(rng.random(n) < 0.8, common, rng.integers(0, 3, n)).astype(np.float64)


def _shuffled(site: SiteFile, rng: np.random.Generator) -> SiteFile:
    order = rng.permutation(len(site.ids))
    columns = {name: values[order] for name, values in site.columns.items()}
    return replace(site, ids=site.ids[order], columns=columns, groups=site.groups[order])


# --- the other site ------------------------------------------------------------------------------


def changed_places(site: SiteFile, seed: int) -> SiteFile:
    """Return the site with each column's values moved among the persons of each group."""
    rng = np.random.default_rng(seed)
    columns = {}
    for name, values in site.columns.items():
        columns[name] = values.copy()
        for group in range(int(site.groups.max()) + 1):
            members = np.flatnonzero(site.groups == group)
            columns[name][members] = values[rng.permutation(members)]
    return _shuffled(replace(site, columns=columns), rng)


def later(site: SiteFile, seed: int) -> SiteFile:
    """Return a later file of the site: fewer than p persons of each group changed, left or came.

    Values change in every second group alone: a site stops if too many do.
    """
    rng = np.random.default_rng(seed)
    columns = {name: values.copy() for name, values in site.columns.items()}
    for group in range(0, int(site.groups.max()) + 1, 2):
        for name, values in columns.items():
            few = rng.choice(np.flatnonzero(site.groups == group), 2, replace=False)
            values[few] = rng.choice(values, 2) if _levels(name) else rng.normal(0.0, 1e3, 2)
            if rng.random() < 0.2:
                values[few[0]] = np.nan
    n, new = len(site.ids), rng.choice(len(site.ids), P - 1)
    order = np.append(np.delete(rng.permutation(n), slice(0, 3)), new)
    columns = {name: values[order] for name, values in columns.items()}
    for name, values in columns.items():
        if not _levels(name):
            values[-len(new) :] = rng.normal(0.0, 1e3, len(new))
    ids = np.append(site.ids[order[: -len(new)]], [f"N{number}" for number in range(len(new))])
    return SiteFile(ids, columns, site.groups[order])


def _levels(name: str) -> bool:
    return name.startswith(("binary", "codes"))


def of_records(site: SiteFile, cohort: Cohort, secret: bytes) -> SiteFile:
    """Return the site in which every person has the group's middle value before it is rounded.

    Nobody has a value in a column that the group does not release.

    Parameters
    ----------
    site : SiteFile
    cohort : Cohort
        The table that ``site`` has formed with ``secret``.
    """
    groups = cohort.table_rows(secret, list(site.ids))
    members = group_members(groups, len(cohort.sizes))
    columns: dict[str, FloatArray] = {}
    for pinned in cohort.columns:
        column = pinned.column
        found = find_middles(site.columns[column.name], members, P, column.n_levels)
        if column.n_levels is None:
            middles = choose_nearer(found, column.centre)
        elif column.is_set:
            middles = np.where(np.isnan(found[:, 0]), np.nan, column.records(np.nan_to_num(found)))
        else:
            middles = found[:, 0]  # NaN: no group releases it.
        columns[column.name] = middles[groups]
    return SiteFile(site.ids, {name: columns[name] for name in site.columns}, groups, given=True)


def released_by(cohort: Cohort, site: SiteFile, secret: bytes) -> Any:
    """Return what a table tells, in no order of the groups, and what it tells of each person."""
    released = [np.nan_to_num(each.released, nan=-1e300) for each in cohort.columns]
    groups = np.column_stack([cohort.sizes, *released])
    rows = cohort.table_rows(secret, list(site.ids))
    columns = [(each.column.name, each.column.step) for each in cohort.columns]
    return columns, sorted(groups.tolist()), groups[rows].tolist()
