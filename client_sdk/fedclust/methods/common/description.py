"""Phrases that the descriptions of several methods share; see ``Method.describe``."""

from __future__ import annotations


def local_starts(n_init: int | None) -> str:
    """Return from where a site's weighted k-means starts."""
    if n_init is None:
        number = "10 random starts (fewer at a large site, at least 2)"
    else:
        number = f"{n_init} random start{'' if n_init == 1 else 's'}"
    return f"{number} and one farthest-first start"


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, such as ``1 round`` or ``3 rounds``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
