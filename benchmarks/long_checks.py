"""The tests that are too long for every change, or that hold a process against a clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "long", *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
