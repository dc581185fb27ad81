"""The cookie of a reader who has signed in."""

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

#: A browser accepts the prefix `__Host-` only over HTTPS, and then from this host alone.
_SECURE, _LOOPBACK = "__Host-fedclust", "fedclust"


def _name(secure: bool) -> str:
    return _SECURE if secure else _LOOPBACK


def cookie_of(connection: HTTPConnection) -> str | None:
    """Return the text of the reader's cookie, None without one."""
    return connection.cookies.get(_name(connection.url.scheme == "https"))


def set_cookie(request: Request, response: Response, text: str) -> None:
    """Give the browser a cookie. It keeps it until it is closed; the coordinator ends it sooner."""
    secure = request.url.scheme == "https"
    response.set_cookie(
        _name(secure), text, path="/", secure=secure, httponly=True, samesite="strict"
    )


def delete_cookie(request: Request, response: Response) -> None:
    """Have the browser forget its cookie."""
    secure = request.url.scheme == "https"
    response.delete_cookie(_name(secure), path="/", secure=secure, httponly=True, samesite="strict")
