"""Write ``openapi/examples`` anew: ``python openapi/make_examples.py`` (part of `make openapi`)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.examples import make  # noqa: E402  # found through the line above


def main() -> None:
    """Run a session and keep its bodies."""
    with tempfile.TemporaryDirectory() as place:
        files = make(Path(place))
    shutil.rmtree(HERE / "examples", ignore_errors=True)
    for name, content in files.items():
        path = HERE / "examples" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
