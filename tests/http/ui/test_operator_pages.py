"""The pages of operators: the overview, people with their tokens, and the audit trail."""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from html import unescape
from pathlib import Path
from typing import get_args

import pytest

from fedclust_service.domain.overview import Attention, AttentionKind
from fedclust_service.http import docs
from fedclust_service.http.ui import operator_pages
from fedclust_service.http.ui.rendering import ENVIRONMENT
from fedclust_service.store.backup import restore
from fedclust_service.usecases.admin import list_audit
from fedclust_service.usecases.audit import verify_audit
from fedclust_service.usecases.sweeper import sweep
from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.damage import change_stored
from support.local_coordinator import LocalCoordinator
from support.reader import Reader
from support.showcase import HEBREW, LONG, MARKUP

ROOT = Path(__file__).parents[3]

SITES = ["north", "south", "west"]


class Place:
    """A coordinator with three sites, an analyst, and a session that waits for a late site."""

    def __init__(self, local: LocalCoordinator) -> None:
        self.local = local
        self.api = ApiCaller.found(local, SITES)
        self.api.begin("ada", "heart", SITES)
        local.coordinator.clock.advance(90_000)
        sweep(local.coordinator)
        self.readers = {name: self.api.reader(name) for name in ("operator", "ada", "north")}

    def entries(self, action: str) -> list[dict[str, object]]:
        path = f"/v1/admin/audit?action={action}"
        return list(self.api.ok("GET", path, self.local.operator_token)["items"])


@pytest.fixture(scope="module")
def place(served: LocalCoordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("operators")
    (folder / "index.html").write_text("the documentation", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docs, "_SITE", folder)
        yield Place(served)


@pytest.fixture
def operator(place: Place) -> Reader:
    return place.readers["operator"]


def token_in(page: str) -> str:
    found = re.search(r'<code class="secret">([^<]+)</code>', page)
    assert found is not None, page
    return found.group(1)


# --- who may open what ----------------------------------------------------------------------------


def test_an_analyst_reads_sites_without_addresses_tokens_and_tables(place: Place) -> None:
    place.api.ok("PATCH", "/v1/sites/north", "operator", json={"email": "it@north.example"})
    ada = place.readers["ada"]
    for path in ("/ui/sites", "/ui/sites/north"):
        shown = ada.open(path)
        assert "north" in shown
        assert "it@north.example" not in shown
        assert "Register" not in re.sub("Registered", "", shown)
        assert "Tokens" not in shown
        assert "Protected tables" not in shown
    operator = place.readers["operator"]
    assert "it@north.example" in operator.open("/ui/sites")
    assert "Protected tables" in operator.open("/ui/sites/south")
    assert "Protected tables" not in operator.open("/ui/analysts/ada"), "only sites have tables"


# --- sites, analysts, operators -------------------------------------------------------------------


def test_a_site_is_registered_gets_a_token_and_signs_in_with_it(
    place: Place, operator: Reader
) -> None:
    fields = [("name", "basel"), ("title", "Basel"), ("email", "it@basel.example")]
    answer = operator.post("/ui/register/sites", fields)
    assert answer.headers["Location"] == "/ui/sites/basel?notice=registered"
    registered = operator.open(answer.headers["Location"])
    assert "Next: issue the first token" in registered
    issued = operator.post("/ui/sites/basel/tokens", [("expires_in_days", "90")])
    assert (issued.status_code, issued.headers["Cache-Control"]) == (200, "no-store")
    token = token_in(issued.text)
    assert f"export FEDCLUST_COORDINATOR={place.local.base_url}\n" in issued.text
    assert "fedclust doctor" in issued.text
    # Nowhere else, ever again.
    site = operator.open("/ui/sites/basel")
    assert token not in site
    assert "Next: issue" not in site
    place.api.reader(token).open("/ui/account")
    (entry,) = (each for each in place.entries("site.created") if each["subject"] == "site:basel")
    assert (entry["actor"], entry["details"]) == ("operator:operator", {"via": "page"})
    again = operator.post("/ui/register/sites", fields)
    assert again.headers["Location"] == "/ui/sites/basel?notice=registered-before"


def test_a_token_is_revoked_after_a_confirmation_that_says_the_consequence(
    place: Place, operator: Reader
) -> None:
    token = token_in(operator.post("/ui/sites/west/tokens", [("expires_in_days", "9")]).text)
    reader = place.api.reader(token)
    path = f"/ui/sites/west/tokens/{token.split('_')[1]}/revoke"
    assert path in operator.open("/ui/sites/west")
    said = " ".join(operator.open(path).split())
    assert "at once and forever" in said
    assert "west has 1 other valid token " in said
    reader.open("/ui/account")
    answer = operator.post(path)
    assert answer.headers["Location"] == "/ui/sites/west?notice=token-revoked"
    assert "has been revoked" in reader.open("/ui/account", status=401)
    assert path not in operator.open("/ui/sites/west")
    first = place.api.tokens["west"].split("_")[1]
    said = operator.open(f"/ui/sites/west/tokens/{first}/revoke")
    assert "west has no other valid token" in said


def test_the_last_operator_token_stays(place: Place, operator: Reader) -> None:
    own = place.local.operator_token.split("_")[1]
    path = f"/ui/operators/operator/tokens/{own}/revoke"
    assert "signs you out" in operator.open(path)
    for refused in (operator.post(path), operator.post("/ui/operators/operator/disable")):
        assert refused.status_code == 409
        assert "last valid" in " ".join(refused.text.split())
        assert "Issue another operator token first" in refused.text
    operator.open("/ui/account")


def test_a_site_is_disabled_and_enabled(place: Place, operator: Reader) -> None:
    assert "exclude it" in operator.open("/ui/sites/west/disable")
    assert operator.post("/ui/sites/west/disable").status_code == 303
    assert place.api.request("GET", "/v1/whoami", "west").status_code == 401
    assert "This site is disabled" in operator.open("/ui/sites/west")
    location = operator.post("/ui/sites/west/enable").headers["Location"]
    assert "work again" in operator.open(location)
    assert place.api.request("GET", "/v1/whoami", "west").status_code == 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "North"}, "A name is a-z, 0-9 and hyphens"),
        ({"name": ""}, "A name is a-z, 0-9 and hyphens"),
        ({"name": "north"}, "This name is taken"),
        ({"name": "new", "title": "x" * 201}, "at most 200 characters"),
        ({"name": "new", "email": "nobody"}, "This is no e-mail address"),
    ],
)
def test_a_form_says_at_the_field_what_is_wrong_and_keeps_what_was_typed(
    operator: Reader, fields: dict[str, str], message: str
) -> None:
    typed = {"title": "Typed <b>", "email": "", **fields}
    refused = operator.post("/ui/register/sites", list(typed.items()))
    assert refused.status_code in (409, 422)
    (wrong,) = re.findall(r'<p class="wrong" id="(\w+)-wrong">([^<]+)</p>', refused.text)
    assert wrong[0] == next(reversed(fields))
    assert message in unescape(wrong[1])
    for name, value in typed.items():
        shown = re.search(f'<input id="{name}"[^>]* value="([^"]*)"', refused.text)
        assert unescape(shown.group(1)) == value


@pytest.mark.parametrize("days", ["", "0", "3651", "1.5", "9" * 30, "x"])
def test_a_token_is_not_issued_for_days_that_are_none(operator: Reader, days: str) -> None:
    refused = operator.post("/ui/sites/north/tokens", [("expires_in_days", days)])
    assert refused.status_code == 422
    assert 'id="expires_in_days-wrong"' in refused.text


@pytest.mark.parametrize("title", [HEBREW, MARKUP, LONG], ids=["hebrew", "markup", "long"])
def test_titles_are_shown_as_they_were_typed(operator: Reader, title: str) -> None:
    saved = operator.post("/ui/sites/south", [("title", title), ("email", "")])
    assert saved.headers["Location"] == "/ui/sites/south?notice=changed"
    for path in ("/ui/sites/south", "/ui/sites"):
        shown = operator.open(path)
        assert title in unescape(shown)
        assert "<img src=x" not in shown
        assert "<script>alert" not in shown


def test_a_chain_of_a_sites_table_is_accepted(place: Place, operator: Reader) -> None:
    (known,) = place.api.ok("GET", "/v1/sites/west/tables", "operator")["items"]
    shown = operator.open("/ui/sites/west")
    assert known["table_id"] in shown
    assert known["head"] in shown
    fields = {"table_id": known["table_id"], "number": "3", "head": "ab" * 8}
    answer = operator.post("/ui/sites/west/tables", list(fields.items()))
    assert answer.headers["Location"] == "/ui/sites/west?notice=table-accepted"
    shown = operator.open(answer.headers["Location"])
    assert "Accepted: the site can join" in shown
    assert "ab" * 8 in shown
    (now,) = place.api.ok("GET", "/v1/sites/west/tables", "operator")["items"]
    assert (now["number"], now["head"]) == (3, "ab" * 8)
    (entry,) = place.entries("site.table_accepted")
    assert (entry["actor"], entry["subject"]) == ("operator:operator", "site:west")
    details = entry["details"]
    assert (details["via"], details["head_before"]) == ("page", known["head"])


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("table_id", "x"),
        ("number", "0"),
        ("number", "1.5"),
        ("number", "9" * 30),
        ("head", "AB" * 8),
    ],
)
def test_a_chain_that_is_none_is_refused_at_its_field(
    operator: Reader, name: str, typed: str
) -> None:
    fields = {"table_id": "0" * 32, "number": "1", "head": "ab" * 8, name: typed}
    refused = operator.post("/ui/sites/south/tables", list(fields.items()))
    assert refused.status_code == 422
    assert re.findall(r'id="(\w+)-wrong"', refused.text) == [name]
    assert re.findall(r'id="(\w+)"[^>]* aria-invalid="true"', refused.text) == [name]
    for text in fields.values():
        assert f'value="{text}"' in refused.text


def test_a_list_is_searched_and_paged(place: Place, operator: Reader) -> None:
    for number in range(51):
        body = {"name": f"clinic-{number:02}"}
        place.api.ok("POST", "/v1/sites", "operator", json=body)
    found = operator.open("/ui/sites?name=CLINIC-")
    assert "clinic-49" in found
    assert "clinic-50" not in found
    assert "/ui/sites/north" not in found
    (older,) = re.findall(r'href="(/ui/sites\?name=clinic-&amp;cursor=[^"]+)"', found)
    assert "clinic-50" in operator.open(unescape(older))
    for nothing in ("zzz", "%25", "_", "%D7%90"):
        assert "No site has" in operator.open(f"/ui/sites?name={nothing}")


# --- the overview ---------------------------------------------------------------------------------


def test_the_overview_says_what_needs_attention_and_where_to_solve_it(operator: Reader) -> None:
    shown = operator.open("/ui/overview")
    assert "Round 1 of session heart is past its deadline." in shown
    assert "Waits for north, south, west</bdi>." in shown
    assert 'href="/ui/sessions/heart"' in shown
    assert 'href="/ui/sessions?state=running"' in shown
    # The test's coordinator runs no threads.
    assert "A background thread has ended" in shown
    assert "free on the disk" in shown.lower()


def test_first_steps_tick_themselves_off_and_a_backup_can_be_restored(
    place: Place, operator: Reader, tmp_path: Path
) -> None:
    shown = operator.open("/ui/overview")
    assert "First steps (2 of 6)" in shown  # Sites and an analyst are registered.
    assert "none yet" in shown
    # Each page of help that a step names has the section.
    for path, section in re.findall(r'href="/help/([\w/]+)\.html#?([\w-]*)"', shown):
        text = (ROOT / "docs" / f"{path}.md").read_text("utf-8").lower().replace(" ", "-")
        assert f"#-{section}\n" in text or not section
    assert shown.count("Read how") == 3
    assert shown.count('<button form="back-up">') == shown.count('<form id="back-up"') == 1
    for reader in (place.readers["ada"], place.readers["north"]):
        assert reader.post("/ui/overview/backup").status_code == 403
    assert operator.post("/ui/overview/backup", csrf="other").status_code == 403
    assert place.entries("database.backed_up") == []
    done = operator.post("/ui/overview/backup")
    assert done.headers["Location"] == "/ui/overview?notice=backed-up"
    (entry,) = place.entries("database.backed_up")
    assert entry["actor"] == "operator:operator"
    backed_up = operator.open("/ui/overview")
    assert "First steps (3 of 6)" in backed_up
    assert re.search(r"Last backup</dt>\s*<dd><time", backed_up)
    # One copy is none every day.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_pages, "_DAILY", timedelta(0))
        assert "First steps (2 of 6)" in operator.open("/ui/overview")
    # Mail that goes to nobody is no message.
    settings = place.local.settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(settings), "smtp_host", "mail.example")
        assert "First steps (3 of 6)" in operator.open("/ui/overview")
        patch.setitem(vars(settings), "operator_emails", ("ops@clinic.example",))
        assert "First steps (4 of 6)" in operator.open("/ui/overview")
        assert "FEDCLUST_OPERATED_BY" in operator.open("/ui/overview")
        patch.setitem(vars(settings), "operated_by", "Heart registry")
        assert "First steps (5 of 6)" in operator.open("/ui/overview")
        assert "FEDCLUST_OPERATED_BY" not in operator.open("/ui/overview")
    (copy,) = (place.local.settings.data_dir / "backups").iterdir()
    assert copy.stat().st_mode & 0o077 == 0
    restored = restore(copy, f"sqlite:///{tmp_path / 'fedclust.db'}")
    assert restored.sha256 == entry["details"]["backup"]
    # A second backup within the same second gets a name of its own.
    again = operator.post("/ui/overview/backup")
    assert again.headers["Location"] == done.headers["Location"]
    assert {each.name for each in copy.parent.iterdir()} == {copy.name, f"{copy.stem}-2.db"}
    assert len(place.entries("database.backed_up")) == 2


@pytest.mark.parametrize("kind", get_args(AttentionKind))
def test_every_kind_of_attention_has_a_sentence(kind: AttentionKind) -> None:
    item = Attention.to(kind, "site:north", ManualClock().now(), 3, "why")
    shown = ENVIRONMENT.get_template("attention.html").render(
        reasons=[], attention=[item], has_help=True
    )
    assert re.search(r"<p><b>[A-Z][^<]+[.]</b>", shown)
    assert re.search(r'<p class="soft small">[A-Z][^<]+[.]</p>', shown)
    assert re.search(r"[Ww]hy</bdi>[.]", shown)
    leads = kind not in {"notifications-waiting", "disk-low", "backup-old"}
    assert ('<a class="button" href="/' in shown) is leads


# --- the audit trail ------------------------------------------------------------------------------


def rows(page: str) -> list[str]:
    """Return the text of each entry on the page."""
    found = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)[1:]
    return [" ".join(unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in found]


def test_the_trail_is_searched_by_address(operator: Reader) -> None:
    operator.post("/ui/sites/north", [("title", "North"), ("email", "")])
    assert 'href="/ui/sites/north"' in operator.open("/ui/audit")
    assert 'href="/ui/sessions/heart"' in operator.open("/ui/audit?subject=heart")
    (titled,) = rows(operator.open("/ui/audit?action=site.titled&subject=site:north"))
    assert "operator:operator page site.titled site:north –" in titled
    joined = rows(operator.open("/ui/audit?text=JOINED&actor=site:west&subject=heart"))
    assert len(joined) == 1
    assert " API site.joined heart " in joined[0]
    assert "no person in another table no , other persons no , points short no ," in joined[0]
    assert rows(operator.open("/ui/audit?until=2000-01-01T00:00")) == []
    assert "No entry matches" in operator.open("/ui/audit?since=2100-01-01T00:00")
    assert "are compared whole" in operator.open("/ui/audit?subject=north")
    assert len(rows(operator.open("/ui/audit?since=2000-01-01&actor=site:north"))) > 0


@pytest.mark.parametrize("name", ["subject", "actor", "action", "text", "since", "until"])
def test_a_search_that_cannot_be_is_refused_at_its_field(operator: Reader, name: str) -> None:
    for wrong in ('"><script>', "א"):
        page = operator.open(f"/ui/audit?{name}={wrong}", status=422)
        assert f'id="{name}-wrong"' in page
        assert "><script>" not in page


def test_the_trail_is_paged(operator: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    # However many entries the tests before have made.
    monkeypatch.setattr(operator_pages, "list_audit", partial(list_audit, limit=2))
    first = operator.open("/ui/audit?actor=operator:operator")
    (older,) = re.findall(r'href="([^"]*cursor=[^"]*)">Older', first)
    assert not set(rows(first)) & set(rows(operator.open(unescape(older))))


def test_a_whole_trail_is_verified_in_steps(
    place: Place, operator: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.local.coordinator.sealer.run_once()
    whole = operator.post("/ui/audit/verification")
    (head,) = re.findall(r'<code class="secret">(\d+:[0-9a-f]{64})</code>', whole.text)
    count = int(head.partition(":")[0])
    assert f"{count} entries verified" in whole.text
    monkeypatch.setattr(operator_pages, "verify_audit", partial(verify_audit, most=count // 2 + 1))
    fields = [("noted", head)]
    page = operator.post("/ui/audit/verification", fields).text
    assert 'hx-trigger="load, submit"' in page
    fields = re.findall(r'<input type="hidden" name="(after|noted)" value="([^"]*)">', page)
    assert [name for name, _ in fields] == ["after", "noted"]
    body = {"csrf": operator.csrf(), **dict(fields)}
    part = operator.client.post(
        "/ui/audit/verification", data=body, headers={"HX-Request": "true"}
    ).text
    assert "<html" not in part
    assert head in part
    assert "It holds the head that you gave" in part
    shown = " ".join(re.sub(r"<[^>]*>", " ", operator.open("/ui/audit")).split())
    assert re.search(rf"Last verified .* by operator:operator : whole {count} entries", shown)
    assert "audit trail was changed" not in operator.open("/ui/overview")


def test_a_head_that_is_none_is_refused_at_its_field(operator: Reader) -> None:
    refused = operator.post("/ui/audit/verification", [("noted", "12")])
    assert refused.status_code == 422
    assert 'id="noted-wrong"' in refused.text
    other = operator.post("/ui/audit/verification", [("noted", "0f" * 32)])
    assert "No entry has the noted hash" in other.text


# The last test: nobody repairs the trail.
def test_a_damaged_trail_is_named(place: Place, operator: Reader) -> None:
    store = place.local.coordinator.store
    place.local.coordinator.sealer.run_once()
    change_stored(store, "audit", "action", lambda action: f"{action}x", number=3)
    found = operator.post("/ui/audit/verification").text
    assert "The trail was changed" in found
    assert "Entry 3: it or its place in the chain was changed" in found
    assert "not whole" in operator.open("/ui/audit")
    assert "found that the audit trail was changed" in operator.open("/ui/overview")
