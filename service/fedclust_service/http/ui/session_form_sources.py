"""Where the form of a session comes from: a method, a study, a post, or a definition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fedclust.methods.registry import KMEANS, METHODS
from fedclust.study import StudyInfo
from fedclust_service.http.ui.form_field import SHOWN, fill, unknown_names, without_defaults
from fedclust_service.http.ui.session_form import (
    MOST_ROWS,
    SessionForm,
    all_features,
    key_of,
    options_in_study,
    row_field,
    session_fields,
)

FormT = TypeVar("FormT", bound=SessionForm)
_REMOVE = re.compile(r"remove_(feature|outcome):([0-9]{1,6})")
_LEFT_OUT = frozenset({"method_version", "engine_version"})
_ROW_INPUT = re.compile(r"(/features|/outcomes)/([0-9]{1,6})/(\w+)")


def new_form(method: str | None, study: StudyInfo | None = None) -> SessionForm:
    """Return an empty form for a method; for one that is not in the registry, the usual one."""
    named = study and study.defaults and study.defaults.algorithm
    chosen = next((each for each in (method, named, KMEANS) if each and each in METHODS), KMEANS)
    form = SessionForm(chosen, study, taken=all_features(study))
    return form if form.taken else form.add_row()


def read_form(items: Iterable[tuple[str, str]], study: StudyInfo | None) -> SessionForm:
    """Return the form that was posted.

    Options that were left at their default show the default of the method or variant that is
    chosen now.
    """
    texts: dict[str, str] = {}
    sites: dict[str, None] = {}
    taken: dict[str, None] = {}
    rows: dict[str, dict[int, None]] = {"/features": {}, "/outcomes": {}}
    for name, text in items:
        if name == "/sites":
            sites[text] = None
        elif name == "study_feature":
            taken[text] = None
        elif name.startswith(("/", SHOWN)):
            texts[name] = text
            found = _ROW_INPUT.fullmatch(name)
            if found is not None and len(rows[found[1]]) < MOST_ROWS:
                rows[found[1]][int(found[2])] = None
        elif name == "shown_method":
            texts[SHOWN] = text
    shown, method = texts.pop(SHOWN, ""), texts.pop("/algorithm", "")
    if shown in METHODS:
        texts = without_defaults(options_in_study(shown, study), texts)
    return SessionForm(
        method if method in METHODS else new_form(None, study).method,
        study,
        {name: text for name, text in texts.items() if not name.startswith(SHOWN)},
        {table: tuple(numbers) for table, numbers in rows.items()},
        tuple(sites),
        tuple(taken),
    )


def after_button(form: FormT, pressed: Mapping[str, str]) -> FormT | None:
    """Return the form after a button that changes its rows; None if it was another one."""
    if "add_feature" in pressed:
        return form.add_row()
    if "add_outcome" in pressed:
        return form.add_row(table="/outcomes")
    if "add_names" in pressed:
        return form.add_names(pressed.get("feature_names", ""))
    for name in pressed:
        found = _REMOVE.fullmatch(name)
        if found is not None:
            return form.remove_row(int(found[2]), table=f"/{found[1]}s")
    return None


def form_of(body: Mapping[str, Any], study: StudyInfo | None) -> SessionForm:
    """Return the form that shows a definition, whole or in part; notes say what it cannot show."""
    form = new_form(_string(body.get("algorithm")), study)
    notes = []
    if body.get("algorithm") not in (None, "", form.method):
        notes.append("This coordinator does not have the method of the definition.")
    texts: dict[str, str] = {}
    for each in (*form.about, *form.counting, *form.running):
        if each.name in body:
            texts |= fill(each, body[each.name])
    texts |= fill(form.options, body.get("config")) | fill(form.policy, body.get("policy"))
    known = {*session_fields()} | _LEFT_OUT
    unknown = [str(name) for name in body if name not in known]
    unknown += [f"config.{name}" for name in unknown_names(form.options, body.get("config"))]
    unknown += [f"policy.{name}" for name in unknown_names(form.policy, body.get("policy"))]
    if unknown:
        notes.append(f"Not taken over: {', '.join(name[:64] for name in unknown[:20])}.")
    sites = body.get("sites")
    form = replace(
        form,
        texts=texts,
        sites=tuple(map(str, sites)) if isinstance(sites, list | tuple) else (),
        notes=tuple(notes),
    )
    features = body.get("features")
    return form if not isinstance(features, list | tuple) else _with_features(form, features)


def _with_features(form: SessionForm, features: Sequence[Any]) -> SessionForm:
    """Return the form with these features: those of the study are chosen, others get a row."""
    known, taken, rest = all_features(form.study), [], False
    form = replace(form, rows={})
    for each in features:
        declared = {"name": each} if isinstance(each, str) else each
        if not isinstance(declared, Mapping):
            continue
        key = key_of(declared.get("role", "feature"), declared.get("name"))
        if key in known:
            taken.append(key)
            continue
        table = "/outcomes" if declared.get("role") == "outcome" else "/features"
        if len(form.numbers(table)) == MOST_ROWS:
            rest = True
            continue
        texts = fill(row_field(0, table), declared)
        shown = {pointer.rpartition("/")[2]: text for pointer, text in texts.items()}
        form = form.add_row(shown, table=table)
    form = replace(form, taken=tuple(taken))
    return form.add_row() if rest else form  # one more than fit: adding it says so


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
