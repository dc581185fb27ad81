"""Rows of four hospitals, and a session in which another site takes part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from docs.hospitals import AGE, CHOL, Hospitals
from docs.page import Page


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page)
    hospitals.create("heart-2026", config={"n_clusters": 4}, features=[AGE, CHOL])
    page.before("Site(", lambda: hospitals.others_take_part("heart-2026"))
    page.replace("fcs_...", hospitals.tokens["cleveland"])
    rows = np.random.default_rng(0).uniform((20, 100), (90, 400), size=(240, 2))
    page.names["X"], page.names["new_rows"] = rows, rows[:5] + 1
    page.names["hospital_of_each_row"] = np.repeat(["east", "north", "south", "west"], 60)
    yield
    assert page.names["model"].labels_.shape == (240,)
