"""The figures of the documentation are what the code draws, and readers of every kind see them."""

import re
from collections.abc import Callable

import pytest

import method_figures
import protection_figures
import result_figures
import states
from diagrams import FIGURES, wrap
from fedclust.methods.registry import METHODS
from fedclust.result.drawing import Figure
from fedclust.schema.run_config import Policy
from fedclust_service.settings import Settings
from fedclust_service.store.tables import metadata
from support.drawings import check_current, check_drawing

DRAWN: dict[str, Callable[[], Figure]] = {
    **method_figures.FIGURES,
    **protection_figures.FIGURES,
    **result_figures.FIGURES,
    **states.FIGURES,
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_current_and_readable(name: str) -> None:
    figure = DRAWN[name]()
    check_current(name, figure.svg)
    check_drawing(figure)
    assert len(f"{figure.title}. {figure.description}") > 150


def test_every_page_of_a_method_has_its_figure() -> None:
    assert method_figures.FIGURES.keys() == {f"method_{name}" for name in METHODS}
    for name in METHODS:
        page = (FIGURES.parent / "methods" / f"{name}.md").read_text("utf-8")
        assert f"](../figures/method_{name}.svg)" in page


def test_the_page_on_results_shows_its_figures() -> None:
    page = (FIGURES.parent / "details" / "figures.md").read_text("utf-8")
    for name in result_figures.FIGURES:
        assert f"](../figures/{name}.svg)" in page


def test_words_are_broken_where_the_line_is_full() -> None:
    assert wrap("one two\nthree", 1000) == ["one two", "three"]
    assert wrap("one two", 1) == ["one", "two"]
    assert len(wrap("i " * 30, 200)) < len(wrap("m " * 30, 200))


def test_figures_say_what_the_product_does() -> None:
    days = Settings.model_fields["retention_days"].default
    assert f"until {days} days after" in (FIGURES / "data_flow.svg").read_text("utf-8")
    assert f"{days} days later" in (FIGURES / "session.svg").read_text("utf-8")
    page = (FIGURES.parent / "concepts" / "round.md").read_text("utf-8")
    policy = Policy()
    assert policy.round_timeout_s == 3600
    assert "an hour after its start" in page
    assert policy.fail_after_s == 7 * 86_400
    assert "After seven more days" in page
    tables = set(re.findall(r">([a-z_]+)</text>", (FIGURES / "data_model.svg").read_text("utf-8")))
    assert tables <= metadata.tables.keys()
    assert len(tables) > 10
