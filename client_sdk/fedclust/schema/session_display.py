"""What lists and notebooks show of a session."""

from typing import Any

from fedclust.schema.display import brief


def session_row(session: Any) -> dict[str, Any]:
    """Return what a list shows of a ``SessionEntry``, by heading."""
    joined = sum(site.state == "joined" for site in session.sites)
    frozen = session.definition
    n_clusters = None if frozen is None else frozen.config.get("n_clusters")
    return {
        "session": session.name,
        "study": session.study,
        "method": "(unreadable)" if frozen is None else frozen.algorithm,
        "K": None if n_clusters is None else brief(n_clusters),
        "state": session.state,
        "round": session.round,
        "joined": f"{joined} of {len(session.sites)}",
        "why": session.failure or session.stopped_because,
    }


def standing(site: Any) -> str:
    """Return whether a site takes part, and what to know about that."""
    why = site.refused_task or ("points short: no outcomes" if site.points_short else None)
    return site.state if why is None else f"{site.state} ({why})"


def session_fields(session: Any) -> list[tuple[str, Any]]:
    """Return what a notebook shows of a ``SessionEntry``: names and values."""
    by_state: dict[str, list[str]] = {}
    for site in session.sites:
        by_state.setdefault(standing(site), []).append(site.name)
    shown = session_row(session)
    shown["sites"] = "; ".join(f"{state}: {', '.join(names)}" for state, names in by_state.items())
    shown["cannot start"] = session.cannot_start
    if session.definition is not None:
        shown["features"] = ", ".join(each.name for each in session.definition.features)
        shown["purpose"] = session.definition.purpose
    shown |= {"created by": session.created_by, "created at": session.created_at}
    return [(name, value) for name, value in shown.items() if value is not None]
