"""The base of all methods' options: common types, sweeps over K, variants, a given start."""

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    FiniteFloat,
    RootModel,
    Tag,
    create_model,
)
from pydantic_core import PydanticCustomError

from fedclust.methods.common.kmeans_rounds import local_starts
from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.arrays import FloatMatrix
from fedclust.protection.message_checks import check_means, check_shapes
from fedclust.schema.encoding import transformed
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import MethodOptions, RunConfig
from fedclust.schema.scaling import centroid_rule, own_bounds

#: The most numbers of clusters of a sweep: every message has a part for each.
MAX_SWEEP_SIZE = 20

_Variant = TypeVar("_Variant", bound=MethodOptions)
#: A number of clusters.
Count = Annotated[int, Field(ge=1, le=10_000)]
#: Random restarts of a k-means.
Restarts = Annotated[int, Field(ge=1, le=100)]
#: A relative improvement below which a round counts as no improvement.
Tolerance = Annotated[FiniteFloat, Field(ge=0, lt=1)]


#: Fewer resampled models say little; more cost much and say hardly more.
_FEWEST_MODELS, _MOST_MODELS = 20, 500


def _check_model_count(value: int) -> int:
    if value and not _FEWEST_MODELS <= value <= _MOST_MODELS:
        raise PydanticCustomError(
            "stability",
            "0 for none, or from {least} to {most} models",
            {"least": _FEWEST_MODELS, "most": _MOST_MODELS},
        )
    return value


class EvaluatedOptions(MethodOptions):
    """Options of a method with a closing evaluation."""

    evaluate: bool = True
    """Whether a closing round measures the quality of the final centroids."""
    stability: Annotated[int, AfterValidator(_check_model_count)] = 0
    """Number of models of resampled data with which the clusters are compared, from 20 to 500; 100
    is usual. It takes one more round. 0: none.
    """
    evidence: bool = False
    """Whether the clusters are compared with one cloud without clusters, and the sites with each
    other. With several `n_clusters` or `stability` they are anyway, where the method allows it.
    """

    @property
    def evaluated(self) -> bool:
        """Whether the last round measures the quality of the centroids."""
        return self.evaluate

    @property
    def resampled_models(self) -> int:
        """Number of resampled models; 0: stability is not measured."""
        return self.stability

    @property
    def compared_with_cloud(self) -> bool:
        """Whether the clusters are compared with one cloud."""
        return self.evidence or self.stability > 0 or isinstance(self.n_clusters, tuple)


# --- Sweeps over K --------------------------------------------------------------------------------


def _parse_cluster_counts(value: Any) -> Any:
    """Refuse an invalid sweep with what to change; return a single K as an int."""
    if not isinstance(value, list | tuple):
        return value
    if not value:
        raise PydanticCustomError("sweep", "name at least one number of clusters")
    if len(value) > MAX_SWEEP_SIZE:
        raise PydanticCustomError(
            "sweep", f"a sweep has at most {MAX_SWEEP_SIZE} numbers of clusters"
        )
    # Other types are left to the fields' own validation.
    if all(isinstance(k, int) and not isinstance(k, bool) for k in value):
        if len(set(value)) < len(value):
            raise PydanticCustomError("sweep", "each number of clusters is named once")
        if len(value) > 1 and min(value) == 1:
            raise PydanticCustomError(
                "sweep", "a sweep starts at 2: one cluster has nothing to be compared by"
            )
        if len(value) == 1:
            return value[0]
    return tuple(value)


def _sort_cluster_counts(value: int | tuple[int, ...]) -> int | tuple[int, ...]:
    return tuple(sorted(value)) if isinstance(value, tuple) else value


#: One K, or a tuple of several in ascending order.
ClusterCounts = Annotated[
    Annotated[Count, Tag("one")] | Annotated[tuple[Count, ...], Tag("several")],
    Discriminator(lambda value: "several" if isinstance(value, tuple) else "one"),
    BeforeValidator(_parse_cluster_counts),
    AfterValidator(_sort_cluster_counts),
]


class SweptOptions(EvaluatedOptions):
    """The options of a method that can compare several K."""

    n_clusters: ClusterCounts
    """One number, or several to compare."""

    @property
    def k(self) -> int:
        """K, in the options of a session or of one K of a sweep."""
        if not isinstance(self.n_clusters, int):
            raise ValueError("a sweep has several numbers of clusters")
        return self.n_clusters


# --- Variants -------------------------------------------------------------------------------------


def variants(title: str, *each: type[_Variant], by: str = "variant") -> type[RootModel[_Variant]]:
    """Return the union of the option models of a method's variants.

    Parameters
    ----------
    title : str
        In the API's description.
    *each : type of MethodOptions
        Defined in one module, which names the union ``Config``. Each has a field
        ``variant: Literal["name"]``. The first reads options without a variant.
    by : str
        The name of the field whose value names the variant.
    """
    union: Any = functools.reduce(operator.or_, each)
    names = [_variant_name(model, by) for model in each]
    add_name = BeforeValidator(functools.partial(_add_variant_name, by, names))
    union = Annotated[union, Field(discriminator=by), add_name]
    # Pickling needs the name of the module's attribute.
    return create_model(
        "Config",
        __base__=RootModel[union],
        __module__=each[0].__module__,
        __cls_kwargs__={"title": title},
    )


def _add_variant_name(by: str, names: Sequence[str], config: Any) -> Any:
    """Return options with the name of their variant, by default the first."""
    if isinstance(config, dict):
        config = {by: names[0], **config}
        if config[by] not in names:
            known = ", ".join(names)
            raise PydanticCustomError("variant", f"the option {by} is one of: {known}")
    return config


def variant_models(
    options: type[MethodOptions] | type[RootModel[MethodOptions]],
) -> tuple[type[MethodOptions], ...]:
    """Return the models of a method's options, one for each variant."""
    if not issubclass(options, RootModel):
        return (options,)
    return get_args(options.model_fields["root"].annotation)


def takes_several(options: type[MethodOptions] | type[RootModel[MethodOptions]]) -> bool:
    """Return whether ``n_clusters`` may be several numbers."""
    return all(issubclass(model, SweptOptions) for model in variant_models(options))


def select_variant_model(
    options: type[MethodOptions] | type[RootModel[MethodOptions]], config: Mapping[str, Any]
) -> type[MethodOptions]:
    """Return the model of the variant that ``config`` names, by default the first."""
    models = variant_models(options)
    if len(models) == 1:
        return models[0]
    by = str(options.model_fields["root"].discriminator)
    return next((m for m in models if config.get(by) == _variant_name(m, by)), models[0])


def _variant_name(model: type[MethodOptions], by: str) -> Any:
    return get_args(model.model_fields[by].annotation)[0]


def refuse_dissimilarity(config: RunConfig) -> None:
    """Raise RuleViolation unless the session's dissimilarity is Euclidean: ``variant: paper``."""
    if config.policy.dissimilarity != "euclidean":
        raise RuleViolation(
            "variant",
            "variant: paper is Euclidean, as published; variant: default takes "
            f"{config.policy.dissimilarity}",
            "/variant",
        )


class StartOptions(SweptOptions):
    """The options of a method that starts from the sites' cells or from given centroids."""

    start: Literal["cells", "given"] = "cells"
    """Where the first centroids come from: the sites' cells, or the option `centroids`."""
    centroids: FloatMatrix | None = None
    """The first centroids in the features' own units: a list of K lists with a number for each
    column. A column is a feature, or a level of one. Only with `start: given`.
    """
    n_init: Restarts = 3
    """Restarts of each site's local k-means."""


def check_given_centroids(config: RunConfig[StartOptions]) -> None:
    """Raise RuleViolation if ``centroids`` do not match ``start`` or the features."""
    options = config.options
    if options.start == "cells":
        if options.centroids is not None:
            raise RuleViolation(
                "start", "centroids are only for start: given; leave them out", "/centroids"
            )
        return
    if options.centroids is None:
        raise RuleViolation("start", "start: given needs centroids", "/centroids")
    check_shapes(options, centroids=(options.k, len(config.columns)))
    check_means(
        np.ones(options.k, dtype=np.int64),
        transformed(config.columns, options.centroids),
        *own_bounds(config.columns),
        "/centroids",
    )


def given_centroids(config: RunConfig[StartOptions]) -> FloatArray | None:
    """Return the definition's initial centroids (K, d), scaled; None with ``start: cells``."""
    given = config.options.centroids
    if given is None:
        return None
    scaled = config.space.to_scaled(transformed(config.columns, given))
    return centroid_rule(config)(scaled)


def start_text(options: StartOptions) -> str:
    """Return where the first centroids come from, for a method's description."""
    if options.centroids is not None:
        rows = (", ".join(f"{value:g}" for value in row) for row in options.centroids.tolist())
        return (
            "The first centroids were given in the session's definition: "
            f"({'); ('.join(rows)}), in the order and units of the variables."
        )
    return (
        "For the first centroids, each site divided its own points into at most K cells by "
        f"weighted k-means from {local_starts(options.n_init)}, and the coordinator clustered "
        "the cells' means, weighted by their persons, from several starts (farthest first, "
        "k-means++, Ward's agglomeration)."
    )
