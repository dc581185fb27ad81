"""Compare the API with the contract that clients were given: ``python openapi/breaking.py``.

``openapi/contract.json`` is the description as it was last released. What it promises and the
present description does not is a break; each needs a line in ``CHANGES.md``::

    - BREAKING: DELETE /v1/sites/{name}: operation removed

Without it this fails. `docs/protocol.md` says what counts. A release moves the contract on:
``--accept`` writes the present description over it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CONTRACT, CURRENT, CHANGES = (
    HERE / name for name in ("contract.json", "openapi.json", "CHANGES.md")
)
_METHODS = {"get", "put", "post", "delete", "patch", "head", "options"}
#: Keywords that bound a value from below, from above, and in other ways.
_LEAST = ("minimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "maxLength", "maxItems", "maxProperties")
_RULES = ("pattern", "format", "multipleOf", "uniqueItems", "propertyNames", "contains", "not")
_EXCLUSIVE = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
_NO_LIMIT = float("inf")


def breaks(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what a client written against ``old`` cannot rely on in ``new``, sorted."""
    comparison = _Comparison(old, new)
    return sorted({*comparison.everywhere(), *comparison.operations(), *comparison.methods()})


def declared(changes: str) -> set[str]:
    """Return the breaks that the changes file tells of."""
    # An indented line goes on with the one before.
    whole = re.sub(r"\n {2,}(?=\S)", " ", changes)
    marked = (line.strip().removeprefix("- ") for line in whole.splitlines())
    mark = "BREAKING: "
    return {line.removeprefix(mark).strip() for line in marked if line.startswith(mark)}


class _Comparison:
    """Two descriptions; schemas are compared by what they admit, through references."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self.old, self.new = old, new
        self._open: set[tuple[str, str, bool]] = set()
        self._fine: set[tuple[str, str, bool]] = set()
        self._assumed = 0

    def everywhere(self) -> Iterator[str]:
        if self.old.get("servers") != self.new.get("servers"):
            yield "servers changed"
        after = _schemes(self.new)
        for name, scheme in _schemes(self.old).items():
            if name in after and after[name] != scheme:
                yield f"token: {name} changed"

    def methods(self) -> Iterator[str]:
        """Yield what a site or an analyst cannot rely on in a method of the version they speak."""
        after = {method["name"]: method for method in self.new.get("x-fedclust-methods", ())}
        for old in self.old.get("x-fedclust-methods", ()):
            at = f"method {old['name']}"
            new = after.get(old["name"])
            if new is None:
                yield f"{at}: removed"
            elif new["version"] < old["version"]:
                yield f"{at}: version lowered"
            elif new["version"] == old["version"]:
                yield from self._schema(old["options"], new["options"], f"{at}: options", sent=True)
                yield from self._phases(old["phases"], new["phases"], at)

    def _phases(self, old: list[Any], new: list[Any], at: str) -> Iterator[str]:
        if [phase["name"] for phase in old] != [phase["name"] for phase in new]:
            yield f"{at}: other phases in the same version"
            return
        for before, after in zip(old, new, strict=True):
            here = f"{at}: {before['name']}"
            for part in ("parameters", "site"):
                if (before[part] is None) != (after[part] is None):
                    yield f"{here}: {part} in only one"
                elif before[part] is not None:
                    yield from self._schema(before[part], after[part], here, sent=False)
            one, other = before["payload"], after["payload"]
            yield from self._schema(one, other, f"{here}: answer", sent=True)

    def operations(self) -> Iterator[str]:
        for path, methods in self.old["paths"].items():
            for method in methods.keys() & _METHODS:
                name = f"{method.upper()} {path}"
                found = self.new["paths"].get(path, {}).get(method)
                if found is None:
                    yield f"{name}: operation removed"
                    continue
                for text in self._operation(methods[method], found):
                    yield f"{name}: {text}"

    def _operation(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        if old.get("operationId") != new.get("operationId"):
            yield "operationId changed"
        yield from _access(old.get("security"), new.get("security"))
        yield from self._parameters(old.get("parameters", []), new.get("parameters", []))
        yield from self._request(old.get("requestBody"), new.get("requestBody"))
        for status, answer in old["responses"].items():
            found = new["responses"].get(status)
            if found is None:
                yield f"status {status} removed"
                continue
            yield from self._answer(status, answer, found)

    def _parameters(self, old: list[Any], new: list[Any]) -> Iterator[str]:
        before = {(item["in"], item["name"]): item for item in old}
        after = {(item["in"], item["name"]): item for item in new}
        for key, item in before.items():
            at = f"{key[0]} parameter {key[1]}"
            if key not in after:
                yield f"{at} removed"
                continue
            if after[key].get("required") and not item.get("required"):
                yield f"{at} became required"
            yield from self._schema(item["schema"], after[key]["schema"], at, sent=True)
        for key, item in after.items():
            if key not in before and item.get("required"):
                yield f"{key[0]} parameter {key[1]} is new and required"

    def _request(self, old: Any, new: Any) -> Iterator[str]:
        if old is None:
            if new is not None and new.get("required"):
                yield "request body is new and required"
            return
        if new is None:
            yield "request body removed"
            return
        if new.get("required") and not old.get("required"):
            yield "request body became required"
        for media, content in old["content"].items():
            found = new["content"].get(media)
            if found is None:
                yield f"request as {media} removed"
                continue
            yield from self._schema(content["schema"], found["schema"], "request", sent=True)

    def _answer(self, status: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        headers = new.get("headers", {})
        for name, header in old.get("headers", {}).items():
            if name not in headers:
                yield f"header {name} of {status} removed"
                continue
            at = f"header {name} of {status}"
            yield from self._schema(header["schema"], headers[name]["schema"], at, sent=False)
        for slug in sorted(_problems(old) - _problems(new)):
            yield f"problem {slug} of {status} removed"
        for media, content in old.get("content", {}).items():
            found = new.get("content", {}).get(media)
            if found is None:
                yield f"answer {status} as {media} removed"
                continue
            at = f"answer {status}"
            yield from self._schema(content["schema"], found["schema"], at, sent=False)

    # --- schemas ----------------------------------------------------------------------------------

    def _schema(self, old: Any, new: Any, at: str, *, sent: bool) -> Iterator[str]:
        """Yield where ``new`` takes less than ``old`` (``sent``), or answers something else."""
        pair = (json.dumps(old, sort_keys=True), json.dumps(new, sort_keys=True), sent)
        if pair in self._fine:
            return
        if pair in self._open:  # a schema that holds itself
            self._assumed += 1
            return
        self._open.add(pair)
        assumed = self._assumed
        try:
            found = list(self._compared(old, new, at, sent))
        finally:
            self._open.discard(pair)
        if not found and assumed == self._assumed:
            self._fine.add(pair)
        yield from found

    def _compared(self, old: Any, new: Any, at: str, sent: bool) -> Iterator[str]:
        old, new = self._resolved(old, self.old), self._resolved(new, self.new)
        if not sent and "anyOf" not in old and len(kept := _but_null(new)) == 1:
            yield f"{at}: null may be answered"
            new = self._resolved(kept[0], self.new)
        if "discriminator" in old or "discriminator" in new:
            yield from self._variants(old, new, at, sent)
            return
        yield from self._kinds(old, new, at, sent)
        yield from self._limits(old, new, at, sent)
        yield from self._fields(old, new, at, sent)
        for key in ("items", "additionalProperties"):
            if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
                yield from self._schema(old[key], new[key], f"{at}/*", sent=sent)
        closed = new.get("additionalProperties") is False
        if sent and closed and old.get("additionalProperties") is not False:
            yield f"{at}: takes no further fields"
        yield from self._choices(old, new, at, sent)

    def _resolved(self, schema: Any, document: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with its reference followed and its ``allOf`` laid over each other."""
        if not isinstance(schema, dict):
            return {}
        found = dict(schema)
        parts = list(found.pop("allOf", ()))
        if "$ref" in found:
            target: Any = document
            for part in found.pop("$ref").removeprefix("#/").split("/"):
                target = target[part]
            parts.insert(0, target)
        for part in parts:
            part = self._resolved(part, document)
            merged = {**part, **found}
            if "properties" in part and "properties" in found:
                both = part["properties"], found["properties"]
                merged["properties"] = {
                    name: {"allOf": [fields[name] for fields in both if name in fields]}
                    for name in both[0].keys() | both[1].keys()
                }
            if "required" in part and "required" in found:
                merged["required"] = sorted({*part["required"], *found["required"]})
            found = merged
        return found

    def _kinds(
        self, old: dict[str, Any], new: dict[str, Any], at: str, sent: bool
    ) -> Iterator[str]:
        before, after = _types(old), _types(new)
        if sent and after is not None and not _within(before, after):
            yield f"{at}: type narrowed from {_said(before)} to {_said(after)}"
        if not sent and before is not None and not _within(after, before):
            yield f"{at}: type widened from {_said(before)} to {_said(after)}"
        values, present = _values(old), _values(new)
        if sent and present is not None:
            if values is None:
                yield f"{at}: takes only certain values"
            for gone in [] if values is None else sorted(values - present):
                yield f"{at}: value {gone} no longer taken"
        if not sent and values is not None:
            if present is None:
                yield f"{at}: answers any value"
            for added in [] if present is None else sorted(present - values):
                yield f"{at}: value {added} may be answered"

    def _limits(
        self, old: dict[str, Any], new: dict[str, Any], at: str, sent: bool
    ) -> Iterator[str]:
        if not sent:
            if "format" in old and new.get("format") != old["format"]:
                yield f"{at}: format changed"
            return
        for key in _LEAST:
            if _limit(new, key, -_NO_LIMIT) > _limit(old, key, -_NO_LIMIT):
                yield f"{at}: {key} raised"
        for key in _MOST:
            if _limit(new, key, _NO_LIMIT) < _limit(old, key, _NO_LIMIT):
                yield f"{at}: {key} lowered"
        for key in _RULES:
            if key in new and new[key] not in (old.get(key), False):
                yield f"{at}: {key} changed"
        # Who left it out gets something else. A field that was needed had none.
        if "default" in old and "default" in new and new["default"] != old["default"]:
            yield f"{at}: default changed"

    def _fields(
        self, old: dict[str, Any], new: dict[str, Any], at: str, sent: bool
    ) -> Iterator[str]:
        if sent and "properties" not in new and ("anyOf" in new or "oneOf" in new):
            return  # compared with each choice
        before, after = old.get("properties", {}), new.get("properties", {})
        for name in before.keys() - after.keys():
            yield f"{at}: field {name} removed"
        for name in before.keys() & after.keys():
            yield from self._schema(before[name], after[name], f"{at}/{name}", sent=sent)
        must, now = set(old.get("required", ())), set(new.get("required", ()))
        if sent:
            for name in now - must:
                yield f"{at}: field {name} is required"
        else:
            for name in (must - now) & after.keys():
                yield f"{at}: field {name} may be absent"

    def _choices(
        self, old: dict[str, Any], new: dict[str, Any], at: str, sent: bool
    ) -> Iterator[str]:
        for key in ("anyOf", "oneOf"):
            if key not in old and key not in new:
                continue
            before = old.get(key, [_bare(old)])
            after = new.get(key, [_bare(new)])
            # Everything that was taken has to be taken; everything answered has to be known.
            given, found = (before, after) if sent else (after, before)
            for choice in given:
                if any(self._fits(choice, other, sent) for other in found):
                    continue
                inner = self._resolved(choice, self.old)
                if sent and choice in found and "discriminator" in inner:
                    # A choice within the choice, such as SessionCreate: say what changed in it.
                    yield from self._schema(choice, choice, at, sent=sent)
                else:
                    name = choice.get("title") or choice.get("$ref") or choice.get("type", key)
                    verb = "no longer taken" if sent else "may be answered"
                    yield f"{at}: {str(name).split('/')[-1]} {verb}"

    def _variants(
        self, old: dict[str, Any], new: dict[str, Any], at: str, sent: bool
    ) -> Iterator[str]:
        """Compare a choice by its discriminator; as a whole with what has none."""
        if "discriminator" not in old or "discriminator" not in new:
            yield from self._choices(old, new, at, sent)
            return
        before, after = (schema["discriminator"]["mapping"] for schema in (old, new))
        for name in sorted(before):
            if name in after:
                one, other = {"$ref": before[name]}, {"$ref": after[name]}
                yield from self._schema(one, other, at, sent=sent)
            elif sent:
                yield f"{at}: {name} no longer taken"
        # Further variants break nobody: a site gets tasks only of methods that it joined with.

    def _fits(self, choice: Any, other: Any, sent: bool) -> bool:
        old, new = (choice, other) if sent else (other, choice)
        return not list(self._schema(old, new, "", sent=sent))


def _access(old: Any, new: Any) -> Iterator[str]:
    """Yield what changed in how a caller is let in; ``security`` lists ways, all of them enough."""
    before, after = _ways(old), _ways(new)
    if "{}" in after:
        # Breaks no client, but what the contract keeps behind a token does not open by oversight.
        if "{}" not in before:
            yield "no token needed"
    elif "{}" in before:
        yield "token needed"
    elif before - after:
        yield "token no longer taken as before"


def _ways(security: Any) -> set[str]:
    return {json.dumps(way, sort_keys=True) for way in security or [{}]}


def _schemes(document: dict[str, Any]) -> dict[str, Any]:
    """Return how each kind of token is sent, without the words about it."""
    return {
        name: {key: value for key, value in scheme.items() if key != "description"}
        for name, scheme in document["components"].get("securitySchemes", {}).items()
    }


def _problems(answer: dict[str, Any]) -> set[str]:
    """Return the problem types that the text about an answer lists."""
    return set(re.findall(r"^`([a-z-]+)`: ", answer.get("description", ""), re.MULTILINE))


def _limit(schema: dict[str, Any], key: str, none: float) -> tuple[float, bool]:
    """Return a bound, and whether it is stricter than one of the same value that is inclusive."""
    rising = key in _LEAST
    bounds = [(float(schema.get(key, none)), not rising)]
    if key in _EXCLUSIVE:
        bounds.append((float(schema.get(_EXCLUSIVE[key], none)), rising))
    return max(bounds) if rising else min(bounds)


def _types(schema: dict[str, Any]) -> set[str] | None:
    """Return the types that a schema names; None: any, or its choices say."""
    kinds = schema.get("type")
    if kinds is None:
        return None
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _within(one: set[str] | None, other: set[str]) -> bool:
    wider = other | ({"integer"} if "number" in other else set())
    return one is not None and one <= wider


def _said(kinds: set[str] | None) -> str:
    return "any" if kinds is None else "|".join(sorted(kinds))


def _but_null(schema: dict[str, Any]) -> list[Any]:
    """Return what a choice leaves beside null; nothing where it is none with null."""
    choices = schema.get("anyOf", [])
    kept = [each for each in choices if each != {"type": "null"}]
    return kept if len(kept) < len(choices) else []


def _values(schema: dict[str, Any]) -> set[str] | None:
    if "const" in schema:
        return {json.dumps(schema["const"])}
    return {json.dumps(value) for value in schema["enum"]} if "enum" in schema else None


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in {"anyOf", "oneOf"}}


def _promised(document: dict[str, Any]) -> dict[str, Any]:
    """Return a description without its examples, which promise nothing."""
    document["components"].pop("examples", None)
    for methods in document["paths"].values():
        for operation in methods.values():
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            for content in (kind for body in bodies for kind in body.get("content", {}).values()):
                content.pop("examples", None)
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accept", action="store_true", help="the present one is the contract")
    current = json.loads(CURRENT.read_text("utf-8"))
    if parser.parse_args().accept:
        text = json.dumps(_promised(current), indent=1, sort_keys=True, ensure_ascii=False)
        CONTRACT.write_text(text + "\n", "utf-8")
        return 0
    found = breaks(json.loads(CONTRACT.read_text("utf-8")), current)
    listed = declared(CHANGES.read_text("utf-8"))
    lines = [f"{'listed' if line in listed else 'BREAKING'}: {line}" for line in found]
    if left := [line for line in found if line not in listed]:
        lines.append(f"{len(left)} breaking changes that openapi/CHANGES.md does not tell of.")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
