"""Name the fields of a definition or a request as the person who wrote them knows them.

Rules are checked here and by the coordinator. Both name a field by a JSON pointer; a command names
the option that the person gave, or the field in the person's file.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import ValidationError

from fedclust.definition import DefinitionError
from fedclust.schema.field_names import field_errors, field_path
from fedclust.wire import errors
from fedclust.wire.problems import FieldError


@dataclass(frozen=True)
class FieldNames:
    """How a command's person knows fields.

    Attributes
    ----------
    options : mapping of str to str
        The option or argument behind a JSON pointer, and behind all pointers below it.
    given : collection of str, optional
        The options that were given; by default all. Fields of others come from ``source``.
    source : str
        What holds the other fields, such as a file; "" for none.
    """

    options: Mapping[str, str]
    given: frozenset[str] | None = None
    source: str = field(default="")

    def name(self, pointer: str) -> str:
        """Return the option behind a pointer, or the field and what holds it."""
        parts = pointer.split("/")
        prefixes = ("/".join(parts[:n]) for n in range(len(parts), 1, -1))
        known = next((each for each in prefixes if each in self.options), None)
        option = None if known is None else self.options[known]
        if option is not None and (self.given is None or option in self.given or not self.source):
            rest = pointer.removeprefix(str(known)).strip("/").split("/")
            if rest[0].isdecimal():
                return f"{option}, entry {int(rest[0]) + 1}"
            return " ".join([option, *filter(None, rest)])
        path = field_path(pointer)
        if not self.source:
            return path
        place = f"{path} in {self.source}" if path else self.source
        return f"{place} (or {option})" if pointer == known else place

    def error(self, faults: Iterable[FieldError]) -> errors.UsageError:
        """Return the error that names each field."""
        said = []
        for fault in faults:
            name = self.name(fault.pointer)
            said.append(f"{name}: {fault.message}" if name else fault.message)
        return errors.UsageError("; ".join(said))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Turn a refusal of a request's contents, here or there, into the command's own error."""
        try:
            yield
        except ValidationError as error:
            raise self.error(field_errors(error)) from None
        except (errors.Invalid, DefinitionError) as error:
            if not error.errors:
                raise
            raise self.error(error.errors) from None
