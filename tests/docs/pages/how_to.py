"""A hospital, its analyst and its operator; the session ends after the preview."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.hospitals import Hospitals
from docs.page import Page
from fedclust import Client


@contextmanager
def around(page: Page) -> Iterator[None]:
    hospitals = Hospitals(page)
    hospitals.create("heart-2026")
    page.save_token(page.operator_token, "operator.token")

    def finish() -> None:
        hospitals.finish("heart-2026")
        with Client(page.url, hospitals.analyst_token) as analyst:
            analyst.result("heart-2026").save("heart.fedclust")

    page.before("fedclust predict", finish)
    for words, token in (
        ("--out heart-2026.zip", "ada"),
        ("--from heart-2026", "ada"),
        ("site token cleveland", "operator"),
        ("site list", "operator"),
    ):
        page.replace(words, f"{words} --token-file {token}.token")
    yield
