"""The form that defines a session or a study: what was typed, and the body that it makes.

An input that is empty stands for its default, so the body has what was typed and nothing else. It
goes through the same checks as that of the API, whose messages come back to the inputs.
"""

import functools
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar

from fedclust.definition.study import StudyDefaults, StudyInfo
from fedclust.methods.registry import KMEANS, METHODS
from fedclust.result.worth_asking import patients_text
from fedclust.schema.feature import Declaration, Feature, Outcome, Trajectory
from fedclust.schema.identifiers import identifies
from fedclust.schema.run_config import Policy
from fedclust.wire.models import SessionCreate
from fedclust_service.domain.access import Refusal
from fedclust_service.http.ui.schema_fields import FormField, fields_of, option_fields

T = TypeVar("T")
#: Rows of the table in one form; a page with more is slow to fill in.
MOST_ROWS = 500
#: The columns of the table; what else a row has is behind "More".
COLUMNS = ("name", "role", "kind", "unit", "lower", "upper", "transform", "levels")
#: Guesses of the analyst stay on the page.
_PATIENTS = FormField(
    "/patients", "Patients at a site, about", "number", "For the estimate below. No site sees it."
)
_GUESS = FormField(
    "/guess", "Guess: % with the event", "number", "For the estimate. No site sees it."
)
#: The inputs above the table.
ASKED = (
    *("/purpose", "/sites", "/contact"),
    *("/name", "/algorithm", "/config/n_clusters", "/patients", "/approval"),
)
_K = "/config/n_clusters"
_ROWS = "/features"
#: What a definition needs.
_NEEDED: Final = ("/purpose", "/name", "/sites", _ROWS, _K)
#: Fields of a definition that nobody writes, or that the address of the page says.
_ELSEWHERE = {"/study", "/sites", "/method_version", "/engine_version"}
_ROW = re.compile(r"/features/([0-9]{1,6})(?=/|$)")
#: What holds inputs, and is none itself.
_HOLDS_INPUTS = re.compile(r"(/config|/policy|/features(/[0-9]+)?)?")


@functools.cache
def row_fields() -> Mapping[str, FormField]:
    """Return the inputs of a row by name: of everything that a definition may list."""
    found: dict[str, FormField] = {}
    for each in (each for model in typing.get_args(Declaration) for each in fields_of(model)):
        first = found.setdefault(each.name, each)
        choices = tuple(dict.fromkeys((*first.choices, *each.choices)))
        found[each.name] = replace(first, choices=choices)
    return {**{name: found[name] for name in COLUMNS}, **found, "guess": _GUESS}


@functools.cache
def only_of() -> Mapping[str, str]:
    """Return which role or kind has an input, by its name; not of inputs that every row has."""
    number, outcome = Feature.model_fields.keys(), Outcome.model_fields.keys()
    trajectory = Trajectory.model_fields.keys()
    return {
        **dict.fromkeys((number | trajectory) - outcome, "feature"),
        **dict.fromkeys(trajectory - number - outcome, "trajectory"),
        **dict.fromkeys(outcome - number - trajectory, "outcome"),
        "guess": "outcome",
    }


@dataclass(frozen=True)
class SessionForm:
    """A form and what was typed into it.

    Attributes
    ----------
    kind : {"session", "study"}
    study : StudyInfo or None
        Of a session: gives sites, and what counts where nothing is typed.
    texts : mapping of str to str
        What was typed, by the pointer of the input.
    errors : mapping of str to tuple of str
        Messages by the pointer of an input; ``general`` are about the definition as a whole.
    missing : mapping of str to str
        The labels of what is still needed, by pointer.
    bands : mapping of str to str
        The size bands that sites reported before.
    """

    kind: str = "session"
    study: StudyInfo | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    general: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    bands: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """What the study gives where nothing is typed."""
        if self.study is None:
            return {}
        found = self.study.model_dump(mode="json", exclude_none=True, exclude={"name"})
        return {**found, **found.pop("defaults", {})}

    @property
    def usual(self) -> str:
        """The method that counts if none is chosen; a study has none."""
        return str(self.given.get("algorithm") or ("" if self.kind == "study" else KMEANS))

    @property
    def method(self) -> str:
        """The method whose options the page shows."""
        chosen = self.texts.get("/algorithm", "")
        return chosen if chosen in METHODS else self.usual

    @functools.cached_property
    def rows(self) -> tuple[int, ...]:
        """The numbers of the rows of the table that are not empty, in their order."""
        numbers = dict.fromkeys(int(at[1]) for at in map(_ROW.match, self.texts) if at)
        return tuple(numbers)[: MOST_ROWS + 1]

    @functools.cached_property
    def fields(self) -> dict[str, FormField]:
        """Every input by its pointer."""
        given = self.given.get("config", {}) if self.method == self.usual else {}
        typed = {each.rpartition("/")[2]: text for each, text in self.texts.items()}
        method = METHODS.get(self.method)
        shown = [
            *_with(fields_of(SessionCreate), self.given),
            *_with(option_fields(method, {**given, **typed}) if method else (), given),
            *_with(fields_of(Policy, "/policy"), self.given.get("policy", {})),
            _PATIENTS,
        ]
        absent = {"/study", "/config", "/features", "/policy", "/sites" if self.study else ""}
        absent |= {"/outcomes_k", "/seed", "/patients"} if self.kind == "study" else set()
        found = {each.pointer: each for each in shown if each.pointer not in absent}
        method_field = replace(found["/algorithm"], kind="choice", default=self.usual)
        found["/algorithm"] = replace(method_field, choices=tuple(METHODS))
        # The input has a calendar: no text with an offset is typed.
        found["/expires"] = replace(found["/expires"], help="No site joins from then on.")
        # Columns have names, too.
        found["/name"] = replace(found["/name"], label=f"Name of the {self.kind}")
        known = row_fields().values()
        return found | {f"/features/{n}{each.pointer}": each for n in self.rows for each in known}

    @property
    def wrong_expert(self) -> bool:
        """Whether a message is at an input of the expert part."""
        return any(at not in ASKED and not at.startswith("/features") for at in self.errors)

    @property
    def needed(self) -> list[str]:
        """The pointers of what must be given: nothing counts where it is empty."""
        absent = {_K, _ROWS} if self.kind == "study" else set()
        empty = {_ROWS, *(at for at, each in self.fields.items() if each.default in (None, ""))}
        return [at for at in _NEEDED if at in empty - absent]

    @property
    def folded(self) -> list[str]:
        """The labels of what was typed into the expert part."""
        of = (at for at in self.texts if at not in ASKED and not at.startswith(_ROWS))
        return [self.label(at) for at in of if at in self.fields]

    def under(self, part: str) -> list[str]:
        """Return the pointers of the inputs of a part, without those that are asked first."""
        return [at for at in self.fields if at.startswith(f"{part}/") and at not in ASKED]

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """The JSON value of every input that is not empty, by its pointer."""
        known = self.fields
        return {at: known[at].value(text) for at, text in self.texts.items() if at in known}

    def value(self, pointer: str) -> Any:
        """Return the JSON value that counts for an input; None for one that is not there."""
        return self.values.get(pointer, getattr(self.fields.get(pointer), "default", None))

    @property
    def sites(self) -> list[str]:
        """The names of the sites: those of the study, or those that are chosen."""
        found = self.given.get("sites") or self.value("/sites") or []
        return list(map(str, found if isinstance(found, list) else [found]))

    @functools.cached_property
    def features(self) -> dict[int, dict[str, Any]]:
        """What each row that is filled in declares, by its number."""
        found: dict[int, dict[str, Any]] = {}
        for at, row in ((at, _ROW.match(at)) for at in self.values):
            if row and not at.endswith("/guess"):
                found.setdefault(int(row[1]), {})[self.fields[at].name] = self.values[at]
        for each in found.values():
            if each.get("role") == "outcome":
                each.setdefault("kind", "numeric")  # which the row shows, and no outcome is
        return found

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The body that creates what the form is about."""
        found: dict[str, Any] = {"algorithm": self.method, "config": {}, "policy": {}}
        for pointer, value in self.values.items():
            _, part, *rest = pointer.split("/")
            if part not in ("features", "patients"):
                (found[part] if rest else found)[self.fields[pointer].name] = value
        found["features"] = list(self.features.values())
        if self.study is not None:
            listed = self.study.features or ()
            declared = [each.model_dump(mode="json", exclude_defaults=True) for each in listed]
            same = [("features", declared), ("algorithm", self.usual)]
            found = dict(each for each in found.items() if each not in same)
            found["study"] = self.study.name
        found = {name: each for name, each in found.items() if each not in ("", {}, [])}
        if self.kind == "study":
            names = [each for each in StudyDefaults.model_fields if each in found]
            found |= {"defaults": {each: found.pop(each) for each in names}} if names else {}
        return found

    @property
    def json(self) -> str:
        """The body as people read it, and as ``fedclust session create --file`` takes it."""
        return json.dumps(self.body, ensure_ascii=False, indent=2)

    @property
    def shares(self) -> dict[str, float]:
        """The guessed share of each outcome, by its name."""
        return {str(self.features[n].get("name")): each for n, each in self.guesses.items() if each}

    @property
    def guesses(self) -> dict[int, float | None]:
        """The share that was guessed in a row, by its number; None where the text is no share."""
        found: dict[int, float | None] = {}
        for n in self.features:
            if text := self.texts.get(f"/features/{n}/guess"):
                read = _GUESS.value(text.rstrip("% "))
                # Of .15 nobody knows whether it is a share or a percentage.
                least = 0 if "%" in text else 1
                is_share = isinstance(read, int | float) and least <= read < 100 and read > 0
                found[n] = read / 100 if is_share else None
        return found

    @property
    def patients(self) -> int | None:
        """The stated number of patients at a site."""
        stated = self.value("/patients")
        return stated if isinstance(stated, int) and stated > 0 else None

    @property
    def size(self) -> str:
        """How many patients a site needs for so many clusters, and whether they are there."""
        k, p = self.value(_K), self.value("/policy/min_group_size")
        numbers = [n for n in (k if isinstance(k, list) else [k]) if isinstance(n, int) and n > 0]
        known = numbers and isinstance(p, int)
        reported = {site: self.bands[site] for site in self.sites if site in self.bands}
        n_sites = len(self.sites)
        return patients_text(n_sites, max(numbers), p, self.patients, reported) if known else ""

    def checked(self, check: Callable[[bytes], T]) -> tuple[Self, T | None]:
        """Return the form with the messages of a check, and what it returns if there are none.

        ``check`` takes the body as the API does, and raises Refusal. What is missing has no
        message. The API compares fields with each other after all of them are there and right.
        """
        lacking = [
            at for at in self.needed if not (self.rows if at == _ROWS else self.texts.get(at))
        ]
        form, made = self, None
        try:
            made = check(self.json.encode())
        except Refusal as refusal:
            form = self.refused(refusal).with_errors_of_other_rows(check)
        errors = {at: said for at, said in form.errors.items() if at not in lacking}
        missing = {at: self.label(at) for at in lacking}
        general = () if missing else form.general
        errors |= self.refusals
        form = replace(form, errors=errors, general=general, missing=missing)
        return form, None if missing or errors else made

    def with_errors_of_other_rows(self, check: Callable[[bytes], Any]) -> Self:
        """Return the form with the messages of rows that are compared once others are right."""
        wrong = {row[0] for row in map(_ROW.match, self.errors) if row}
        kept = {at: _ROW.match(at) for at in self.texts}
        texts = {at: self.texts[at] for at, row in kept.items() if not row or row[0] not in wrong}
        rest, others = replace(self, texts=texts), {}
        if wrong and rest.rows:
            try:
                check(rest.json.encode())
            except Refusal as refusal:
                found = rest.refused(refusal).errors
                others = {at: each for at, each in found.items() if _ROW.match(at)}
        return replace(self, errors={**others, **self.errors})

    @property
    def refusals(self) -> dict[str, tuple[str, ...]]:
        """What only the form refuses: names of persons, too many columns, a wrong guess."""
        held = {n: identifies(str(each.get("name", ""))) for n, each in self.features.items()}
        why = (
            "it looks like {}, which no session may ask for: leave it out; rename it if it is none"
        )
        found: dict[str, tuple[str, ...]]
        found = {f"/features/{n}/name": (why.format(each),) for n, each in held.items() if each}
        for n, share in self.guesses.items():
            if share is None:
                found[f"/features/{n}/guess"] = ("write a percentage: 15 for .15, or 0.5 %",)
        if "/patients" in self.values and self.patients is None:
            found["/patients"] = ("write a whole number of at least 1",)
        if len(self.rows) > MOST_ROWS:
            found["/features"] = (f"a form holds {MOST_ROWS} columns: create it in a terminal",)
        return found

    def refused(self, refusal: Refusal) -> Self:
        """Return the form with the messages of a refusal at their inputs."""
        if refusal.slug == "name-taken":
            return replace(self, errors={"/name": (refusal.detail,)})
        errors: dict[str, tuple[str, ...]] = {}
        general: tuple[str, ...] = () if refusal.errors else (refusal.detail,)
        for error in refusal.errors:
            place, message = error.pointer.removeprefix("/defaults"), error.message
            if site := re.fullmatch(r"/sites/(\d+)", place):
                message = f"{self.sites[int(site[1])]}: {message}"
            elif row := _ROW.match(place):
                number, declared = [*self.features.items()][int(row[1])]
                at = f"/features/{number}"
                place = at + (place[row.end() :] or "/name")
                foreign = re.fullmatch(r'unknown field "(\w+)"\.', message)
                if foreign and f"{at}/{foreign[1]}" in self.fields:
                    place = f"{at}/{foreign[1]}"
                    message = "a column of this role and kind has none: leave it empty"
                numeric = {"role": "outcome", "kind": "numeric"}
                if place == f"{at}/kind" and numeric.items() <= declared.items():
                    message = "a number is counted in ranges: choose ordered, and under More give "
                    message += "edges such as 3, 7, 14 (for a mean also values)"
            while place and place not in self.fields and place != "/features":
                place = place.rpartition("/")[0]
            if not place:
                general = (*general, str(error))
            elif message not in errors.get(place, ()):
                errors[place] = (*errors.get(place, ()), message)
        return replace(self, errors=errors, general=general)

    def label(self, pointer: str) -> str:
        """Return what an input is called, in a row with the name of the column."""
        if pointer not in self.fields:
            return "Columns"
        label, row = self.fields[pointer].label, _ROW.match(pointer)
        return f"{self.texts.get(f'{row[0]}/name', 'row')}, {label.lower()}" if row else label

    def filled(self, body: Mapping[str, Any]) -> Self:
        """Return the form that shows a definition, whole or in part; notes say what it cannot."""
        values = dict(_inputs({"features": self.given.get("features"), **body}))
        # Which inputs there are depends on what is chosen.
        chosen = {at: each if isinstance(each, str) else "?" for at, each in values.items()}
        known, texts = replace(self, texts=chosen).fields, {}
        for at, value in values.items():
            if at in known and value != known[at].default:
                texts[at] = known[at].text(value)
        lost = [at[1:65] for at in values if at not in known and at not in _ELSEWHERE]
        notes = (f"Not taken over: {', '.join(lost[:20])}.",) if lost else ()
        return replace(self, texts=texts, notes=notes)


def _inputs(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a definition holds, by the pointers of inputs."""
    if not _HOLDS_INPUTS.fullmatch(at):
        yield at, value
    elif at == "/features" and isinstance(value, list | tuple):
        for number, each in enumerate(value[: MOST_ROWS + 1]):
            yield from _inputs({"name": each} if isinstance(each, str) else each, f"{at}/{number}")
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _inputs(each, f"{at}/{name}")


def _with(fields: Iterable[FormField], given: Mapping[str, Any]) -> list[FormField]:
    """Return fields with the defaults that a study gives."""
    return [replace(each, default=given.get(each.name, each.default)) for each in fields]


def input_id(pointer: str) -> str:
    """Return the id of an input on the page: letters, digits and hyphens."""
    return "f" + re.sub(r"[^A-Za-z0-9]+", "-", pointer)
