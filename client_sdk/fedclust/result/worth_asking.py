"""Whether a question about an outcome is worth its points, said before any is spent.

Ratios were bounded in 95 % of cases where each of both clusters had at least 5 sigma sqrt(sites)
events over all sites (in 33 of 33 settings of the benchmark ``outcomes``). A rate ratio adds up the
noise of its intervals: it needs 5 sigma sqrt(sites x intervals) (22 of 22; without the intervals 24
of 31).

Rate ratios and mean times count an event in the middle of its interval. A rate ratio is at most 4 %
too near to 1 if nowhere more than a fifth of those at risk have the event in one interval, 27 % if
half (computed for constant and falling rates by the same benchmark).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedclust.definition import OUTCOME_EDGES
from fedclust.result.privacy_loss import noise_sd
from fedclust.schema.feature import (
    ALLOWANCE,
    POINTS_TIMES_VARIANCE,
    Declaration,
    Outcome,
    outcomes_of,
)
from fedclust.schema.size_bands import band_limits
from fedclust.wire.models import SessionCreate

#: Events that each of two clusters needs, in standard deviations of the noise of all sites.
_DEVIATIONS = 5
#: The largest share of those at risk who should have the event in one interval.
_MOST_AT_ONCE = 0.2
#: With so many groups of a site for each cluster results are good: docs/privacy/thresholds.md.
_GROUPS = 2
ASK_ONCE = "Ask once: points that are spent do not come back."


@dataclass(frozen=True)
class Worth:
    """What is expected of a question about an outcome.

    Attributes
    ----------
    needed : int
        Persons with the event that each of two clusters needs over all sites so that ratios have
        both limits.
    expected : float or None
        How many are likely; None without a guess.
    points : int or None
        The fewest points that are likely to be enough; None without a guess.
    """

    needed: int
    expected: float | None = None
    points: int | None = None

    @property
    def likely(self) -> bool | None:
        """Whether ratios are likely to have both limits; None without a guess."""
        return None if self.expected is None else self.expected >= self.needed

    @property
    def affordable(self) -> bool:
        """Whether any number of points of a usual allowance is likely to be enough."""
        return self.points is not None and self.points <= ALLOWANCE


def worth_asking(
    points: int,
    n_sites: int,
    *,
    persons: int | None = None,
    n_clusters: int | None = None,
    share: float | None = None,
    n_intervals: int = 1,
) -> Worth:
    """Return whether each of two clusters is likely to have enough events for these points.

    Parameters
    ----------
    points, n_sites : int
    persons : int, optional
        Of all sites.
    n_clusters : int, optional
        Clusters are taken to be of one size: nobody knows their sizes before.
    share : float, optional
        The analyst's guess of the share of persons with the event; an odds ratio needs as many
        without it, so of the two shares the smaller one.
    n_intervals : int
        Of a time.

    Examples
    --------
    >>> worth_asking(10, 4, persons=800, n_clusters=2, share=0.1)
    Worth(needed=50, expected=40.0, points=16)
    >>> worth_asking(10, 4, persons=200, n_clusters=2, share=0.1).affordable
    False
    """
    n_noisy = n_sites * n_intervals
    needed = math.ceil(_DEVIATIONS * noise_sd(points) * math.sqrt(n_noisy))
    if persons is None or n_clusters is None or share is None:
        return Worth(needed)
    expected = persons / n_clusters * share
    if expected <= 0:
        return Worth(needed, 0.0)
    enough = math.ceil(_DEVIATIONS**2 * POINTS_TIMES_VARIANCE * n_noisy / expected**2)
    return Worth(needed, expected, enough)


def clusters_of(definition: SessionCreate) -> int | None:
    """Return the number of clusters that outcomes are counted at; of several the largest."""
    if isinstance(definition.outcomes_k, int):
        return definition.outcomes_k
    asked = definition.config.get("n_clusters")
    known = asked if isinstance(asked, list | tuple) else [asked]
    return max((k for k in known if isinstance(k, int)), default=None)


def patients_text(
    n_sites: int,
    k: int,
    p: int,
    patients: int | None = None,
    bands: Mapping[str, str] | None = None,
) -> str:
    """Return how many patients a site needs for K clusters, and whether these are there.

    ``bands`` are the size bands that some of the sites gave, by their names; ``patients`` is what
    somebody states of the others.

    Examples
    --------
    >>> patients_text(3, 4, 5, patients=30)[-26:]
    '30 are enough up to K = 3.'
    """
    needed = _GROUPS * k * p
    text = (
        f"With {n_sites} sites, K = {k} and p = {p} you need at least {needed} patients a site: "
        "two groups of at least p patients for each cluster that it holds."
    )
    if bands:
        text += f" By what sites gave in your completed sessions: {_enough(bands, needed)}."
    if patients is None or (bands and len(bands) == n_sites):
        return text
    fits = patients // (_GROUPS * p)
    whose = "At the other sites, as you state, " if bands else ""
    return f"{text} {whose}{patients} are enough{f' up to K = {fits}' * (fits < k)}."


def _enough(bands: Mapping[str, str], needed: int) -> str:
    """Return at which sites there are enough patients by their size bands."""
    found: dict[str, list[str]] = {"enough at": [], "too few at": [], "perhaps enough at": []}
    for site, band in sorted(bands.items()):
        least, most = band_limits(band)
        few = most is not None and most < needed
        part = "enough at" if least >= needed else "too few at" if few else "perhaps enough at"
        found[part].append(f"{site} ({band})")
    return "; ".join(f"{part} {', '.join(sites)}" for part, sites in found.items() if sites)


def points_asked(outcomes: Sequence[Outcome]) -> str:
    """Return what questions cost together.

    Examples
    --------
    >>> points_asked([Outcome(name="died", role="outcome", kind="binary")])
    '10 points of the allowance of each site (died 10)'
    """
    each = ", ".join(f"{outcome.name} {outcome.points}" for outcome in outcomes)
    total = sum(outcome.points for outcome in outcomes)
    return f"{total} point{'s' * (total != 1)} of the allowance of each site ({each})"


def asked_of_sites(definition: SessionCreate) -> str | None:
    """Return what the outcomes of a session cost together; None where they cost nothing."""
    outcomes = outcomes_of(definition.features)
    if not outcomes or definition.policy.protection == "none":
        return None
    return points_asked(outcomes)


def points_of_study(features: Sequence[Declaration]) -> str | None:
    """Return what a session with all outcomes of a study asks of each site; None without any."""
    asked = outcomes_of(features)
    each = f"A session that counts every outcome asks {points_asked(asked)}."
    return f"{each} {ASK_ONCE}" if asked else None


def crowded_text(outcome: Outcome, shares: Sequence[float], condition: str = "") -> str:
    """Return which interval of a time has too many events, and which edges to add; "" for none.

    Parameters
    ----------
    outcome : Outcome
    shares : sequence of float
        For each interval the share of those at risk who have the event in it.
    condition : str
        What guessed shares rest on: the beginning of the sentence.

    Examples
    --------
    >>> edges = (30, 60, 180, 365)
    >>> time = Outcome(name="days", role="outcome", kind="time", edges=edges, event="died")
    >>> crowded_text(time, (0.27, 0.1, 0.2, 0.1))  # doctest: +ELLIPSIS
    '27 % of those at risk have the event from 0 to 30, ... Choose a further edge at about 7.5.'
    >>> crowded_text(time, (0.2, 0.1, 0.2, 0.1))
    ''
    """
    edges = outcome.edges or ()
    most, start, end = max(zip(shares, (0.0, *edges), edges, strict=False))
    if most <= _MOST_AT_ONCE:
        return ""
    wanted = math.ceil(math.log1p(-min(most, 0.99)) / math.log1p(-_MOST_AT_ONCE))
    room = OUTCOME_EDGES["time"][1] - len(edges)
    parts = min(wanted, 1 + max(1, room))
    # Where events become rarer, equal steps of the root hold about equally many of them.
    a, b = math.sqrt(start), math.sqrt(end)
    places = [(a + (b - a) * part / parts) ** 2 for part in range(1, parts)]
    added = [f"{float(f'{place:.2g}'):g}" for place in places]
    further = "a further edge" if len(added) == 1 else "further edges"
    instead = ", and leave another out" if not room else ""
    return (
        f"{condition}{100 * most:.0f} % of those at risk have the event from {start:g} to {end:g}, "
        "which moves the rate ratio towards 1 and makes mean times too long. Choose "
        f"{further} at about {', '.join(added)}{instead}."
    )


def _guessed_text(outcome: Outcome, share: float | None) -> str:
    """Return the same for a constant rate; without a guess a third of all have the event."""
    edges = outcome.edges or ()
    left = 1 - (1 / 3 if share is None else share)
    spans = zip((0.0, *edges), edges, strict=False)
    shares = [1 - left ** ((end - start) / edges[-1]) for start, end in spans]
    condition = "If a third of all have the event, at" if share is None else "At"
    return crowded_text(outcome, shares, f"{condition} a constant rate, ")


def worth_lines(
    definition: SessionCreate,
    *,
    persons: int | None = None,
    shares: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """Return a line for each outcome of a definition, and when to ask; () without outcomes.

    Exact counts cost nothing: then a line only says which edges a time needs.

    Parameters
    ----------
    definition : SessionCreate
    persons : int, optional
        Of all sites.
    shares : mapping of name to float, optional
        The analyst's guesses. Of an ordered outcome or a level that nobody guessed none is taken.
    """
    exact = definition.policy.protection == "none"
    n_sites, n_clusters = len(definition.sites), clusters_of(definition)
    lines = []
    for each in outcomes_of(definition.features):
        guess = (shares or {}).get(each.name)
        texts = [] if exact else [_said(each, n_sites, persons, n_clusters, guess)]
        texts += [_guessed_text(each, guess)] if each.kind == "time" else []
        if any(texts):
            lines.append(f"{each.name}: {' '.join(filter(None, texts))}")
    return (*lines, ASK_ONCE) if lines and not exact else tuple(lines)


def _said(
    outcome: Outcome,
    n_sites: int,
    persons: int | None,
    n_clusters: int | None,
    share: float | None,
) -> str:
    ordered, time = outcome.kind == "ordered", outcome.kind == "time"
    if ordered:
        share = 0.5  # a mean needs twice as many persons as a ratio needs with the event
    elif share is not None and not time:
        share = min(share, 1 - share)
    found = worth_asking(
        outcome.points,
        n_sites,
        persons=persons,
        n_clusters=n_clusters,
        share=share,
        n_intervals=len(outcome.edges or ()) if time else 1,
    )
    noise = f"{outcome.points} points give noise with a standard deviation of "
    noise += f"{noise_sd(outcome.points):.2g}"
    events = {"binary": " with yes", "categorical": " with the level", "time": " with the event"}
    counted = 1 + ordered
    rule = f"Each of two clusters needs {counted * found.needed} persons"
    rule += f"{events.get(outcome.kind, '')} over all sites"
    rule += ", and as many without" * (not (ordered or time))
    if found.expected is None:
        most = 1.0 if time else 0.5
        from_share = "" if ordered else _from_share(found, persons, n_clusters, most)
        return f"{noise}. {rule}.{from_share}"
    likely = f"about {counted * found.expected:.0f} are likely in {n_clusters} clusters of one size"
    if found.likely:
        return f"worth asking. {rule}; {likely}."
    if found.affordable:
        return f"too few points. {rule}; {likely}. {found.points} points would be enough."
    instead = "" if ordered else "about a commoner outcome, or "
    return (
        f"not worth asking: no allowance of {ALLOWANCE} points is enough. {rule}; {likely}. Ask "
        f"{instead}with fewer clusters or more persons."
    )


def _from_share(found: Worth, persons: int | None, n_clusters: int | None, most: float) -> str:
    """Return from which share on a question is worth asking."""
    if not persons or not n_clusters:
        return ""
    least = found.needed * n_clusters / persons
    if least > most:
        return f" {persons} persons in {n_clusters} clusters are too few for that."
    return (
        f" With {persons} persons in all, in {n_clusters} clusters of one size, the question is "
        f"worth asking from a share of {100 * least:.2g} % on."
    )
