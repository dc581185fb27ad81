"""What axe-core finds on a page that keeps somebody from reading or using it."""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

_SERIOUS = {"serious", "critical"}
#: Lines of a table are alike; the contrast of all of them takes most of the time.
_LOOKED_AT = {"exclude": [["tbody tr:nth-child(n+5)"]]}


def found(page: Page, *rules: str) -> list[str]:
    """Return serious and critical violations in words, of all rules or of some."""
    page.wait_for_load_state()
    if page.evaluate("() => typeof window.axe") == "undefined":
        page.evaluate(AXE_SCRIPT)
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    results = page.evaluate("([where, options]) => axe.run(where, options)", [_LOOKED_AT, options])
    return [
        f"{each['id']}: {each['help']}: {', '.join(str(node['target']) for node in each['nodes'])}"
        for each in results["violations"]
        if each["impact"] in _SERIOUS
    ]
