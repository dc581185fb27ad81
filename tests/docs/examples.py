"""The examples of a page: found by sybil, run in the order of the page."""

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import yaml
from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer
from sybil.region import Lexeme

from docs.definitions import check_definition
from docs.page import Page

#: Languages of blocks that only show something.
SHOWN = {"", "text", "sql", "powershell"}
#: What a comment says that a line prints, up to a colon or a semicolon.
_SAID = re.compile(r"print\(.*\)  # ([^:;\n]*)")


def parse(path: Path, page: Page) -> Document:
    """Return the examples of a page."""

    def run_python(example: Example) -> None:
        whole = example.parsed
        if page.is_file(whole):
            return
        example.parsed = Lexeme(page.adapted(whole), whole.offset, whole.line_offset)
        with redirect_stdout(StringIO()) as printed:
            PythonEvaluator()(example)
        for said in _SAID.findall(whole):
            assert _numbers(said) in _numbers(printed.getvalue()), f"{said} of {printed.getvalue()}"

    def run_script(example: Example) -> None:
        page.run_script(example.parsed, example.line + 1)

    def run_transcript(example: Example) -> None:
        page.run_transcript(example.parsed, example.line + 1)

    def read(check: Callable[[str], object]) -> Callable[[Example], None]:
        def evaluate(example: Example) -> None:
            page.is_file(example.parsed)
            check(example.parsed)

        return evaluate

    evaluators: dict[str, Callable[[Example], None]] = {
        "sh": run_script,
        "console": run_transcript,
        "json": read(lambda text: check_definition(json.loads(text))),
        "toml": read(tomllib.loads),
        "yaml": read(yaml.safe_load),
        # As systemd does: a name may come again.
        "ini": read(configparser.RawConfigParser(strict=False).read_string),
    }

    def other_blocks(document: Document) -> Iterator[Region]:
        for region in FencedCodeBlockLexer(r".*")(document):
            language = region.lexemes["language"].strip()
            if language in evaluators:
                region.parsed, region.evaluator = region.lexemes["source"], evaluators[language]
                yield region
            else:
                known = language in SHOWN or language == "python" or language.startswith("{")
                assert known, f"{document.line_column(region.start)}: {language} is not run"

    def python_blocks(document: Document) -> Iterator[Region]:
        for region in PythonCodeBlockParser()(document):
            if isinstance(region.parsed, Lexeme):  # and no >>>
                region.evaluator = run_python
            yield region

    document = Document.parse(str(path), python_blocks, other_blocks, SkipParser())
    document.namespace = page.names
    return document


def _numbers(text: str) -> str:
    """Return the numbers in a text, written in one way."""
    return "".join(f" {float(each)};" for each in re.findall(r"-?\d+\.?\d*", text))
