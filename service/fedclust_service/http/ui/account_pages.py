"""Sign in and out, and the sign-ins that are open."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from fedclust_service.domain.access import Refusal
from fedclust_service.http.dependencies import context_of, service_of
from fedclust_service.http.sign_in import SignInRate, cookie_of, delete_cookie, set_cookie
from fedclust_service.http.ui.errors import OWN_PAGE
from fedclust_service.http.ui.page_request import (
    Form,
    PageRequest,
    authenticated,
    get,
    open_route,
    post,
    read_form,
    require_same_origin,
)
from fedclust_service.http.ui.rendering import entries_for, render
from fedclust_service.usecases import sign_ins

#: Nobody is known yet, so little is read.
_MOST_BYTES = 1 << 12


def _begin(page: PageRequest) -> Response:
    """Lead a reader to the first page of the role."""
    return RedirectResponse(entries_for(page.actor.role)[0].path, 303)


async def _sign_in_form(request: Request) -> Response:
    try:
        page = await run_in_threadpool(authenticated, request)
    except Refusal:
        wanted = _own_page(request.query_params.get("next", ""))
        return render(request, "sign_in.html", {"next": wanted, "failure": None})
    return _begin(page)


async def _sign_in(request: Request) -> Response:
    require_same_origin(request)
    form = await read_form(request, _MOST_BYTES)
    return await run_in_threadpool(_exchange, request, form)


def _exchange(request: Request, form: Form) -> Response:
    rate: SignInRate = request.app.state.sign_in_rate
    address = "" if request.client is None else request.client.host
    wanted = _own_page(form.get("next", ""))
    co, token = service_of(request).coordinator, form.get("token", "").strip()
    known = sign_ins.known_token(co, token)
    try:
        rate.check(address, known)
        cookie, signed = sign_ins.sign_in(co, token)
    except Refusal as refusal:
        if refusal.status not in (401, 429):
            raise
        if refusal.retry_after_s is None:
            rate.failed(address, known)
        values = {"next": wanted, "failure": refusal.detail}
        headers = refusal.retry_headers
        return render(request, "sign_in.html", values, status=refusal.status, headers=headers)
    context_of(request).identify(signed.actor)
    # The browser forgets the cookie of an earlier sign-in: nobody could end that one.
    sign_ins.sign_out(co, cookie_of(request) or "")
    response = RedirectResponse(wanted or entries_for(signed.actor.role)[0].path, 303)
    set_cookie(request, response, cookie)
    return response


def _own_page(path: str) -> str:
    return path if OWN_PAGE.fullmatch(path) else ""


def _account(page: PageRequest) -> Response:
    return page.render(
        "account.html", signed=page.signed, sign_ins=sign_ins.list_sign_ins(*page.caller)
    )


def _sign_out(page: PageRequest) -> Response:
    sign_ins.sign_out(page.co, page.cookie)
    return _left(page)


def _sign_out_everywhere(page: PageRequest) -> Response:
    sign_ins.sign_out_everywhere(page.co, page.signed)
    return _left(page)


def _left(page: PageRequest) -> Response:
    response = RedirectResponse("/", 303)
    delete_cookie(page.request, response)
    return response


ROUTES = (
    get("/", _begin),
    open_route("/sign-in", _sign_in_form, "GET"),
    open_route("/sign-in", _sign_in, "POST"),
    get("/account", _account),
    post("/sign-out", _sign_out),
    post("/sign-out-everywhere", _sign_out_everywhere),
)
