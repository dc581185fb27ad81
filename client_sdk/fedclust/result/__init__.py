"""A result and what is made of it: labels of rows, its file, reports as HTML, JSON and CSV.

Reports use only what the coordinator released; they read no rows::

    found = Facts(result, definition, document.provenance)
    html(found), json_text(found), csv_text(found)
"""

from fedclust.result.comparison import Comparison, compare, comparison_sections
from fedclust.result.drawing import Figure
from fedclust.result.facts import Cluster, ClusterColumn, Facts
from fedclust.result.figures import Plots, drawn_figures
from fedclust.result.markup import Section
from fedclust.result.methods_text import bibtex, methods_text
from fedclust.result.page import html, sections
from fedclust.result.tables import csv_text, json_text, report_bytes

__all__ = [
    "Cluster",
    "ClusterColumn",
    "Comparison",
    "Facts",
    "Figure",
    "Plots",
    "Section",
    "bibtex",
    "compare",
    "comparison_sections",
    "csv_text",
    "drawn_figures",
    "html",
    "json_text",
    "methods_text",
    "report_bytes",
    "sections",
]
