"""``fedclust allowance``: what it prints, asks and refuses, and what ledger and doctor say."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import errors
from fedclust.cli import doctor
from fedclust.cli.options import Connection
from fedclust.schema.feature import Feature
from fedclust.site.allowance import Question
from fedclust.site.charges import Charges
from fedclust.site.cohorts import CohortStore
from fedclust.site.prepare import SiteRows, draft_table
from fedclust.site.state import SiteState
from fedclust.wire.errors import problem
from support.command_line import CommandLine, at_desk
from support.definitions import session_file

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROWS = np.random.default_rng(3).normal(size=(60, 2))


class Desk(CommandLine):
    """A site with one table, where ``fedclust`` runs in this process."""

    def open(self) -> None:
        self.state = SiteState()
        self.charges = Charges(self.state)

    def form(self, first: str = "p", **options: object) -> str:
        store, ids = CohortStore(self.state), [f"{first}{i}" for i in range(60)]
        given = SiteRows(ROWS, person=ids, **options)  # type: ignore[arg-type]
        asked = [Feature(name="x"), Feature(name="y")]
        return store.keep(draft_table(store, given, asked, 5, NOW)[1]).table_id

    def charge(self, table: str, session: str = "heart", points: int = 10) -> Question:
        asked = Question(
            "https://first.example", "me", session, "a" * 64, {"died": points}, ("dead_30",)
        )
        self.charges.charge(table, asked, NOW)
        return asked

    def shown(self) -> str:
        return self.ran("allowance", "show").out


desk = at_desk(Desk)


def test_a_site_without_a_table_has_nothing_to_show(desk: Desk) -> None:
    assert desk.shown() == ""
    assert "no table yet" in desk.err
    assert json.loads(desk.ran("allowance", "show", "--json").out) == []
    assert doctor._allowance(desk.state) == "no table of groups yet: taking part forms one"


def test_show_says_what_was_spent_and_what_it_teaches(desk: Desk) -> None:
    table = desk.form()
    desk.charge(table, "heart", 40)
    back = desk.charge(table, "lung", 10)
    desk.charges.give_back(back.key, NOW, ended=True)
    said = desk.shown()
    assert f"table {table}, formed 2026-03-01" in said
    assert "40 of 100 points spent; 60 left" in said
    assert "right 61 times in 100 with what is spent, 67 with all points, 50 without" in said
    assert "epsilon 2.29 with what is spent, 3.85 with all points, at delta 1e-05" in said
    assert "heart at https://first.example: died 40 (open)" in said
    assert "lung at https://first.example: died 10 (given back)" in said
    assert "may not be features: dead_30 (fedclust allowance role)" in said

    (facts,) = json.loads(desk.ran("allowance", "show", "--json").out)
    assert (facts["limit"], facts["spent"], facts["left"]) == (100, 40, 60)
    assert [each["state"] for each in facts["charges"]] == ["open", "given back"]
    assert facts["no_features"] == ["dead_30"]


def test_show_names_other_tables_and_doubts(desk: Desk) -> None:
    table = desk.form()
    desk.charge(table, "heart", 40)
    second = desk.form("q", other_persons="board 7")
    said = desk.shown()
    assert f"the same points as table {second}" in said
    assert said.count("heart at https://first.example: died 40 (open)") == 2
    desk.charges.doubt(NOW)
    said = desk.shown()
    assert "60 points count as spent until confirmed by https://first.example (as me)" in said
    with pytest.raises(doctor._Notice, match="have to confirm the restored state"):
        doctor._allowance(desk.state)
    desk.form("r", other_persons="board 8")
    assert "40 points were spent before this table was formed" in desk.shown()
    desk.charges.lose(table, NOW)
    assert "60 points are lost" in desk.shown()
    assert "0 left" in desk.out


def test_what_is_open_is_named_with_what_to_do(desk: Desk, tmp_path: Path) -> None:
    desk.charge(desk.form(), "heart", 40)
    said = (
        "40 points are charged since 2026-03-01 for heart at https://first.example (as me), and no "
        "answer was drawn; fedclust status there gives them back once the session has ended"
    )
    rows, file = tmp_path / "rows.csv", tmp_path / "lung.json"
    table = pd.DataFrame(ROWS, columns=["x", "y"]).assign(mrn=[f"p{i}" for i in range(60)])
    # Of 60, 10 die on each of the first three days; the others leave in the end.
    times = np.repeat([0.5, 1.5, 2.5, 9.0], (10, 10, 10, 30))
    table.assign(died=(times < 5) * 1, days=times).to_csv(rows)
    died = {"name": "died", "kind": "binary", "role": "outcome", "points": 60}
    days = {"name": "days", "kind": "time", "role": "outcome", "event": "died"}
    lung = session_file(file, "x", "y", died, days | {"edges": [1, 2, 3, 9]}, name="lung")
    check = ("check", "--definition", lung, "--data", str(rows), "--id-column", "mrn")

    words = desk.ran(*check).said
    assert "70 points of the allowance of each site (died 60, days 10); 60 are left" in words
    assert "answer no outcomes" in words
    assert "days: 25 % of those at risk have the event from 2 to 3" in words
    assert said in words
    facts = json.loads(desk.ran(*check, "--json").out)
    assert (facts["points"], facts["points_left"], facts["points_short"]) == (70, 60, True)
    assert facts["open_points"] == [said]
    assert said in doctor._allowance(desk.state)
    assert said in desk.ran("ledger", "verify").said


def test_whoever_connects_gives_back_what_has_ended(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.charge(table := desk.form(), "heart", 40)

    class Gone:
        """A coordinator that does not know the session any more."""

        url, name, role = "https://first.example", "me", "operator"

        def whoami(self) -> Gone:
            return self

        def session(self, _name: str) -> None:
            raise errors.NotFound(problem("not-found", "no such session"))

    gone: Any = Gone()
    assert "60 of 100 points left. 40 points are charged" in doctor._allowance(desk.state, gone)
    Gone.role = "site"
    assert "100 of 100 points left" in doctor._allowance(desk.state, gone)
    desk.charge(table, "lung", 40)
    monkeypatch.setattr(Connection, "client", lambda _: nullcontext(gone))
    assert desk.run("ledger", "verify", "--against-coordinator") == 0, desk.err
    assert desk.charges.open_charges() == []


def test_raising_prints_the_new_figure_and_asks(desk: Desk) -> None:
    table = desk.form()
    given = ("allowance", "raise", "--table", table[:5], "50", "--approved-by")
    assert "100 points instead of" not in desk.ran(*given, "Dr Levi", code=4).err
    assert "150 points instead of 100" in desk.err
    assert "right 71 times in 100 instead of 67" in desk.err
    assert "epsilon 4.87 instead of 3.85 at delta 1e-05" in desk.err
    assert "give --yes" in desk.err
    assert desk.run(*given, " ", "--yes") == 2
    assert f"table {table}: 150 of 150 points left" in desk.ran(*given, "Dr Levi", "--yes").err
    assert desk.run(*given, "Dr Levi", "--yes", "--json") == 0
    assert [each["limit"] for each in json.loads(desk.out)] == [200]
    for wrong in ("0", "1001"):
        assert desk.run("allowance", "raise", "--table", table, wrong, "--approved-by", "x") == 2
    assert desk.run("allowance", "raise", "--table", "zz", "5", "--approved-by", "x") == 2
    assert "fedclust cohort show" in desk.err


def test_a_role_is_released_by_name(desk: Desk) -> None:
    table = desk.form()
    desk.charge(table)
    assert desk.run("allowance", "role", "age", "--approved-by", "Dr Levi") == 2
    assert desk.run("allowance", "role", "dead_30", "--approved-by", "Dr Levi") == 0
    assert f"dead_30 may be a feature of table {table}" in desk.err
    assert "may not be features" not in desk.shown()


def test_the_ledger_shows_each_act(desk: Desk) -> None:
    table = desk.form()
    asked = desk.charge(table)
    desk.charges.give_back(asked.key, NOW, ended=True)
    desk.run("allowance", "raise", "--table", table, "50", "--approved-by", "Dr Levi", "--yes")
    desk.run("allowance", "role", "dead_30", "--approved-by", "Dr Levi")
    desk.charge(table, "lung")
    desk.run("allowance", "role", "dead_30", "--approved-by", "Dr Levi")
    desk.charges.doubt(NOW)
    assert desk.run("ledger", "show") == 0
    for text in (
        "charged: columns dead_30, coordinator https://first.example, outcomes died 10, points 10",
        "returned: ended True, points 10, session heart",
        "raised: approved_by Dr Levi, points 50",
        "role: approved_by Dr Levi, column dead_30",
        "restored: places coordinator https://first.example site me",
    ):
        assert text in desk.out
    assert asked.key not in desk.out
    assert desk.ran("ledger", "show", "--session", "heart").out.count("points 10") == 2
    assert desk.run("ledger", "verify") == 0
