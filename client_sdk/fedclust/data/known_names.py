"""What hospitals call their columns, codes and units: names, headers and texts that mean one."""

from __future__ import annotations

import difflib
import re
import unicodedata
from typing import Final


def folded(text: str) -> str:
    """Return a text without case, accents and repeated spaces; ä and ae are one."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    plain = " ".join("".join(c for c in plain if not unicodedata.combining(c)).split())
    return re.sub("([aou])e", r"\1", plain)


#: Names of one measurement, in English, German, French and Spanish.
_SYNONYMS: Final = (
    "age alter lebensalter edad patientage alterjahre",
    "sex geschlecht gender sexe sexo sesso",
    "height grosse korpergrosse taille talla",
    "weight gewicht korpergewicht poids peso",
    "bmi bodymassindex imc",
    "creatinine kreatinin creatinin creat krea crea scr serumkreatinin creatinina serumcreatinine",
    "chol cholesterol cholesterin totalcholesterol gesamtcholesterin colesterol",
    "triglycerides triglyzeride triglyceride trig tg trigliceridos",
    "glucose glukose blutzucker bz glycemie glucosa glykamie",
    "bilirubin bilirubine bilirrubina bili",
    "hemoglobin hamoglobin hb hgb hemoglobine hemoglobina",
    "crp creactiveprotein creaktivesprotein",
    "bnp natriureticpeptide",
    "ntprobnp probnp",
    "potassium kalium",
    "sodium natrium",
    "platelets thrombozyten plaquettes plaquetas plt",
    "wbc leukozyten leukocytes leucocytes leucocitos",
    "sbp systolic systolicbloodpressure systolicbp bpsys rrsys syst systolisch trestbps",
    "dbp diastolic diastolicbloodpressure diastolicbp bpdia rrdia diast diastolisch",
    "heartrate hr pulse puls herzfrequenz frequencecardiaque",
    "temp temperature temperatur temperatura",
    "ef lvef ejectionfraction ejektionsfraktion",
    "diabetes dm diab diabete diabetesmellitus",
    "hypertension hypertonie htn bluthochdruck hta",
    "smoker smoking raucher rauchen fumeur tabac fumador",
    "died death dead deceased verstorben tod exitus mortality deces fallecido",
    "los lengthofstay liegedauer verweildauer staydays",
)
#: Codes of one meaning. The pairs are the first two and the last two.
_MEANINGS: Final = {
    "no": "no n nein false 0 non falsch faux",
    "yes": "yes y ja j true 1 oui si wahr vrai",
    "male": "male m mannlich mann man masculin masculino homme hombre h",
    "female": "female f w weiblich frau woman feminin femenino femme mujer",
}
#: Numbers and texts that often mean a missing value.
_ABSENT: Final = (
    "-1|-9|-99|-999|-9999|9|99|999|9999|888|777|99.9|999.9|?|-|--|k.a.|ka|unbekannt|unknown|"
    "missing|fehlt|n.d.|nd|n.b.|inconnu|desconocido|keine angabe|not known"
)
_MISSING_CODES: Final = frozenset(_ABSENT.split("|"))
_WORDS: Final = {folded(word): n for n, words in enumerate(_SYNONYMS) for word in words.split()}
_CODES: Final = {folded(code): what for what, codes in _MEANINGS.items() for code in codes.split()}
_BRACKETS: Final = re.compile(r"[\(\[{]([^)\]}]*)[)\]}]")
_LAST_UNIT: Final = re.compile(
    r"(?:\s+in)?[\s_,;:-]+((?:[^\W\d_]+|°[FC])(?:(?:/|_?per_?|_)(?:d?l|ml))?|%)$"
)
#: Units as people write them; of moles "a litre" is left out.
_UNIT_WORDS: Final = (
    "years year yrs yr jahre jahren jahr ans anos",
    "days day tage jours dias",
    "bpm 1/min /min beats/min",
    "mmol/l mmol",
    "umol/l umol",
    "nmol/l nmol",
    "% percent",
    "lb lbs",
    "in inches",
)
_UNITS: Final = {word: words.split()[0] for words in _UNIT_WORDS for word in words.split()}
#: By dimension what a unit is in the first one.
_SCALES: Final = (
    {"g/l": 1.0, "g/dl": 10.0, "mg/dl": 0.01, "mg/l": 1e-3, "ug/l": 1e-6, "ug/dl": 1e-5}
    | {"ug/ml": 1e-3, "ng/ml": 1e-6, "ng/l": 1e-9, "pg/ml": 1e-9, "mg/ml": 1.0},
    {"mmol/l": 1.0, "umol/l": 1e-3, "nmol/l": 1e-6},
    {"m": 1.0, "cm": 0.01, "mm": 0.001, "in": 0.0254},
    {"kg": 1.0, "g": 0.001, "lb": 0.45359237},
    {"mmhg": 1.0, "kpa": 7.50062},
    {"days": 1.0, "years": 365.25},
    {"fraction": 1.0, "%": 0.01},
    *({unit: 1.0} for unit in ("bpm", "°c", "°f")),
)
#: Grams in a mole, by the first synonym.
_MOLES: Final = {"chol": 386.7, "triglycerides": 885.7, "glucose": 180.16} | {
    "creatinine": 113.1,
    "bilirubin": 584.66,
}


def _parts(name: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.findall(r"[^\W_]+", folded(apart))


def looks_missing(code: str) -> bool:
    """Return whether a code often means a missing value."""
    return folded(code) in _MISSING_CODES


def meaning_of(code: str) -> str | None:
    """Return what a code means in any session: "no", "yes", "male" or "female"."""
    return _CODES.get(folded(code))


def sex_counted(feature: str) -> str | None:
    """Return the sex that a yes/no feature asks for by its name."""
    found = {_CODES.get(part) for part in _parts(feature) if part not in ("is", "sex", "gender")}
    # A male partner is no male person.
    return found.pop() if len(found) == 1 and found <= {"male", "female"} else None


def is_sex(feature: str) -> bool:
    """Return whether a name says "sex", and not which one."""
    return _WORDS.get("".join(_parts(feature))) == _WORDS["sex"]


def in_brackets(header: str) -> list[str]:
    """Return the texts in a header's brackets."""
    return [found.strip() for found in _BRACKETS.findall(header)]


def likeness(feature: str, header: str) -> int:
    """Return how well a header fits a feature's name.

    4: the name itself, 3: the same words, 2: a synonym, 1: similar, 0: another.
    """
    if feature == header:
        return 4
    own, other = _parts(feature), _parts(split_unit(header)[0])
    if "".join(own) in ("".join(other), "".join(_parts(header))):
        return 3
    groups = {_WORDS.get("".join(own)), _WORDS["sex"] if sex_counted(feature) else None} - {None}
    if _WORDS.get("".join(other)) in groups:
        return 2
    near = difflib.SequenceMatcher(None, "".join(own), "".join(other)).ratio() > 0.84
    within = bool(own and other) and (set(own) <= set(other) or set(other) <= set(own))
    return int(near or within or any(_WORDS.get(part) in groups for part in other))


# --- units ----------------------------------------------------------------------------------------


def _unit(text: str) -> str:
    plain = "".join(unicodedata.normalize("NFKC", text).casefold().split()).replace("μ", "u")
    plain = re.sub("_per_|_", "/", plain.replace("mcg", "ug"))
    return _UNITS.get(folded(plain), plain)


def split_unit(header: str) -> tuple[str, str]:
    """Return a header without brackets and unit, and its unit as written; "" without one.

    Without a known unit the text in brackets is returned, which may be one.
    """
    said = [found.strip() for found in _BRACKETS.findall(header)]
    plain = _BRACKETS.sub(" ", header).strip()
    last = _LAST_UNIT.search(plain)
    if not any(map(is_unit, said)) and last and len(last[1]) > 1 and is_unit(last[1]):
        return plain[: last.start()], last[1]
    return plain, next(filter(is_unit, said), said[0] if said else "")


def is_unit(text: str) -> bool:
    """Return whether a text is a known unit."""
    return _dimension(text) is not None


def _dimension(unit: str) -> int | None:
    return next((n for n, scale in enumerate(_SCALES) if _unit(unit) in scale), None)


def same_measure(unit: str, other: str) -> bool:
    """Return whether two units are one, however they are written."""
    return _unit(unit) == _unit(other)


def conversion(feature: str, header: str, unit: str, to: str) -> tuple[float, float] | None:
    """Return factor and offset from one unit to another; None if they are not known."""
    if (_unit(unit), _unit(to)) == ("°f", "°c"):
        return 5 / 9, -160 / 9
    one, other = _dimension(unit), _dimension(to)
    if one is None or other is None:
        return None
    factor = _SCALES[one][_unit(unit)] / _SCALES[other][_unit(to)]
    if one == other:
        return factor, 0.0
    names = ("".join(_parts(feature)), "".join(_parts(split_unit(header)[0])))
    group = next((_WORDS[name] for name in names if name in _WORDS), None)
    moles = None if group is None else _MOLES.get(_SYNONYMS[group].split()[0])
    if moles is None or {one, other} != {0, 1}:
        return None
    return factor * (moles / 1000 if one == 1 else 1000 / moles), 0.0
