"""The tests that take too long for every change, or that measure time.

Also runs property tests with other random examples than those of every change.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *which, *sys.argv[1:]], cwd=ROOT, check=False
        ).returncode
        for which in (["-m", "long"], ["-m", "hypothesis", "--hypothesis-profile=other"])
    ]
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
