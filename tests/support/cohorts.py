"""A site's persons as a table of true values, and cohorts that are kept in memory."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fedclust.protection import groups
from fedclust.protection.cohort import Cohort, Unions, person_keys, row_ids
from fedclust.protection.columns import SourceColumn, TableColumn
from fedclust.protection.groups import Parts, one_part
from fedclust.protection.recognition import PersonSource, Recognition
from fedclust.protection.update import Change, update_cohort

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
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


def source_of(people: Mapping[str, FloatArray]) -> PersonSource:
    """Return persons with numbers as the source of a site's table."""
    rules = {f"x{column}": "number" for column in range(9)}
    return PersonSource(lambda: [(list(people), sources_of([*people.values()]))], rules)


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
                parts, {each.name: "number" for each in sources} | (rules or {}), counted=counted
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

    def groups_of(self, ids: Sequence[str]) -> IntArray:
        """Return the group of each person (n,), used or not; -1 of nobody's."""
        return groups_of(self.cohort, ids)


def groups_of(cohort: Cohort, ids: Sequence[str], secret: bytes = SECRET) -> IntArray:
    """Return the group of each person (n,), used or not; -1 of persons without one."""
    index = cohort.find(person_keys(secret, ids)[0])
    if not len(cohort.keys):
        return index
    return np.where(index >= 0, cohort.groups[index], -1).astype(np.int64)


@dataclass
class Released:
    """What a table has released so far, to see that nothing of it changes.

    Attributes
    ----------
    p : int
    members : dict of group to persons
        Who was in the group when it was formed.
    records : dict of (column, group) to float
    rules : dict of column to TableColumn
        Since they were set.
    unions : dict of (p, union) to groups
    decided : dict of (p, union, column) to float
    """

    p: int
    members: dict[int, frozenset[str]] = field(default_factory=dict)
    records: dict[tuple[str, int], float] = field(default_factory=dict)
    rules: dict[str, TableColumn] = field(default_factory=dict)
    unions: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    decided: dict[tuple[int, int, str], float] = field(default_factory=dict)

    def note(
        self,
        cohort: Cohort,
        values: Mapping[str, Mapping[str, float]],
        present: Collection[str],
        secret: bytes = SECRET,
    ) -> set[str]:
        """Check what the groups have released after a file, and return who is in new groups.

        Parameters
        ----------
        cohort : Cohort
        values : mapping of person to values by column
            Of everybody who was ever in a file; columns under the names that are pinned.
        present : collection of str
            Who is in the file.
        secret : bytes
        """
        people = sorted(values)
        groups = dict(zip(people, groups_of(cohort, people, secret).tolist(), strict=True))
        new = self._note_groups(cohort, groups)
        for pinned in cohort.columns:
            name = pinned.column.name
            assert self.rules.setdefault(name, pinned.column) == pinned.column
            if not pinned.column.is_set:
                del self.rules[name]
            for group, record in enumerate(pinned.released.tolist()):
                if (name, group) in self.records:
                    assert self.records[name, group] == record, "what was released has changed"
                elif not np.isnan(record):
                    known = [values[each].get(name, np.nan) for each in self.members[group]]
                    assert self.members[group] <= set(present), "a person was not in the file"
                    assert cohort.used[group]
                    assert self.p <= np.sum(~np.isnan(known)) <= cohort.sizes[group]
                    self.records[name, group] = record
        for unions in cohort.unions:
            self._note_unions(cohort, unions)
        return new

    def _note_groups(self, cohort: Cohort, groups: Mapping[str, int]) -> set[str]:
        new: set[str] = set()
        is_first = not self.members
        for group, size in enumerate(cohort.sizes.tolist()):
            if group not in self.members:
                own = frozenset(each for each, at in groups.items() if at == group)
                assert len(own) == size >= (self.p if is_first else cohort.least)
                self.members[group] = own
                new |= own
            if cohort.used[group]:
                assert {each for each, at in groups.items() if at == group} == self.members[group]
        return new

    def _note_unions(self, cohort: Cohort, unions: Unions) -> None:
        for union in set(unions.labels.tolist()) - {-1}:
            groups = frozenset(np.flatnonzero(unions.labels == union).tolist())
            for (p, earlier), others in self.unions.items():
                # A group changes from a union that ended to another.
                if p == unions.p and earlier != union and groups & others:
                    assert not cohort.used[list(others)].all()
            assert self.unions.setdefault((unions.p, union), groups) == groups
            assert len(groups) * self.p >= unions.p
            assert cohort.used[list(groups)].all()
            # Columns that are new since these unions were asked for come after these.
            for pinned, record, decided in zip(
                cohort.columns, unions.released[union], unions.decided[union], strict=False
            ):
                if decided:
                    key = unions.p, union, pinned.column.name
                    earlier = self.decided.setdefault(key, float(record))
                    assert earlier == record or np.isnan([earlier, record]).all()
                    releasing = ~np.isnan(pinned.released[list(groups)])
                    assert np.isnan(record) or releasing.sum() * self.p >= unions.p


@contextmanager
def given_groups(choose: Callable[[int], IntArray], least: int) -> Iterator[None]:
    """Form these groups instead of finding them in the values, all persons being one part.

    Parameters
    ----------
    choose : callable
        Called with the number of persons who are grouped; returns the group of each (n,), from 0
        and in the order of the source.
    least : int
        The least size of a group of newcomers.
    """

    def find_parts(sources: Sequence[SourceColumn], p: int, n_persons: int) -> Parts:
        return one_part(least, len(sources))

    def form_groups(points: FloatArray, least: int, ties: Sequence[FloatArray] = ()) -> IntArray:
        found = choose(len(points))
        assert len(found) == len(points)
        return found

    with (
        mock.patch.object(groups, "find_parts", find_parts),
        mock.patch.object(groups, "form_groups", form_groups),
    ):
        yield
