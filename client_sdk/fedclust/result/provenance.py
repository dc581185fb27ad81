"""The software and platform that made a result; its last bits depend on them."""

import functools
import json
import platform
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version

from fedclust.definition import read_definition
from fedclust.methods.registry import METHODS
from fedclust.schema.result import Result
from fedclust.wire.codec import canonical_json, sha256, to_tree
from fedclust.wire.models import Provenance, ProvenanceEntry, ResultDocument

_LIBRARIES = ("numpy", "scipy", "scikit-learn")


@functools.cache
def platform_of(algorithm: str) -> bytes:
    """Return the numerical platform of this process as canonical JSON.

    It holds the versions of fedclust, of the distribution of the method ``algorithm``, and of the
    libraries; every loaded BLAS with its version and its kernel for this processor, because two
    kernels differ in the last bits; Python, system and machine.
    """
    # threadpoolctl comes with scikit-learn, whose numerical libraries it then finds loaded.
    import threadpoolctl

    found = {name: version(name) for name in ("fedclust", METHODS.distribution(algorithm))}
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


def result_document(
    content: bytes,
    result: Result,
    completed_at: datetime,
    platform_json: bytes,
    submissions: Iterable[ProvenanceEntry],
) -> ResultDocument:
    """Return a result with what it was computed from.

    Parameters
    ----------
    content : bytes
        The definition in canonical form.
    result : Result
    completed_at : datetime
    platform_json : bytes
        What :func:`platform_of` returned where the result was computed.
    submissions : iterable of ProvenanceEntry
        Every answer of the session.
    """
    definition, found = read_definition(content), json.loads(platform_json)
    sent = tuple(sorted(submissions, key=lambda each: (each.round, each.site)))
    provenance = Provenance(
        definition_sha256=sha256(content),
        algorithm=definition.algorithm,
        method_version=definition.method_version,
        engine_version=definition.engine_version,
        seed=definition.seed,
        sites=tuple(sorted({each.site for each in sent})),
        server_version=found["fedclust"],
        platform=found,
        submissions=sent,
    )
    return ResultDocument(
        session=definition.name,
        completed_at=completed_at,
        features=definition.features,
        result=to_tree(result),
        provenance=provenance,
    )
