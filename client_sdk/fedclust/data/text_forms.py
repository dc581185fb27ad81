"""The forms of texts with numbers, such as ``120/80`` and ``<5``, and what their numbers mean."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedclust.data.mapping import number_or_none

_APART: Final = r"[1-9]\d{0,2}(?:[ \u00a0\u202f'’]\d{3})+(?!\d)"
#: A number whose thousands are apart, as in 1 250,5 and 1'250.
_ALL_APART: Final = re.compile(rf"[+-]?{_APART}(?:[.,]\d*)?")
#: A number with separated thousands: these, their mark, the decimal mark.
_THOUSANDS: Final = re.compile(r"([+-]?[1-9]\d{0,2}(?:([.,])\d{3})(?:\2\d{3})*)(?:([.,])\d*)?")
#: A number in a text. A sign is part of the first one alone: 30-40 has two numbers.
_NUMBER: Final = re.compile(rf"(?:^[+-])?(?:{_APART}(?:[.,]\d+)?|\d+(?:[.,]\d+)*)")
#: Its mark may be a decimal mark, or separate thousands.
_DOUBTFUL: Final = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")
#: What one of a unit is in another: of times and powers of ten.
_FACTORS: Final = tuple(
    each**way for each in (7, 10, 12, 24, 30, 60, 100, 365, 1000) for way in (1, -1)
)
#: Numbers of texts are rounded.
_SAME: Final = 1e-5


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are written: the decimal mark, and whether the other one separates thousands."""

    mark: str = "."
    thousands: bool = False

    def number(self, text: str) -> float | None:
        """Return the number that a text is; None if it is none."""
        if are_thousands_apart(text):
            text = re.sub(r"[^\d.,+-]", "", text)
        found = _THOUSANDS.fullmatch(text) if self.thousands else None
        if found and found[2] != self.mark and found[3] in (None, self.mark):
            text = found[1].replace(found[2], "") + text[found.end(1) :]
        if self.mark == ",":
            if "." in text:
                return None
            text = text.replace(",", ".")
        return number_or_none(text)

    def split(self, text: str) -> tuple[str, list[float]]:
        """Return a text's form and its numbers; an empty form if it has none, or none that is one.

        The form has no spaces, and ``#`` for each number; ``#.000`` or ``#,000`` if its mark may
        separate thousands: then the number is the one without the mark.
        """
        numbers: list[float] = []

        def sign(found: re.Match[str]) -> str:
            number, doubtful = self.number(found[0]), _DOUBTFUL.fullmatch(found[0])
            if doubtful and not (self.thousands and doubtful[1] != self.mark):
                numbers.append(float(re.sub("[.,]", "", found[0])))
                return f"#{doubtful[1]}000"
            if number is None and len(re.findall("[.,]", found[0])) == 1:
                number = float(found[0].replace(",", "."))
            numbers.append(np.nan if number is None else number)
            return "#"

        form = _NUMBER.sub(sign, text)
        whole = bool(numbers) and not np.isnan(numbers).any()
        return (plain_form(form), numbers) if whole else ("", [])


def are_thousands_apart(text: str) -> bool:
    """Return whether a text is a number with spaces or apostrophes between its thousands."""
    return _ALL_APART.fullmatch(text) is not None


def plain_form(form: str) -> str:
    """Return a form without spaces, but for those between two numbers."""
    return re.sub(r"(?<!#)\s+|\s+(?!#)", "", form)


def combined(weights: Sequence[float], numbers: Sequence[float]) -> float:
    """Return the sum of numbers with these weights; a further weight is added.

    NaN without weights: then the form means a missing value.
    """
    if not weights:
        return np.nan
    value = np.dot(weights[: len(numbers)], numbers) + sum(weights[len(numbers) :])
    return float(f"{value:.12g}")


def forms_of(
    read: Mapping[str, float | None],
    written: NumberFormat,
    known: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
) -> tuple[dict[str, tuple[float, ...]], dict[str, float | None]]:
    """Return what the numbers of each form mean, and the texts that no form says.

    Parameters
    ----------
    read : mapping of str to (float or None)
        What each text means; None for a missing value.
    written : NumberFormat
    known : mapping of str to tuple of float
        Weights that a form may have, as of units.

    Returns
    -------
    forms : dict of str to tuple of float
        The weights of the numbers, as :func:`combined` takes them.
    others : dict of str to (float or None)
    """
    texts: dict[str, list[str]] = {}
    split = {text: written.split(text) for text in read}
    for text, (form, _) in split.items():
        texts.setdefault(form, []).append(text)
    forms, others = dict[str, tuple[float, ...]](), dict(read)
    for form, same in texts.items():
        numbers = np.array([split[text][1] for text in same])
        meant = [read[text] for text in same]
        if not form:
            continue
        if None not in meant:
            found = _weights(same[0], numbers, np.array(meant, float), known.get(form))
        else:  # a single one may mean a missing value by its number, as of 999?
            found = () if len(same) > 1 and {*meant} == {None} else None
        if found is not None:
            forms[form] = found
            others = {text: of for text, of in others.items() if text not in same}
    return forms, others


def usual_weights(
    text: str, numbers: Sequence[float], meant: float, rounded: float = _SAME
) -> tuple[float, ...] | None:
    """Return the weights with which numbers usually mean a number; None if it is unusual.

    It is one of them, their sum, their middle or a half, or the first one in a larger or smaller
    unit: then ``meant`` may be ``rounded``.
    """
    rest = (0.0,) * (len(numbers) - 1)
    each = [tuple(row) for row in np.eye(len(numbers)).tolist()]
    usual = [*each[:1], (0.5, *rest)] if text[:1] in ("<", "≤") else each[:1]
    usual += [(1.0, 1.0), (0.5, 0.5)] if len(numbers) == 2 else []
    usual += each[1:]
    exact = (one for one in usual if math.isclose(combined(one, numbers), meant, rel_tol=_SAME))
    scaled = ((factor, *rest) for factor in _FACTORS if numbers)
    near = (one for one in scaled if math.isclose(combined(one, numbers), meant, rel_tol=rounded))
    return next(exact, next(near, None))


def _weights(
    text: str,
    numbers: NDArray[np.float64],
    meant: NDArray[np.float64],
    known: tuple[float, ...] | None,
) -> tuple[float, ...] | None:
    """Return the weights with which numbers (n, k) are what they mean (n,); None without them.

    Unusual ones count if they are known, or more texts show them than there are weights. ``text``
    is one of the form.
    """
    for likely in (known, usual_weights(text, numbers[0].tolist(), meant[0])):
        if likely and np.allclose(numbers @ likely, meant, rtol=_SAME, atol=0):
            return likely
    distinct = np.unique(numbers, axis=0)
    with_one = np.column_stack([numbers, np.ones(len(numbers))])
    # Numbers on a line say little. Of seconds that all are 0 any weight would do, and is 0.
    on_a_line = np.linalg.matrix_rank(with_one) < np.count_nonzero(with_one.any(axis=0))
    for columns in (numbers, with_one):
        if len(distinct) > columns.any(axis=0).sum() and not on_a_line:
            found, *_ = np.linalg.lstsq(columns, meant, rcond=None)
            if np.allclose(columns @ found, meant, rtol=_SAME, atol=0):
                return tuple(float(f"{each:.6g}") for each in found.tolist())
    return None


def meaning_text(form: str, weights: Sequence[float]) -> str:
    """Return what a form means in words, such as ``<# means 0.5 x #``."""
    if not weights:
        return f"{form} is missing"
    n_numbers = form.count("#")
    names = ["#"] if n_numbers == 1 else [f"{place}. #" for place in range(1, n_numbers + 1)]
    parts = [
        name if weight == 1 else f"{weight:g} x {name}"
        for name, weight in zip(names, weights, strict=False)
        if weight
    ]
    parts += [f"{each:g}" for each in weights[n_numbers:]]
    return f"{form} means {' + '.join(parts)}"
