"""The product's own rules for what a page shows of a session or a study in JSON."""

import json
from typing import Any

from pydantic import TypeAdapter

from fedclust import definition
from fedclust.client.session_request import read_model, read_study
from fedclust.definition import DefinitionError, check_defaults, check_features
from fedclust.definition.study import check_study
from fedclust.schema.feature import Declared
from fedclust.schema.run_config import Policy
from fedclust.wire.models import SessionCreate


def check_definition(shown: Any) -> None:
    """Refuse a definition, or a part of one, that a coordinator would refuse.

    Other JSON passes.
    """
    if not isinstance(shown, dict):
        return
    # What a coordinator adds.
    shown = {
        name: value
        for name, value in shown.items()
        if name not in ("method_version", "engine_version")
    }
    if {"purpose", "features", "algorithm"} <= shown.keys():
        definition.check_definition(read_model(SessionCreate, {"name": "unnamed", **shown}))
    elif {"purpose", "features"} <= shown.keys():
        check_study(read_study({"name": "unnamed", **shown}))
    else:
        policy = Policy.model_validate_json(json.dumps(shown.get("policy", {})))
        errors = check_defaults(
            shown.get("algorithm", ""), shown.get("config", {}), policy, policy.min_sites
        )
        declared = TypeAdapter(tuple[Declared, ...])
        features = declared.validate_json(json.dumps(shown.get("features", ())))
        if errors := [*errors, *check_features(features)]:
            raise DefinitionError(errors)
