"""Two people at a hospital, with commands and a real coordinator: a review, an approval, labels."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import numpy as np

from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState
from support import processes
from support.consortium import Consortium, read_labels, write_csv
from support.local_coordinator import local_coordinator
from support.processes import COMMAND, clean_environment
from support.timeouts import TIMEOUT_S

SITES = ("ada", "brno", "cadiz")


def test_nothing_leaves_before_a_second_person_has_approved_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = {name: rng.normal(size=(60, 2)) + 6 * rng.integers(0, 3, (60, 1)) for name in SITES}
    place = tmp_path / "ada"
    write_csv(place / "rows.csv", rows["ada"])
    (place / "site.toml").write_text("require_approval = true\n", "utf-8")
    with local_coordinator(tmp_path, threads=True) as local:
        consortium = Consortium.found(local.base_url, local.operator_token, SITES)
        environment = clean_environment(
            {
                "FEDCLUST_COORDINATOR": local.base_url,
                "FEDCLUST_TOKEN": consortium.site_tokens["ada"],
                "FEDCLUST_STATE_DIR": str(place),
            }
        )

        def run(*arguments: str, code: int = 0) -> tuple[str, str]:
            done = processes.run([sys.executable, "-c", COMMAND, *arguments], env=environment)
            assert done.returncode == code, done.stderr
            return done.stdout, done.stderr

        purpose = "Which <em>types</em> of patients do the three hospitals share?"
        policy = {"min_group_size": 3, "max_rounds": 6}
        consortium.create("heart", 2, config={"n_clusters": 3}, purpose=purpose, policy=policy)
        others = threading.Thread(
            target=consortium.run,
            args=("heart", {name: rows[name] for name in SITES[1:]}, tmp_path / "journals"),
        )
        others.start()
        data = ("--data", str(place / "rows.csv"), "--id-column", "record")
        part = ("participate", "heart", *data, "--labels-out", str(place / "labels.csv"), "--yes")
        page = place / "review.html"
        review = json.loads(run("review", "heart", *data, "--out", str(page), "--json")[0])
        html = page.read_text("utf-8")
        assert "Which &lt;em&gt;types&lt;/em&gt; of patients" in html
        assert review["code"] in html.replace("</b>", "")
        assert "60" in html
        said = run(*part, code=4)[1]
        assert "has no recorded approval" in said
        assert f"fedclust review heart --data {place / 'rows.csv'}" in said
        assert "fedclust approve heart --name NAME" in said
        run("approve", "heart", "--name", "Dr Ruth Levi", "--code", review["code"][:12])
        assert "3 before, 8 now" in run(*part, "--min-group-size", "8", code=4)[1]
        with consortium.analyst() as analyst:
            states = {each.name: each.state for each in analyst.session("heart").sites}
        assert states["ada"] == "invited"
        assert "approved by Dr Ruth Levi" in run(*part)[1]
        others.join(TIMEOUT_S)
        assert len(read_labels(place / "labels.csv")) == 60
        assert "none changed, removed or moved" in run("ledger", "verify")[0]
        assert "heart approved by Dr Ruth Levi (account " in run("ledger", "show")[0]
    events = [line["event"] for line in Ledger(SiteState(place)).read() if "event" in line]
    assert events[:2] == ["review", "approval"]
