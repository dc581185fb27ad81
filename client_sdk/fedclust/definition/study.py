"""A study: what several sessions of the same sites have in common."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, RootModel, Tag, ValidationError, field_serializer

from fedclust.definition import DefinitionError, check_defaults, check_features, check_once
from fedclust.schema.display import brief
from fedclust.schema.feature import Declared
from fedclust.schema.field_names import field_errors
from fedclust.schema.model import Model, Slug, Written
from fedclust.schema.run_config import Policy
from fedclust.schema.times import Timestamp
from fedclust.wire.codec import canonical_json
from fedclust.wire.errors import FieldError
from fedclust.wire.models import PURPOSE_CHARACTERS, Line, Purpose, SessionCreate


class StudyDefaults(Written):
    """What the sessions of a study take over unless they say otherwise.

    Only fields that were set count. Of ``config`` and ``policy`` a session may replace single
    fields. ``config`` is for ``algorithm``: a session of another method takes none of it.
    """

    algorithm: Line = Field(default_factory=str)
    """The method of sessions that name none."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Options of `algorithm`; without `algorithm`, of every session."""
    policy: Policy = Policy()
    """Fields of the policy."""
    start: Literal["when_all_joined", "manual"] = "when_all_joined"
    """Whether sessions start by themselves, or an analyst starts them."""


class StudyCreate(Written):
    """What several sessions of the same sites have in common. It never changes."""

    name: Slug
    """The study's name in commands and addresses: a-z, 0-9 and hyphens."""
    title: Line = ""
    """As in a session, which takes them over unless it says otherwise."""
    purpose: Annotated[Purpose, Field(min_length=PURPOSE_CHARACTERS[0])]
    """As in a session, which takes them over unless it says otherwise."""
    contact: Line = ""
    """As in a session, which takes them over unless it says otherwise."""
    approval: Line = ""
    """As in a session, which takes them over unless it says otherwise."""
    expires: Timestamp | None = None
    """As in a session, which takes them over unless it says otherwise."""
    sites: Annotated[tuple[Slug, ...], Field(min_length=1, max_length=10_000)]
    """The sites of each session."""
    features: Annotated[tuple[Declared, ...], Field(max_length=10_000)] = ()
    """A session takes all of them, or names some; it declares them as the study does."""
    defaults: StudyDefaults = StudyDefaults()
    """What else the sessions take over."""


class StudyInfo(Model):
    """A study, as far as its reader may see.

    ``n_sessions`` counts those that the reader may see; the list of sessions names them. A site
    reads name, title, purpose, contact, the number of its own sessions, and who made the study
    when; the other fields are null for it.
    """

    name: Slug
    title: Line
    purpose: Purpose
    contact: Line
    n_sessions: Annotated[int, Field(ge=0)]
    created_by: str
    created_at: Timestamp
    approval: Line | None = None
    expires: Timestamp | None = None
    sites: tuple[Slug, ...] | None = None
    features: tuple[Declared, ...] | None = None
    defaults: StudyDefaults | None = None

    def _row(self) -> dict[str, Any]:
        """Return what a list of studies shows."""
        return {
            "study": self.name,
            "title": self.title,
            "sites": None if self.sites is None else ", ".join(self.sites),
            "sessions": str(self.n_sessions),
            "created by": self.created_by,
        }

    def _shown(self) -> list[tuple[str, Any]]:
        row = {**self._row(), "purpose": self.purpose}
        row |= {"contact": self.contact, "approval": self.approval}
        row["expires"] = self.expires and f"{self.expires:%Y-%m-%d %H:%M:%S} UTC"
        if self.features is not None:
            row["features"] = ", ".join(each.name for each in self.features)
        if self.defaults is not None:
            set_here = self.defaults.model_dump(mode="json", exclude_unset=True)
            row["defaults"] = ", ".join(f"{name}: {brief(each)}" for name, each in set_here.items())
        return [(name, value) for name, value in row.items() if value]

    @field_serializer("defaults")
    def _only_set(self, defaults: StudyDefaults | None) -> dict[str, Any] | None:
        return None if defaults is None else defaults.model_dump(mode="json", exclude_unset=True)


class SessionOfStudy(SessionCreate):
    """A session of a study. The study gives what is left out; a session has the study's sites."""

    study: Slug
    algorithm: Line = Field(default_factory=str)
    config: dict[str, Any] = Field(default_factory=dict)
    features: tuple[Declared, ...] = Field(default_factory=tuple, min_length=1, max_length=10_000)
    sites: tuple[Slug, ...] = Field(default_factory=tuple, min_length=1, max_length=10_000)


def _names_study(body: Any) -> str:
    study = body.get("study") if isinstance(body, dict) else getattr(body, "study", None)
    return "alone" if study is None else "in-study"


class SessionRequest(
    RootModel[
        Annotated[
            Annotated[SessionOfStudy, Tag("in-study")] | Annotated[SessionCreate, Tag("alone")],
            Discriminator(_names_study),
        ]
    ]
):
    """What creates a session: a whole definition, or what a session adds to its study."""


def check_study(study: StudyCreate) -> None:
    """Refuse an invalid study.

    Raises
    ------
    DefinitionError
        With all faults found.
    """
    errors = check_once(study.sites) + check_features(study.features)
    defaults = study.defaults
    errors += [
        each.model_copy(update={"pointer": f"/defaults{each.pointer}"})
        for each in check_defaults(
            defaults.algorithm, defaults.config, defaults.policy, len(study.sites)
        )
    ]
    if errors:
        raise DefinitionError(errors)


def complete(study: StudyCreate, request: SessionCreate) -> SessionCreate:
    """Return the definition of a session of a study: what the request lacks, the study gives.

    The request's values win, field by field also in ``config`` and ``policy``. If the study names
    a method and the request another one, the study's ``config`` does not apply.

    Raises
    ------
    DefinitionError
        The request has other sites, declares a feature otherwise, or lacks what the study lacks.
    """
    errors = _differences(study, request)
    given = request.model_dump(mode="json", exclude_unset=True)
    common = study.model_dump(mode="json", exclude_unset=True)
    defaults = common.pop("defaults", {})
    fields = {key: value for key, value in common.items() if key != "features" or value}
    fields |= defaults | given
    if defaults.get("algorithm") not in (None, "", fields.get("algorithm")):
        # The study's options are those of another method.
        defaults = {**defaults, "config": {}}
    for part in ("config", "policy"):
        fields[part] = {**defaults.get(part, {}), **given.get(part, {})}
    try:
        found = SessionCreate.model_validate_json(canonical_json(fields))
    except ValidationError as error:
        errors += [
            each.model_copy(update={"message": "the study has none either: give it here"})
            if each.rule == "missing"
            else each
            for each in field_errors(error)
        ]
    if errors:
        raise DefinitionError(errors)
    return found


def _differences(study: StudyCreate, request: SessionCreate) -> list[FieldError]:
    errors = []
    set_here = request.model_fields_set
    if "sites" in set_here and set(request.sites) != set(study.sites):
        message = "a session has the sites of its study: leave sites out, or name all of them"
        errors.append(FieldError(pointer="/sites", rule="study", message=message))
    known = {(each.role, each.name): each for each in study.features}
    for index, feature in enumerate(request.features if "features" in set_here else ()):
        declared = known.get((feature.role, feature.name), feature)
        other = [
            name
            for name in type(feature).model_fields
            if getattr(declared, name, None) != getattr(feature, name)
        ]
        if other:
            message = (
                f"the study declares {feature.name!r} with another {', '.join(other)}: declare it "
                "in the same way, or leave features out to take those of the study"
            )
            pointer = f"/features/{index}"
            errors.append(FieldError(pointer=pointer, rule="study", message=message))
    return errors
