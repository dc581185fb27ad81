"""The methods section and its references say all that was done, and no more."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from fedclust import rounds, simulate
from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust.result.facts import Facts
from fedclust.result.methods_text import bibtex, cited, entries, methods_text
from fedclust.result.page import html
from fedclust.schema.feature import Feature
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import (
    Bounds,
    CloudComparison,
    Likelihood,
    Quality,
    Result,
    SiteDifferences,
    Stability,
    SweepEntry,
)
from fedclust.schema.run_config import MethodOptions, Policy
from fedclust.wire.models import Definition
from support import results
from support.definitions import definition
from support.outcome_results import DIED, outcome_facts, outcome_result

ROOT = Path(__file__).parents[2]
FEATURES = [
    {"name": "age", "unit": "years", "lower": 0, "upper": 120},
    {"name": "crp", "unit": "mg/l", "lower": 0.1, "transform": "log", "weight": 2},
    {"name": "smoker", "kind": "binary"},
    {"name": "pain", "kind": "categorical", "levels": ["typical", "none"]},
]
VERSIONS = {"method_version": METHODS["fkm"].version, "engine_version": rounds.VERSION}
PLATFORM = {"fedclust": "0.1.0", "python": "3.12.1", "numpy": "2.1.0", "system": "Linux"}
PROVENANCE = results.PROVENANCE.model_copy(
    update={**VERSIONS, "server_version": "0.1.0", "platform": PLATFORM}
)


def definition_of(algorithm: str = "fkm", config: Any = None, **changes: Any) -> Definition:
    given = {
        "name": "heart-2026",
        "purpose": "To find types of patients with chest pain at four hospitals.",
        "algorithm": algorithm,
        **VERSIONS,
        "method_version": METHODS[algorithm].version,
        "config": config or {"n_clusters": 2},
        "sites": ["a", "b", "c", "d"],
    }
    return definition(*changes.pop("features", FEATURES), **{**given, **changes})


def result_of(**changes: Any) -> Result:
    given: dict[str, Any] = {
        "profile": None,
        "columns": ("age", "crp", "smoker", "pain=typical", "pain=none"),
        "limit": np.array([100.0, 100 * np.sqrt(2), 1.0, 1.0, 1.0]),
        "sizes": (60, 40),
        "site_sizes": {"a": (30, 20), "b": (20, 10), "c": (10, 10)},
        "quality": Quality(
            inertia=12.5, simplified_silhouette=0.5, davies_bouldin=0.75, n_rows=100
        ),
        "n_rounds": 6,
        "stopped_because": "converged",
    }
    return results.result_of(np.zeros((2, 5)), **{**given, **changes})


def facts_of(result: Result | None = None, definition: Definition | None = None) -> Facts:
    when = datetime(2026, 5, 4, 12, tzinfo=UTC)
    return Facts(result or result_of(), definition or definition_of(), PROVENANCE, when)


def test_the_text_of_a_result() -> None:
    facts = facts_of()
    text = methods_text(facts)
    for said in (
        "clustered 100 persons of 3 sites (a, b, c)",
        "4 sites invited (a, b, c, d), 1 sent nothing. The sites contributed between 20 and 50",
        "completed on 4 May 2026, 12:00 UTC",
        "4 variables: age (years, bounds 0 to 120); crp (mg/l, natural logarithm, lower bound 0.1,",
        "weight 2); smoker (yes/no); pain (categorical: typical, none).",
        "at most 100 standard deviations",
        "groups of at least 5 similar persons",
        f"(fkm, version {METHODS['fkm'].version}) [@garst2023; @lloyd1982]",
        "K cells by weighted k-means from 3 random starts and one farthest-first start",
        "8 of the best distinct partitions",
        "after every 3 rounds the worse half was dropped",
        "by more than 1e-06, relative, in two successive rounds",
        "seed 7. The method took 6 rounds (limit: 100) and ended because it had converged",
        "no fewer than 3 sites",
        "K = 2, was given. The result has 2 clusters. Over the groups' records",
        "inertia was 12.5, the simplified silhouette [@hruschka2004; @rousseeuw1987] 0.500",
        "index [@davies1979] 0.750",
        "clusters hold 60 and 40 persons.",
        "fedclust 0.1.0 with Python 3.12.1 and NumPy 2.1.0 under Linux",
    ):
        assert said in text
    # Sentences are put together without gaps.
    assert not re.search(r" {2}|\.\.| [.,;]|\.[A-Z]|None", text)
    found = bibtex(facts)
    assert set(re.findall(r"^@\w+\{(\w+),", found, re.M)) == set(cited(text))
    assert "version 0.1.0" in found
    page = html(facts)
    assert "<p>We clustered 100 persons" in page
    assert "@misc{fedclust," in page


def test_sites_of_one_size_are_said_without_a_range() -> None:
    same = result_of(site_sizes={"a": (30, 20), "b": (20, 30), "c": (25, 25)})
    text = methods_text(facts_of(same))
    assert "Each site contributed 50 persons." in text
    assert "between" not in text.partition("The clustering used")[0]


def test_typical_values_are_not_called_means() -> None:
    profile = results.profile_of(np.zeros((2, 5)), typical=("crp", "smoker"))
    facts = facts_of(result_of(profile=profile))

    said = "Clusters are described by typical values and shares of groups in crp and smoker, for "
    assert said in methods_text(facts)
    uncertain = profile.model_copy(update={"uncertain": np.eye(2, 5, dtype=np.bool_)})
    # Of age and crp in two clusters all but the age of the second.
    assert "3 of 4 values that describe a cluster by a number are typical values: the mean" in (
        methods_text(facts_of(result_of(profile=uncertain)))
    )


def test_a_sweep_names_its_measures_and_the_reason() -> None:
    entries_of_sweep = tuple(
        SweepEntry(
            n_clusters=k, inertia=10.0 / k, start_agreement=0.9, result=result_of(n_clusters=k)
        )
        for k in (2, 3)
    )
    definition = definition_of(config={"n_clusters": [2, 3]})
    swept = result_of(sweep=entries_of_sweep, n_clusters=2, recommendation="K = 2: because.")
    text = methods_text(facts_of(swept, definition))
    assert "compared K = 2 and 3." in text
    assert "K = 2: because." in text
    # Only what was measured is named.
    assert "[@hubert1985]" in text
    assert "The measures were the mean adjusted Rand index" in text
    other = methods_text(facts_of(result_of(n_clusters=3), definition))
    assert "that of K = 3" in other


def test_stability_has_its_sentences_and_papers() -> None:
    stability = Stability(
        n_models=100,
        jaccard=np.array([0.91, 0.55]),
        recovered=np.array([1.0, 0.2]),
        dissolved=np.array([0.0, 0.5]),
        consensus=np.eye(2),
    )
    cloud = CloudComparison(n_draws=20, p=0.002, cluster_p=np.array([0.01, 0.03]))
    facts = facts_of(result_of(stability=stability, one_cloud=cloud))
    text = methods_text(facts)
    assert "with 100 k-means models" in text
    assert "[@hennig2007] was 0.91 (cluster 0), 0.55 (cluster 1)." in text
    assert "hennig2007" in cited(text)


def test_the_comparison_with_one_cloud_has_its_sentences_and_papers() -> None:
    cloud = CloudComparison(n_draws=20, p=0.002, cluster_p=np.array([0.01, 0.3]))
    facts = facts_of(result_of(one_cloud=cloud))
    text = methods_text(facts)
    assert "by a t distribution: p = 0.002." in text
    assert "p was at most 0.05 for 1 of 2 clusters." in text
    assert {"helgeson2021", "cario1997", "tibshirani2001"} <= set(cited(text))
    unjudged = CloudComparison(n_draws=0, not_judged="A reason.")
    assert "not compared with one cloud. A reason." in methods_text(
        facts_of(result_of(one_cloud=unjudged))
    )


@pytest.mark.parametrize(
    ("choice", "tied", "says"),
    [
        ("apart", (), "K = 2 was the largest whose clusters were clearer than one cloud"),
        ("step", (2, 3), "K = 3 had the highest simplified silhouette."),
        ("step", (3, 4), "K = 3 gained most"),
        ("step", (3, 4), "K = 4 had the highest"),
        ("step", (3, 4), "The clusters described here are those of K = 2."),
        ("one-cloud", (), "The clusters described here are those of K = 2."),
        ("one-cloud", (), "At no K were the clusters clearer than one cloud (K = 2: p = 0.3)"),
    ],
)
def test_a_choice_is_described_without_advice(choice: str, tied: Any, says: str) -> None:
    own = result_of(one_cloud=CloudComparison(n_draws=20, p=0.3), n_clusters=2)
    swept = result_of(
        sweep=(SweepEntry(n_clusters=2, result=own),),
        n_clusters=2,
        choice=choice,
        tied=tied,
        recommendation="Do not report clusters as a finding.",
    )
    facts = facts_of(swept, definition_of(config={"n_clusters": [2, 3]}))
    text = methods_text(facts)
    assert says in text
    assert "Do not report" not in text


def test_differences_of_sites_have_their_sentences_and_paper() -> None:
    differ = SiteDifferences(columns={"a": ("x0",)}, cramers_v=0.25)
    text = methods_text(facts_of(result_of(site_differences=differ)))
    assert "columns of the sites were compared. Sites that seemed to code a column" in text
    assert "otherwise: 1. Cramér's V between site and cluster of groups (corrected" in text
    assert "for bias [@bergsma2013]) was 0.25." in text
    nothing = methods_text(facts_of(result_of(site_differences=SiteDifferences())))
    assert nothing == methods_text(facts_of(result_of()))


def test_outcomes_are_named_apart_with_their_noise_and_its_papers() -> None:
    outcome = {"name": "died", "kind": "binary", "role": "outcome"}
    declared = definition_of(features=[*FEATURES, outcome])
    unmeasured = methods_text(facts_of(definition=declared))
    assert "The clustering used 4 variables" in unmeasured
    assert "Outcomes were not counted" in unmeasured
    facts = outcome_facts()
    text = methods_text(facts)
    assert "The clustering used 2 variables" in text
    assert "were: died (yes/no); ward (categorical: icu, step-down, home); stay (days," in text
    assert "died 5 (10 points), ward 5 (10 points), stay 2.24 (50 points)" in text
    assert "rho = 0.38, and epsilon = 3.74 at delta = 1e-05" in text
    papers = {"canonne2020", "bun2016", "dong2022", "mantel1959", "fieller1954", "greenwood1926"}
    assert papers <= set(cited(text))
    assert not {"robins1986", "tarone1985"} & set(cited(text))
    found = Outcomes(n_clusters=2, reference=0, results=(outcome_result(DIED, 2, exact=True),))
    exact = replace(facts, result=facts.result.model_copy(update={"outcomes": found}))
    text = methods_text(exact)
    assert "The counts are exact." in text
    assert {"robins1986", "breslow1980", "tarone1985"} <= set(cited(text))
    assert not {"canonne2020", "greenwood1926"} & set(cited(text))


# --- every choice is named ------------------------------------------------------------------------


def other_values(model: type[MethodOptions], name: str, current: Any) -> Iterator[Any]:
    """Return values that an option might have."""
    annotation = str(model.model_fields[name].annotation)
    yield from re.findall(r"'(\w+)'", annotation)
    if current is None or not isinstance(current, bool):
        yield from (3, 4, 7, 50, 0.25, 0.5)
    if current is None or isinstance(current, bool):
        yield from (True, False)


#: Options that have an effect only with another one.
WITH = {"residual": {"update": "subgradient"}, "step": {"update": "subgradient"}}


def changed_options() -> Iterator[tuple[str, type[MethodOptions], dict[str, Any], str]]:
    """Return each option of each method and variant, with its defaults."""
    for method in METHODS:
        for model in variant_models(METHODS[method].options):
            fields = model.model_fields
            base = {"n_clusters": 2} | {
                key: get_args(fields[key].annotation)[0]
                for key in ("variant", "alignment")
                if key in fields
            }
            for name in fields:
                if name not in ("start", "centroids", *(set(base) - {"n_clusters"})):
                    yield method, model, base | WITH.get(name, {}), name


def test_each_option_of_each_method_is_named() -> None:
    for method, model, base, name in changed_options():
        current = getattr(model.model_validate(base), name)
        text = methods_text(facts_of(definition=definition_of(method, base)))
        same, tried = [], 0
        for value in other_values(model, name, current):
            try:
                options = model.model_validate({**base, name: value})
            except ValidationError:
                continue
            if getattr(options, name) == current:
                continue
            tried += 1
            config = options.model_dump(mode="json")
            changed = methods_text(facts_of(definition=definition_of(method, config)))
            same += [value] if changed == text else []
        assert tried > len(same), (method, name)
        # None stands for one of the values.
        assert len(same) <= (current is None), (method, name, same)


def test_given_first_centroids_are_named() -> None:
    config = {"n_clusters": 1, "start": "given", "centroids": [[50, 1, 0, 1, 0]]}
    text = methods_text(facts_of(definition=definition_of("lloyd", config)))
    assert "(50, 1, 0, 1, 0)" in text


#: Fields of the policy that change no number of a result that came about.
_PACE = {"round_timeout_s", "fail_after_s"}


@pytest.mark.parametrize("name", sorted(set(Policy.model_fields) - _PACE))
def test_each_field_of_the_policy_is_named(name: str) -> None:
    values: dict[str, Any] = {
        "protection": "none",
        "scaling": "none",
        "missing": "drop",
        "dissimilarity": "k-prototypes",
        "gamma": 0.25,
        "min_sites": 4,
    }
    common = {"dissimilarity": "k-prototypes"} if name == "gamma" else {}
    text = methods_text(facts_of(definition=definition_of(policy=common)))
    changed = definition_of(policy={**common, name: values.get(name, 9)})
    assert methods_text(facts_of(definition=changed)) != text


@pytest.mark.parametrize(
    ("dissimilarity", "paper"), [("k-prototypes", "huang1998"), ("gower", "gower1971")]
)
def test_a_dissimilarity_has_its_paper(dissimilarity: str, paper: str) -> None:
    declared = definition_of(policy={"dissimilarity": dissimilarity, "scaling": "bounds"})
    assert paper in cited(methods_text(facts_of(definition=declared)))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "weight"},
        {"unit": "months"},
        {"lower": 1},
        {"upper": 100},
        {"transform": "log1p"},
        {"weight": 3},
        {"kind": "binary", "lower": None, "upper": None, "unit": ""},
        {"kind": "categorical", "levels": ["a", "b"], "lower": None, "upper": None},
    ],
    ids=str,
)
def test_each_field_of_a_variable_is_named(change: dict[str, Any]) -> None:
    feature = {**Feature(**FEATURES[0]).model_dump(), **change}  # type: ignore[arg-type]
    changed = definition_of(features=[feature, *FEATURES[1:]])
    # Without limits: their number is that of the columns.
    without = result_of(limit=None)
    assert methods_text(facts_of(without, changed)) != methods_text(facts_of(without))


def test_what_is_not_known_is_not_in_the_text() -> None:
    bare = result_of(quality=None, sizes=None, site_sizes={}, limit=None, stopped_because="odd")
    text = methods_text(Facts(bare, definition_of(method_version=1)))
    assert "None" not in text
    assert "–" not in text
    assert "silhouette" not in text
    assert "completed on" not in text
    # A version of a method that this program does not know is described by its options.
    assert "fkm of fedclust (version 1), with these options: n_clusters: 2." in text
    bounds = Bounds(
        lower=1.0, upper=2.0, certified=True, statement="Proven.", n_clusters=2,
        iterations=3, limited=0, splits=0,
    )  # fmt: skip
    assert "a gap of 50 %. Proven." in methods_text(facts_of(result_of(bounds=bounds)))
    fit = Likelihood(
        log_likelihood=-250.5, n_parameters=9, n_rows=100, bic=542.4, icl=550.0,
        relative_entropy=0.875,
    )  # fmt: skip
    text = methods_text(facts_of(result_of(likelihood=fit)))
    assert "was -250.5 with 9 free parameters" in text
    assert "[@schwarz1978] 542.4; the relative entropy was 0.875." in text


def test_a_site_reads_nothing_of_the_other_sites_sizes() -> None:
    own = result_of(site_sizes={"b": (20, 10)})
    assert "sites contributed" not in methods_text(facts_of(own))
    assert "between 20 and 50" in methods_text(facts_of())


def test_a_simulation_says_so() -> None:
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(40, 2)) for name in ("oslo", "porto", "turku")}
    result = simulate("kfed", rows, config={"n_clusters": 2})
    text = result.methods_text()
    assert "in a simulation" in text
    assert "coordinator ran" not in text
    assert result.methods_text() == text
    assert "@misc{fedclust," in result.bibtex()


# --- references -----------------------------------------------------------------------------------


def test_every_entry_parses_and_every_key_exists() -> None:
    text = files("fedclust.result").joinpath("references.bib").read_text("utf-8")
    found = entries()
    assert len(found) == len(re.findall(r"^@", text, re.M))
    for key, entry in found.items():
        assert entry.count("{") == entry.count("}"), key
        fields = dict(re.findall(r"^  (\w+) = \{(.+?)\},?$", entry, re.M | re.S))
        assert {"author", "title"} <= set(fields), key
        assert key == "fedclust" or re.fullmatch(r"\d{4}", fields["year"]), key
        assert re.search(r"\d{4}$", key) is None or key.endswith(fields["year"]), key
        if "doi" in fields:
            assert re.fullmatch(r"10\.\d{4,}/\S+", fields["doi"]), key
    for name, method in METHODS.items():
        assert method.references, name
        assert method.describe is not None, name
    used = {key for method in METHODS.values() for key in method.references}
    code = "".join(
        path.read_text("utf-8")
        for path in files("fedclust.result").iterdir()
        if path.name.endswith("_text.py")
    )
    for call in re.findall(r"cite\(([^*)]+)\)", code):
        used |= set(re.findall(r"['\"](\w+)['\"]", call))
    assert used <= set(found)


def test_the_wheel_has_the_references() -> None:
    """The build takes every file of the packages that git does not ignore."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    assert "client_sdk/fedclust" in wheel["packages"]
    assert not {"exclude", "include", "only-include"} & {*build, *wheel}
    place = ROOT / "client_sdk/fedclust/result"
    data = place / "references.bib"
    assert data.exists()
    git = subprocess.run(["git", "check-ignore", str(data)], cwd=ROOT, check=False)
    assert git.returncode != 0
