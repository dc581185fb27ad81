"""The figures of a result, for its report, its page and notebooks: ``result.plot.profile()``.

One module a subject; each function returns a :class:`~fedclust.result.drawing.Figure`.
"""

from fedclust.result.figures.map import cluster_places, site_places
from fedclust.result.figures.plots import Plots, drawn_figures
from fedclust.result.figures.profile import (
    MOST_COLUMNS,
    difference_colour,
    differences,
    mean_of,
    ranked_columns,
)

__all__ = [
    "MOST_COLUMNS",
    "Plots",
    "cluster_places",
    "difference_colour",
    "differences",
    "drawn_figures",
    "mean_of",
    "ranked_columns",
    "site_places",
]
