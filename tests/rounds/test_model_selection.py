"""Which K is recommended, and what is said of it."""

from typing import Any

import numpy as np
import pytest

from fedclust.rounds.coordinator import report_recommended
from fedclust.rounds.model_selection import choose, cloud_sentences, sole_choice, start_agreement
from fedclust.rounds.resolution import FINER
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import CloudComparison, SweepEntry
from support.results import result_of


def test_starts_agree_at_the_clusters_there_are() -> None:
    centres = np.array([[0.0, 0], [9, 0], [0, 9], [9, 9]])
    rng = np.random.default_rng(4)
    means = np.repeat(centres, 10, axis=0) + rng.normal(scale=0.5, size=(40, 2))
    counts = rng.integers(5, 20, 40)
    found = {k: start_agreement(means, counts, k, 7) or 0.0 for k in (2, 3, 4, 6)}
    assert found[4] > 0.99
    assert max(found[2], found[3], found[6]) < 0.9
    assert start_agreement(means[:4], counts[:4], 4, 7) is None


def cloud(p: float, gap: float = 0.0, cluster_p: list[float] | None = None) -> CloudComparison:
    found = None if cluster_p is None else np.array(cluster_p)
    why = "The clusters are others." if cluster_p is None and p <= 0.05 else None
    about = {"p": p, "gap": gap, "gap_error": 0.05}
    return CloudComparison(n_draws=20, **about, cluster_p=found, not_judged=why)


def entry(
    k: int, one_cloud: CloudComparison | None = None, fine: bool = False, **measured: Any
) -> SweepEntry:
    warnings = (f"The {k} {FINER}: more.",) if fine else ("Something else.",)
    about = {"n_clusters": k, "one_cloud": one_cloud, "warnings": warnings}
    result = result_of(np.zeros((k, 1)), profile=None, **about)
    return SweepEntry(n_clusters=k, result=result, **measured)


def counted(of: SweepEntry) -> SweepEntry:
    """Return an entry at whose K outcomes were counted."""
    found = Outcomes(n_clusters=of.n_clusters, reference=0, results=())
    return of.model_copy(update={"result": of.result.model_copy(update={"outcomes": found})})


# --- beside one cloud -----------------------------------------------------------------------------


def test_the_largest_k_whose_clusters_all_stand_apart_and_gain_is_recommended() -> None:
    entries = [
        entry(2, cloud(0.001, 0.5, [0.01, 0.01]), simplified_silhouette=0.5),
        entry(3, cloud(0.002, 0.6, [0.01, 0.02, 0.05]), simplified_silhouette=0.6),
        entry(4, cloud(0.004, 0.64, [0.01] * 4), simplified_silhouette=0.4),
        entry(5, cloud(0.004, 0.9, [0.01, 0.2, 0.2, 0.01, 0.01]), simplified_silhouette=0.3),
    ]
    choice = choose(entries)
    assert (choice.n_clusters, choice.reason, choice.tied) == (3, "apart", ())
    assert choice.text.startswith(
        "K = 3: these clusters are clearer than those of artificial patients without clusters but "
        "with the same spread, skew and correlations (p = 0.002). Every cluster stands apart from "
        "its neighbours. The step from 1 to 2 clusters gains most, but K = 3 adds more than "
        "chance, and all its clusters stand apart. Those of K = 4 stand apart, too, but add no "
        "more than chance."
    )
    assert sole_choice(entries) == 3


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (cloud(0.01, 3.0, [0.01, 0.2, 0.2]), "but not all clusters of K = 3 stand apart."),
        (cloud(0.01, 3.0), "but whether the clusters of K = 3 stand apart is not judged."),
        (cloud(0.3, 3.0), "but K = 3 is no clearer than one cloud."),
        (cloud(0.01, 3.0, [0.01] * 3), "The step from 2 to 3 clusters gains most."),
    ],
)
def test_the_k_that_gains_most_is_named_with_the_reason_against_it(
    most: CloudComparison, said: str
) -> None:
    choice = choose([entry(2, cloud(0.01, 0.5, [0.01, 0.01])), entry(3, most)])
    assert said in choice.text


def test_without_such_a_k_the_largest_step_is_shown_and_not_called_apart() -> None:
    entries = [
        entry(2, cloud(0.2, 0.9), simplified_silhouette=0.7),
        entry(3, cloud(0.01, 1.4, [0.01, 0.3, 0.5]), simplified_silhouette=0.6),
        entry(5, cloud(0.01, 1.6, [0.01, 0.3, 0.5, 0.4, 0.4]), simplified_silhouette=0.5),
    ]
    choice = choose(entries)
    # K = 2 gains more, but no more than a cloud would.
    assert (choice.n_clusters, choice.reason, choice.tied) == (3, "step", (3, 2))
    for said in (
        "The step from 1 to 2 clusters gains most, but K = 2 is no clearer than one cloud.",
        "Clusters 1 and 2 do not stand apart more than pieces of one cloud.",
        "It may be a gradation, a curved cloud, or clusters that touch.",
        "0.700, but is no clearer than one cloud (p = 0.2): look at both.",
    ):
        assert said in choice.text
    assert sole_choice(entries) is None


def test_of_one_cloud_no_k_is_recommended() -> None:
    entries = [entry(2, cloud(0.74), simplified_silhouette=0.6), entry(3, cloud(0.051))]
    choice = choose(entries)
    assert (choice.n_clusters, choice.reason, choice.tied) == (2, "one-cloud", ())
    assert choice.text.startswith("One cloud: no separate clusters were found. ")
    assert "(K = 2: p = 0.74, K = 3: p = 0.051). Do not report clusters" in choice.text
    assert "yes/no" not in choice.text
    assert "share one trait to different degrees" in choose(entries, binary=True).text
    assert choice.text.endswith(" K = 2 is shown because it is the smallest.")
    assert sole_choice(entries) is None


@pytest.mark.parametrize(
    ("entries", "best", "reason"),
    [
        ([entry(k, cloud(0.5)) for k in (2, 3, 5)], 2, "one-cloud"),
        ([entry(k, simplified_silhouette=0.5) for k in (2, 3, 5)], 2, "silhouette"),
        ([entry(k, start_agreement=k / 9) for k in (2, 3, 5)], 5, "starts"),
    ],
)
def test_where_no_k_is_recommended_the_k_of_the_outcomes_is_shown(
    entries: list[SweepEntry], best: int, reason: str
) -> None:
    assert (choose(entries).n_clusters, choose(entries).reason) == (best, reason)
    entries[1] = counted(entries[1])
    choice = choose(entries)
    assert (choice.n_clusters, choice.reason) == (3, reason)
    assert choice.tied == ((2, 3, 5) if reason == "silhouette" else ())
    assert choice.text.endswith(" K = 3 is shown because outcomes were counted there.")
    assert sole_choice(entries) is None
    swept = entries[0].result.model_copy(update={"sweep": tuple(entries)})
    whole = report_recommended(swept, binary=False)
    assert (whole.n_clusters, whole.outcomes) == (3, entries[1].result.outcomes)


def test_a_recommended_k_is_shown_wherever_outcomes_were_counted() -> None:
    entries = [counted(entry(2, simplified_silhouette=0.4)), entry(3, simplified_silhouette=0.6)]
    assert (choose(entries).n_clusters, sole_choice(entries)) == (3, 3)
    assert "is shown" not in choose(entries).text


def test_one_clustering_is_described_by_the_same_sentences() -> None:
    def said(found: CloudComparison | None) -> str:
        return " ".join(cloud_sentences(entry(2, found).result))

    assert said(None) == ""
    assert said(CloudComparison(n_draws=0, not_judged="For a reason.")).endswith("For a reason.")
    assert "Do not report them as types." in said(cloud(0.2))
    assert "The clusters are others." in said(cloud(0.01))
    assert "Cluster 1 does not stand apart" in said(cloud(0.01, 0.1, [0.01, 0.06]))


# --- by silhouette --------------------------------------------------------------------------------


def test_the_reason_says_what_disagrees() -> None:
    entries = [
        entry(2, simplified_silhouette=0.2, davies_bouldin=1.5, start_agreement=0.99),
        entry(3, simplified_silhouette=0.21, davies_bouldin=1.6, start_agreement=0.4),
        entry(4, simplified_silhouette=0.1, davies_bouldin=1.1, start_agreement=0.8),
    ]
    choice = choose(entries)
    assert (choice.n_clusters, choice.tied) == (3, (3, 2))
    for said in (
        "within 0.02",
        "lowest at K = 4, 1.100",
        "agree on it by 0.40",
        "Below 0.25",
    ):
        assert said in choice.text, choice.text
    assert sole_choice(entries) is None
    assert sole_choice(entries[1:]) == 3
    # Equal silhouettes: the fewest clusters; nothing measured: the most stable.
    same = [entry(2, simplified_silhouette=0.5), entry(3, simplified_silhouette=0.5)]
    assert choose(same).n_clusters == 2
    choice = choose([entry(2, start_agreement=0.3), entry(3, start_agreement=0.95)])
    assert (choice.n_clusters, choice.reason) == (3, "starts")
    assert "not measured" in choice.text
    assert choose([entry(2), entry(5)]).n_clusters == 2


def test_a_k_finer_than_the_groups_is_not_recommended_while_there_are_others() -> None:
    entries = [
        entry(2, simplified_silhouette=0.5),
        entry(3, simplified_silhouette=0.6),
        entry(4, fine=True, simplified_silhouette=0.9),
        entry(5, fine=True, simplified_silhouette=0.8),
    ]
    choice = choose(entries)
    assert choice.n_clusters == 3
    assert "Left out: K = 4, 5, whose clusters are finer" in choice.text
    choice = choose(entries[2:])
    assert choice.n_clusters == 4
    assert "The clusters of every K are finer" in choice.text
