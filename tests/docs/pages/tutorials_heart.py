"""The tutorial on the heart data of four hospitals, where these data are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sklearn.metrics import adjusted_rand_score

from docs.page import Page

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data" / "heart_disease"


@contextmanager
def around(page: Page) -> Iterator[None]:
    if not DATA.is_dir():
        pytest.skip("the heart data (UCI 45) are not here")
    (page.place / "heart-disease").symlink_to(DATA)
    page.file("heart-all.json", '"algorithm": "overlap"')
    page.file("columns.toml", "min_present")
    yield
    names = page.names
    found = [adjusted_rand_score(names["sick"], names[each]) for each in ("labels", "central")]
    assert [round(each, 3) for each in found] == [0.319, 0.326]
    at_long_beach = names["result"].labels_["long-beach"]
    assert [int((at_long_beach == label).sum()) for label in (-1, 0, 1)] == [0, 42, 158]
    shown = ROOT / "docs" / "figures" / "heart_shared_profile.svg"
    assert (page.place / "profile.svg").read_text("utf-8") == shown.read_text("utf-8")
