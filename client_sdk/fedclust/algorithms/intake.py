"""From a site's rows, as they came, to what a method sees of them.

Three steps. :func:`usable`: which rows take part. :func:`taken`: these alone, in own units, with
what counts their persons. :func:`scaled`: imputed and in the session's scaled space. The last two
are the same in every round of a session, and are kept with the rows for the next one.

Rows in memory and :class:`~fedclust.algorithms.rows.Rows` become the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import refuse_counted, refuse_infinite
from fedclust.algorithms.base import Method, RuleViolation, RunConfig, SiteData, Space, Tree
from fedclust.algorithms.releasing import index_of, person_index
from fedclust.algorithms.rows import Rows, matrix_of
from fedclust.privacy.counting import PersonIndex, distinct_views, row_hashes

__all__ = ["alike", "scaled", "taken", "usable"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


# --- which rows take part -------------------------------------------------------------------------


def usable(X: FloatArray | Rows, method: Method, config: RunConfig) -> BoolArray:
    """Return which rows (n,) take part: with ``missing`` "drop", those without NaN.

    Raises
    ------
    RuleViolation
        Another number of columns than the session's, infinite values, or rows by runs for a
        method that needs them all in memory; names columns and counts, never a value.
    """
    if isinstance(X, Rows):
        return _look(X, method, config).chosen
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(config.columns):
        raise _wrong_shape(config)
    refuse_infinite(rows, tuple(column.name for column in config.columns))
    if config.policy.missing != "drop":
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray(~np.isnan(rows).any(axis=1))


@dataclass(frozen=True)
class _Looked:
    """What one pass over rows tells: which take part, whether any value is missing, digests.

    ``chosen`` (n,) bool; ``hashes`` (n,) uint64 are ``counting.row_hashes`` with one NaN for all.
    """

    chosen: BoolArray
    gaps: bool
    hashes: NDArray[np.uint64]


def _look(rows: Rows, method: Method, config: RunConfig) -> _Looked:
    """Look at rows for the first time; refuse infinite values. What is found stays with the rows.

    A pass over what memory does not hold is dear: a site asks how many rows it has before it joins,
    and again, with the digests, when it answers first.
    """
    if method.by_runs is None or not method.by_runs(config.options):
        raise RuleViolation(
            "out-of-core",
            f"the method {method.name}, or this variant of it, needs all rows in memory: "
            "leave out_of_core away, or ask for a session of lloyd, fkm or kfed",
        )
    if rows.shape[1] != len(config.columns):
        raise _wrong_shape(config)
    known = rows.derived.get("looked")
    if known is not None and known[0] == config.policy.missing:
        return known[1]  # type: ignore[no-any-return]
    found = _Looked(rows.array(np.bool_), False, rows.array(np.uint64))
    gaps, start = False, 0
    infinite = np.zeros(rows.shape[1], dtype=np.int64)
    for whole, counts, hashes in rows.map(_looked_at):
        infinite += counts
        gaps = gaps or not whole.all()
        end = start + len(whole)
        found.chosen[start:end] = whole | (config.policy.missing != "drop")
        found.hashes[start:end] = hashes
        start = end
    refuse_counted(infinite, tuple(column.name for column in config.columns))
    found = replace(found, gaps=gaps)
    rows.derived["looked"] = config.policy.missing, found
    return found


def _looked_at(run: FloatArray) -> tuple[BoolArray, NDArray[np.int64], NDArray[np.uint64]]:
    missing = np.isnan(run)
    alike = _one_nan(run) if missing.any() else run
    return np.asarray(~missing.any(axis=1)), np.isinf(run).sum(axis=0), row_hashes(alike)


def _wrong_shape(config: RunConfig) -> RuleViolation:
    return RuleViolation(
        "shape", f"rows must have {len(config.columns)} columns: one for each feature or level"
    )


# --- in own units ---------------------------------------------------------------------------------


def taken(data: SiteData, method: Method, config: RunConfig) -> SiteData:
    """Return the rows that take part, in own units, with what counts their persons.

    Raises
    ------
    RuleViolation
        As :func:`usable`; or not one person for each row.
    """
    asked = (config.policy.missing, config.features, config.mask)
    make = _take_by_runs if isinstance(data.X, Rows) else _take
    return _known(data, "taken", asked, lambda: make(data, method, config))


def _take(data: SiteData, method: Method, config: RunConfig) -> SiteData:
    chosen = usable(data.X, method, config)
    rows = np.asarray(data.X, dtype=np.float64)
    if not config.mask.all():
        rows = np.where(config.mask, rows, np.nan)
    owners = data.persons
    if owners is not None and owners.shape != (len(rows),):
        raise RuleViolation("shape", "one person is needed for each row")
    if not chosen.all():
        rows = rows[chosen]
        owners = None if owners is None else owners[chosen]
    observed = None
    if np.isnan(rows).any():
        observed = ~np.isnan(rows)
        # One NaN for all: rows are told apart by their bits.
        rows = np.where(observed, rows, np.nan)
    return SiteData(rows, owners, observed, PersonIndex(rows, owners))


def _take_by_runs(data: SiteData, method: Method, config: RunConfig) -> SiteData:
    """Do as :func:`_take` with rows that are not in memory: whole features are never lacking."""
    rows, owners = data.rows, data.persons
    looked = _look(rows, method, config)
    # Not needed again: the next round has what is made of it here.
    del rows.derived["looked"]
    chosen, hashes = looked.chosen, looked.hashes
    if owners is not None and owners.shape != (rows.shape[0],):
        raise RuleViolation("shape", "one person is needed for each row")
    if not chosen.all():
        rows = rows.kept(chosen)
        if owners is not None:
            kept = rows.array(np.int64)
            np.compress(chosen, owners, out=kept)
            owners = kept
        else:
            hashes = rows.array(np.uint64)
            np.compress(chosen, looked.hashes, out=hashes)
    observed = None
    if looked.gaps and config.policy.missing != "drop":
        seen = rows.array(np.bool_, rows.shape[1])
        start = 0
        for part in rows.map(_given):
            seen[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        observed = seen.T
        # One NaN for all: rows are told apart by their bits.
        rows = rows.changed(_one_nan)
    return SiteData(matrix_of(rows), owners, observed, person_index(rows, owners, hashes))


def _given(run: FloatArray) -> BoolArray:
    return np.asarray(~np.isnan(run).T)


def _one_nan(run: FloatArray) -> FloatArray:
    return np.where(np.isnan(run), np.nan, run)


# --- scaled ---------------------------------------------------------------------------------------


def scaled(data: SiteData, space: Space, config: RunConfig) -> SiteData:
    """Impute what :func:`taken` gave, then scale; 0 in columns that the site has not got.

    A feature that fewer than p persons have is imputed in every row.

    Rows that only a missing value told apart are identical from here on, and count as such.
    """
    asked = (space.center, space.scale, space.impute, config.p, config.mask)
    return _known(data, "scaled", asked, lambda: _to_scaled(data, space, config))


def _to_scaled(data: SiteData, space: Space, config: RunConfig) -> SiteData:
    if space.impute is None or data.observed is None:
        return replace(data, X=matrix_of(data.rows.changed(space.to_scaled)))
    p, observed, index = config.p, data.observed, index_of(data)
    while True:
        _, sendable = distinct_views(observed, index, p)
        if not sendable.all():
            kept = data.rows.array(np.bool_, len(sendable)).T
            np.logical_and(observed, sendable, out=kept)
            observed = kept
        rows = data.rows.changed(_Filled(sendable, space, space.impute, config.mask))
        index = person_index(rows, data.persons)
        _, sendable = distinct_views(observed, index, p)
        if not (observed.any(axis=0) & ~sendable).any():
            return replace(data, X=matrix_of(rows), observed=observed, index=index)


@dataclass(frozen=True)
class _Filled:
    """Makes scaled rows of rows in own units: imputed, 0 in columns that the site has not got."""

    sendable: BoolArray
    space: Space
    impute: FloatArray
    mask: BoolArray

    def __call__(self, run: FloatArray) -> FloatArray:
        known = ~np.isnan(run) & self.sendable
        return self.space.to_scaled(np.where(known, run, self.impute)) * self.mask


# --- from one round to the next -------------------------------------------------------------------


def _known(data: SiteData, name: str, asked: Tree, make: Callable[[], SiteData]) -> SiteData:
    """Return what was made of rows for the same question before, or make it."""
    before = data.derived.get(name)
    if before is not None and alike(before[0], asked):
        return before[1]  # type: ignore[no-any-return]
    # What was made before goes first: there may not be room for both.
    data.derived.clear()
    made = make()
    data.derived[name] = asked, made
    return made


def alike(a: Tree, b: Tree) -> bool:
    """Return whether two trees of tuples, arrays and other values are equal throughout."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is not None and b is not None and np.array_equal(a, b)
    return bool(a == b)
