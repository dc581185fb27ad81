"""The form that creates a study: that of a session, whose settings are defaults."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Self

from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.ui.form_field import FormField
from fedclust_service.http.ui.session_form import SessionForm

_DEFAULTS = ("algorithm", "config", "policy", "start")


class StudyForm(SessionForm):
    """A study as somebody typed it; ``method`` is "" if each session chooses one."""

    @classmethod
    def like(cls, form: SessionForm, method: str) -> Self:
        """Return the form of a study with what was typed into a session's."""
        known = {each.name: getattr(form, each.name) for each in fields(form)}
        return cls(**{**known, "method": method})

    @property
    def about(self) -> tuple[FormField, ...]:
        """What the people at the sites read first."""
        return tuple(
            replace(each, help=each.help.replace("session", "study")) for each in super().about
        )

    @property
    def options(self) -> FormField:
        """The options of the method, of which a study may leave out any."""
        return _optional(super().options)

    @property
    def running(self) -> tuple[FormField, ...]:
        """When its sessions start; each has its own seed."""
        return self._session_fields(("start",))

    @property
    def counting(self) -> tuple[FormField, ...]:
        """Each session says at which number of clusters outcomes are counted."""
        return ()

    def _session_body(self) -> dict[str, Any]:
        found = super()._session_body()
        defaults = {name: found.pop(name, None) for name in _DEFAULTS}
        if not self.method:
            defaults.pop("algorithm")
        given = {name: value for name, value in defaults.items() if value}
        found = {name: value for name, value in found.items() if value != []}
        # The sites are required: an empty list has its message.
        found["sites"] = sorted(self.sites)
        return {**found, "defaults": given} if given else found

    def refused(self, refusal: Refusal) -> Self:
        """Return the form with the messages of a refusal at their inputs."""
        errors = [
            each.model_copy(update={"pointer": each.pointer.removeprefix("/defaults")})
            for each in refusal.errors
        ]
        return super().refused(Refusal(refusal.slug, refusal.detail, errors))


def _optional(field: FormField) -> FormField:
    """Return a field without inputs that are required, but for the choice of a variant."""
    return replace(
        field,
        required=False,
        fields=tuple(map(_optional, field.fields)),
        variants=tuple(tuple(map(_optional, each)) for each in field.variants),
    )
