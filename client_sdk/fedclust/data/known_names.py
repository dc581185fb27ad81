"""What hospitals call their columns, codes and units: names, headers and texts that mean one."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Collection
from typing import Final

#: Letters that are no letter with an accent.
_STROKES: Final = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "a", "œ": "o", "ı": "i"})


def folded(text: str) -> str:
    """Return a text without case, accents and repeated spaces; ä and ae are one, ø and o."""
    plain = unicodedata.normalize("NFKD", text.casefold().translate(_STROKES))
    plain = " ".join("".join(c for c in plain if not unicodedata.combining(c)).split())
    return re.sub("([aou])e", r"\1", plain)


#: Names of one measurement, in English, German, French, Spanish, Italian, Portuguese, Dutch,
#: Swedish, Danish, Norwegian, Polish and Turkish.
_SYNONYMS: Final = (
    "age alter lebensalter edad patientage alterjahre eta idade leeftijd ålder alder wiek yaş",
    "sex geschlecht gender sexe sexo sesso geslacht kön kjønn płeć cinsiyet",
    "height grosse korpergrosse taille talla altezza statura altura lengte längd wzrost boy",
    "weight gewicht korpergewicht poids peso vikt waga kilo ağırlık",
    "bmi bodymassindex imc vki",
    (
        "creatinine kreatinin creatinin creat krea crea scr serumkreatinin creatinina "
        "serumcreatinine kreatinine kreatynina"
    ),
    (
        "chol cholesterol cholesterin totalcholesterol gesamtcholesterin colesterol colesterolo "
        "kolesterol totalkolesterol"
    ),
    (
        "triglycerides triglyzeride triglyceride trig tg trigliceridos trigliceridi "
        "triglyceriden trigliserit"
    ),
    (
        "glucose glukose blutzucker bz glycemie glucosa glykamie gluc glicemia glukos glukoza "
        "glucosio glukoz"
    ),
    "hba1c glycatedhemoglobin hemoglobinaglicada emoglobinaglicata hemoglobineglyquee",
    "bilirubin bilirubine bilirrubina bili bilirubina",
    "hemoglobin hamoglobin hb hgb hemoglobine hemoglobina emoglobina hemoglobiny",
    "crp creactiveprotein creaktivesprotein",
    "ldl ldlc ldlchol ldlcholesterol ldlcholesterin ldlkolesterol ldlcolesterol ldlcolesterolo",
    "hdl hdlc hdlchol hdlcholesterol hdlcholesterin hdlkolesterol hdlcolesterol hdlcolesterolo",
    "bnp natriureticpeptide",
    "ntprobnp probnp",
    "potassium kalium potasio potassio potas",
    "sodium natrium sodio",
    "platelets thrombozyten plaquettes plaquetas plt piastrine trombocyten trombocyter trombosit",
    "wbc wblc leukozyten leukocytes leucocytes leucocitos leucociti leukocyten leukocyty lökosit",
    (
        "sbp systolic systolicbloodpressure systolicbp bpsys rrsys syst systolisch trestbps "
        "systoliskt pasistolica tasistolica pressionesistolica cisnienieskurczowe skurczowe "
        "sistolik tasystolique systolique"
    ),
    (
        "dbp diastolic diastolicbloodpressure diastolicbp bpdia rrdia diast diastolisch "
        "diastoliskt padiastolica tadiastolica pressionediastolica rozkurczowe diyastolik "
        "tadiastolique diastolique"
    ),
    "map meanbp meanarterialpressure meanbloodpressure mitteldruck mad pam presionarterialmedia",
    "resp respiratoryrate resprate atemfrequenz frequencerespiratoire frecuenciarespiratoria",
    "heartrate hr pulse puls herzfrequenz frequencecardiaque hartslag tetno nabız",
    "temp temperature temperatur temperatura temperatuur kroppstemp tcorporea ateş",
    "ef lvef ejectionfraction ejektionsfraktion",
    "diabetes dm diab diabete diabetesmellitus suikerziekte cukrzyca diyabet",
    (
        "hypertension hypertonie htn bluthochdruck hta hypertensie ipertensione nadcisnienie "
        "hipertansiyon"
    ),
    "smoker smoking raucher rauchen fumeur tabac fumador fumatore roker rökare ryger røyker sigara",
    (
        "died death dead deceased verstorben tod exitus mortality deces fallecido dth gestorben "
        "deceduto decesso morto obito falecido overleden avliden död zgon ölüm öldü "
        "vitalstatus status"
    ),
    (
        "los lengthofstay liegedauer verweildauer staydays degenza opnameduur vårdtid yatışsüresi "
        "czashospitalizacji"
    ),
)
#: Headers of the columns of a table with a row for each value: times by their unit.
_TIMES: Final = {
    "days": "day days tag tage jour jours dia dias giorno giorni dag dagen dygn dni dzien gün",
    "hours": "hour hours hr hrs stunde stunden heure heures hora horas ora ore uur timmar timer "
    "saat",
    "weeks": "week weeks woche wochen semaine semana hafta",
    "": "time zeit zeitpunkt temps tiempo tempo tijd tid czas zaman offset visit date datum tarih "
    "charttime",
}
_PERSONS: Final = (
    "patient patientid pat patid patnr pid mrn subject subjectid subjid usubjid person personid "
    "patienten patientennr patientnummer paciente paziente pacjent case caseid fall fallnr cpr "
    "hasta hastano pseudonym pseudo pseudonymid"
)
_VALUES: Final = (
    "value wert messwert ergebnis result valor valeur valore waarde varde wartosc değer sonuç"
)
#: Codes of one meaning. The pairs are the first two and the last two.
_MEANINGS: Final = {
    "no": "no n nein false 0 non falsch faux nee nej nie não hayır yok",
    "yes": "yes y ja j true 1 oui si wahr vrai tak sim evet var",
    "male": "male m mannlich mann man mand masculin masculino homme hombre h maschio erkek",
    "female": "female f w weiblich frau woman feminin femenino femme mujer vrouw femmina kvinna "
    "kvinne kvinde k kadın",
}
#: Codes of a person who lives; other words for death are in the synonyms.
_ALIVE: Final = frozenset(
    ["alive", "living", "lebend", "lebt", "vivant", "vivo", "levend", "levande", "zyje", "yasiyor"]
)
_DEAD: Final = frozenset(map(folded, ["tot", "mort", "décédé", "muerto", "ölü"]))
_ROMAN: Final = ("", "I", "II", "III", "IV", "V", "VI")
#: A word at most, then a number.
_RANK: Final = re.compile(r"(?:[^\W\d_]+\.?[ _-]?(?=\d)|[^\W\d_]+\.?[ _-])?(\d|I{1,3}|I?V|VI)")
#: Numbers and texts that often mean a missing value: -1 to -9; 9, 99, 777, 9999, 99.9 and the
#: like, also with a minus; 97, 98, 996 to 998 of questionnaires.
_ABSENT_NUMBER: Final = re.compile(
    r"-[1-9](\.0+)?|-?9(\.0+)?|-?([789])\3+([.,](\3|0)+)?|-?(97|98|99+[678])(\.0+)?"
)
_ABSENT: Final = (
    "?|-|--|k.a.|ka|unbekannt|unknown|missing|fehlt|n.d.|nd|n.b.|nb|inconnu|desconocido|"
    "keine angabe|not known|not done|brak danych|brak|onbekend|okänd|ukendt|uoplyst|"
    "ukjent|saknas|ignoto|sconosciuto|desconhecido|nieznane|nr|n.r.|s.d.|nvt|bilinmiyor"
)
_MISSING_CODES: Final = frozenset(map(folded, _ABSENT.split("|")))
_WORDS: Final = {folded(word): n for n, words in enumerate(_SYNONYMS) for word in words.split()}
_TIME_WORDS: Final = {folded(w): unit for unit, words in _TIMES.items() for w in words.split()}
_PERSON_WORDS: Final = frozenset(map(folded, _PERSONS.split()))
_VALUE_WORDS: Final = frozenset(map(folded, _VALUES.split()))
_CODES: Final = {folded(code): what for what, codes in _MEANINGS.items() for code in codes.split()}
#: Turkish initials of evet and hayır, erkek and kadın: what they mean if there are no others.
_TOGETHER: Final = {
    frozenset("eh"): {"e": "yes", "h": "no"},
    frozenset("ek"): {"e": "male", "k": "female"},
}
_BRACKETS: Final = re.compile(r"[\(\[{]([^)\]}]*)[)\]}]")
_LAST_UNIT: Final = re.compile(
    r"(?:\s+in)?[\s_,;:-]+((?:[^\W\d_]+|°[FC])(?:(?:/|_?per_?|_)(?:d?l|ml))?|%)$"
)
#: Units as people write them; of moles "a litre" is left out.
_UNIT_WORDS: Final = (
    "years year yrs yr jahre jahren jahr ans anos jaar lat lata anni år yıl",
    "days day tage jours dias dagen dni giorni dygn dagar gün",
    "hours hour h hrs std stunden heures horas ore uur godziny timmar saat",
    "minutes minute minuten minuti minutos minuter minuut dakika",
    "weeks week wochen semaines semanas weken settimane veckor tygodnie hafta",
    "bpm 1/min /min beats/min",
    "mmol/l mmol",
    "umol/l umol",
    "nmol/l nmol",
    "% percent pct",
    "mg/dl mgdl",
    "10^9/l /nl 10^3/ul k/ul tsd/ul gpt/l",
    "10^12/l /pl 10^6/ul tpt/l",
    "lb lbs",
    "in inches",
)
_UNITS: Final = {folded(word): words.split()[0] for words in _UNIT_WORDS for word in words.split()}
#: By dimension what a unit is in the first one.
_SCALES: Final = (
    {"g/l": 1.0, "g/dl": 10.0, "mg/dl": 0.01, "mg/l": 1e-3, "ug/l": 1e-6, "ug/dl": 1e-5}
    | {"ug/ml": 1e-3, "ng/ml": 1e-6, "ng/l": 1e-9, "pg/ml": 1e-9, "mg/ml": 1.0},
    {"mmol/l": 1.0, "umol/l": 1e-3, "nmol/l": 1e-6},
    {"m": 1.0, "cm": 0.01, "mm": 0.001, "in": 0.0254},
    {"kg": 1.0, "g": 0.001, "lb": 0.45359237},
    {"mmhg": 1.0, "kpa": 7.50062},
    {"days": 1.0, "years": 365.25, "hours": 1 / 24, "minutes": 1 / 1440, "weeks": 7.0},
    {"u/l": 1.0, "mu/l": 1e-3, "uu/ml": 1e-3, "mu/ml": 1.0, "u/ml": 1e3, "ku/l": 1e3},
    {"10^9/l": 1.0, "10^12/l": 1e3, "/ul": 1e-3},
    {"fraction": 1.0, "%": 0.01},
    *({unit: 1.0} for unit in ("bpm", "°c", "°f", "kg/m2", "mmol/mol")),
)
#: Grams in a mole, by the first synonym.
_MOLES: Final = {"chol": 386.7, "triglycerides": 885.7, "glucose": 180.16} | {
    "creatinine": 113.1,
    "bilirubin": 584.66,
    "ldl": 386.7,
    "hdl": 386.7,
    "hemoglobin": 16114.0,  # of one of its four chains, as laboratories count it
}
#: Measurement, factor and offset between units of other zeros; HbA1c by the NGSP's equation.
_SHIFTED: Final[dict[tuple[str, str], tuple[str | None, float, float]]] = {
    ("°f", "°c"): (None, 5 / 9, -160 / 9),
    ("°c", "°f"): (None, 1.8, 32.0),
    ("mmol/mol", "%"): ("hba1c", 0.09148, 2.152),
    ("%", "mmol/mol"): ("hba1c", 1 / 0.09148, -2.152 / 0.09148),
}


def _parts(name: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.findall(r"[^\W_]+", folded(apart))


def looks_missing(code: str) -> bool:
    """Return whether a code often means a missing value."""
    return folded(code) in _MISSING_CODES or _ABSENT_NUMBER.fullmatch(code) is not None


def meanings_of(codes: Collection[str]) -> dict[str, str | None]:
    """Return what each code of a column means in any session: "no", "yes", "male" or "female"."""
    given = frozenset(folded(code) for code in codes if not looks_missing(code))
    known = _TOGETHER.get(given, _CODES)
    return {code: known.get(folded(code)) for code in codes}


def death_of(code: str) -> int | None:
    """Return 1 for a code of a person who died, such as ``Exitus``, 0 for one who lives."""
    word = "".join(_parts(code))
    if _WORDS.get(word) == _WORDS["died"] or word in _DEAD:
        return 1
    return 0 if word in _ALIVE else None


def is_death(feature: str) -> bool:
    """Return whether a name says that a person died."""
    return _WORDS.get("".join(_parts(feature))) == _WORDS["died"]


def rank_of(code: str, *, alone: bool = False) -> int | None:
    """Return a number from 0 to 9 or I to VI; without ``alone`` a word may precede it."""
    found = _RANK.fullmatch(code.strip())
    if found is None or (alone and found[1] != found[0]):
        return None
    return int(found[1]) if found[1].isdecimal() else _ROMAN.index(found[1])


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


#: Giga and tera of cells, where grams have a small letter.
_PREFIXED: Final = {"G/l": "10^9/l", "T/l": "10^12/l"}
#: Units of activity in several languages; a large M would be a million.
_ACTIVITY: Final = re.compile(r"([mukM]?)(?:IU|UI?|I?E|iu|ui?|i?e)(?=/)")


def _unit(text: str) -> str:
    plain = "".join(unicodedata.normalize("NFKC", text).split()).replace("μ", "u")
    plain = _PREFIXED.get(plain, re.sub("_per_|_", "/", plain.replace("mcg", "ug")))
    if found := _ACTIVITY.match(plain):
        prefix = "mega" if found[1] == "M" else found[1]
        plain = f"{prefix}u{plain[found.end() :]}"
    plain = re.sub(r"10[*e^]?(?=\d)", "10^", plain.casefold().replace("./", "/").removesuffix("."))
    return _UNITS.get(folded(plain), plain)


def time_unit_of(header: str) -> str:
    """Return the unit of times that a header says; "" without one."""
    words = [split_unit(header)[1], *_parts(header)]
    units = (_unit(word) if is_unit(word) else _TIME_WORDS.get(word, "") for word in words)
    return next((unit for unit in units if unit in _TIMES and unit), "")


def fits_time(header: str) -> int:
    """Return how well a header fits times: 2 if it begins so, 1 if it has such a word, else 0."""
    return _fits(header, _TIME_WORDS)


def fits_person(header: str) -> int:
    """Return how well a header fits persons, as :func:`fits_time` does."""
    return _fits(header, _PERSON_WORDS)


def fits_value(header: str) -> bool:
    """Return whether a header says "value" and not of what."""
    return _fits(split_unit(header)[0], _VALUE_WORDS) == 2


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


def _group(feature: str, header: str) -> str | None:
    """Return the first name of what is measured."""
    names = ("".join(_parts(feature)), "".join(_parts(split_unit(header)[0])))
    return next((_SYNONYMS[_WORDS[name]].split()[0] for name in names if name in _WORDS), None)


def conversion(feature: str, header: str, unit: str, to: str) -> tuple[float, float] | None:
    """Return factor and offset from one unit to another; None if they are not known."""
    known = _SHIFTED.get((_unit(unit), _unit(to)))
    if known is not None and known[0] in (None, _group(feature, header)):
        return known[1:]
    one, other = _dimension(unit), _dimension(to)
    if one is None or other is None:
        return None
    factor = _SCALES[one][_unit(unit)] / _SCALES[other][_unit(to)]
    if one == other:
        return factor, 0.0
    moles = _MOLES.get(_group(feature, header) or "")
    if moles is None or {one, other} != {0, 1}:
        return None
    return factor * (moles / 1000 if one == 1 else 1000 / moles), 0.0
