"""``openapi.json`` is what the program says; the examples fit it, and a fresh run gives them."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest
from jsonschema import Draft202012Validator, validators

import derived_schemas
from description import openapi_text
from fedclust import rounds
from fedclust.methods.registry import METHODS
from fedclust.rounds import outcomes, resampling
from fedclust.schema.model import Model
from fedclust.wire import codec
from fedclust.wire.errors import CATALOGUE, PREFIX, Problem
from fedclust.wire.submissions import BINARY, JSON, read_submission, read_submission_head
from fedclust_service.http.routes import api_routes
from method_bodies import record_methods
from operation_bodies import record_operations
from recorded import recorded_bodies

ROOT = Path(__file__).resolve().parents[2] / "docs" / "openapi"
EXAMPLES = ROOT / "examples"
DOCUMENT: dict[str, Any] = json.loads((ROOT / "openapi.json").read_text("utf-8"))
#: Phases with examples. Comparisons with other models and counts of outcomes are the same for every
#: method: lloyd has them.
PHASES = [
    (name, phase.name)
    for name, method in METHODS.items()
    for phase in rounds.all_phases(method)
    if name == "lloyd" or phase not in (resampling.PHASE, outcomes.PHASE)
]

PARTS = {
    (method["name"], phase["name"]): {
        key: value["$ref"].split("/")[-1] for key, value in phase.items() if isinstance(value, dict)
    }
    for method in DOCUMENT["x-fedclust-methods"]
    for phase in method["phases"]
}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


#: JSON Schema takes 1.0 for an integer.
_Validator = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


def faults(value: Any, schema: dict[str, Any]) -> list[str]:
    """Return where a value does not fit a schema of the document."""
    whole = {**schema, "components": DOCUMENT["components"]}
    return [f"{each.json_path}: {each.message}" for each in _Validator(whole).iter_errors(value)]


def resolve(reference: str) -> dict[str, Any]:
    """Return what a reference of the document points to; KeyError where there is nothing."""
    found: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def fits(value: Any, schema: str) -> None:
    found = faults(value, {"$ref": f"#/components/schemas/{schema}"})
    assert not found, found


# --- the description ------------------------------------------------------------------------------


def test_the_committed_description_is_current() -> None:
    current = openapi_text()
    # Names what differs, not all lines.
    alike(json.loads(current), DOCUMENT, "openapi.json")
    same = current == (ROOT / "openapi.json").read_text("utf-8")
    assert same, "run `make openapi`"


def test_every_route_is_described() -> None:
    routes = {(route.path, method) for route in api_routes() for method in route.methods or ()}
    assert {(path, method) for path, method, _ in operations()} == routes
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(ids)) == len(ids)
    for _, method, operation in operations():
        assert operation["summary"]
        assert operation["description"]
        assert operation["tags"]
        assert set(operation["tags"]) <= {tag["name"] for tag in DOCUMENT["tags"]}
        assert any(status.startswith("2") for status in operation["responses"]), operation
        default = operation["responses"]["default"]["content"]
        assert "application/problem+json" in default
        if method in {"POST", "PUT", "PATCH"} and operation["operationId"] not in {
            "start_session",
            "retry_session",
            "cancel_session",
            "close_round",
        }:
            assert operation["requestBody"]["content"][JSON]["schema"]


def test_all_but_health_need_the_token() -> None:
    assert DOCUMENT["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, _, operation in operations():
        needed = {"/healthz": [], "/readyz": [], "/metrics": [{"token": []}, {}]}
        assert operation["security"] == needed.get(path, [{"token": []}]), path
        assert ("401" in operation["responses"]) == bool(operation["security"])


def test_references_lead_somewhere_and_schemas_are_used() -> None:
    found = set(references(DOCUMENT))
    for reference in found:
        assert resolve(reference)
    unused = DOCUMENT["components"]["schemas"].keys() - {name.split("/")[-1] for name in found}
    assert not unused
    assert "HTTPValidationError" not in DOCUMENT["components"]["schemas"]


def test_every_problem_type_is_listed() -> None:
    said = DOCUMENT["components"]["schemas"]["Problem"]["description"]
    for slug, (status, title) in CATALOGUE.items():
        assert f"`{PREFIX}{slug}` ({status}): {title}." in said


def test_every_phase_has_its_task_and_its_submission() -> None:
    every = {(n, phase.name) for n, m in METHODS.items() for phase in rounds.all_phases(m)}
    assert set(PARTS) == every
    schemas, names = DOCUMENT["components"]["schemas"], {phase for _, phase in every}
    for choice in ("TaskDocument", "Submission"):
        assert schemas[choice]["discriminator"]["propertyName"] == "phase"
        assert schemas[choice]["discriminator"]["mapping"].keys() == names
    algorithms = schemas["SessionCreate"]["discriminator"]
    assert algorithms["propertyName"] == "algorithm"
    assert algorithms["mapping"].keys() == METHODS.keys()


# --- what generators of clients need --------------------------------------------------------------


def within(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and all that it is made of, references not followed."""
    yield schema
    parts = [*schema.get("properties", {}).values(), *schema.get("prefixItems", ())]
    parts += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    parts += [part for key in ("allOf", "anyOf", "oneOf") for part in schema.get(key, ())]
    for part in parts:
        if isinstance(part, dict):
            yield from within(part)


def of_routes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema that is written at a route."""
    for name, item in value.items() if isinstance(value, dict) else ():
        if name == "schema":
            yield from within(item)
        elif name != "examples":
            yield from of_routes(item)
    for item in value if isinstance(value, list) else ():
        yield from of_routes(item)


def test_it_is_valid_openapi() -> None:
    openapi_spec_validator.validate(DOCUMENT)


def test_schemas_have_the_names_that_generated_clients_get() -> None:
    inner = list(of_routes(DOCUMENT["paths"]))
    assert len(inner) > 500
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema["title"] == name
        assert re.fullmatch("[A-Z][A-Za-z0-9]*", name)
        # Generated code calls an object so while it puts it together.
        assert re.sub("(?<!^)(?=[A-Z])", "_", name).lower() not in schema.get("properties", {})
        inner += list(within(schema))[1:]
    for part in inner:
        assert "title" not in part, part
        assert "properties" not in part, f"an object without a name: {part}"
        assert not {"const", "enum"} & part.keys() or "type" in part, part


def test_choices_of_objects_say_which_one_it_is() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for part in within(schema):
            assert "allOf" not in part, name
            if any("$ref" in choice for choice in part.get("oneOf", ())):
                named = part["discriminator"]["mapping"]
                assert sorted(named.values()) == sorted(each["$ref"] for each in part["oneOf"])
                for value, reference in named.items():
                    key = part["discriminator"]["propertyName"]
                    variant = resolve(reference)
                    assert variant["properties"][key] == {"const": value, "type": "string"}
                    assert key in variant["required"]
                    assert variant["additionalProperties"] is False


def test_two_models_of_one_title_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Model, title="LloydConfig"):
        """A model whose title is taken."""

    derived = derived_schemas.derived()
    monkeypatch.setattr(derived_schemas, "derived", lambda: [*derived, Other])
    with pytest.raises(ValueError, match="LloydConfig"):
        openapi_text()


def test_every_body_and_every_problem_has_an_example_that_fits() -> None:
    for path, method, operation in operations():
        name = operation["operationId"]
        answers = operation["responses"]
        contents = [
            content[JSON]
            for said in (operation.get("requestBody", {}), *answers.values())
            if JSON in (content := said.get("content", {}))
        ]
        shown = [content for content in contents if "examples" in content]
        # One of the success statuses that have the same schema is enough.
        assert len(shown) >= min(1, len(contents)) + ("requestBody" in operation), name
        for content in shown:
            for example in content["examples"].values():
                found = faults(example["value"], content["schema"])
                assert not found, f"{name}: {found}"
        for status, said in answers.items():
            if status[0] not in "45":
                continue
            examples = said["content"]["application/problem+json"]["examples"]
            for reference in examples.values():
                value = resolve(reference["$ref"])["value"]
                assert value["status"] == int(status), f"{name} {status}"
                assert Problem.model_validate(value).slug in CATALOGUE
                fits(value, "Problem")
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] != "path" or "example" in parameter, f"{method} {path}"
            if "example" in parameter:
                assert not faults(parameter["example"], parameter["schema"])


def test_statuses_that_any_request_may_get_are_named_everywhere() -> None:
    for _, _, operation in operations():
        assert {"400", "429", "431", "500", "503"} <= operation["responses"].keys()
        of_bodies = {"408", "413", "415"} & operation["responses"].keys()
        assert of_bodies == ({"408", "413", "415"} if "requestBody" in operation else set())
        shown = {status for status in operation["responses"] if status[0] == "2"}
        recorded_ones = recorded_bodies().get(operation["operationId"], {}).get("responses", {})
        assert recorded_ones.keys() <= shown
    # A site that was excluded sees the session, but not its result.
    assert "403" in DOCUMENT["paths"]["/v1/sessions/{session}/result"]["get"]["responses"]


def test_the_examples_are_one_story(tmp_path: Path) -> None:
    """Recorded anew they are the same, to the last bits of numbers and the hashes over them."""
    alike(record_operations(tmp_path), recorded_bodies(), "story")


# --- the examples ---------------------------------------------------------------------------------


def read(name: str) -> Any:
    return json.loads((EXAMPLES / name).read_text("utf-8"))


@pytest.mark.parametrize(("method", "phase"), PHASES)
def test_examples_of_a_phase_fit_their_schemas_and_each_other(method: str, phase: str) -> None:
    """That a coordinator sends and takes them, a fresh run shows."""
    folder, parts = f"{method}/{phase}", PARTS[method, phase]
    task, receipt, problem = (read(f"{folder}/{n}.json") for n in ("task", "receipt", "problem"))
    fits(task, "TaskResponse")
    fits(task["task"]["common"]["parameters"], parts["parameters"])
    site = task["task"]["site"]
    assert (site is None) == ("site" not in parts)
    if site is not None:
        fits(site, parts["site"])

    body = (EXAMPLES / folder / "submission.json").read_bytes()
    binary = (EXAMPLES / folder / "submission.msgpack").read_bytes()
    fits(json.loads(body), "Submission")
    fits(json.loads(body)["payload"], parts["payload"])
    head = read_submission_head(body, JSON)
    assert head == read_submission_head(binary, BINARY)
    assert (head.phase, head.task_digest) == (phase, task["task"]["digest"])
    payload, same = (
        read_submission(rounds.phase(METHODS[method], phase), sent, media)[1]
        for sent, media in ((body, JSON), (binary, BINARY))
    )
    assert codec.encode_model(payload) == codec.encode_model(same)

    fits(receipt, "SubmissionReceipt")
    assert (receipt["sha256"], receipt["size"]) == (codec.sha256(body), len(body))
    fits(problem, "Problem")
    assert problem["errors"][0]["pointer"].startswith("/payload/")


@pytest.mark.parametrize("method", METHODS)
def test_examples_of_a_session_fit_their_schemas(method: str) -> None:
    kinds = {"session": "SessionCreate", "result": "ResultDocument"}
    kinds |= {"participation": "Participation"} if method == "lloyd" else {}
    for name, kind in kinds.items():
        fits(read(f"{method}/{name}.json"), kind)
    fits(read(f"{method}/result.json")["result"], "Result")


def test_a_fresh_run_gives_the_examples(tmp_path: Path) -> None:
    """To the last bits, which differ between numerical platforms, and the hashes over them."""
    made = record_methods(tmp_path)
    committed = {
        path.relative_to(EXAMPLES).as_posix(): path.read_bytes()
        for path in EXAMPLES.rglob("*")
        if path.is_file()
    }
    assert made.keys() == committed.keys(), "run `make openapi`"
    for name in made:
        if name.endswith(".json"):
            alike(json.loads(made[name]), json.loads(committed[name]), name)


def alike(one: Any, two: Any, at: str) -> None:
    assert type(one) is type(two), at
    if isinstance(one, dict):
        assert one.keys() == two.keys(), at
        for key in one:
            if key != "size":  # of a body whose numbers may have more digits
                alike(one[key], two[key], f"{at}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(two), at
        for index, pair in enumerate(zip(one, two, strict=True)):
            alike(*pair, f"{at}/{index}")
    elif isinstance(one, float):
        assert math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-9), at
    elif not (isinstance(one, str) and re.fullmatch("[0-9a-f]{64}", one)):
        assert one == two, at


def test_the_example_of_a_site_works_after_the_tutorial() -> None:
    """Registering a name again with another title is 409."""
    tutorial = (Path(__file__).parents[2] / "docs/tutorials/ten-minutes.md").read_text("utf-8")
    example = recorded_bodies()["create_site"]["request"]["name"]
    assert "fedclust site add north" in tutorial
    assert f"site add {example}" not in tutorial
