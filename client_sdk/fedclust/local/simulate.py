"""Run a session over sites in this process: the same code and the same bytes as the service.

Tasks, answers and states pass through the wire codec in every round, so ``simulate`` gives the same
result as the service for the same seed and site names.
"""

import functools
import inspect
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from fedclust import rounds
from fedclust.data.live_line import SlowWork
from fedclust.data.mapping import watch_reading
from fedclust.data.numeric_columns import is_file, is_table, numeric_features
from fedclust.data.outcome_rows import OutcomeBlock, label_persons
from fedclust.data.site_data import no_points, session_rows, site_data
from fedclust.data.table import LabelRows, Source, Table
from fedclust.definition import DefinitionError, freeze, plan_of
from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust.numeric.random import server_rng
from fedclust.protection.outcome_counts import count_outcomes
from fedclust.result.session_result import KnownSite, SessionResult, TraceEntry
from fedclust.rounds import EngineState, Plan, collecting
from fedclust.rounds.collecting import Attendance
from fedclust.rounds.outcomes import OutcomesPayload
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.field_names import (
    field_errors,
    nearest_name,
    unknown_field_message,
    unknown_name_message,
)
from fedclust.schema.model import Memory, Model, json_value
from fedclust.schema.result import Result
from fedclust.schema.run_config import Policy
from fedclust.schema.task import Contribution, Count, Done, Next, Points, SiteTask, Task
from fedclust.wire import codec
from fedclust.wire.errors import DataError
from fedclust.wire.models import Definition, SessionCreate
from fedclust.wire.submissions import payload_bytes, payload_from_bytes

_SESSION = "simulation"


# What a session's definition says, and three options of the run itself.
def simulate(
    method: str,
    sites: Mapping[str, Any],
    *,
    config: Mapping[str, Any] = MappingProxyType({}),
    policy: Mapping[str, Any] | None = None,
    features: Sequence[Mapping[str, Any] | str] | Mapping[str, Sequence[str]] | None = None,
    outcomes_k: int | Literal["recommended"] | None = None,
    seed: int = 0,
    persons: Mapping[str, str | ArrayLike] | None = None,
    progress: bool = True,
    **others: object,
) -> SessionResult:
    """Cluster the rows of several sites without a network.

    Parameters
    ----------
    method : str
        Name of a method, for example ``"lloyd"``.
    sites : mapping of site name to rows
        Rows (n, d), also n = 0: an array, a DataFrame or the path of a CSV file, whose columns are
        matched by name. NaN is missing. An array has the features in order, then the columns of
        outcomes that are no features (of a time the time, then its event).
    config : mapping
        The method's options.
    policy : mapping, optional
        As in a session's definition, with the same defaults, except that ``min_sites`` is at most
        the number of sites. ``min_sites`` 1 and ``protection`` ``"none"`` are allowed: nothing
        leaves this process.
    features : sequence of mapping or str, optional
        Declared features in order, or their names. By default the columns of numbers that all
        files and DataFrames have, or ``x0``, ``x1``, ... of arrays; a warning names the other
        columns and those that look like identifiers. With ``missing: mask`` sites may lack
        features: their DataFrames lack columns, or columns hold no value; or give a mapping of each
        site's name to the names of its array's columns. Outcomes are mappings with ``"role":
        "outcome"``; their noise comes from the seed.
    outcomes_k : int or "recommended", optional
        With several K and outcomes: the one that outcomes are counted at, by default the
        recommended one.
    seed : int
    persons : mapping of site name to str or sequence of length n, optional
        Which person each row belongs to, or the column that says it. At other sites, and with
        ``protection: none``, each row is a person.
    progress : bool
        Whether to show on terminals and in notebooks what takes over two seconds. The variable
        FEDCLUST_PROGRESS=0 turns it off in all of Python.
    **others
        None is known: the error says what was meant.

    Returns
    -------
    SessionResult

    Raises
    ------
    TypeError
        There is no such argument.
    DefinitionError
        The definition breaks a rule; names each field. A ValueError.
    RuleViolation
        A site's rows or persons do not fit; names site, column and row. A ValueError.
    MethodFailure
        The session failed; the reason is that of the service.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> sites = {"berlin": X[::3], "oslo": X[1::3], "porto": X[2::3]}
    >>> result = simulate("fkm", sites, config={"n_clusters": 2})
    >>> result.cluster_centers_.shape
    (2, 4)
    >>> result.sizes_
    (50, 100)
    >>> result.predict([[5.0, 3.4, 1.5, 0.2]])
    array([0])

    Compare several numbers of clusters in one session:

    >>> result = simulate("fkm", sites, config={"n_clusters": [2, 3, 4]})
    >>> [entry.n_clusters for entry in result.sweep_]
    [2, 3, 4]
    >>> result.at(3).cluster_centers_.shape
    (3, 4)
    """
    if others:
        raise TypeError(_unknown_argument(method, next(iter(others))))
    _check_sites(sites, persons)
    masking = (policy or {}).get("missing") == "mask"
    if isinstance(features, Mapping):
        sites, features = _spread_out(sites, features, masking)
    with SlowWork(f"simulate {method}: reading", shown=progress) as work:
        sources = {
            name: watch_reading(source, work.read) if is_file(source) else source
            for name, source in sites.items()
        }
        definition = _define(method, sources, config, policy, features, outcomes_k, seed)
        plan = plan_of(definition)
        owners = persons or {}
        parts = {}
        for number, name in enumerate(sorted(sources)):
            work.say(f"simulate {method}: reading site {name}", number, len(sources))
            parts[name] = read_site(plan, name, sources[name], owners.get(name))
        result, trace = _run_rounds(plan, parts, work)
        work.say(f"simulate {method}: labelling rows")
        rows = {name: part.rows for name, part in parts.items()}
        known = {name: KnownSite(part.held, part.memory) for name, part in parts.items()}
        return SessionResult(result, definition, trace_=trace).with_rows(rows, known)


@dataclass
class SimulatedSite:
    """A site: its rows, what it computes from, its features and its memory.

    ``held`` names its features and outcomes; ``counted`` are the persons whose outcomes count.
    """

    name: str
    rows: Table | LabelRows
    points: Points
    mask: NDArray[np.bool_]
    held: tuple[str, ...]
    counted: tuple[OutcomeBlock, ...]
    memory: Memory = field(default_factory=dict)


def _unknown_argument(method: str, name: str) -> str:
    """Return what somebody meant by an argument that :func:`simulate` does not have."""
    options = variant_models(METHODS[method].options) if method in METHODS else ()
    places = dict.fromkeys(Policy.model_fields, "policy")
    places |= {field: "config" for model in options for field in model.model_fields}
    names = [each for each in inspect.signature(simulate).parameters if each != "others"]
    near = nearest_name(name, [*places, *names])
    if near in places:
        return f'simulate: write {places[near]}={{"{near}": ...}} instead of {name[:64]}='
    return f"simulate: {unknown_name_message('argument', name, names)}"


def _run_rounds(
    plan: Plan, sites: Mapping[str, SimulatedSite], work: SlowWork
) -> tuple[Result, tuple[TraceEntry, ...]]:
    """Run all rounds; return the result and every answer."""
    trace: list[TraceEntry] = []

    def exchange(number: int, task: Task, addressed: list[str]) -> Iterator[Attendance]:
        entries = {}
        for place, name in enumerate(addressed):
            said = f"round {number} {task.phase}, site {name}"
            work.say(f"simulate {plan.method.name}: {said}", place, len(addressed))
            entries[name] = _answer(plan, task, number, sites[name])
        trace.extend(entries.values())
        p = plan.policy.min_group_size
        answers = [Contribution(name, each.payload, p=p) for name, each in entries.items()]
        yield Attendance(answers, (), list(sites))

    held = {name: site.held for name, site in sites.items()}
    return run_rounds(plan, held, exchange), tuple(trace)


#: Sends the task of a round, by its number, to these sites. Yields who has answered so far, until
#: the round stops collecting.
Exchange: TypeAlias = Callable[[int, Task, list[str]], Iterator[Attendance]]


def run_rounds(
    plan: Plan,
    held: Mapping[str, Sequence[str]],
    exchange: Exchange,
    short: Collection[str] = (),
    now: Callable[[], float] = time.monotonic,
) -> Result:
    """Run all rounds of a session; states and result pass through the codec.

    Parameters
    ----------
    plan : Plan
    held : mapping of site to sequence of str
        The sites that take part, with the features and outcomes that each has.
    exchange : Exchange
    short : collection of str
        The sites without enough points to answer about outcomes.
    now : callable
        The clock of deadlines, in seconds.

    Raises
    ------
    RuleViolation
        These sites cannot serve the method.
    MethodFailure
    """
    masks = {name: plan.has_features(own) for name, own in held.items()}
    silent = {name for name, own in held.items() if plan.lacks_outcomes(own)}.union(short)
    roster = sorted(held)
    rounds.check_roster(plan, roster, masks)
    step: Next | Done = rounds.start(plan, roster, masks)
    while isinstance(step, Next):
        state, task = codec.decode_model(EngineState, codec.encode_model(step.state)), step.task
        addressed = roster if task.sites is None else sorted(task.sites)
        found = _collect(plan, task, addressed, exchange(state.round, task, addressed), now)
        roster = found.roster
        step = rounds.advance(plan, state, found.answers, roster, masks, silent)
    return codec.decode_model(Result, codec.encode_model(step.result))


def _collect(
    plan: Plan,
    task: Task,
    addressed: list[str],
    attendances: Iterator[Attendance],
    now: Callable[[], float],
) -> Attendance:
    """Return who has answered a round when it stops collecting; MethodFailure if it fails."""
    rules = collecting.Rules.of(
        plan.policy, rounds.phase(plan, task.phase), needs_all=task.needs_all
    )
    deadline = now() + plan.policy.round_timeout_s
    since: float | None = None
    for seen in attendances:
        time_s, n_answers, n_pending = now(), len(seen.answers), len(seen.pending)
        n_gone = len(addressed) - n_answers - n_pending
        n_full = sum(each.payload is not None for each in seen.answers)
        decision = collecting.decide_round(
            collecting.Turnout(n_pending, n_answers, n_full, len(addressed) - n_gone, n_gone),
            rules,
            late=time_s >= deadline,
            overdue_for=None if since is None else timedelta(seconds=time_s - since),
            refused=seen.refused,
        )
        if isinstance(decision, collecting.Wait):
            since = (time_s if since is None else since) if decision.overdue else None
            continue
        few = collecting.TurnoutFailure.TOO_FEW_CONTRIBUTORS
        if isinstance(decision, collecting.TurnoutFailure) and decision is not few:
            missing = f" Without an answer: {', '.join(seen.pending)}." if seen.pending else ""
            raise MethodFailure(decision, collecting.FAILURES[decision] + missing)
        # `advance` says how many answers are too few.
        return seen
    raise ValueError("the exchange ended before the round")


def _answer(plan: Plan, asked: Task, round_number: int, site: SimulatedSite) -> TraceEntry:
    """Let a site answer a task; task and answer pass through the bytes that would travel."""
    common, part = rounds.write_task(plan, _SESSION, round_number, asked, site.name)
    sent = codec.decode(codec.encode({"common": common, "site": part}))
    task = rounds.read_task(plan, sent["common"], sent["site"])
    body = payload_bytes(answer_task(plan, task, round_number, site))
    payload = payload_from_bytes(rounds.phase(plan, task.phase), body)
    return TraceEntry(round_number, task.phase, site.name, task, payload, len(body or b""))


def answer_task(plan: Plan, task: SiteTask, round_number: int, site: SimulatedSite) -> Model | None:
    """Return a site's answer to a task, None for an empty one, and remember what it remembers."""
    payload, site.memory = rounds.local_step(
        plan,
        task,
        site.points,
        site=site.name,
        round_number=round_number,
        p=plan.policy.min_group_size,
        size_band=None,
        memory=codec.decode(codec.encode(site.memory)),
        mask=site.mask,
        count=_count_persons(plan, site),
    )
    return payload


def _count_persons(plan: Plan, site: SimulatedSite) -> Count:
    """Return what counts the outcomes of a site, with noise from the session's seed."""
    exact = plan.policy.protection == "none"

    def count(model: Result, memory: Memory) -> OutcomesPayload:
        clusters, cells = label_persons(plan, model, site.counted, memory, site.name, site.mask)
        tables = []
        for place, outcome in enumerate(plan.outcomes):
            # Only here: at a real site nothing seeds noise.
            rng = server_rng(plan.seed, f"simulated noise {site.name} {outcome.name}")
            table = count_outcomes(
                clusters,
                cells[:, place],
                len(model.centroids),
                len(outcome.cells),
                Fraction(0) if exact else outcome.variance,
                randbelow=functools.partial(_below, rng),
            )
            tables.append(table if outcome.name in site.held else None)
        return OutcomesPayload(cells=tuple(tables))

    return count


def _below(rng: np.random.Generator, n: int) -> int:
    return int(rng.integers(n))


def read_site(plan: Plan, name: str, source: Source, persons: Any) -> SimulatedSite:
    """Read a site's rows, and form what it computes from; here a site may have no rows."""
    counted: tuple[OutcomeBlock, ...] = ()
    try:
        rows: Table | LabelRows = session_rows(plan, source, person=persons)
        p = plan.policy.min_group_size
        points, held, counted = site_data(plan, source, rows, p, persons)
    except DataError as error:
        if error.rule != "no-rows" or not (persons is None or not len(persons)):
            raise RuleViolation(error.rule, f"site {name!r}: {error}") from None
        names = [each.name for each in plan.features] + [each.name for each in plan.outcomes]
        held = tuple(dict.fromkeys(names))
        points = no_points(plan)
        rows = Table(points.X, held, columns=held)
    return SimulatedSite(name, rows, points, plan.has_features(held), held, counted)


def _define(
    method: str,
    sites: Mapping[str, Any],
    config: Mapping[str, Any],
    policy: Mapping[str, Any] | None,
    features: Sequence[Mapping[str, Any] | str] | None,
    outcomes_k: int | str | None,
    seed: int,
) -> Definition:
    request = {
        "name": _SESSION,
        "algorithm": method,
        "config": json_value(config),
        "seed": json_value(seed),
        "features": _declare_features(sites, features, (policy or {}).get("missing") == "mask"),
        "sites": sorted(sites),
        "outcomes_k": json_value(outcomes_k),
        "policy": {"min_sites": min(3, len(sites)), **json_value(policy or {})},
    }
    try:
        body = codec.canonical_json(request)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the definition holds what JSON cannot carry: {error}") from None
    try:
        return freeze(SessionCreate.model_validate_json(body), seed, simulated=True)
    except ValidationError as error:
        unknown = functools.partial(unknown_field_message, SessionCreate)
        raise DefinitionError(field_errors(error, unknown=unknown)) from None


# --- sites and features as Python's users hand them over ------------------------------------------


def as_declared(features: Iterable[Mapping[str, Any] | str]) -> list[dict[str, Any]]:
    """Return features as a definition lists them: a name alone is a number."""
    return [{"name": each} if isinstance(each, str) else json_value(each) for each in features]


def _declare_features(
    sites: Mapping[str, Any], features: Sequence[Mapping[str, Any] | str] | None, masking: bool
) -> list[dict[str, Any]]:
    if features is not None:
        if isinstance(features, str):
            raise ValueError("features must be a sequence of features or of their names")
        return as_declared(features)
    if all(map(is_table, sites.values())):
        try:
            return numeric_features(sites, lacking=masking)
        except DataError as error:
            raise RuleViolation(error.rule, str(error)) from None
    framed = [site for site in sorted(sites) if hasattr(sites[site], "columns")]
    if framed:
        shown = framed if masking else framed[:1]
        every = [str(column) for site in shown for column in sites[site].columns]
        names = dict.fromkeys(every) if masking else every
        return [{"name": column} for column in names]
    first = min(sites)
    try:
        shape = np.shape(sites[first])
    except ValueError:
        shape = ()
    if len(shape) != 2 or not shape[1]:
        message = "its rows are no array of two axes; files among arrays need features="
        raise RuleViolation("shape", f"site {first!r}: {message}")
    return [{"name": f"x{j}"} for j in range(shape[1])]


def _spread_out(
    sites: Mapping[str, Any], features: Mapping[str, Sequence[str]], masking: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return arrays with a column for every feature, NaN where a site lacks it, and the names."""
    if not masking:
        raise ValueError('features by site are for policy {"missing": "mask"}')
    if sorted(features) != sorted(sites):
        raise ValueError("features by site must name each site once")
    names = list(dict.fromkeys(str(name) for site in sorted(sites) for name in features[site]))
    spread: dict[str, Any] = {}
    for site, rows in sites.items():
        own = [str(name) for name in features[site]]
        array = np.asarray(rows, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != len(own) or len(set(own)) < len(own):
            message = f"its rows need {len(own)} columns, one for each feature that it names once"
            raise RuleViolation("shape", f"site {site!r}: {message}")
        spread[site] = np.full((len(array), len(names)), np.nan)
        spread[site][:, [names.index(name) for name in own]] = array
    return spread, names


def _check_sites(sites: Any, persons: Any) -> None:
    """Refuse sites that are no mapping of names, and persons of other sites; ValueError."""
    if not isinstance(sites, Mapping):
        raise ValueError("sites must be a mapping of each site's name to its rows")
    if not sites:
        raise ValueError("name at least one site")
    for name in sites:
        if not isinstance(name, str):
            raise ValueError(f"a site's name must be text, not {name!r}")
    if persons is None:
        return
    if not isinstance(persons, Mapping):
        raise ValueError("persons must be a mapping of a site's name to its rows' persons")
    unknown = [str(name) for name in persons if name not in sites]
    if unknown:
        raise ValueError(f"persons are given for {', '.join(unknown)}, which is no site")
