"""What the log says of an aggregation that goes wrong: where it was raised, never the text."""

from __future__ import annotations

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
    (where,) = failed["exception"]
    assert where.startswith("ValueError at ")
    assert "test_logs.fail" in where
    ended = [line for line in lines if line["event"] == "session.failed"]
    assert [(line["session"], line["round"]) for line in ended] == [("heart", 1)]
    assert "42.4242" not in caplog.text
