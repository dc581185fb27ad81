"""The list of a site's new and old ids, for persons whose ids have changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from fedclust.data.table import read_text_column
from fedclust.errors import DataError

#: A file with the columns ``new`` and ``old``, or the old id of each new one.
IdMap: TypeAlias = str | os.PathLike[str] | Mapping[str, str]


def read_id_map(given: IdMap | None) -> Mapping[str, str]:
    """Return the old id of each new one.

    Parameters
    ----------
    given : path, mapping of str to str, or None
        A file that :class:`fedclust.data.Dataset` reads, with the columns ``new`` and ``old``; or
        the old ids by new id.

    Raises
    ------
    DataError
        The file cannot be read, lacks an id, or has one twice. No message contains an id.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        name, pairs = "id_map", [(str(new), str(old)) for new, old in given.items()]
    else:
        path = Path(given)
        name = path.name
        columns = (read_text_column(path, each) for each in ("new", "old"))
        pairs = list(zip(*columns, strict=True))
    found: dict[str, str] = {}
    earlier: set[str] = set()
    for row, (new, old) in enumerate(((a.strip(), b.strip()) for a, b in pairs), start=1):
        if not new or not old:
            raise DataError(name, "id-map", "a new or an old id is missing", row=row)
        if new in found or old in earlier:
            which = "new" if new in found else "old"
            message = f"the {which} id is in an earlier row too; a person has one of each"
            raise DataError(name, "id-map", message, row=row)
        found[new] = old
        earlier.add(old)
    return found
