"""The form that defines a session or a study: what was typed, and the body that it makes.

An input that is empty stands for its default, so the body has what was typed and nothing else. It
goes through the same checks as that of the API, whose messages come back to the inputs.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from fedclust.definition.study import StudyInfo
from fedclust.methods.registry import KMEANS, METHODS
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.identifiers import identifies
from fedclust.schema.policy import Policy
from fedclust.wire.models import SessionCreate
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.ui.schema_fields import (
    UNSET,
    FormField,
    fields_of,
    input_id,
    option_fields,
)

T = TypeVar("T")
#: Rows of the table in one form; a page with more is slow to fill in.
MOST_ROWS = 500
#: With so many groups of a site for each cluster results are good: docs/privacy/thresholds.md.
_GROUPS = 2
#: The inputs of a row of the table, and those behind "More".
COLUMNS = ("name", "role", "kind", "unit", "lower", "upper", "transform", "levels")
MORE = ("edges", "values", "event", "points", "weight", "guess")
#: Guesses of the analyst stay on the page.
PATIENTS = FormField("/patients", "Patients at a site, about", "integer", "It stays on this page.")
_GUESS = FormField("", "Guess: % with the event", "number", "It stays on this page.")
#: What a definition needs, and what stands for it while the rest is checked.
_NEEDED: Mapping[str, Any] = {
    "/purpose": "It is not written yet.",
    "/name": "session",
    "/sites": [f"site-{number}" for number in range(100)],
    "/features": [{"name": "feature"}],
    "/config/n_clusters": 2,
}
#: What a study holds as defaults of its sessions.
_DEFAULTS = ("algorithm", "config", "policy", "start")
#: Fields of a definition that have no input, or that nobody writes.
_ELSEWHERE = {"/study", "/sites", "/algorithm", "/method_version", "/engine_version"}


@functools.lru_cache(maxsize=2 * MOST_ROWS)
def row_fields(number: int) -> Mapping[str, FormField]:
    """Return the inputs of a row by name: a column as a feature, or as an outcome."""
    of_feature, of_outcome = ({e.name: e for e in fields_of(m)} for m in (Feature, Outcome))
    known = {**of_outcome, **of_feature, "guess": _GUESS}
    kinds = (*of_feature["kind"].choices, *of_outcome["kind"].choices)
    known["kind"] = replace(known["kind"], choices=tuple(dict.fromkeys(kinds)))
    known["role"] = replace(known["role"], choices=("feature", "outcome"))
    at = f"/features/{number}/"
    return {name: replace(known[name], pointer=at + name) for name in (*COLUMNS, *MORE)}


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
    rows : tuple of int
        The numbers of the rows of the table, in their order.
    errors : mapping of str to tuple of str
        Messages by the pointer of an input; ``general`` are about the definition as a whole.
    missing : mapping of str to str
        The labels of what is still needed, by pointer.
    """

    kind: str = "session"
    study: StudyInfo | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    sites: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    general: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    # --- what it asks for -------------------------------------------------------------------------

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
        """The method that is chosen, in a study perhaps none."""
        return self.texts.get("/algorithm") or self.usual

    @functools.cached_property
    def parts(self) -> dict[str, list[FormField]]:
        """The inputs but those of rows, by the part of the page."""
        known = {each.name: each for each in fields_of(SessionCreate)}
        options = self.given.get("config", {}) if self.method == self.usual else {}
        typed = {each.rpartition("/")[2]: text for each, text in self.texts.items()}
        method = METHODS.get(self.method)
        config = () if method is None else option_fields(method, {**options, **typed})
        own = () if self.kind == "study" else ("outcomes_k", "seed")
        return {
            "first": _with([known[each] for each in ("purpose", "name")], self.given),
            "k": _with([each for each in config if each.name == "n_clusters"], options),
            "about": _with(
                [known[each] for each in ("title", "contact", "approval", "expires")], self.given
            ),
            "config": _with([each for each in config if each.name != "n_clusters"], options),
            "policy": _with(fields_of(Policy, "/policy"), self.given.get("policy", {})),
            "running": _with([known[each] for each in ("start", *own)], self.given),
        }

    @functools.cached_property
    def fields(self) -> dict[str, FormField]:
        """Every input by its pointer, in the order of the page."""
        flat = [each for part in self.parts.values() for each in part]
        rows = [each for row in map(row_fields, self.rows) for each in row.values()]
        return {each.pointer: each for each in (*flat, *rows)}

    @property
    def hidden(self) -> dict[str, str]:
        """What was typed as options of another method or variant, which the page keeps."""
        options = {each: text for each, text in self.texts.items() if each.startswith("/config/")}
        return {pointer: text for pointer, text in options.items() if pointer not in self.fields}

    @property
    def expert(self) -> bool:
        """Whether something is typed, not copied, or wrong in the part for experts."""
        names = ("about", "config", "policy", "running")
        inputs = {each.pointer for name in names for each in self.parts[name]}
        return not inputs.isdisjoint({*(() if self.notes else self.texts), *self.errors})

    # --- what it makes ----------------------------------------------------------------------------

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """The JSON value of every input that is not empty, by its pointer."""
        typed = {pointer: self.texts.get(pointer) for pointer in self.fields}
        return {at: self.fields[at].value(text) for at, text in typed.items() if text}

    @functools.cached_property
    def features(self) -> dict[int, dict[str, Any]]:
        """What each row that is filled in declares, by its number."""
        found: dict[int, dict[str, Any]] = {}
        for number in self.rows:
            fields = list(row_fields(number).values())[:-1]
            row = {e.name: self.values[e.pointer] for e in fields if e.pointer in self.values}
            if row.get("role") == "outcome":
                row.setdefault("kind", "numeric")
            row = {
                name: value for name, value in row.items() if (name, value) != ("role", "feature")
            }
            found |= {number: row} if row else {}
        return found

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The body that creates what the form is about."""
        same: dict[str, Any] = {}
        found: dict[str, Any] = {"config": {}, "policy": {}, "algorithm": self.method}
        for pointer, value in self.values.items():
            part = pointer.split("/")[1:-1]
            if part[:1] != ["features"]:
                (found[part[0]] if part else found)[self.fields[pointer].name] = value
        found["features"] = list(self.features.values())
        if self.study is None:
            found["sites"] = sorted(self.sites)
        else:
            known = self.study.features or ()
            declared = [each.model_dump(mode="json", exclude_defaults=True) for each in known]
            same = {"features": declared, "algorithm": self.given.get("algorithm"), "config": {}}
            found = {name: each for name, each in found.items() if same.get(name, UNSET) != each}
            found["study"] = self.study.name
        if self.kind == "study":
            defaults = {name: found.pop(name, None) for name in _DEFAULTS}
            found["defaults"] = {name: each for name, each in defaults.items() if each}
        needed = {"sites", "features", "config"} if self.kind == "session" else {"sites"}
        order = [name for name in (*SessionCreate.model_fields, "defaults") if name in found]
        return {
            name: found[name] for name in order if name in needed or found[name] not in ({}, [])
        }

    @property
    def json(self) -> str:
        """The body as people read it, and as ``fedclust session create --file`` takes it."""
        lines = [f"  {_json(name)}: {_on_lines(value)}" for name, value in self.body.items()]
        text = "{\n" + ",\n".join(lines) + "\n}"
        # An escape in a value that is itself JSON may be half of a pair of characters.
        return text.encode("utf-8", "replace").decode()

    # --- what the analyst guesses -----------------------------------------------------------------

    @property
    def shares(self) -> dict[str, float]:
        """The guessed share of each outcome, by its name."""
        features = self.features.items()
        found = {str(e.get("name")): self.values.get(f"/features/{n}/guess") for n, e in features}
        return {k: v / 100 for k, v in found.items() if isinstance(v, int | float) and 0 < v < 100}

    @property
    def patients(self) -> int | None:
        """The stated number of patients at a site."""
        stated = PATIENTS.value(self.texts.get(PATIENTS.pointer, ""))
        return stated if isinstance(stated, int) and stated > 0 else None

    @property
    def size(self) -> str:
        """How many patients a site needs for so many clusters, and whether they are there."""
        flat = {each.name: each for part in ("k", "policy") for each in self.parts[part]}
        found = {name: self.values.get(e.pointer, e.default) for name, e in flat.items()}
        k, p = found.get("n_clusters"), found["min_group_size"]
        most = max(
            (n for n in (k if isinstance(k, list) else [k]) if isinstance(n, int)), default=0
        )
        if most < 1 or not isinstance(p, int):
            return ""
        needed, n_sites = _GROUPS * most * p, len(self.given.get("sites", self.sites))
        text = (
            f"With {n_sites} sites, K = {most} and p = {p} you need at least {needed} patients a "
        )
        text += "site: two groups of at least p patients for each cluster that it holds."
        if self.patients is None:
            return text
        fits = self.patients // (_GROUPS * p)
        return f"{text} {self.patients} are enough{f' up to K = {fits}' * (fits < most)}."

    # --- messages ---------------------------------------------------------------------------------

    def checked(self, check: Callable[[bytes], T]) -> tuple[Self, T | None]:
        """Return the form with the messages of a check, and what it returns if there are none.

        ``check`` takes the body as the API does, and raises Refusal. The API reads the rest only
        where these are right: so something valid stands for what is missing or wrong.
        """
        there = {**self.values, "/sites": self.sites or self.study, "/features": self.features}
        optional = {e.pointer for e in self.fields.values() if e.default not in (UNSET, "")}
        optional |= {"/features", "/config/n_clusters"} if self.kind == "study" else set()
        # A K of 0 is there: it is wrong.
        lacking = [each for each in _NEEDED if not there.get(each) and there.get(each) != 0]
        missing = [each for each in lacking if each not in optional]
        form, made, stand_ins = self, None, missing
        for _ in range(2):
            body = {**self.body}
            for _, *part, name in (pointer.split("/") for pointer in stand_ins):
                inner = body.get("config", {})
                value = _NEEDED["/".join(["", *part, name])]
                body |= {"config": {**inner, name: value}} if part else {name: value}
            try:
                made = check(_json(body).encode("utf-8", "replace"))
            except Refusal as refusal:
                found = self.refused(refusal)
                errors = {at: said for at, said in found.errors.items() if at not in stand_ins}
                form = replace(
                    form, errors={**errors, **form.errors}, general=form.general or found.general
                )
            stand_ins = [*missing, *(each for each in form.errors if each in _NEEDED)]
        labels = {each: self.label(each) for each in missing}
        form = replace(form, errors={**form.errors, **self.refusals}, missing=labels)
        return form, None if missing or form.errors or form.general else made

    @property
    def refusals(self) -> dict[str, tuple[str, ...]]:
        """What only the form refuses: names of persons, too many columns, a wrong guess."""
        held = {n: identifies(str(each.get("name", ""))) for n, each in self.features.items()}
        why = "it looks like {}, which no session may ask for: leave it out, or rename it"
        found: dict[str, tuple[str, ...]]
        found = {f"/features/{n}/name": (why.format(each),) for n, each in held.items() if each}
        if self.texts.get(PATIENTS.pointer) and self.patients is None:
            found[PATIENTS.pointer] = ("write a whole number of at least 1",)
        if len(self.rows) > MOST_ROWS:
            found["/features"] = (f"a form holds {MOST_ROWS} columns: create it from JSON",)
        return found

    def refused(self, refusal: Refusal) -> Self:
        """Return the form with the messages of a refusal at their inputs."""
        if refusal.slug == "name-taken":
            return replace(self, errors={"/name": (refusal.detail,)})
        errors: dict[str, tuple[str, ...]] = {}
        general: tuple[str, ...] = () if refusal.errors else (refusal.detail,)
        rows = [*self.features]
        for error in refusal.errors:
            place, message = error.pointer.removeprefix("/defaults"), error.message
            _, name, *rest = f"{place}/".split("/")
            index = int(rest[0]) if rest and rest[0].isdecimal() else MOST_ROWS
            if name == "sites" and index < len(self.sites):
                place, message = "/sites", f"{sorted(self.sites)[index]}: {message}"
            elif name == "features" and index < len(rows):
                row = f"/features/{rows[index]}"
                place = "/".join([row, *(rest[1:-1] or ["name"])])
                foreign = re.fullmatch(r'unknown field "(\w+)"\.', message)
                if f"{row}/role" in self.values and "expected tags" in message:
                    place, message = f"{row}/role", "choose feature or outcome"
                elif foreign and f"{row}/{foreign[1]}" in self.fields:
                    place = f"{row}/{foreign[1]}"
                    message = "a column of this role has none: leave it empty"
            known = {*self.fields, "/sites", "/features", "/algorithm"}
            while place and place not in known:
                place = place.rpartition("/")[0]
            if not place:
                general = (*general, str(error))
            elif message not in errors.get(place, ()):
                errors[place] = (*errors.get(place, ()), message)
        return replace(self, errors=errors, general=general)

    def label(self, pointer: str) -> str:
        """Return what an input is called, in a row with the name of the column."""
        others = {"/sites": "Sites", "/features": "Columns", "/algorithm": "Method"}
        others |= {"/config/n_clusters": "Number of clusters, K", PATIENTS.pointer: PATIENTS.label}
        label = self.fields[pointer].label if pointer in self.fields else others[pointer]
        name = self.texts.get(f"{pointer.rpartition('/')[0]}/name") or "row"
        return f"{name}, {label.lower()}" if pointer.startswith("/features/") else label

    @property
    def summary(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """The id, the label and the messages of every input that has messages."""
        return [(input_id(name), self.label(name), each) for name, each in self.errors.items()]

    # --- where it comes from ----------------------------------------------------------------------

    def filled(self, body: Mapping[str, Any]) -> Self:
        """Return the form that shows a definition, whole or in part; notes say what it cannot."""
        listed = body.get("features", self.given.get("features"))
        sites = tuple(map(str, _list(body.get("sites"))))
        declared = [{"name": e} if isinstance(e, str) else e for e in _list(listed)]
        rows = dict(enumerate(each for each in declared if isinstance(each, Mapping)))
        objects = {f"/features/{n}": each for n, each in rows.items() if n <= MOST_ROWS}
        objects |= {f"/{name}": body.get(name) for name in ("config", "policy")} | {"": body}
        values = {
            f"{at}/{name}": value
            for at, each in objects.items()
            if isinstance(each, Mapping)
            for name, value in each.items()
            if f"{at}/{name}" not in (*objects, "/features")
        }
        chosen = {at: value for at, value in values.items() if isinstance(value, str)}
        notes = []
        if chosen.get("/algorithm") not in (None, "", *METHODS):
            notes.append("This coordinator does not have the method of the definition.")
            del chosen["/algorithm"]
        form = replace(self, texts=chosen, rows=tuple(range(len(rows)))[: MOST_ROWS + 1])
        known, texts = form.fields, {}
        for at, value in values.items():
            if at in known and value != (None if known[at].default is UNSET else known[at].default):
                texts[at] = known[at].text(value)
        texts |= {at: text for at, text in chosen.items() if at == "/algorithm"}
        lost = [at[1:65] for at in values if at not in known and at not in _ELSEWHERE]
        notes += [f"Not taken over: {', '.join(lost[:20])}."] if lost else []
        if len(rows) > MOST_ROWS:
            notes.append(f"A form holds {MOST_ROWS} columns. Create the session from its JSON.")
        return replace(self, texts=texts, rows=form.rows, sites=sites, notes=tuple(notes))


def _with(fields: Iterable[FormField], given: Mapping[str, Any]) -> list[FormField]:
    """Return fields with the defaults that a study gives."""
    return [replace(each, default=given.get(each.name, each.default)) for each in fields]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _on_lines(value: Any) -> str:
    """Return JSON in which each member of a list of objects has a line."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return _json(value)
    return "[\n" + ",\n".join(f"    {_json(each)}" for each in value) + "\n  ]"
