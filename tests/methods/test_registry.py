"""Methods of other distributions: found, checked, and kept apart from those that work."""

import ast
from importlib.metadata import EntryPoint, distributions
from itertools import chain
from pathlib import Path

import pytest

from fedclust.definition import DefinitionError, freeze, plan_of
from fedclust.local.estimators import FederatedKMeans
from fedclust.local.simulate import simulate
from fedclust.methods import lloyd
from fedclust.methods.registry import GROUP, METHODS, MethodRegistry
from support.definitions import session_request
from support.method_variants import TRIED
from support.plugins import install

ROOT = Path(__file__).parents[2]
RENAMED = """\
from dataclasses import replace

from fedclust.methods import lloyd

METHOD = replace(lloyd.METHOD, name={name!r})
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def registry(place: Path) -> MethodRegistry:
    built_in = [EntryPoint("lloyd", "fedclust.methods.lloyd:METHOD", GROUP)]
    found = (each.entry_points.select(group=GROUP) for each in distributions(path=[str(place)]))
    return MethodRegistry(built_in, lambda: chain.from_iterable(found))


def test_methods_of_this_package_come_first_and_without_a_look_at_others(place: Path) -> None:
    def no_look() -> list[object]:
        raise AssertionError("the environment was searched")

    built_in = [EntryPoint("lloyd", "fedclust.methods.lloyd:METHOD", GROUP)]
    assert MethodRegistry(built_in, no_look)["lloyd"] is lloyd.METHOD  # type: ignore[arg-type]
    code = RENAMED.format(name="lloyd")
    install(place, "other-lloyd", {"lloyd": "other_lloyd:METHOD"}, {"other_lloyd.py": code}, "2.1")
    methods = registry(place)
    assert dict(methods) == {"lloyd": lloyd.METHOD}
    (problem,) = methods.problems()
    assert problem.startswith("fedclust and the distribution other-lloyd 2.1 both provide a")
    assert problem.endswith("pip uninstall other-lloyd")


@pytest.mark.parametrize(
    ("method", "value", "code", "said"),
    [
        ("late", "broken_one:METHOD", "import not_installed", "No module named 'not_installed'"),
        ("late", "broken_two:METHOD", "raise SystemError('no')", "SystemError: no"),
        ("late", "broken_three:METHOD", "", "has no attribute 'METHOD'"),
        ("late", "broken_four:METHOD", "METHOD = 3", "needs a fedclust.schema.method.Method"),
        ("late", "broken_five:METHOD", RENAMED.format(name="early"), "its method 'early'"),
        ("late", "not_there:METHOD", "", "No module named 'not_there'"),
    ],
)
def test_a_broken_distribution_is_named_and_takes_no_other_method_down(
    place: Path, method: str, value: str, code: str, said: str
) -> None:
    name = value.partition(":")[0].replace("not_there", "empty")
    install(place, "late-clusters", {method: value}, {f"{name}.py": code})
    good = RENAMED.format(name="good")
    install(place, "good-clusters", {"good": "good_clusters:METHOD"}, {"good_clusters.py": good})
    methods = registry(place)
    assert list(methods) == ["lloyd", "good"]
    assert method not in methods
    problem = methods.problem(method)
    assert problem.startswith(f"the method {method!r} of the distribution late-clusters 1 cannot")
    assert said in problem
    assert "pip install --upgrade late-clusters" in problem
    assert methods.problems() == (problem,)
    assert methods.problem("good") is methods.problem("lloyd") is methods.problem("?") is None


def test_two_distributions_with_one_name_are_both_left_out(place: Path) -> None:
    code = RENAMED.format(name="twice")
    for name in ("one-half", "other-half"):
        module = name.replace("-", "_")
        install(place, name, {"twice": f"{module}:METHOD"}, {f"{module}.py": code})
    methods = registry(place)
    assert list(methods) == ["lloyd"]
    (problem,) = methods.problems()
    assert "one-half 1" in problem
    assert "other-half 1" in problem
    assert "neither is used. Uninstall one: pip uninstall" in problem


def test_a_definition_of_a_broken_method_says_which_distribution_to_mend(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(place, "torn-clusters", {"torn": "torn_clusters:METHOD"}, {"torn_clusters.py": "1/0"})
    monkeypatch.setattr(METHODS, "_plugins", None)
    monkeypatch.setattr(METHODS, "_problems", {})
    with pytest.raises(DefinitionError, match="torn-clusters 1 cannot be used: ZeroDivisionError"):
        simulate("torn", {"a": [[0.0]]}, config={"n_clusters": 1})
    with pytest.raises(DefinitionError, match="choose one of: dual, fkm"):
        simulate("unknown", {"a": [[0.0]]}, config={"n_clusters": 1})


def test_a_method_whose_distribution_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the coordinator and in a simulation, then at a site that is asked for it."""
    asked = {"algorithm": "dual", "config": {"n_clusters": 1}}
    request = session_request({"name": "x", "lower": 0.0, "upper": 1.0}, **asked)
    definition = freeze(request, 0, simulated=True)
    monkeypatch.setattr(METHODS, "_plugins", {})
    monkeypatch.delitem(METHODS._methods, "dual")
    assert METHODS.problems() == ()
    for refused in (lambda: freeze(request, 0, simulated=True), lambda: plan_of(definition)):
        with pytest.raises(DefinitionError, match="pip install fedclust-dual"):
            refused()
    with pytest.raises(ValueError, match="pip install fedclust-dual"):
        FederatedKMeans(1, method="dual").fit([[0.0]] * 5, sites=["a"] * 5)


def test_every_method_is_tried() -> None:
    """A method without a line in `support.method_variants` would miss the tests of all methods."""
    assert set(METHODS) <= set(TRIED)


_HELP = "service/fedclust_service/http/help/"
METHOD_FOLDERS = ("client_sdk/fedclust/methods/", "client_sdk/fedclust_dual/")
#: Names that scikit-learn and scipy give to their own algorithms.
FOREIGN = {
    "client_sdk/fedclust/numeric/weighted_kmeans.py": {"lloyd"},
    "client_sdk/fedclust/numeric/microaggregation.py": {"ward"},
}


def test_no_module_but_the_registry_names_a_method() -> None:
    """A text that is a method's name would be a rule for that method outside of it."""
    found = {}
    for path in [*ROOT.glob("client_sdk/**/*.py"), *ROOT.glob("service/**/*.py")]:
        name = path.relative_to(ROOT).as_posix()
        # The built documentation offers an example to download.
        if name.startswith((*METHOD_FOLDERS, _HELP)):
            continue
        texts = {
            node.value
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if named := (texts & set(METHODS)) - FOREIGN.get(name, set()):
            found[name] = named
    assert found == {}
