"""JSON that people write or hand on: models, definitions, options."""

import json
import math
from typing import Any, NoReturn

from fedclust.wire.errors import UsageError


def read_json(text: str | bytes, source: object) -> Any:
    """Parse JSON that no two programs read differently.

    Parameters
    ----------
    text : str or bytes
        Bytes are UTF-8.
    source : object
        What messages call the text.

    Returns
    -------
    object

    Raises
    ------
    UsageError
        The text is not JSON, is nested too deeply, holds NaN or an infinity, half of a pair of
        characters, or an object with the same key twice.
    """

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise UsageError(f"{source}: one object has the key {key!r} twice: keep one")
            found[key] = value
        return found

    def refuse(name: str) -> NoReturn:
        raise UsageError(f"{source}: JSON has no number {name}: write null, or leave it out")

    def finite(number: str) -> float:
        value = float(number)
        return value if math.isfinite(value) else refuse(number[:20])

    try:
        plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        tree = json.loads(
            plain, object_pairs_hook=distinct, parse_constant=refuse, parse_float=finite
        )
        json.dumps(tree, ensure_ascii=False).encode()
    except UsageError:  # a ValueError, too
        raise
    except UnicodeDecodeError:
        raise UsageError(f"{source}: this is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{source}, line {error.lineno}: this is not JSON ({error.msg})") from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"{source}: it is nested too deeply, or holds a number with too many digits or half of "
            "a pair of characters (\\ud800)"
        ) from None
    return tree
