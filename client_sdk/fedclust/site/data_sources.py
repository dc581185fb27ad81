"""Data sources that a site has registered: where its rows are, and how they are read.

The list is part of the site's state. It holds paths, options and names of
columns, but no rows and no password of a database.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Self, TypedDict

from pydantic import Field

from fedclust.data import Dataset
from fedclust.data.advice import list_names
from fedclust.data.mapping import OnRead, ReadOptions
from fedclust.data.secret_files import refuse_address
from fedclust.data.sources import read_columns
from fedclust.schema.field_names import nearest_name
from fedclust.schema.model import SLUG, Model
from fedclust.site.state import SiteState, StateDocument
from fedclust.wire.errors import DataError, UsageError

#: The first character of a source's name where a file may be given instead.
MARK: Final = "@"


class PersonColumns(TypedDict):
    """Which columns say whose the rows are, as :meth:`fedclust.Site.participate` calls them."""

    person: str | None
    id_column: str | None
    id_map: str | None


class DataSource(Model):
    """Rows, how they are read, and which columns say whose they are.

    Attributes
    ----------
    data : str
        Path of a file or directory; or ``@NAME`` for a registered source, see :meth:`resolved`.
    reading : ReadOptions
    id_column, person_column, id_map : str or None
        As in :meth:`fedclust.Site.participate`, where ``person_column`` is ``person``; ``id_map``
        is a path.
    given : str or None
        What a person gave for ``data``; not stored.
    """

    data: str
    reading: ReadOptions = ReadOptions()
    id_column: str | None = None
    person_column: str | None = None
    id_map: str | None = None
    given: str | None = Field(default=None, exclude=True)

    @property
    def row_options(self) -> PersonColumns:
        """The columns, as arguments of :meth:`fedclust.Site.participate`."""
        return {"person": self.person_column, "id_column": self.id_column, "id_map": self.id_map}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read; no output may replace one."""
        mapping = self.reading.mapping
        known = (self.data, mapping, self.reading.sql_url_file, self.id_map)
        return tuple(Path(path) for path in known if isinstance(path, str))

    def rows(self, on_read: OnRead | None = None) -> Dataset:
        """Return the rows, to be read with these options."""
        return Dataset.of(Path(self.data), self.reading, on_read, self.given)

    def absolute(self) -> Self:
        """Return this with paths that still hold in another directory; ``@NAME`` stays as it is.

        Symbolic links stay too: a link may lead to another file every month.

        Raises
        ------
        UsageError
            A path is the address of a database.
        """
        read = {"mapping": self.reading.mapping, "sql_url_file": self.reading.sql_url_file}
        read = {name: _absolute(p, name) for name, p in read.items() if isinstance(p, str)}
        paths = (
            {} if self.data.startswith(MARK) else {"data": _absolute(self.data, "data (--data)")}
        )
        if self.id_map is not None:
            paths["id_map"] = _absolute(self.id_map, "id_map (--id-map)")
        reading = self.reading.model_copy(update=read)
        return self.model_copy(update={**paths, "reading": reading})

    def resolved(self) -> DataSource:
        """Return the registered source that ``data`` names, changed by what is given here.

        Each option that is not left at its default replaces the one of the registered source. A
        source whose ``data`` is a path is returned as it is.

        Raises
        ------
        UsageError
            No source of that name is registered.
        """
        if not self.data.startswith(MARK):
            return self
        found = data_source(self.data.removeprefix(MARK))
        given = self.reading.model_dump(exclude_defaults=True)
        named = {"id_column", "person_column", "id_map"}
        columns = self.model_dump(exclude_defaults=True, include=named)
        reading = found.reading.model_copy(update=given)
        return found.model_copy(update={"reading": reading, **columns})

    def columns(self) -> list[str]:
        """Return the names of the columns of a source that is a path.

        Raises
        ------
        DataError
            It cannot be read, or lacks one of the columns that say whose the rows are.
        """
        named = (self.id_column, self.person_column)
        return read_columns(self.rows(), [name for name in named if name is not None])

    def unmatched(self, columns: list[str]) -> list[str]:
        """Return the columns that the mapping names and that are not among ``columns``."""
        rules = self.reading.resolved().features.values()
        named = {rule.column for rule in rules if rule.column is not None and not rule.lacking}
        return sorted(named.difference(columns))


class SessionSource(DataSource):
    """The rows of a session that is answered later, without a person, and where its result goes.

    The fields are options of ``fedclust participate``; ``labels_out`` and ``result_out`` are paths.
    """

    min_group_size: int | None = None
    cohort: str | None = None
    separate_groups: str | None = None
    other_persons: str | None = None
    no_person_in_another_table: bool = False
    later: str | None = None
    labels_out: str | None = None
    result_out: str | None = None

    @property
    def outputs(self) -> tuple[Path | None, Path | None]:
        """Where labels and result go."""
        labels, result = self.labels_out, self.result_out
        return Path(labels) if labels else None, Path(result) if result else None


class DataSources:
    """The sources that are registered in a site's state; several processes may change them."""

    def __init__(self, state: SiteState | None = None) -> None:
        self._list = StateDocument(state or SiteState(), "data-sources", dict[str, DataSource])

    def read(self) -> dict[str, DataSource]:
        """Return all sources by name, in the order of their names."""
        return dict(sorted(self._list.read().items()))

    def get(self, name: str) -> DataSource:
        """Return a source; UsageError lists the known ones."""
        known = self.read()
        if name not in known:
            names = ", ".join(MARK + each for each in known)
            names = f"registered: {names}" if known else "none is registered"
            near = nearest_name(name, known)
            meant = f". Did you mean {MARK}{near}?" if near else ":"
            raise UsageError(
                f"there is no data source {MARK}{name} ({names}){meant} fedclust data add {name} "
                f"--data FILE registers {'a new one' if near else 'it'}"
            )
        return known[name].model_copy(update={"given": MARK + name})

    def add(self, name: str, source: DataSource, *, replace: bool = False) -> list[str]:
        """Register a source after reading its header, and return the names of its columns.

        Parameters
        ----------
        name : str
        source : DataSource
            ``data`` is a path. Relative paths are stored as absolute ones.
        replace : bool
            Whether another source of this name may be replaced.

        Raises
        ------
        UsageError
            The name is not valid, or is that of another source.
        DataError
            See :meth:`DataSource.columns`; or the mapping names a column that is not there.
        """
        if not re.fullmatch(SLUG, name):
            raise UsageError(
                f"{name!r} cannot be the name of a data source: use up to 63 small letters, "
                "digits and hyphens"
            )
        if source.data.startswith(MARK):
            raise UsageError(f"{source.data} is a registered source: give a file or a directory")
        absolute = source.absolute().model_copy(update={"given": None})
        columns = absolute.columns()
        unmatched = absolute.unmatched(columns)
        if unmatched:
            raise _not_there(absolute, unmatched, columns)

        def put(registered: dict[str, DataSource]) -> dict[str, DataSource]:
            if registered.get(name, absolute) != absolute and not replace:
                raise UsageError(
                    f"{MARK}{name} is registered with other data or options (fedclust data show "
                    f"{name}): give replace=True (--replace), or another name"
                )
            return {**registered, name: absolute}

        self._list.update(put)
        return columns

    def remove(self, name: str) -> None:
        """Forget a source; its data are not changed. UsageError where there is none."""
        self.get(name)
        self._list.update(lambda known: {key: known[key] for key in known if key != name})


def data_source(name: str) -> DataSource:
    """Return a registered data source; UsageError lists the known ones.

    Examples
    --------
    ``fedclust data add cohort --data ...`` registered the source:

    >>> cohort = data_source("cohort")
    >>> result = site.participate("heart-2026", cohort.rows(), **cohort.row_options)
    """
    return DataSources().get(name)


def _not_there(source: DataSource, unmatched: list[str], columns: list[str]) -> DataError:
    """Return the error for columns that the mapping names and the header lacks."""
    column = unmatched[0]
    others = f" (nor {', '.join(unmatched[1:])})" if len(unmatched) > 1 else ""
    near = nearest_name(column, columns)
    meant = f"; did you mean {near!r}?" if near else ";"
    message = f"the mapping names this column and the header has none of that name{others}{meant} "
    message += f"it has {list_names(columns)}"
    return DataError(Path(source.data).name, "missing-column", message, column=column)


def _absolute(path: str, name: str) -> str:
    return str(Path(refuse_address(path, name)).absolute())
