"""Studies: the list, one study with its sessions, and its deletion."""

from starlette.responses import Response

from fedclust.definition.study import StudyInfo
from fedclust.result.session_terms import feature_text
from fedclust.result.wording import named_values
from fedclust.result.worth_asking import points_of_study
from fedclust_service.domain.access import Role
from fedclust_service.http.ui.page_request import Action, PageRequest, get
from fedclust_service.http.ui.rendering import address
from fedclust_service.usecases import sessions

_PATH = "/studies"
#: Sessions of a study on its page; the list of all sessions has the others.
_MOST_SESSIONS = 100


def _list(page: PageRequest) -> Response:
    cursor = page.query("cursor")
    found = sessions.list_studies(*page.caller, cursor=cursor)
    return page.render(
        "studies.html",
        studies=found.items,
        older=found.next and address(f"/ui{_PATH}", cursor=found.next),
        first=f"/ui{_PATH}" if cursor else None,
        may_create=page.actor.role is not Role.SITE,
    )


def _read(page: PageRequest) -> Response:
    study = sessions.get_study(*page.caller, page.param("study"))
    found = sessions.list_sessions(*page.caller, _MOST_SESSIONS, study=study.name)
    return page.render(
        "study.html",
        study=study,
        agreed=_agreed(study),
        features=[feature_text(each) for each in study.features or ()],
        points=points_of_study(study.features or ()),
        sessions=found.items,
        more=study.n_sessions - len(found.items),
        may_manage=page.actor.role is not Role.SITE,
    )


def _agreed(study: StudyInfo) -> list[tuple[str, str]]:
    """Return what all sessions of a study start with, as far as the reader may see it."""
    if study.defaults is None:
        return []
    given = study.defaults.model_dump(mode="json", exclude_unset=True)
    names = {"algorithm": "Method", "config": "Options", "policy": "Policy", "start": "Start"}
    return [
        (label, named_values(given[name]) if isinstance(given[name], dict) else str(given[name]))
        for name, label in names.items()
        if given.get(name)
    ]


def _doomed(page: PageRequest) -> dict[str, object]:
    return {"study": sessions.get_study(*page.caller, page.param("study"))}


def _delete(page: PageRequest) -> None:
    sessions.delete_study(*page.caller, page.param("study"))


_DELETION = Action(
    f"{_PATH}/{{study}}/delete",
    "study_delete.html",
    "study.manage",
    _doomed,
    _delete,
    "study-deleted",
    f"/ui{_PATH}",
)
ROUTES = (get(_PATH, _list), get(f"{_PATH}/{{study}}", _read), *_DELETION.routes)
