"""What somebody does to a session, a study or an account, with a page that says the consequence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from fedclust_service.domain.access import Refusal, require
from fedclust_service.http.ui.page_request import PageRequest, get, post


@dataclass(frozen=True)
class Action:
    """An action with its page at ``path``, for those who have the ``right``.

    ``show`` returns what the template shows; its ``refusal`` is what stands against the action, if
    anything. ``act`` does it. ``notice`` is shown afterwards, on the page ``leads_to``.
    """

    path: str
    template: str
    right: str
    show: Callable[[PageRequest], Mapping[str, object]]
    act: Callable[[PageRequest], object]
    notice: str
    leads_to: str

    @property
    def routes(self) -> tuple[Route, Route]:
        """The page and its form."""
        return get(self.path, self._page), post(self.path, self._post)

    def _page(self, page: PageRequest, refused: Refusal | None = None) -> Response:
        require(page.actor, self.right)
        values = {"refusal": None, **self.show(page)}
        if refused is not None:
            values["refusal"] = refused
        status = 200 if refused is None else refused.status
        return page.render(self.template, status=status, **values)

    def _post(self, page: PageRequest) -> Response:
        """Do it and lead on; show a refusal on the page of the action."""
        require(page.actor, self.right)
        try:
            self.act(page)
        except Refusal as refusal:
            if refusal.status not in (409, 422):
                raise
            return self._page(page, refusal)
        path = self.leads_to.format(**page.request.path_params)
        return page.redirect(path, self.notice, k=page.query("k"))
