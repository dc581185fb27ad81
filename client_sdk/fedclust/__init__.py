"""Clustering across organisations that may not pool their data.

At a site::

    from fedclust import Site

    with Site("https://coordinator.example", token="fcs_...") as site:
        result = site.participate("heart-2026", "cohort.csv")  # shows what would leave, and asks

In one process, to try things out::

    from fedclust import simulate

    result = simulate("lloyd", {"a": Xa, "b": Xb, "c": Xc}, config={"n_clusters": 4})

Everything but ``simulate`` is imported when it is first used. Only the estimators import
scikit-learn.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedclust.client import Client as Client
    from fedclust.local.estimators import FederatedKMeans as FederatedKMeans
    from fedclust.local.estimators import FederatedSpectralClustering as FederatedSpectralClustering
    from fedclust.local.simulate import simulate as simulate
    from fedclust.result.session_result import SessionResult as SessionResult
    from fedclust.schema.errors import MethodFailure as MethodFailure
    from fedclust.schema.errors import RuleViolation as RuleViolation
    from fedclust.schema.feature import Feature as Feature
    from fedclust.schema.run_config import Policy as Policy
    from fedclust.site import Site as Site
    from fedclust.wire import errors as errors
    from fedclust.wire.errors import FedclustError as FedclustError

    __version__: str

_LAZY = {
    "Client": "fedclust.client",
    "Feature": "fedclust.schema.feature",
    "FedclustError": "fedclust.wire.errors",
    "FederatedKMeans": "fedclust.local.estimators",
    "FederatedSpectralClustering": "fedclust.local.estimators",
    "MethodFailure": "fedclust.schema.errors",
    "Policy": "fedclust.schema.run_config",
    "RuleViolation": "fedclust.schema.errors",
    "SessionResult": "fedclust.result.session_result",
    "Site": "fedclust.site",
    "simulate": "fedclust.local.simulate",
}

__all__ = [*_LAZY, "__version__", "errors"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("fedclust")
    if name == "errors":
        return import_module("fedclust.wire.errors")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fedclust' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
