"""Every page of the showcase that somebody can open, by role: for tests and screenshots."""

from __future__ import annotations

#: The path of each page by its name, for each reader; ``visitor`` has not signed in.
PAGES: dict[str, dict[str, str]] = {
    "visitor": {"home": "/", "sign-in": "/ui/sign-in"},
    "operator": {
        "account": "/ui/account",
        "overview": "/ui/overview",
        "sites": "/ui/sites",
        "site": "/ui/sites/basel",
        "analysts": "/ui/analysts",
        "operators": "/ui/operators",
        "register-site": "/ui/register/sites",
        "disable-site": "/ui/sites/basel/disable",
    },
    "ada": {
        "account": "/ui/account",
        "consent": "/ui/sessions/tumours-2026/consent?site=turku",
        "sites": "/ui/sites",
        "site": "/ui/sites/basel",
        "new-session": "/ui/new-session",
        "new-session-copied": "/ui/new-session?from=tumours-2026",
        "new-session-hostile": "/ui/new-session?from=hostile",
        "result": "/ui/sessions/tumours-2026/result",
        "result-of-k": "/ui/sessions/tumours-2026/result?k=3",
    },
    "basel": {
        "account": "/ui/account",
        "consent": "/ui/sessions/cells-spring/consent",
        "consent-hostile": "/ui/sessions/hostile/consent",
        "receipts": "/ui/sessions/tumours-2026/receipts",
        "result": "/ui/sessions/tumours-2026/result",
        "receipts-none": "/ui/sessions/hostile/receipts",
    },
}
