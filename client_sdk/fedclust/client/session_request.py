"""What creates a session or a study, as analysts write it: checked before it is sent.

Rules are checked here and by the coordinator. Both name a field by a JSON pointer; a command names
the option that the person gave, or the field in the person's file.
"""

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from fedclust.definition import DefinitionError
from fedclust.definition.study import SessionOfStudy, StudyCreate, StudyInfo
from fedclust.schema.field_names import (
    field_errors,
    field_path,
    nearest_name,
    unknown_field_message,
)
from fedclust.schema.model import Model, json_value
from fedclust.wire import codec, errors
from fedclust.wire.errors import FieldError, UsageError
from fedclust.wire.models import Definition, SessionCreate


@dataclass(frozen=True)
class FieldNames:
    """How a command's person knows fields.

    Attributes
    ----------
    options : mapping of str to str
        The option or argument behind a JSON pointer, and behind all pointers below it. A key
        without a slash is the last part of a pointer.
    given : collection of str, optional
        The options that were given; by default all. Fields of others come from ``source``.
    source : str
        What holds the other fields, such as a file; "" for none.
    """

    options: Mapping[str, str]
    given: frozenset[str] | None = None
    source: str = field(default="")

    def name(self, pointer: str) -> str:
        """Return the option behind a pointer, or the field and what holds it."""
        parts = pointer.split("/")
        prefixes = ("/".join(parts[:n]) for n in range(len(parts), 1, -1))
        known = next(filter(self._option, prefixes), None)
        option = None if known is None else self._option(known)
        if option is not None and (self.given is None or option in self.given or not self.source):
            rest = pointer.removeprefix(str(known)).strip("/").split("/")
            if rest[0].isdecimal():
                return f"{option}, entry {int(rest[0]) + 1}"
            return " ".join([option, *filter(None, rest)])
        path = field_path(pointer)
        if not self.source:
            return path
        place = f"{path} in {self.source}" if path else self.source
        return f"{place} (or {option})" if pointer == known else place

    def _option(self, pointer: str) -> str | None:
        return self.options.get(pointer) or self.options.get(pointer.rpartition("/")[2])

    def error(self, faults: Iterable[FieldError]) -> errors.UsageError:
        """Return the error that names each field."""
        said = []
        for fault in faults:
            name = self.name(fault.pointer)
            said.append(f"{name}: {fault.message}" if name else fault.message)
        return errors.UsageError("; ".join(said))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Turn a refusal of a request's contents, here or there, into the command's own error."""
        try:
            yield
        except ValidationError as error:
            raise self.error(field_errors(error)) from None
        except (errors.Invalid, DefinitionError) as error:
            if not error.errors:
                raise
            raise self.error(error.errors) from None


M = TypeVar("M", bound=Model)
#: Fields of a definition that its author did not write.
_FROZEN = frozenset({"method_version", "engine_version", "seed"})
_PLAIN_NAMES = FieldNames({}, source="the definition")


def read_model(model: type[M], body: Mapping[str, Any], names: FieldNames = _PLAIN_NAMES) -> M:
    """Return the definition of a session or a study; UsageError that names all of its faults."""
    try:
        text = codec.canonical_json(dict(body))
    except (TypeError, ValueError):
        raise UsageError(
            f"{names.source}: only text, finite numbers, lists and mappings can be given"
        ) from None
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        unknown = functools.partial(unknown_field_message, model)
        faults = field_errors(error, unknown=unknown)
    raise names.error(faults)


def read_study(body: Mapping[str, Any], names: FieldNames = _PLAIN_NAMES) -> StudyCreate:
    """Return the study that a mapping describes; UsageError that names all faults.

    A feature may be its name alone, for a number without bounds.
    """
    return read_model(StudyCreate, _with_features(json_value(body), None, names), names)


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)


def read_session(
    written: SessionCreate | Mapping[str, Any],
    start: Definition | None,
    get_study: Callable[[str], StudyInfo],
    names: FieldNames = _PLAIN_NAMES,
    tell: Callable[[str], None] = _warn,
) -> SessionCreate:
    """Return the session that a mapping describes; UsageError that names all faults.

    A feature may be its name alone: the study's feature of this name, or without a study a number
    without bounds.

    Parameters
    ----------
    written : SessionCreate or mapping
    start : Definition, optional
        That of another session, which the mapping changes.
    get_study : callable
        Returns the study of a name.
    names : FieldNames, optional
    tell : callable
        Takes what names the options of ``start`` that are dropped.
    """
    if isinstance(written, SessionCreate):
        if start is not None:
            raise UsageError("from_session needs the definition as a mapping of what differs")
        return written
    body = dict(written)
    if start is not None:
        body, dropped = inherit(start, body)
        if dropped:
            tell(dropped)
    name, features = body.get("study"), body.get("features")
    by_name = isinstance(features, (list, tuple)) and any(isinstance(f, str) for f in features)
    study = get_study(str(name)) if by_name and name is not None else None
    model = SessionCreate if name is None else SessionOfStudy
    return read_model(model, _with_features(json_value(body), study, names), names)


def inherit(definition: Definition, changes: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a definition that starts from another session's, and what names dropped options.

    ``changes`` replace fields; those in ``config`` and ``policy`` replace single options. The seed
    is drawn again. With another algorithm only the number of clusters is taken over of ``config``;
    in another study the sites are not.
    """
    known = definition.model_dump(mode="json")
    body = {key: value for key, value in known.items() if key not in _FROZEN}
    dropped = ""
    if changes.get("algorithm", definition.algorithm) != definition.algorithm:
        n_clusters = definition.config.get("n_clusters")
        if options := ", ".join(sorted(set(definition.config) - {"n_clusters"})):
            dropped = f"not taken over from {definition.name}: options of {definition.algorithm} "
            dropped += f"({options})"
        body["config"] = {} if n_clusters is None else {"n_clusters": n_clusters}
    if changes.get("study") not in (None, definition.study):
        del body["sites"]  # the sites of a session are those of its study
    for part in ("config", "policy"):
        if isinstance(changes.get(part), Mapping):
            changes = {**changes, part: {**body[part], **changes[part]}}
    return {**body, **changes}, dropped


def _with_features(
    body: dict[str, Any], study: StudyInfo | None, names: FieldNames
) -> dict[str, Any]:
    """Return a definition without names alone: the study's features, or numbers without bounds.

    Raises
    ------
    UsageError
        The study has features, but none of this name.
    """
    features = body.get("features")
    if not isinstance(features, list):
        return body
    known: dict[str, list[dict[str, Any]]] = {}
    for each in (study and study.features) or ():
        # A column that is a feature and an outcome is declared twice.
        known.setdefault(each.name, []).append(each.model_dump(mode="json"))
    declared: list[Any] = []
    for each in features:
        if known and isinstance(each, str) and each not in known:
            near = nearest_name(each, known)
            meant = f': did you mean "{near}"?' if near else "."
            raise UsageError(
                f'{names.name("/features")}: study {body["study"]} has no feature "{each}"{meant} '
                f"It has: {', '.join(known)}"
            )
        declared += known.get(each, [{"name": each}]) if isinstance(each, str) else [each]
    return {**body, "features": declared}
