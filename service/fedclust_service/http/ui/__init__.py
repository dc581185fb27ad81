"""Pages in the browser for operators, analysts and sites, below ``/ui``."""

from fedclust_service.http.ui import (
    account_pages,
    operator_pages,
    people_pages,
    result_pages,
    session_action_pages,
    session_form_pages,
    session_pages,
    study_pages,
)

ROUTES = (
    *account_pages.ROUTES,
    *operator_pages.ROUTES,
    *people_pages.ROUTES,
    *result_pages.ROUTES,
    *session_action_pages.ROUTES,
    *session_form_pages.ROUTES,
    *session_pages.ROUTES,
    *study_pages.ROUTES,
)
