"""The version of the rounds that all methods share rises when their messages or numbers change."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust import rounds
from fedclust.rounds.stages import STAGES, TaskCommon
from fedclust.rounds.sweep import SweepPayload, SweepTask
from fedclust.wire import codec
from support.fake_coordinator import FakeCoordinator

#: What the present version sends. A change needs another version, and its line here.
VERSION = 10
SCHEMAS = "3249b37bcc628ba3cb0fd1db3a35c1e8b53ea8b3cde7bbb7d46388bf84703edb"
#: By session, phase and field, the numbers that one site sends, each times its place, added up.
NUMBERS = json.loads(Path(__file__).with_name("shared_rounds.json").read_text("utf-8"))
RAISE = "raise the engine version: VERSION in client_sdk/fedclust/rounds/plan.py, and here"
FEATURES = ({"name": "x", "lower": -50, "upper": 50}, {"name": "y", "lower": -50, "upper": 50})
PHASES = tuple(phase for stage in STAGES for phase in stage.own_phases)


def without_texts(schema: Any) -> Any:
    """Return a schema without what people read."""
    if isinstance(schema, dict):
        texts = ("title", "description")
        return {
            name: without_texts(part)
            for name, part in schema.items()
            if not (name in texts and isinstance(part, str))
        }
    return [without_texts(part) for part in schema] if isinstance(schema, list) else schema


def test_the_version_rises_with_a_shared_task_or_payload() -> None:
    models = [TaskCommon, SweepTask, SweepPayload]
    for phase in PHASES:
        models += [each for each in (phase.task, phase.site_part, phase.payload) if each]
    schemas = {each.__name__: without_texts(each.model_json_schema()) for each in models}
    found = hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()
    assert (rounds.VERSION, found) == (VERSION, SCHEMAS), f"{RAISE}; SCHEMAS is now {found}"


def numbers(tree: Any, name: str = "") -> dict[str, float]:
    """Return by field the sum of all numbers, each times its place in the field."""
    if isinstance(tree, dict):
        found: dict[str, float] = {}
        for key, part in tree.items():
            found |= numbers(part, f"{name}.{key}" if name else key)
        return found
    if isinstance(tree, tuple) and any(isinstance(each, dict) for each in tree):
        return numbers({str(place): each for place, each in enumerate(tree)}, name)
    if tree is None:
        return {}
    flat = np.ravel(np.asarray(tree, dtype=np.float64))
    return {name: float(flat @ np.arange(1, len(flat) + 1))}


@pytest.mark.parametrize(("case", "options"), [("plain", {}), ("evidence", {"stability": 20})])
def test_the_version_rises_with_the_arithmetic(
    tmp_path: Path, case: str, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)

    def rows() -> Any:
        group = rng.integers(0, 2, 60)
        return rng.normal(size=(60, 2)) + 20 * group[:, None]

    config = {"n_clusters": 2, **options}
    fake = FakeCoordinator({"alpha": rows(), "beta": rows()}, features=FEATURES, config=config)
    fake.site(tmp_path).participate("heart", rows(), consent=True)
    shared = {phase.name for phase in PHASES}
    sent = [codec.decode(body) for _, body in fake.puts]
    found = {each["phase"]: numbers(each["payload"]) for each in sent if each["phase"] in shared}
    assert found.keys() == NUMBERS[case].keys(), RAISE
    for phase, fields in found.items():
        assert fields == pytest.approx(NUMBERS[case][phase], rel=1e-6, abs=1e-9), RAISE
