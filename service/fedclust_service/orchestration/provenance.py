"""What a result was made with: recorded, because the last bits depend on it."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import PackageNotFoundError, version

from fedclust.wire.codec import canonical_json

_LIBRARIES = ("numpy", "scipy", "scikit-learn")


def server_version() -> str:
    """Return the version of the installed program."""
    try:
        return version("fedclust")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


@functools.cache
def platform_of() -> bytes:
    """Return the numerical platform of this process as canonical JSON.

    Libraries by version; every BLAS that is loaded with its version and the kernel it has chosen
    for this processor (two kernels differ in the last bits); Python, system and machine.
    """
    # threadpoolctl comes with scikit-learn, whose numerical libraries it then finds loaded.
    import threadpoolctl

    found = {"fedclust": server_version(), "python": platform.python_version()}
    found |= {name: version(name) for name in _LIBRARIES}
    found |= {"system": platform.system(), "machine": platform.machine()}
    blas = {
        " ".join(str(each.get(part) or "?") for part in ("internal_api", "version", "architecture"))
        for each in threadpoolctl.threadpool_info()
        if each.get("user_api") == "blas"
    }
    found["blas"] = "; ".join(sorted(blas)) or "none found"
    return canonical_json(found)
