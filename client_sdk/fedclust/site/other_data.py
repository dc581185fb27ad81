"""What differs between the data of a session's beginning and those that a site gives now."""

from __future__ import annotations

from pathlib import Path

from fedclust.wire.models import Participation


def other_data_text(begun: Participation | None, now: Participation | None, where: Path) -> str:
    """Return the refusal of other data: what differs, as far as is known, and what to do.

    Parameters
    ----------
    begun, now : Participation or None
        What the site declared when it joined, and would declare today; None if not known.
    where : Path
        The session's journal.
    """
    return (
        f"the session was begun with other data: {_difference(begun, now)}. Give the same again, "
        "in the same order, or leave the session: fedclust leave. If a live database gave the "
        "rows, take part with a copy of them (docs/data.md). The session is recorded in "
        f"{where}"
    )


def _difference(begun: Participation | None, now: Participation | None) -> str:
    if begun is None or now is None:
        return "the persons or their values no longer fit the groups that it uses"
    found = []
    if begun.features != now.features:
        found.append("other features have values here")
    if begun.min_group_size != now.min_group_size:
        found.append("min_group_size (--min-group-size, site.toml) differs")
    if begun.table_id != now.table_id:
        found.append("the persons are in another table (cohort=, --cohort)")
    if begun.size_band != now.size_band:
        found.append("the number of persons has changed")
    return "; ".join(found) or (
        "the options that it recorded are the same, so the rows, their order or how they are read "
        "(mapping, columns of ids and persons) differ, or a person was withdrawn or a value "
        "corrected since"
    )
