"""What is shown of stored records."""

from typing import Any, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


def show(model: type[M], record: object, **others: Any) -> M:
    """Return what a model shows of a record: the fields of the same names, and ``others``."""
    names = model.model_fields.keys() - others.keys()
    return model(**{name: getattr(record, name) for name in names}, **others)
