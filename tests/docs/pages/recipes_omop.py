"""A small database; tests/recipes/test_omop.py compares its table on PostgreSQL too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from docs.page import Page
from recipes.recipe_page import block
from recipes.test_omop import TABLES, hospital


@contextmanager
def around(page: Page) -> Iterator[None]:
    (page.place / "kidney.json").write_text(block("README.md", "json"), "utf-8")
    (page.place / "cohort.sql").write_text(page.block("sql", "WITH stay"), "utf-8")
    page.save_token("sqlite:///cdm.db", "address.txt")
    with closing(sqlite3.connect("cdm.db")) as database:
        for name, rows in hospital().items():
            database.execute(f"CREATE TABLE {name} ({TABLES[name]})")
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)  # noqa: S608
        database.commit()
    yield
