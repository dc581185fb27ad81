"""Every page of the showcase that somebody can open, by role: for tests and screenshots."""

from __future__ import annotations

#: The path of each page by its name, for each reader; ``visitor`` has not signed in.
PAGES: dict[str, dict[str, str]] = {
    "visitor": {"home": "/", "sign-in": "/ui/sign-in"},
    "operator": {
        "account": "/ui/account",
    },
    "ada": {
        "account": "/ui/account",
    },
    "basel": {
        "account": "/ui/account",
    },
}
