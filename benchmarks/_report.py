"""How every benchmark reports: a table for people, JSON for comparisons."""

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def write(
    name: str,
    rows: Sequence[dict[str, Any]],
    *,
    note: str = "",
    hidden: Sequence[str] = (),
) -> None:
    """Print rows as a table and write them to ``benchmarks/results/<name>.json``.

    ``note`` says under which conditions; columns in ``hidden`` are written, not printed.
    """
    shown = [column for column in rows[0] if column not in hidden]
    table = Table(*shown, title=name, box=None)
    for row in rows:
        table.add_row(*(cell(row[column]) for column in shown))
    # Not cut to a terminal's width where there is none.
    console = Console(width=None if os.isatty(1) else 160)
    console.print(table)
    if note:
        console.print(note, markup=False, highlight=False)
    RESULTS.mkdir(exist_ok=True)
    document = {
        "benchmark": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "fedclust": version("fedclust"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
        "note": note,
        "hidden": list(hidden),
        "rows": list(rows),
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def cell(value: Any) -> str:
    """Return a figure as tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
