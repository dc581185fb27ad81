"""Check an analyst's request and freeze it as the definition that sites consent to."""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from pydantic import RootModel, ValidationError

from fedclust.methods.common.options import select_variant_model, takes_several, variant_models
from fedclust.methods.registry import METHODS
from fedclust.rounds import VERSION, Plan, sweep
from fedclust.rounds.plan import check_evidence, not_judged
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
from fedclust.schema.run_config import MethodOptions, Policy, RunConfig
from fedclust.wire.codec import canonical_json, sha256
from fedclust.wire.errors import FieldError
from fedclust.wire.models import PURPOSE_CHARACTERS, Definition, SessionCreate

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
#: What is wrong: a JSON pointer, the name of the rule, and what to do.
_Fault: TypeAlias = tuple[str, str, str]
_Faults: TypeAlias = Iterator[_Fault]


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
    options = _options(request.algorithm, request.config)
    fields["config"] = options.model_dump(mode="json")
    if "evidence" in fields["config"]:
        # Several K and stability rest on it, too.
        judged = not_judged(method, request.policy) is None
        fields["config"]["evidence"] = options.compared_with_cloud and judged
    fields["seed"] = seed if request.seed is None else request.seed
    fields |= {"method_version": method.version, "engine_version": VERSION}
    several = isinstance(fields["config"].get("n_clusters"), list)
    if several and outcomes_of(request.features):
        fields["outcomes_k"] = request.outcomes_k or "recommended"
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
        raise DefinitionError(_errors([("/method_version", "method-version", message)]))
    owner = METHODS.distribution(definition.algorithm)
    _check_version("method", definition.method_version, method.version, owner)
    _check_version("engine", definition.engine_version, VERSION, "fedclust")
    options = _options(definition.algorithm, definition.config)
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
    what = {"method": "this method", "engine": "the rounds that all methods share"}[part]
    message = (
        f"the session uses version {pinned} of {what}; this program supports: {own}. Install the "
        f'version that the coordinator runs (fedclust doctor shows it): pip install "{distribution}'
        '==VERSION"'
    )
    raise DefinitionError(_errors([(f"/{part}_version", f"{part}-version", message)]))


def check_definition(definition: SessionCreate, *, simulated: bool = False) -> None:
    """Refuse an invalid definition; ``simulated`` allows one site and no purpose.

    Raises
    ------
    DefinitionError
        With all faults found.
    """
    policy, features = definition.policy, clustered(definition.features)
    least, most = PURPOSE_CHARACTERS
    errors: list[FieldError] = []
    if not simulated and len(definition.purpose) < least:
        message = (
            f"say in one to five sentences ({least} to {most:,} characters) what the sites "
            "answer together: their stewards decide by it"
        )
        errors += _errors([("/purpose", "purpose", message)])
    errors += check_once(definition.sites)
    errors += _errors(_site_faults(policy, len(definition.sites), simulated))
    errors += check_features(definition.features, policy.scaling)
    errors += _errors(_algorithm_faults(definition.algorithm, policy))
    method = METHODS.get(definition.algorithm)
    if method is None:
        raise DefinitionError(errors)
    if policy.missing == "mask":
        errors += _errors(_role_faults(definition.features))
    try:
        options = _options(definition.algorithm, definition.config)
    except DefinitionError as error:
        raise DefinitionError(errors + error.errors) from None
    if not errors:
        config = RunConfig(
            options,
            features,
            policy,
            tuple(sorted(definition.sites)),
            policy.min_group_size,
            outcomes=outcomes_of(definition.features),
        )
        try:
            sweep.for_options(method, options).check_config(config)
            check_evidence(method, config)
        except RuleViolation as error:
            errors += _errors([(error.pointer, error.rule, error.message)], "/config")
        errors += _errors(_outcomes_k_faults(definition, options))
    if errors:
        raise DefinitionError(errors)


def _role_faults(features: Sequence[Declaration]) -> _Faults:
    """Refuse a column that is feature and outcome where sites may lack features."""
    names = {feature.name for feature in clustered(features)}
    message = "with missing: mask a column is a feature or an outcome: a site may lack either"
    for index, each in enumerate(features):
        if isinstance(each, Outcome) and names.intersection(c.name for c in each.columns):
            yield f"/features/{index}/name", "role", message


def _outcomes_k_faults(definition: SessionCreate, options: MethodOptions) -> _Faults:
    """Check which of several numbers of clusters the outcomes are counted at."""
    wanted, ks = definition.outcomes_k, options.n_clusters
    if not (isinstance(ks, tuple) and outcomes_of(definition.features)):
        if wanted is not None:
            message = "only a session with outcomes and several numbers of clusters has it"
            yield "/outcomes_k", "outcomes-k", message
    elif wanted not in (None, "recommended", *ks):
        several = ", ".join(map(str, ks))
        message = f"outcomes are counted at one K only: give {several} or recommended, the default"
        yield "/outcomes_k", "outcomes-k", message


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
    faults = _site_faults(policy, n_sites, simulated=False)
    errors = _errors(
        each for each in faults if each[0].rpartition("/")[2] in policy.model_fields_set
    )
    if algorithm:
        errors += _errors(_algorithm_faults(algorithm, policy))
    if algorithm in METHODS:
        try:
            _options(algorithm, config)
        except DefinitionError as error:
            errors += [each for each in error.errors if each.rule != "missing"]
    return errors


def _algorithm_faults(algorithm: str, policy: Policy) -> _Faults:
    method, wanted = METHODS.get(algorithm), policy.dissimilarity
    if method is None:
        known = ", ".join(sorted(METHODS))
        yield "/algorithm", "algorithm", METHODS.problem(algorithm) or f"choose one of: {known}"
        return
    if policy.missing == "mask" and not method.takes_masks:
        yield "/policy/missing", "mask", "this method needs every feature: drop or impute"
        return
    if wanted not in method.dissimilarities:
        takes = sorted(name for name, each in METHODS.items() if wanted in each.dissimilarities)
        message = f"this method does not take {wanted}. These do: {', '.join(takes)}"
        yield "/policy/dissimilarity", "dissimilarity", message
    if wanted == "gower" and policy.scaling != "bounds":
        message = "dissimilarity: gower divides by the range of the bounds: set scaling to bounds"
        yield "/policy/scaling", "dissimilarity", message
    if policy.gamma is not None and wanted != "k-prototypes":
        message = "only dissimilarity: k-prototypes has a gamma; leave it out"
        yield "/policy/gamma", "dissimilarity", message


def _options(algorithm: str, config: Mapping[str, Any]) -> MethodOptions:
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
        errors = _errors([("/config", "finite_number", "every number must be finite")])
    several = isinstance(config.get("n_clusters"), list | tuple)
    if several and not takes_several(options):
        taking = sorted(name for name, method in METHODS.items() if takes_several(method.options))
        message = f"one number: only these methods compare several: {', '.join(taking)}"
        for each in errors:
            if each.pointer == "/config/n_clusters":
                each.message = message
    raise DefinitionError(errors)


def _site_faults(policy: Policy, n: int, simulated: bool) -> _Faults:
    if policy.min_group_size < LEAST_GROUP:
        message = f"at least {LEAST_GROUP}; 5 is the default. protection: none works on exact rows"
        yield "/policy/min_group_size", "smallest-count", message
    if not simulated and policy.min_sites < 2:
        yield "/policy/min_sites", "min-sites", "at least 2; 3 is the default"
    if policy.min_sites == 2 and n != 2 and not simulated:
        yield "/policy/min_sites", "min-sites", "2 is for sessions of exactly two sites"
    if policy.min_sites > n:
        message = f"the session has fewer sites ({n}) than it needs ({policy.min_sites}): name more"
        if n == 2:
            message += ", or set this number to 2, which both sites have to consent to"
        yield "/policy/min_sites", "min-sites", message
    if policy.quorum is not None and not policy.min_sites <= policy.quorum <= n:
        message = f"from min_sites ({policy.min_sites}) to the number of sites ({n})"
        yield "/policy/quorum", "quorum", message


def check_once(sites: Sequence[str]) -> list[FieldError]:
    """Return an error for each site that is named a second time."""
    return _errors(_named_once(sites, "/sites/{}", "each site is named once"))


def check_features(features: tuple[Declaration, ...], scaling: str = "none") -> list[FieldError]:
    """Return what is wrong with the features of a session with this ``scaling``."""
    names = [(feature.role, feature.name) for feature in features]
    errors = _errors(_named_once(names, "/features/{}/name", "each feature is named once"))
    read_as = {feature.name: feature for feature in clustered(features)}
    for index, feature in enumerate(features):
        if isinstance(feature, Outcome):
            faults = [*_outcome_faults(feature, read_as)]
            # A column is read once: two outcomes may share it too.
            read_as = {each.name: each for each in feature.columns} | read_as
        else:
            faults = [*_feature_faults(feature)]
            if scaling == "bounds" and not faults:
                faults = [*map(_bounds_fault, unbounded(clustered([feature])))][:1]
        errors += _errors(faults, f"/features/{index}")
    if features and all(isinstance(each, Outcome) for each in features):
        message = "every one has the role outcome: at least one must have the role feature, so "
        message += "that there is something to cluster by"
        errors += _errors([("/features", "role", message)])
    return errors or _errors(_column_faults(clustered(features), features))


def check_own_features(definition: Definition, names: Sequence[str]) -> list[FieldError]:
    """Return what is wrong with the features and outcomes that a site declares when it joins."""
    return _errors(_own_feature_faults(definition, names))


def _own_feature_faults(definition: Definition, names: Sequence[str]) -> _Faults:
    known = {each.name for each in asked_of(definition.features)}
    for index, name in enumerate(names):
        if name not in known:
            yield f"/features/{index}", "unknown-feature", "the session has no such feature"
    if _repeated(names):
        yield "/features", "repeated-feature", "give each feature once"
    wanted = [each.name for each in clustered(definition.features)]
    lacking = [name for name in wanted if name not in names]
    # With missing="mask" a site may lack features; every other setting needs them all. A site may
    # always lack outcomes: the clustering does not depend on them.
    if definition.policy.missing != "mask":
        for name in lacking:
            yield "/features", "missing-feature", f"the session needs the feature {name!r}"
    elif len(lacking) == len(wanted):
        message = "a site needs at least one of the session's features"
        yield "/features", "missing-feature", message


def unbounded(features: Sequence[Feature]) -> Iterator[Feature]:
    """Yield the numbers that have no lower or no upper bound."""
    for each in features:
        if each.kind == "numeric" and (each.lower is None or each.upper is None):
            yield each


def unbounded_text(features: Sequence[Declaration]) -> str:
    """Return which numbers lack bounds, and what to do; "" if none does."""
    names = [feature.name for feature in unbounded(clustered(features))]
    if not names:
        return ""
    return (
        f"No lower or no upper bound: {', '.join(names)}. Extreme values of one site can move the "
        "clusters of all sites: declare the least and greatest value that a person can have."
    )


def _bounds_fault(feature: Feature) -> _Fault:
    message = "scaling by bounds needs lower and upper"
    if isinstance(feature, TrajectoryColumn) and feature.point in SUMMARY_UNITS:
        message = f"scaling by bounds needs them of every column, and {feature.name} has none: "
        message += "scale by standard, or leave it out"
    return "", "bounds", message


def _column_faults(features: tuple[Feature, ...], declared: tuple[Declaration, ...]) -> _Faults:
    """Check the encoded columns: unique names, different bounds, not too many."""
    columns = columns_of(features)
    place = {of.name: i for i, each in enumerate(declared) for of in clustered([each])}
    at = [f"/features/{place[column.feature]}" for column in columns]
    message = "another feature has a level, or a name, that makes a column of the same name"
    for j in _repeated([column.name for column in columns]):
        yield f"{at[j]}/name", "unique", message
    for pointer, column in zip(at, columns, strict=True):
        if column.lower is not None and column.lower == column.upper:
            yield f"{pointer}/lower", "bounds", "the logarithms of lower and upper are the same"
    if len(columns) > MAX_COLUMNS:
        message = f"features and levels make {len(columns)} columns: at most {MAX_COLUMNS}"
        yield "/features", "levels", message


def _feature_faults(feature: Feature | Trajectory) -> _Faults:
    if isinstance(feature, Trajectory):
        yield from _trajectory_faults(feature)
        return
    if not 1 / MAX_WEIGHT <= feature.weight <= MAX_WEIGHT:
        message = f"from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}: more would drown other features"
        yield "/weight", "weight", message
    number, lower, upper = feature.kind == "numeric", feature.lower, feature.upper
    if not number and feature.transform != "none":
        yield "/transform", "transform", f"a {feature.kind} feature takes none"
    if feature.kind == "categorical":
        yield from _level_faults(feature)
        return
    if feature.levels is not None:
        message = "only a categorical feature has levels"
        said = ": the unit says what 1 means, such as 1 = male" * (feature.kind == "binary")
        yield "/levels", "levels", message + said
    if feature.kind == "binary" and (lower, upper) not in {(None, None), (0, 1)}:
        yield "/kind", "bounds", "a binary feature is 0 or 1: leave its bounds out"
    above = {"log": 0.0, "log1p": -1.0}.get(feature.transform) if number else None
    if above is not None and (lower is None or lower <= above):
        message = f"{feature.transform} needs a lower bound above {above:g}"
        message += ": log1p takes 0" * (feature.transform == "log")
        yield "/lower", "transform", message
    if lower is not None and upper is not None and lower >= upper:
        yield "/lower", "bounds", "lower must be below upper"
    elif not math.isfinite((upper or 0.0) - (lower or 0.0)):
        yield "/upper", "bounds", "upper minus lower is too large for a number"


def _trajectory_faults(trajectory: Trajectory) -> _Faults:
    """Return what is wrong with a trajectory; bounds, transform and weight as of its values."""
    grid, summary = trajectory.grid, trajectory.summary
    if (grid is None) == (summary is None):
        yield "/grid", "grid", "give either a grid (times) or a summary"
    elif grid is not None:
        if not grid or not _ascend(grid):
            yield "/grid", "grid", "one or more times, which ascend"
        if trajectory.window is None:
            message = "say how far from a time of the grid a value may be, in units of the time"
            yield "/window", "window", message
        if trajectory.fill == "spline" and len(grid) < LEAST_KNOTS:
            message = f"a spline needs a grid of at least {LEAST_KNOTS} times: they are its knots"
            yield "/grid", "grid", message
    else:
        if trajectory.window is not None or trajectory.fill != "linear":
            yield "/summary", "summary", "fill and window are for a grid: leave them out"
        if not summary:
            yield "/summary", "summary", "name at least one"
        yield from _named_once(summary or (), "/summary/{}", "named twice")
    own = {name: getattr(trajectory, name) for name in ("lower", "upper", "transform", "weight")}
    yield from _feature_faults(Feature(name=trajectory.name, **own))


def _outcome_faults(outcome: Outcome, read_as: Mapping[str, Feature]) -> _Faults:
    """Return what is wrong with an outcome; ``read_as`` are columns that are read already."""
    kind, levels, edges = outcome.kind, outcome.levels, outcome.edges
    for name, of in _OUTCOME_FIELDS.items():
        if getattr(outcome, name) is not None and kind != of:
            message = f"only a {of} outcome has {name}"
            message += ": its name says what 1 means" * ((kind, name) == ("binary", "levels"))
            yield f"/{name}", name, message
    if kind == "categorical" and not 2 <= len(levels or ()) <= MAX_OUTCOME_LEVELS:
        message = f"a categorical outcome declares 2 to {MAX_OUTCOME_LEVELS} levels, with commas "
        message += "between them: each is a cell with noise of its own; group rare ones"
        yield "/levels", "levels", message
    yield from _named_once(levels or (), "/levels/{}", "each level is named once")
    if kind in OUTCOME_EDGES:
        least, most = OUTCOME_EDGES[kind]
        if not least <= len(edges or ()) <= most:
            begins = "where a range begins, such as 3, 7, 14"
            what = (
                begins if kind == "ordered" else "where an interval ends, such as 30, 90, 180, 365"
            )
            yield "/edges", "edges", f"give {least} to {most} numbers, each {what}"
        elif edges is not None and not _ascend(edges):
            yield "/edges", "edges", "edges ascend"
        elif edges is not None and kind == "time" and edges[0] <= 0:
            yield "/edges", "edges", "intervals begin at 0: every edge is above it"
    elif edges is not None:
        yield "/edges", "edges", "only an ordered outcome or a time has edges"
    n_values = None if outcome.values is None else len(outcome.values)
    if kind == "ordered" and n_values not in (None, len(edges or ()) + 1):
        yield "/values", "values", "one value is needed for each cell"
    if kind == "time" and outcome.event is None:
        message = "name the column of 0 and 1 that says whether the event occurred"
        yield "/event", "event", message
    if kind == "time" and outcome.event == outcome.name:
        yield "/event", "event", "the time and the event are two columns"
    for column in outcome.columns:
        same = read_as.get(column.name)
        if same is not None and (same.kind, same.levels) != (column.kind, column.levels):
            message = f"the column {column.name!r} has another kind or levels in this session: "
            yield "/kind", "kind", f"{message}read it as {same.kind}"
        elif same is not None and column.kind == "numeric" and same.unit != column.unit:
            yield "/unit", "unit", f"the column {column.name!r} is in {same.unit!r} in this session"


def _level_faults(feature: Feature) -> _Faults:
    if feature.lower is not None or feature.upper is not None:
        pointer = "/lower" if feature.lower is not None else "/upper"
        yield pointer, "bounds", "levels have no bounds: leave them out"
    levels = feature.levels or ()
    if not 2 <= len(levels) <= MAX_LEVELS:
        message = f"a categorical feature declares 2 to {MAX_LEVELS} levels"
        many = len(levels) > MAX_LEVELS
        message += "; group rare ones" if many else ", with commas between them: never, former"
        yield "/levels", "levels", message
    yield from _named_once(levels, "/levels/{}", "each level is named once")


def _ascend(numbers: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def _named_once(names: Sequence[Hashable], pointer: str, message: str) -> _Faults:
    """Yield a fault for each name that stands there before; ``pointer`` has a place for it."""
    for index in _repeated(names):
        yield pointer.format(index), "unique", message


def _repeated(names: Sequence[Hashable]) -> list[int]:
    first = {name: index for index, name in reversed(list(enumerate(names)))}
    return [index for index, name in enumerate(names) if first[name] != index]


def _errors(faults: Iterable[_Fault], at: str = "") -> list[FieldError]:
    """Return faults of what stands at a pointer as the errors of a definition."""
    return [FieldError(pointer=at + where, rule=rule, message=text) for where, rule, text in faults]
