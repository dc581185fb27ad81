"""What the tests that hold for every method run it with: one line a method.

A method without a line here fails `test_every_method_is_tried`.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from fedclust.methods.common.options import takes_several
from fedclust.methods.registry import METHODS


@dataclass(frozen=True)
class Tried:
    """Options of a method, ``n_clusters`` left to the test.

    Attributes
    ----------
    variants : tuple of dict
        Between them, sessions of these have every phase of the method.
    rounds : int
        After so many of the method's rounds a session of each variant has seen its phases.
    busy : dict
        Options under which a session does not end within 10 rounds on rows without clusters.
        None: the first variant does not.
    few : bool
        Whether a session has few rounds.
    own_only : tuple of dict
        Variants in which only a site that has computed something labels rows, with what it
        remembers of that; the result alone labels none.
    """

    variants: tuple[dict[str, Any], ...] = ({},)
    rounds: int = 2
    busy: dict[str, Any] | None = None
    few: bool = False
    own_only: tuple[dict[str, Any], ...] = ()


TRIED: dict[str, Tried] = {
    "fkm": Tried(({"variant": "default"}, {"variant": "paper"})),
    "kfed": Tried(({"variant": "default", "refine": 3}, {"variant": "paper"}), busy={"refine": 40}),
    "lloyd": Tried(({}, {"stability": 20})),
    "spectral": Tried(
        ({"alignment": "landmarks"}, {"alignment": "sign"}, {"alignment": "procrustes"}),
        few=True,
        own_only=({"alignment": "sign"}, {"alignment": "procrustes"}),
    ),
    "overlap": Tried(({}, {"meta": "auto"}), busy={"rounds": 40}),
    "overlap_oneshot": Tried(({}, {"cannot_link": "on"}), few=True),
    # Cheap ones: what a search proves plays no part where sessions are compared or attacked.
    "dual": Tried(
        (
            {"node_limit": 100, "iterations": 1},
            {"update": "subgradient", "symmetry": "cells", "node_limit": 100, "iterations": 2},
        ),
        rounds=3,
        busy={
            "update": "subgradient",
            "symmetry": "none",
            "step": 0.02,
            "gap": 0.0,
            "node_limit": 100,
            "iterations": 40,
        },
    ),
    # Sweeps run it with common proportions.
    "mixture": Tried(({"proportions": "by_site"},), rounds=3, busy={"tol": 0.0}),
    "ward": Tried(({}, {"labels": "tree", "cells": 5}), few=True),
}

#: Every method with every one of its variants, and a name for the pair.
ALL: list[tuple[str, dict[str, Any]]] = []
IDS: list[str] = []
#: Sessions that compare several K, of every method that does.
KS = (2, 3, 5)
SWEEPS: list[tuple[str, dict[str, Any]]] = []
SWEEP_IDS: list[str] = []


#: Ids of all but each method's last variant and one sweep: more over HTTP shows nothing new.
LATER: list[str] = []


def add(name: str, tried: Tried) -> None:
    """Let the tests that hold for every method run ``name`` as well."""
    TRIED[name] = tried
    for options in tried.variants:
        ALL.append((name, options))
        IDS.append("-".join([name, *(f"{key}={value}" for key, value in options.items())]))
    LATER.extend(IDS[-len(tried.variants) : -1])
    if takes_several(METHODS[name].options):
        LATER.extend([f"{name}-sweep"] if SWEEPS else [])
        SWEEPS.append((name, {"n_clusters": list(KS)}))
        SWEEP_IDS.append(f"{name}-sweep")


for _name, _tried in list(TRIED.items()):
    add(_name, _tried)


def busy(method: str) -> dict[str, Any]:
    """Return the options under which a session of ``method`` does not end within 10 rounds."""
    tried = TRIED[method]
    return tried.variants[0] if tried.busy is None else tried.busy


def once(*methods: str) -> list[Any]:
    """Return every method with its last variant; others than ``methods`` with the long tests.

    For what the service does with a session: it knows no method by name.
    """
    return [
        pytest.param(
            *(method, tried.variants[-1]),
            id=method,
            marks=[] if method in methods else [pytest.mark.long],
        )
        for method, tried in TRIED.items()
    ]
