"""lloyd at a site: local cells, exact Lloyd steps, labels by the nearest centroid."""

from __future__ import annotations

from fedclust.methods.common.assign import label
from fedclust.methods.common.kmeans_rounds import local_step

__all__ = ["label", "local_step"]
