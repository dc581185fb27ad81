"""Sessions over Flower give the bytes of ``simulate``."""

import json
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from flwr.cli.config_utils import load_and_validate
from flwr.supercore.object_ref import load_app

from fedclust import SessionResult, simulate
from fedclust.definition import canonical, read_definition
from fedclust.flower import commands
from fedclust.flower.messages import pack
from fedclust.flower.server import FlowerSession
from fedclust.flower.simulation import simulation_app
from fedclust.numeric.random import server_rng
from fedclust.result.session_result import SessionResult as Saved
from fedclust.site import compute
from fedclust.site.ledger import Ledger
from fedclust.wire.codec import encode_model
from fedclust.wire.errors import UsageError
from in_process import FEATURES, OUTCOMES, SIZES, Federation, InProcessGrid, Node, context, define
from support.method_variants import TRIED

POLICY = {"max_rounds": 3}
KS = {"n_clusters": 4}
SWEEP = {"n_clusters": [2, 3, 4], "stability": 20}


def simulated(
    federation: Federation, method: str, features: list[dict[str, Any]], **session: Any
) -> SessionResult:
    files: Any = federation.files
    return simulate(method, files, features=features, seed=7, progress=False, **session)


def run(
    federation: Federation, method: str, features: list[dict[str, Any]], **session: Any
) -> SessionResult:
    definition = define(SIZES, algorithm=method, features=features, **session)
    federation.approve(definition)
    return federation.run(definition)


@pytest.mark.parametrize(
    ("method", "options"), [(name, tried.variants[0]) for name, tried in TRIED.items()], ids=TRIED
)
def test_every_method_gives_the_bytes_of_simulate(
    federation: Federation, method: str, options: dict[str, Any]
) -> None:
    session = {"config": {"n_clusters": 4, **options}, "policy": POLICY}
    expected = simulated(federation, method, FEATURES, **session)
    found = run(federation, method, FEATURES, **session)

    assert encode_model(found.result) == encode_model(expected.result)
    for name in SIZES:
        own = federation.place / name / "results"
        labels = pd.read_csv(own / "heart.csv")["cluster"].fillna(-1)
        np.testing.assert_array_equal(labels, expected.labels_[name])
        assert np.array_equal(
            Saved.load(own / "heart.fedclust").cluster_centers_, expected.cluster_centers_
        )


def test_outcomes_with_the_sampler_of_simulate_give_its_bytes(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = FEATURES + OUTCOMES
    expected = simulated(federation, "lloyd", features, config=KS)
    counting, count = compute.count_persons, compute.count_outcomes

    def seeded(request: Any, persons: Any) -> Any:
        rng = server_rng(7, f"simulated noise {request.site} died")
        below = lambda n: int(rng.integers(n))  # noqa: E731
        monkeypatch.setattr(compute, "count_outcomes", partial(count, randbelow=below))
        return counting(request, persons)

    monkeypatch.setattr("fedclust.site.session_run.count_persons", seeded)
    found = run(federation, "lloyd", features, config=KS)
    assert encode_model(found.result) == encode_model(expected.result)


def test_virtual_sites_give_the_bytes_of_simulate_with_their_noise(federation: Federation) -> None:
    session: dict[str, Any] = {"config": {**SWEEP}, "outcomes_k": 3}
    features = FEATURES + OUTCOMES
    expected = simulated(federation, "lloyd", features, **session)
    # As Ray does for each of its processes.
    app = cloudpickle.loads(cloudpickle.dumps(simulation_app(federation.place)))
    nodes = {n + 1: Node(app, context(n + 1, {"partition-id": n})) for n in range(len(SIZES))}
    definition = define(SIZES, algorithm="lloyd", features=features, **session)
    grid = InProcessGrid(nodes)
    found = FlowerSession(grid, definition, 30.0, 60.0, federation.clock).run()
    assert encode_model(found.result) == encode_model(expected.result)

    # A virtual site that is asked again answers with the same bytes, and an overtaken message
    # changes nothing that it remembers: it gets the newest answer, which the server ignores.
    replies = nodes[1].replies
    first, *_, (asked, last) = (each for each in replies if each[0].task is not None)
    for again, answer in ((first[0], last.body), (asked, last.body)):
        grid.push_messages([Message(pack(again), 1, "query")])
        assert replies[-1][1].body == answer


def test_the_result_is_that_of_the_service_in_all_its_forms(federation: Federation) -> None:
    """Here with several K and their stability."""
    found = run(federation, "lloyd", FEATURES, config=SWEEP)
    expected = simulated(federation, "lloyd", FEATURES, config=SWEEP)
    assert encode_model(found.result) == encode_model(expected.result)
    path = federation.place / "heart"
    found.save(path.with_suffix(".fedclust"))
    found.save_report(path.with_suffix(".html"))
    found.save_ro_crate(path.with_suffix(".zip"))
    again = Saved.load(path.with_suffix(".fedclust"))
    assert encode_model(again.result) == encode_model(found.result)
    sent = {(each.round, each.site, each.sha256) for each in found.provenance.submissions}
    noted = {
        (line["round"], line["site"], line["sha256"])
        for name in SIZES
        for line in Ledger(federation.state(name)).read()
        if "event" not in line
    }
    assert sent == noted
    assert all(Ledger(federation.state(name)).verify() == [] for name in SIZES)


@pytest.mark.parametrize("virtual", [False, True], ids=["sites", "simulation"])
def test_the_command_writes_an_app_that_flower_takes(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, virtual: bool
) -> None:
    """Flower reads its configuration, and finds both of its apps."""
    given = {**json.loads(define(SIZES, algorithm="lloyd", features=FEATURES, config=KS))}
    source, folder = federation.place / "heart.json", federation.place / "app"
    source.write_text(json.dumps({**given, "title": 'Hearts "2026"'}))
    rows = federation.place if virtual else None
    folder.mkdir()
    with pytest.raises(UsageError, match="exists"):
        commands.new(folder=folder, session="heart", definition=source, simulate=rows)
    folder.rmdir()  # Nothing was written there.
    commands.new(folder=folder, session="heart", definition=source, simulate=rows)

    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert warnings == []
    monkeypatch.syspath_prepend(folder)
    definition = (folder / "session" / "definition.json").read_bytes()
    assert canonical(read_definition(definition)) == definition
    for component in ("clientapp", "serverapp"):
        name = config["tool"]["flwr"]["app"]["components"][component]
        assert load_app(name, RuntimeError, folder) is not None
