"""The privacy and pacing rules of a session."""

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, model_serializer

from fedclust.schema.model import Model

#: A larger gamma would leave numbers without effect.
MAX_GAMMA = 1e6


class Policy(Model):
    """The privacy and pacing rules of a session (docs/sessions.md).

    Attributes
    ----------
    min_sites : int
        No round or result rests on fewer sites. 2 is for sessions of exactly two sites, which each
        have to consent to that.
    quorum : int or None
        Number of non-empty submissions with which a round closes at its deadline. None: all that
        take part.
    round_timeout_s : int
        Seconds until a round's deadline.
    fail_after_s : int
        Seconds for which a round may stay overdue before the session fails.
    max_rounds : int or None
        Limit on the method's rounds, without the preparation and the closing rounds. None: the
        method's own.
    min_group_size : int
        The fewest persons behind any number that a site sends, at least 3. A site may ask for more.
        Common thresholds: 5 is the most usual one, 10 is the rule of many statistical offices, 11
        satisfies rules that forbid counts of 1 to 10.
    protection : {"groups", "none"}
        What a site computes with: its protected table, or its exact rows, to which every site has
        to consent expressly.
    scaling : {"none", "standard", "bounds"}
        ``standard``: mean 0 and variance 1 over all sites. ``bounds``: from the features' bounds.
        ``none``: numbers count as they are.
    missing : {"drop", "impute", "mask"}
        ``impute``: records that are not released take the mean over sites. ``drop``: leave out
        groups that lack a column of the session; ``fedclust check`` says how many persons stay.
        ``mask``: sites may lack features; not every method takes that.
    dissimilarity : {"euclidean", "gower", "k-prototypes"}
        How far a person is from a cluster. ``euclidean``: yes/no features and levels count as
        numbers, 0 or 1, and a cluster has shares of them. ``k-prototypes`` (Huang 1998): squared
        differences of numbers, and ``gamma`` for each yes/no feature or level that is not the
        cluster's commonest. ``gower`` (1971), with ``scaling: bounds``: absolute differences over
        the range of the bounds, and 1 for each of these. Not every method takes the last two.
    gamma : float or None
        Of ``k-prototypes``. None: half the mean standard deviation of the numbers, after scaling.

    Examples
    --------
    >>> Policy(min_group_size=10, scaling="bounds").min_sites
    3
    """

    min_sites: Annotated[int, Field(ge=1, le=10_000)] = 3
    quorum: Annotated[int, Field(ge=1, le=10_000)] | None = None
    round_timeout_s: Annotated[int, Field(ge=1, le=31_536_000)] = 3_600
    fail_after_s: Annotated[int, Field(ge=1, le=31_536_000)] = 604_800
    max_rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None
    min_group_size: Annotated[int, Field(ge=1, le=1_000_000, examples=[5, 10, 11])] = 5
    protection: Literal["groups", "none"] = "groups"
    scaling: Literal["none", "standard", "bounds"] = "standard"
    missing: Literal["drop", "impute", "mask"] = "impute"
    dissimilarity: Literal["euclidean", "gower", "k-prototypes"] = "euclidean"
    gamma: Annotated[FiniteFloat, Field(gt=0, le=MAX_GAMMA)] | None = None

    @property
    def sites_needed(self) -> int:
        """How many sites a session needs from its start to its end."""
        return max(self.min_sites, self.quorum or 0)

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: Any) -> dict[str, Any]:
        # A policy without these keeps the canonical form and the hash of one that knows neither.
        unsaid = (("dissimilarity", "euclidean"), ("gamma", None))
        return {name: value for name, value in write(self).items() if (name, value) not in unsaid}
