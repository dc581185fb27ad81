"""The form that creates a session: what it asks for, what was typed, and the body that it makes.

Nothing here refuses what was typed: the body goes through the same checks as that of the API, and
their messages come back to the inputs.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from fedclust.methods.registry import METHODS
from fedclust.result.session_terms import feature_text
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.model import Model
from fedclust.schema.policy import Policy
from fedclust.study import StudyInfo
from fedclust.wire.models import SessionCreate
from fedclust.wire.problems import FieldError
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.ui.form_field import (
    SHOWN,
    UNSET,
    FormField,
    chosen_fields,
    shown_fields,
    split_words,
    take,
    with_defaults,
)
from fedclust_service.http.ui.schema_fields import model_field, options_field

T = TypeVar("T")
#: Rows of features, and of outcomes, in one form; a page with more is slow to fill in.
MOST_ROWS = 500
_ABOUT = ("name", "title", "purpose", "contact", "approval", "expires")
_RUNNING = ("start", "seed")
#: What takes the place of inputs that are empty or wrong, and inputs that do not depend on them.
_STAND_INS: Mapping[str, Any] = {
    "/name": "session",
    "/features": [{"name": "feature"}],
    "/sites": ["site-1", "site-2", "site-3"],
}
_APART = ("/purpose", "/config", "/features/")
_NONE_CHOSEN = {"/features": "add at least one feature", "/sites": "invite at least one site"}
#: What the form asks for in rows: the model of a row, its name, and the order of its columns.
_TABLES: Mapping[str, tuple[type[Model], str, tuple[str, ...]]] = {
    "/features": (
        Feature,
        "Feature",
        ("name", "kind", "unit", "levels", "lower", "upper", "transform", "weight"),
    ),
    "/outcomes": (
        Outcome,
        "Outcome",
        ("name", "kind", "unit", "levels", "edges", "values", "event", "points"),
    ),
}
#: Guesses that help to decide what to ask; no part of the definition.
GUESSED_PERSONS = FormField(
    "/guess/persons", "Persons at all sites, about", "integer", help="It stays on this page."
)


@functools.lru_cache(maxsize=64)
def _options(method: str) -> FormField:
    return options_field(METHODS[method].options)


@functools.lru_cache(maxsize=1)
def session_fields() -> Mapping[str, FormField]:
    """Return the inputs of a session by name."""
    return {each.name: each for each in model_field(SessionCreate, "", "Session").fields}


@functools.lru_cache(maxsize=1)
def _policy() -> FormField:
    return model_field(Policy, "/policy", "Policy")


@functools.lru_cache(maxsize=len(_TABLES))
def _first_row(table: str) -> FormField:
    model, noun, names = _TABLES[table]
    group = model_field(model, f"{table}/0", noun)
    columns = {each.name: each for each in group.fields}
    return replace(group, fields=tuple(columns[name] for name in names))


@functools.lru_cache(maxsize=2 * MOST_ROWS)
def row_field(number: int, table: str = "/features") -> FormField:
    """Return the inputs of a row of the table of features, or of that of outcomes."""
    place, first = f"{table}/{number}", _first_row(table)
    fields = tuple(replace(each, pointer=f"{place}/{each.name}") for each in first.fields)
    return replace(first, pointer=place, label=f"{first.label} {number + 1}", fields=fields)


def guess_field(row: FormField) -> FormField:
    """Return the input for the analyst's guess of an outcome's share."""
    return FormField(
        f"/guess{row.pointer}",
        "Guess, %",
        "number",
        help="About how many of 100 persons have the event. It stays on this page.",
    )


@dataclass(frozen=True)
class SessionForm:
    """A form and what was typed into it.

    Attributes
    ----------
    method : str
        A method of the registry.
    study : StudyInfo or None
        Gives sites, features and defaults.
    texts : mapping of str to str
        What was typed, by the pointer of the input. Inputs that are not here show their default.
    rows : mapping of str to tuple of int
        The numbers of the rows of each table, in their order; a table that is not here has none.
    sites : tuple of str
        Those chosen, unless a study gives them.
    taken : tuple of str
        The keys of the features and outcomes of the study that the session takes.
    notes : tuple of str
        What happened to what was typed or copied.
    errors : mapping of str to tuple of str
        Messages by the pointer of an input.
    general : tuple of str
        Messages about the definition as a whole.
    """

    method: str
    study: StudyInfo | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    general: tuple[str, ...] = ()

    # --- what it asks for -------------------------------------------------------------------------

    @property
    def about(self) -> tuple[FormField, ...]:
        """What the people at the sites read first."""
        return self._session_fields(_ABOUT)

    @property
    def running(self) -> tuple[FormField, ...]:
        """When it starts, and its seed."""
        return self._session_fields(_RUNNING)

    @property
    def options(self) -> FormField:
        """The options of the method."""
        return options_in_study(self.method, self.study)

    @property
    def shown_options(self) -> tuple[FormField, ...]:
        """The inputs of the options, with those of the chosen variant."""
        return tuple(shown_fields(self.options, self.texts))

    @property
    def policy(self) -> FormField:
        """Protection, number of sites and pace."""
        defaults = self.study and self.study.defaults
        if not defaults:
            return _policy()
        return with_defaults(_policy(), defaults.policy.model_dump(mode="json", exclude_unset=True))

    @property
    def policy_inputs(self) -> tuple[FormField, ...]:
        """The inputs of the policy."""
        return tuple(shown_fields(self.policy, self.texts))

    @property
    def feature_rows(self) -> tuple[FormField, ...]:
        """A group of inputs for each row of the table of features."""
        return self._rows_of("/features")

    @property
    def outcome_rows(self) -> tuple[FormField, ...]:
        """A group of inputs for each row of the table of outcomes."""
        return self._rows_of("/outcomes")

    def _rows_of(self, table: str) -> tuple[FormField, ...]:
        return tuple(row_field(number, table) for number in self.numbers(table))

    @property
    def all_rows(self) -> tuple[FormField, ...]:
        """The rows of both tables."""
        return (*self.feature_rows, *self.outcome_rows)

    @property
    def counting(self) -> tuple[FormField, ...]:
        """The number of clusters that outcomes are counted at."""
        return self._session_fields(("outcomes_k",))

    @property
    def guessed_persons(self) -> int | None:
        """The analyst's guess of the persons at all sites."""
        found = GUESSED_PERSONS.value(self.text(GUESSED_PERSONS))
        return found if isinstance(found, int) and found > 0 else None

    @property
    def guessed_shares(self) -> dict[str, float]:
        """The analyst's guess of the share of each outcome, by its name."""
        shares = {}
        for row in self.outcome_rows:
            field = guess_field(row)
            found = field.value(self.text(field).strip().removesuffix("%"))
            if isinstance(found, int | float) and 0 < found < 100:
                shares[self.text(row.fields[0]).strip()] = found / 100
        return shares

    @property
    def hidden(self) -> tuple[tuple[str, str], ...]:
        """Names and texts to keep in the page unseen: options of other methods and variants."""
        seen = {each.pointer for each in self.shown_options}
        kept = [
            (name, text)
            for name, text in self.texts.items()
            if name.startswith("/config/") and name not in seen
        ]
        choosers = [each for each in self.shown_options if each.pointer in self._choosers]
        return (*kept, *((SHOWN + each.pointer, self.text(each)) for each in choosers))

    @functools.cached_property
    def _choosers(self) -> set[str]:
        found, waiting = set(), [self.options]
        while waiting:
            each = waiting.pop()
            waiting += chosen_fields(each, self.texts)
            if each.chooser is not None:
                found.add(each.chooser.pointer)
        return found

    def chosen(self, each: FormField) -> tuple[FormField, ...]:
        """Return the fields of the variant that is chosen."""
        return chosen_fields(each, self.texts)

    def text(self, each: FormField) -> str:
        """Return what an input shows."""
        return self.texts.get(each.pointer, each.default_text)

    def wrong(self, pointer: str) -> tuple[str, ...]:
        """Return the messages about an input."""
        return self.errors.get(pointer, ())

    def row_messages(self, row: FormField) -> tuple[str, ...]:
        """Return the messages about a row and its inputs."""
        found = [
            f"{each.label.lower()}: {text}"
            for each in row.fields
            for text in self.wrong(each.pointer)
        ]
        return (*self.wrong(row.pointer), *found)

    @property
    def summary(self) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """The id, the label and the messages of every input that has messages."""
        rows = [
            (each, self._row_label(place, row))
            for rows in (self.feature_rows, self.outcome_rows)
            for place, row in enumerate(rows, 1)
            for each in (row, *row.fields)
        ]
        before = (*self.about, *self.shown_options)
        after = (*self.counting, *self.policy_inputs, *self.running)
        # In the order of the page.
        labels = {each.pointer: each.label for each in before}
        labels |= {"/features": "Features", **{each.pointer: label for each, label in rows}}
        labels |= {"/sites": "Sites", **{each.pointer: each.label for each in after}}
        places = {name: place for place, name in enumerate(labels)}
        return tuple(
            (
                "f" + re.sub(r"[^A-Za-z0-9]+", "-", name),
                labels.get(name, name[1:].capitalize()),
                each,
            )
            for name, each in sorted(
                self.errors.items(), key=lambda error: places.get(error[0], -1)
            )
        )

    def _row_label(self, place: int, row: FormField) -> str:
        """Return what a row is called: by its name or place, as its number has gaps."""
        name = next(self.text(each).strip() for each in row.fields if each.name == "name")
        noun = row.label.partition(" ")[0]
        return f"{noun} {name}" if name else f"{noun} {place}"

    def key(self, feature: Feature | Outcome) -> str:
        """Return what names a feature or outcome of the study among those that are taken."""
        return key_of(feature.role, feature.name)

    def guess(self, row: FormField) -> FormField:
        """Return the input for a guess of an outcome's share."""
        return guess_field(row)

    def feature_text(self, feature: Feature | Outcome) -> str:
        """Return a feature or outcome as the consent screen shows it."""
        return feature_text(feature)

    def _session_fields(self, names: Sequence[str]) -> tuple[FormField, ...]:
        found = session_fields()
        given: dict[str, Any] = {}
        if self.study is not None:
            given = self.study.model_dump(mode="json", include=set(_ABOUT) - {"name"})
            defaults = self.study.defaults
            given |= {} if defaults is None else defaults.model_dump(exclude_unset=True)
        fields = [replace(found[name], required=name in ("name", "purpose")) for name in names]
        return tuple(
            each if given.get(each.name) is None else with_defaults(each, given[each.name])
            for each in fields
        )

    # --- what it makes ----------------------------------------------------------------------------

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The body that creates what the form is about, without what equals a default."""
        return self._session_body()

    def _session_body(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        study = self.study
        for each in self.about:
            found[each.name] = take(each, self.texts)
            if each.name == "name" and study is not None:
                found["study"] = study.name
        defaults = study and study.defaults
        if not defaults or defaults.algorithm != self.method:
            found["algorithm"] = self.method
        config = take(self.options, self.texts)
        found["config"] = {} if config is UNSET and study is None else config
        features = [feature for _, feature in self._features]
        named = [key_of(each.get("role", "feature"), each.get("name")) for each in features]
        if study is None or not study.features or list(all_features(study)) != named:
            found["features"] = features
        for each in self.counting:
            found[each.name] = take(each, self.texts)
        if study is None:
            found["sites"] = sorted(self.sites)
        found["policy"] = take(self.policy, self.texts)
        for each in self.running:
            found[each.name] = take(each, self.texts)
        return {name: value for name, value in found.items() if value is not UNSET}

    @functools.cached_property
    def _features(self) -> tuple[tuple[str | None, dict[str, Any]], ...]:
        """Features and outcomes, each with the pointer of its row; None for those of the study."""
        known = () if self.study is None else self.study.features or ()
        given: list[tuple[str | None, dict[str, Any]]] = [
            (None, each.model_dump(mode="json", exclude_defaults=True))
            for each in known
            if self.key(each) in self.taken
        ]
        for row in self.all_rows:
            declared = take(row, self.texts)
            if declared is not UNSET:
                role = {"role": "outcome"} if row.pointer.startswith("/outcomes") else {}
                given.append((row.pointer, {**declared, **role}))
        return tuple(given)

    @property
    def json(self) -> str:
        """The body as people read it, and as ``fedclust session create --file`` takes it."""
        lines = [f"  {_json(name)}: {_on_lines(value)}" for name, value in self.body.items()]
        text = "{\n" + ",\n".join(lines) + "\n}"
        # An escape in a value that is itself JSON may be half of a pair of characters.
        return text.encode("utf-8", "replace").decode()

    # --- messages ---------------------------------------------------------------------------------

    def checked(self, check: Callable[[bytes], T]) -> tuple[Self, T | None]:
        """Return the form with the messages of a check, and what it returns if there are none.

        ``check`` takes the body as the API does, and raises Refusal.
        """
        try:
            return self, check(self.json.encode())
        except Refusal as refusal:
            form = self.refused(refusal)
        waiting = [name for name in form.errors if name in _STAND_INS]
        if waiting and not form.general:
            # The API reads the rest only where these are right: say now what else is wrong.
            body = {**self.body, **{name[1:]: _STAND_INS[name] for name in waiting}}
            try:
                check(_json(body).encode("utf-8", "replace"))
            except Refusal as refusal:
                found = self.refused(refusal).errors
                more = {name: said for name, said in found.items() if name.startswith(_APART)}
                form = replace(form, errors={**more, **form.errors})
        return form, None

    def refused(self, refusal: Refusal) -> Self:
        """Return the form with the messages of a refusal at their inputs."""
        if refusal.slug == "name-taken":
            return replace(self, errors={"/name": (refusal.detail,)})
        if not refusal.errors:
            return replace(self, general=(refusal.detail,))
        known = {each.pointer for each in (*self.about, *self.running, *self.shown_options)}
        known |= {each.pointer for each in (*self.policy_inputs, *self.counting)}
        known |= {"/sites", "/features", "/config", "/policy", "/algorithm"}
        for row in self.all_rows:
            known |= {row.pointer, *(each.pointer for each in row.fields)}
        errors: dict[str, tuple[str, ...]] = {}
        general: tuple[str, ...] = ()
        for error in refusal.errors:
            place, message = self._place(error)
            while place and place not in known:
                place = place.rpartition("/")[0]
            if not place:
                general = (*general, str(error))
            elif message not in errors.get(place, ()):
                errors[place] = (*errors.get(place, ()), message)
        for each in (*self.about, *self.shown_options):
            if each.required and not self.text(each).strip():
                # The API says the rest only once the first are there.
                errors.setdefault(each.pointer, ("this is required",))
        return replace(self, errors=errors, general=general)

    def _place(self, error: FieldError) -> tuple[str, str]:
        """Return the pointer of an error in this form, and its message there."""
        if error.rule == "too_short" and error.pointer in _NONE_CHOSEN:
            return error.pointer, _NONE_CHOSEN[error.pointer]
        if error.rule == "min-sites" and self.study is None and self._default(error.pointer):
            return "/sites", error.message
        _, name, *rest = [*error.pointer.split("/"), "", ""]
        if not rest[0].isdecimal():
            return error.pointer, error.message
        index = int(rest[0])
        if name == "sites":
            sites = self.body.get("sites", ())
            site = sites[index] if index < len(sites) else ""
            return "/sites", f"{site}: {error.message}"
        if name == "features" and index < len(self._features):
            row, feature = self._features[index]
            if row is None:
                return "/features", f"{feature['name']}: {error.message}"
            return "/".join([row, *filter(None, rest[1:])]), error.message
        return error.pointer, error.message

    def _default(self, pointer: str) -> bool:
        """Return whether an input of the policy shows its default."""
        fields = (each for each in self.policy_inputs if each.pointer == pointer)
        return all(self.text(each).strip() == each.default_text for each in fields)

    @property
    def open(self) -> tuple[str, ...]:
        """The labels of what is still empty and has to be filled in."""
        inputs = [*self.about, *self.shown_options]
        labels = {
            each.pointer: each.label
            for each in inputs
            if each.pointer in self.errors or (each.required and self.errors)
            if not self.text(each).strip()
        }
        rest = [name for name in self._empty_and_wrong if name not in labels]
        return (*labels.values(), *(name[1:].capitalize() for name in rest))

    def while_typing(self) -> Self:
        """Return the form without the messages about inputs that nobody has filled in yet."""
        waiting = set(self._empty_and_wrong)
        return replace(
            self, errors={name: each for name, each in self.errors.items() if name not in waiting}
        )

    @property
    def _empty_and_wrong(self) -> tuple[str, ...]:
        """The pointers of inputs that have a message and are empty."""
        inputs = [*self.about, *self.shown_options]
        empty = {each.pointer for each in inputs if not self.text(each).strip()}
        if self.study is None and not self.sites:
            empty.add("/sites")
        if not self._features:
            empty.add("/features")
        return tuple(name for name in self.errors if name in empty)

    # --- changes ----------------------------------------------------------------------------------

    def add_row(self, texts: Mapping[str, str] | None = None, *, table: str = "/features") -> Self:
        """Return the form with one more row of a table, which shows these texts by column."""
        numbers = self.numbers(table)
        if len(numbers) >= MOST_ROWS:
            note = (
                f"A form holds {MOST_ROWS} {table[1:]}. Write more into the JSON, for "
                "`fedclust session create --file`."
            )
            return replace(self, notes=tuple(dict.fromkeys([*self.notes, note])))
        number = max(numbers, default=-1) + 1
        added = {f"{table}/{number}/{name}": text for name, text in (texts or {}).items()}
        return self._with_rows(table, (*numbers, number), {**self.texts, **added})

    def remove_row(self, number: int, *, table: str = "/features") -> Self:
        """Return the form without a row of a table."""
        start = (f"{table}/{number}/", f"/guess{table}/{number}")
        kept = tuple(row for row in self.numbers(table) if row != number)
        texts = {name: text for name, text in self.texts.items() if not name.startswith(start)}
        return self._with_rows(table, kept, texts)

    def numbers(self, table: str) -> tuple[int, ...]:
        """Return the numbers of the rows of a table."""
        return self.rows.get(table, ())

    def _with_rows(self, table: str, numbers: tuple[int, ...], texts: Mapping[str, str]) -> Self:
        return replace(self, rows={**self.rows, table: numbers}, texts=texts)

    def add_names(self, line: str) -> Self:
        """Return the form with a row for each name in the first line of a CSV file."""
        first = next((each for each in line.lstrip("\ufeff").splitlines() if each.strip()), "")
        separator = max(",;\t", key=first.count)
        names = split_words(first, separator)
        known = {each.get("name") for _, each in self._features if "role" not in each}
        new = [name for name in dict.fromkeys(names) if name not in known]
        form = self._without_empty_rows()
        # One more than fit: adding it says so.
        for name in new[: MOST_ROWS - len(form.numbers("/features")) + 1]:
            form = form.add_row({"name": name})
        return form

    def _without_empty_rows(self) -> Self:
        kept = tuple(
            number
            for number in self.numbers("/features")
            if take(row_field(number), self.texts) is not UNSET
        )
        return self._with_rows("/features", kept, self.texts)


def options_in_study(method: str, study: StudyInfo | None) -> FormField:
    """Return the field of a method's options, with the defaults of a study that has them."""
    if not method:
        return FormField("/config", "Options", "group")
    defaults = study and study.defaults
    if not defaults or defaults.algorithm not in ("", method):
        return _options(method)
    return with_defaults(_options(method), defaults.config)


def all_features(study: StudyInfo | None) -> tuple[str, ...]:
    """Return the keys of a study's features and outcomes."""
    return () if study is None else tuple(key_of(e.role, e.name) for e in study.features or ())


def key_of(role: object, name: object) -> str:
    """Return what names a feature or an outcome: one column may be both."""
    return f"{role}:{name}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _on_lines(value: Any) -> str:
    """Return JSON in which each member of a list of objects has a line."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return _json(value)
    return "[\n" + ",\n".join(f"    {_json(each)}" for each in value) + "\n  ]"
