"""What the reader of a page has and a test lacks: see "Examples in pages" in `tests/support`."""

import csv
import json
import math
import os
import random
import re
import shutil
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import openpyxl
import pandas
import pytest
from sklearn.metrics import adjusted_rand_score

from docs.hospitals import AGE, CHOL, DIED, SEX, Hospitals, write_rows
from docs.page import Page
from fedclust import Client
from fedclust.result.one_cloud import shown_text
from fedclust.wire.errors import UsageError
from fedclust_service.usecases.audit import verify_trail
from operation_bodies import SITES
from recipes import test_fhir
from recipes.recipe_page import block, compare_persons, persons
from recipes.test_omop import fill
from support import few_clouds
from support.api_caller import ApiCaller
from support.server import service
from support.site_rows import blobs
from support.timeouts import eventually

#: By the path of a page.
SET_UPS: dict[str, Callable[[Page], AbstractContextManager[None]]] = {}

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"


def around(title: str) -> Callable[[Callable[[Page], Iterator[None]]], None]:
    """Let a function prepare a page before its `yield`, and check after it."""

    def add(function: Callable[[Page], Iterator[None]]) -> None:
        SET_UPS[title] = contextmanager(function)

    return add


@around("docs/adding-a-method.md")
def _adding_a_method(page: Page) -> Iterator[None]:
    """The blocks are files of a distribution: tests/e2e/test_adding_a_method.py installs it."""
    files = {
        "pyproject.toml": "[build-system]",
        "fedclust_damped/config.py": "class Config(",
        "fedclust_damped/messages.py": "class ShiftTask(",
        "fedclust_damped/client.py": "def local_step(",
        "fedclust_damped/phases.py": "PHASES = (",
        "fedclust_damped/server.py": "def aggregate(",
        "fedclust_damped/__init__.py": "METHOD: Method",
        "try_damped.py": "import Tried",
        "test_damped.py": "def test_an_honest_shift",
    }
    for name, text in files.items():
        page.file(name, text)
    yield


@around("docs/approval.md")
def _approval(page: Page) -> Iterator[None]:
    """A session that a steward approves."""
    hospitals = Hospitals(page).create("heart-2026")

    approve = 'heart-2026 --name "Dr Ruth Levi"'
    page.before(approve, lambda: type_the_code(page, "review.html", approve))
    page.before("site.participate", lambda: hospitals.others_take_part("heart-2026"))
    with hospitals.site() as site:
        page.names["site"] = site
        yield
    assert set(page.names["result"].labels_) == {0, 1}


def type_the_code(page: Page, review: str, approve: str, shown: str = "3f2a9bc177de") -> None:
    """Let the steward type the code of the printed review, which the page may show, too."""
    printed = (page.place / review).read_text("utf-8")
    code = re.search(r"Approval code <b>(\w{12})</b>", printed)[1]
    page.replace(approve, f"{approve} --code {code}")
    page.replace(shown, code)


@around("docs/audit.md")
def _audit(page: Page) -> Iterator[None]:
    """A coordinator with some entries."""
    Hospitals(page).create("heart-2026")
    page.env["FEDCLUST_DATA_DIR"] = str(page.coordinator.settings.data_dir)

    store = page.coordinator.coordinator.store
    # The command would record that it verified.
    eventually(lambda: verify_trail(store).unsealed == 0)
    number, _, digest = verify_trail(store).head.partition(":")
    page.replace("1284", number)
    page.replace("5d41…", digest)
    yield


@around("docs/choosing-k.md")
def _choosing_k(page: Page) -> Iterator[None]:
    """A sweep of three sites, which takes place after its creation."""
    features = [{"name": "age"}, {"name": "chol"}]
    hospitals = Hospitals(page, features, sites=("a", "b", "c"), reader="ada")
    page.before("session result heart-k ", lambda: hospitals.finish("heart-k"))
    with hospitals.site() as site, ExitStack() as stack:
        page.names["site"] = site
        # The examples after it print how clear clusters are.
        page.before("labels-5.csv", partial(stack.enter_context, few_clouds.all_drawn()))
        yield
    assert (page.place / "labels-5.csv").exists()
    assert page.names["result"].result.recommendation


@around("docs/cli.md")
def _cli(page: Page) -> Iterator[None]:
    """A site that takes part by itself, and by its agent."""
    hospitals = Hospitals(page).create("heart-2026")
    data = page.folder("/data")
    shutil.copy(page.place / "cohort.csv", data)
    page.save_token(hospitals.tokens["cleveland"], "site.token")
    page.before("fedclust participate", lambda: hospitals.others_take_part("heart-2026"))
    written = [data / "labels.csv", data / "heart.fedclust"]
    page.in_another_terminal(
        r"^fedclust agent$", lambda: all(path.exists() for path in written), ends=False
    )
    yield


@around("docs/cohorts.md")
def _cohorts(page: Page) -> Iterator[None]:
    """A site's table of groups, and a session that gets a second one."""
    hospitals = Hospitals(page, [AGE, CHOL, {"name": "trestbps", "lower": 50, "upper": 250}])
    hospitals.create("heart-2027")
    page.folder("/backup")
    (page.place / "id.txt").write_text("p7\n", "utf-8")
    page.before("participate", lambda: hospitals.others_take_part("heart-2027"))
    yield


@around("docs/data.md")
def _data(page: Page) -> Iterator[None]:
    """A table that needs the page's mapping file, and sessions that read it in each way."""
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
    for number in range(60):
        values = draw.randint(40, 80), f"{draw.uniform(4, 8):.2f}".replace(".", ",")
        lines.append(
            f"{prefix}{number};{values[0]};{values[1]};{draw.choice('mw')};{draw.choice('T4')}"
        )
    path.write_text("\n".join(lines), "cp1252")


@around("docs/evidence.md")
def _evidence(_: Page) -> Iterator[None]:
    """As many clouds as the page's numbers come from."""
    with few_clouds.all_drawn():
        yield


@around("docs/estimators.md")
def _estimators(page: Page) -> Iterator[None]:
    """Rows of four hospitals, and a session in which another site takes part."""
    hospitals = Hospitals(page).create("heart-2026", config={"n_clusters": 4}, features=[AGE, CHOL])
    page.before("Site(", lambda: hospitals.others_take_part("heart-2026"))
    page.replace("fcs_...", hospitals.tokens["cleveland"])
    rows = np.random.default_rng(0).uniform((20, 100), (90, 400), size=(240, 2))
    page.names["X"], page.names["new_rows"] = rows, rows[:5] + 1
    page.names["hospital_of_each_row"] = np.repeat(["east", "north", "south", "west"], 60)
    yield
    assert page.names["model"].labels_.shape == (240,)


@around("docs/notifications.md")
def _notifications(page: Page) -> Iterator[None]:
    """An operator who registers addresses."""
    page.save_token(page.operator_token, "operator.token")
    page.env["FEDCLUST_COORDINATOR"] = page.url
    page.env["FEDCLUST_TOKEN_FILE"] = "operator.token"
    yield


@around("docs/operations.md")
def _operations(page: Page) -> Iterator[None]:
    """A machine with a coordinator, which the page's own commands start."""
    page.folder("/var/lib/fedclust")
    page.serve_here()
    yield


@around("docs/operations/backup.md")
def _operations_backup(page: Page) -> Iterator[None]:
    """A coordinator that runs while its operator makes a backup."""
    copies = page.folder("/backup")
    page.replace("/var/lib/fedclust", str(page.coordinator.settings.data_dir))
    page.register("sites", "cleveland")
    page.save_token(page.operator_token, "operator.token")
    page.env["FEDCLUST_COORDINATOR"] = page.url
    page.env["FEDCLUST_TOKEN_FILE"] = "operator.token"
    yield
    (accepted,) = page.operator.site_tables("cleveland")
    assert accepted.number == 7
    assert len(list(copies.iterdir())) == 1


@around("docs/operations/monitoring.md")
def _operations_monitoring(page: Page) -> Iterator[None]:
    """A coordinator with a session that has ended, and the operator's shell."""
    hospitals = Hospitals(page, sites=("north", "south", "west"), reader="ada").create("heart-2026")
    hospitals.finish("heart-2026")
    data_dir = str(page.coordinator.settings.data_dir)
    said = service("audit", "verify", "--data-dir", data_dir).stdout
    (page.place / "noted-last-time").write_text(re.findall(r"head (\w+)", said)[0], "ascii")
    page.replace("/var/lib/fedclust", data_dir)
    page.env |= {"api": f"{page.url}/v1", "OPERATOR": page.coordinator.operator_token}
    yield


@around("docs/privacy/dpia.md")
def _privacy_dpia(page: Page) -> Iterator[None]:
    """A session that invites a hospital, and the hospital's file."""
    Hospitals(page).create("heart-2026")
    yield
    written = (page.place / "review.html").read_text("utf-8")
    assert all(heading in written for heading in ("this site", "read as", "leaves", "remains"))


@around("docs/privacy/thresholds.md")
def _privacy_thresholds(page: Page) -> Iterator[None]:
    """A session to start from, and a hospital's file and state directory."""
    hospitals = Hospitals(page, reader="ada").create("heart-2026")
    rng = np.random.default_rng(7)
    rows = [f"p{i},{rng.integers(30, 90)},{rng.normal(240, 40):.0f}" for i in range(200)]
    (page.place / "cohort.csv").write_text("\n".join(["mrn,age,chol", *rows]) + "\n", "utf-8")
    page.env["FEDCLUST_STATE_DIR"] = str(page.place)
    page.file("site.toml", "min_group_size = 11")
    yield
    with Client(page.url, hospitals.analyst_token) as analyst:
        assert analyst.session("heart-2027").definition.policy.min_group_size == 11


@around("docs/protocol.md")
def _protocol(page: Page) -> Iterator[None]:
    """What people do between the lines of the transcript, as the page says."""
    if shutil.which("curl") is None and not os.environ.get("CI"):
        pytest.skip("no curl here")
    api = ApiCaller(page.url, page.operator_token)
    page.names["definition"] = json.loads(page.block("json", '"algorithm":"lloyd"'))
    page.env |= {"URL": page.url, "OPERATOR": page.operator_token, "NO_PROXY": "*"}

    def register_north() -> None:
        api.tokens["north"] = api.ok("POST", "/v1/sites/north/tokens", api.operator)["token"]
        page.terminal.run(f"NORTH={api.tokens['north']}")

    def register_others() -> None:
        api.register("sites", *SITES[1:])
        api.register("analysts", "ada")
        page.terminal.run(f"ANALYST={api.tokens['ada']}")

    def others_join() -> None:
        for site in SITES[1:]:
            api.join(site, "heart-2026")

    page.before('$NORTH" $URL/v1/whoami', register_north)
    page.before("definition.json <<", register_others)
    page.before("-D headers", others_join)
    page.before("text/csv", lambda: api.finish("heart-2026", SITES))
    yield


@around("docs/recipes/excel.md")
def _recipes_excel(page: Page) -> Iterator[None]:
    """A workbook like the page's, compared with the persons that the page makes of it."""
    (page.place / "kidney.json").write_text(block("README.md", "json"), "utf-8")
    page.file("excel.toml", 'sheet = "Cohort"')
    shown = [line.strip("|").split("|") for line in page.source.splitlines() if line[:2] == "| "]
    made = openpyxl.Workbook()
    sheet, codes = made.active, made.create_sheet("Codes")
    sheet.title = "Cohort"
    for _, *cells in shown[1:]:
        sheet.append([_cell(each.strip()) for each in cells])
    for row in (["code", "meaning"], ["f", "female"], ["m", "male"]):
        codes.append(row)
    expected_rows = {"1001": [63, 1, 102, 7.1, 1], "1002": [58, 0, 95, math.nan, 0]}
    draw = random.Random(2)
    for number in range(1003, 1031):
        age, sex, creatinine = draw.randint(20, 90), draw.choice("fm"), draw.randint(60, 300)
        hba1c, diabetes = draw.randint(50, 100) / 10, draw.choice(["yes", "no"])
        sheet.append([number, age, sex, creatinine, hba1c, diabetes])
        values = [age, int(sex == "f"), creatinine, hba1c, int(diabetes == "yes")]
        expected_rows[str(number)] = values
    made.save(page.place / "cohort.xlsx")
    yield
    compare_persons("ward", expected_rows)


def _cell(text: str) -> float | int | str | None:
    """Return a cell as somebody would type it."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text or None


@around("docs/recipes/fhir.md")
def _recipes_fhir(page: Page) -> Iterator[None]:
    """A bulk export, compared with the persons that the page makes of it."""
    (page.place / "kidney.json").write_text(block("README.md", "json"), "utf-8")
    page.file("fhir_table.py", "fhir_table.py FOLDER")
    expected_rows = test_fhir.export()
    yield
    said = page.said("python fhir_table.py")
    assert "40 patients written to cohort.csv" in said
    assert all(f"creatinine: {why}" in said for why in test_fhir.LEFT_OUT)
    assert "all 5 features" in page.said("fedclust check")
    compare_persons("fhir", expected_rows, rel=1e-5)


@around("docs/recipes/omop.md")
def _recipes_omop(page: Page) -> Iterator[None]:
    """A small database; tests/recipes/test_omop.py compares its table on PostgreSQL too."""
    (page.place / "kidney.json").write_text(block("README.md", "json"), "utf-8")
    (page.place / "cohort.sql").write_text(page.block("sql", "WITH stay"), "utf-8")
    page.save_token("sqlite:///cdm.db", "address.txt")
    fill("sqlite:///cdm.db")
    yield


@around("docs/recipes/redcap.md")
def _recipes_redcap(page: Page) -> Iterator[None]:
    """A small export, compared with the persons that the page makes of it."""
    (page.place / "kidney.json").write_text(block("README.md", "json"), "utf-8")
    page.file("redcap.toml", 'missing = ["NI"')
    page.file("clear_checkboxes.py", "clear_checkboxes.py EXPORT.csv")
    expected_rows = export(page)
    yield
    compare_persons("redcap", expected_rows)
    # As the page warns: without the script the zeros of other rows outvote a ticked box.
    options = "--person-column record_id --mapping redcap.toml --replace"
    page.terminal.run(f"fedclust data add redcap --data export.csv {options}")
    assert sum(values[4] for values in persons("redcap").values()) == 0


def export(page: Page) -> dict[str, list[float]]:
    """Write an export as REDCap does, and return each record's values in its own units."""
    (line,) = [each for each in page.source.splitlines() if each.startswith("| record_id |")]
    header = [name.strip() for name in line.strip("|").split("|")]
    draw, expected_rows = random.Random(5), {}
    with (page.place / "export.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, header, restval="", quoting=csv.QUOTE_ALL)
        writer.writeheader()
        for number in range(1, 41):
            key: dict[str, Any] = {"record_id": number}
            age, sex = draw.choice([-99, 50, 70]), draw.choice([1, 2, 2, -99])
            a1c, box = draw.choice([7.5, 6.25, -99]), draw.choice([0, 1])
            base = {"age_years": age, "sex": sex, "hba1c": a1c, "comorbidity___1": box}
            writer.writerow({**key, "redcap_event_name": "baseline_arm_1", **base})
            visit = {**key, "redcap_event_name": "visit_arm_1", "comorbidity___1": 0}
            later = draw.choice([8.0, "NI", ""])
            writer.writerow({**visit, "hba1c": later})
            values = [draw.choice([-99, 80, 120, 250]) for _ in range(draw.randint(1, 4))]
            for place, value in enumerate(values, 1):
                form = {"redcap_repeat_instrument": "laboratory", "redcap_repeat_instance": place}
                writer.writerow({**visit, **form, "crea_umol": value})
            known = [value for value in values if value != -99]
            a1cs = [value for value in (a1c, later) if isinstance(value, float)]
            expected_rows[str(number)] = [
                math.nan if age == -99 else age,
                {1: 0.0, 2: 1.0}.get(sex, math.nan),
                sum(known) / len(known) if known else math.nan,
                sum(a1cs) / len(a1cs) if a1cs else math.nan,
                box,
            ]
    return expected_rows


@around("docs/reporting.md")
def _reporting(page: Page) -> Iterator[None]:
    """An analyst with a completed session of which a paper is written."""
    hospitals = Hospitals(page, [{"name": "x0"}, {"name": "x1"}], reader="ada").create("heart-2026")
    hospitals.finish("heart-2026")
    yield
    assert page.names["result"].methods_text().startswith("We clustered 180 persons of 3 sites")
    assert (page.place / "heart.bib").read_text("utf-8").startswith("@misc{fedclust,")


@around("docs/result.md")
def _result(page: Page) -> Iterator[None]:
    """Rows of three sites for a notebook, and a session that has ended."""
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]])
    sites = blobs(centres, [40, 50, 45], spread=0.5).values()
    page.names["rows"] = dict(zip(("berlin", "oslo", "porto"), sites, strict=True))
    hospitals = Hospitals(page, [{"name": "x0"}, {"name": "x1"}], reader="ada").create("heart-2026")
    page.before("session result", lambda: hospitals.finish("heart-2026"))
    yield
    for name in ("sizes.svg", "choice.svg"):
        ElementTree.parse(page.place / name)  # noqa: S314
    assert (page.place / "clusters.html").stat().st_size > 1000
    assert (page.place / "labels.csv").exists()
    check_results(page)


def check_results(page: Page) -> None:
    """The figures and errors of the page's results are what the page says."""
    result, three = page.names["result"], page.names["three"]
    assert three.cluster_centers_.shape == (3, 2)
    assert len(page.names["found"].only_second) == 1
    assert f"number of clusters ({shown_text(result.result)})" in result.plot.choice().svg
    assert ">persons, by cluster<" in three.plot.sizes().svg
    with pytest.raises(AttributeError, match="There are: profile, sizes, "):
        three.plot.dendrogram  # noqa: B018
    with pytest.raises(UsageError, match=r"name the figure: plot\.profile"):
        three.plot()
    with pytest.raises(UsageError, match=r"each figure is a method: plot\.profile\(\)"):
        three.plot("profile")
    with pytest.raises(UsageError, match='did you mean "profile"'):
        three.plot("profiles")
    section = page.source.partition("## In a notebook")[2].partition("\n## ")[0]
    for name in [name for name in dir(three.plot) if not name.startswith("_")]:
        assert f"`{name}`" in section


@around("docs/ro-crate.md")
def _ro_crate(page: Page) -> Iterator[None]:
    """An analyst with a completed session."""
    hospitals = Hospitals(page, reader="ada").create("heart-2026")
    page.save_token(hospitals.analyst_token, "analyst.token")
    hospitals.finish("heart-2026")
    yield
    with zipfile.ZipFile(page.place / "heart.zip") as crate:
        assert set(crate.namelist()) >= {"report.html", "definition.json", "SHA256SUMS"}


@around("docs/sessions.md")
def _sessions(page: Page) -> Iterator[None]:
    """An analyst's studies, and the sites that end two sessions of one."""
    hospitals = Hospitals(page, [{"name": "mean_radius"}], ("alpha", "beta", "gamma"), reader="ada")
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


@around("docs/start/analyst.md")
def _start_analyst(page: Page) -> Iterator[None]:
    """An analyst whose session three hospitals answer."""
    hospitals = Hospitals(page, [AGE, SEX, CHOL, DIED], reader="ada")
    page.save_token(hospitals.analyst_token, "analyst.token")
    page.file("heart.json", '"Coronary patients at three hospitals"')
    page.before("session watch", lambda: hospitals.finish("heart-2026"))
    yield


@around("docs/start/data-manager.md")
def _start_data_manager(page: Page) -> Iterator[None]:
    """A hospital that is invited to a session."""
    hospitals = Hospitals(page).create("heart-2026")
    page.save_token(hospitals.tokens["cleveland"], "token")
    page.before("fedclust participate", lambda: hospitals.others_take_part("heart-2026"))
    yield


@around("docs/start/hospital-it.md")
def _start_hospital_it(page: Page) -> Iterator[None]:
    """A hospital with a token."""
    page.save_token(Hospitals(page).tokens["cleveland"], "token")
    yield


@around("docs/start/operator.md")
def _start_operator(page: Page) -> Iterator[None]:
    """An operator with a token."""
    page.save_token(page.operator_token, "operator.token")
    yield


@around("docs/tutorials/four-hospitals.md")
def _tutorials_four_hospitals(page: Page) -> Iterator[None]:
    """The tutorial of an hour: its files, its coordinator, and the figures that it shows."""
    page.file("four_hospitals.py", "load_breast_cancer")
    page.file("ada/tumours.json", '"n_clusters"')
    page.file("graz/columns.toml", "Radius_mm")
    page.file("compare.py", "Counter")
    page.serve_here()
    approve = 'approve tumours --name "Dr Ruth Levi"'

    page.before(approve, lambda: type_the_code(page, "aarhus/review.html", approve))
    with few_clouds.all_drawn():
        yield
    for name in ("choice", "profile", "mix"):
        drawn, shown = page.place / f"{name}.svg", FIGURES / f"four_hospitals_{name}.svg"
        assert drawn.read_text("utf-8") == shown.read_text("utf-8"), name


@around("docs/tutorials/heart.md")
def _tutorials_heart(page: Page) -> Iterator[None]:
    """The tutorial on the heart data of four hospitals, where these data are."""
    data = ROOT.parent / "shared" / "data" / "heart_disease"
    if not data.is_dir():
        pytest.skip("the heart data (UCI 45) are not here")
    (page.place / "heart-disease").symlink_to(data)
    page.file("heart-all.json", '"algorithm": "overlap"')
    page.file("columns.toml", "min_present")
    yield
    names = page.names
    found = [adjusted_rand_score(names["sick"], names[each]) for each in ("labels", "central")]
    assert [round(each, 3) for each in found] == [0.319, 0.326]
    at_long_beach = names["result"].labels_["long-beach"]
    assert [int((at_long_beach == label).sum()) for label in (-1, 0, 1)] == [0, 42, 158]
    shown = (FIGURES / "heart_shared_profile.svg").read_text("utf-8")
    assert (page.place / "profile.svg").read_text("utf-8") == shown


@around("docs/tutorials/ten-minutes.md")
def _tutorials_ten_minutes(page: Page) -> Iterator[None]:
    """The first tutorial: its own coordinator, and north in a terminal of its own."""
    page.file("make_files.py", "load_breast_cancer")
    page.serve_here()
    page.in_another_terminal("--token-file north.token --data")
    yield
    for name, n_rows in (("north", 280), ("south", 280), ("new", 9)):
        with (page.place / f"{name}-labels.csv").open(encoding="utf-8") as file:
            labels = list(csv.DictReader(file))
        assert len(labels) == n_rows
        assert {row["cluster"] for row in labels} == {"0", "1"}
        assert labels[0]["patient_id"].startswith(name)
    for name in ("north", "south"):
        other = "south" if name == "north" else "north"
        said = page.said(f"--token-file {name}.token --data")
        assert f"With two sites, {other} can subtract its own part" in said
        assert f"each row's cluster: {name}-labels.csv" in said
    # The block that the page shows.
    shown = page.block("text", "own sizes").splitlines()
    assert [line.split()[0] for line in shown] == [
        line.split()[0] for line in said.splitlines()[-len(shown) :]
    ]
