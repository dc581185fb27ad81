"""A site's rows: where they come from, and how they match a session's features."""

from fedclust.data.table import Source, Table, load

__all__ = ["Source", "Table", "load"]
