"""How much code there is: ``python tests/support/code_lines.py``, a part of `make lint`.

pyproject.toml has the limits, ``[tool.fedclust.code-lines]``. Lower them when code goes. A commit
that raises them says what it bought.
"""

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: By the name of its limit: the folders that are counted together.
COUNTED = {
    "product": ("client_sdk/fedclust", "service/fedclust_service"),
    "plug-ins": ("client_sdk/fedclust_dual", "client_sdk/fedclust/flower"),
    "tests": ("tests", "tests_flower"),
}

#: The built documentation, which offers an example to download.
_BUILT = "service/fedclust_service/http/help"

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(path: Path) -> int:
    """Return the lines of a Python file that are neither blank, comment nor docstring."""
    source = path.read_text("utf-8")
    lines = {
        number
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for number in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        # A text alone is a docstring: of a module, class or function, or of the field above it.
        match node:
            case ast.Expr(ast.Constant(str())):
                lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _counted_in(folder: Path) -> int:
    """Return the lines of a folder without those of a plug-in in it."""
    apart = [ROOT / each for each in (*COUNTED["plug-ins"], _BUILT) if ROOT / each != folder]
    files = [path for path in folder.rglob("*.py") if not set(apart) & set(path.parents)]
    return sum(map(code_lines, files))


def main() -> int:
    """Print each count with its limit, and return 1 if one is exceeded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    limits = project["tool"]["fedclust"]["code-lines"]
    exceeded = False
    for name, folders in COUNTED.items():
        lines, limit = sum(_counted_in(ROOT / folder) for folder in folders), limits[name]
        said = f"{lines - limit} too many" if lines > limit else "fits"
        print(f"code lines of {name}: {lines}, limit {limit}: {said}")  # noqa: T201
        exceeded = exceeded or lines > limit
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
