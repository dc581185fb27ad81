"""What the options of several methods share: a base, common types, and variants told apart."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

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

from fedclust.schema.options import MethodOptions

__all__ = [
    "MAX_SWEEP_SIZE",
    "Count",
    "Options",
    "Restarts",
    "SweptOptions",
    "Tolerance",
    "select_variant_model",
    "variant_models",
    "variants",
]

#: The most numbers of clusters of a sweep: each takes its part of every answer.
MAX_SWEEP_SIZE = 20

_Variant = TypeVar("_Variant", bound=MethodOptions)
#: A number of clusters.
Count = Annotated[int, Field(ge=1, le=10_000)]
#: Random restarts of a k-means.
Restarts = Annotated[int, Field(ge=1, le=100)]
#: A relative improvement below which a round counts as no improvement.
Tolerance = Annotated[FiniteFloat, Field(ge=0, lt=1)]


class Options(MethodOptions):
    """Options of a method whose result a closing round can evaluate.

    Attributes
    ----------
    evaluate : bool
        Whether a closing round measures the quality of the final centroids.
    """

    evaluate: bool = True

    @property
    def evaluated(self) -> bool:
        """Whether a closing round measures the quality of the final centroids."""
        return self.evaluate


# --- several numbers of clusters ------------------------------------------------------------------


def _as_asked(value: Any) -> Any:
    """Refuse lists that are no sweep, each with what to change."""
    if not isinstance(value, list | tuple):
        return value
    if not value:
        raise PydanticCustomError("sweep", "name at least one number of clusters")
    if len(value) > MAX_SWEEP_SIZE:
        raise PydanticCustomError(
            "sweep", f"a sweep has at most {MAX_SWEEP_SIZE} numbers of clusters"
        )
    whole = [k for k in value if isinstance(k, int) and not isinstance(k, bool)]
    if len(whole) == len(value):
        if len(set(whole)) < len(whole):
            raise PydanticCustomError("sweep", "each number of clusters is named once")
        if len(whole) > 1 and min(whole) == 1:
            raise PydanticCustomError(
                "sweep", "a sweep starts at 2: one cluster has nothing to be compared by"
            )
        if len(whole) == 1:
            return whole[0]
    return tuple(value)


def _sorted(value: int | tuple[int, ...]) -> int | tuple[int, ...]:
    return tuple(sorted(value)) if isinstance(value, tuple) else value


def _form(value: Any) -> str:
    return "several" if isinstance(value, tuple) else "one"


#: A number of clusters, or several to be compared; frozen in ascending order, one alone as itself.
ClusterCounts = Annotated[
    Annotated[Count, Tag("one")] | Annotated[tuple[Count, ...], Tag("several")],
    Discriminator(_form),
    BeforeValidator(_as_asked),
    AfterValidator(_sorted),
]


class SweptOptions(Options):
    """The options of a method that sweeps.

    Attributes
    ----------
    n_clusters : int or tuple of int
        Number of clusters K; or several from 2 on, to be compared.
    """

    n_clusters: ClusterCounts

    @property
    def k(self) -> int:
        """K. A sweep runs its Ks one beside the other, each with options of its own."""
        if not isinstance(self.n_clusters, int):
            raise ValueError("a sweep has several numbers of clusters")
        return self.n_clusters


# --- variants -------------------------------------------------------------------------------------


def variants(title: str, *each: type[_Variant], by: str = "variant") -> type[RootModel[_Variant]]:
    """Return the model that reads a method's options where variants have options of their own.

    ``{"variant": "paper", ...}`` is read by the model whose field ``variant`` says so, and options
    that name no variant by the first.

    Parameters
    ----------
    title : str
        In the API's description.
    *each : type of MethodOptions
        Of one module, which calls the result ``Config``. Each has a field
        ``variant: Literal["name"]``.
    by : str
        Another name of that field.
    """
    union: Any = functools.reduce(operator.or_, each)
    named = BeforeValidator(functools.partial(_named, by, [_name(form, by) for form in each]))
    union = Annotated[union, Field(discriminator=by), named]
    # Called as the module's attribute is, so that it can be pickled.
    return create_model(
        "Config",
        __base__=RootModel[union],
        __module__=each[0].__module__,
        __cls_kwargs__={"title": title},
    )


def _named(by: str, names: Sequence[str], config: Any) -> Any:
    """Return options with their variant: without one, the first."""
    if isinstance(config, dict):
        config = {by: names[0], **config}
        if config[by] not in names:
            known = ", ".join(names)
            raise PydanticCustomError("variant", f"the option {by} is one of: {known}")
    return config


def variant_models(
    options: type[MethodOptions] | type[RootModel[MethodOptions]],
) -> tuple[type[MethodOptions], ...]:
    """Return the models that read a method's options: one of each variant."""
    if not issubclass(options, RootModel):
        return (options,)
    return get_args(options.model_fields["root"].annotation)


def select_variant_model(
    options: type[MethodOptions] | type[RootModel[MethodOptions]], config: Mapping[str, Any]
) -> type[MethodOptions]:
    """Return the model that reads this config: that of its variant, or the first."""
    each = variant_models(options)
    if len(each) == 1:
        return each[0]
    by = str(options.model_fields["root"].discriminator)
    return next((form for form in each if config.get(by) == _name(form, by)), each[0])


def _name(form: type[MethodOptions], by: str) -> Any:
    return get_args(form.model_fields[by].annotation)[0]
