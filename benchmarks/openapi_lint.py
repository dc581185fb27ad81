"""Whether ``docs/openapi/openapi.json`` keeps the recommended rules of redocly and of spectral.

npm installs both into a temporary folder. It exits with 1 if one of them finds an error.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DESCRIPTION = Path(__file__).parents[1] / "docs" / "openapi" / "openapi.json"
#: `array-items` is of OpenAPI 3.0: in 3.1 `prefixItems` may say all of an array.
RULES = """
extends: spectral:oas
rules:
  array-items: off
"""
RULES_FILE = ".spectral.yaml"
LINTERS = {
    "redocly": ("@redocly/cli@2", ["lint", "--extends=recommended", DESCRIPTION.name]),
    "spectral": ("@stoplight/spectral-cli@6", ["lint", "--ruleset", RULES_FILE, DESCRIPTION.name]),
}


def main() -> int:
    npm = shutil.which("npm")
    if npm is None:
        print("npm is not installed: the description is not linted")
        return 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copy(DESCRIPTION, place)
        (place / RULES_FILE).write_text(RULES, "ascii")
        environment = {**os.environ, "npm_config_cache": str(place / "cache")}
        environment["REDOCLY_TELEMETRY"] = "off"
        packages = [package for package, _ in LINTERS.values()]
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", *packages]
        subprocess.run(install, cwd=place, env=environment, check=True)
        failed = []
        for linter, (_, arguments) in LINTERS.items():
            print(f"-- {linter}", flush=True)
            command = [str(place / "node_modules" / ".bin" / linter), *arguments]
            if subprocess.run(command, cwd=place, env=environment, check=False).returncode:
                failed.append(linter)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
