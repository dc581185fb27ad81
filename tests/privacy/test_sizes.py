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
        assert size == (total[k] if safe else None)


def test_no_parts_and_no_clusters() -> None:
    assert suppress_sizes([0, 7, 3], [], 5) == (0, 7, None)
    assert suppress_sizes([], [], 5) == ()


def test_small_sizes_of_one_site() -> None:
    assert suppress_small([0, 1, 4, 5, None, 60], 5) == (0, None, None, 5, None, 60)
