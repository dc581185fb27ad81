"""What the tests that hold for every method run it with: one line a method.

A method that is registered and has no line here fails `test_every_method_is_tried`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tried:
    """Options of a method, ``n_clusters`` left to the test.

    Attributes
    ----------
    variants : tuple of dict
        Between them, sessions of these have every phase of the method.
    busy : dict
        Such that a session lasts 20 rounds on rows without clusters.
    """

    variants: tuple[dict[str, Any], ...] = ({},)
    busy: dict[str, Any] | None = None


TRIED: dict[str, Tried] = {
    "fkm": Tried(({}, {"variant": "paper"})),
    "kfed": Tried(({"refine": 3}, {"variant": "paper"}), busy={"refine": 40}),
    "lloyd": Tried(),
}

#: Every method with every one of its variants, and a name for the pair.
ALL = [(name, options) for name, tried in TRIED.items() for options in tried.variants]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in options.items())]) for name, options in ALL]


def busy(method: str) -> dict[str, Any]:
    """Return the options under which a session of ``method`` lasts."""
    tried = TRIED[method]
    return tried.variants[0] if tried.busy is None else tried.busy
