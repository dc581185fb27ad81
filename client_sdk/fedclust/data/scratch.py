"""Room on disk for a number or so of each row: arrays that memory need not hold.

Files without a name: nobody else can open them, and they are gone with the process that made them,
however it ends. They hold labels, digests and counts of rows, and of yes/no columns which rows are
on which side; never a row.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.errors import DataError

__all__ = ["Scratch"]


class Scratch:
    """Makes arrays in a folder; by default the system's for temporary files (``TMPDIR``)."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    def array(self, shape: tuple[int, ...], kind: type[np.generic]) -> NDArray[Any]:
        """Return an array of zeros; DataError where there is no room for it."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        if not size:
            return np.zeros(shape, dtype=kind)
        try:
            with tempfile.TemporaryFile(prefix="fedclust-", dir=self._folder) as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):
                    # Now, or a full disk would end the process at some later write.
                    os.posix_fallocate(file.fileno(), 0, size)
                room = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise self._fault(error) from None
        return np.frombuffer(room, dtype=kind).reshape(shape)

    def written(self, parts: Iterable[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
        """Return one array (n,) of parts whose number is not known before."""
        try:
            with tempfile.TemporaryFile(prefix="fedclust-", dir=self._folder) as file:
                for part in parts:
                    file.write(part.astype(kind, copy=False).tobytes())
                file.flush()
                size = file.tell()
                if not size:
                    return np.zeros(0, dtype=kind)
                room = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise self._fault(error) from None
        return np.frombuffer(room, dtype=kind)

    def _fault(self, error: OSError) -> DataError:
        place = self._folder or tempfile.gettempdir()
        message = f"no room for arrays on disk ({error.strerror}); --scratch names another folder"
        return DataError(place, "scratch", message)
