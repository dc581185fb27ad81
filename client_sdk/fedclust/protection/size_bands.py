"""Size bands: how many persons a site has, told coarsely enough to be shown."""

from __future__ import annotations

from typing import Final

from fedclust.schema.errors import RuleViolation

__all__ = ["BANDS", "band_limits", "check_band", "check_not_above", "size_band"]

#: Lowest number of persons of each band, and its label. A band ends where the next one starts.
BANDS: Final[tuple[tuple[int, str], ...]] = (
    (0, "<50"),
    (50, "50-199"),
    (200, "200-999"),
    (1_000, "1000-4999"),
    (5_000, "5000-19999"),
    (20_000, "20000-99999"),
    (100_000, ">=100000"),
)


def size_band(n: int) -> str:
    """Return the label of the band that holds ``n`` persons.

    Raises
    ------
    ValueError
        If ``n`` is negative.
    """
    if n < 0:
        raise ValueError("a number of persons is not negative")
    return next(label for lowest, label in reversed(BANDS) if n >= lowest)


def band_limits(label: str) -> tuple[int, int | None]:
    """Return the smallest and largest number of persons in a band; None where it has no upper end.

    Raises
    ------
    RuleViolation
        If there is no band of that label.
    """
    for position, (lowest, name) in enumerate(BANDS):
        if name == label:
            last = position + 1 == len(BANDS)
            return lowest, None if last else BANDS[position + 1][0] - 1
    labels = ", ".join(name for _, name in BANDS)
    raise RuleViolation("size-band", f"a size band is one of {labels}")


def check_not_above(n: int, label: str, pointer: str = "/n") -> None:
    """Raise RuleViolation if ``n`` persons, who need not be all, are too many for a band."""
    highest = band_limits(label)[1]
    if highest is not None and n > highest:
        raise RuleViolation(
            "size-band",
            "more persons than the size band that the site declared on joining",
            pointer,
        )


def check_band(n: int, label: str, pointer: str = "/n") -> None:
    """Raise RuleViolation unless ``n`` persons lie within the band a site declared on joining."""
    lowest, highest = band_limits(label)
    if n < lowest or (highest is not None and n > highest):
        raise RuleViolation(
            "size-band",
            "the number of persons lies outside the size band that the site declared on joining",
            pointer,
        )
