"""Lists and the overview of a coordinator with many sessions."""

from pathlib import Path

from fedclust_service.domain.access import AuditSearch
from fedclust_service.usecases import admin, sessions, studies
from fedclust_service.usecases.audit import verify_audit
from fedclust_service.usecases.sessions import list_completed
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from support.many_sessions import SITES, fill, session_name
from usecases.direct_api import ANALYST, OPERATOR, DirectApi, site


def test_what_each_role_reads(both: DirectApi, tmp_path: Path) -> None:
    co, now = both.co, both.clock.now()
    fill(both.store, now, sessions=20, entries=2)
    for reader, n in ((OPERATOR, 20), (ANALYST, 10), (site("hospital-03"), 20)):
        found = sessions.list_sessions(co, reader).items
        assert len(found) == n
        assert found[-1].name == session_name(0)
        assert all(each.definition.name == each.name for each in found)
        assert {len(each.sites) for each in found} == {SITES}
        completed = {
            each.name: each.definition.title for each in found if each.state == "completed"
        }
        assert [*list_completed(co, reader).items()] == [*completed.items()]
        assert len(studies.list_studies(co, reader).items) in (25, 50)
    first = sessions.list_sessions(co, OPERATOR, 15)
    rest = sessions.list_sessions(co, OPERATOR, 15, first.next)
    assert (len(first.items), len(rest.items), rest.next) == (15, 5, None)
    late = rest.items[-1]
    assert (late.state, late.round) == ("running", 2)
    assert late.deadline < now
    assert [each.answered for each in late.sites].count(True) == 19
    assert [each.name for each in late.sites if each.late] == ["hospital-20"]
    seen = admin.overview(co, OPERATOR, tmp_path)
    assert seen.sessions["completed"] == 10
    assert [each.subject for each in seen.attention if each.kind == "round-late"] == [late.name]
    audit = admin.list_audit(co, OPERATOR, search=AuditSearch(part="session-0007"))
    assert len(audit.items) == 2
    step = verify_audit(co, OPERATOR)
    assert (step.done, step.faults, step.entries, step.unsealed) == (True, (), 40, 0)
