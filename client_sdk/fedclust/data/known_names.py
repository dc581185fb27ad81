"""What hospitals call their columns, codes and units: names, headers and texts that mean one."""

import difflib
import functools
import itertools
import re
import tomllib
import unicodedata
from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Final

#: Letters that are no letter with an accent.
_STROKES: Final = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "a", "œ": "o", "ı": "i"})


def folded(text: str) -> str:
    """Return a text without case, accents and repeated spaces; ä and ae are one, ø and o."""
    plain = unicodedata.normalize("NFKD", text.casefold().translate(_STROKES))
    plain = " ".join("".join(c for c in plain if not unicodedata.combining(c)).split())
    return re.sub("([aou])e", r"\1", plain)


_WORDS: Final = tomllib.loads(files(__package__).joinpath("known_names.toml").read_text("utf-8"))


def _by_word(part: str) -> dict[str, frozenset[str]]:
    """Return the keys of a part of the file by each of their words, with its question mark."""
    found: dict[str, frozenset[str]] = {}
    for key, words in _WORDS[part].items():
        for word in map(folded, words.split()):
            found[word] = found.get(word, frozenset()) | {key}
    return found


_ROMAN: Final = [
    tens + ones
    for tens in ("", "X", "XX", "XXX")
    for ones in ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
]
#: A word at most, then a number.
_RANK: Final = re.compile(r"(?:[^\W\d_]+\.?[ _-]?(?=\d)|[^\W\d_]+\.?[ _-])?(\d|[IVX]+)")
#: Numbers and texts that often mean a missing value: -1 to -9; 9, 99, 777, 9999, 99.9 and the
#: like, also with a minus; 97, 98, 996 to 998 of questionnaires.
_ABSENT_NUMBER: Final = re.compile(
    r"-[1-9](\.0+)?|-?9(\.0+)?|-?([789])\3+([.,](\3|0)+)?|-?(97|98|99+[678])(\.0+)?"
)
_MISSING_CODES: Final = frozenset(folded(t).replace(" ", "") for t in _WORDS["missing"]["texts"])
#: A plus may mean yes; a single minus is among the codes.
_ONLY_MARKS: Final = frozenset("-/.?*_")
_SIDES: Final = frozenset(map(folded, _WORDS["headers"]["sides"].split()))
_MEASURED: Final = _by_word("measurements") | {
    name: frozenset({name}) for name in _WORDS["measurements"]
}
_TIME_WORDS: Final = _by_word("times")
_HEADERS: Final = {
    kind: frozenset(map(folded, words.split())) for kind, words in _WORDS["headers"].items()
}
#: When something is measured: on admission, at discharge, before.
_MOMENTS: Final = {word: min(keys) for word, keys in _by_word("moments").items()} | {
    moment: moment for moment in _WORDS["moments"]
}
_UNMEASURED: Final = _HEADERS["filler"] | _MOMENTS.keys()
#: A year or a date at the end of a code, as in "ex seit 2010".
_DATED: Final = re.compile(rf"( ({'|'.join(_HEADERS['since'])}))*( \d\d?)* (19|20)\d\d( \d\d?)*$")
_SPANS: Final = {word: frozenset(map(int, days)) for word, days in _by_word("spans").items()}
_CODES: Final = {word: min(keys) for word, keys in _by_word("codes").items()}
_FATES: Final = {word: int("dead" in keys) for word, keys in _by_word("fates").items()}
_NOT, _ALIVE = (frozenset(map(folded, words.split())) for words in _WORDS["opposites"].values())
_STATUSES: Final = {word: min(keys) for word, keys in _by_word("statuses").items()}
#: Two codes: what they mean if there are no others.
_TOGETHER: Final = {frozenset(both.split()): known for both, known in _WORDS["initials"].items()}
#: With one of these codes M may be mujer.
_MALE_WITH_MUJER: Final = {"h", "hombre", "v", "varon"}
_BRACKETS: Final = re.compile(r"[\(\[{]([^)\]}]*)[)\]}]")
_LAST_UNIT: Final = re.compile(
    r"(?:(?:\s+in)?[\s_,;:-]+|(?=%))"
    r"([^\s_,;:-]*/(?:1[.,]73 ?)?[^\s_,;:-]+|(?:[^\W\d_]+|°[FCK])(?:(?:_?per_?|_)(?i:[dm]?l))?|%)$"
)
_COUNT: Final = re.compile(r"(number|count|times)\b")
_UNITS: Final = {word: min(units) for word, units in _by_word("units").items()}
_ALONE: Final = {unit: {unit: 1.0} for unit in _WORDS["alone"]["units"].split()}
_SCALES: Final[dict[str, dict[str, float]]] = _WORDS["scales"] | _ALONE
#: No systolic pressure in mmHg is so low, and none in cmHg so high.
_LEAST_MMHG: Final = 30
#: Two units in a cell, such as ``12 st 4`` and ``1m72``.
_TWO_UNITS: Final = re.compile(
    rf"(\d+) ?({'|'.join(_WORDS['larger'])}) ?(\d+(?:[.,]\d+)?) ?(\D*)", re.IGNORECASE
)


#: Where it is certain: m2 may be the second month.
_SQUARE_METRE: Final = re.compile(r"/ ?(1[.,]73 ?)?m\^?[2²]|m²", re.IGNORECASE)

#: Of what was before: Zustand nach, status post, history of.
_STATE: Final = re.compile(r"\b(z\. ?n\.|zustand nach\b|st\.? ?p\.|(status post|s/p|h/o)\b)")


def _parts(name: str) -> tuple[str, ...]:
    apart = re.sub(r"(?<=[a-z]{2})(?=[A-Z])", " ", _SQUARE_METRE.sub(" ", name))  # not mRS
    return tuple(re.findall(r"[^\W_]+", _STATE.sub("previous ", folded(apart))))


#: A number of days and the like in one word, such as ``28d``, ``mort28d`` and ``d28``.
_SPAN: Final = re.compile(r"([^\W\d_]{3,})?(\d{1,4})([^\W\d_]*)")
_SPAN_AFTER: Final = re.compile(r"([^\W\d_]+)(\d{1,4})")


def _in_known_name(parts: tuple[str, ...], i: int) -> bool:
    """Return whether a number is part of a name, as in PHQ-9; T 3 in a name may be a time."""
    starts, ends = range(max(0, i - 5), i + 1), range(i + 1, min(i + 6, len(parts)) + 1)
    runs = {"".join(parts[j:k]) for j in starts for k in ends if k > j + 1}
    return any(f"{run}{mark}" in _MEASURED for run in runs if len(run) > 2 for mark in ("", "?"))


@functools.lru_cache(4096)
def _without_span(parts: tuple[str, ...]) -> tuple[tuple[str, ...], frozenset[int]]:
    """Return the words of a name without a span of time, and how many days it may have."""
    for i, part in enumerate(parts):
        if part.isalpha() or _in_known_name(parts, i):
            continue
        following = parts[i + 1] if i + 1 < len(parts) else ""
        if part.isdecimal() and len(part) < 5:
            days = frozenset(int(part) * n for n in _SPANS.get(following, {1}))
            return parts[:i] + parts[i + 1 + (following in _SPANS) :], days
        if (found := _SPAN.fullmatch(part)) and found[3] in _SPANS:
            days = frozenset(int(found[2]) * n for n in _SPANS[found[3]])
            return (*parts[:i], *filter(None, [found[1]]), *parts[i + 1 :]), days
        if (found := _SPAN_AFTER.fullmatch(part)) and found[1] in _SPANS and i > 0:
            days = frozenset(int(found[2]) * n for n in _SPANS[found[1]])
            return parts[:i] + parts[i + 1 :], days
    return parts, frozenset()


def _same_span(one: frozenset[int], other: frozenset[int]) -> bool:
    """Return whether spans may be one: 12 months of 30 days are a year."""
    return any(abs(a - b) <= 0.03 * max(a, b) for a in one for b in other)


#: So many letters of a name, such as Geschl, are taken as its beginning.
_LEAST_BEGUN: Final = 4


@functools.lru_cache(4096)
def _measured(name: str, within: bool = False) -> tuple[frozenset[str], frozenset[str]]:
    """Return what a name means by all its words, and what it may mean.

    ``within``: any words in it may say what it means, or it may be short for a word.
    """
    parts, _ = _without_span(_parts(name))
    kept = tuple(part for part in parts if part not in _UNMEASURED) or parts
    for words in (_parts(name), parts, kept):
        joined = "".join(words)
        if joined in _MEASURED:
            return frozenset(_MEASURED[joined]), frozenset(_MEASURED[joined])
        if f"{joined}?" in _MEASURED:
            return frozenset(), frozenset(_MEASURED[f"{joined}?"])
    spans = [(i, j) for i in range(len(kept)) for j in range(i + 1, len(kept) + 1) if within]
    some = frozenset().union(*(_MEASURED.get("".join(kept[i:j]), frozenset()) for i, j in spans))
    begun = "".join(kept) if within and not some else ""
    if len(begun) >= _LEAST_BEGUN:
        starts = [keys for word, keys in _MEASURED.items() if word.startswith(begun)]
        some = frozenset().union(*starts) if len(set(starts)) == 1 else some
    return frozenset(), some


def looks_missing(code: str) -> bool:
    """Return whether a code often means a missing value."""
    return is_absent_text(code) or _ABSENT_NUMBER.fullmatch(code) is not None


def is_absent_text(code: str) -> bool:
    """Return whether a text that is no number often means a missing value, such as k.A. or -/-."""
    plain = folded(code).replace(" ", "")
    return plain in _MISSING_CODES or (plain != "" and _ONLY_MARKS.issuperset(plain))


def is_beyond(text: str) -> bool:
    """Return whether a text is what a meter shows for a number too high or too low for it."""
    return folded(text) in _HEADERS["beyond"]


def says_side(text: str) -> bool:
    """Return whether a text says left or right."""
    return not _SIDES.isdisjoint(_parts(text))


def without_side(text: str) -> str:
    """Return a text without left and right, unless it says nothing else."""
    left = [word for word in text.split() if not (words := _parts(word)) or words[0] not in _SIDES]
    return " ".join(left) or text


def may_mean_no(code: str) -> bool:
    """Return whether a word for a missing value may mean no, or none of several things."""
    return code.casefold() == "none" or folded(code) in _NOT


def meanings_of(codes: Collection[str], header: str = "") -> dict[str, str | None]:
    """Return what each code of a column means in any session: "no", "yes", "male" or "female"."""
    given = frozenset(folded(code) for code in codes if not looks_missing(code))
    known: Mapping[str, str] = _TOGETHER.get(given, _CODES)
    of_header = [own for word, own in _WORDS["v_and_m"].items() if word in folded(header)]
    if given >= {"v", "m"} and of_header:
        known = {**_CODES, **of_header[0]}
    elif known is _CODES and "m" in given and _MALE_WITH_MUJER & given:
        known = {code: what for code, what in known.items() if code != "m"}  # it may be mujer
    found = {code: known.get(folded(code).removesuffix(".")) for code in codes}
    for code in codes:  # S where Sim is another code
        short = folded(code).removesuffix(".")
        if found[code] is None and len(short) == 1:
            whole = {found[each] for each in codes if folded(each)[:1] == short} - {None}
            found[code] = whole.pop() if len(whole) == 1 else None
    return found


def status_of(code: str) -> str | None:
    """Return "never", "former" or "current" for a code that certainly means this."""
    if dated := _DATED.search(" ".join(parts := _parts(code))):
        found = status_of(dated.string[: dated.start()])
        return found if found != "never" else None  # a non-smoker since 2010 may have smoked
    if found := _STATUSES.get("".join(parts)):
        return found
    # As "não fumador", "före detta rökare" and "fumeur sevré".
    for i in range(1, len(parts)):
        one, other = "".join(parts[:i]), "".join(parts[i:])
        what = "never" if _CODES.get(one) == "no" else _STATUSES.get(one)
        if what and _STATUSES.get(other) == "current":
            return what
        if what == "current" and _STATUSES.get(other) == "former":
            return "former"
    return None


def statuses_of(codes: Collection[str], header: str) -> dict[str, str | None]:
    """Return the status that each code means; yes and no mean one only with another of former."""
    found = {code: status_of(code) for code in codes}
    if "former" in found.values():
        said = {"yes": "current", "no": "never"}
        for code, what in meanings_of(codes, header).items():
            found[code] = found[code] or said.get(what or "")
    return found


def death_of(code: str) -> int | None:
    """Return 1 for a code of a person who died, such as ``Exitus``, 0 for one who lives."""
    word = "".join(_parts(code))
    return 1 if "died" in _MEASURED.get(word, ()) else _FATES.get(word)


def is_death(feature: str) -> bool:
    """Return whether a name says that a person died."""
    return "died" in _measured(feature)[1]


def is_contrary(feature: str, header: str) -> bool:
    """Return whether a header may say the opposite of a feature: non-smoker, or that one lives."""
    if is_death(feature) and _ALIVE.intersection(_parts(header)):
        return True
    return _is_negated(feature) != _is_negated(split_unit(header)[0])


def _is_negated(name: str) -> bool:
    # Of "24 sem" the second is a unit.
    every = ("", *_parts(name))
    parts = [part for before, part in itertools.pairwise(every) if not before.isdecimal()]
    if any(_CODES.get(part) == "yes" for part in parts):
        return False  # "diabetes ja/nein" lists the codes
    joined = (part.removeprefix(word) for part in parts for word in _NOT if part.startswith(word))
    return not _NOT.isdisjoint(parts) or any(rest in _MEASURED for rest in joined)


def rank_of(code: str, *, alone: bool = False) -> int | None:
    """Return a number from 0 to 9 or I to XXXIX, not X; without ``alone`` a word may precede it."""
    found = _RANK.fullmatch(code.strip())
    if found is None or (alone and found[1] != found[0]):
        return None
    if found[1].isdecimal():
        return int(found[1])
    return _ROMAN.index(found[1]) if found[1] in _ROMAN and found[1] != "X" else None


def sex_counted(feature: str) -> str | None:
    """Return the sex that a yes/no feature asks for by its name."""
    found = {_CODES.get(part) for part in _parts(feature) if part not in ("is", "sex", "gender")}
    # A male partner is no male person.
    return found.pop() if len(found) == 1 and found <= {"male", "female"} else None


def sex_of_one(unit: str) -> str | None:
    """Return the sex that 1 means by the unit of a yes/no feature, such as ``1 = female``."""
    what = _CODES.get(legend_of(folded(unit)).get("1", folded(unit)))
    return what if what in ("male", "female") else None


def is_sex(feature: str) -> bool:
    """Return whether a name says "sex", and not which one."""
    return "sex" in _measured(feature)[0]


_LEGEND: Final = re.compile(r"\b(\w+) ?(?:=|:|is\b) ?(\w+)")


def legend_of(header: str) -> dict[str, str]:
    """Return what a header says of codes, such as ``sex (1=male, 2=female)`` or ``(m=1, f=2)``."""
    pairs = _LEGEND.findall(header)
    return dict((two, one) if two.isdecimal() else (one, two) for one, two in pairs)


def in_brackets(header: str) -> list[str]:
    """Return the texts in a header's brackets."""
    return [found.strip() for found in _BRACKETS.findall(header)]


def similarity(feature: str, header: str) -> float:
    """Return how similar a header without its unit is to a feature's name, by letters: 0 to 1."""
    own, other = ("".join(_parts(name)) for name in (feature, split_unit(header)[0]))
    return difflib.SequenceMatcher(None, own, other).ratio()


def has_other_span(feature: str, header: str) -> bool:
    """Return whether both names say a span of time, and not the same: 30 days and a year."""
    spans = [_without_span(_parts(name))[1] for name in (feature, header)]
    return all(spans) and not _same_span(*spans)


def _moments(parts: tuple[str, ...]) -> set[str]:
    """Return when a name says that something is measured; what is known by all of it says nothing.

    Of an event after 30 days it is within them.
    """
    known, (_, span) = "".join(parts) in _MEASURED, _without_span(parts)
    said = {_MOMENTS[each] for each in parts if each in _MOMENTS and not known}
    return said - {"after"} if span else said


def likeness(feature: str, header: str) -> int:
    """Return how well a header fits a feature's name.

    4: the name itself, 3: the same words, 2: a synonym, 1: similar, 0: another.
    """
    if feature == header:
        return 4
    name = split_unit(header)[0]
    own, other = _parts(feature), _parts(name)
    if "".join(own) in ("".join(other), "".join(_parts(header))):
        return 3
    (rest, span), (rest_here, span_here) = map(_without_span, (own, _parts(header)))
    moments, moments_here = _moments(own), _moments(other)
    if has_other_span(feature, header) or (moments and moments_here and not moments & moments_here):
        return 0
    if span and span_here and rest == rest_here:
        return 3
    sure, groups = _measured(feature)
    found, guessed = _measured(name, within=True)
    if not guessed:  # what seems to be a unit may be a word of the name, as in ICU days
        found, guessed = _measured(header, within=True)
    if sex_counted(feature):
        sure, groups = sure | {"sex"}, groups | {"sex"}
    if sure & found and bool(span) == bool(span_here):
        return 2 if moments == moments_here else 1
    if is_death(feature) and _ALIVE.intersection(other):
        return 1
    # What stands in brackets may be another name, as in PS (ECOG).
    if any(not is_unit(each) and likeness(feature, each) > 1 for each in in_brackets(header)):
        return 2
    within = bool(own and other) and (set(own) <= set(other) or set(other) <= set(own))
    begun = any(b.startswith(a) for a in own for b in other if len(a) >= _LEAST_BEGUN)
    return int(within or begun or bool(groups & guessed))


# --- units ----------------------------------------------------------------------------------------


#: Giga and tera of cells, where grams have a small letter; degrees of a session; Jahre, where jours
#: have a small letter.
_PREFIXED: Final = {
    "G/l": "10^9/l", "T/l": "10^12/l", "J.": "years", "C": "°C", "F": "°F", "K": "°K"
}  # fmt: skip
#: Of a count of cells, where the litre may have a capital letter too.
_OF_CELLS: Final = {"G/L": "10^9/l", "T/L": "10^12/l"}
#: Units of activity in several languages; a large M would be a million.
_ACTIVITY: Final = re.compile(r"([mukM]?)(?:IU|UI?|I?E|iu|ui?|i?e)(?=/)")


def _unit(text: str) -> str:
    plain = "".join(unicodedata.normalize("NFKC", text.replace("º", "°")).split())
    plain = re.sub(r"(?<=\d),(?=\d)", ".", re.sub("^[x×](?=1)", "", plain.replace("μ", "u")))
    plain = _PREFIXED.get(plain, re.sub("_per_|_", "/", plain.replace("mcg", "ug")))
    if found := _ACTIVITY.match(plain):
        prefix = "mega" if found[1] == "M" else found[1]
        plain = f"{prefix}u{plain[found.end() :]}"
    plain = re.sub(r"10[*e^]?(?=\d)", "10^", plain.casefold().replace("./", "/").removesuffix("."))
    return _UNITS.get(folded(plain), plain)


def time_unit_of(header: str) -> str:
    """Return the unit of times that a header says; "" without one."""
    words = [split_unit(header)[1], *_parts(header)]
    units = (_unit(word) if is_unit(word) else min(_TIME_WORDS.get(word, [""])) for word in words)
    return next((unit for unit in units if unit in _WORDS["times"] and unit != "unknown"), "")


def fits_time(header: str) -> int:
    """Return how well a header fits times: 2 if it begins so, 1 if it has such a word, else 0."""
    return _fits(header, _TIME_WORDS)


def fits_person(header: str) -> int:
    """Return how well a header fits persons, as :func:`fits_time` does."""
    return _fits(header, _HEADERS["person"])


def is_id(header: str) -> bool:
    """Return whether a header says that its column identifies persons or rows."""
    return fits_person(header) == 2 or _parts(header)[-1:] == ("id",)


def is_birth(header: str) -> bool:
    """Return whether a header says a date or year of birth."""
    return _fits(header, _HEADERS["birth"]) > 0


def never_changes(header: str) -> bool:
    """Return whether a header says "sex" or "date of birth", which all rows of a person share."""
    return is_sex(split_unit(header)[0]) or is_birth(header)


def fits_value(header: str) -> bool:
    """Return whether a header says "value" and not of what."""
    return _fits(split_unit(header)[0], _HEADERS["value"]) == 2


def _fits(header: str, words: Collection[str]) -> int:
    parts = [part for part in _parts(header) if part not in ("study", "id")]
    if "".join(parts) in words or (parts[:1] and parts[0] in words):
        return 2
    return int(any(part in words for part in parts))


def split_unit(header: str) -> tuple[str, str]:
    """Return a header without brackets and unit, and its unit as written; "" without one.

    Without a known unit the text in brackets is returned, which may be one.
    """
    said = [found.strip() for found in _BRACKETS.findall(header)]
    plain = _BRACKETS.sub(" ", header).strip()
    named = "".join(_parts(plain)) in _HEADERS["without_unit"]
    last = None if named else _LAST_UNIT.search(plain)
    if not any(map(is_unit, said)) and last and says_unit(last[1]):
        # As in HbA1c 12 months, it says when.
        span = _dimension(last[1]) == "time" and plain[: last.start()][-1:].isdecimal()
        return (plain, "") if span else (plain[: last.start()], last[1])
    return plain, next(filter(is_unit, said), said[0] if said else "")


def says_unit(word: str) -> bool:
    """Return whether a text is certainly a known unit: a letter may be part of a name."""
    return is_unit(word) and (len(word) > 1 or word == "%")


def is_unit(text: str) -> bool:
    """Return whether a text is a known unit; C, F and K alone may be another word."""
    return text not in ("C", "F", "K") and _dimension(text) is not None


def is_time(unit: str) -> bool:
    """Return whether a unit of a session is one of time."""
    return _dimension(plain_unit(unit)) == "time"


def _dimension(unit: str) -> str | None:
    return next((name for name, scale in _SCALES.items() if _unit(unit) in scale), None)


def plain_unit(unit: str) -> str:
    """Return the unit that a session's one begins with: kg of ``kg, without prosthesis``."""
    parts = unit, unit.partition(",")[0], unit.partition(" ")[0]
    return next(filter(is_unit, parts), unit)


def may_become(unit: str, other: str) -> bool:
    """Return whether a unit may become that of a session, of grams and moles if known."""
    pair = {_dimension(unit), _dimension(plain_unit(other))}
    return len(pair) == 1 or pair == {"mass_concentration", "amount_concentration"}


def same_measure(unit: str, other: str) -> bool:
    """Return whether a unit is that of a session, however they are written.

    Of a number in 12 months the header may say the months.
    """
    if is_time(unit) and _COUNT.match(other):
        return True
    others = other, plain_unit(other), other.partition(",")[0]
    return bool({_unit(unit), _unit(plain_unit(unit))} & {*map(_unit, others)})


def _group(feature: str, header: str) -> str | None:
    """Return the first name of what is measured."""
    sure = _measured(feature)[0] or _measured(split_unit(header)[0], within=True)[1]
    found = sure or _measured(feature)[1]  # as of fasting_glucose
    return min(found) if len(found) == 1 else None


def is_another(feature: str, header: str) -> bool:
    """Return whether both names say what is measured, and not the same: waist and height."""
    one, other = (_measured(split_unit(name)[0])[0] for name in (feature, header))
    related = one | other == {"urea", "bun"}  # BUN is the nitrogen of urea
    return bool(one and other) and not one & other and not related


def cell_unit(feature: str, header: str, unit: str, to: str) -> tuple[float, float]:
    """Return factor and offset from a unit in cells to the column's; a factor of 0 if unknown."""
    if same_measure(unit, to) or unit == "°":
        return 1.0, 0.0
    smaller, n = _WORDS["larger"].get(unit.casefold(), (unit, 1))
    factor, offset = conversion(feature, header, smaller, to) or (0.0, 0.0)
    return factor * n, offset


def with_two_units(feature: str, header: str, text: str, to: str) -> float | None:
    """Return the number of a text such as ``12 st 4``, in the column's unit; None if unknown."""
    if not (found := _TWO_UNITS.fullmatch(text)):
        return None
    smaller, n = _WORDS["larger"][found[2].casefold()]
    factor, _ = cell_unit(feature, header, smaller, to)
    rest = float(found[3].replace(",", "."))
    # In 1'250 the mark separates thousands.
    if not factor or rest >= n or (found[4] and not same_measure(found[4], smaller)):
        return None
    return float(f"{(int(found[1]) * n + rest) * factor:.6g}")


def is_diastolic(feature: str) -> bool:
    """Return whether a feature is a diastolic pressure, the second of 120/80."""
    return "dbp" in _measured(feature)[0]


def in_mmhg(number: float, unit: str) -> float:
    """Return the first number of a blood pressure in mmHg: 13/8 is 130/80, said in cmHg."""
    return 10 * number if number < _LEAST_MMHG and same_measure(unit, "mmHg") else number


def other_units(feature: str, unit: str) -> dict[str, tuple[float, float]]:
    """Return the units that become a feature's unit, each with factor and offset.

    Those of moles, which are taken for grams most often, come first.
    """
    of = _dimension(plain_unit(unit))
    units = sorted((each != of, other) for each, scale in _SCALES.items() for other in scale)
    found = {other: conversion(feature, "", other, unit) for _, other in reversed(units)}
    return {other: pair for other, pair in found.items() if pair}


def conversion(feature: str, header: str, unit: str, to: str) -> tuple[float, float] | None:
    """Return factor and offset from a unit to that of a session; None if they are not known."""
    to = plain_unit(to)
    unit = _OF_CELLS.get(unit, unit) if _dimension(to) == "cells" else unit
    shifted = _WORDS["shifted"].get(_unit(unit), {}).get(_unit(to))
    if shifted and (shifted["of"] == "any" or _group(feature, header) in shifted["of"].split()):
        return shifted["factor"], shifted.get("offset", 0.0)
    one, other = _dimension(unit), _dimension(to)
    if one is None or other is None:
        return None
    factor = _SCALES[one][_unit(unit)] / _SCALES[other][_unit(to)]
    if one == other:
        return factor, 0.0
    # Of BUN the nitrogen is weighed, of urea all of it: grams here are of the header's measurement.
    said = _measured(split_unit(header)[0])[0] & _WORDS["moles"].keys()
    mass_here = one == "mass_concentration" and len(said) == 1
    moles: float | None = _WORDS["moles"].get(min(said) if mass_here else _group(feature, header))
    if moles is None or {one, other} != {"mass_concentration", "amount_concentration"}:
        return None
    return factor * (1000 / moles if one == "mass_concentration" else moles / 1000), 0.0
