"""A coordinator where something of everything goes on, for browser tests and screenshots.

Four hospitals hold scikit-learn's breast-cancer rows. Analyst ada has sessions in every state; one
of them has a site that is late, and one has names and texts that somebody hostile could choose.
"""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from fedclust_service.usecases import aggregation
from fedclust_service.usecases.sweeper import sweep
from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.site_rows import NAMES, breast_cancer
from support.timeouts import eventually

COLUMNS = (0, 1, 4, 6, 7, 21, 24, 27)
PURPOSE = (
    "Which types of tumour do four hospitals share, judged by the shape of their cells? The groups "
    "decide which slides two pathologists read first."
)
#: As somebody could write it who wants to break a page.
HEBREW = "אשכולות של גידולים"
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'</title>{{ 7 * 7 }}"
LONG = ("Zellkerngrößenverteilungsuntersuchung" * 6)[:200]


@dataclass
class Showcase:
    """The coordinator, its people, and one session of each state."""

    local: LocalCoordinator
    api: ApiCaller
    clock: ManualClock

    @property
    def tokens(self) -> dict[str, str]:
        """The tokens of ``operator``, ``ada``, ``eve`` (who has no session) and the sites."""
        return self.api.tokens


@contextmanager
def showcase(place: Path) -> Iterator[Showcase]:
    """Serve the coordinator for the length of a ``with`` block."""
    clock = ManualClock()
    who = "Tumour registry, 1 Main Road, registry@example.org"
    with local_coordinator(place, clock=clock, threads=True, operated_by=who) as local:
        api = ApiCaller.found(local, NAMES, "ada", "eve")
        api.data |= {site: rows[:, COLUMNS] for site, rows in breast_cancer().items()}
        _hold(local, api, "tumours-held")
        _populate(api)
        # Two hours later one round is overdue, and a session that waited for less has failed.
        for _ in range(2):
            clock.advance(3600)
            sweep(local.coordinator)
        yield Showcase(local, api, clock)


def _populate(api: ApiCaller) -> None:
    everybody = list(NAMES)
    api.study("ada", "tumour-types", everybody, title="Types of tumour at four hospitals")
    sweep = {"algorithm": "fkm", "config": {"n_clusters": [2, 3, 4]}, "study": "tumour-types"}
    _define(api, "tumours-2026", everybody, title="Types of tumour", **sweep)
    _define(api, "tumours-lloyd", everybody, config={"n_clusters": 3}, seed=3)
    _define(api, "tumours-failed", everybody, policy={"fail_after_s": 60, "round_timeout_s": 60})
    _define(api, "tumours-live", everybody, policy={"round_timeout_s": 3600})
    for session in ("tumours-2026", "tumours-lloyd", "tumours-failed", "tumours-live"):
        for site in everybody:
            api.join(site, session)
    for session in ("tumours-2026", "tumours-lloyd"):
        assert api.finish(session, everybody) == "completed"
    api.send("tumours-live", *everybody[:2])
    _define(api, "cells-spring", everybody, title="Cells of this spring", start="manual")
    for site in everybody[:2]:
        api.join(site, "cells-spring")
    _define(api, "cells-cancelled", everybody)
    api.ok("POST", "/v1/sessions/cells-cancelled/cancel", "ada")
    hostile = {"title": MARKUP, "purpose": f"{HEBREW}. {MARKUP} {LONG}", "contact": LONG}
    features = [
        {"name": name, "unit": unit, "lower": -1e4, "upper": 1e5}
        for name, unit in zip(_hostile_names(), [MARKUP[:12], "", HEBREW], strict=True)
    ]
    _define(api, "hostile", everybody, **hostile, features=features, start="manual")


def _hold(local: LocalCoordinator, api: ApiCaller, session: str) -> None:
    """Have the process die that aggregates the session's first round, before another is idle."""
    _define(api, session, list(NAMES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "COMMAND", (sys.executable, "-c", ""))
        limits = dataclasses.replace(local.coordinator.limits, pooled_above_s=-1, max_deaths=1)
        patch.setattr(local.coordinator, "limits", limits)
        for site in NAMES:
            api.join(site, session)
        api.send(session, *NAMES)
        eventually(lambda: api.ok("GET", f"/v1/sessions/{session}", "ada")["state"] == "held")


def _hostile_names() -> list[str]:
    return ["<b>radius</b>", "רדיוס", "r" * 60]


def _define(api: ApiCaller, name: str, sites: list[str], **changes: Any) -> None:
    spread = load_breast_cancer()
    features = [
        {
            "name": str(spread.feature_names[j]),
            "unit": "" if j else "µm",
            "lower": 0.0,
            "upper": float(np.ceil(2 * spread.data[:, j].max())),
        }
        for j in COLUMNS
    ]
    usual = {"purpose": PURPOSE, "contact": "Ada Lovelace, ada@example.org", "features": features}
    api.define("ada", name, sites, **{**usual, **changes})
