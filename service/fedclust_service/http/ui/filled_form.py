"""What somebody typed into a small form, and the messages about it at their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pydantic import BaseModel

from fedclust_service.domain.access import Refusal
from fedclust_service.http.bodies import parse

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class FilledForm:
    """A form as it is shown again after a refusal: nothing that was typed is lost.

    ``errors`` are messages by the name of a field, ``general`` is about the form as a whole.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    general: str | None = None

    def text(self, name: str, default: str = "") -> str:
        """Return what was typed into a field; before that, its default."""
        return self.texts.get(name, default)

    def refused(self, refusal: Refusal) -> FilledForm:
        """Return the form with a refusal's messages at the fields that they are about."""
        errors: dict[str, str] = {}
        rest = []
        for error in refusal.errors:
            name = f"{error.pointer}/".split("/")[1]
            if name in self.texts:
                words = error.message.rstrip(".")
                errors.setdefault(name, f"{words[:1].upper()}{words[1:]}.")
            else:
                rest.append(str(error))
        general = "; ".join(rest) or (None if errors else refusal.detail)
        return replace(self, errors=errors, general=general)


def checked(model: type[M], body: Mapping[str, object]) -> M:
    """Return what a form says, checked as the API checks a body; Refusal names the fields."""
    return parse(model, json.dumps(body).encode())
