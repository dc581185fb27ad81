"""Write ``examples/`` and the examples of ``openapi.json`` anew (part of `make openapi`)."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from method_bodies import record_methods  # noqa: E402  # found through the line above
from operation_bodies import record_operations  # noqa: E402
from recorded import FILE  # noqa: E402


def main() -> None:
    """Run a session and keep its bodies."""
    with tempfile.TemporaryDirectory() as place:
        files = record_methods(Path(place) / "methods")
        story = record_operations(Path(place) / "story")
    FILE.write_text(json.dumps(story, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
    shutil.rmtree(HERE / "examples", ignore_errors=True)
    for name, content in files.items():
        path = HERE / "examples" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
