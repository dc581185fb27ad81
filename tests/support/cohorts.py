"""A site's persons as a table of true values, and cohorts that are kept in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.protection.cohort import Cohort
from fedclust.protection.columns import SourceColumn, source_names
from fedclust.protection.fingerprints import person_keys, row_ids
from fedclust.protection.recognition import PersonSource, Recognition
from fedclust.protection.update import Change, update_cohort

FloatArray = NDArray[np.float64]
SECRET = b"the secret of a site in a test.."


def persons(n: int, d: int = 3, seed: int = 0, first: int = 0) -> dict[str, FloatArray]:
    """Return the values (d,) of ``n`` persons by id."""
    values = np.random.default_rng([seed, first]).normal(size=(n, d))
    return {f"P{first + i}": values[i] for i in range(n)}


def sources_of(
    rows: Sequence[FloatArray], names: Sequence[str] | None = None
) -> list[SourceColumn]:
    """Return rows of numbers as the columns of a source."""
    values = np.array(rows, dtype=np.float64)
    names = names or [f"x{column}" for column in range(values.shape[1])]
    return [SourceColumn(name, values[:, column]) for column, name in enumerate(names)]


@dataclass
class Memory:
    """A site's cohorts, kept in memory."""

    p: int = 5
    cohorts: list[Cohort] = field(default_factory=list)
    made: int = 0
    recognition: Recognition = field(default_factory=lambda: Recognition(0, 0, 0))

    @property
    def cohort(self) -> Cohort:
        """The only one."""
        (found,) = self.cohorts
        return found

    def update(
        self,
        people: dict[str, FloatArray],
        names: Sequence[str] | None = None,
        *,
        rules: dict[str, str] | None = None,
        blocks: int = 1,
        ids: bool = True,
        **how: Any,
    ) -> Change:
        """Bring the cohort of these persons up to date."""
        return self.update_sources(
            list(people) if ids else row_ids(1, len(people)),
            sources_of(list(people.values()), names),
            rules,
            blocks,
            **how,
        )

    def update_sources(
        self,
        ids: Sequence[str],
        sources: Sequence[SourceColumn],
        rules: dict[str, str] | None = None,
        blocks: int = 1,
        *,
        later: Mapping[str, str] | None = None,
        counted: bool = False,
        **how: Any,
    ) -> Change:
        """As :meth:`update`, for columns."""
        self.made += 1
        n = len(sources[0].values)
        cuts = np.array_split(np.arange(n), blocks)

        def parts() -> list[tuple[Sequence[str], list[SourceColumn]]]:
            return [
                (
                    [ids[row] for row in rows],
                    [SourceColumn(each.name, each.values[rows], each.n_levels) for each in sources],
                )
                for rows in cuts
            ]

        cohort, change, self.recognition = update_cohort(
            Cohort.empty(f"table-{self.made}", self.p),
            self.cohorts,
            SECRET,
            PersonSource(
                parts,
                {each.name: "number" for each in sources} | (rules or {}),
                later=later or {},
                counted=counted,
            ),
            **how,
        )
        names = [each.table_id for each in self.cohorts]
        if cohort.table_id in names:
            self.cohorts[names.index(cohort.table_id)] = cohort
        else:
            self.cohorts.append(cohort)
        return change

    def group_of(self, person: str) -> int:
        """Return the row of the table that a person is part of."""
        return int(self.cohort.table_rows(SECRET, [person])[0])


@dataclass
class Released:
    """What the groups of one table have released, as an attacker sees it who knows their members.

    Attributes
    ----------
    p : int
    sums : dict of str to list of frozenset of (person, value)
        By column, what each released sum is the sum of.
    """

    p: int
    sums: dict[str, list[frozenset[tuple[str, float]]]] = field(default_factory=dict)

    def note(
        self,
        before: Cohort | None,
        after: Cohort,
        values: Mapping[str, Mapping[str, float]],
        secret: bytes = SECRET,
        column: Callable[[str], str] = str,
    ) -> set[str]:
        """Add the sums that are new in ``after``, and return whose values are in these.

        Parameters
        ----------
        before, after : Cohort
        values : mapping of person to values by column
            As they are now.
        secret : bytes
        column : callable
            Returns the column that a pinned name stands for.
        """
        people = sorted(values)
        places = after.find(person_keys(secret, people)[0])
        group = {p: int(after.groups[at]) for p, at in zip(people, places, strict=True) if at >= 0}
        old = {} if before is None else dict(_releases(before))
        noted: set[str] = set()
        for (name, row), released in _releases(after):
            if old.get((name, row)) == released:
                continue
            members = [person for person in group if group[person] == row]
            assert len(members) == after.sizes[row] >= self.p
            atoms = frozenset((person, values[person][column(name)]) for person in members)
            self.sums.setdefault(column(name), []).append(atoms)
            noted.update(members)
        return noted

    def tells_of_few(self) -> bool:
        """Return whether a combination of a column's sums concerns 1 to p - 1 persons."""
        for sums in self.sums.values():
            atoms = sorted(frozenset().union(*sums))
            matrix = np.array([[float(atom in each) for atom in atoms] for each in sums])
            if recoverable(matrix, [person for person, _ in atoms], self.p):
                return True
        return False


def _releases(cohort: Cohort) -> Iterator[tuple[tuple[str, int], tuple[float, ...]]]:
    for pinned in cohort.columns:
        for name in source_names(pinned.column):
            for row, released in enumerate(pinned.released):
                values = tuple(np.atleast_1d(released).tolist())
                if not np.isnan(values).any() and (len(values) == 1 or sum(values) > 0):
                    yield (name, row), values


def recoverable(released: FloatArray, owners: Sequence[Any], p: int) -> bool:
    """Return whether a combination of released sums concerns 1 to p - 1 persons.

    Parameters
    ----------
    released : (k, a) float64
        Of each sum, how often each value is in it.
    owners : sequence of a persons
        Whose value it is. A person may have several, one after another.
    p : int
    """
    rank = int(np.linalg.matrix_rank(released)) if released.size else 0
    whose = np.array(owners)
    for few in itertools.combinations(sorted(set(owners)), p - 1):
        rest = released[:, ~np.isin(whose, few)]
        if rank > (int(np.linalg.matrix_rank(rest)) if rest.size else 0):
            return True
    return False
