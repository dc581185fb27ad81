"""A small file of a site's state, which several processes may change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from fedclust.durable_files import FileLock, private_directory, write_atomically
from fedclust.errors import JournalDamaged
from fedclust.schema.model import Model
from fedclust.site.journal import state_errors

M = TypeVar("M", bound=Model)


class StateFile(Generic[M]):
    """A model as JSON in a private file, which is replaced as a whole.

    Parameters
    ----------
    path : Path
    model : type
        A missing file counts as the model with its default values.
    remedy : str
        What to do if the file is damaged.
    """

    def __init__(self, path: Path, model: type[M], remedy: str) -> None:
        self.path, self._model, self._remedy = path, model, remedy

    def read(self) -> M:
        """Return what the file holds.

        Raises
        ------
        JournalError
            The file cannot be read; JournalDamaged if its contents are not the model's.
        """
        with state_errors(self.path.parent):
            if not self.path.exists():
                return self._model()
            try:
                return self._model.model_validate_json(self.path.read_bytes())
            except ValidationError:
                raise JournalDamaged(
                    f"{self.path} is damaged, or another version of fedclust wrote it: "
                    f"{self._remedy}"
                ) from None

    def update(self, change: Callable[[M], M]) -> None:
        """Replace the contents by what ``change`` makes of them; no other process writes meanwhile.

        Raises
        ------
        JournalError
        """
        with state_errors(self.path.parent):
            private_directory(self.path.parent)
            with FileLock(self.path.with_suffix(".lock")):
                text = change(self.read()).model_dump_json(indent=1)
                write_atomically(self.path, text.encode())
