"""The rules of the protected table as plain loops, to compare the product with.

Written from the rules alone: slow, one group and one person after the other, and nothing imported
from the package. A value that is missing is NaN.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

Groups = Sequence[Sequence[float]]
Part = list[int]


@dataclass
class Rule:
    """How a column is released: set once by :func:`release_column`, then used again."""

    step: float = 0.0
    centre: Fraction = Fraction(0)
    order: list[int] = field(default_factory=list)


def known(values: Sequence[float]) -> list[float]:
    """Return the values that are there, in order."""
    return sorted(value for value in values if not math.isnan(value))


def two_middles(values: Sequence[float]) -> tuple[float, float]:
    """Return the two middle values; of an odd number of values the same one twice."""
    there = known(values)
    return there[(len(there) - 1) // 2], there[len(there) // 2]


def middle_value(values: Sequence[float], centre: Fraction) -> float:
    """Return the middle value; of two the one nearer to the centre, else the lower.

    They are equally near if their distances differ by the last digits of a number alone.
    """
    lower, upper = two_middles(values)
    last_digits = exactly(max(abs(lower), abs(upper))) / 10**14
    is_nearer = exactly(upper) - centre < centre - exactly(lower) - last_digits
    return upper if is_nearer else lower


def common_level(values: Sequence[float], order: Sequence[int]) -> int:
    """Return the commonest level; of equally common ones the first in ``order``."""
    there = [int(value) for value in known(values)]
    return max(order, key=lambda level: (there.count(level), -order.index(level)))


def level_order(groups: Groups, n_levels: int) -> list[int]:
    """Return the levels by their frequency, then by their place.

    The frequency is the mean over groups, each counted once for each of its persons.
    """
    frequency = [Fraction(0)] * n_levels
    for group in groups:
        there = [int(value) for value in known(group)]
        for level in there:
            frequency[level] += Fraction(len(group), len(there))
    return sorted(range(n_levels), key=lambda level: (-frequency[level], level))


def weighted_mean(values: Sequence[Fraction], sizes: Sequence[int]) -> Fraction:
    """Return the mean, each value counted as often as its size says."""
    total = sum((v * n for v, n in zip(values, sizes, strict=True)), Fraction(0))
    return total / sum(sizes)


def find_step(middles: Sequence[float], sizes: Sequence[int]) -> float:
    """Return the step for these middle values of groups of these sizes; 0 while it is open."""
    values = [exactly(value) for value in middles]
    largest = max((abs(value) for value in values), default=Fraction(0))
    if largest == 0:
        return 0.0
    mean = weighted_mean(values, sizes)
    variance = weighted_mean([(value - mean) ** 2 for value in values], sizes)

    def is_allowed(step: Fraction) -> bool:
        if len(values) >= 3 and variance > 0:
            return 100 * step**2 <= variance or 2000 * step <= largest
        return 200 * step <= largest

    power = math.floor(math.log10(largest)) + 1
    steps = [f"{digit}e{place}" for place in range(power, power - 6, -1) for digit in (5, 2, 1)]
    return next(float(step) for step in steps if is_allowed(Fraction(step)))


def exactly(value: float) -> Fraction:
    """Return the decimal number as which a value is printed."""
    return Fraction(repr(float(value)))


def round_record(value: float, step: float) -> float:
    """Return the nearest multiple of the step; while the step is open the value, which is 0."""
    if step == 0.0:
        return value
    return float(round(exactly(value) / exactly(step)) * exactly(step))


def release_column(
    groups: Groups,
    p: int,
    n_levels: int | None = None,
    rule: Rule | None = None,
    earlier: Sequence[tuple[float, int]] = (),
) -> tuple[Rule, list[float]]:
    """Return the column's rule, and each group's record; NaN where a group does not release.

    Parameters
    ----------
    groups : sequence of (sequence of float)
        The values of each group's persons.
    p : int
    n_levels : int, optional
        Of a column of levels.
    rule : Rule, optional
        Set earlier.
    earlier : sequence of (float, int)
        Records and sizes of groups that released while the step was open.
    """
    releasing = [group for group in groups if len(known(group)) >= p]
    rule = Rule() if rule is None else rule
    if n_levels is not None:
        order = rule.order or level_order(releasing, n_levels)
        rule = Rule(order=order if releasing or rule.order else [])
        levels = [
            float(common_level(group, order)) if len(known(group)) >= p else math.nan
            for group in groups
        ]
        return rule, levels
    if rule.step == 0.0 and releasing:
        sizes = [size for _, size in earlier] + [len(group) for group in releasing]
        ends = [(value, value) for value, _ in earlier] + [two_middles(each) for each in releasing]
        centre = weighted_mean([(exactly(low) + exactly(high)) / 2 for low, high in ends], sizes)
        middles = [value for value, _ in earlier]
        middles += [middle_value(group, centre) for group in releasing]
        rule = Rule(find_step(middles, sizes), centre)
    records = [
        round_record(middle_value(group, rule.centre), rule.step)
        if len(known(group)) >= p
        else math.nan
        for group in groups
    ]
    return rule, records


# --- missing values -------------------------------------------------------------------------------


def chance_of_p(size: int, share: float, p: int) -> float:
    """Return P(Binomial(size, share) >= p)."""
    return math.fsum(
        math.comb(size, n) * share**n * (1.0 - share) ** (size - n) for n in range(p, size + 1)
    )


def round_lacking(n_lacking: int, p: int) -> int:
    """Return the nearest multiple of p; a half goes up."""
    return p * ((2 * n_lacking + p) // (2 * p))


def least_size(n: int, lacking: Sequence[int], p: int) -> int:
    """Return L of a part of ``n`` persons, of whom so many lack a value of each column."""
    shares = [1.0 - round_lacking(each, p) / n for each in lacking if n - each >= p]
    total = math.fsum(shares)
    for size in range(p, 3 * p):
        chances = math.fsum(share * chance_of_p(size, share, p) for share in shares)
        if chances >= 0.9 * total - 1e-12:
            return size
    return 3 * p


def find_parts(missing: Sequence[Sequence[bool]], p: int) -> list[Part]:
    """Return the persons of each part, from who lacks which column; the others come last."""
    patterns: dict[tuple[bool, ...], Part] = {}
    for person, row in enumerate(missing):
        patterns.setdefault(tuple(row), []).append(person)
    own = [members for members in patterns.values() if len(members) >= 8 * p]
    others = [person for members in patterns.values() if len(members) < 8 * p for person in members]
    if own and 0 < len(others) < 2 * p:
        max(own, key=len).extend(others)
        others = []
    return [*own, sorted(others)] if others else own


# --- what is computed from records ----------------------------------------------------------------


def union_record(
    records: Sequence[float],
    sizes: Sequence[int],
    least_groups: int,
    all_records: Sequence[float],
    all_sizes: Sequence[int],
) -> float:
    """Return a union's number; NaN if fewer than ``least_groups`` of its groups release one.

    ``all_records`` are those of all groups that release the column, ``all_sizes`` their persons.
    """
    persons = _repeat(records, sizes, least_groups)
    if not persons:
        return math.nan
    return middle_value(persons, weighted_mean(list(map(exactly, all_records)), all_sizes))


def union_level(
    records: Sequence[float],
    sizes: Sequence[int],
    least_groups: int,
    all_records: Sequence[float],
    all_sizes: Sequence[int],
    n_levels: int,
) -> float:
    """As :func:`union_record`, of levels."""
    persons = _repeat(records, sizes, least_groups)
    if not persons:
        return math.nan
    everybody = _repeat(all_records, all_sizes, 1)
    order = sorted(range(n_levels), key=lambda level: (-everybody.count(level), level))
    return float(common_level(persons, order))


def _repeat(records: Sequence[float], sizes: Sequence[int], least_groups: int) -> list[float]:
    """Return each record as often as the group has persons; nothing if too few are there."""
    pairs = [(r, n) for r, n in zip(records, sizes, strict=True) if not math.isnan(r)]
    return [r for r, n in pairs for _ in range(n)] if len(pairs) >= least_groups else []


def within_share(
    records: Sequence[float], sizes: Sequence[int], neighbours: Sequence[tuple[int, int]]
) -> float:
    """Return the share of variance within groups that the records alone suggest, rounded."""
    there = [row for row, record in enumerate(records) if not math.isnan(record)]
    pairs = [(a, b) for a, b in neighbours if a in there and b in there]
    values, weights = [exactly(records[row]) for row in there], [sizes[row] for row in there]
    if len(set(values)) < 2 or not pairs:
        return 0.05
    mean = weighted_mean(values, weights)
    variance = weighted_mean([(value - mean) ** 2 for value in values], weights)
    halves = [(exactly(records[a]) - exactly(records[b])) ** 2 / 2 for a, b in pairs]
    share = weighted_mean(halves, [sizes[a] for a, _ in pairs]) / variance
    return min(0.8, max(0.05, float(round(share * 20)) / 20))
