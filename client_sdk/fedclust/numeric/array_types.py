"""Names for the types of arrays."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
#: Fingerprints of values.
ByteArray: TypeAlias = NDArray[np.uint8]
#: Hashes of 64 bits.
WordArray: TypeAlias = NDArray[np.uint64]
#: Keys of persons: bytes of length 16.
KeyArray: TypeAlias = NDArray[Any]
