"""Name the fields of models in messages: where they are, and which was meant."""

import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedclust.schema.feature import Feature, Outcome, Trajectory
from fedclust.schema.model import SLUG, Model

#: What a name of a session, a site or an account consists of.
SLUG_RULE = "a-z, 0-9 and hyphens, at most 63, and no hyphen first"
#: Where a field is, as pydantic says it.
Location = Sequence[str | int]
#: Returns the message for an unknown field at a place; None does not say which field it is.
UnknownField = Callable[[Location], str] | None
#: What a definition lists, by the tag that pydantic puts into a place after the index. No field has
#: such a name, so a JSON pointer lacks it.
_ROLES: Mapping[str, type[BaseModel]] = {
    "feature": Feature,
    "outcome": Outcome,
    "trajectory": Trajectory,
}
#: Names of unknown fields that may be repeated: short, and written as fields are. A value that
#: was put in the place of a name rarely is.
_FIELD_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


class FieldError(BaseModel):
    """One offending field. Never holds the offending input."""

    model_config = ConfigDict(extra="ignore")
    pointer: str
    rule: str
    message: str

    def __str__(self) -> str:
        path = field_path(self.pointer)
        return f"{path}: {self.message}" if path else self.message


def field_errors(
    error: ValidationError, at: str = "", *, union: bool = False, unknown: UnknownField = None
) -> list[FieldError]:
    """Turn pydantic's errors into JSON pointers, without any value that the sender wrote.

    The name of a field that does not exist is the sender's: the pointer names its parent. pydantic
    drops faulty members of a list, and then finds it too short as well: that is left out.

    Parameters
    ----------
    error : ValidationError
    at : str
        Pointer to what was validated.
    union : bool
        Whether places begin with the name of one of several models, which is left out.
    unknown : callable, optional
        Returns the message for an unknown field at a place, such as
        :func:`unknown_field_message`. By default the message does not
        say which field it is.
    """
    errors = []
    if error.error_count() > 10_000:  # listing millions takes minutes and gigabytes
        return [FieldError(pointer=at, rule="too-many-errors", message="nearly all of it is wrong")]
    for item in error.errors(include_url=False, include_input=False)[:20]:
        location = list(item["loc"][union:])
        message = _plain_message(item["type"], item["msg"], item.get("ctx", {}))
        if location[-2:] == ["feature", "kind"]:  # a trajectory has a model of its own
            message = message.replace(" or ", ", ") + " or 'trajectory'"
        if item["type"] == "extra_forbidden":
            message = message if unknown is None else unknown(location)
            location = location[:-1]
        if item["type"] == "union_tag_invalid":
            location = [*location, "role"]
        place = at + pointer(location)
        errors.append(FieldError(pointer=place, rule=item["type"], message=message))
    return [
        each
        for each in errors
        if each.rule != "too_short"
        or not any(other.pointer.startswith(f"{each.pointer}/") for other in errors)
    ]


def _plain_message(rule: str, message: str, context: dict[str, Any]) -> str:
    """Return a message of pydantic in the words of the other messages."""
    plain = {
        "extra_forbidden": "there is a field here that is not in the schema",
        "value_error": "the value is not valid",
        "missing": "this is required",
        "union_tag_invalid": "it should be 'feature' or 'outcome'",
    }
    if rule in plain:
        return plain[rule]
    if rule == "string_pattern_mismatch" and SLUG in str(context.get("pattern")):
        return f"a name is {SLUG_RULE}"
    if rule == "string_pattern_mismatch" and "@(localhost|" in str(context.get("pattern")):
        return "this is no e-mail address; use one such as it@hospital.example"
    message = message.replace("a valid integer", "a whole number")
    valid = "a number such as 10080 or 10.08, without a mark between thousands"
    message = re.sub("a valid number(, unable to parse.*)?", valid, message)
    message = re.sub(r" after validation, not \d+$", "", message)
    return re.sub(r"^\w+ should ", "it should ", message)


def unknown_field_message(model: type[BaseModel], location: Location) -> str:
    """Return the message for an unknown field of a model: its name, if plain, and known ones."""
    parent = _model_at(model, location[:-1])
    return unknown_name_message("field", str(location[-1]), parent.model_fields if parent else ())


def unknown_name_message(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: the nearest known one, or all of them."""
    names = list(known)
    said = f'unknown {what} "{name}"' if _FIELD_NAME.fullmatch(name) else f"unknown {what}"
    near = nearest_name(name, names)
    said += f': did you mean "{near}"?' if near else "."
    return f"{said} There are: {', '.join(names)}" if names else said


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one probably means; None if none is near."""
    near = difflib.get_close_matches(name[:64], list(known), 1)
    return near[0] if near else None


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """Return the model of what a place in another model holds; None if it is none."""
    found: list[type[BaseModel]] = [model]
    for part in location:
        if isinstance(part, int):
            continue
        if part in _ROLES:
            found = [each for each in found if _ROLES[part] is each]
            continue
        field = found[0].model_fields.get(part) if found else None
        found = _models_in(field.annotation) if field else []
    return found[0] if found else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in an annotation, such as those of a tuple's members."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for each in typing.get_args(annotation) for model in _models_in(each)]


def field_path(pointer: str) -> str:
    """Return the field of a JSON pointer as people write it, such as ``features[0].lower``."""
    path = ""
    for part in pointer.split("/")[1:]:
        path += f"[{part}]" if part.isdecimal() else f".{part}"
    return path.removeprefix(".")


def pointer(location: Location) -> str:
    """Return a JSON pointer that contains only known names; other keys are the sender's."""
    known = _field_names(Model)
    return "".join(f"/{part}" for part in location if isinstance(part, int) or part in known)


def _field_names(model: type[Model]) -> set[str]:
    """Return the names of all fields of a model and of those derived from it."""
    return set(model.model_fields).union(*map(_field_names, model.__subclasses__()))
