"""Outcomes as a result holds them, with one estimate of each form: closed, open, and unknown."""

from dataclasses import replace

import numpy as np

from fedclust.result.facts import Facts
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.outcomes import (
    Estimate,
    OutcomeComparison,
    OutcomeInCluster,
    OutcomeResult,
    Outcomes,
    SurvivalPoint,
)
from support.results import facts_of

DIED = Outcome(name="died", role="outcome", kind="binary", points=10)
WARD = Outcome(name="ward", role="outcome", kind="categorical", levels=("icu", "step-down", "home"))
STAY = Outcome(
    name="stay",
    role="outcome",
    kind="ordered",
    unit="days",
    edges=(3, 7, 14),
    values=(1.5, 5, 10, 20),
    points=50,
)
RELAPSE = Outcome(
    name="relapse",
    role="outcome",
    kind="time",
    unit="months",
    edges=(6, 12, 24, 36),
    event="relapsed",
    points=25,
)
DECLARED = (DIED, WARD, STAY, RELAPSE)
CLOSED = Estimate(value=2.31, lower=1.4, upper=3.8)
AT_LEAST = Estimate(value=3.1, lower=2.3, upper=None)
AT_MOST = Estimate(value=0.4, lower=None, upper=0.8)
UNKNOWN = Estimate(value=None, lower=None, upper=None)
_MEASURES = {
    "binary": ("odds_ratio", "risk_difference"),
    "ordered": ("superiority", "mean_difference"),
    "time": ("rate_ratio",),
}


def outcome_facts(declared: tuple[Outcome, ...] = DECLARED, n_clusters: int = 4) -> Facts:
    """Return what a report says of these outcomes: cluster 0 is the largest, sites are a and b."""
    facts = facts_of(np.arange(2.0 * n_clusters).reshape(n_clusters, 2), ("age", "lactate"))
    found = Outcomes(
        n_clusters=n_clusters,
        reference=0,
        results=tuple(outcome_result(each, n_clusters) for each in declared),
    )
    features = (*(Feature(name=name) for name in ("age", "lactate")), *declared)
    return replace(
        facts,
        result=facts.result.model_copy(update={"outcomes": found}),
        definition=facts.definition.model_copy(update={"features": features}),
    )


def outcome_result(outcome: Outcome, n_clusters: int, *, exact: bool = False) -> OutcomeResult:
    """Return an outcome's result; its comparisons are closed, open above, open below, unknown."""
    rng = np.random.default_rng(len(outcome.name))
    tables = {
        site: rng.integers(-4, 60, (n_clusters + 1, len(outcome.cells))) for site in ("a", "b")
    }
    return OutcomeResult(
        name=outcome.name,
        unit=outcome.unit,
        kind=outcome.kind,
        cells=outcome.cells,
        edges=outcome.edges,
        values=outcome.values,
        points=outcome.points,
        sigma=0.0 if exact else float(outcome.variance) ** 0.5,
        n_sites=2,
        tables=tables,
        total=tables["a"] + tables["b"],
        clusters=tuple(_in_cluster(outcome, k) for k in range(n_clusters)),
        comparisons=tuple(
            compared for k in range(1, n_clusters) for compared in _compared(outcome, k)
        ),
    )


def _in_cluster(outcome: Outcome, k: int) -> OutcomeInCluster:
    share = Estimate(value=0.123 + 0.1 * k, lower=0.1, upper=0.2 + 0.1 * k)
    number = Estimate(value=6.0 + k, lower=5.0 + k, upper=7.5 + k)
    if outcome.kind == "time":
        points = [SurvivalPoint(time=0.0, at_risk=90.2, survival=_survival(0.0, k))]
        points += [
            SurvivalPoint(time=t, at_risk=90 - 2 * t, survival=_survival(t, k))
            for t in outcome.edges or ()
        ]
        return OutcomeInCluster(
            persons=90.2, shares=(), survival=tuple(points), restricted_mean=number
        )
    many = 1 if outcome.kind == "binary" else len(outcome.cells) - 1
    ordered = outcome.kind == "ordered"
    return OutcomeInCluster(
        persons=-0.6 if k == 3 else 98.7,
        shares=(share,) * many,
        median=number if ordered else None,
        mean=number if ordered and outcome.values else None,
    )


def _survival(time: float, k: int) -> Estimate:
    left = float(np.exp(-0.01 * (k + 1) * time))
    return Estimate(value=left, lower=left**1.3, upper=left**0.7)


def _compared(outcome: Outcome, k: int) -> list[OutcomeComparison]:
    estimate = (CLOSED, AT_LEAST, AT_MOST, UNKNOWN)[(k - 1) % 4]
    known = estimate is CLOSED
    scale = {"risk_difference": 0.1, "superiority": 0.3}
    named = [(m, "") for m in _MEASURES.get(outcome.kind, ())]
    named += [("odds_ratio", level) for level in outcome.levels or ()]
    return [
        OutcomeComparison.model_validate(
            {
                "cluster": k,
                "measure": measure,
                "level": level,
                "estimate": scaled(estimate, scale.get(measure, 1.0)),
                "p_value": 0.0004 if known else None,
                "homogeneity_p": 0.31 if known else None,
                "by_site": {"a": scaled(estimate, scale.get(measure, 1.0))} if known else {},
            }
        )
        for measure, level in named
    ]


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return an estimate times a factor."""
    return Estimate(
        **{name: None if x is None else factor * x for name, x in vars(estimate).items()}
    )
