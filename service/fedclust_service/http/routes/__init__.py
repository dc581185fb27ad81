"""The routes of version 1, one module for each thing they are about."""

from fastapi import APIRouter
from fastapi.routing import APIRoute

from fedclust_service.http.routes import (
    about,
    admin,
    events,
    health,
    participation,
    principals,
    results,
    rounds,
    sessions,
    site_tables,
    studies,
    submissions,
    tasks,
)

ROUTERS: tuple[APIRouter, ...] = (
    # First what is asked in every round: routes are tried in this order.
    tasks.router,
    submissions.router,
    about.router,
    *principals.routers,
    site_tables.router,
    studies.router,
    sessions.router,
    participation.router,
    rounds.router,
    results.router,
    events.router,
    admin.router,
    health.router,
)


def api_routes() -> list[APIRoute]:
    """Return every route that ``openapi.json`` describes."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
