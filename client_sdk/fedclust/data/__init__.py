"""A site's rows: their sources, and how their columns match a session's features."""

from fedclust.data.chunks import DataWarning as DataWarning
from fedclust.data.mapping import Dataset as Dataset
from fedclust.data.sql import SqlQuery as SqlQuery
from fedclust.data.table import LabelRows as LabelRows
from fedclust.data.table import Source as Source
from fedclust.data.table import Table as Table
from fedclust.data.table import load as load
