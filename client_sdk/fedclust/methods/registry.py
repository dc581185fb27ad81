"""The methods, by the name that the API gives them. Nothing else knows a method by name."""

from __future__ import annotations

from fedclust.methods import dual, fkm, kfed, lloyd, overlap, overlap_oneshot, spectral
from fedclust.schema.method import AnyMethod

METHODS: dict[str, AnyMethod] = {
    method.name: method
    for method in (
        lloyd.METHOD,
        fkm.METHOD,
        kfed.METHOD,
        spectral.METHOD,
        overlap.METHOD,
        overlap_oneshot.METHOD,
        dual.METHOD,
    )
}
