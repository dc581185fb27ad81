"""Rows and options as scikit-learn's users hand them over, checked and named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from fedclust.data.frame import is_frame
from fedclust.definition import LEAST_GROUP
from fedclust.errors import DataError
from fedclust.methods.registry import METHODS

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def take_rows(rows: Any, where: NDArray[np.intp]) -> Any:
    return rows.iloc[where] if is_frame(rows) else rows[where]


def is_by_site(X: Any) -> bool:
    # scipy's dok_matrix is a dict.
    return isinstance(X, Mapping) and not hasattr(X, "shape")


def feature_name(feature: Any) -> str:
    named = feature.get("name") if isinstance(feature, Mapping) else feature
    return str(getattr(named, "name", named))


def is_outcome(feature: Any) -> bool:
    """Whether a declared feature, a mapping or a name is an outcome."""
    given = feature.get("role") if isinstance(feature, Mapping) else getattr(feature, "role", None)
    return bool(given == "outcome")


def outcome_columns(declared: Iterable[Any]) -> set[str]:
    """Return the columns of rows that are outcomes and no features."""
    declared = list(declared)
    found = set()
    for each in filter(is_outcome, declared):
        event = each.get("event") if isinstance(each, Mapping) else getattr(each, "event", None)
        found |= {feature_name(each), *(() if event is None else (str(event),))}
    return found - {feature_name(each) for each in declared if not is_outcome(each)}


def site_names(sites: ArrayLike) -> NDArray[np.str_]:
    """Return the site of each row as text; ValueError for a row without one."""
    names = np.asarray(sites)
    # None, NaN (not equal to itself) and pandas' NA and NaT are not names.
    lacking = [
        row
        for row, name in enumerate(names.ravel().tolist())
        if name is None or str(name) in ("", "<NA>", "NaT") or bool(name != name)
    ]
    if lacking:
        raise ValueError(f"sites: row {lacking[0]} has none; each row needs one")
    return names.astype(str)


def check_site_names(names: Iterable[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"sites: {name!r} is not a site's name, which has lower-case letters, digits and "
                "hyphens"
            )


def check_same_columns(sites: Mapping[str, Any], features: Any) -> None:
    """Raise where a site's frame lacks a feature that another site has."""
    every = dict.fromkeys(str(column) for frame in sites.values() for column in frame.columns)
    if features is not None:
        every = dict.fromkeys(name for name in map(feature_name, features) if name in every)
    for site, frame in sites.items():
        own = set(map(str, frame.columns))
        absent = [column for column in every if column not in own]
        if absent:
            raise ValueError(
                f"site {site!r} has no column {absent[0]!r}, which others have: with "
                "missing='mask' sites may lack features"
            )


@contextmanager
def value_errors() -> Iterator[None]:
    """Turn a DataError into the ValueError that scikit-learn's users expect."""
    try:
        yield
    except DataError as error:
        raise ValueError(str(error)) from None


def mapping_option(name: str, value: Any) -> Mapping[str, Any]:
    """Return an estimator's mapping parameter; ValueError if it is something else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}: it must be a mapping of names to values")
    return value


def pool_rows(
    sites: Mapping[str, Any], features: Any, *, lacking: bool
) -> tuple[Any, NDArray[np.str_]]:
    """Return the concatenated rows of all sites, and the site of each row.

    ``lacking``: whether a site may lack columns.
    """
    if not sites:
        raise ValueError("name at least one site")
    parts = list(sites.values())
    names = np.repeat([str(name) for name in sites], [len(part) for part in parts])
    if not all(is_frame(part) for part in parts):
        widths = {np.shape(part)[1:] for part in parts}
        if len(widths) != 1:
            raise ValueError("the sites' rows have different numbers of columns")
        return np.concatenate([np.asarray(part) for part in parts]), names
    import pandas as pd

    if not lacking:
        check_same_columns(sites, features)
    # A column that a site lacks is NaN there, as `missing: mask` reads it.
    return pd.concat(parts, ignore_index=True), names


def session_seed(random_state: Any) -> int:
    """Return a session's seed: the number given, or one drawn as scikit-learn draws."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def comparable(value: Any) -> Any:
    """Return several numbers of clusters as a list, so that they can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, (list, tuple, range)) else value


def has_centroids(method: str) -> bool:
    return method in METHODS and not METHODS[method].by_prototypes


def least_group_size(policy: Mapping[str, Any]) -> int:
    """Return a policy's ``min_group_size``; ValueError unless it is large enough."""
    smallest = policy["min_group_size"]
    if not isinstance(smallest, Integral) or smallest < LEAST_GROUP:
        raise ValueError(
            f"min_group_size is {smallest!r}: it must be a number from {LEAST_GROUP} on; "
            'policy={"protection": "none"} works on exact rows'
        )
    return int(smallest)
