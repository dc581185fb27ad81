"""Which rows a session is to use, and how their columns are read, as a steward approves it."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedclust.data import Dataset, Source, SqlQuery
from fedclust.data.mapping import ColumnMap, ColumnsFile, as_dataset
from fedclust.data.table import IdMap
from fedclust.data.text_forms import meaning_text
from fedclust.schema.display import first_few
from fedclust.schema.feature import Feature, trajectories_of
from fedclust.wire.codec import canonical_json, sha256

#: So many texts of a column are shown with what they mean.
_MOST: Final = 8

IN_MEMORY = "rows in memory"


@dataclass(frozen=True)
class DataTerms:
    """Where a site's rows are, and how they are read; no value of them.

    Attributes
    ----------
    source : str
        Name of the file, with its sheet if one is given; before it ``@NAME`` if it is registered.
        :data:`IN_MEMORY` for an array or a DataFrame.
    option : str
        What ``--data`` takes for this source.
    lines : tuple of str
        How each feature of the session is read, in words.
    digest : str
        SHA-256 of how the rows are read: columns, units, codes, markers, the query, the columns
        that name rows and persons. It does not depend on the rows.
    n_rows : int or None
        Of the source; None if unknown.
    """

    source: str
    option: str
    lines: tuple[str, ...]
    digest: str
    n_rows: int | None = None


def data_terms(
    source: Source,
    features: Sequence[Feature],
    held: Sequence[str],
    *,
    person: Any = None,
    id_column: str | None = None,
    id_map: IdMap | None = None,
    later: str | None = None,
) -> DataTerms:
    """Describe a source, without its numbers of rows and persons.

    Parameters
    ----------
    source : Source
    features : sequence of Feature
        The session's.
    held : sequence of str
        Those that the site has.
    person, id_column, id_map, later
        As in :meth:`fedclust.Site.participate`.

    Raises
    ------
    DataError
        The mapping file or the query cannot be read.
    """
    dataset = as_dataset(source)
    file = dataset.options.resolved()
    rules = {each.name: file.features.get(each.name, ColumnMap()) for each in features}
    for of in trajectories_of(features):
        if (rule := file.features.get(of.name, ColumnMap())).long:
            # One line for all its columns.
            names = [each.name for each in of.columns]
            rules = {name: each for name, each in rules.items() if name not in names}
            rules[of.name] = rule
            held = [of.name if name in names else name for name in held]
    query = _query(dataset)
    named = person if person is None or isinstance(person, str) else "values"
    how = {
        **file.model_dump(mode="json"),
        "features": {name: _rule(name, rule) for name, rule in rules.items()},
        "person": [isinstance(person, str), named],
        "id_column": id_column,
        "id_map": id_map is not None,
        "later": later,
        "query": query,
    }
    lines = [
        *_feature_lines(rules, held),
        *_file_lines(file),
        *_name_lines(person, id_column, id_map),
        *(() if later is None else [f"later measurements: {later} is added to each column's name"]),
        *(() if query is None else [f"the rows of a query with the SHA-256 {sha256(query)}"]),
    ]
    return DataTerms(
        _source_name(dataset, file),
        _option(dataset),
        tuple(lines),
        sha256(canonical_json({**how, "query": None if query is None else query.decode()})),
    )


def _source_name(dataset: Dataset, file: ColumnsFile) -> str:
    if isinstance(dataset.source, (str, os.PathLike)):
        name = Path(dataset.source).name
    else:
        name = dataset.source.name if isinstance(dataset.source, SqlQuery) else IN_MEMORY
    for sheet in file.sheet:
        name += f", sheet {sheet}"
    registered = (dataset.given or "").startswith("@")
    return f"{dataset.given} ({name})" if registered else name


def _option(dataset: Dataset) -> str:
    if dataset.given is not None:
        return shlex.quote(dataset.given)
    known = isinstance(dataset.source, (str, os.PathLike))
    return shlex.quote(os.fspath(dataset.source)) if known else "FILE"


def _query(dataset: Dataset) -> bytes | None:
    """Return the text of the query that selects the rows."""
    source = dataset.source
    if isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() == ".sql":
        source = SqlQuery.read(Path(source), None)
    return source.query.encode() if isinstance(source, SqlQuery) else None


def _rule(name: str, rule: ColumnMap) -> dict[str, Any]:
    return {**rule.model_dump(mode="json"), "column": rule.column or name}


def _feature_lines(rules: dict[str, ColumnMap], held: Sequence[str]) -> Iterator[str]:
    plain = [
        name
        for name in held
        if rules[name] == ColumnMap(column=rules[name].column, unit=rules[name].unit)
        and rules[name].column in (None, name)
    ]
    if plain:
        yield f"{', '.join(plain)}: each from the column of the same name, unchanged"
    for name, rule in rules.items():
        if name not in held:
            yield f"{name}: this site does not have it"
        elif name not in plain:
            yield f"{name}: {'; '.join(_details(name, rule))}"


def _details(name: str, rule: ColumnMap) -> Iterator[str]:
    yield f"from column {rule.column or name}"
    if rule.long:
        factor = f" x {rule.time_factor:g}" if rule.time_factor != 1 else ""
        yield f"a row for each value; person from {rule.person}, time from {rule.time}{factor}"
    if rule.factor != 1 or rule.offset != 0:
        unit = f" ({rule.unit})" if rule.unit else ""
        offset = f" {'-' if rule.offset < 0 else '+'} {abs(rule.offset):g}" if rule.offset else ""
        yield f"value here{unit} x {rule.factor:g}{offset} = value in {rule.to}"
    elif rule.unit:
        yield f"in {rule.unit}"
    markers = [*(f"{number:g}" for number in rule.sentinels), *map(repr, rule.missing)]
    if markers:
        yield f"{', '.join(markers)} = missing"
    if rule.values:
        # All of them would be a list of cells; the hash covers them.
        yield first_few([f"{text!r} = {number:g}" for text, number in rule.values.items()], _MOST)
    if rule.forms:
        yield "texts: " + ", ".join(map(meaning_text, rule.forms, rule.forms.values()))
    if rule.levels:
        codes = (f"{code} = {'missing' if to == '' else to}" for code, to in rule.levels.items())
        yield f"codes: {', '.join(codes)}"


def _file_lines(file: ColumnsFile) -> Iterator[str]:
    if file.missing:
        yield f"in every column: {', '.join(map(repr, file.missing))} = missing"
    if file.min_present:
        yield f"a column with less than {file.min_present:.0%} of its values counts as absent"
    if file.decimal != ".":
        yield f"decimal mark: {file.decimal}"
    if file.thousands:
        yield "thousands are separated"
    if file.rows_of_person != "all":
        yield f"of a person's rows the {file.rows_of_person} one counts"
    if file.columns:
        yield f"names of the columns, in their order: {', '.join(file.columns)}"
    if file.header_row is not None:
        yield f"names of the columns: row {file.header_row}"


def _name_lines(person: Any, id_column: str | None, id_map: IdMap | None) -> Iterator[str]:
    if person is not None:
        whose = f"column {person}" if isinstance(person, str) else "a list of its own"
        yield f"persons: {whose} says which rows belong to one person; it is never sent"
    if id_column is not None and id_column != person:
        yield f"names of rows: column {id_column}; it is never sent"
    if id_map is not None:
        yield "ids: a list says which old id each new one had; it is never sent"
