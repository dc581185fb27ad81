"""The way past FastAPI's machinery for what every site asks in every round.

Reading a route's parameters through its declaration, dependency by dependency, costs as much as
answering it. A request of the plain form, which is that of every SDK, is read by its route itself;
any other goes the way that the declaration says, with the same answers and the same refusals.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fedclust_service.http.context import SLUG

#: Answers a request of the plain form; None, and nothing read of it, for any other.
Plain = Callable[[Request], Awaitable[Response] | None]

_NAME = re.compile(SLUG)
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


def direct(plain: Plain) -> type[APIRoute]:
    """Return the class of a route that answers what it can by ``plain``.

    Parameters
    ----------
    plain : callable
        What it raises is answered as elsewhere: the handlers of the application's errors are
        around the router, too.
    """

    class Direct(APIRoute):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            declared = self.app

            async def app(scope: Scope, receive: Receive, send: Send) -> None:
                answer = plain(Request(scope, receive, send))
                if answer is None:
                    await declared(scope, receive, send)
                else:
                    await (await answer)(scope, receive, send)

            self.app = app

    return Direct


def named(request: Request) -> str | None:
    """Return the session's name in the path; None where it is none."""
    found = str(request.path_params["session"])
    return found if _NAME.fullmatch(found) else None


def numbered(request: Request) -> int | None:
    """Return the round's number in the path; None where it is written in another way."""
    found = str(request.path_params["number"])
    return int(found) if _NUMBER.fullmatch(found) else None
