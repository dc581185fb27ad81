"""Two results compared: by what both released, the same from both sides, in words and a figure."""

import re
from dataclasses import replace
from itertools import permutations
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.result.comparison import Comparison, compare
from fedclust.result.facts import Facts
from fedclust.wire.errors import UsageError
from support.definitions import definition
from support.results import result_of
from support.site_rows import blobs

HOSTILE = '<script>alert("x")</script>&'
FEATURES: list[dict[str, Any]] = [
    {"name": "age", "unit": "years"},
    {"name": "smoker", "kind": "binary"},
    {"name": "pain", "kind": "categorical", "levels": ["none", "mild"]},
]


def _facts(
    means: Any,
    sizes: tuple[int, ...] | None = None,
    features: list[dict[str, Any]] | None = None,
    name: str = "heart-2026",
    scaling: str = "standard",
    **changes: Any,
) -> Facts:
    """Return a result with a profile: its means, and 2 as the spread of all persons."""
    declared = definition(
        *(features or [f"x{j}" for j in range(len(means[0]))]),
        name=name,
        config={"n_clusters": len(means)},
        policy={"scaling": scaling},
    )
    changes = {"scale": np.full(len(means[0]), 2.0), "sizes": sizes, **changes}
    return Facts(result_of(means, 1.0, 2.0, **changes), declared)


def _drawn(seed: int, count: int, d: int = 4) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(count, d)) * 4


def _moved(facts: Facts, order: tuple[int, ...]) -> Facts:
    """Return a result with its clusters in another order."""
    result, rows = facts.result, list(order)
    profile = result.profile
    changed = {
        "centroids": result.centroids[rows],
        "centroids_original": result.centroids_original[rows],
        "sizes": None if result.sizes is None else tuple(result.sizes[k] for k in order),
        "profile": profile.model_copy(
            update={
                name: getattr(profile, name)[rows]
                for name in ("known", "means", "estimated_deviations")
            }
        ),
    }
    return replace(facts, result=result.model_copy(update=changed))


def _measures(found: Comparison) -> tuple[Any, ...]:
    pairs = {(p.first, p.second): (p.distance, p.returns) for p in found.pairs}
    return pairs, found.only_first, found.only_second


def test_a_result_agrees_with_itself_in_any_order() -> None:
    facts = _facts(_drawn(1, 4), (40, 30, 20, 10))
    for order in permutations(range(4)):
        found = compare(facts, _moved(facts, order))
        assert {pair.first: order[pair.second] for pair in found.pairs} == {k: k for k in range(4)}
        assert all(p.returns and p.distance == 0.0 for p in found.pairs)
        assert "describe the same clusters: 4 of the first" in found.verdict


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("profile", [True, False])
def test_exchanging_or_renumbering_changes_nothing_else(seed: int, profile: bool) -> None:
    rng = np.random.default_rng(seed)
    sides = [
        _facts(_drawn(seed + 10 * side, k), tuple(rng.integers(5, 90, k).tolist()))
        for side, k in enumerate((4, 6))
    ]
    moved = _moved(sides[1], (3, 1, 5, 0, 2, 4))
    if not profile:
        sides, moved = [_bare(facts) for facts in sides], _bare(moved)
    found = compare(*sides)
    back = _measures(compare(sides[1], sides[0]))
    pairs, first, second = _measures(found)

    assert back[0] == {(b, a): values for (a, b), values in pairs.items()}
    assert back[1:] == (second, first)
    other = _measures(compare(sides[0], moved))
    at = {k: place for place, k in enumerate((3, 1, 5, 0, 2, 4))}
    assert other[0] == {(a, at[b]): values for (a, b), values in pairs.items()}
    # The least sum of distances of all ways to match.
    means = [facts.result.centroids / 2 for facts in sides]
    every = np.concatenate(means)
    apart = np.sqrt(((every[:, None] - every) ** 2).mean(axis=2))
    least = min(sum(apart[range(4), [4 + j for j in to]]) for to in permutations(range(6), 4))
    assert sum(pair.distance for pair in found.pairs) == pytest.approx(least)
    for pair in found.pairs:
        own = pair.first, 4 + pair.second
        room = min(apart[k, other] for k in own for other in range(10) if other not in own)
        told = True if pair.distance <= 0.4 * room else None
        assert pair.returns is (False if pair.distance >= room else told)


def _bare(facts: Facts) -> Facts:
    return replace(facts, result=facts.result.model_copy(update={"profile": None}))


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_units_do_not_matter(scaling: str) -> None:
    factors = np.array([1000.0, 1e-3, 1.0, 7.0])
    plain = [_bare(_facts(_drawn(s, 3), (30, 20, 10), scaling=scaling)) for s in (1, 2)]
    results = [facts.result for facts in plain]
    scaled = [
        {"centroids_original": each.centroids_original * factors + 5, "scale": each.scale * factors}
        for each in results
    ]
    other = [
        replace(facts, result=facts.result.model_copy(update=changes))
        for facts, changes in zip(plain, scaled, strict=True)
    ]
    before, after = compare(*plain), compare(*other)
    assert before.unit.endswith("persons" if scaling == "standard" else "of the centroids")
    for one, two in zip(before.pairs, after.pairs, strict=True):
        assert (one.first, one.second, one.returns) == (two.first, two.second, two.returns)
        assert one.distance == pytest.approx(two.distance)


def test_another_number_of_clusters_leaves_some_without_a_partner() -> None:
    three = _facts([[0.0], [8.0], [20.0]], (50, 30, 20))
    two = _facts([[0.4], [19.0]], (60, 40))
    found = compare(three, two)

    assert [(pair.first, pair.second) for pair in found.pairs] == [(0, 0), (2, 1)]
    assert [pair.distance for pair in found.pairs] == pytest.approx([0.2, 0.5])
    assert (found.only_first, found.only_second) == ((1,), ())
    assert found.verdict == (
        "The two results agree in part: 2 of the first result's 3 clusters return among the 2 of "
        "the second, at most 0.5 estimated standard deviations of all persons apart."
    )
    assert "Without a partner in the first result: 1" in repr(found)


def test_clusters_in_other_places_are_called_different() -> None:
    found = compare(_facts([[0.0], [2.0]], (9, 9)), _facts([[40.0], [60.0]], (9, 9)))
    assert "describe different clusters" in found.verdict
    one = compare(_facts([[0.0]], (9,)), _facts([[0.5]], (9,)))
    assert "among the 1 of the second, at most 0.25 estimated standard" in one.verdict
    assert "different clusters" in compare(_facts([[0.0]]), _facts([[2.0]])).verdict


def test_between_two_limits_nobody_can_tell_whether_a_cluster_returns() -> None:
    first = _facts([[0.0], [10.0]], (9, 9))
    found = compare(first, _facts([[0.0], [15.0]], (9, 9)))
    assert [pair.returns for pair in found.pairs] == [True, None]
    assert found.verdict.endswith("apart. Of 1 more nobody can tell.")
    shown = "".join(section.html for section in found.sections)
    # Only of a cluster that returns is the distance that of the rows.
    assert "<td>yes</td><td>0</td>" in shown
    assert "<td>cannot tell</td><td>–</td>" in shown
    # 1.5 and 4 apart in units of two; 10 and 3 are 3.5 apart.
    found = compare(first, _facts([[3.0], [18.0]], (9, 9)))
    assert [pair.returns for pair in found.pairs] == [None, False]
    assert "may agree: 0 of the first result's 2 clusters return" in found.verdict
    assert "\nclusters 0 and 0: cannot tell, x0 0 / 3\n" in repr(found)
    assert "\nclusters 1 and 1: do not return, x0 10 / 18" in repr(found)


def test_only_features_that_mean_the_same_are_compared() -> None:
    first = _facts([[50, 0.2, 0.5, 0.5], [60, 0.9, 0.1, 0.9]], (6, 4), FEATURES)
    changed = [
        {"name": "pain", "kind": "categorical", "levels": ["mild", "none"]},
        {"name": "age", "unit": "months"},
        {"name": "bp"},
        {"name": "smoker", "kind": "binary"},
    ]
    values = [[0.5, 0.5, 600, 1, 0.2], [0.9, 0.1, 720, 1, 0.9]]
    found = compare(first, _facts(values, (6, 4), changed))

    assert [column.name for column in found.columns] == ["smoker", "pain=none", "pain=mild"]
    assert found.left_out == ("age: another unit in the second", "bp: only in the second")
    assert [pair.distance for pair in found.pairs] == [0.0, 0.0]
    with pytest.raises(UsageError, match=r"share no feature.*same name, kind, unit.*only in the"):
        compare(first, _facts([[1.0], [2.0]], features=[{"name": "bp"}]))
    logs = [{"name": "x0", "lower": 1.0, "transform": "log"}]
    with pytest.raises(UsageError, match="x0: another transform"):
        compare(_facts([[1.0]]), _facts([[1.0]], features=logs))
    names = [{"name": f"x{number}"} for number in range(8)]
    with pytest.raises(UsageError, match=r", x1: only in the first, .* and \d more$"):
        compare(_facts([[0.0] * 8], (9,), names), _facts([[0.0]], (9,), [{"name": "y"}]))


def test_unknown_values_and_columns_that_do_not_vary_are_left_out() -> None:
    mask = np.array([[True, True, False], [True, False, False]])
    whole = _bare(_facts([[0.0, 4.0, 1.0], [8.0, 6.0, 1.0]]))
    part = replace(whole, result=whole.result.model_copy(update={"mask": mask}))
    found = compare(whole, part)
    assert [pair.distance for pair in found.pairs] == [0.0, 0.0]
    assert [len(pair.differences) for pair in found.pairs] == [2, 1]
    scale = {"scale": np.array([2.0, 0.0, 2.0])}
    flat = replace(whole, result=whole.result.model_copy(update=scale))
    assert compare(flat, flat).left_out == ("x1: does not vary",)
    nothing = _facts([[1.0], [1.0]], scaling="none", profile=None)
    with pytest.raises(UsageError, match="varies"):
        compare(nothing, nothing)
    gone = {"centroids": np.zeros((0, 1)), "centroids_original": np.zeros((0, 1))}
    empty = replace(nothing, result=nothing.result.model_copy(update=gone))
    with pytest.raises(UsageError, match="1 to 1,000 clusters"):
        compare(empty, nothing)


def test_groups_give_differences_with_one_digit_and_none_of_few_persons() -> None:
    first, second = _facts([[0.0, 0.0, 1.0], [9.0, 9.0, 9.0]]), _facts([[3.3, 1.0, 1.8], [9.0] * 3])
    few = np.array([[True, False, False], [False, False, False]])
    profile = first.result.profile.model_copy(update={"few": few})
    small = replace(first, result=first.result.model_copy(update={"profile": profile}))
    # In units of two; x0 differs most, but few persons of the first result's cluster 0 have it.
    told = [
        [(e.column.name, e.difference) for e in compare(*pair).pairs[0].differences]
        for pair in ((first, second), (small, second), (second, small))
    ]
    assert told[0] == [("x0", 1.6), ("x1", 0.5), ("x2", 0.4)]
    assert told[1] == [("x0", None), ("x1", 0.5), ("x2", 0.4)]
    assert told[2] == [("x0", None), ("x1", -0.5), ("x2", -0.4)]
    found = compare(small, second)
    # A difference below .5 may be the other way round in the rows.
    assert "\nclusters 0 and 0: 1.02 apart, x1 0 / 1\n" in repr(found)
    assert "0 / 3.3" in found.figure().svg


def test_the_sections_say_all_of_it_without_styles_or_markup_of_others() -> None:
    features = [{"name": HOSTILE, "unit": HOSTILE}, {"name": "crp"}]
    first = _facts([[0.0, 1.0], [9.0, 2.0]], (60, 40), features)
    second = _facts([[1.0, 1.0], [9.0, 2.0]], (50, 50), features, name="heart-2027")
    shown = compare(first, second).sections
    text = "".join(section.html for section in shown)

    assert [section.key for section in shown] == ["agreement", "matched"]
    assert not re.search(r"<script|<style|\s(style|id|on\w+)=", text)
    assert "heart-2026" in text
    assert "heart-2027" in text
    assert "fedclust predict with both results on its own rows" in text
    (image,) = re.findall("<svg.*?</svg>", text, re.S)
    drawn = ElementTree.fromstring(image)  # noqa: S314
    space = "{http://www.w3.org/2000/svg}"
    # Two pairs in two columns, and nine colours of the legend.
    assert len(list(drawn.iter(f"{space}rect"))) == 2 * 2 + 9
    assert {"0 / 1", "9 / 9"} <= {each.text for each in drawn.iter(f"{space}text")}
    described = str(drawn.findtext(f"{space}desc"))
    assert "clusters 0 and 0: 0.354 apart, " in described
    assert "0 / 1" in described
    hebrew = [_facts([[0.0], [age]], features=[{"name": "גיל"}]) for age in (9.0, 8.0)]
    assert "\u2068גיל\u2069 9 / 8<" in compare(*hebrew).sections[1].html
    rich = compare(first, second)._repr_html_()
    assert "<script" not in rich
    assert "<svg" in rich


def test_a_result_compares_itself_with_another() -> None:
    sites = blobs(np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]]), [20, 30, 15], spread=0.5)
    swept = simulate("lloyd", sites, config={"n_clusters": [2, 3]}, seed=0, progress=False)
    found = swept.at(2).compare(swept.at(3))
    assert len(found.pairs) == 2
    assert len(found.only_second) == 1
    assert len(repr(found).splitlines()) <= 20
    assert max(map(len, repr(found).splitlines())) <= 100
