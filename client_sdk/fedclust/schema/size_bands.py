"""Rule: the number of a site's persons is shown to others only as one of these bands."""

from typing import Final

from fedclust.schema.errors import RuleViolation

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
    """Return the label of the band of ``n`` persons, which is at least 0."""
    return next(label for lowest, label in reversed(BANDS) if n >= lowest)


def band_limits(label: str) -> tuple[int, int | None]:
    """Return a band's least and greatest number of persons, None if it has no upper limit.

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


def check_not_above(n: int, label: str | None, pointer: str = "/n") -> None:
    """Raise RuleViolation if a message counts more persons, ``n``, than the site's band, if any."""
    highest = band_limits(label)[1] if label is not None else None
    if highest is not None and n > highest:
        raise RuleViolation(
            "size-band",
            "more persons than the size band that the site declared on joining",
            pointer,
        )
