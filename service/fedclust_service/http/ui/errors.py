"""Refusals and failures as pages that say what to do."""

import re
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from fedclust_service.domain.access import Refusal
from fedclust_service.http.dependencies import context_of
from fedclust_service.http.sign_in import cookie_of, delete_cookie
from fedclust_service.http.ui.rendering import HTML, POLICY, address, render

_SIGN_IN = "/ui/sign-in"
#: Where a reader may be led after signing in: a page of this coordinator.
OWN_PAGE = re.compile(r"/ui/[a-z0-9/-]{0,300}")


def show_refusal(request: Request, refusal: Refusal) -> Response:
    """Return the page of a refusal; who has to sign in is led to where that is done."""
    if refusal.status == 401:
        return _to_sign_in(request, refusal)
    problem = refusal.to_problem()
    values = {"problem": problem, "request_id": context_of(request).request_id}
    headers = refusal.retry_headers
    asked_by_page = request.method == "GET" and request.headers.get("HX-Request") == "true"
    if refusal.status == 404 and asked_by_page:
        # What an open page shows is gone. The page, loaded again, says so and asks no more.
        headers = {**headers, "HX-Refresh": "true"}
    return render(request, "refusal.html", values, status=problem.status, headers=headers)


def _to_sign_in(request: Request, refusal: Refusal) -> Response:
    path, again = request.url.path, getattr(request.state, "again", False)
    if request.headers.get("HX-Request") == "true":
        # A script of the page asked for a part of it. Load the whole page, which says why the
        # sign-in ended and leads back. A page that holds typed text stays.
        here = urlsplit(request.headers.get("HX-Current-URL", "")).path
        back = here if OWN_PAGE.fullmatch(here) else _SIGN_IN
        return Response(status_code=401, headers={} if again else {"HX-Redirect": back})
    own = OWN_PAGE.fullmatch(path) is not None
    reads = request.method == "GET"
    if own and reads and request.headers.get("Sec-Fetch-Site") in {"cross-site", "same-site"}:
        # A browser withholds the cookie when a link elsewhere, as in an e-mail, leads here. The
        # same address, asked for by a page of this coordinator, comes with it.
        headers = {"Refresh": f"0;url={path}", "Content-Security-Policy": POLICY}
        return Response("", headers=headers, media_type=HTML)
    sent = cookie_of(request) is not None
    if sent or not reads:
        # Say why the sign-in ended.
        lost = "" if reads else " What you sent was not done."
        if again:
            lost += " Sign in: another tab opens. Then load this page again to send it once more."
        wanted = path if own and reads else ""
        values = {"next": wanted, "failure": f"{refusal.detail}{lost}", "again": again}
        response = render(request, "sign_in.html", values, status=401)
        if sent:  # a form from elsewhere comes without it, and must not sign anybody out
            delete_cookie(request, response)
        return response
    leads = path if own and path != "/ui/" else None
    return RedirectResponse(address(_SIGN_IN, next=leads), 303)
