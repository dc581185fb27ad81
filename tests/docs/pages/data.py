"""A hospital whose table needs the page's mapping file, and sessions that read it in each way."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pandas

from docs.hospitals import AGE, CHOL, SEX, Hospitals, write_rows
from docs.page import Page
from fedclust import Client

N_ROWS = 60


@contextmanager
def around(page: Page) -> Iterator[None]:
    pain = {"name": "cp", "kind": "categorical", "levels": ["typical", "asymptomatic"]}
    hospitals = Hospitals(page, [AGE, CHOL, SEX, pain])
    (page.place / "columns.toml").write_text(page.block("toml", "[features.age]"), "utf-8")
    for name, prefix in (("cohort", "p"), ("new", "n")):
        write_export(page.place / f"{name}.csv", prefix)
    hospitals.create("heart-2026")

    def fetch_result() -> None:
        with Client(page.url, hospitals.analyst_token) as analyst:
            analyst.result("heart-2026").save("heart.fedclust")

    def keep_elsewhere(kind: str) -> None:
        """Begin a session of its own for the rows of a database or a Parquet file."""
        write_rows(page.place / "others.csv", hospitals.features, kind)
        frame = pandas.read_csv("others.csv")
        if kind == "sql":
            with closing(sqlite3.connect("cdm.db")) as database:
                frame.to_sql("cohort", database, index=False)
            query = Path("cohort.sql")
            query.write_text("SELECT mrn, age, chol, sex, cp FROM cohort ORDER BY mrn", "utf-8")
        else:
            frame.to_parquet("cohort.parquet")
        hospitals.create(f"from-{kind}")
        hospitals.others_take_part(f"from-{kind}")

    for kind in ("sql", "parquet"):
        given = f"--data cohort.{kind}"
        options = "--id-column mrn --separate-groups 'other persons'"
        page.replace(f"heart-2026 {given}", f"from-{kind} {options} {given}")
        page.before(given, partial(keep_elsewhere, kind))
    page.replace("postgresql+psycopg://reader:PASSWORD@host/database", "sqlite:///cdm.db")
    page.before("fedclust participate", lambda: hospitals.others_take_part("heart-2026"))
    page.before("fedclust predict", fetch_result)
    with hospitals.site() as site:
        page.names["site"] = site
        yield


def write_export(path: Path, prefix: str) -> None:
    """Write rows as the page's mapping file says that this hospital keeps them."""
    draw = random.Random(prefix)
    lines = ["mrn;alter;chol_mmol;geschlecht;cp"]
    for number in range(N_ROWS):
        values = draw.randint(40, 80), f"{draw.uniform(4, 8):.2f}".replace(".", ",")
        lines.append(
            f"{prefix}{number};{values[0]};{values[1]};{draw.choice('mw')};{draw.choice('T4')}"
        )
    path.write_text("\n".join(lines), "cp1252")
