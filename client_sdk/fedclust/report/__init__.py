"""Reports of a result: profiles, sizes, quality and provenance as HTML, JSON and CSV.

They use only what the coordinator released; nothing here reads rows, files or the network::

    found = Facts(result, definition, document.provenance)
    html(found), json_text(found), csv_text(found)
"""

from fedclust.report.comparison import Comparison, compare, comparison_sections
from fedclust.report.drawing import Figure
from fedclust.report.facts import Cluster, ClusterColumn, Facts
from fedclust.report.figures import Plots, drawn_figures
from fedclust.report.markup import Section
from fedclust.report.methods_text import bibtex, methods_text
from fedclust.report.page import html, sections
from fedclust.report.tables import csv_text, json_text, report_bytes

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
