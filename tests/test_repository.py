"""Promises about the tree itself: what is in it, how it reads, how large it may get."""

import ast
import importlib.metadata
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import map as drawer
import menu_words
import render
from support.processes import run

ROOT = Path(__file__).parents[1]


def tracked(*suffixes: str) -> list[Path]:
    """Return the repository's own text files; vendored assets are not ours to judge."""
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    if listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:  # an unpacked source distribution
        hidden = {path for path in ROOT.iterdir() if path.name.startswith(".")} - {ROOT / ".ci"}
        paths = [path for path in ROOT.rglob("*") if not hidden & set(path.parents)]
    return [
        path
        for path in paths
        if path.is_file()
        and "static" not in path.parts[:-2]
        and ROOT / "service" / "fedclust_service" / "http" / "help" not in path.parents
        and (path.suffix in suffixes or path.name in suffixes)
    ]


def test_what_every_repository_has_is_there() -> None:
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"):
        assert (ROOT / name).stat().st_size > 500, name
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text("utf-8")


#: What a busy machine reaches: a wait of a few seconds, a span of time that a test asserts.
LIMITS = re.compile(
    r"timeout=\d|(join|wait|result|communicate|acquire)\((timeout=)?[1-9]\d*(\.0)?\)"
    r"|mark\.timeout|monotonic\(\) \+ \d|(monotonic|perf_counter)\(\) - \w+ <|Timer\([1-9]"
)


def test_no_test_has_a_limit_that_a_busy_machine_reaches() -> None:
    """All wait as long as `support.timeouts` says, and none asserts how long something took."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(".py")
        if path.is_relative_to(ROOT / "tests") and path != Path(__file__)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if LIMITS.search(line)
    ]
    assert found == []


def test_lines_fit_100_columns() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(".py", ".md", ".html", ".css", ".js", "Makefile", ".toml")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        # A table's row cannot be broken.
        if len(line) > 100 and not line.startswith("|")
    ]
    assert not long, "\n".join(long)


_SUFFIXES = (".py", ".md", ".html", ".css", ".js", ".toml", ".mako", ".json", ".ini")


def test_no_unfinished_business_and_no_path_of_somebodys_machine() -> None:
    # Spelled apart, so that this file does not find itself.
    marks = ["TO" + "DO", "FIX" + "ME", "XX" + "X:", "place" + "holder"]
    roots = [f"/{name}/" for name in ("home", "Users", "root", "work", "tmp")]
    indices = ["index-u" + "rl", "extra-ind" + "ex"]
    bad = re.compile("|".join([*marks, *(rf"{root}\w" for root in roots), *indices]))
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(*_SUFFIXES, "Makefile", "run")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if bad.search(line)
    ]
    assert not found, "\n".join(found)


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in tracked(".md")
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_every_decision_and_every_page_is_linked() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text("utf-8")
    for page in (ROOT / "docs" / "adr").glob("0*.md"):
        number = page.name[:4]
        assert f"[{number}]({page.name})" in index
        assert page.read_text("utf-8").startswith(f"# {number}: ")
    everywhere = "".join(page.read_text("utf-8") for page in tracked(".md"))
    for page in (ROOT / "docs").rglob("*.md"):
        assert f"{page.name})" in everywhere, f"nothing links to {page.name}"


def _anchors(page: str) -> set[str]:
    """Return the fragments that a page's headings and anchors have in a link."""
    headings = re.findall(r"^#+ (.+)$", page, re.M)
    slugs = (re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings)
    return {*slugs, *re.findall(r'<a id="([^"]+)"', page)}


def test_links_to_a_section_find_it() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}#{section}"
        for page in tracked(".md")
        for target, section in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text("utf-8"))
        if section not in _anchors((page.parent / target if target else page).read_text("utf-8"))
    ]
    assert not broken, "\n".join(broken)


def test_a_page_that_the_glossary_links_uses_the_term() -> None:
    glossary = ROOT / "docs" / "glossary.md"
    entries = re.findall(
        r"^- \*\*(.+?)\*\*(.*?)(?=^- |^#|\Z)", glossary.read_text("utf-8"), re.M | re.S
    )
    assert len(entries) > 50
    for term, meaning in entries:
        targets = re.findall(r"\]\(([^)#\s]+)", meaning)
        pages = [(glossary.parent / target).read_text("utf-8") for target in targets]
        words = term.replace(" ", r"\s+")
        assert any(re.search(rf"\b{words}", page, re.I) for page in pages), f"{term}: {targets}"


#: Words that make a reader stop: each has a plainer one.
STUMBLING = re.compile(
    r"\b(?:told|alike|beside|anew|mends?|gone through|goes on|in the way|manners)\b", re.IGNORECASE
)


def test_pages_avoid_words_that_make_a_reader_stop() -> None:
    """Rendered text is left out: it is written elsewhere."""
    found = []
    for page in set(tracked(".md")) - set((ROOT / "docs" / "results").glob("*.md")):
        blocks = r"<!-- (\w+): begin -->.*?<!-- \1: end -->"
        text = re.sub(blocks, "", page.read_text("utf-8"), flags=re.DOTALL)
        found += [f"{page.relative_to(ROOT)}: {word}" for word in STUMBLING.findall(text)]
    assert not found, "\n".join(found)


#: Titles of pages that are not in the repository.
ABSENT_PAGES = re.compile(r"\b(?:DESIGN|PROTECTION|ALGORITHMS|LAYOUT|MODELS)\b")


def test_code_avoids_them_too_and_refers_to_pages_that_exist() -> None:
    found = []
    for path in tracked(".py", ".html", ".js"):
        if path.is_relative_to(ROOT / "client_sdk") or path.is_relative_to(ROOT / "service"):
            text = path.read_text("utf-8")
            words = STUMBLING.findall(text) + ABSENT_PAGES.findall(text)
            found += [f"{path.relative_to(ROOT)}: {word}" for word in words]
    assert not found, "\n".join(found)


def test_a_long_function_gives_its_reason() -> None:
    """Over 60 lines without the docstring, or over eight parameters without self."""
    bare = []
    for path in tracked(".py"):
        if not (path.is_relative_to(ROOT / "client_sdk") or path.is_relative_to(ROOT / "service")):
            continue
        lines = path.read_text("utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            n_parameters = len([each for each in named if each.arg not in ("self", "cls")])
            documented = ast.get_docstring(node) is not None
            first = node.body[1 if documented and len(node.body) > 1 else 0]
            if (node.end_lineno or 0) - first.lineno < 60 and n_parameters <= 8:
                continue
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            near = lines[max(0, start - 4) : first.lineno]
            if not any(line.strip().startswith("#") for line in near):
                bare.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not bare, "\n".join(bare)


def test_a_bare_install_is_at_most_30_distributions() -> None:
    needed: set[str] = set()
    waiting = ["fedclust"]
    while waiting:
        name = waiting.pop()
        if canonicalize_name(name) in needed:
            continue
        needed.add(canonicalize_name(name))
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    assert len(needed) <= 30, sorted(needed)


def test_a_sites_code_has_at_most_six_lines() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.S) if "Site(" in each]
    assert len([line for line in code.splitlines() if line.strip()]) <= 6


def test_the_readme_is_one_page_with_two_commands() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 70
    (commands,) = re.findall(r"```sh\n(.*?)```", readme, re.S)
    assert re.findall(r"^make \w+", commands, re.M) == ["make demo", "make test"]


def test_declared_versions_hold_here() -> None:
    """The ranges of pyproject.toml admit what the tests run with.

    Data of examples is not here, and Flower has an environment of its own.
    """
    core, dual = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        for folder in (".", "client_sdk/fedclust_dual")
    )
    extras, absent = core["optional-dependencies"].items(), ("examples", "flower")
    used = (line for name, extra in extras if name not in absent for line in extra)
    for line in [*core["dependencies"], *dual["dependencies"], *used]:
        requirement = Requirement(line)
        installed = importlib.metadata.version(requirement.name)
        assert requirement.specifier.contains(installed), f"{line}: {installed} is installed"


def test_rendered_parts_of_the_documentation_are_current() -> None:
    for page in {page for page, _ in render.blocks()}:
        text = (ROOT / "docs" / page).read_text("utf-8")
        assert render.render(page, text) == text, f"{page}: run `make docs`"


def test_the_map_shows_which_package_imports_which() -> None:
    drawn = drawer.draw(drawer.imports()).svg + "\n"
    assert drawer.FIGURE.read_text("utf-8") == drawn, "run `make docs`"
    assert "docs/figures/map.svg" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_the_files_that_contributing_names_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    roots = "benchmarks|client_sdk|deploy|docs|openapi|service|tests"
    named = set(re.findall(rf"`((?:{roots})/[\w./]*)[`:]", page))
    assert len(named) > 20
    made_by_runs = "benchmarks/results/"
    assert [name for name in named - {made_by_runs} if not (ROOT / name).exists()] == []


def test_the_functions_that_contributing_names_are_in_their_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = re.findall(r"`(\w+)`\s+in\s+`([\w./]+\.py)`", page)
    assert len(named) >= 8
    for name, path in named:
        text = (ROOT / path).read_text("utf-8")
        assert re.search(rf"^\s*(?:def |class )?{name}\b", text, re.MULTILINE), f"{name}: {path}"


def test_the_menu_has_at_most_80_000_words() -> None:
    words = menu_words.count()
    assert sum(words.values()) <= 80_000
    # `dual` has a proof to explain.
    methods = {page: n for page, n in words.items() if page.startswith("methods/")}
    assert {page for page, n in methods.items() if n > 1500} <= {"methods/dual.md"}


def test_the_data_model_names_every_table_and_column() -> None:
    from fedclust_service.store.tables import metadata

    page = (ROOT / "docs" / "data_model.md").read_text("utf-8")
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", page, re.S | re.M))
    described = {name: set(re.findall(r"`(\w+)`", text)) for name, text in sections.items()}
    actual = {
        table.name: {column.name for column in table.columns} for table in metadata.tables.values()
    }
    assert described.keys() == actual.keys()
    for name, columns in actual.items():
        assert columns <= described[name], f"{name}: {sorted(columns - described[name])}"


def test_bench_without_a_name_runs_every_part() -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    listed = run(["make", "-n", "bench"], cwd=ROOT).stdout
    parts = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")} - {"report"}
    assert parts <= set(re.findall(r"\w+", listed))
