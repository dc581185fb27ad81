"""Check an analyst's request and freeze it as the definition that sites consent to."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import RootModel, ValidationError

from fedclust.methods.common.options import select_variant_model, takes_several, variant_models
from fedclust.methods.registry import METHODS
from fedclust.rounds import VERSION, Plan, check_evidence, sweep
from fedclust.schema.encoding import columns_of
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import (
    SUMMARY_UNITS,
    Declaration,
    Feature,
    Outcome,
    Trajectory,
    TrajectoryColumn,
    asked_of,
    clustered,
    outcomes_of,
)
from fedclust.schema.field_names import field_errors, unknown_name_message
from fedclust.schema.method import AnyMethod
from fedclust.schema.options import MethodOptions
from fedclust.schema.policy import Policy
from fedclust.schema.run_config import RunConfig
from fedclust.wire.codec import canonical_json, sha256
from fedclust.wire.models import PURPOSE_CHARACTERS, Definition, SessionCreate
from fedclust.wire.problems import FieldError

#: Levels of one categorical feature. Each is a column in every answer, and a group releases the
#: counts of few of them.
MAX_LEVELS = 64
#: Of a categorical outcome: each is a cell, and the smaller a cell the larger its noise.
MAX_OUTCOME_LEVELS = 12
#: The fewest and the most edges of an outcome of each kind.
OUTCOME_EDGES = {"ordered": (2, 5), "time": (4, 6)}
_OUTCOME_FIELDS = {"levels": "categorical", "values": "ordered", "event": "time"}
#: Each of two persons could compute the other's value from their mean.
LEAST_GROUP = 3
#: The fewest knots of a natural spline that is no straight line.
LEAST_KNOTS = 3
#: Columns of all features together: as many as a session may have features.
MAX_COLUMNS = 10_000
#: The largest weight; its inverse is the smallest.
MAX_WEIGHT = 1e6


class DefinitionError(ValueError):
    """A session cannot be defined like this; ``errors`` names each field and the correction."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors))


def freeze(request: SessionCreate, seed: int, *, simulated: bool = False) -> Definition:
    """Check a request and pin seed, defaults and versions, which later programs may change.

    Parameters
    ----------
    request : SessionCreate
    seed : int
        Used if the request has none.
    simulated : bool
        As in :func:`check_definition`.

    Raises
    ------
    DefinitionError
    """
    check_definition(request, simulated=simulated)
    method = METHODS[request.algorithm]
    fields = request.model_dump(mode="json")
    fields["config"] = _options(request).model_dump(mode="json")
    fields["seed"] = seed if request.seed is None else request.seed
    fields |= {"method_version": method.version, "engine_version": VERSION}
    return Definition.model_validate_json(canonical_json(fields))


def canonical(definition: Definition) -> bytes:
    """Return the bytes whose SHA-256 sites consent to: sorted keys, no spaces, UTF-8."""
    return canonical_json(definition.model_dump(mode="json"))


def read_definition(data: bytes) -> Definition:
    """Inverse of :func:`canonical`; DefinitionError if another version has written it."""
    try:
        return Definition.model_validate_json(data)
    except ValidationError as error:
        raise DefinitionError(field_errors(error)) from None


def request_hash(request: SessionCreate) -> str:
    """Return the hash of the fields that were sent; a repeated request has the same."""
    return sha256(canonical_json(request.model_dump(mode="json", exclude_unset=True)))


def plan_of(definition: Definition) -> Plan:
    """Return the engine's plan; DefinitionError if a pinned version is not supported."""
    method = METHODS.get(definition.algorithm)
    if method is None:
        message = METHODS.problem(definition.algorithm) or (
            f"this program has no method {definition.algorithm!r}. Install what the coordinator "
            "runs: pip install --upgrade fedclust, or the distribution that has the method"
        )
        raise DefinitionError([_error("/method_version", "method-version", message)])
    owner = METHODS.distribution(definition.algorithm)
    _check_version("method", definition.method_version, method.version, owner)
    _check_version("engine", definition.engine_version, VERSION, "fedclust")
    options = _options(definition)
    return Plan(
        method=sweep.for_options(method, options),
        options=options,
        features=clustered(definition.features),
        policy=definition.policy,
        seed=definition.seed,
        outcomes=outcomes_of(definition.features),
        outcomes_k=definition.outcomes_k,
    )


def _check_version(part: str, pinned: int, own: int, distribution: str) -> None:
    """Refuse the version of the method, or of the engine, that this program does not support."""
    if pinned == own:
        return
    remedy = f"Upgrade with: pip install --upgrade {distribution}"
    if own > pinned:
        remedy = (
            "Install the version that the coordinator runs, which `fedclust doctor` shows: "
            f'pip install "{distribution}==VERSION"'
        )
    what = {"method": "this method", "engine": "the rounds that all methods share"}[part]
    message = f"the session uses version {pinned} of {what}; this program supports: {own}. {remedy}"
    raise DefinitionError([_error(f"/{part}_version", f"{part}-version", message)])


def check_definition(definition: SessionCreate, *, simulated: bool = False) -> None:
    """Refuse an invalid definition; ``simulated`` allows one site and no purpose.

    Raises
    ------
    DefinitionError
        With all faults found.
    """
    errors = check_once(definition.sites)
    errors += _check_sites(definition.policy, len(definition.sites), simulated)
    errors += check_features(definition.features, definition.policy.scaling)
    least, most = PURPOSE_CHARACTERS
    if not simulated and len(definition.purpose) < least:
        message = (
            f"say in one to five sentences ({least} to {most:,} characters) what the sites "
            "answer together: their stewards decide by it"
        )
        errors.insert(0, _error("/purpose", "purpose", message))
    if faults := _check_algorithm(definition.algorithm, definition.policy):
        errors += faults
        if definition.algorithm not in METHODS:
            raise DefinitionError(errors)
    if definition.policy.missing == "mask":
        errors += _check_roles(definition.features)
    method = METHODS[definition.algorithm]
    try:
        options = _options(definition)
    except DefinitionError as error:
        raise DefinitionError(errors + error.errors) from None
    if not errors:
        roster = tuple(sorted(definition.sites))
        policy = definition.policy
        features = clustered(definition.features)
        config = RunConfig(
            options,
            features,
            policy,
            roster,
            policy.min_group_size,
            outcomes=outcomes_of(definition.features),
        )
        try:
            sweep.for_options(method, options).check_config(config)
            check_evidence(method, config)
        except RuleViolation as error:
            errors.append(_error("/config" + error.pointer, error.rule, error.message))
        errors += _check_outcomes_k(definition, options)
    if errors:
        raise DefinitionError(errors)


def _check_roles(features: Sequence[Declaration]) -> list[FieldError]:
    """Refuse a column that is feature and outcome where sites may lack features."""
    names = {feature.name for feature in clustered(features)}
    message = "with missing: mask a column is a feature or an outcome: a site may lack either"
    return [
        _error(f"/features/{index}/name", "role", message)
        for index, each in enumerate(features)
        if isinstance(each, Outcome) and names.intersection(c.name for c in each.columns)
    ]


def _check_outcomes_k(definition: SessionCreate, options: MethodOptions) -> list[FieldError]:
    """Check which of several numbers of clusters the outcomes are counted at."""
    wanted, ks = definition.outcomes_k, options.n_clusters
    message = ""
    if not (isinstance(ks, tuple) and outcomes_of(definition.features)):
        if wanted is not None:
            message = "only a session with outcomes and several numbers of clusters has it"
    elif wanted != "recommended" and wanted not in ks:
        several = ", ".join(map(str, ks))
        message = f"outcomes are counted at one K only: give {several} or recommended"
    return [_error("/outcomes_k", "outcomes-k", message)] if message else []


def check_defaults(
    algorithm: str, config: Mapping[str, Any], policy: Policy, n_sites: int
) -> list[FieldError]:
    """Return what is wrong with a study's defaults; what they leave out, a session says.

    Parameters
    ----------
    algorithm : str
        "" for none: then ``config`` is not checked.
    config : mapping
    policy : Policy
        Of it only the fields that were set.
    n_sites : int
        The number of sites of every session.
    """
    errors = [
        error
        for error in _check_sites(policy, n_sites, simulated=False)
        if error.pointer.rpartition("/")[2] in policy.model_fields_set
    ]
    if algorithm:
        faults = _check_algorithm(algorithm, policy)
        errors += faults
        if algorithm in METHODS:
            try:
                _read_options(algorithm, config)
            except DefinitionError as error:
                errors += [each for each in error.errors if each.rule != "missing"]
    return errors


def _check_algorithm(algorithm: str, policy: Policy) -> list[FieldError]:
    method = METHODS.get(algorithm)
    if method is None:
        known = ", ".join(sorted(METHODS))
        message = METHODS.problem(algorithm) or f"choose one of: {known}"
        return [_error("/algorithm", "algorithm", message)]
    if policy.missing == "mask" and not method.takes_masks:
        message = "this method needs every feature: drop or impute"
        return [_error("/policy/missing", "mask", message)]
    return _check_dissimilarity(method, policy)


def _check_dissimilarity(method: AnyMethod, policy: Policy) -> list[FieldError]:
    errors = []
    wanted = policy.dissimilarity
    if wanted not in method.dissimilarities:
        takes = sorted(name for name, each in METHODS.items() if wanted in each.dissimilarities)
        message = f"this method does not take {wanted}. These do: {', '.join(takes)}"
        errors.append(_error("/policy/dissimilarity", "dissimilarity", message))
    if wanted == "gower" and policy.scaling != "bounds":
        message = "dissimilarity: gower divides by the range of the bounds: set scaling to bounds"
        errors.append(_error("/policy/scaling", "dissimilarity", message))
    if policy.gamma is not None and wanted != "k-prototypes":
        message = "only dissimilarity: k-prototypes has a gamma; leave it out"
        errors.append(_error("/policy/gamma", "dissimilarity", message))
    return errors


def _options(definition: SessionCreate) -> MethodOptions:
    return _read_options(definition.algorithm, definition.config)


def _read_options(algorithm: str, config: Mapping[str, Any]) -> MethodOptions:
    options = METHODS[algorithm].options
    try:
        read = options.model_validate_json(canonical_json(dict(config)))
        chosen: MethodOptions = read.root if isinstance(read, RootModel) else read
        return chosen
    except ValidationError as error:
        union = len(variant_models(options)) > 1
        what = "option of this variant" if union else "option"
        known = select_variant_model(options, config).model_fields
        errors = field_errors(
            error,
            at="/config",
            union=union,
            unknown=lambda place: unknown_name_message(what, str(place[-1]), known),
        )
    except ValueError:  # canonical JSON has no NaN
        errors = [_error("/config", "finite_number", "every number must be finite")]
    several = isinstance(config.get("n_clusters"), list | tuple)
    if several and not takes_several(options):
        taking = sorted(name for name, method in METHODS.items() if takes_several(method.options))
        message = f"one number: only these methods compare several: {', '.join(taking)}"
        errors = [
            _error(error.pointer, error.rule, message)
            if error.pointer == "/config/n_clusters"
            else error
            for error in errors
        ]
    raise DefinitionError(errors)


def _check_sites(policy: Policy, n: int, simulated: bool) -> list[FieldError]:
    errors = []
    if policy.min_group_size < LEAST_GROUP:
        message = f"at least {LEAST_GROUP}; 5 is the default. protection: none works on exact rows"
        errors.append(_error("/policy/min_group_size", "smallest-count", message))
    if not simulated and policy.min_sites < 2:
        errors.append(_error("/policy/min_sites", "min-sites", "at least 2; 3 is the default"))
    if policy.min_sites == 2 and n != 2 and not simulated:
        errors.append(
            _error("/policy/min_sites", "min-sites", "2 is for sessions of exactly two sites")
        )
    if policy.min_sites > n:
        message = f"the session has fewer sites ({n}) than it needs ({policy.min_sites}): name more"
        if n == 2:
            message += ", or set this number to 2, which both sites have to consent to"
        errors.append(_error("/policy/min_sites", "min-sites", message))
    if policy.quorum is not None and not policy.min_sites <= policy.quorum <= n:
        message = f"from min_sites ({policy.min_sites}) to the number of sites ({n})"
        errors.append(_error("/policy/quorum", "quorum", message))
    return errors


def check_once(sites: Sequence[str]) -> list[FieldError]:
    """Return an error for each site that is named a second time."""
    return [
        _error(f"/sites/{index}", "unique", "each site is named once") for index in _repeated(sites)
    ]


def check_features(features: tuple[Declaration, ...], scaling: str = "none") -> list[FieldError]:
    """Return what is wrong with the features of a session with this ``scaling``."""
    errors = [
        _error(f"/features/{index}/name", "unique", "each feature is named once")
        for index in _repeated([(feature.role, feature.name) for feature in features])
    ]
    read_as = {feature.name: feature for feature in clustered(features)}
    for index, feature in enumerate(features):
        at = f"/features/{index}"
        if isinstance(feature, Outcome):
            faults = _outcome_faults(feature, read_as)
            # A column is read once: two outcomes may share it too.
            read_as = {each.name: each for each in feature.columns} | read_as
        else:
            faults = _feature_faults(feature)
            if scaling == "bounds" and not faults:
                faults = [*map(_bounds_fault, unbounded(clustered([feature])))][:1]
        errors += [_error(at + pointer, rule, message) for pointer, rule, message in faults]
    if features and all(isinstance(each, Outcome) for each in features):
        message = "every one has the role outcome: at least one must have the role feature, so "
        message += "that there is something to cluster by"
        errors.append(_error("/features", "role", message))
    return errors or _check_columns(clustered(features), features)


def check_own_features(definition: Definition, names: Sequence[str]) -> list[FieldError]:
    """Return what is wrong with the features and outcomes that a site declares when it joins."""
    known = {each.name for each in asked_of(definition.features)}
    faults = [
        _error(f"/features/{index}", "unknown-feature", "the session has no such feature")
        for index, name in enumerate(names)
        if name not in known
    ]
    if _repeated(names):
        faults.append(_error("/features", "repeated-feature", "give each feature once"))
    wanted = [each.name for each in clustered(definition.features)]
    lacking = [name for name in wanted if name not in names]
    # With missing="mask" a site may lack features; every other setting needs them all. A site may
    # always lack outcomes: the clustering does not depend on them.
    if definition.policy.missing != "mask":
        faults += [
            _error("/features", "missing-feature", f"the session needs the feature {name!r}")
            for name in lacking
        ]
    elif len(lacking) == len(wanted):
        message = "a site needs at least one of the session's features"
        faults.append(_error("/features", "missing-feature", message))
    return faults


def unbounded(features: Sequence[Feature]) -> Iterator[Feature]:
    """Yield the numbers that have no lower or no upper bound."""
    for each in features:
        if each.kind == "numeric" and (each.lower is None or each.upper is None):
            yield each


def _bounds_fault(feature: Feature) -> tuple[str, str, str]:
    message = "scaling by bounds needs lower and upper"
    if isinstance(feature, TrajectoryColumn) and feature.point in SUMMARY_UNITS:
        message = f"scaling by bounds needs them of every column, and {feature.name} has none: "
        message += "scale by standard, or leave it out"
    return "", "bounds", message


def _check_columns(
    features: tuple[Feature, ...], declared: tuple[Declaration, ...]
) -> list[FieldError]:
    """Check the encoded columns: unique names, different bounds, not too many."""
    columns = columns_of(features)
    place = {of.name: i for i, each in enumerate(declared) for of in clustered([each])}
    at = [f"/features/{place[column.feature]}" for column in columns]
    message = "another feature has a level, or a name, that makes a column of the same name"
    errors = [
        _error(f"{at[j]}/name", "unique", message)
        for j in _repeated([column.name for column in columns])
    ]
    errors += [
        _error(f"{pointer}/lower", "bounds", "the logarithms of lower and upper are the same")
        for pointer, column in zip(at, columns, strict=True)
        if column.lower is not None and column.lower == column.upper
    ]
    if len(columns) > MAX_COLUMNS:
        message = f"features and levels make {len(columns)} columns: at most {MAX_COLUMNS}"
        errors.append(_error("/features", "levels", message))
    return errors


def _feature_faults(feature: Feature | Trajectory) -> list[tuple[str, str, str]]:
    if isinstance(feature, Trajectory):
        return _trajectory_faults(feature)
    faults = []
    if not 1 / MAX_WEIGHT <= feature.weight <= MAX_WEIGHT:
        message = f"from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}: more would drown other features"
        faults.append(("/weight", "weight", message))
    number = feature.kind == "numeric"
    if not number and feature.transform != "none":
        faults.append(("/transform", "transform", f"a {feature.kind} feature takes none"))
    if feature.kind == "categorical":
        return faults + _level_faults(feature)
    if feature.levels is not None:
        faults.append(("/levels", "levels", "only a categorical feature has levels"))
    if feature.kind == "binary" and (feature.lower, feature.upper) not in {(None, None), (0, 1)}:
        faults.append(("/kind", "bounds", "a binary feature is 0 or 1: leave its bounds out"))
    above = {"log": 0.0, "log1p": -1.0}.get(feature.transform) if number else None
    if above is not None and (feature.lower is None or feature.lower <= above):
        message = f"{feature.transform} needs a lower bound above {above:g}"
        faults.append(("/lower", "transform", message))
    if feature.lower is not None and feature.upper is not None and feature.lower >= feature.upper:
        faults.append(("/lower", "bounds", "lower must be below upper"))
    elif not math.isfinite((feature.upper or 0.0) - (feature.lower or 0.0)):
        faults.append(("/upper", "bounds", "upper minus lower is too large for a number"))
    return faults


def _trajectory_faults(trajectory: Trajectory) -> list[tuple[str, str, str]]:
    """Return what is wrong with a trajectory; bounds, transform and weight as of its values."""
    grid, summary, faults = trajectory.grid, trajectory.summary, []
    if (grid is None) == (summary is None):
        faults.append(("/grid", "grid", "give either a grid (times) or a summary"))
    elif grid is not None:
        if not grid or any(a >= b for a, b in pairwise(grid)):
            faults.append(("/grid", "grid", "one or more times, which ascend"))
        if trajectory.window is None:
            message = "say how far from a time of the grid a value may be, in units of the time"
            faults.append(("/window", "window", message))
        if trajectory.fill == "spline" and len(grid) < LEAST_KNOTS:
            message = f"a spline needs a grid of at least {LEAST_KNOTS} times: they are its knots"
            faults.append(("/grid", "grid", message))
    else:
        if trajectory.window is not None or trajectory.fill != "linear":
            faults.append(("/summary", "summary", "fill and window are for a grid: leave them out"))
        if not summary:
            faults.append(("/summary", "summary", "name at least one"))
        faults += [(f"/summary/{i}", "unique", "named twice") for i in _repeated(summary or ())]
    own = {name: getattr(trajectory, name) for name in ("lower", "upper", "transform", "weight")}
    return faults + _feature_faults(Feature(name=trajectory.name, **own))


def _outcome_faults(outcome: Outcome, read_as: Mapping[str, Feature]) -> list[tuple[str, str, str]]:
    """Return what is wrong with an outcome; ``read_as`` are columns that are read already."""
    faults = []
    kind, levels, edges = outcome.kind, outcome.levels, outcome.edges
    for name, of in _OUTCOME_FIELDS.items():
        if getattr(outcome, name) is not None and kind != of:
            faults.append((f"/{name}", name, f"only a {of} outcome has {name}"))
    if kind == "categorical" and not 2 <= len(levels or ()) <= MAX_OUTCOME_LEVELS:
        message = f"a categorical outcome declares 2 to {MAX_OUTCOME_LEVELS} levels: each is a "
        faults.append(
            ("/levels", "levels", message + "cell with noise of its own; group rare ones")
        )
    again = "each level is named once"
    faults += [(f"/levels/{index}", "unique", again) for index in _repeated(levels or ())]
    if kind in OUTCOME_EDGES:
        least, most = OUTCOME_EDGES[kind]
        if not least <= len(edges or ()) <= most:
            message = (
                f"a{'n' * (kind == 'ordered')} {kind} outcome declares {least} to {most} edges"
            )
            faults.append(("/edges", "edges", message))
        elif edges is not None and any(a >= b for a, b in pairwise(edges)):
            faults.append(("/edges", "edges", "edges ascend"))
        elif edges is not None and kind == "time" and edges[0] <= 0:
            faults.append(("/edges", "edges", "intervals begin at 0: every edge is above it"))
    elif edges is not None:
        faults.append(("/edges", "edges", "only an ordered outcome or a time has edges"))
    n_values = None if outcome.values is None else len(outcome.values)
    if kind == "ordered" and n_values not in (None, len(edges or ()) + 1):
        faults.append(("/values", "values", "one value is needed for each cell"))
    if kind == "time" and outcome.event is None:
        message = "name the column of 0 and 1 that says whether the event occurred"
        faults.append(("/event", "event", message))
    if kind == "time" and outcome.event == outcome.name:
        faults.append(("/event", "event", "the time and the event are two columns"))
    for column in outcome.columns:
        same = read_as.get(column.name)
        if same is not None and (same.kind, same.levels) != (column.kind, column.levels):
            message = f"the column {column.name!r} has another kind or levels in this session: "
            message += f"read it as {same.kind}"
            faults.append(("/kind", "kind", message))
        elif same is not None and column.kind == "numeric" and same.unit != column.unit:
            message = f"the column {column.name!r} is in {same.unit!r} in this session"
            faults.append(("/unit", "unit", message))
    return faults


def _level_faults(feature: Feature) -> list[tuple[str, str, str]]:
    faults = []
    if feature.lower is not None or feature.upper is not None:
        pointer = "/lower" if feature.lower is not None else "/upper"
        faults.append((pointer, "bounds", "levels have no bounds: leave them out"))
    levels = feature.levels or ()
    if not 2 <= len(levels) <= MAX_LEVELS:
        message = f"a categorical feature declares 2 to {MAX_LEVELS} levels"
        if len(levels) == 1:
            message += "; a single one tells no rows apart"
        elif levels:
            message += "; group rare ones"
        faults.append(("/levels", "levels", message))
    named_once = "each level is named once"
    return faults + [(f"/levels/{index}", "unique", named_once) for index in _repeated(levels)]


def _repeated(names: Sequence[Hashable]) -> list[int]:
    first = {name: index for index, name in reversed(list(enumerate(names)))}
    return [index for index, name in enumerate(names) if first[name] != index]


def _error(pointer: str, rule: str, message: str) -> FieldError:
    return FieldError(pointer=pointer, rule=rule, message=message)
