"""What the log says where something goes wrong: where it was raised, never the text."""

import json
import sys

import pytest

from fedclust_service import logging
from support.processes import run

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
    done = run([sys.executable, "-c", FAILING, form])
    assert done.stdout == ""
    assert "42.4242" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 5, done.stderr
    for said in ("ValueError at ", "UserWarning", "KeyError at ", "log_line_lost"):
        assert said in done.stderr
    if form == "json":
        events = [json.loads(line)["event"] for line in lines]
        assert events == ["ours", "theirs", "warned", "thread_died", "log_line_lost"]


def test_repetitions_are_counted_and_told_once_an_interval() -> None:
    seconds = [0.0]
    repeats = logging.Repeats(lambda: seconds[0])
    failed = {"event": "accept_failed", "level": "error", "raised": ["OSError at a:1"]}
    written = [repeats.admits({**failed, "timestamp": n, "request_id": n}) for n in range(500)]
    assert written == [True] + [False] * 499
    assert repeats.admits({**failed, "raised": ["OSError at b:2"]})
    assert repeats.counted() == []
    seconds[0] = 10.0
    line = {"event": "repeated", "of": "accept_failed", "count": 499, "level": "error"}
    assert repeats.counted() == [{**line, "raised": "['OSError at a:1']"}]
    assert repeats.counted() == []
    assert repeats.admits(failed)


def test_a_loop_of_requests_leaves_fifty_lines_and_every_change_its_own() -> None:
    repeats = logging.Repeats(lambda: 0.0)
    line = {"event": "request", "level": "info", "route": "/v1/whoami", "status": 401}
    # What the client chooses makes no other line of it.
    assert sum(repeats.admits({**line, "session": f"s{n}", "ms": n}) for n in range(500)) == 50
    assert repeats.admits({**line, "status": 200, "actor": "north"})
    change = {"event": "round.closed", "level": "info", "subject": "heart"}
    assert all(repeats.admits(change) for _ in range(500))


FLOODING = """
import logging
import structlog
from fedclust_service import logging as ours
ours._INTERVAL_S = 3600.0
ours.configure("info", "json")
log = structlog.get_logger("ours")
for number in range(1000):
    log.warning("again", request_id=str(number))
    logging.getLogger("theirs").error("again %s", number)
    log.info("request", route="/v1/whoami", status=401, request_id=str(number))
"""


def test_a_flood_of_lines_reaches_the_log_as_a_few() -> None:
    done = run([sys.executable, "-c", FLOODING])
    assert done.stdout == ""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines].count("again") == 1
    assert [line["event"] for line in lines].count("again 0") == 1
    assert [line["event"] for line in lines].count("request") == 50
    assert len(lines) == 52
