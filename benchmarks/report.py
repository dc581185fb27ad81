"""Write the pages of ``docs/results`` and their figures from the JSON of the other benchmarks.

The index names the benchmarks that were not run on this machine.
"""

import json
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from _report import RESULTS, cell
from fedclust.result.drawing import line_chart

DOCS = Path(__file__).parents[1] / "docs"
Document = dict[str, Any]


class Page(NamedTuple):
    """A page of ``docs/results``.

    Attributes
    ----------
    about : str
        What the page compares.
    parts : tuple of (str, str)
        Headings, each with the name of the JSON file that has the table.
    """

    file: str
    title: str
    about: str
    parts: tuple[tuple[str, str], ...]


PAGES = (
    Page(
        "fkm",
        "FKM (Garst & Reinders)",
        "The method `fkm` on the data of its paper, compared with central k-means.",
        (
            ("Figures 1 and 4: the paper's own data", "fkm_figures1and4"),
            ("Figure 3: over the rounds", "fkm_figure3"),
            ("Ablation", "fkm_ablation"),
            ("How far from central", "fkm_reach"),
            ("Figure 6: 50, 100 and 200 rows a centre", "fkm_figure6"),
            ("Figure 5: FEMNIST", "fkm_figure5"),
        ),
    ),
    Page(
        "kfed",
        "k-FED (Dennis, Li & Smith)",
        "One-shot clustering, the method `kfed`, on the mixtures and splits of its paper.",
        (
            ("Table 1: mixtures of Gaussians", "kfed_table1"),
            ("Figure 1: separation", "kfed_figure1"),
            ("Figure 2: structured against IID splits", "kfed_figure2"),
            ("Figure 3: one shot against naive distributed k-means", "kfed_figure3"),
            ("FKM's uneven and nearest-client splits in one shot", "kfed_uneven"),
            ("Late joiners", "kfed_late"),
            ("Diagnostics", "kfed_diagnostics"),
            ("Table 2: models by cluster", "kfed_table2"),
            ("Figure 4: choosing clients", "kfed_figure4"),
        ),
    ),
    Page(
        "spectral",
        "Spectral clustering (Hernandez-Pereira et al.)",
        "The method `spectral`: the paper's tables, and the default on small sites.",
        (
            ("Table 2: even splits", "spectral_table2"),
            ("Table 2 on uneven splits", "spectral_dirichlet"),
            ("Table 3: processor time", "spectral_table3"),
            ("The default variant", "spectral_reach"),
            ("Small sites: three rings", "spectral_rings"),
        ),
    ),
    Page(
        "overlap",
        "Overlapping features (Maritan & Schenato)",
        "The method `overlap`, for sites with different features, in several rounds.",
        (
            ("Table 1: Assumption 8's rate", "overlap_table1"),
            ("Tables 2 and 3", "overlap_tables23"),
            ("Heart disease, each hospital's own features, several rounds", "overlap_heart"),
            ("Heart disease, the features that all hospitals have", "overlap_heart_shared"),
            ("Growth of meta-clustering", "overlap_growth"),
        ),
    ),
    Page(
        "overlap_oneshot",
        "One round with overlapping features",
        "The method `overlap_oneshot`, for sites with different features, in one round.",
        (
            ("Tables 4 and 5", "overlap_oneshot_tables45"),
            ("Figure 7: the power of the distance", "overlap_oneshot_figure7"),
            ("Figure 7 itself", "overlap_oneshot_figure7_toy"),
            ("The number of clusters", "overlap_oneshot_number"),
            ("Heart disease, each hospital's own features", "overlap_oneshot_heart"),
            ("Growth in sites and clusters", "overlap_oneshot_growth"),
        ),
    ),
    Page(
        "dual",
        "Dual decomposition (Yfantis et al.)",
        "The method `dual`: bounds and gaps on the published problems.",
        (
            ("Tables II and III: the published problems", "dual_published"),
            ("The published problems at p = 5", "dual_protected"),
            ("Closing the gap by cutting the region", "dual_closing"),
            ("The same with equation 36 itself", "dual_reference"),
            ("Table III: three and four dimensions, made from the text", "dual_made"),
            ("Figure 6: the gap by iteration", "dual_figure6"),
            ("A clinical question", "dual_clinical"),
        ),
    ),
    Page(
        "bad_site",
        "One bad site",
        "What one site with wrong values does to the clusters of the others.",
        (
            ("The honest sites' clusters", "bad_site"),
            ("Honest sites, with the rule and without", "bad_site_honest"),
        ),
    ),
    Page(
        "table_one",
        "Table 1",
        "How often the means of table 1 and the words of cards are right, and why nothing prints "
        "standard deviations.",
        (("Means, standard deviations and words, of which kinds of data", "table_one"),),
    ),
    Page(
        "trajectories",
        "Trajectories",
        "Whether a session finds trends over time: from values on a grid, and from summaries.",
        (("Trends as the R packages kml and latrend make them", "trajectories"),),
    ),
    Page(
        "choosing_k",
        "Choosing the number of clusters",
        "What it costs to compare several numbers of clusters, and which number is recommended.",
        (
            ("A sweep and one run", "sweep"),
            ("What is recommended", "sweep_recommends"),
        ),
    ),
    Page(
        "evidence",
        "Clusters against one cloud",
        "How often clusters are endorsed that are not there, and which ones that are there.",
        (
            ("Rows without clusters", "evidence_clouds"),
            ("Without clusters, values missing", "evidence_missing"),
            ("Rows with clusters", "evidence_clusters"),
            ("Known data sets", "evidence_real"),
            ("Time", "evidence_time"),
        ),
    ),
    Page(
        "stability",
        "Stability",
        "How often clusters are found again in resampled data, and what it costs to know.",
        (
            ("Clusters that are there, and others", "stability_known"),
            ("Against a bootstrap of rows", "stability_rows"),
            ("Without clusters", "stability_clouds"),
            ("Time", "stability_time"),
        ),
    ),
    Page(
        "cost",
        "What it costs",
        "Time, memory and bytes of sites and coordinator, and what protection costs.",
        (
            ("A session of each method", "methods"),
            ("k-means methods compared", "methods_compared"),
            ("Out of core, on a Parquet file", "scale_parquet"),
            ("The service against a bare floor", "floor"),
            ("A submission with many sites", "load"),
            ("Several workers on PostgreSQL", "workers"),
            ("Three workers under faults", "history"),
            ("One flooding client", "floods"),
            ("Pages of a coordinator with 1,000 sessions", "pages"),
            ("Aggregating 1,000 sites", "aggregate"),
            ("Requests while it aggregates", "aggregate_beside"),
            ("What protection costs", "protection"),
            ("Common thresholds", "thresholds"),
        ),
    ),
)

#: Written by hand from what `make bench support` prints.
SUPPORT = Page(
    "support",
    "Does it give what the rows give?",
    "A study of 9,105 real patients at eight hospitals, compared with its pooled rows.",
    (),
)

HEAD = """\
# Results

For people who judge how good the methods are, and what protection costs. These pages repeat the
tables of the papers and compare them with this program.

`make bench report` writes them from `benchmarks/results/*.json`. `make bench` prints the same
tables from few runs, in about 45 minutes. `make bench fkm ARGS="--runs 200"` takes FKM's number of
runs, `make bench kfed ARGS="--runs 10"` k-FED's, and `make bench spectral ARGS="--runs 20"` that of
distributed spectral clustering. An interrupted run continues where it stopped.
"""

WORDS_ARE_IN_INDEX = " The [overview](index.md#words) explains the words."
WORDS = """\
*paper*: the paper variant on exact rows (`protection: none`). *default*: what a hospital should
use, on exact rows too. *p=5*: the default on protected tables. *guard*: the disclosure control that
protected tables have replaced. ± is one standard deviation over seeds.
"""


def main() -> None:
    documents = {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))
    }
    for path, text in pages(documents).items():
        (DOCS / "results" / path).write_text(text, "utf-8")
    names = [name for page in PAGES for _, name in page.parts]
    print(f"docs/results: {len(documents.keys() & set(names))} of {len(names)} parts")


def pages(documents: dict[str, Document]) -> dict[str, str]:
    """Return the text of each page by its file, and write the figures."""
    names = [name for page in PAGES for _, name in page.parts]
    machines = sorted({documents[name]["machine"] for name in names if name in documents})
    shown = {
        page: [(heading, name) for heading, name in page.parts if name in documents]
        for page in PAGES
    }
    found = {}
    for page, parts in shown.items():
        head = f"# {page.title}\n\n{_fill(page.about + WORDS_ARE_IN_INDEX)}\n"
        bodies = [
            "\n".join([f"## {heading}\n", _table(documents[name]), _figures(name, documents[name])])
            for heading, name in parts
        ]
        found[f"{page.file}.md"] = "\n".join([head, *bodies]).rstrip() + "\n"
    every = (SUPPORT, *PAGES)
    listed = "\n".join(f"| [{page.title}]({page.file}.md) | {page.about} |" for page in every)
    absent = [name for name in names if name not in documents]
    index = [
        HEAD,
        # Said once: all parts should come from one machine.
        f"Measured on {'; '.join(machines)}.\n" if machines else "",
        f"| page | what it shows |\n|---|---|\n{listed}\n",
        f"## Words\n\n{WORDS}",
        f"## Not run for these pages\n\n{_fill(', '.join(absent))}\n" if absent else "",
    ]
    return {"index.md": "\n".join(filter(None, index)), **found}


def _fill(text: str) -> str:
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _table(document: Document) -> str:
    shown = [c for c in document["rows"][0] if c not in document.get("hidden", ())]
    written = [shown, ["---"] * len(shown)]
    written += [[cell(row[column]) for column in shown] for row in document["rows"]]
    text = "\n".join("| " + " | ".join(row) + " |" for row in written)
    note = _fill(document.get("note", ""))
    return f"{text}\n\n{note}\n" if note else f"{text}\n"


# --- figures --------------------------------------------------------------------------------------


def _figures(name: str, document: Document) -> str:
    """Write the part's figures, and return the lines that show them."""
    drawn: dict[str, tuple[str, str, str, dict[str, Any]]] = {}
    rows = document["rows"]
    if name == "fkm_figure3":
        for noise in sorted({row["noise"] for row in rows}):
            series = {
                row["split"]: [(r + 1, ari) for r, ari in enumerate(row["curve"])]
                for row in rows
                if row["noise"] == noise
            }
            title = f"FKM's paper variant, noise {noise:g}"
            drawn[f"fkm_rounds_{noise:g}"] = (title, "round", "ARI per client", series)
    elif name == "kfed_figure1":
        for k in sorted({row["k"] for row in rows}):
            part = [row for row in rows if row["k"] == k]
            names = [
                n
                for n in part[0]
                if n not in ("k", "separation / sd", "reference")
                and all(_mean(row[n]) is not None for row in part)
            ]
            series = {
                n: [(row["separation / sd"], _mean(row[n]) or 0.0) for row in part] for n in names
            }
            title = f"k-FED on {k} Gaussians, d = 100"
            drawn[f"kfed_separation_{k}"] = (
                title,
                "least distance of means / sd",
                "accuracy",
                series,
            )
    elif name == "fkm_figure6":
        columns = [c for c in rows[0] if c not in ("points", "split", "noise")]
        for split in dict.fromkeys(row["split"] for row in rows):
            part = [row for row in rows if row["split"] == split and row["points"] == 50]
            series = {c: [(row["noise"], _mean(row[c]) or 0.0) for row in part] for c in columns}
            file = f"fkm_noise_{split.replace(' ', '_')}"
            drawn[file] = (f"50 rows a centre, {split}", "noise", "ARI per client", series)
    elif name == "dual_figure6":
        series = {row["rule"]: list(enumerate(row["curve"], 1)) for row in rows}
        drawn["dual_gap"] = ("2N2D4K_3, cells", "dual round", "gap of the best bounds, %", series)
    elif name == "kfed_figure4":
        series = {row["selection"]: list(enumerate(row["curve"], 1)) for row in rows}
        drawn["kfed_selection"] = ("Choice of clients, digits", "round", "test accuracy", series)
    for file, (title, x_name, y_name, series) in drawn.items():
        line_chart(title, x_name, y_name, series).save(DOCS / "figures" / f"{file}.svg")
    return "".join(
        f"{plot[0]}:\n\n![{plot[0]}](../figures/{file}.svg)\n\n" for file, plot in drawn.items()
    )


def _mean(text: str) -> float | None:
    """Return the mean at the beginning of a cell of a table."""
    return None if text == "-" else float(text.split()[0])


if __name__ == "__main__":
    main()
