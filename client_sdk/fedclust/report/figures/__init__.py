"""The figures of a result, for its report, its page and notebooks: ``result.plot.profile()``.

One module a subject; each function returns a :class:`~fedclust.report.drawing.Figure`.
"""

from fedclust.report.figures.map import has_map
from fedclust.report.figures.pairs import MOST_PAIRS, profile_pairs
from fedclust.report.figures.plots import Plots, drawn_figures
from fedclust.report.figures.profile import MOST_COLUMNS, difference_colour, mean_of, ranked_columns

__all__ = [
    "MOST_COLUMNS",
    "MOST_PAIRS",
    "Plots",
    "difference_colour",
    "drawn_figures",
    "has_map",
    "mean_of",
    "profile_pairs",
    "ranked_columns",
]
