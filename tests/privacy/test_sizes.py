from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedclust.privacy.sizes import suppress_sizes, suppress_small

PARTS = st.integers(1, 4).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 12), min_size=k, max_size=k), min_size=1, max_size=4)
)


@given(parts=PARTS, p=st.integers(1, 6))
def test_no_site_learns_a_small_number_from_a_size_that_is_shown(
    parts: list[list[int]], p: int
) -> None:
    total = [sum(column) for column in zip(*parts, strict=True)]
    shown = suppress_sizes(total, parts, p)
    for k, size in enumerate(shown):
        left = [total[k], *(total[k] - part[k] for part in parts)]
        safe = all(n == 0 or n >= p for n in left)
        assert size is None or (safe and size == total[k])
    # The number of all rows is public: what is shown taken from it leaves the suppressed.
    hidden = [k for k, size in enumerate(shown) if size is None]
    together = [sum(numbers[k] for k in hidden) for numbers in (total, *parts)]
    left = [together[0], *(together[0] - own for own in together[1:])]
    nothing_shown = not any(shown)
    assert nothing_shown or all(n == 0 or n >= p for n in left)


def test_no_parts_and_no_clusters() -> None:
    assert suppress_sizes([0, 7, 3], [], 5) == (0, None, None)
    assert suppress_sizes([], [], 5) == ()


def test_no_size_is_suppressed_without_need() -> None:
    assert suppress_sizes([9, 30, 12], [[0, 20, 6], [9, 10, 6]], 5) == (9, 30, 12)
    assert suppress_sizes([8, 30, 4, 4], [[4, 15, 2, 2], [4, 15, 2, 2]], 4) == (8, 30, None, None)


def test_a_suppressed_size_does_not_follow_from_the_others() -> None:
    assert suppress_sizes([3, 40, 20], [[3, 20, 10], [0, 20, 10]], 5) == (None, 40, None)


def test_small_sizes_of_one_site() -> None:
    assert suppress_small([0, 1, 4, 5, None, 60], 5) == (0, None, None, 5, None, 60)
