"""The routes of version 1."""

from fastapi import APIRouter
from fastapi.routing import APIRoute

from fedclust_service.http.routes import (
    about,
    admin,
    audit,
    health,
    participation,
    principals,
    results,
    sessions,
)

ROUTERS: tuple[APIRouter, ...] = (
    # First what is asked in every round: routes are tried in this order.
    participation.tasks_router,
    participation.submissions_router,
    about.router,
    *principals.routers,
    principals.router,
    sessions.studies_router,
    sessions.router,
    participation.router,
    sessions.rounds_router,
    results.router,
    audit.router,
    admin.router,
    health.router,
)


def api_routes() -> list[APIRoute]:
    """Return every route that ``openapi.json`` describes."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
