"""The mapping file and the options that say how a source is read; see docs/data.md."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    StringConstraints,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from fedclust.data.secret_files import refuse_address
from fedclust.schema.feature import Feature
from fedclust.schema.field_names import nearest_name
from fedclust.schema.model import Model
from fedclust.wire.errors import DataError, UsageError

Text = Annotated[str, StringConstraints(max_length=256)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
_PLAIN_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*)?|[+-]?\.[0-9]+", re.ASCII)
#: Called with a source's name, the rows read so far, and the number of all rows if known.
M = TypeVar("M", bound=Model)
OnRead: TypeAlias = Callable[[str, int, int | None], None]


def _known_encoding(name: str) -> str:
    try:
        "".encode(name)
    except (LookupError, ValueError):
        message = "no such encoding; utf-8, utf-16, cp1252 and latin-1 are common"
        raise PydanticCustomError("encoding", message) from None
    return name


def _usable_delimiter(mark: str) -> str:
    if mark in '"\r\n' or mark.isalnum():
        raise PydanticCustomError("delimiter", "a comma, semicolon, tab or the like")
    return mark


Encoding = Annotated[Text, AfterValidator(_known_encoding)]
Delimiter = Annotated[
    str, StringConstraints(min_length=1, max_length=1), AfterValidator(_usable_delimiter)
]
_ONE_OR_MORE: Final = BeforeValidator(
    lambda given: tuple(given) if isinstance(given, list | tuple) else (given,)
)
#: One number alone, or several.
Numbers = Annotated[tuple[FiniteFloat, ...], _ONE_OR_MORE]
#: A row of a spreadsheet or a line of a file, counted from 1.
RowNumber = Annotated[int, Field(ge=1)]


class ColumnMap(Model):
    """How one feature's column is found and read.

    Attributes
    ----------
    column : str or None
        Its column here; by default the feature's own name.
    unit, to : str or None
        The unit here, and the session's. A session with another unit than ``to`` (than ``unit``,
        without ``to``) is refused.
    factor, offset : float
        session's value = value here x factor + offset. They need ``to``.
    levels : dict
        The session's level of each code here; 0 or 1 for a binary feature. An empty text marks
        the code as a missing value.
    sentinels : tuple of float
        Numbers, in the unit here, that mean a missing value.
    missing : tuple of str
        Text that means a missing value, in addition to the usual markers.
    values : dict
        The number, in the unit here, of each text such as ``<5``, and of numbers that mean another
        one.
    forms : dict
        What the numbers in texts of a form mean, in the unit here; ``#`` is a number. ``#lb`` is
        0.4536 x the number, ``<#`` 0.5 x it, ``#/#`` with ``[1, 0]`` the first one. A further
        number is added; ``[]`` is a missing value.
    lacking : bool
        Whether this site lacks the feature, whatever its columns are called.
    person, time : str or None
        Of a trajectory in a table with a row for each value: the columns with the person, and with
        the time as a number. Without them its columns are columns here, such as ``crea@0``.
    time_factor : float
        session's time = time here x time_factor.
    """

    column: Text | None = None
    unit: Text | None = None
    to: Text | None = None
    factor: FiniteFloat = 1.0
    offset: FiniteFloat = 0.0
    levels: dict[str, str | bool | int] = Field(default_factory=dict)
    sentinels: tuple[FiniteFloat, ...] = ()
    missing: tuple[Text, ...] = ()
    values: dict[str, FiniteFloat] = Field(default_factory=dict)
    forms: dict[str, Numbers] = Field(default_factory=dict)
    lacking: bool = False
    person: Text | None = None
    time: Text | None = None
    time_factor: FiniteFloat = 1.0

    @property
    def long(self) -> bool:
        """Whether the values of a person have a row each."""
        return self.person is not None or self.time is not None


class Format(Model):
    """How a source is written: settings of a mapping file, and options that replace them.

    Attributes
    ----------
    delimiter, encoding, decimal, columns
        The format of a CSV file; ``columns`` names its columns if it has no header.
    sheet, header_row
        Name of the sheet of an Excel workbook, or of several with one header; and the number of the
        row or line with the header, from 1.
    missing : tuple of str
        Text that means a missing value in any column, in addition to the usual markers.
    min_present : float or None
        A feature with a smaller share of values is treated as lacking.
    """

    delimiter: Delimiter | None = None
    encoding: Encoding | None = None
    decimal: Literal[".", ","] | None = None
    columns: tuple[Text, ...] = ()
    sheet: Annotated[tuple[Text, ...], _ONE_OR_MORE] = ()
    header_row: RowNumber | None = None
    missing: tuple[Text, ...] = ()
    min_present: Share | None = None


class ColumnsFile(Format):
    """A mapping file: the format of the source, and its columns by feature.

    ``thousands``: whether the mark that is not the decimal one separates thousands, as in 1.250,5.
    ``rows_of_person``: which of a person's rows count: all together, the first or the last one.
    """

    decimal: Literal[".", ","] = "."
    thousands: bool = False
    rows_of_person: Literal["all", "first", "last"] = "all"
    min_present: Share = 0.0
    features: dict[str, ColumnMap] = Field(default_factory=dict)


class ReadOptions(Format):
    """The options of a :class:`Dataset`, validated.

    ``mapping`` is the path of a mapping file or its contents. ``missing`` and ``sentinels`` are
    added to the file's; all other settings of a :class:`Format` replace them.
    """

    mapping: str | dict[str, Any] | None = None
    missing: Annotated[tuple[Text, ...], _ONE_OR_MORE] = ()
    sentinels: dict[str, Numbers] = Field(default_factory=dict)
    sql_url_file: str | None = None
    out_of_core: bool = False

    def resolved(self) -> ColumnsFile:
        """Read the mapping file and combine it with these options; DataError names the file."""
        base = ColumnsFile()
        if self.mapping is not None:
            base = _mapping_file(self.mapping, self.mapping_name)
        features = dict(base.features)
        for name, values in self.sentinels.items():
            known = features.get(name, ColumnMap())
            sentinels = (*known.sentinels, *values)
            features[name] = known.model_copy(update={"sentinels": sentinels})
        replaced = {
            name: value
            for name in Format.model_fields.keys() - {"missing"}
            if (value := getattr(self, name)) not in (None, (), "")
        }
        missing = (*base.missing, *self.missing)
        return base.model_copy(update={**replaced, "missing": missing, "features": features})

    @property
    def mapping_name(self) -> str:
        """The name of the mapping in messages."""
        return Path(self.mapping).name if isinstance(self.mapping, str) else "the mapping"

    def count_marked(self, mark: str) -> int:
        """Return how many lines of the mapping file are marked as ``to do``, or ``uncertain``."""
        if not isinstance(self.mapping, str):
            return 0
        return Path(self.mapping).read_text("utf-8").count(f"# {mark}:")


class Dataset:
    """A source and how to read it, for participate, check, predict and simulate.

    Parameters
    ----------
    source : Source
        An array, a DataFrame, a path, a :class:`fedclust.data.SqlQuery`, a Dask collection.
    on_read : callable, optional
        Called at the start of every pass over the rows and after each block, with the source's
        name, the rows read so far, and the number of all rows, None if unknown.
    mapping : path or dict, optional
        Local names, units, codes, sentinels and markers by feature: docs/data.md.
    missing : sequence of str
        Text that means a missing value in any column, in addition to the usual markers.
    sentinels : dict of str to number or numbers
        Numbers that mean a missing value, by feature, in the unit here.
    delimiter, encoding, decimal, columns : optional
        The format of a CSV file; ``columns`` names its columns if it has no header.
    sheet, header_row : optional
        Name of the sheet of an Excel workbook, or of several with one header; and the number of the
        row or line with the header, from 1.
    min_present : float, optional
        A feature with a smaller share of values than this is treated as lacking.
    sql_url_file : path, optional
        File with the address of the query's database; by default FEDCLUST_SQL_URL.
    out_of_core : bool
        Read the rows in blocks and keep none of them in memory: docs/data.md.

    Raises
    ------
    UsageError
        An option is invalid, or a database's address was given in place of a file.
    """

    def __init__(self, source: Any, *, on_read: OnRead | None = None, **options: Any) -> None:
        if isinstance(source, (str, os.PathLike)):
            refuse_address(str(source), "the source")
        self.source = source
        self.options = read_options(options)
        self.on_read = on_read
        #: What a person gave for it, such as ``@cohort``, if that is not ``source``.
        self.given: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What is called belongs to this process.
        return {**vars(self), "on_read": None}

    def __repr__(self) -> str:
        # The source's own repr would show rows.
        return f"Dataset({type(self.source).__name__})"

    @classmethod
    def of(
        cls,
        source: Any,
        options: ReadOptions,
        on_read: OnRead | None = None,
        given: str | None = None,
    ) -> Dataset:
        """Return a data set with options that have been checked."""
        made = cls(source, on_read=on_read)
        made.options, made.given = options, given
        return made


def as_dataset(source: Any) -> Dataset:
    """Return a data set as it is, and any other source with the default options."""
    return source if isinstance(source, Dataset) else Dataset(source)


def watch_reading(source: Any, on_read: OnRead) -> Dataset:
    """Return a source whose reading is reported; a data set that reports it already is kept."""
    known = as_dataset(source)
    if known.on_read is not None:
        return known
    return Dataset.of(known.source, known.options, on_read, known.given)


def read_options(
    given: Mapping[str, Any], called: Callable[[str], str] = "{} of the data".format
) -> ReadOptions:
    """Validate options as people give them; UsageError names the first invalid one.

    ``called`` returns what messages call the option of a name.
    """
    for name in ("mapping", "sql_url_file"):
        if isinstance(given.get(name), str | os.PathLike):
            refuse_address(os.fspath(given[name]), called(name))
    said = {name: value for name, value in given.items() if value is not None}
    try:
        return ReadOptions.model_validate_json(json.dumps(said, default=_plain))
    except (ValidationError, TypeError, ValueError) as error:
        place, why = first_fault(error, (ReadOptions.model_fields, ()))
        raise UsageError(f"{called(place) if place else 'an option of the data'}: {why}") from None


def _plain(given: Any) -> Any:
    """Return a path as text, and other collections as lists, for JSON."""
    return os.fspath(given) if isinstance(given, os.PathLike) else list(given)


def _mapping_file(given: str | Mapping[str, Any], source: str) -> ColumnsFile:
    """Return a mapping, of which the path may be given; DataError calls it ``source``."""
    try:
        if isinstance(given, str):
            return read_toml(Path(given), ColumnsFile, ColumnMap.model_fields)
        return _validated(given, ColumnsFile, ColumnMap.model_fields)
    except OSError as error:
        why = error.strerror or "the file cannot be read"
        raise DataError(source, "unreadable", why) from None
    except ValueError as fault:
        raise DataError(source, "mapping", str(fault)) from None


def read_toml(path: Path, model: type[M], deeper: Collection[str]) -> M:
    """Read a file as a model; ValueError says what is wrong, and repeats nothing from there.

    Parameters
    ----------
    path : Path
    model : type
    deeper : collection of str
        The names in its tables; those of the first level are the fields of ``model``.

    Raises
    ------
    OSError
        It cannot be read.
    """
    try:
        # Some editors begin a file with a byte order mark.
        tree = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("this is not TOML in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"this is not TOML: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return _validated(tree, model, deeper)


def _validated(tree: Mapping[str, Any], model: type[M], deeper: Collection[str]) -> M:
    try:
        return model.model_validate_json(json.dumps(dict(tree)))
    except (ValidationError, TypeError, ValueError) as error:
        place, why = first_fault(error, (model.model_fields, deeper))
        raise ValueError(f"{place}: {why}" if place else why) from None


def check_mapping(
    file: ColumnsFile,
    features: Sequence[Feature],
    source: str,
    wrong: dict[str, DataError] | None = None,
) -> None:
    """Refuse a mapping that does not fit the session's features.

    Parameters
    ----------
    file : ColumnsFile
        Features that the session lacks are ignored: a site has one file for many sessions.
    features : sequence of Feature
    source : str
        The mapping's name in messages.
    wrong : dict of str to DataError, optional
        Gets the faults of single features, by name, which are then not raised.

    Raises
    ------
    DataError
    """
    if file.delimiter is not None and file.delimiter == file.decimal == ".":
        raise DataError(source, "mapping", "delimiter and decimal mark cannot be the same")
    taken: dict[str, str] = {}
    for feature in features:
        rule = file.features.get(feature.name)
        column = feature.name if rule is None or rule.column is None else rule.column
        if rule is not None:
            try:
                _check_rule(rule, feature, source)
            except DataError as error:
                if wrong is None:
                    raise
                wrong[feature.name] = error
            if rule.lacking:
                continue
        if column in taken:
            message = f"the features {taken[column]!r} and {feature.name!r} would read one column"
            raise DataError(source, "mapping", message, column=column)
        taken[column] = feature.name


def _check_rule(rule: ColumnMap, feature: Feature, source: str) -> None:
    def refuse(message: str, broken: str = "mapping") -> DataError:
        return DataError(source, broken, f"features.{feature.name}: {message}")

    if rule.factor == 0:
        raise refuse("a factor of 0 would lose the values")
    converted = rule.factor != 1 or rule.offset != 0
    if converted and feature.kind != "numeric":
        raise refuse(f"factor and offset are for numbers; this feature is {feature.kind}")
    if converted and rule.to is None:
        to = json.dumps(feature.unit, ensure_ascii=False)
        raise refuse(f"add the line to = {to}, the unit to which factor and offset lead")
    unit = rule.unit if rule.to is None else rule.to
    if unit is not None and not same_unit(unit, feature.unit):
        message = f"it gives {unit!r} and the session's unit is {feature.unit!r}"
        raise refuse(f"{message}; say factor, offset and to for that one", "unit")
    if rule.long:
        raise refuse("person and time are for a trajectory; the session asks one value a person")
    if rule.levels and feature.kind == "numeric":
        raise refuse("levels are for binary and categorical features")
    if (rule.values or rule.forms) and feature.kind != "numeric":
        raise refuse("values and forms are for numbers; codes of levels go into levels")
    for form, weights in rule.forms.items():
        n_numbers = form.count("#")
        if not n_numbers:
            raise refuse("a form has # in the place of each number; a text without is for values")
        if len(weights) not in (0, n_numbers, n_numbers + 1):
            raise refuse(
                f"the form {form!r} has {n_numbers} numbers: give a factor for each, or [] if it "
                "means a missing value"
            )
        if weights and not any(weights[:n_numbers]):
            raise refuse("factors of 0 would lose the values")
    known_codes: dict[str, str | bool | int] = {}
    for code, value in rule.levels.items():
        if known_codes.setdefault(canonical_code(code), value) != value:
            raise refuse("two spellings of one number stand for different levels")
        if value == "":
            continue
        if feature.kind == "binary" and (isinstance(value, str) or value not in (0, 1)):
            raise refuse("levels of a binary feature are 0 and 1")
        if feature.kind == "categorical" and level_name(value) not in (feature.levels or ()):
            known = ", ".join(map(repr, feature.levels or ()))
            raise refuse(f"the session's levels are {known}")


def same_unit(one: str, other: str) -> bool:
    """Return whether two texts are the same unit: ``mm²`` is ``mm2``, and µ has two code points."""
    return _unit_key(one) == _unit_key(other)


def _unit_key(unit: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", unit).split())


def level_name(value: str | bool | int) -> str:
    """Return the level that a mapping names, which TOML may have read as a number or boolean."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def canonical_code(text: str) -> str:
    """Return a standard spelling of a level's code: ``1``, ``1.0`` and the number 1 are one code.

    Text that is no plain number, such as ``1E3``, and text with leading zeros is not changed.
    """
    text = text.strip()
    if text.casefold() in ("true", "false"):
        return text.casefold()
    if not _PLAIN_NUMBER.fullmatch(text):
        return text
    value = float(text)
    if value == int(value):
        # From 2^53 on, doubles do not represent all integers.
        return str(int(value)) if abs(value) < 2.0**53 else text
    return repr(value)


def number_or_none(text: str) -> float | None:
    """Return the number that a text spells, also an infinite one; None if it spells none.

    Unlike Python, underscores and non-ASCII digits are not accepted.
    """
    if not text.isascii() or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


#: What to write instead, by pydantic's type of the error; ``{name}`` is from its context.
_PLAIN: Final = {
    "string_type": "write text, in quotes",
    "tuple_type": "write a list, in square brackets",
    "float_type": "write a number, without quotes",
    "finite_number": "write a finite number",
    "int_type": "write a whole number, without quotes",
    "bool_type": "write true or false, without quotes",
    "dict_type": "write a table of names and values",
    "model_type": "write a table of settings",
    "literal_error": "write {expected}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "string_too_long": "too long: the limit is {max_length}",
    "string_too_short": "it is empty",
}
#: Levels, of which the errors name each kind that a level may have.
_A_LEVEL: Final = "write the level in quotes, or 0 or 1 for a binary feature"


def first_fault(error: Exception, known: Sequence[Collection[str]]) -> tuple[str, str]:
    """Return the place of the first fault, and what to do, without repeating text from there.

    Parameters
    ----------
    error : ValidationError, TypeError or ValueError
    known : sequence of collection of str
        The settings at the top, and those below the name of a feature.
    """
    if not isinstance(error, ValidationError):
        return "", "only text, numbers, lists and tables can be given"
    found = error.errors(include_url=False)[0]
    location, kind, given = list(found["loc"]), found["type"], found["input"]
    if "levels" in location and len(location) > location.index("levels") + 1:
        location = location[: location.index("levels") + 2]
        return _place(location), _A_LEVEL
    if kind == "extra_forbidden":
        names = known[0 if len(location) == 1 else 1]
        near = nearest_name(str(location[-1]), names)
        meant = f": did you mean {near}?" if near else f"; there are {', '.join(names)}"
        return _place(location), f"there is no such setting{meant}"
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if kind == "string_type" and is_number and "missing" in location:
        below = "" if location[0] == "features" else " below [features.NAME]"
        why = f'write it in quotes ("{given}"), or use sentinels = [{given}]{below}'
        return _place(location), why
    plain = _PLAIN.get(kind)
    return _place(location), plain.format(**found.get("ctx", {})) if plain else found["msg"]


def _place(location: Sequence[Any]) -> str:
    """Return the path of a setting; an entry of a list by its number, from 1."""
    names = ".".join(part for part in location if isinstance(part, str))
    entries = [part + 1 for part in location if isinstance(part, int)]
    return f"{names}, entry {entries[-1]}" if entries else names
