"""Print the words of every page in the site's menu, and their sum: ``python docs/menu_words.py``.

The menu is what the toctrees of ``index.md`` reach. Text that autodoc takes from the code is not
counted.
"""

import re
from pathlib import Path

HERE = Path(__file__).parent

_TREE = re.compile(r"^(?:```\{toctree\}|\.\. toctree::)\n(.*?)(?:^```|\Z)", re.DOTALL | re.M)


def count() -> dict[str, int]:
    """Return the number of words by page, the longest page first."""
    found: dict[str, int] = {}
    waiting = [HERE / "index.md"]
    while waiting:
        page = waiting.pop()
        name = page.relative_to(HERE).as_posix()
        if name in found:
            continue
        text = page.read_text("utf-8")
        found[name] = len(text.split())
        for tree in _TREE.findall(text):
            names = [line.strip() for line in tree.splitlines()]
            files = [page.parent / f"{line}{end}" for line in names for end in (".md", ".rst")]
            waiting += [path for path in files if path.is_file()]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def main() -> None:
    """Print a line a page, and the sum."""
    words = count()
    for name, number in words.items():
        print(f"{number:7,} {name}")
    print(f"{sum(words.values()):7,} words on {len(words)} pages")


if __name__ == "__main__":
    main()
