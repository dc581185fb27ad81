"""The coordinator at one glance, for operators."""

from __future__ import annotations

from starlette.responses import Response

from fedclust_service.domain.access import require
from fedclust_service.http.readiness import faults
from fedclust_service.http.ui.attention import concerns
from fedclust_service.http.ui.page_request import PageRequest, get
from fedclust_service.orchestration import admin


def _overview(page: PageRequest) -> Response:
    require(page.actor, "admin.read")
    found = admin.overview(page.co, page.actor, page.service.settings.data_dir)
    reasons = faults(page.co)
    return page.render(
        "overview.html",
        overview=found,
        concerns=concerns(found.attention, reasons),
        ready=not reasons,
    )


ROUTES = (get("/overview", _overview),)
