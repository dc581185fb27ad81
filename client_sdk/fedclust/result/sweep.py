"""Several numbers of clusters as one table: for page, notebook and terminal."""

from collections.abc import Sequence

from fedclust.result.one_cloud import n_apart
from fedclust.rounds.model_selection import p_text
from fedclust.schema.result import Likelihood, SweepEntry


def sweep_table(entries: Sequence[SweepEntry]) -> tuple[list[str], list[list[object]]]:
    """Return titles, and a row for each number of clusters.

    Columns of the comparison with one cloud and of the likelihood are there if any K has them.
    """
    titles = ["clusters", "inertia", "silhouette", "Davies-Bouldin", "agreement of starts"]
    rows: list[list[object]] = [
        [e.n_clusters, e.inertia, e.simplified_silhouette, e.davies_bouldin, e.start_agreement]
        for e in entries
    ]
    results = [entry.result for entry in entries]
    if any(each.cloud_p is not None for each in results):
        titles += ["against one cloud", "stand apart"]
        for row, each in zip(rows, results, strict=True):
            p, apart = each.cloud_p, n_apart(each)
            row.append("not judged" if p is None else p_text(p))
            row.append("not judged" if apart is None else f"{apart} of {len(each.centroids)}")
    if any(each.likelihood for each in results):
        titles += ["BIC", "entropy per person", "relative entropy"]
        for row, each in zip(rows, results, strict=True):
            fit = each.likelihood
            row += [bic_text(fit), fit and fit.entropy_per_person, fit and fit.relative_entropy]
    return titles, rows


def bic_text(found: Likelihood | None) -> str:
    """Return the BIC with all its digits, as only differences count; a dash for none."""
    return "–" if found is None else f"{found.bic:.1f}"
