"""Hospitals, an analyst and their sessions, for pages whose reader has them."""

import csv
import random
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from docs.page import Page
from fedclust import Client, Site
from fedclust.data import Dataset
from support.definitions import session_body

AGE = {"name": "age", "unit": "years", "lower": 0, "upper": 120}
CHOL = {"name": "chol", "unit": "mg/dl", "lower": 0, "upper": 1000}
SEX = {"name": "sex", "kind": "binary"}
DIED = {"name": "died", "kind": "binary", "role": "outcome"}
N_ROWS = 60


class Hospitals:
    """Registered sites and the analyst ada; the reader of the page is at the first site.

    The reader's commands find the coordinator and the token of ``reader``: a site or "ada". The
    files ``NAME.token`` have the tokens, ``cohort.csv`` has the rows of the first site, and
    ``new.csv`` those of other persons.
    """

    def __init__(
        self,
        page: Page,
        features: Sequence[dict[str, Any]] = (AGE, CHOL),
        sites: Sequence[str] = ("cleveland", "budapest", "zurich"),
        reader: str | None = None,
    ) -> None:
        self.page, self.features, self.sites = page, features, sites
        self.tokens = {name: page.register("sites", name, f"{name}.token") for name in sites}
        self.analyst_token = page.register("analysts", "ada", "ada.token")
        page.env["FEDCLUST_COORDINATOR"] = page.url
        page.env["FEDCLUST_TOKEN_FILE"] = f"{reader or sites[0]}.token"
        for name, prefix in (("cohort", "p"), ("new", "n")):
            write_rows(page.place / f"{name}.csv", features, prefix)
        self._others = page.place.parent / "others"
        for name in sites[1:]:
            write_rows(self._others / f"{name}.csv", features, name)

    def create(self, name: str, **definition: Any) -> Self:
        """Create a session with federated k-means, unless ``definition`` says otherwise."""
        purpose = "Which types of coronary patients do the hospitals share?"
        given = {"name": name, "purpose": purpose, "sites": list(self.sites), "seed": 7}
        with Client(self.page.url, self.analyst_token) as analyst:
            analyst.create_session(session_body(*self.features, **{**given, **definition}))
        return self

    def site(self, name: str | None = None) -> Site:
        """Return a site in Python: the reader's, unless named."""
        name = name or self.sites[0]
        state = None if name == self.sites[0] else self._others / name
        return Site(self.page.url, token=self.tokens[name], state_dir=state)

    def others_take_part(self, session: str) -> None:
        """Let all other sites take part, each in a thread; the page waits for their end."""
        for name in self.sites[1:]:
            thread = threading.Thread(target=self._take_part, args=(name, session), daemon=True)
            thread.start()
            self.page.wait_for(thread)

    def finish(self, session: str) -> None:
        """Let all sites take part, up to the result."""
        self.others_take_part(session)
        with self.site() as own:
            own.participate(session, "cohort.csv", consent=True)

    def _take_part(self, name: str, session: str) -> None:
        with self.site(name) as site:
            rows = Dataset(self._others / f"{name}.csv")
            site.participate(session, rows, id_column="mrn", consent=True)


def write_rows(path: Path, features: Iterable[dict[str, Any]], prefix: str) -> None:
    """Write persons of two kinds, with values between the bounds of the features."""
    draw = random.Random(prefix)
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["mrn", "visit", *(feature["name"] for feature in features)])
        for number in range(N_ROWS):
            values = [_value(feature, number % 2, draw) for feature in features]
            writer.writerow([f"{prefix}{number}", f"{prefix}{number}.1", *values])


def _value(feature: dict[str, Any], kind: int, draw: random.Random) -> object:
    if feature.get("kind") == "binary":
        return int(draw.random() < 0.3 + 0.4 * kind)
    if "levels" in feature:
        return draw.choice(feature["levels"])
    lower, upper = feature.get("lower", 0), feature.get("upper", 100)
    return round(lower + (upper - lower) * (0.3 + 0.3 * kind + 0.1 * draw.random()), 3)
