"""What the log says where something goes wrong: where it was raised, never the text."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from fedclust_service import logging
from support import tally
from support.office import Office


def test_a_failed_aggregation_is_located_and_its_words_are_not_repeated(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    logging.through_logging()
    caplog.set_level("INFO")
    office.session("heart", rounds=2)
    office.answer_all("heart")

    def fail() -> None:
        raise ValueError("the row 42.4242 of Mrs Smith")

    tally.HOOK.append(fail)
    office.drive()
    lines: list[Any] = [each.msg for each in caplog.records if isinstance(each.msg, dict)]
    (failed,) = [line for line in lines if line["event"] == "aggregation_error"]
    assert (failed["session"], failed["round"], failed["method"]) == ("heart", 1, "tally")
    (where,) = failed["raised"]
    assert where.startswith("ValueError at ")
    assert "test_logs.fail" in where
    ended = [line for line in lines if line["event"] == "session.failed"]
    assert [(line["session"], line["round"]) for line in ended] == [("heart", 1)]
    assert "42.4242" not in caplog.text


#: Every way in which a line gets onto stderr.
FAILING = """
import logging, sys, threading, warnings
import structlog
from fedclust_service.logging import configure
configure("info", sys.argv[1])
log = structlog.get_logger("ours")
try:
    raise ValueError("42.4242")
except ValueError as error:
    log.error("ours", exc_info=error)
    logging.getLogger("theirs").exception("theirs")
warnings.warn("42.4242")
threading.Thread(target=lambda: {}["42.4242"], name="worker").start()
class Odd:
    def __repr__(self): raise ValueError("42.4242")
logging.getLogger("odd").error("%r", Odd())
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_whatever_fails_is_a_line_that_repeats_no_value(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING, form], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert "42.4242" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 5, done.stderr
    for said in ("ValueError at ", "UserWarning", "KeyError at ", "log_line_lost"):
        assert said in done.stderr
    if form == "json":
        events = [json.loads(line)["event"] for line in lines]
        assert events == ["ours", "theirs", "warned", "thread_died", "log_line_lost"]
