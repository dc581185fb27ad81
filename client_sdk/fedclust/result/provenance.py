"""The software and platform that made a result; its last bits depend on them."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import PackageNotFoundError, version

from fedclust.wire.codec import canonical_json

_LIBRARIES = ("numpy", "scipy", "scikit-learn")


def server_version(distribution: str = "fedclust") -> str:
    """Return the installed version of fedclust, or of the distribution of a method."""
    try:
        return version(distribution)
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


@functools.cache
def platform_of(distribution: str) -> bytes:
    """Return the numerical platform of this process as canonical JSON.

    It holds the versions of fedclust, of the distribution that has the method, and of the
    libraries; every loaded BLAS with its version and its kernel for this processor, because two
    kernels differ in the last bits; Python, system and machine.
    """
    # threadpoolctl comes with scikit-learn, whose numerical libraries it then finds loaded.
    import threadpoolctl

    found = {name: server_version(name) for name in ("fedclust", distribution)}
    found["python"] = platform.python_version()
    found |= {name: version(name) for name in _LIBRARIES}
    found |= {"system": platform.system(), "machine": platform.machine()}
    blas = {
        " ".join(str(each.get(part) or "?") for part in ("internal_api", "version", "architecture"))
        for each in threadpoolctl.threadpool_info()
        if each.get("user_api") == "blas"
    }
    found["blas"] = "; ".join(sorted(blas)) or "none found"
    return canonical_json(found)
