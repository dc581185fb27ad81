"""JSON that people hand on: every fault has its sentence, and no message is a program's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedclust import SessionResult
from fedclust.definition.json_text import read_json
from fedclust.wire.errors import UsageError

FAULTS = {
    "{": "line 1: this is not JSON",
    '{"a": 1, "a": 2}': "the key 'a' twice",
    '{"a": NaN}': "no number NaN",
    '{"a": -Infinity}': "no number -Infinity",
    '{"a": -1e400}': "no number -1e400",
    '{"a": "\\ud800"}': "half of a pair of characters",
    '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}": "nested too deeply",
    '{"a": 1' + "0" * 10_000 + "}": "too many digits",
}


@pytest.mark.parametrize(("text", "fault"), FAULTS.items(), ids=FAULTS.values())
def test_a_fault_is_named_with_the_file(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text, "utf-8")
    for read in (lambda: read_json(text, path), lambda: SessionResult.load(path)):
        with pytest.raises(UsageError, match=fault) as error:
            read()
        assert str(path) in str(error.value)
        assert len(str(error.value)) < 300


def test_what_is_no_text_in_utf_8_is_said_to_be() -> None:
    with pytest.raises(UsageError, match="x: this is not text in UTF-8"):
        read_json(b'{"a": "\xff"}', "x")
    assert read_json("\ufeff{}".encode(), "x") == {}
