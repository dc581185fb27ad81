"""The list of new and old ids: what it may be, and what is refused without naming an id."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedclust.data.table import read_id_map
from fedclust.wire.errors import DataError


def test_a_file_and_a_mapping_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_text("old,site,new\n007,a, N1 \n8,a,N2\n", "utf-8")
    assert read_id_map(path) == read_id_map({"N1": "007", "N2": "8"}) == {"N1": "007", "N2": "8"}
    assert read_id_map(None) == {}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("N1,007\nN2,", "a new or an old id is missing"),
        ("N1,007\n,9", "a new or an old id is missing"),
        ("N1,007\nN1,9", "the new id is in an earlier row too"),
        ("N1,007\nN2,007", "the old id is in an earlier row too"),
    ],
)
def test_a_wrong_row_is_named_and_no_id(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "ids.csv"
    path.write_text(f"new,old\n{lines}\n", "utf-8")
    with pytest.raises(DataError) as caught:
        read_id_map(path)
    assert said in str(caught.value)
    assert "row 2" in str(caught.value)
    assert caught.value.rule == "id-map"
    assert "007" not in str(caught.value)
    assert "N1" not in str(caught.value)


def test_a_file_without_the_columns_and_no_file_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_text("new,former\nN1,007\n", "utf-8")
    with pytest.raises(DataError, match="old"):
        read_id_map(path)
    with pytest.raises(DataError):
        read_id_map(tmp_path / "absent.csv")
