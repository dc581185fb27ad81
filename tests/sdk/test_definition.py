"""A session's definition: what is refused, what is pinned, and what its hash covers."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from fedclust import rounds
from fedclust.definition import (
    DefinitionError,
    canonical,
    check_definition,
    freeze,
    plan_of,
    read_definition,
    request_hash,
)
from fedclust.schema.feature import Feature
from fedclust.wire.errors import FieldError
from fedclust.wire.models import SessionCreate
from support.definitions import session_request
from support.purpose import PURPOSE


def request(**changes: Any) -> SessionCreate:
    """A valid request with some fields replaced; ``policy_`` reaches into the policy."""
    policy = [name for name in changes if name.startswith("policy_")]
    given: dict[str, Any] = {
        "name": "heart-2026",
        "algorithm": "lloyd",
        "config": {"n_clusters": 4},
        "features": [{"name": "age", "lower": 0, "upper": 120}, {"name": "sex", "kind": "binary"}],
        "sites": ["budapest", "cleveland", "zurich"],
        "policy": {name.removeprefix("policy_"): changes.pop(name) for name in policy},
    }
    return session_request(**{**given, **changes})


def faults(definition: SessionCreate) -> list[FieldError]:
    with pytest.raises(DefinitionError) as caught:
        check_definition(definition)
    return caught.value.errors


def pointers(definition: SessionCreate) -> list[str]:
    return [error.pointer for error in faults(definition)]


def test_a_frozen_definition_pins_seed_version_and_defaults() -> None:
    definition = freeze(request(), seed=7)
    assert definition.seed == 7
    assert definition.method_version == plan_of(definition).method.version
    assert definition.engine_version == rounds.VERSION
    assert set(definition.config) == set(plan_of(definition).method.options.model_fields)
    assert freeze(request(seed=3), seed=7).seed == 3


def test_a_definition_without_a_study_does_not_name_one() -> None:
    assert "study" not in json.loads(canonical(freeze(request(), seed=7)))
    explicit = request(study=None)
    assert canonical(freeze(explicit, seed=7)) == canonical(freeze(request(), seed=7))


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({"config": {"n_clusters": 3}}, False),
        ({"config": {"n_clusters": [2, 3]}}, True),
        ({"config": {"n_clusters": 3, "stability": 20}}, True),
        (
            {
                "config": {"n_clusters": [2, 3]},
                "policy": {"dissimilarity": "gower", "scaling": "bounds"},
            },
            False,
        ),
    ],
)
def test_a_frozen_definition_says_whether_clusters_are_compared_with_one_cloud(
    changes: dict[str, Any], evidence: bool
) -> None:
    """As it takes effect, also where it was not asked for."""
    assert freeze(request(**changes), seed=7).config["evidence"] is evidence


def with_outcome(**fields: Any) -> SessionCreate:
    """A request that compares deaths between the clusters of two features."""
    outcome = {"name": "died", "kind": "binary", "role": "outcome", **fields}
    return request(features=[outcome, {"name": "age", "lower": 0, "upper": 120}])


def test_outcomes_are_consented_to_and_no_columns_of_the_method() -> None:
    definition = freeze(with_outcome(), seed=7)
    written = json.loads(canonical(definition))["features"]
    assert [each.get("role") for each in written] == ["outcome", None]
    assert read_definition(canonical(definition)) == definition
    plan = plan_of(definition)
    assert [column.name for column in plan.columns] == ["age"]
    assert [outcome.name for outcome in plan.outcomes] == ["died"]
    # Whoever consents consents to the points, also where the request leaves them out.
    assert written[0]["points"] == 10


@pytest.mark.parametrize("fields", [{"weight": 2}, {"transform": "log"}, {"lower": 0}])
def test_an_outcome_takes_no_fields_of_a_feature(fields: Any) -> None:
    with pytest.raises(ValidationError, match=f"features.0.outcome.{next(iter(fields))}"):
        with_outcome(**fields)


def test_outcomes_need_a_feature_to_cluster_by_and_no_bounds() -> None:
    outcome = {"name": "died", "role": "outcome", "kind": "binary"}
    assert pointers(request(features=[outcome])) == ["/features"]
    policy = request(policy_scaling="bounds").policy
    check_definition(with_outcome().model_copy(update={"policy": policy}))


def test_outcomes_that_share_a_column_read_it_alike() -> None:
    age = {"name": "age"}
    time = {"name": "t", "role": "outcome", "kind": "time", "edges": [1, 2, 3, 4], "event": "died"}
    died = {"name": "died", "role": "outcome", "kind": "binary"}
    check_definition(request(features=[age, died, time]))
    ward = {**died, "kind": "categorical", "levels": ["a", "b"]}
    assert pointers(request(features=[age, ward, time])) == ["/features/2/kind"]
    days = {"name": "died", "role": "outcome", "kind": "ordered", "edges": [1, 2]}
    assert pointers(request(features=[age, time, days])) == ["/features/2/kind"]


def test_only_a_simulation_needs_no_purpose() -> None:
    silent = request().model_copy(update={"purpose": ""})
    assert pointers(silent) == ["/purpose"]
    assert freeze(silent, seed=7, simulated=True).purpose == ""
    check_definition(request(sites=["a"], policy_min_sites=1), simulated=True)


@pytest.mark.parametrize(
    "change",
    [
        {"study": "hearts"},
        {"title": "Heart"},
        {"purpose": PURPOSE + "!"},
        {"contact": "Ada, ada@example.org"},
        {"approval": "2026-01"},
        {"expires": "2030-01-01T01:00:00+01:00"},
        {"seed": 2},
        {"config": {"n_clusters": 5}},
        {"policy_min_group_size": 6},
        {"start": "manual"},
    ],
)
def test_every_field_is_part_of_what_sites_consent_to(change: dict[str, Any]) -> None:
    changed = canonical(freeze(request(**change), seed=7))
    assert changed != canonical(freeze(request(), seed=7))
    assert canonical(read_definition(changed)) == changed
    if "expires" in change:
        assert b'"expires":"2030-01-01T00:00:00.000Z"' in changed


def test_the_request_hash_covers_what_was_sent_and_not_the_drawn_seed() -> None:
    assert request_hash(request()) == request_hash(request())
    assert request_hash(request()) != request_hash(request(seed=1))


def levels(*names: str, name: str = "a") -> dict[str, Any]:
    return {"name": name, "kind": "categorical", **({"levels": list(names)} if names else {})}


#: Two bounds whose logarithms are one number.
NARROW = {"name": "a", "lower": 1e300, "upper": 1.0000000000000002e300}


#: More than 10,000 columns.
MANY = [levels(*map(str, range(64)), name=f"f{i}") for i in range(157)]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"algorithm": "nonesuch"}, "/algorithm"),
        ({"config": {}}, "/config/n_clusters"),
        ({"config": {"n_clusters": 0}}, "/config/n_clusters"),
        ({"config": {"n_clusters": True}}, "/config/n_clusters"),
        ({"config": {"n_clusters": 3, "tolerance": 1}}, "/config"),
        ({"features": [{"name": "a"}, {"name": "a"}]}, "/features/1/name"),
        ({"features": [levels()]}, "/features/0/levels"),
        ({"features": [levels("x")]}, "/features/0/levels"),
        ({"features": [levels(*map(str, range(65)))]}, "/features/0/levels"),
        ({"features": [levels("x", "y", "x")]}, "/features/0/levels/2"),
        ({"features": [{**levels("x", "y"), "lower": 0}]}, "/features/0/lower"),
        ({"features": [{**levels("x", "y"), "upper": 1}]}, "/features/0/upper"),
        ({"features": [{**levels("x", "y"), "transform": "log"}]}, "/features/0/transform"),
        ({"features": [levels("x", "y"), {"name": "a=x"}]}, "/features/1/name"),
        ({"features": [levels("x=y", "z"), levels("y", "w", name="a=x")]}, "/features/1/name"),
        ({"features": MANY}, "/features"),
        ({"features": [{"name": "a", "levels": ["x", "y"]}]}, "/features/0/levels"),
        ({"features": [{"name": "a", "transform": "log"}]}, "/features/0/lower"),
        ({"features": [{"name": "a", "transform": "log", "lower": 0}]}, "/features/0/lower"),
        ({"features": [{"name": "a", "transform": "log1p", "lower": -1}]}, "/features/0/lower"),
        ({"features": [{**NARROW, "transform": "log"}]}, "/features/0/lower"),
        ({"features": [{"name": "a", "weight": 1e7}]}, "/features/0/weight"),
        ({"features": [{"name": "a", "weight": 1e-7}]}, "/features/0/weight"),
        ({"features": [{"name": "a", "lower": 1, "upper": 1}]}, "/features/0/lower"),
        ({"features": [{"name": "a", "kind": "binary", "upper": 2}]}, "/features/0/kind"),
        ({"features": [{"name": "a"}], "policy_scaling": "bounds"}, "/features/0"),
        ({"policy_missing": "mask"}, "/policy/missing"),
        ({"policy_min_group_size": 2}, "/policy/min_group_size"),
        ({"policy_min_sites": 1}, "/policy/min_sites"),
        ({"policy_min_sites": 2}, "/policy/min_sites"),
        ({"policy_min_sites": 4}, "/policy/min_sites"),
        ({"policy_quorum": 2}, "/policy/quorum"),
        ({"policy_quorum": 4}, "/policy/quorum"),
        ({"sites": ["a", "b", "a"]}, "/sites/2"),
        ({"config": {"n_clusters": 1, "start": "given"}}, "/config/centroids"),
    ],
)
def test_a_faulty_definition_names_the_field(changes: dict[str, Any], pointer: str) -> None:
    assert pointer in pointers(request(**changes))


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("fkm", {"variant": "paper", "candidates": 4}),
        ("kfed", {"server_lloyd": "one"}),
        ("spectral", {"gamma": 1.0}),
        ("spectral", {"alignment": "sign", "landmarks": 9}),
        ("spectral", {"alignment": "procrustes", "evaluate": True}),
    ],
)
def test_an_option_of_another_variant_is_refused_with_those_that_there_are(
    algorithm: str, options: dict[str, Any]
) -> None:
    (error,) = faults(request(algorithm=algorithm, config={"n_clusters": 2, **options}))
    assert error.pointer == "/config"
    said, known = error.message.split(" There are: ")
    assert said.startswith("unknown option of this variant ")
    frozen = freeze(request(algorithm=algorithm, config={"n_clusters": 2, **named(options)}), 0)
    assert set(known.split(", ")) == set(frozen.config)


def named(options: dict[str, Any]) -> dict[str, Any]:
    """Return the variant that options name, alone."""
    return {name: value for name, value in options.items() if name in ("variant", "alignment")}


@pytest.mark.parametrize(
    ("algorithm", "options", "pointer", "said"),
    [
        ("kfed", {"local_clusters": 0}, "/config/local_clusters", "1"),
        ("kfed", {"variant": "paper", "projection": "auto"}, "/config/projection", "on"),
        # The variant's name is an option's too.
        ("spectral", {"landmarks": 0}, "/config/landmarks", "1"),
        ("spectral", {"alignment": "mirror"}, "/config", "sign"),
        ("dual", {"residual": 0.1}, "/config/residual", "belongs to the paper's rules"),
        (
            *("dual", {"splits": 5, "update": "subgradient"}),
            *("/config/splits", "update quadratic_bundle"),
        ),
        ("dual", {"splits": 5, "symmetry": "cells"}, "/config/splits", "pairwise or none"),
        ("dual", {"splits": 1_001}, "/config/splits", "1000"),
        ("dual", {"splits": -1}, "/config/splits", "0"),
    ],
)
def test_a_faulty_option_is_named(
    algorithm: str, options: dict[str, Any], pointer: str, said: str
) -> None:
    (error,) = faults(request(algorithm=algorithm, config={"n_clusters": 2, **options}))
    assert error.pointer == pointer
    assert said in error.message


def test_dual_needs_the_bounds_of_every_feature() -> None:
    features = [{"name": "age", "lower": 0, "upper": 120}, {"name": "chol", "lower": 0}]
    (error,) = faults(request(algorithm="dual", features=features))
    assert error.pointer == "/config"
    assert "declare lower and upper of chol, wide enough" in error.message


@pytest.mark.parametrize("weight", [0, -1, float("nan")])
def test_a_weight_is_more_than_nothing(weight: float) -> None:
    with pytest.raises(ValidationError, match="weight"):
        Feature(name="a", weight=weight)


def test_every_fault_is_listed_at_once() -> None:
    faulty = request(
        policy_min_group_size=1, features=[{"name": "a", "weight": 2e6}], config={"n_clusters": 0}
    )
    found = pointers(faulty)
    assert found == ["/policy/min_group_size", "/features/0/weight", "/config/n_clusters"]
