"""How every benchmark reports: a table for people, JSON for comparisons."""

from __future__ import annotations

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


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table and write them to ``benchmarks/results/<name>.json``."""
    table = Table(*rows[0], title=name, box=None)
    for row in rows:
        table.add_row(
            *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        )
    # Not cut to a terminal's width where there is none.
    Console(width=None if os.isatty(1) else 160).print(table)
    RESULTS.mkdir(exist_ok=True)
    document = {
        "benchmark": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "fedclust": version("fedclust"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
        "rows": list(rows),
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
