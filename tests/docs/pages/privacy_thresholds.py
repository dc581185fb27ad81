"""A session to start from, and a hospital's file and state directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from docs.page import Page
from fedclust.client import Client
from support.purpose import PURPOSE

SITES = ["north", "east", "west"]


def create_session(page: Page) -> str:
    """Create heart-2026 for three sites; return the token of its analyst."""
    for site in SITES:
        page.register("sites", site)
    token = page.register("analysts", "ada", "ada.token")
    with Client(page.url, token) as analyst:
        analyst.create_session(
            {
                "name": "heart-2026",
                "purpose": PURPOSE,
                "algorithm": "fkm",
                "config": {"n_clusters": 3},
                "features": ["age", "chol"],
                "sites": SITES,
            }
        )
    return token


def write_cohort(page: Page) -> None:
    """Write a hospital's 200 patients to cohort.csv."""
    rng = np.random.default_rng(7)
    rows = [f"p{i},{rng.integers(30, 90)},{rng.normal(240, 40):.0f}" for i in range(200)]
    (page.place / "cohort.csv").write_text("\n".join(["mrn,age,chol", *rows]) + "\n", "utf-8")


@contextmanager
def around(page: Page) -> Iterator[None]:
    token = create_session(page)
    write_cohort(page)
    page.env |= {
        "FEDCLUST_COORDINATOR": page.url,
        "FEDCLUST_TOKEN_FILE": "ada.token",
        "FEDCLUST_STATE_DIR": str(page.place),
    }
    page.file("site.toml", "min_group_size = 11")
    yield
    with Client(page.url, token) as analyst:
        assert analyst.session("heart-2027").definition.policy.min_group_size == 11
