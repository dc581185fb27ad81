"""What ``render.py`` writes on the pages of docs/reference/."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from typer.main import get_command

from fedclust.cli.main import app
from fedclust.cli.options import Connection, Persons, Reading
from fedclust.definition.study import StudyCreate, StudyDefaults
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.run_config import Policy
from fedclust.site.settings import AgentSettings, SiteSettings
from fedclust.wire.errors import CATALOGUE
from fedclust.wire.models import SessionCreate
from fedclust_service.cli import DATABASE, FLAGS, NO_FLAG, NOTIFICATIONS
from fedclust_service.cli import app as service_app
from fedclust_service.http.ui.schema_fields import fields_of
from fedclust_service.settings import PREFIX, Settings
from render_options import default, fields_table, markdown_table, texts_of, values, with_facts


def markdown_code(text: str) -> str:
    """Return text of the code with its double back quotes as Markdown has them.

    Addresses become code too: they may break at the end of a line.
    """
    text = text.replace("``", "`").replace("|", "\\|")
    return re.sub(r"(?<![`\w])([a-z+]+://[^\s;,]*[^\s;,.])", r"`\1`", text)


# --- commands -------------------------------------------------------------------------------------


def commands() -> str:
    """Return every command of ``fedclust`` with its arguments and options."""
    found = dict(_leaves("fedclust", get_command(app)))
    marks = {
        "connection": tuple(Connection.model_fields),
        "persons": tuple(Persons.model_fields),
        "rows": tuple(Reading.model_fields),
        "definition": _in_both(found["fedclust session create"], found["fedclust study create"]),
        "json": ("as_json",),
    }
    examples = {"connection": "status", "persons": "participate", "rows": "predict"}
    parts = ["A word in brackets stands for options that several commands have."]
    for mark, command in {**examples, "definition": "session create", "json": "status"}.items():
        shared = [p for p in found[f"fedclust {command}"].params if p.name in marks[mark]]
        parts += [f"*{mark}*: {_MARKS[mark]}", _options_list(shared)]
    return "\n\n".join([*parts, _command_sections("fedclust", app, marks)])


#: What the options have in common that a mark stands for.
_MARKS = {
    "connection": "how to reach the coordinator.",
    "persons": "who the rows are about.",
    "rows": "how to read the rows.",
    "definition": "what a session asks for.",
    "json": "output for scripts.",
}


_OTHER_ROLE = re.compile(r"\b(?:analyst|operator)(s?)\b")


def _in_both(one: Any, other: Any) -> tuple[str, ...]:
    """Return the options of two commands that mean the same; --json has a mark of its own."""
    theirs = {each.name: getattr(each, "help", None) for each in other.params}
    same = [each.name for each in one.params if theirs.get(each.name) == getattr(each, "help", "")]
    return tuple(name for name in same if name not in {*Connection.model_fields, "as_json", "help"})


def service_commands() -> str:
    """Return every command of ``fedclust-service`` with its arguments and options."""
    marks = {"settings": FLAGS, "notifications": NOTIFICATIONS, "database": DATABASE}
    flags = ", ".join(f"`--{name.replace('_', '-')}`" for name in DATABASE)
    lead = (
        f"*database* stands for {flags}, *notifications* for the settings of mail and webhook, "
        "*settings* for the flag of every setting."
    )
    sections = _command_sections("fedclust-service", service_app, marks)
    return f"{textwrap.fill(lead, 99, break_on_hyphens=False)}\n\n{sections}"


def _command_sections(name: str, typer_app: Any, marks: Mapping[str, tuple[str, ...]]) -> str:
    """Return a section for each command; each of ``marks`` stands for the options named there."""
    parts: dict[str, str] = {}
    for path, command in _leaves(name, get_command(typer_app)):
        left, said = {each.name for each in command.params}, []
        for mark, shared in marks.items():
            if left.issuperset(shared):
                said.append(f"[*{mark}*]")
                left -= set(shared)
        own = [each for each in command.params if each.name in left - {"help"}]
        words = [each.name.upper().replace("_", "-") for each in own if not _is_option(each)]
        words += said
        options = [each for each in own if _is_option(each)]
        table = f"\n\n{_options_list(options)}" if options else ""
        usage = " ".join([f"`{path}`", *words])
        help_text = textwrap.fill(" ".join((command.help or "").split()), 99)
        body = f"{usage}\n\n{help_text}{table}"
        # Commands for analysts and operators are named after those for sites.
        first = _OTHER_ROLE.sub(r"site\1", path)
        if first in parts and parts[first].startswith(_OTHER_ROLE.sub(r"site\1", body)):
            parts[first] += f"\n\nLikewise `{path}`."
        else:
            parts[path] = body
    return "\n\n".join(f"### {path.removeprefix(f'{name} ')}\n\n{parts[path]}" for path in parts)


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with the words that call it."""
    inner = getattr(command, "commands", {})
    if not inner or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, each in inner.items():
        yield from _leaves(f"{path} {name}", each)


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _options_list(options: list[Any]) -> str:
    return "\n".join(textwrap.fill(_option(each), 99, **_ITEM) for each in options)


_ITEM: dict[str, Any] = {"subsequent_indent": "  ", "break_on_hyphens": False}


def _option(parameter: Any) -> str:
    variable = f" ({parameter.envvar})" if parameter.envvar else ""
    return f"- `{', '.join(parameter.opts)}`: {parameter.help or ''}{variable}"


# --- settings -------------------------------------------------------------------------------------


def settings() -> str:
    """Return every setting of the coordinator."""
    rows = []
    for each in fields_of(Settings):
        facts = {}
        if each.default not in (None, [], ()):
            facts["Default"] = default(each) if each.kind != "words" else "all"
        if each.limits or each.choices:
            facts["Values"] = values(each)
        flag = f"`--{each.name.replace('_', '-')}`"
        facts |= {"No flag": ""} if each.name in NO_FLAG else {"Flag": flag}
        variable = f"`{PREFIX}{each.name.upper()}`"
        rows.append((variable, with_facts(markdown_code(each.help), facts)))
    return markdown_table(("setting", "meaning"), rows)


def site_settings() -> str:
    """Return every setting of ``site.toml``."""
    own = [each for each in fields_of(SiteSettings) if each.name != "agent"]
    table = fields_table("setting", own, texts_of(SiteSettings))
    agent = fields_of(AgentSettings)
    rows = fields_table("setting", agent, texts_of(AgentSettings), "agent.")
    return "\n".join([table, *rows.splitlines()[2:]])


# --- problems -------------------------------------------------------------------------------------


def problem_list() -> str:
    """Return the catalogue of problem types as a table."""
    rows = (
        (f"[`{slug}`](#{slug})", str(status), title) for slug, (status, title) in CATALOGUE.items()
    )
    return markdown_table(("type", "status", "title"), rows)


# --- definitions ----------------------------------------------------------------------------------


def definition_fields(model: type[BaseModel]) -> str:
    """Return the fields of a part of a definition."""
    # A part with fields of its own has a table of its own.
    groups = [each for each in fields_of(model) if each.name in ("policy", "defaults")]
    shown = [each for each in fields_of(model) if each not in groups]
    table = fields_table("field", shown, texts_of(model))
    if not groups:
        return table
    facts = {"Default": "`{}`", "Values": "object, see below"}
    rows = [(f"`{each.name}`", with_facts(texts_of(model)[each.name], facts)) for each in groups]
    return "\n".join([table, *("| " + " | ".join(row) + " |" for row in rows)])


DEFINITIONS: Mapping[str, type[BaseModel]] = {
    "session": SessionCreate,
    "feature": Feature,
    "outcome": Outcome,
    "policy": Policy,
    "study": StudyCreate,
    "study-defaults": StudyDefaults,
}
