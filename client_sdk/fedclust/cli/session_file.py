"""Definitions and names that people write, checked before they are sent."""

import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedclust.cli.console import err, show
from fedclust.client.session_request import FieldNames, read_model
from fedclust.definition import check_definition
from fedclust.definition.json_text import read_json
from fedclust.schema.field_names import SLUG_RULE
from fedclust.schema.model import Slug
from fedclust.wire.errors import UsageError
from fedclust.wire.models import SessionCreate


def checked(kind: Any, text: str, refusal: str) -> str:
    """Return a text that is valid as this type; UsageError, with this message, for another."""
    try:
        return str(TypeAdapter(kind).validate_python(text))
    except ValidationError:
        raise UsageError(refusal) from None


def slug(name: str) -> str:
    """Return a valid name of a session, a site or an analyst; UsageError for another."""
    shown = f"{name[:64]!r}: " if name.isprintable() else ""
    return checked(Slug, name, f"{shown}a name is {SLUG_RULE}")


def source_name(path: Path) -> str:
    """Return what messages call a file; ``-`` is standard input."""
    return "standard input" if str(path) == "-" else str(path)


def _standard_input() -> bytes:
    # Python sets stdin to None where there is no standard input.
    if sys.stdin is None:
        return b""
    if sys.stdin.isatty():
        show(err, "reading the definition from standard input; Ctrl-D ends it")
    return sys.stdin.buffer.read()


def read_object(path: Path) -> dict[str, Any]:
    """Read a definition that may lack parts from a file, or for ``-`` from standard input.

    The file holds what creates a session, or what ``fedclust session show --json`` prints.
    """
    source = source_name(path)
    try:
        data = _standard_input() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from None
    if not data.strip():
        raise UsageError(f"{source} is empty: a definition is a JSON object, {{...}}")
    found = read_json(data, source)
    if isinstance(found, dict) and isinstance(found.get("definition"), dict):
        found = found["definition"]
    if not isinstance(found, dict):
        raise UsageError(f"{source}: a definition is a JSON object, {{...}}")
    return {
        key: value
        for key, value in found.items()
        if key not in ("method_version", "engine_version")
    }


def read_definition_file(path: Path) -> SessionCreate:
    """Read a complete definition that keeps the rules; UsageError that names its faults.

    It needs no name: ``session create`` gives it one.
    """
    names = FieldNames({}, source=source_name(path))
    body = read_model(SessionCreate, {"name": "unnamed", **read_object(path)}, names)
    with names.applied():
        check_definition(body)
    return body
