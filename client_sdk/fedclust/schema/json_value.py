"""Definitions as Python writes them, in the types that JSON has."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from fedclust.schema.model import Model


def json_value(value: Any) -> Any:
    """Return mappings, sequences, arrays, times and models as JSON has them."""
    if isinstance(value, Model):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple, range)):
        return [json_value(item) for item in value]
    return value
