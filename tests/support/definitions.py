"""Sessions as analysts define them: in JSON, in a file, as a request, and frozen."""

import json
from pathlib import Path
from typing import Any

from fedclust.wire.models import Definition, SessionCreate
from support.purpose import PURPOSE


def session_body(*features: str | dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a request in JSON: fkm, two clusters, sites a, b and c, unless ``changes`` differ."""
    return {
        "name": "heart",
        "purpose": PURPOSE,
        "algorithm": "fkm",
        "config": {"n_clusters": 2},
        "features": [{"name": each} if isinstance(each, str) else each for each in features],
        "sites": ["a", "b", "c"],
        **changes,
    }


def session_file(path: Path, *features: str | dict[str, Any], **changes: Any) -> str:
    """Write a request to a file; return its path as an argument of a command."""
    path.write_text(json.dumps(session_body(*features, **changes)), "utf-8")
    return str(path)


def session_request(*features: str | dict[str, Any], **changes: Any) -> SessionCreate:
    """Return what the coordinator makes of a request in JSON."""
    return SessionCreate.model_validate_json(json.dumps(session_body(*features, **changes)))


def definition(*features: str | dict[str, Any], **changes: Any) -> Definition:
    """Return a frozen definition: version 1 of method and engine, seed 7."""
    frozen = {"method_version": 1, "engine_version": 1, "seed": 7, **changes}
    return Definition.model_validate_json(json.dumps(session_body(*features, **frozen)))
