"""Small distributions as ``pip`` would install them: modules, and a ``dist-info`` beside them."""

from collections.abc import Mapping
from pathlib import Path

from fedclust.methods.registry import GROUP


def install(
    place: Path, name: str, methods: Mapping[str, str], files: Mapping[str, str], version: str = "1"
) -> None:
    """Install a distribution into a folder that is, or will be, on the module path.

    Parameters
    ----------
    place : Path
    name : str
    methods : mapping of method name to ``module:attribute``
        Its entry points.
    files : mapping of path to text
        Its modules, by their path below ``place``.
    version : str
    """
    info = place / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{method} = {value}\n" for method, value in methods.items()]
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{''.join(lines)}")
    for path, text in files.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
