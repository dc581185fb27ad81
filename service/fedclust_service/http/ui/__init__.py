"""Pages in the browser for operators, analysts and sites, below ``/ui``."""

from starlette.routing import Mount, Router

from fedclust_service.http.ui import (
    account_pages,
    operator_pages,
    people_pages,
    result_pages,
    session_action_pages,
    session_events,
    session_form_pages,
    session_pages,
    study_pages,
)

_PAGES = (
    account_pages,
    operator_pages,
    people_pages,
    result_pages,
    session_action_pages,
    session_events,
    session_form_pages,
    session_pages,
    study_pages,
)


_ROUTER = Router(
    routes=[route for module in _PAGES for route in module.ROUTES], redirect_slashes=False
)
#: All pages as one mount.
PAGES = Mount("/ui", app=_ROUTER)
