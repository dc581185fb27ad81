"""An analyst's studies, and the sites that end two sessions of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from docs.hospitals import Hospitals
from docs.page import Page

SITES = ("alpha", "beta", "gamma")


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page, [{"name": "mean_radius"}], SITES, reader="ada")
    for name in ("cleveland", "budapest", "zurich"):
        page.register("sites", name)
    page.file("study.json", '"Hearts"')
    page.names |= {"url": page.url, "token": hospitals.analyst_token}

    def finish() -> None:
        assert page.names["states"] == {"types-3": "recruiting", "types-2": "recruiting"}
        for name in ("types-2", "types-3"):
            hospitals.finish(name)

    page.before("import pandas", finish)
    yield
    clusters = page.names["clusters"]
    assert clusters.index.get_level_values(0).unique().tolist() == ["types-2", "types-3"]
    assert np.all(np.isfinite(list(page.names["inertia"].values())))
