"""The features of several sites' rows, and definitions as Python writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedclust.data.numeric_columns import is_table, numeric_features
from fedclust.errors import DataError
from fedclust.schema.errors import RuleViolation
from fedclust.schema.json_value import json_value


def declare_features(
    sites: Mapping[str, Any], features: Sequence[Mapping[str, Any] | str] | None, masking: bool
) -> list[dict[str, Any]]:
    if features is not None:
        if isinstance(features, str):
            raise ValueError("features must be a sequence of features or of their names")
        return [
            {"name": feature} if isinstance(feature, str) else json_value(feature)
            for feature in features
        ]
    if all(map(is_table, sites.values())):
        try:
            return numeric_features(sites, lacking=masking)
        except DataError as error:
            raise RuleViolation(error.rule, str(error)) from None
    framed = [site for site in sorted(sites) if hasattr(sites[site], "columns")]
    if framed:
        shown = framed if masking else framed[:1]
        every = [str(column) for site in shown for column in sites[site].columns]
        names = dict.fromkeys(every) if masking else every
        return [{"name": column} for column in names]
    first = min(sites)
    try:
        shape = np.shape(sites[first])
    except ValueError:
        shape = ()
    if len(shape) != 2 or not shape[1]:
        message = "its rows are no array of two axes; files among arrays need features="
        raise RuleViolation("shape", f"site {first!r}: {message}")
    return [{"name": f"x{j}"} for j in range(shape[1])]


def spread_out(
    sites: Mapping[str, Any], features: Mapping[str, Sequence[str]], masking: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return arrays with a column for every feature, NaN where a site lacks it, and the names."""
    if not masking:
        raise ValueError('features by site are for policy {"missing": "mask"}')
    if sorted(features) != sorted(sites):
        raise ValueError("features by site must name each site once")
    names = list(dict.fromkeys(str(name) for site in sorted(sites) for name in features[site]))
    spread: dict[str, Any] = {}
    for site, rows in sites.items():
        own = [str(name) for name in features[site]]
        array = np.asarray(rows, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != len(own) or len(set(own)) < len(own):
            message = f"its rows need {len(own)} columns, one for each feature that it names once"
            raise RuleViolation("shape", f"site {site!r}: {message}")
        spread[site] = np.full((len(array), len(names)), np.nan)
        spread[site][:, [names.index(name) for name in own]] = array
    return spread, names


def check_sites(sites: Any, persons: Any) -> None:
    """Refuse sites that are no mapping of names, and persons of other sites; ValueError."""
    if not isinstance(sites, Mapping):
        raise ValueError("sites must be a mapping of each site's name to its rows")
    if not sites:
        raise ValueError("name at least one site")
    for name in sites:
        if not isinstance(name, str):
            raise ValueError(f"a site's name must be text, not {name!r}")
    if persons is None:
        return
    if not isinstance(persons, Mapping):
        raise ValueError("persons must be a mapping of a site's name to its rows' persons")
    unknown = [str(name) for name in persons if name not in sites]
    if unknown:
        raise ValueError(f"persons are given for {', '.join(unknown)}, which is no site")
