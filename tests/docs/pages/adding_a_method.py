"""The blocks are the files of a distribution, which tests/e2e/test_adding_a_method.py installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page

FILES = {
    "pyproject.toml": "[build-system]",
    "fedclust_damped/config.py": "class Config(",
    "fedclust_damped/messages.py": "class ShiftTask(",
    "fedclust_damped/client.py": "def local_step(",
    "fedclust_damped/server.py": "def aggregate(",
    "fedclust_damped/__init__.py": "METHOD: Method",
    "try_damped.py": "import Tried",
    "test_damped.py": "def test_an_honest_shift",
}


@contextmanager
def around(page: Page) -> Iterator[None]:
    for name, text in FILES.items():
        page.file(name, text)
    yield
