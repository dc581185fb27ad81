"""The exception tree: whole, as drawn, and built from the catalogue that the coordinator uses."""

import ast
import inspect
import pickle
import re
from pathlib import Path

import pytest

from fedclust import errors
from fedclust.definition import DefinitionError
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.wire.errors import CATALOGUE, FieldError, Problem, problem


def classes() -> dict[str, type[errors.FedclustError]]:
    found = vars(errors).values()
    return {
        kind.__name__: kind
        for kind in found
        if inspect.isclass(kind) and issubclass(kind, errors.FedclustError)
    }


def test_every_problem_type_has_its_class_and_no_class_lacks_a_type() -> None:
    assert errors.BY_SLUG.keys() == CATALOGUE.keys()


def test_a_problem_document_becomes_its_error() -> None:
    for slug in CATALOGUE:
        document = problem(
            slug, "do this", [FieldError(pointer="/a/b", rule="r", message="too big")], round=3
        )
        read = Problem.model_validate_json(document.model_dump_json())
        assert read == document
        error = errors.from_problem(read)
        assert type(error).slug == slug
        assert error.status == CATALOGUE[slug][0]
        assert error.detail == "do this"
        assert "a.b: too big" in str(error)


def test_a_foreign_problem_is_a_coordinator_error_still() -> None:
    foreign = Problem(type="about:blank", title="Teapot", status=418, detail="short and stout")
    assert type(errors.from_problem(foreign)) is errors.CoordinatorError


def test_the_tree_is_as_drawn() -> None:
    stack: list[str] = ["FedclustError"]
    drawn = {}
    for line in errors.__doc__.splitlines():
        entry = re.match(r"^    ((?:\|   |    )*)\+-- (\w+)(?=\s|$|,)(.*)", line)
        if entry and "," not in entry[2] + entry[3][:1]:
            depth = len(entry[1]) // 4 + 1
            drawn[entry[2]] = stack[depth - 1]
            stack[depth:] = [entry[2]]
    actual = {
        name: kind.__mro__[1].__name__
        for name, kind in classes().items()
        if name != "FedclustError" and not getattr(kind, "slug", "")
    }
    assert drawn == actual


def test_a_line_is_named_as_one() -> None:
    error = errors.DataError("a.csv", "r", "wrong", column="age", row=7, unit="line")
    assert str(error) == "a.csv, line 7, column 'age': wrong"


@pytest.mark.parametrize(
    "error",
    [
        errors.DataError("rows.csv", "missing-column", "add it", column="age", row=3, unit="line"),
        errors.DisclosureError("smallest-count", "a count is below 5"),
        errors.ConsentNeeded("say yes", ("exact_rows",)),
        errors.NotFound(problem("not-found", "look at the name")),
        DefinitionError([FieldError(pointer="/name", rule="r", message="too long")]),
        RuleViolation("shape", "rows must have 3 columns", "/X"),
        MethodFailure("no_anchors", "take fewer clusters"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_from_a_worker_process_as_it_was(error: Exception) -> None:
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


#: Options of a command whose name in Python is another.
_IN_PYTHON = {"--person-column": "person", "--sentinel": "sentinels"}


@pytest.mark.parametrize("package", ["data", "site", "protection"])
def test_a_message_that_names_an_option_names_it_in_python_too(package: str) -> None:
    found, lacking = 0, []
    for path in sorted((Path(errors.__file__).parents[1] / package).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            body = node.body[1:] if ast.get_docstring(node) else node.body
            said = "\n".join(map(ast.unparse, body))
            # What follows the name of a program is a whole command.
            options = re.sub(r"(fedclust|pip install) [^;:)]*", "", said)
            for option in re.findall(r"--[a-z][a-z-]+", options):
                found += 1
                name = _IN_PYTHON.get(option, option[2:].replace("-", "_"))
                if not re.search(rf"\b{name}(=| \({option})[^=]", said):
                    lacking.append(f"{path.name}, {node.name}: {option}")
    assert lacking == []
    assert found
