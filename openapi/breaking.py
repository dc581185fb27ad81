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
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CONTRACT, CURRENT, CHANGES = (
    HERE / name for name in ("contract.json", "openapi.json", "CHANGES.md")
)
_METHODS = {"get", "put", "post", "delete", "patch", "head", "options"}
#: Keywords that bound a value from below, from above.
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_NO_LIMIT = float("inf")


def breaks(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what a client written against ``old`` cannot rely on in ``new``, sorted."""
    return sorted(set(_Comparison(old, new).operations()))


def declared(changes: str) -> set[str]:
    """Return the breaks that the changes file tells of."""
    marked = (line.strip().removeprefix("- ") for line in changes.splitlines())
    mark = "BREAKING: "
    return {line.removeprefix(mark).strip() for line in marked if line.startswith(mark)}


class _Comparison:
    """Two descriptions; schemas are compared by what they admit, through references."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self.old, self.new = old, new
        self._open: set[tuple[str, str, bool]] = set()

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
        if not old.get("security") and new.get("security"):
            yield "token needed"
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
        for name in old.get("headers", {}).keys() - new.get("headers", {}).keys():
            yield f"header {name} of {status} removed"
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
        if pair in self._open:  # a schema that holds itself
            return
        self._open.add(pair)
        try:
            old, new = self._resolved(old, self.old), self._resolved(new, self.new)
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
        finally:
            self._open.discard(pair)

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
            return
        for key in _LEAST:
            if new.get(key, -_NO_LIMIT) > old.get(key, -_NO_LIMIT):
                yield f"{at}: {key} raised"
        for key in _MOST:
            if new.get(key, _NO_LIMIT) < old.get(key, _NO_LIMIT):
                yield f"{at}: {key} lowered"
        if "pattern" in new and new["pattern"] != old.get("pattern"):
            yield f"{at}: pattern changed"

    def _fields(
        self, old: dict[str, Any], new: dict[str, Any], at: str, sent: bool
    ) -> Iterator[str]:
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
                if not any(self._fits(choice, other, sent) for other in found):
                    name = choice.get("title") or choice.get("$ref") or choice.get("type", key)
                    verb = "no longer taken" if sent else "may be answered"
                    yield f"{at}: {str(name).split('/')[-1]} {verb}"

    def _fits(self, choice: Any, other: Any, sent: bool) -> bool:
        old, new = (choice, other) if sent else (other, choice)
        return not list(self._schema(old, new, "", sent=sent))


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
    told = declared(CHANGES.read_text("utf-8"))
    lines = [f"{'told' if line in told else 'BREAKING'}: {line}" for line in found]
    if left := [line for line in found if line not in told]:
        lines.append(f"{len(left)} breaking changes that openapi/CHANGES.md does not tell of.")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
