"""A site's part in a session: consent, compute, send exactly once, resume, label."""

from fedclust.site.data_sources import DataSource as DataSource
from fedclust.site.data_sources import DataSources as DataSources
from fedclust.site.data_sources import data_source as data_source
from fedclust.site.participate import Site as Site
from fedclust.site.progress import Preview as Preview
from fedclust.site.progress import Progress as Progress
from fedclust.site.progress import SessionStatus as SessionStatus
