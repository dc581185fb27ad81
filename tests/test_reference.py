"""Everything that people name has its place in the pages: docs/reference and the methods' pages.

Most of it is rendered, and `test_repository` compares the pages with what the code gives. Here the
names come from the code in another way, so that a renderer cannot leave one out.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from numpydoc.docscrape import FunctionDoc
from pydantic import BaseModel

import fedclust
import fedclust_service.cli
from fedclust import errors
from fedclust.cli.main import app
from fedclust.cli.options import EXIT_CODES, EXIT_MEANINGS
from fedclust.definition.study import StudyCreate, StudyDefaults
from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust.rounds import all_phases
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.run_config import Policy
from fedclust.site.settings import AgentSettings, SiteSettings
from fedclust.wire.errors import CATALOGUE
from fedclust.wire.models import SessionCreate
from fedclust_service.domain.notification import NotificationKind
from fedclust_service.exit_codes import Exit
from fedclust_service.settings import CLIENT_VARIABLES, PREFIX, Settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SERVICE, SDK = ROOT / "service" / "fedclust_service", ROOT / "client_sdk" / "fedclust"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def require(name: str, wanted: Iterable[str], kind: str) -> None:
    """Fail with what lacks its place on a page."""
    text = page(name)
    missing = [each for each in wanted if each not in text]
    assert not missing, f"docs/{name} lacks {kind}: {', '.join(missing)}; run `make docs`"


# --- commands -------------------------------------------------------------------------------------


def leaves(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield path.strip(), command
    for name, each in inner.items():
        yield from leaves(each, f"{path} {name}")


def heads(section: str, path: str) -> bool:
    """Whether a section is that of a command; those of analysts are in those of sites."""
    return section.startswith(f"{path}\n") or f"\nLikewise `fedclust {path}`." in section


@pytest.mark.parametrize(
    ("name", "typer_app"), [("cli.md", app), ("reference/service-cli.md", fedclust_service.cli.app)]
)
def test_every_command_has_its_section_with_every_option(name: str, typer_app: typer.Typer) -> None:
    text = page(name) + page("reference/settings.md")
    shared, *sections = text.split("\n### ")
    for path, command in leaves(typer.main.get_command(typer_app)):
        found = next((each for each in sections if heads(each, path)), None)
        assert found, f"docs/{name} has no section for the command {path}: run `make docs`"
        for each in command.params:
            optional = each.param_type_name == "option"
            option = each.opts[0] if optional else each.name.upper().replace("_", "-")
            described = [found, shared, page("reference/settings.md")]
            assert any(option in part for part in described), f"docs/{name}: {path} lacks {option}"


def test_texts_name_commands_that_exist() -> None:
    known = typer.main.get_command(fedclust_service.cli.app).commands
    for path in sorted([*SDK.rglob("*.py"), *SERVICE.rglob("*.py")]):
        text = re.sub(r'"\s+f?"', "", path.read_text("utf-8"))
        named = set(re.findall(r"\bfedclust-service ([a-z][a-z-]*)", text))
        assert named <= set(known), path


def test_every_exit_code_is_on_its_page() -> None:
    mine, theirs = page("reference/exit-codes.md").split("## `fedclust-service`")
    codes = {code for _, code in EXIT_CODES} | {0, 1, 130}
    assert codes == set(EXIT_MEANINGS), "EXIT_MEANINGS lacks a code or has one too many"
    for code in codes:
        line = re.search(rf"^\| {code} \| .*", mine, re.MULTILINE)
        assert line is not None, f"docs/reference/exit-codes.md: fedclust lacks {code}"
        kinds = {f"`{kind.__name__}`" for kind, own in EXIT_CODES if own == code}
        assert kinds == set(re.findall(r"`[A-Z][a-zA-Z]+`", line[0])), line[0]
    for code in Exit:
        assert f"\n| {int(code)} | " in theirs, f"fedclust-service lacks {code!r}"


# --- settings -------------------------------------------------------------------------------------


def test_every_setting_is_on_its_page() -> None:
    wanted = [f"| `{PREFIX}{name.upper()}` |" for name in Settings.model_fields]
    require("reference/settings.md", wanted, "settings of the coordinator")
    own = [name for name in SiteSettings.model_fields if name != "agent"]
    own += [f"agent.{name}" for name in AgentSettings.model_fields]
    require("reference/settings.md", [f"| `{name}` |" for name in own], "settings of a site")


def test_every_variable_that_the_sdk_reads_is_on_the_page() -> None:
    code = "".join(path.read_text("utf-8") for path in SDK.rglob("*.py"))
    # What the agent hands to a site's command begins with FEDCLUST_NOTIFY.
    named = {name for name in re.findall(r"FEDCLUST_[A-Z_]*[A-Z]", code) if "NOTIFY" not in name}
    assert named == CLIENT_VARIABLES
    wanted = [f"| `{name}` |" for name in {*named, "NO_COLOR"}]
    require("reference/settings.md", wanted, "variables")


# --- the interface of the coordinator -------------------------------------------------------------


def test_every_problem_type_says_when_it_occurs_and_what_to_do() -> None:
    text = page("reference/problems.md")
    for slug, (status, title) in CATALOGUE.items():
        found = re.search(rf"^## {slug}\n\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        assert found, f"docs/reference/problems.md lacks {slug}"
        section = " ".join(found[1].split())
        assert section.startswith(f"**{status}: {title}.** "), slug
        assert "**What to do.** " in section, slug
        assert f"`fedclust.wire.errors.{errors.BY_SLUG[slug].__name__}`" in section, slug
    assert re.findall(r"^## (.*)$", text, re.M) == list(CATALOGUE)


def test_the_protocol_leads_to_routes_and_problems() -> None:
    text = page("protocol.md")
    assert "`/docs`" in text
    assert "reference/problems.md" in text


def test_every_field_of_a_definition_is_on_its_page() -> None:
    text = page("reference/definition.md")
    parts: dict[str, type[BaseModel]] = {
        "session": SessionCreate,
        "feature": Feature,
        "outcome": Outcome,
        "policy": Policy,
        "study": StudyCreate,
        "study-defaults": StudyDefaults,
    }
    for part, model in parts.items():
        block = text.partition(f"<!-- {part}: begin -->")[2].partition(f"<!-- {part}: end -->")[0]
        for name in model.model_fields:
            assert f"| `{name}` |" in block, f"docs/reference/definition.md: {part} lacks {name}"


def test_every_action_of_the_audit_trail_is_on_its_page() -> None:
    """An action is written as it stands, as a constant, or with a part that is computed."""
    patterns = set()
    for path in SERVICE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _WRITERS:
                patterns |= {_pattern(each, constants) for each in node.args[1:3]} - {None}
    assert len(patterns) > 30
    known = [re.compile(pattern) for pattern in patterns if pattern is not None]
    actions = re.findall(r"^\| `(\w+\.\w+)` \|", page("reference/audit-actions.md"), re.M)
    for pattern in known:
        assert any(map(pattern.fullmatch, actions)), f"audit-actions.md lacks {pattern.pattern}"
    for action in actions:
        assert any(each.fullmatch(action) for each in known), f"nothing writes {action}"


#: What writes an entry: ``uow.audit(actor, action, ...)``, ``trail.record(co, name, action, ...)``.
_WRITERS = ("audit", "record")
_ACTION = re.compile(r"[a-z_]+\.[a-z_]+")


def _pattern(node: ast.expr, constants: dict[str, Any]) -> str | None:
    """Return the actions that an argument can be, as a regular expression; None for none."""
    if isinstance(node, ast.Name):
        node = ast.Constant(constants.get(node.id))
    if isinstance(node, ast.Constant):
        text = str(node.value)
        # The name of a transaction looks alike, and ends with what it does.
        return re.escape(text) if _ACTION.fullmatch(text) and text not in _TRANSACTIONS else None
    if isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else "" for each in node.values)
        text = "".join(re.escape(str(part)) if part else "[a-z_]+" for part in parts)
        return text if r"\." in text else None
    return None


_TRANSACTIONS = {"clock.record"}


def test_every_kind_of_notification_is_on_its_page() -> None:
    require("notifications.md", [f"| `{kind}` |" for kind in NotificationKind], "kinds")


def test_every_event_of_the_log_is_on_the_page_for_operators() -> None:
    written = r'\blog\.(?:debug|info|warning|error)\(\s*"([a-z_]+)"'
    code = "".join(path.read_text("utf-8") for path in SERVICE.rglob("*.py"))
    # A thread that survives its errors logs two.
    code = re.sub(r'survived\("(\w+)"', r'log.error("\1_error"log.error("\1_store_error"', code)
    names = [f"`{name}`" for name in set(re.findall(written, code))]
    require("details/monitoring.md", names, "log events")


# --- methods --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_all_that_concerns_it(name: str) -> None:
    assert f"methods/{name}" in page("index.md"), f"docs/index.md lacks methods/{name}"
    method, text = METHODS[name], page(f"methods/{name}.md")
    assert text.startswith(f"# {name}: ")
    references = " ".join(text.partition("\n## References\n")[2].split())
    assert references.startswith(method.citation)
    assert f'"algorithm": "{name}"' in text, f"{name}: no definition"
    assert f'simulate("{name}", ' in text, f"{name}: no example"
    shared = page("methods/common.md") + page("results/papers.md")
    blocks = re.findall(r"options: begin -->(.*?)<!-- [\w ]*options: end", text + shared, re.S)
    options = "".join(blocks)
    for model in variant_models(method.options):
        for field in model.model_fields:
            assert f"| `{field}` |" in options, f"docs/methods/{name}.md lacks the option {field}"
    left = text.partition("<!-- disclosures: begin -->")[2]
    left += shared + page("evidence.md")  # for the phases that are the same for every method
    for phase in all_phases(method):
        table = left.partition(f"**{phase.name}**")[2]
        for line in phase.discloses:
            assert f"| `{line.field}` |" in table, f"{name}, {phase.name} lacks {line.field}"


# --- Python ---------------------------------------------------------------------------------------


def public_classes() -> list[type]:
    found = [getattr(fedclust, name) for name in fedclust.__all__]
    return [each for each in found if inspect.isclass(each)]


def own_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that this project wrote."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        function = getattr(member, "__func__", getattr(member, "fget", member))
        module = getattr(function, "__module__", None) or ""
        if not name.startswith("_") and callable(function) and module.startswith("fedclust"):
            yield name, function


def test_every_public_name_is_on_a_page_and_has_a_docstring() -> None:
    folder = DOCS / "reference" / "api"
    pages = "\n".join(path.read_text("utf-8") for path in folder.glob("*.rst"))
    described = set(re.findall(r"^\.\. auto\w+:: (?:[\w.]+\.)?(\w+)(?:\(\))?$", pages, re.M))
    # A page has every error of the module `errors`.
    in_errors = {name for name in fedclust.__all__ if hasattr(fedclust.wire.errors, name)}
    missing = set(fedclust.__all__) - described - in_errors - {"__version__"}
    assert not missing, f"no page of docs/reference/api has {', '.join(sorted(missing))}"
    for name in fedclust.__all__:
        assert inspect.getdoc(getattr(fedclust, name)), f"fedclust.{name} has no docstring"
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.FedclustError):
            assert kind.__doc__, f"fedclust.wire.errors.{name} has no docstring"


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: str(kind.__name__))
def test_every_public_method_documents_its_parameters(kind: type) -> None:
    """In numpydoc's sections; what many methods of a class take, once in the class's notes."""
    shared = "\n".join(FunctionDoc(kind, doc=inspect.getdoc(kind) or "")["Notes"])
    for name, function in own_members(kind):
        text = inspect.getdoc(getattr(kind, name)) or ""
        assert text, f"{kind.__name__}.{name} has no docstring"
        if isinstance(inspect.getattr_static(kind, name), property):
            continue
        sections = FunctionDoc(function, doc=text)
        described = {each for part in sections["Parameters"] for each in part.name.split(", ")}
        described |= set(re.findall(r"``(\w+)``", shared))
        taken = set(inspect.signature(function).parameters) - {"self", "cls"}
        # `participate` names those that its `rows` stand for.
        lacking = taken - described - ({"rows"} if "person" in described else set())
        assert not lacking, f"{kind.__name__}.{name} does not document {', '.join(lacking)}"
        returned = inspect.signature(function).return_annotation
        says = sections["Returns"] or re.match(r"Return|Yield|Create|Add|Read", text)
        if returned not in (None, "None", inspect.Signature.empty, "Self"):
            assert says or kind is fedclust.Client, f"{kind.__name__}.{name}: what it returns?"


def test_the_main_names_have_an_example() -> None:
    main = ["Client", "FederatedKMeans", "FederatedSpectralClustering", "Site", "SessionResult"]
    for name in [*main, "simulate", "Feature", "Policy"]:
        text = inspect.getdoc(getattr(fedclust, name)) or ""
        assert ">>> " in text, f"fedclust.{name} has no example"
