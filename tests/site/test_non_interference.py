"""Two sites with different rows and the same table behave alike, to the byte.

Whatever is asked, and whoever asks, a site's behaviour tells nothing of its rows beyond its table.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust import errors, rounds
from fedclust.rounds import outcomes
from fedclust.schema.model import Memory
from fedclust.schema.task import Contribution, Count, Next, Points
from fedclust.site import cohorts
from fedclust.site.cohorts import CohortStore
from fedclust.site.compute import compute_answer, count_persons
from fedclust.site.consent import ConsentRequest
from fedclust.site.prepare import SiteRows
from fedclust.site.state import SiteState
from fedclust.wire import codec
from fedclust.wire.models import TaskDocument
from fedclust.wire.submissions import BINARY, read_submission
from fedclust_dual.messages import multiplier_digest
from support.driven import data_of, site_step
from support.fake_coordinator import EPOCH, FakeCoordinator
from support.method_variants import ALL, IDS, SWEEP_IDS, SWEEPS, TRIED
from support.same_table import (
    LEVELS,
    OUTCOMES,
    PERSON,
    P,
    SiteFile,
    changed_places,
    feature,
    later,
    of_records,
    released_by,
    rows_for,
    sites,
)

OTHERS = ("alpha", "beta", "gamma")
#: More with `make bench long_checks`, whose profile asks for five times as many.
_TIMES = settings.default.max_examples // 100
FEW = settings(max_examples=2 * _TIMES, suppress_health_check=list(HealthCheck))
MORE = settings(max_examples=12 * _TIMES, suppress_health_check=list(HealthCheck))
WAYS = ("places", "records", "later")


@dataclass
class World:
    """A site, and where it keeps its state and its journals."""

    site: SiteFile
    place: Path

    @contextmanager
    def here(self) -> Iterator[None]:
        """Use this site's state; what is drawn by chance is the same in every world."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDCLUST_STATE_DIR", str(self.place / "state"))
            patch.setattr(cohorts.secrets, "token_hex", lambda n: "ab" * n)
            yield


@contextmanager
def two_worlds(site: SiteFile, way: str, seed: int) -> Iterator[tuple[World, World]]:
    """Form the tables of a site and of another one, which have to be the same."""
    with tempfile.TemporaryDirectory() as directory:
        first = World(site, Path(directory) / "first")
        with first.here():
            table = site.form()
            secret = SiteState().secret()
            released = released_by(table, site, secret)
        second = World(site, Path(directory) / "second")
        match way:
            case "places":
                second.site = changed_places(site, seed)
            case "records":
                second.site = of_records(site, table, secret)
            case _:
                second.site = later(site, seed)
                shutil.copytree(first.place, second.place)
        with second.here():
            # Seldom a group changes with the places.
            assume(released == released_by(second.site.form(), site, secret))
        yield first, second


# --- tasks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), ALL + SWEEPS, ids=IDS + SWEEP_IDS)
@FEW
@given(sites(lacking=False), st.sampled_from(WAYS), st.integers(0, 2**32 - 1))
def test_answers_of_every_phase_depend_on_the_table_alone_real_record(
    method: str, options: dict[str, Any], site: SiteFile, way: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    definition: dict[str, Any] = {"algorithm": method, "config": {"n_clusters": 2, **options}}
    features = site.features()
    # Outcomes are counted after the closing evaluation.
    if options not in TRIED[method].own_only:
        features += OUTCOMES
        if isinstance(definition["config"]["n_clusters"], list):
            definition["outcomes_k"] = 2
    fake = coordinator(features, **definition)
    with two_worlds(site, way, seed) as worlds:
        me = [Answering.at(fake, world) for world in worlds]
        phases = set()
        for document in session(fake, me):
            phases.add(document.phase)
            for each in (crafted(document, rng) for _ in range(4)):
                here, there = (answering.outcome(each) for answering in me)
                assert seen(document, here) == seen(document, there)
            here, there = (answering.outcome(document, keep=True) for answering in me)
            assert seen(document, here) == seen(document, there)
            assert isinstance(here, bytes)
    missed = {each.name for each in rounds.possible_phases(fake.plan)} - phases
    # Where a method gives labels alone there are no centroids to be measured by.
    assert missed <= ({"evidence"} if options in TRIED[method].own_only else set())


def seen(document: TaskDocument, outcome: bytes | str) -> bytes | str | int:
    """Return what the coordinator sees of an answer; of counts with noise their size alone."""
    counts = document.phase == outcomes.NAME and isinstance(outcome, bytes)
    return len(outcome) if counts else outcome


@dataclass
class Answering:
    """A site in a session: what it computes from and remembers, and its last answer."""

    request: ConsentRequest
    data: Points
    count: Count
    memory: Memory = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def at(cls, fake: FakeCoordinator, world: World) -> Answering:
        with world.here():
            site = fake.site(world.place / "state")
            run = site._open("heart", SiteRows(world.site.frame(), PERSON))
        return cls(run.request, run.prepared.data, count_persons(run.request, run.prepared.counted))

    def outcome(self, document: TaskDocument, *, keep: bool = False) -> bytes | str:
        """Return what the site sends, or why it refuses; it goes on from there with ``keep``."""
        number = document.common["round"]
        try:
            found = compute_answer(
                self.request, self.data, number, document, self.memory, BINARY, self.count
            )
        except errors.FedclustError as error:
            return f"{type(error).__name__}: {error}"
        if keep:
            self.body, self.memory = found.body, found.memory
        return found.body


def session(fake: FakeCoordinator, me: list[Answering]) -> Iterator[TaskDocument]:
    """Yield every task of a session, and let the other sites answer it too."""
    others = {name: data_of(fake.plan, rows) for name, rows in fake.others.items()}
    memories: dict[str, Memory] = {name: {} for name in OTHERS}
    step: Any = rounds.start(fake.plan, fake.roster)
    number = 0
    while isinstance(step, Next):
        number += 1
        phase = rounds.phase(fake.plan, step.task.phase)
        yield asked(fake, number, step.task, "me")
        given_answers = [Contribution("me", read_submission(phase, me[0].body, BINARY)[1], P)]
        for name, points in others.items():
            document = asked(fake, number, step.task, name)
            payload, memories[name] = site_step(
                fake.plan,
                rounds.read_task(fake.plan, document.common, document.site),
                points,
                name,
                number,
                p=P,
                memory=memories[name],
            )
            given_answers.append(Contribution(name, payload, P))
        step = rounds.advance(fake.plan, step.state, given_answers, fake.roster)


def coordinator(features: list[dict[str, Any]], **definition: Any) -> FakeCoordinator:
    rows = {name: rows_for(features, 60, seed) for seed, name in enumerate(OTHERS)}
    definition = {"policy": {"max_rounds": 6}, **definition}
    return FakeCoordinator(rows, features=tuple(features), **definition)


def asked(fake: FakeCoordinator, number: int, task: Any, name: str) -> TaskDocument:
    """Return a task as it arrives at a site."""
    written = rounds.write_task(fake.plan, "heart", number, task, name)
    common, part = codec.decode(codec.encode(written))
    return _document(common, part)


def _document(common: Any, part: Any) -> TaskDocument:
    digest = codec.task_digest(common, part)
    return TaskDocument(phase=common["phase"], digest=digest, common=common, site=part)


def crafted(honest: TaskDocument, rng: np.random.Generator) -> TaskDocument:
    """Return a task of the same form with other numbers, most of them within what is consented."""
    common = {**honest.common, "parameters": _changed(honest.common["parameters"], rng)}
    part = None if honest.site is None else _changed(honest.site, rng)
    if part is not None and "multipliers" in part:
        part["digest"] = multiplier_digest(part["multipliers"])
    return _document(common, part)


def _changed(tree: Any, rng: np.random.Generator) -> Any:
    if isinstance(tree, dict):
        return {name: _changed(value, rng) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return tuple(_changed(value, rng) for value in tree)
    if isinstance(tree, np.ndarray):
        return _other_numbers(tree, rng)
    if type(tree) is int:
        return tree + int(rng.integers(0, 2))
    return tree


def _other_numbers(array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    if not array.size:
        return array
    if array.dtype.kind != "f":
        return rng.permutation(array)
    match rng.integers(0, 4):
        case 0:
            return array + rng.normal(size=array.shape)
        case 1:
            return array * rng.uniform(-2.0, 2.0)
        case 2:
            return np.repeat(array[:1], len(array), axis=0)
        case _:
            return rng.permutation(array) + 1e-9


# --- a site's part in a session -------------------------------------------------------------------


@st.composite
def definitions(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    """Draw a session that asks for some columns, well or badly."""
    asked_for = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    scaling = draw(st.sampled_from(("none", "standard", "bounds")))
    missing = draw(st.sampled_from(("drop", "impute", "mask")))
    policy = {"min_group_size": draw(st.sampled_from((3, 5, 8, 20, 60)))}
    features = [draw(_asked_as(name, bounds=scaling == "bounds")) for name in asked_for]
    outcomes = draw(st.sampled_from(((), OUTCOMES)))
    return {
        "algorithm": "overlap" if missing == "mask" else "lloyd",
        "config": {"n_clusters": 3},
        "features": [*features, *outcomes],
        "policy": {**policy, "max_rounds": 4, "scaling": scaling, "missing": missing},
    }


@st.composite
def _asked_as(draw: st.DrawFn, name: str, *, bounds: bool) -> dict[str, Any]:
    plain = feature(name)
    other: dict[str, Any] = draw(
        st.sampled_from(
            (
                {},
                {},
                {"weight": 3.0},
                {"kind": "numeric", "lower": 0.0, "upper": 60.0},
                {"kind": "numeric", "lower": 0.5, "upper": 1e5, "transform": "log"},
                {"kind": "numeric", "lower": 7e3, "upper": 8e3},
                {"kind": "binary"},
                {"kind": "categorical", "levels": LEVELS[:2]},
            )
        )
    )
    if "kind" not in other:
        return {**plain, **other}
    return {"name": name, **other}


@pytest.mark.filterwarnings("ignore::fedclust.data.DataWarning")
@MORE
@given(sites(), st.sampled_from(WAYS), st.integers(0, 2**32 - 1), st.data())
def test_participation_depends_on_the_table_alone_real_record(
    site: SiteFile, way: str, seed: int, data: st.DataObject
) -> None:
    """Whether it joins, what it says of its columns and size, each answer, when it leaves."""
    definition = data.draw(definitions(list(site.columns)))
    options = data.draw(st.sampled_from(({}, {"min_group_size": 9})))
    withdrawn = data.draw(st.sampled_from((None, None, *few_left(site, way))))
    with two_worlds(site, way, seed) as worlds:
        here, there = (conversation(world, definition, withdrawn, options) for world in worlds)
        assert here == there


def few_left(site: SiteFile, way: str) -> list[str]:
    """Return persons whose withdrawal leaves too few for a group; those left count as newcomers."""
    if way == "later" or any(np.isnan(values).any() for values in site.columns.values()):
        return []
    sizes = np.bincount(site.groups)
    return site.ids[sizes[site.groups] == P].tolist()[:1]


def conversation(
    world: World, definition: dict[str, Any], withdrawn: str | None, options: dict[str, Any]
) -> list[tuple[str, ...] | tuple[str, str, bytes]]:
    """Return every request of a site in a session, and how it ended for the site."""
    fake = coordinator(**definition)
    sent: list[Any] = []

    def record(request: httpx.Request) -> None:
        body: Any = request.content
        if "submission" in request.url.path and fake.step.task.phase == outcomes.NAME:
            # Counts with noise: the coordinator sees their size.
            body = len(body)
        elif request.method == "PUT" and request.url.path.endswith("/participation"):
            # A head is of random bytes; how many there are is seen.
            body = json.loads(body)
            body["heads"] = len((body["heads"] or {"heads": ()})["heads"])
        sent.append((request.method, str(request.url), body))

    fake.before = record
    with world.here():
        if withdrawn is not None:
            CohortStore(SiteState()).withdraw(withdrawn, EPOCH)
        try:
            fake.site(world.place / "state").participate(
                "heart", world.site.frame(), person=PERSON, consent=True, **options
            )
        except errors.FedclustError as error:
            sent.append((type(error).__name__, getattr(error, "rule", "")))
    return sent
