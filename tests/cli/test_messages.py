"""Every message that a command can end with: its text, and the exit code.

The commands run in this process against a real coordinator. A case is one line: who runs what, the
exit code, and what standard output and standard error say together.
"""

import csv
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust.cli.participate import warn_unlabelled
from support.command_line import CommandLine
from support.consortium import Consortium
from support.local_coordinator import local_coordinator
from support.purpose import PURPOSE

SITES = ("north", "south", "west")
LEVELS = ("typical", "atypical", "never")
FEATURES = [
    {"name": "age", "unit": "years", "lower": 0, "upper": 120},
    {"name": "chol", "unit": "mg/dl", "lower": 50, "upper": 1000},
    {"name": "angina", "kind": "categorical", "levels": list(LEVELS)},
]
STUDY: dict[str, Any] = {
    "purpose": PURPOSE,
    "algorithm": "fkm",
    "config": {"n_clusters": 3},
    "features": FEATURES,
    "sites": list(SITES),
}
CREATE = (
    "session create {} --algorithm fkm --clusters 3 --features age,chol --sites north,south,west "
    f"--purpose '{PURPOSE}' "
)


def rows(site: str) -> list[list[Any]]:
    """Return a header and 60 rows: nobody has the last level."""
    rng = np.random.default_rng(SITES.index(site))
    found: list[list[Any]] = [["mrn", "age", "chol", "angina"]]
    for i in range(60):
        group = int(rng.integers(0, 3))
        age, chol = rng.normal([50 + 8 * group, 180 + 40 * group], [4, 12])
        found.append([f"{site}-{i}", int(age), int(chol), LEVELS[int(rng.integers(0, 2))]])
    return found


def write(path: Path, lines: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)


@dataclass
class Said:
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams as one line, however they were wrapped."""
        return " ".join((self.out + " " + self.err).split())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with a token for each account, files, and a completed session."""
    place = tmp_path_factory.mktemp("messages")
    with pytest.MonkeyPatch.context() as patch, local_coordinator(place, threads=True) as local:
        patch.setenv("FEDCLUST_STATE_DIR", str(place / "groups"))
        there = Consortium.found(local.base_url, local.operator_token, SITES)
        tokens = {"ada": there.analyst_token, "op": local.operator_token, **there.site_tokens}
        for name, token in tokens.items():
            (place / f"{name}.token").write_text(token, "utf-8")
            (place / f"{name}.token").chmod(0o600)
        for site in SITES:
            write(place / f"{site}.csv", rows(site))
        (place / "heart.json").write_text(json.dumps({"name": "heart", **STUDY}), "utf-8")
        (place / "url").write_text(local.base_url, "utf-8")
        with there.analyst() as analyst:
            analyst.create_session({"name": "swept", **STUDY, "config": {"n_clusters": [2, 3]}})
            analyst.create_session({"name": "open", **STUDY})
        data = {site: place / f"{site}.csv" for site in SITES}
        there.run("swept", data, place / "states", id_column="mrn")
        yield place


class Desk(CommandLine):
    """Runs ``fedclust`` in ``place`` as one of its accounts."""

    def open(self) -> None:
        self._patch.chdir(self.place)
        self._patch.setenv("FEDCLUST_COORDINATOR", (self.place / "url").read_text("utf-8"))
        self._patch.delenv("FEDCLUST_TOKEN", raising=False)

    def run(self, account: str, line: str, stdin: str = "") -> Said:  # type: ignore[override]
        self._patch.setenv("FEDCLUST_STATE_DIR", str(self.place / "states" / account))
        self._patch.setenv("FEDCLUST_TOKEN_FILE", f"{account}.token")
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        return Said(super().run(*shlex.split(line)), self.out, self.err)

    def definition(self, name: str, **changed: Any) -> None:
        """Write a definition to a file."""
        (self.place / name).write_text(json.dumps({**STUDY, **changed}), "utf-8")


@pytest.fixture
def desk(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(monkeypatch, capsys, place)


# --- results --------------------------------------------------------------------------------------


def test_the_format_says_what_a_result_is_printed_as(desk: Desk) -> None:
    table = desk.run("ada", "session result swept")
    assert table.code == 0
    assert table.out.startswith("cluster  persons  age")
    for asked in ("--format json", "--json", "--json --format json"):
        said = desk.run("ada", f"session result swept {asked}")
        assert said.code == 0
        assert json.loads(said.out)["session"] == "swept"
    assert desk.run("ada", "session result swept --format csv").out.startswith("cluster,size,age")
    assert desk.run("ada", "session result swept --format table").out == table.out
    # A file's name says CSV, otherwise it is JSON.
    for name, begin in (("r.csv", "cluster,size"), ("r.json", "{"), ("r", "{")):
        assert desk.run("ada", f"session result swept --out {name}").code == 0
        assert (desk.place / name).read_text("utf-8").startswith(begin)


def test_shares_lists_and_options_are_written_for_people(desk: Desk) -> None:
    """No 1.1e-16, no Python list, None or True."""
    shown = desk.run("ada", "session result swept --report swept.html")
    csv_text = desk.run("ada", "session result swept --format csv").out
    report = (desk.place / "swept.html").read_text("utf-8")
    assert desk.run("ada", "session result swept --report swept.csv").code == 0
    own = desk.run("north", "participate swept --data north.csv --id-column mrn")
    assert own.code == 0, own.err
    texts = (shown.text, csv_text, report, (desk.place / "swept.csv").read_text("utf-8"), own.text)
    for text in texts:
        for wrong in ("None", "True", "False", "[2", "(2, 3)"):
            assert wrong not in text
        # Random ids have such letters, but go on.
        assert not re.search(r"\de-1\d(?![0-9a-f])", text)
    assert "angina=never" in csv_text
    assert "quorum: not set" in report
    assert "evaluate: yes" in report
    sizes = next(line for line in own.out.splitlines() if line.startswith("own sizes"))
    assert sum(map(int, sizes.removeprefix("own sizes").split(","))) == 60
    full = desk.run("north", "check open --data north.csv --id-column mrn --full").text
    assert "scaling: standard" in full
    assert "n_clusters: 3, " in full


def test_a_sweep_says_which_k_were_tried_and_whether_one_is_recommended(desk: Desk) -> None:
    site = desk.run("north", "participate swept --data north.csv --id-column mrn")
    files = " ".join(f"--site {site}={site}.csv" for site in SITES)
    local = f"simulate fkm --clusters 2-3 --features age,chol {files}"
    for said in (site, desk.run("ada", "session result swept"), desk.run("ada", local)):
        assert said.code == 0, said.err
        assert "(tried K = 2, 3; no K is recommended; K = 2 is shown)" in said.text
        assert "Do not report clusters as a finding." in said.text
    facts = json.loads(
        desk.run("north", "participate swept --data north.csv --id-column mrn --json").out
    )
    assert facts["tried"] == [2, 3]
    assert (facts["choice"], facts["shown"], facts["tied"]) == ("one-cloud", 2, [])
    assert facts["one_cloud"]["p"] > 0.05


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        (CREATE.format("one") + "--clusters 1", 2, "--clusters 1: one cluster holds all persons"),
        (CREATE.format("one") + "--clusters 1-4", 2, "give at least 2"),
        (CREATE.format("one") + "--clusters 0", 2, "--clusters 0: give a number from 2 to 10000"),
        ("simulate fkm --clusters 1 --site a=north.csv", 2, "one cluster holds all persons"),
        ("session create one --file one.json", 2, "in one.json (or --clusters): one cluster"),
        ("session result swept --json --format csv", 2, "--json and --format csv contradict"),
        ("session result swept --format table --out x", 2, "--format table is for the screen"),
        ("session result swept --out -", 2, "an output needs a file's name"),
        ("session name swept a,b,c,d", 2, "NAMES: give 2 or 3 names, one for each cluster; 4"),
        ("session name swept A,a", 2, "NAMES: two clusters have the same name"),
        ("session result swept --k 9", 2, "choose K from those of this session's results: 2, 3"),
        ("session result swept --report x.pdf", 2, "the file of a report ends in .html"),
        ("session create one --file -", 2, "standard input is empty: a definition is"),
        ("check --definition - --data north.csv", 2, "standard input is empty"),
        ("check --definition heart.json --data -", 2, "not from standard input: give a file"),
        ("check --data north.csv", 2, "give one of: the name of a session, --study STUDY"),
        ("check --definition heart.json --data north.csv --sentinel chol", 2, "--sentinel needs"),
        ("check --definition heart.json --data north.csv --sentinel chol=inf", 2, "--sentinel ne"),
        ("check --definition heart.json --data north.csv --delimiter ab", 2, "--delimiter: too"),
        ("check --definition heart.json --data north.csv --delimiter a", 2, "--delimiter: a comma"),
        ("check --definition heart.json --data north.csv --encoding klingon", 2, "--encoding: no"),
        ("check --definition heart.json --data north.csv --decimal x", 2, "--decimal: write '.'"),
        ("cohort create --data north.csv", 2, "give either --features NAMES or --definition"),
        ("cohort create --data north.csv --features ,", 2, "--features needs names of columns"),
        ("ledger verify --head xyz", 2, "--head: give the 64 hexadecimal digits that fedclust"),
        ("session result swept --out r.fedclust", 2, "give --result-out r.fedclust"),
        ("simulate fkm --clusters 2 --site north", 2, "--site north: give NAME=FILE"),
        ("session create one --file list.json", 2, "list.json: a definition is a JSON object"),
        ("session create one --file twice.json", 2, "the key 'purpose' twice: keep one"),
        ("check --definition twice.json --data north.csv", 2, "the key 'purpose' twice"),
        ("study create s", 2, "--purpose: this is required; --sites: this is required"),
        ("session create one --algorithm fkm", 2, "--features: this is required; --sites: this"),
        (
            "session create one --algorithm fkm --features age --sites a,b,c --clusters 2",
            2,
            "--purpose: say in one to five sentences",
        ),
    ],
)
def test_an_option_that_cannot_be_used(desk: Desk, line: str, code: int, text: str) -> None:
    desk.definition("one.json", config={"n_clusters": 1})
    (desk.place / "list.json").write_text("[]", "utf-8")
    (desk.place / "twice.json").write_text('{"purpose": "x", "purpose": "y"}', "utf-8")
    said = desk.run("ada", line)
    assert (said.code, text in said.text) == (code, True), said.err
    assert desk.run("ada", "session show one").code == 5, "nothing was created"


def test_what_standard_input_lacks(desk: Desk) -> None:
    said = desk.run("ada", "session create one --file -", '{"purpose"')
    assert said.code == 2
    assert said.err.startswith("fedclust: standard input, line 1: this is not JSON")


# --- definitions ----------------------------------------------------------------------------------

DEFINITIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown part": (
        {"pollicy": {}},
        'wrong.json: unknown field "pollicy": did you mean "policy"? There are: name, ',
    ),
    "an unknown property of a feature": (
        {"features": [{"name": "age", "lowr": 0}]},
        'features[0] in wrong.json: unknown field "lowr": did you mean "lower"?',
    ),
    "an unknown option": (
        {"config": {"n_clusters": 3, "n_inits": 3}},
        'config in wrong.json: unknown option of this variant "n_inits": did you mean "n_init"?',
    ),
    "no option that is needed": (
        {"config": {}},
        "config.n_clusters in wrong.json (or --clusters): this is required",
    ),
    "a rule of the coordinator": (
        {"policy": {"quorum": 9}},
        "policy.quorum in wrong.json: from min_sites (3) to the number of sites (3)",
    ),
    "text for a number": (
        {"policy": {"min_sites": "3"}},
        "policy.min_sites in wrong.json (or --min-sites): it should be a whole number",
    ),
    "bounds the wrong way round": (
        {"features": [{"name": "age", "lower": 9.0, "upper": 1.0}]},
        "features[0].lower in wrong.json: lower must be below upper",
    ),
    "a method that is none": (
        {"algorithm": "kmeans"},
        "algorithm in wrong.json (or --algorithm): choose one of: dual, fkm, ",
    ),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_mistake_in_a_definition_names_its_field(desk: Desk, name: str) -> None:
    """Whether the command or the coordinator finds it: the same words and the same exit code."""
    change, text = DEFINITIONS[name]
    desk.definition("wrong.json", **change)
    said = desk.run("ada", "session create wrong --file wrong.json")
    assert (said.code, text in said.text) == (2, True), said.err
    assert said.err.count("\n") == 1
    assert '"/' not in said.err
    assert " /" not in said.err
    local = desk.run("ada", "check --definition wrong.json --data north.csv")
    assert (local.code, text.split(" (or --")[0] in local.text) == (2, True), local.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--min-sites 5", "--min-sites: the session has fewer sites (3) than it needs (5)"),
        ("--min-group-size 2000000", "--min-group-size: it should be"),
        ("--clusters 3,3", "--clusters: "),
        ("--algorithm kmeans", "--algorithm: choose one of: dual, fkm, "),
        ("--purpose short", "--purpose: say in one to five sentences"),
        ("--features age,age", "--features, entry 2: each feature is named once"),
        ("--sites north,north,south", "--sites, entry 2: each site is named once"),
        ("--sites north,nowhere,south", "--sites, entry 2: no site of this name is registered"),
        ("--sites north,So,south", "--sites, entry 2: a name is a-z, 0-9 and hyphens"),
        ("--seed 99999999999999999999", "--seed: it should be less than or equal to 9007199254"),
        ("--expires 2020-01-01T00:00Z", "--expires: this time has passed: give a later one"),
        ("--expires tomorrow", "--expires: give the time with its offset"),
        ("--contact ' x'", "--contact: leave out the spaces at its beginning or end"),
        ("--file nothere.json", "nothere.json cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_in_an_option_names_the_option(desk: Desk, options: str, text: str) -> None:
    said = desk.run("ada", CREATE.format("wrong") + options)
    assert (said.code, text in said.text) == (2, True), said.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--config '{\"n_inits\": 3}'", '--config: unknown option of this variant "n_inits": did'),
        ("--config '{\"tol\": -1}'", "--config tol: it should be greater than or equal to 0"),
        ("--policy '{\"quorom\": 3}'", '--policy: unknown field "quorom": did you mean "quorum"?'),
        ("--policy '{\"quorum\": 9}'", "--policy quorum: from min_sites (3) to the number of"),
        ('--config \'{"tol": 1e-3, "tol": 1e-4}\'', "the key 'tol' twice"),
        ("--policy '['", "--policy, line 1: this is not JSON"),
        ("--policy 3", "--policy needs a JSON object"),
    ],
)
def test_a_mistake_in_a_simulation_names_the_option(desk: Desk, options: str, text: str) -> None:
    files = " ".join(f"--site {site}={site}.csv" for site in SITES)
    said = desk.run("ada", f"simulate fkm --clusters 3 --features age {files} {options}")
    assert (said.code, text in said.text) == (2, True), said.err


def test_a_definition_needs_no_name_to_be_checked(desk: Desk) -> None:
    desk.definition("unnamed.json")
    said = desk.run("ada", "check --definition unnamed.json --data north.csv")
    assert said.code == 0, said.err


# --- refusals of the coordinator ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("account", "line", "code", "text"),
    [
        ("ada", "session show Heart", 2, "'Heart': a name is a-z, 0-9 and hyphens"),
        ("ada", CREATE.format("Heart"), 2, "'Heart': a name is a-z, 0-9 and hyphens"),
        ("op", "site add Bern", 2, "'Bern': a name is a-z, 0-9 and hyphens"),
        ("ada", "session show nothing", 5, "(404): "),
        ("ada", CREATE.format("swept"), 5, "Choose another name"),
        # A token of another role: found here or by the coordinator.
        ("ada", "participate open --data north.csv", 5, "This token is that of an analyst: give"),
        ("north", "site add bern", 5, "This token's role may not do this (403): "),
        # A session in another state: found here or by the coordinator.
        ("ada", "session close open", 5, "open is recruiting: it has no round to close."),
        ("ada", "session start open", 5, "Too few sites for this (409): "),
        ("ada", "session cancel swept", 5, "The session's state does not allow this (409): "),
        ("ada", "session deadline swept 2099-01-01T00:00Z", 5, "(409): "),
        ("ada", "session result open", 5, "The session has no result (409): "),
        # Contents that are not valid: found here or by the coordinator.
        ("ada", "session deadline open tomorrow", 2, "UNTIL: give the time with its offset"),
        ("ada", "session deadline open 2026-12-01T12:00", 2, "UNTIL: give the time with its"),
        ("ada", "session deadline open 0001-01-01T00:00+23:59", 2, "UNTIL: give the time with"),
        ("ada", "session invite open nowhere", 2, "SITES, entry 1: no site of this name"),
        ("ada", "session invite open ,", 2, "name the sites, for example: basel,geneva"),
        ("op", "site add bern --title ' x'", 2, "--title: leave out the spaces at its beginning"),
        ("op", "site add bern --days 9999", 2, "--days"),
        ("ada", "session invite open So", 2, "SITES, entry 1: a name is a-z, 0-9 and hyphens"),
        # An invalid name, in each place that takes one.
        ("ada", "study show Hearts", 2, "'Hearts': a name is a-z, 0-9 and hyphens"),
        ("ada", "study delete Hearts --yes", 2, "'Hearts': a name is a-z, 0-9 and hyphens"),
        ("ada", "session list --study Hearts", 2, "'Hearts': a name is a-z, 0-9 and hyphens"),
        ("ada", CREATE.format("one") + "--study Hearts", 2, "'Hearts': a name is a-z, 0-9"),
        ("north", "check --study Hearts --data north.csv", 2, "'Hearts': a name is a-z, 0-9"),
        ("ada", "session exclude open North --yes", 2, "'North': a name is a-z, 0-9 and hyphens"),
        ("ada", "session exclude open nowhere --yes", 5, "There is no site in this session"),
        ("ada", "session exclude swept north --yes", 5, "a site cannot leave it any more"),
        ("ada", "session delete swept --yes", 5, "Cancel it instead, and choose another name"),
        ("ada", "session delete open", 4, "there is no terminal to ask on: give --yes"),
        ("ada", "session deadline open 2099-01-01T00:00Z", 5, "No round of this session is"),
        ("ada", "study show nothing", 5, "There is no study of this name that this token"),
        ("north", "study create s --purpose x --sites north", 2, "--purpose: it should have at"),
        # What a site has not registered, reviewed or handed over.
        ("north", "data show nothing", 2, "there is no data source @nothing (none is registered)"),
        ("north", "data add Heart --data north.csv", 2, "'Heart' cannot be the name of a data"),
        ("north", "data add more --data @other", 2, "@other is a registered source: give a file"),
        ("north", "review open --data north.csv --out x.pdf", 2, "file of a review ends in .html"),
        ("north", "review open --data north.csv --out no/x.html", 2, "no/x.html cannot be written"),
        ("north", "approve open --name Ruth", 2, "fedclust review open --data FILE"),
        ("north", "approve open --name R --withdraw", 2, "no approval of session"),
        ("north", "agent remove open", 2, "open was not handed to the agent"),
        ("op", "site email north x@y.example --remove", 2, "give either an ADDRESS or --remove"),
        # A token that cannot be used.
        ("nobody", "session list", 2, "nobody.token: the token cannot be read (No such file"),
        ("ada", "session list --coordinator ftp://x", 2, "address begins with https://"),
        ("op", "site token nobody", 5, "(404): "),
        ("op", "site revoke north nothing", 5, "(404): "),
    ],
)
def test_a_refusal_says_what_to_do(
    desk: Desk, account: str, line: str, code: int, text: str
) -> None:
    said = desk.run(account, line)
    assert (said.code, text in said.text) == (code, True), said.err
    assert "unexpected" not in said.err


# --- rows -----------------------------------------------------------------------------------------


def changed(desk: Desk, name: str, change: Callable[[list[list[Any]]], object]) -> str:
    """Write the rows of north with a change; return the options that read them."""
    lines = rows("north")
    change(lines)
    write(desk.place / name, lines)
    return f"--data {name}"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("empty.csv", b"", "the file is empty; a header is needed"),
        ("header.csv", b"age,chol,angina\n", "there are no rows below the header"),
        ("packed.csv", b"\x1f\x8b\x08 SECRET", "the file is compressed: unpack it first"),
        ("quote.csv", b'age,chol,angina\n"SECRET,2,x\n', "is a quotation mark never closed?"),
        ("latin.csv", b"age,chol,angina\n1,2,SECR\xe9T\n", "line 2: this is not UTF-8; older Wi"),
        ("junk.parquet", b"PAR1 SECRET", "this is no Parquet file"),
        ("junk.xlsx", b"PK SECRET", "this is no Excel workbook"),
        ("junk.xls", b"\xd0\xcf SECRET", "save it as .xlsx, or a sheet as CSV UTF-8"),
        ("query.sql", b"select \xff SECRET", "a query is text in UTF-8"),
        ("absent.csv", None, "absent.csv: No such file or directory"),
        ("states", None, "this is a directory without *.parquet files: give a file"),
    ],
)
def test_a_file_that_holds_no_rows(desk: Desk, name: str, content: bytes | None, text: str) -> None:
    """The message names the file, and holds nothing of what is in it."""
    if content is not None:
        (desk.place / name).write_bytes(content)
    said = desk.run("ada", f"check --definition heart.json --data {name}")
    assert (said.code, text in said.text) == (3, True), said.err
    assert name in said.err
    assert "SECR" not in said.text


@pytest.mark.parametrize(
    ("header", "options", "text"),
    [
        (
            "mrn,Age,chol,angina",
            "",
            "--ask makes: 1. age: there is no column for it here",
        ),
        ("mrn,age,chol,angina", "--id-column mnr", "such as 'mrn'"),
    ],
)
def test_a_column_of_another_name_is_named_with_what_to_do(
    desk: Desk, header: str, options: str, text: str
) -> None:
    data = changed(
        desk, "named.csv", lambda lines: lines[0].__setitem__(slice(4), header.split(","))
    )
    said = desk.run("ada", f"check --definition heart.json {options} {data}")
    assert (said.code, text in said.text) == (3, True), said.err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"delimiter = " + b"[" * 100_000, "it is nested too deeply"),
        (b"delimiter = 'a'", "delimiter: a comma, semicolon, tab or the like"),
        (b"[features.chol]\ncolum = 'x'", "features.chol.colum: there is no such setting: did"),
    ],
)
def test_a_mapping_file_that_cannot_be_used(desk: Desk, content: bytes, text: str) -> None:
    (desk.place / "wrong.toml").write_bytes(content)
    said = desk.run("ada", "check --definition heart.json --data north.csv --mapping wrong.toml")
    assert (said.code, f"wrong.toml: {text}" in said.text) == (3, True), said.err


def test_repeated_ids_are_counted_and_not_named(desk: Desk) -> None:
    def repeat(lines: list[list[Any]]) -> None:
        for place in (3, 4, 5):
            lines[place][0] = lines[2][0]
        lines[10][0] = lines[9][0]

    data = changed(desk, "repeated.csv", repeat)
    text = "2 ids occur in several rows (6 rows)"
    advice = "rows of one person, give --person-column mrn (person=) too"
    for line in (
        f"check --definition heart.json --id-column mrn {data}",
        f"check open --id-column mrn {data}",
        f"participate open --yes --id-column mrn {data}",
    ):
        said = desk.run("north", line)
        assert said.code == 3
        assert text in said.text
        assert advice in said.text
        assert not re.search(r"north-\d", said.text)
    grouped = desk.run("north", f"check --definition heart.json --person-column mrn {data}")
    assert (grouped.code, f"mrn: {text}; each id is one person" in grouped.text) == (0, True)
    saved = "participate swept --data north.csv --id-column mrn --result-out swept.fedclust"
    assert desk.run("north", saved).code == 0
    labelled = desk.run("north", f"predict swept.fedclust --id-column mrn --out l.csv {data}")
    assert (labelled.code, f"warning: {text}; each row" in labelled.text) == (0, True)


def test_a_file_of_which_nobody_can_take_part_does_not_fit(desk: Desk) -> None:
    def empty(lines: list[list[Any]]) -> None:
        for place, line in enumerate(lines[1:]):
            line[1 if place < 56 else 2] = ""

    data = changed(desk, "empty.csv", empty)
    desk.definition("dropping.json", policy={"missing": "drop"})
    said = desk.run("ada", f"check --definition dropping.json {data}")
    assert said.code == 3
    assert "0 persons take part, and the session needs at least 5" in said.text
    assert "0 of 60 rows have a value in every column." in said.text
    assert "Values are missing in age (93.3%), chol (6.7%): complete them" in said.text
    facts = json.loads(desk.run("ada", f"check --definition dropping.json --json {data}").out)
    assert facts["refused"]["rule"] == "too-few-persons"


def test_check_says_how_many_persons_stay_with_drop(desk: Desk) -> None:
    def most(lines: list[list[Any]]) -> None:
        for line in lines[1:51]:
            line[1] = ""

    data = changed(desk, "most.csv", most)
    desk.definition("dropping.json", policy={"missing": "drop"})
    facts = json.loads(desk.run("ada", f"check --definition dropping.json --json {data}").out)
    groups, persons = (facts["staying"][name] for name in ("groups", "persons"))
    assert facts["usable_rows"] == round(60 * persons) < 48
    said = desk.run("ada", f"check --definition dropping.json {data}")
    assert said.code == 0
    assert "10 of 60 rows have a value in every column" in said.text
    text = f"{groups:.1%} of the groups stay, with {persons:.1%} of the persons"
    assert f"{text}; ask the analyst for missing: impute" in said.text
    kept = desk.run("ada", f"check --definition heart.json {data}")
    assert "persons who take part: 60" in kept.text
    assert "groups stay" not in kept.text


def test_an_impossible_value_names_the_option_and_the_lines_of_the_mapping(desk: Desk) -> None:
    def zero(lines: list[list[Any]]) -> None:
        for line in lines[1:20]:
            line[2] = 0

    data = changed(desk, "zero.csv", zero)
    said = desk.run("ada", f"check --definition heart.json {data}")
    assert said.code == 0
    assert (
        "They count as measurements; only what leaves is limited to the bounds. If it stands"
    ) in said.text
    advice = "--sentinel chol=0 (sentinels=), or in the mapping file (mapping=, --mapping)"
    assert f"{advice}, in this section: [features.chol] sentinels = [0]" in said.text
    assert said.err == ""  # what may be logged repeats nothing of it
    (desk.place / "zero.toml").write_text("[features.chol]\nsentinels = [0]\n", "utf-8")
    for option in ("--sentinel chol=0", "--mapping zero.toml"):
        said = desk.run("ada", f"check --definition heart.json {data} {option}")
        assert "outside the session's bounds" not in said.text


def test_repeated_ids_are_said_of_a_column_that_nobody_named(desk: Desk) -> None:
    def repeat(lines: list[list[Any]]) -> None:
        lines[2][0] = lines[1][0]

    data = changed(desk, "twice.csv", repeat)
    for named, advice in (
        ("", "each row counts as a person: if each id is one person, give --person-column mrn"),
        ("--id-column mrn", "with --person-column mrn each id is one person"),
    ):
        said = desk.run("ada", f"check --definition heart.json {data} {named}")
        assert f"mrn: 1 id occurs in several rows (2 rows); {advice}" in said.text

    def mixed(lines: list[list[Any]]) -> None:
        repeat(lines)
        for place, line in enumerate(lines):
            line += [f"{place % 2}.1.1950", "Ab"[place % 2]] if place else ["Geb.-Datum", "note"]

    said = desk.run("ada", f"check --definition heart.json {changed(desk, 'mixed.csv', mixed)}")
    assert "of 1 of them the rows differ in Geb.-Datum: if these are several persons" in said.text
    assert "give --person-column" not in said.text

    def unnamed(lines: list[list[Any]]) -> None:
        # Other columns repeat their values, too.
        lines[0][:1] = ["IPP", "day", "note", "count", "patient_sex", "case", "COVID"]
        for place, line in enumerate(lines[1:]):
            own = max(place, 1)
            line[:1] = [f"x-{own}", f"20{own:02}-12-01", f"a {own}", place % 54, 1, 1, 1]

    said = desk.run("ada", f"check --definition heart.json {changed(desk, 'unnamed.csv', unnamed)}")
    assert "IPP looks like an identifier: 1 id occurs in several rows (2 rows); each" in said.text
    assert "day, note, count, patient_sex, case, COVID" in said.text
    assert said.text.count("several rows") == 1
    said = desk.run("ada", "check --definition heart.json --data north.csv")
    assert "several rows" not in said.text


def test_an_unknown_level_is_not_a_missing_value(desk: Desk) -> None:
    def rename(lines: list[list[Any]]) -> None:
        for line in lines[1:31]:
            line[3] = "Secret"

    data = changed(desk, "level.csv", rename)
    said = desk.run("ada", f"check --definition heart.json {data}")
    assert said.code == 3
    assert '1. angina: not read: "Secret" 30; say below [features.angina] what each' in said.text
    assert "angina angina refused 0.0% + 50.0% open" in said.text
    assert "Secret" not in desk.run("ada", f"check --json --definition heart.json {data}").text
    saved = "participate swept --data north.csv --id-column mrn --result-out swept.fedclust"
    assert desk.run("north", saved).code == 0
    labelled = desk.run("north", f"predict swept.fedclust --out l2.csv {data}")
    assert labelled.code == 0
    assert "column 'angina': 30 rows have a value that the session does not know" in labelled.text
    assert "Secret" not in labelled.text
    assert "60 rows labelled: l2.csv (K = " in labelled.text
    two = desk.run("north", f"predict swept.fedclust --out l2.csv --k 2 {data}")
    assert "60 rows labelled: l2.csv (K = 2)" in two.text


def test_rows_without_a_label_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert warn_unlabelled(np.array([0, 1, 2])) == 0
    assert capsys.readouterr().err == ""
    assert warn_unlabelled(np.array([0, -1, 2])) == 1
    assert "warning: 1 of 3 rows have no label" in capsys.readouterr().err


# --- progress -------------------------------------------------------------------------------------


def test_lines_of_a_session_begin_with_their_time(desk: Desk) -> None:
    stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
    watched = desk.run("ada", "session watch swept")
    assert watched.code == 0
    assert all(stamp.match(line) for line in watched.out.splitlines())
    events = desk.run("ada", "session watch swept --json").out.splitlines()
    assert all("time" in json.loads(event) for event in events)
    again = desk.run("north", "participate swept --data north.csv --id-column mrn")
    progress = again.err.splitlines()
    assert all(stamp.match(line) for line in progress[:2])
    assert "nothing is sent again" in again.err
