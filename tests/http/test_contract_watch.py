"""The watch over answers finds what it is for."""

from sqlalchemy import text

from support.contract_watch import MARK, Watch


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
