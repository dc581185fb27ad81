import pytest

from fedclust.schema.errors import RuleViolation
from fedclust.schema.size_bands import BANDS, band_limits, check_not_above, size_band

#: The least and the largest size of each band.
ENDS = {
    "<50": (0, 49),
    "50-199": (50, 199),
    "200-999": (200, 999),
    "1000-4999": (1_000, 4_999),
    "5000-19999": (5_000, 19_999),
    "20000-99999": (20_000, 99_999),
    ">=100000": (100_000, 10**9),
}


def test_each_end_of_a_band_belongs_to_it() -> None:
    assert list(ENDS) == [label for _, label in BANDS]
    for band, ends in ENDS.items():
        lowest, highest = band_limits(band)
        assert [size_band(n) for n in ends] == [band, band]
        assert (lowest, highest or 10**9) == ends


def test_an_unknown_band_is_refused() -> None:
    with pytest.raises(RuleViolation, match="one of <50, 50-199"):
        band_limits("10-20")


def test_part_of_the_rows_is_at_most_what_the_band_holds() -> None:
    check_not_above(0, "50-199")
    check_not_above(199, "50-199")
    check_not_above(10**9, ">=100000")
    with pytest.raises(RuleViolation) as caught:
        check_not_above(200, "50-199", "/counts")
    assert (caught.value.rule, caught.value.pointer) == ("size-band", "/counts")
