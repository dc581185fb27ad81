"""Stored data that has changed, as clients are told of it: never as an error of theirs."""

from support.damage import change_stored

from .conftest import SITES, Running


def test_a_damaged_session_is_refused_and_has_failed(running: Running) -> None:
    api, path = running.api, "/v1/sessions/damaged"
    api.begin("ada", "damaged", SITES)
    store = running.local.coordinator.store
    seed = (b'"seed":7', b'"seed":8')
    change_stored(store, "sessions", "definition", lambda old: old.replace(*seed), name="damaged")
    for state, why in (("running", None), ("failed", "stored_data_damaged")):
        listed = {each["name"]: each for each in api.ok("GET", "/v1/sessions", "ada")["items"]}
        assert listed["heart"]["definition"]
        found = listed["damaged"]
        assert (found["state"], found["stopped_because"], found["definition"]) == (state, why, None)
        refused = api.request("GET", path, "ada")
        assert refused.status_code == 500
        assert refused.json()["type"] == "urn:fedclust:problem:stored-data-damaged"
    listed = api.ok("GET", "/v1/sessions", "operator")["items"]
    assert all(site["standing"] for each in listed for site in each["sites"])
    assert api.ok("GET", "/v1/admin/overview", "operator")
