"""A site's rows: their sources, and how their columns match a session's features."""

from fedclust.data.chunks import DataWarning
from fedclust.data.mapping import Dataset
from fedclust.data.sql import SqlQuery
from fedclust.data.table import LabelRows, Source, Table, load

__all__ = [
    "DataWarning",
    "Dataset",
    "LabelRows",
    "Source",
    "SqlQuery",
    "Table",
    "load",
]
