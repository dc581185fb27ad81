"""The features of tables for which nobody declared any: their columns of numbers."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from warnings import warn

import numpy as np
from pydantic import ValidationError

from fedclust.data.chunks import DataWarning
from fedclust.data.frame import is_dask, is_frame
from fedclust.data.mapping import Dataset, as_dataset, number_or_none
from fedclust.data.row_source import RowSource
from fedclust.data.sources import open_reader
from fedclust.data.sql import SqlQuery
from fedclust.numeric.array_types import FloatArray
from fedclust.schema.feature import Feature
from fedclust.schema.identifiers import identifies
from fedclust.wire.errors import DataError

#: Fewer rows may have different whole numbers by chance.
_LEAST_ROWS: Final = 20
#: Whole numbers from here on, another in each row, are numbers of patients rather than values.
_LARGE: Final = 1e6
_EMPTY: Final = "without values"


def is_file(source: Any) -> bool:
    """Return whether a source is a file or a query, whose columns have names."""
    return isinstance(as_dataset(source).source, (str, os.PathLike, SqlQuery))


def is_table(source: Any) -> bool:
    """Return whether a source has columns with names: a file, a query or a DataFrame."""
    source = as_dataset(source).source
    framed = is_frame(source) or (is_dask(source) and hasattr(source, "columns"))
    return framed or is_file(source)


def numeric_features(
    sources: Mapping[str, Any], *, leave_out: Iterable[str] = (), lacking: bool = False
) -> list[dict[str, Any]]:
    """Return the columns of numbers that all sites have as declared features.

    A DataWarning names the columns that are left out, and why: they are not numeric, look like
    identifiers, have no value, or are not at every site. A site without rows leaves none out.

    Parameters
    ----------
    sources : mapping of site name to source
        Files, queries or DataFrames. They are read once. A mapping file names and converts columns.
    leave_out : iterable of str
        Columns that are no features, by their names there; the warning is silent on them.
    lacking : bool
        Whether a site may lack columns, or values in columns, that others have.

    Raises
    ------
    DataError
        A source cannot be read, its first line is no header, or no column remains.
    """
    units: dict[str, str] = {}
    why: dict[str, str] = {}
    sites_with: Counter[str] = Counter()
    empty_at: Counter[str] = Counter()
    for site in sorted(sources):
        for name, (unit, reason) in _judge_columns(sources[site], frozenset(leave_out)).items():
            sites_with[name] += 1
            units.setdefault(name, unit)
            if reason == _EMPTY:
                empty_at[name] += 1
            elif reason is not None:
                why.setdefault(name, reason)
    for name, count in sites_with.items():
        if empty_at[name] == count or (empty_at[name] and not lacking):
            why.setdefault(name, _EMPTY)
        elif count < len(sources) and not lacking:
            why.setdefault(name, "not at every site")
    kept = [{"name": name, "unit": unit} for name, unit in units.items() if name not in why]
    if why:
        reasons = dict.fromkeys(why.values())
        lists = (f"{_listed(why, reason)} ({reason})" for reason in reasons)
        message = f"columns left out: {'; '.join(lists)}"
        if kept:
            warn(f"{message}; to use others, name the features", DataWarning, stacklevel=5)
        else:
            message = f"no column of numbers is at every site; {message}"
            raise DataError("the rows", "no-features", message)
    return kept


def _listed(why: Mapping[str, str], reason: str) -> str:
    return ", ".join(name for name in why if why[name] == reason)


def _judge_columns(source: Any, leave_out: frozenset[str]) -> dict[str, tuple[str, str | None]]:
    """Return the unit of each column, and why it is left out; None if it is not."""
    dataset = as_dataset(source)
    file = dataset.options.resolved()
    names = {rule.column or name: name for name, rule in file.features.items()}
    found: dict[str, tuple[str, str | None]] = {}
    candidates: list[Feature] = []
    for column in _header(dataset):
        name = names.get(column, column)
        rule = file.features.get(name)
        if not column or column in leave_out or (rule is not None and rule.lacking):
            continue
        if rule is not None and rule.levels:
            found[name] = "", "the mapping says that it holds codes"
        elif identifies(column):
            found[name] = "", "looks like an identifier"
        else:
            unit = "" if rule is None else rule.to or rule.unit or ""
            try:
                candidates.append(Feature(name=name, unit=unit))
            except ValidationError:
                found[column] = "", "its name cannot be that of a feature"
    reasons = _read_columns(dataset, candidates) if candidates else []
    for feature, reason in zip(candidates, reasons, strict=True):
        found[feature.name] = feature.unit, reason
    return found


def _header(dataset: Dataset) -> Sequence[str]:
    """Return the names of a file's columns; DataError if the first line holds numbers."""
    reader = open_reader(dataset, dataset.options.resolved())
    reader.close()
    if reader.textual and any(number_or_none(name) is not None for name in reader.header):
        # The message does not repeat what may be a record.
        message = "its first line holds a number: if it is no header, name the columns "
        message += "(columns=, --columns); if it is one, name the features (features=, --features)"
        raise reader.origin.fault("no-header", message)
    return reader.header


def _read_columns(dataset: Dataset, candidates: Sequence[Feature]) -> list[str | None]:
    """Read a file once, and return for each column why it is no feature; None if it is one."""
    rows = RowSource(dataset, candidates)
    n_values = np.zeros(len(candidates), dtype=np.int64)
    # What may still be identifiers, by column: values of all blocks so far, no two equal.
    distinct: dict[int, list[FloatArray]] = {j: [] for j in range(len(candidates))}
    n = 0
    try:
        for block in rows.scan():
            n += len(block)
            for j, values in enumerate(block.values):
                n_values[j] += np.count_nonzero(~np.isnan(values))
                if j in distinct:
                    distinct[j].append(values)
                    if not _are_distinct_wholes(values):
                        del distinct[j]
    except DataError as error:
        if error.rule != "no-rows":
            raise
        return [None] * len(candidates)
    faulty = {fault.column for fault in rows.faults}
    found: list[str | None] = []
    for j, feature in enumerate(candidates):
        reason = None
        if rows.local[feature.name] in faulty:
            reason = "not numeric"
        elif not n_values[j]:
            reason = _EMPTY
        elif n >= _LEAST_ROWS and j in distinct and _count_rows(np.concatenate(distinct[j])):
            reason = "looks like an identifier"
        found.append(reason)
    return found


def _are_distinct_wholes(values: FloatArray) -> bool:
    whole = bool(np.isfinite(values).all()) and bool((values == np.floor(values)).all())
    return whole and len(np.unique(values)) == len(values)


def _count_rows(values: FloatArray) -> bool:
    """Return whether whole numbers (n,) number the rows: in order, without gaps, or large."""
    if not _are_distinct_wholes(values):
        return False
    steps = np.diff(values)
    span = values.max() - values.min()
    dense = bool(span < 2 * len(values))
    return bool((steps > 0).all() or (steps < 0).all() or dense or values.min() >= _LARGE)
