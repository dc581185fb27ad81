"""What differs between the data of a session's beginning and those that a site gives now."""

from __future__ import annotations

from fedclust.wire.models import Participation


def describe_difference(begun: Participation | None, now: Participation | None) -> str:
    """Return what differs, as far as the journal knows.

    Parameters
    ----------
    begun, now : Participation or None
        What the site declared when it joined, and would declare today; None if not known.
    """
    if begun is None or now is None:
        return "the persons or their values no longer fit the groups that it uses"
    found = []
    if begun.features != now.features:
        found.append("other features have values here")
    if begun.min_group_size != now.min_group_size:
        found.append("min_group_size (--min-group-size) differs")
    if begun.table_id != now.table_id:
        found.append("the persons are in another table (--cohort)")
    if begun.size_band != now.size_band:
        found.append("the number of persons has changed")
    return "; ".join(found) or (
        "the options that it recorded are the same, so the rows, their order or how they are read "
        "(mapping, columns of ids and persons) differ, or a person was withdrawn or a value "
        "corrected since"
    )
