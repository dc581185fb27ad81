"""Rule: which names of columns say that they identify rows or persons."""

import re
from typing import Final

#: Words in the name of a column that identifies rows or persons.
_ID_WORDS: Final = frozenset({"id", "ids", "identifier", "mrn", "pid", "uuid", "guid", "key", "nr"})
#: Names of columns that number rows or persons; pandas writes the last for an index.
_ID_NAMES: Final = frozenset(
    {"patient", "case", "subject", "record", "row", "index", "number", "unnamed: 0"}
)
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: What else a column holds by its name, in small letters and without anything between them.
_PERSONAL: Final = {
    "the names of persons": r"(first|fore|given|vor|last|sur|family|nach|full|patient)?names?",
    "dates of birth": r"dob|.*(dateofbirth|birth(date|day)|geburts(datum|tag)).*",
    "numbers of persons": (
        r".*(ssn|socialsecurity|insurance(no|number)|ahv|nhs(no|number)).*"
        r"|(patient|study|subject|record|hospital)(en)?(no|number)"
        r"|(patienten|fall|krankenhaus|versicherten)nummer"
    ),
    "addresses": r".*(mail|phone|telefon|address|adresse|anschrift|street|postcode|zip(code)?)|plz",
}


def identifies(column: str) -> str | None:
    """Return what a column holds by its name, if that identifies persons; None otherwise.

    Examples
    --------
    >>> identifies("patient_id"), identifies("Date of birth"), identifies("nr_of_children")
    ('identifiers', 'dates of birth', None)
    """
    words = [word.casefold() for word in _WORDS.findall(column)] or [""]
    of_id = words[-1] in _ID_WORDS or words[0] in {"id", "mrn", "pid"}
    if of_id or column.strip().casefold() in _ID_NAMES:
        return "identifiers"
    plain = re.sub(r"[\W_]", "", column.casefold())
    return next((held for held, name in _PERSONAL.items() if re.fullmatch(name, plain)), None)
