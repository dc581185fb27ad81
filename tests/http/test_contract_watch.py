"""The watch over answers finds what it is for."""

from sqlalchemy import text

from support.contract_watch import MARK, Sent, Watch


def test_a_changed_title_is_in_the_audit_trail(watch: Watch) -> None:
    api, watching = watch.api, watch

    def entries() -> list[str]:
        with watching._engine.connect() as connection:
            found = connection.execute(text("SELECT action FROM audit WHERE subject LIKE '%other'"))
            return [row[0] for row in found]

    before = len(entries())
    for _ in range(2):  # the second changes nothing
        api.ok("PATCH", "/v1/sites/other", "operator", json={"title": "Anew"})
    assert entries()[before:] == ["site.titled"]


def test_an_excluded_site_is_refused_the_result_as_the_description_says(watch: Watch) -> None:
    api, watching = watch.api, watch
    api.define("bob", "without-oslo", ["lima", "oslo", "rome"], start="manual")
    api.ok("DELETE", "/v1/sessions/without-oslo/participation/oslo", "bob")
    before = dict(watching.findings.faults)
    path = "/v1/sessions/without-oslo/result"
    assert watching.send(Sent("get_result", "GET", path, "oslo", b"", {})).status_code == 403
    assert watching.findings.faults == before


def test_a_watch_finds_each_kind_of_fault(watch: Watch) -> None:
    api, good = watch.api, watch
    watching = Watch(api, str(good._engine.url))
    problem = {"content-type": "application/problem+json"}
    watching.judge("get_site", 500, "{}", problem, [])
    watching.judge("get_site", 409, "{}", problem, [])
    other = '{"type":"urn:fedclust:problem:round-closed"}'
    watching.judge("get_site", 404, other, problem, [])
    watching.judge("get_site", 404, "<html>", {"content-type": "text/html"}, [])
    watching.judge("get_site", 404, f'{{"detail": "{MARK}"}}', problem, [f"/v1/sites/{MARK}"])
    watching.judge("get_site", 404, '{"detail": "qzxvkwpj!"}', problem, ["/v1/sites/qzxvkwpj!"])
    watching.judge("get_site", 404, "{}", {**problem, "x": "qzxvkwpj!"}, ["qzxvkwpj!"])
    watching.judge("create_site", 201, "{}", {}, [])
    with good._engine.begin() as connection:
        connection.execute(text("UPDATE principals SET title = 'x' WHERE name = 'other'"))
    watching.judge("get_site", 200, "{}", {}, [])
    watching.judge("put_submission", 422, "{}", problem, [])
    assert {kind: len(found) for kind, found in watching.findings.faults.items()} == {
        "server errors": 1,
        "undocumented statuses": 2,
        "errors without a problem": 1,
        "echoes": 3,
        "rows outside the audit": 3,
    }
    watching.close()
