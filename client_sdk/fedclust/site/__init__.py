"""A site's part in a session: consent, compute, send exactly once, resume, label."""

from fedclust.site.data_sources import DataSource, DataSources, data_source
from fedclust.site.participate import Site
from fedclust.site.progress import Preview, Progress, SessionStatus

__all__ = [
    "DataSource",
    "DataSources",
    "Preview",
    "Progress",
    "SessionStatus",
    "Site",
    "data_source",
]
