"""Rule: persons are recognised by their ids, or row numbers. A file of other people is refused.

Otherwise a person could be put into a second group, and two overlapping groups can tell a person's
value. A file of other people under the known ids is noticed by its values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from fedclust.protection.cohort import Cohort, CohortRefused, person_keys
from fedclust.protection.columns import SourceColumn

#: Each call starts a pass over a source. A block is the ids of persons and their columns, the same
#: in each block.
PersonBlocks: TypeAlias = Callable[[], Iterable[tuple[Sequence[str], Sequence[SourceColumn]]]]

#: Ids that are looked up at a time: mostly the first few tell which cohort it is.
_IDS = 10_000
#: What to do about persons who are not known; the first sentence of the message gives the numbers.
_CHOICES: Final = (
    "If they are the same persons under new ids, give the list of new and old ids (id_map=, "
    "--id-map). If they are other persons, say who approves that they take part (other_persons=, "
    "--other-persons). Otherwise this is the wrong file"
)


@dataclass(frozen=True)
class PersonSource:
    """A site's persons, as an update reads them.

    Attributes
    ----------
    blocks : PersonBlocks
    rules : mapping of str to str
        How each source column is read.
    sample : sequence of SourceColumn, optional
        Persons from all of the source, by whom the parts of a first table are found; by default
        the first block.
    n_persons : int
        Approximate number of persons in all blocks.
    counted : bool
        Whether these rows will be counted by their outcomes: those of other people under the known
        ids would be counted as theirs, even if no group releases anything new.
    """

    blocks: PersonBlocks
    rules: Mapping[str, str]
    sample: Sequence[SourceColumn] | None = None
    n_persons: int = 0
    counted: bool = False


@dataclass(frozen=True)
class Recognition:
    """How many persons of a source are known.

    Attributes
    ----------
    known, unknown : int
        Persons in the source.
    missing : int
        Known persons who are not in the source.
    differing : dict of str to (int, int)
        By released column, how many of the known persons' values differ from those released, and of
        how many. The column's commonest value does not count where it is the same.
    persons_differing : int
        Known persons with a value that differs.
    """

    known: int
    unknown: int
    missing: int
    differing: dict[str, tuple[int, int]] = field(default_factory=dict)
    persons_differing: int = 0

    def refuse_unknown(self, p: int, *, permanent: bool) -> None:
        """Raise CohortRefused if too many persons of the source are not known.

        ``permanent`` says whether nobody's id changes at this site.
        """
        n = self.known + self.unknown
        few = 2 * self.known < n
        replaced = not permanent and self.unknown >= p and self.missing >= p
        if not few and not replaced:
            return
        said = (
            f"{self.unknown} of the {n} persons in this source are not known, and {self.missing} "
            f"known persons are missing in it. {_CHOICES}"
        )
        if not few:
            said += '. If ids never change at this site, set ids = "permanent" in site.toml'
        raise CohortRefused("unknown-persons", said)

    def refuse_other_values(self, p: int, *, newcomers: bool) -> None:
        """Raise CohortRefused if the known persons have other values than those released.

        ``newcomers`` says whether newcomers would release values of these columns.
        """
        differ = sum(n for n, _ in self.differing.values())
        of = sum(n for _, n in self.differing.values())
        columns = self.most_differ(p)
        if 2 * differ > of and self.persons_differing >= p:
            what = f"{differ} of {of} values of known persons differ from those that were released"
        elif newcomers and columns:
            what = "new persons would release columns in which most values of known persons differ"
        else:
            return
        listed = "; ".join(
            f"{name} ({self.differing[name][0]} of {self.differing[name][1]})" for name in columns
        )
        raise CohortRefused(
            "other-values",
            f"{what}{': ' + listed if listed else ''}. Nothing was stored or sent. Check that this "
            "is the right file, and check the query, the mapping and the units, for example "
            "whether two columns are swapped. If these are later measurements, give them new names "
            "(later=, --later)",
        )

    def most_differ(self, p: int) -> list[str]:
        """Return the columns in which most values differ, those of at least p persons."""
        return [name for name, (n, of) in self.differing.items() if 2 * n > of and n >= p]


def find_cohort(cohorts: Sequence[Cohort], secret: bytes, blocks: PersonBlocks) -> Cohort | None:
    """Return the cohort that holds the first known person of a source; None if nobody is known."""
    for ids, _ in blocks() if cohorts else ():
        for start in range(0, len(ids), _IDS):
            keys = person_keys(secret, ids[start : start + _IDS])[0]
            for cohort in cohorts:
                if (cohort.find(keys) >= 0).any():
                    return cohort
    return None
