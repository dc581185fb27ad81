"""The form that defines a session: its table is pasted, named by a file, or typed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from support.purpose import PURPOSE

from . import axe
from .conftest import WIDE, Registered, Watched, signed_in

COLUMNS = 18
HEADINGS = "Variable\tType\tUnits\tMin\tMax\tLevels\n"


@pytest.fixture
def form(registered: Registered, browser: Browser) -> Iterator[Watched]:
    """Return the empty form of an analyst who has signed in."""
    context = signed_in(browser, registered.local.base_url, registered.api.tokens["ada"])
    watched = Watched(context.new_page())
    watched.page.goto("/ui/new-session")
    yield watched
    context.close()


def paste(page: Page, text: str, name: str = "/features/0/name") -> None:
    """Paste text into an input as somebody does who copied it elsewhere."""
    script = """(input, text) => {
      const clipboardData = new DataTransfer();
      clipboardData.setData("text/plain", text);
      const init = { clipboardData, bubbles: true, cancelable: true };
      input.dispatchEvent(new ClipboardEvent("paste", init));
    }"""
    page.locator(f"[name='{name}']").evaluate(script, text)


def texts(page: Page, column: str) -> list[str]:
    """Return what a column of the table shows, without its empty rows."""
    page.wait_for_load_state("domcontentloaded")
    inputs = page.locator(f"#columns [name$='/{column}']")
    return [text for each in inputs.all() if (text := each.input_value())]


def test_a_pasted_table_makes_a_session_after_a_mistake(form: Watched) -> None:
    page = form.page
    lines = ["sex\tja/nein\t\t\t\t", 'pain\tcategory\t\t\t\t"none,\nsome"', "mood\todd\t\t\t\t"]
    lines += [f"lab{n}\tZahl\tmg/dl\t0\t{n},5\t" for n in range(1, COLUMNS - 2)]
    paste(page, HEADINGS + "\n".join(lines))
    assert texts(page, "kind") == ["binary", "categorical", "odd"]
    assert (texts(page, "levels"), texts(page, "upper")[-1]) == (["none, some"], "15.5")
    expect(page.locator("#pasted")).to_contain_text(f"Filled: {COLUMNS} (0 outcomes). Look")
    page.get_by_label("Purpose").fill(PURPOSE)
    page.get_by_label("Number of clusters, K").fill("4")
    page.get_by_label("Patients at a site").fill("30")
    page.get_by_label("Name of the session").fill("heart")
    for site in page.get_by_role("checkbox").all()[:3]:
        site.check()
    wrong = page.locator("#f-features-2-kind")
    expect(page.locator("#f-features-2-kind-wrong")).to_contain_text("numeric")
    expect(wrong).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#size")).to_contain_text("30 are enough up to K = 3.")
    expect(page.locator("#checked")).not_to_contain_text("Still needed")
    height = "() => document.documentElement.scrollHeight"
    assert page.evaluate(height) <= 1_600
    assert axe.found(page) == []
    page.set_viewport_size({"width": 375, "height": 812})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 375
    page.set_viewport_size(WIDE)
    page.get_by_role("button", name="Create the session").click()
    expect(page.get_by_text("The session was not created.")).to_be_visible()
    assert texts(page, "kind")[2] == "odd"
    wrong.select_option("ordered")
    expect(page.locator("#f-features-2-kind-wrong")).not_to_be_empty()
    wrong.select_option("")
    expect(page.get_by_text("Complete: the session can be created.")).to_be_visible()
    page.locator("#f-algorithm").select_option("kfed")
    expect(page.locator("#options h2")).to_have_text("Options of kfed")
    page.get_by_role("button", name="Create the session").click()
    expect(page.locator("#state")).to_have_text("recruiting")
    page.get_by_role("link", name="Define one like it").click()
    page.wait_for_url("**/ui/new-session?from=heart", wait_until="domcontentloaded")
    assert len(texts(page, "name")) == COLUMNS
    assert form.elsewhere(page.url.partition("/ui/")[0]) == []


def test_words_of_other_spreadsheets_are_known(form: Watched) -> None:
    page = form.page
    words = ("count", "Integer", "number", "int64", "internal", "intensive care")
    rows = [f"x{n}\tcovariate\t{word}\ta, b\t1,5" for n, word in enumerate(words)]
    rows += ["y\tPredictor\tbinary\t\t10,080", "z\tvariable\tbinary\t", "d\ttarget\tyes/no\t"]
    paste(page, "Name\tRole\tType\tCategories\tMax\n" + "\n".join(rows))
    # Ten thousand and eighty, or ten: the check asks.
    assert texts(page, "upper") == [*["1.5"] * len(words), "10,080"]
    # Features and numbers are what an empty choice stands for.
    assert texts(page, "role") == ["outcome"]
    assert texts(page, "kind") == ["internal", "intensive care", "binary", "binary", "binary"]
    assert texts(page, "levels") == ["a, b"] * len(words)


def test_a_column_of_outcomes_is_found_whatever_its_heading_is(form: Watched) -> None:
    page = form.page
    rows = "spo2\tcluster\tcont.\t60%\ndied\toutcome\tY/N\t"
    paste(page, "Variable\tWhat for\tType\tMin\n" + rows)
    expect(page.locator("#pasted")).to_contain_text("Filled: 2 (1 outcomes). Look")
    assert (texts(page, "role"), texts(page, "kind")) == (["outcome"], ["binary"])
    assert texts(page, "lower") == ["60"]


def test_what_is_pasted_is_not_called_missing_and_opens_nothing(form: Watched) -> None:
    page = form.page
    page.get_by_label("Name of the session").fill("heart")
    expect(page.locator("#checked")).to_contain_text("Still needed: Purpose; Sites; Columns;")
    # The answer to a check from before the paste comes after it.
    held: list[Route] = []
    page.route("**/ui/new-session", lambda route: held.append(route))
    answered = "() => document.body.dataset.answered = 'yes'"
    page.evaluate(f"document.addEventListener('htmx:afterRequest', {answered})")
    with page.expect_request("**/ui/new-session"):
        page.locator("#row-0 summary").click()  # it ends the typing
    paste(page, HEADINGS + "age\tnumeric\t\t\t\t\nsex\tbinary\t\t\t\t\n")
    held.pop().continue_()
    expect(page.locator("body")).to_have_attribute("data-answered", "yes")
    page.unroute("**/ui/new-session")
    expect(page.locator("#checked")).to_have_text("The new rows are not checked yet.")
    assert "Still needed" not in page.locator("#session-form").inner_text()
    expect(page.locator("#definition")).to_have_text("The new rows are not checked yet.")
    assert page.locator("#columns details[open]").count() == 1
    page.get_by_role("button", name="Check").last.click()
    expect(page.locator("#checked")).to_contain_text("Still needed: Purpose; Sites; Number")
    expect(page.locator("#definition")).to_contain_text('"sex"')


def test_a_check_shows_its_result_and_closes_nothing(form: Watched) -> None:
    page = form.page
    page.get_by_text("Expert:").click()
    contact = page.get_by_label("Contact")
    for press in (
        lambda: page.get_by_role("button", name="Check").last.click(),
        lambda: page.get_by_label("Name of the session").press("Enter"),
    ):
        contact.fill("Ada")
        press()
        heading = page.get_by_role("heading", name="Not complete yet")
        expect(heading).to_be_focused()
        expect(heading).to_be_in_viewport()
        expect(page.get_by_text("Still needed: Purpose;")).to_be_in_viewport()
        assert contact.is_visible()
        # Nor does a check of what was typed just before take the focus away.
        contact.evaluate("""input => {
          input.value = "Bob";
          input.dispatchEvent(new Event("input", { bubbles: true }));
        }""")
        expect(page.locator("#definition")).to_contain_text("Bob")
        expect(heading).to_be_focused()


def test_more_of_a_row_shows_what_its_role_and_kind_have(form: Watched) -> None:
    page = form.page
    page.locator("#row-0 summary").click()
    shown = {
        ("feature", "numeric"): {"weight"},
        ("feature", "trajectory"): {"weight", "time_unit", "grid", "fill", "window", "summary"},
        ("outcome", "ordered"): {"edges", "values", "event", "points", "guess"},
    }
    every = set.union(*shown.values())
    for (role, kind), names in shown.items():
        page.locator("[name='/features/0/role']").select_option(label=role)
        page.locator("[name='/features/0/kind']").select_option(label=kind)
        found = {n for n in every if page.locator(f"[name='/features/0/{n}']").is_visible()}
        assert found == names


def test_neither_rows_of_patients_nor_the_rest_of_a_file_leave_the_browser(
    form: Watched, tmp_path: Path
) -> None:
    page = form.page
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data or ""))
    for rows in (
        "patient\tage\nP7\t63.25\nP8\t64\n",
        "63.25\t1\n64\t0\n",
        "age\tsex\n63.25\t1\n",
        "name\tage\tsex\nAnna M\t63.25\tf\n",
        "Anna M\tf\tward 3\nPeter M\tm\tward 4\n",
        "P7;63.25;m\nP8;64;w\n",
        "name\ttype\nAnna M\tinpatient\n",
    ):
        paste(page, rows)
        expect(page.locator("#pasted")).to_contain_text("may be rows of patients")
    assert texts(page, "name") == []
    table = tmp_path / "patients.csv"
    table.write_text('"patient_id";age;"sex"\nZ4711;63.25;1\n', "utf-8-sig")
    page.locator("#header").set_input_files(table)
    expect(page.locator("[name='/features/0/name']")).to_have_value("patient_id")
    assert not [body for body in sent if "patient_id" in body]
    page.get_by_role("button", name="Check").last.click()
    expect(page.locator("#f-features-0-name-wrong")).to_contain_text("looks like identifiers")
    assert texts(page, "name") == ["patient_id", "age", "sex"]
    paste(page, "years\nno unit\n", "/features/1/unit")
    assert texts(page, "unit") == ["years", "no unit"]
    page.get_by_role("button", name="Check").last.click()
    expect(page.locator("#definition")).to_contain_text("no unit")
    assert "patient_id" in "".join(sent)
    assert not [body for body in sent if "63.25" in body or "Z4711" in body]


def test_neither_signing_in_nor_the_table_needs_a_script(
    registered: Registered, browser: Browser
) -> None:
    context = signed_in(browser, registered.local.base_url, None, script=False)
    page = context.new_page()
    page.goto("/ui/new-session")
    for token, shown in (
        ("fca_wrong", page.get_by_role("alert").filter(has_text="not a complete token")),
        (registered.api.tokens["ada"], page.get_by_label("Purpose")),
    ):
        page.get_by_label("Your token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(shown).to_be_visible()
    rows = page.locator("#columns tbody")
    before = rows.count()
    page.locator("[name='/features/0/name']").fill("age")
    page.get_by_text("More", exact=True).first.click()
    expect(page.locator("[name='/features/0/weight']")).to_be_visible()
    page.get_by_role("button", name="Another row").click()
    expect(rows.nth(before)).to_be_attached()
    page.locator("[name='/features/1/name']").fill("bmi")
    page.locator("#f-algorithm").select_option("spectral")
    page.get_by_role("button", name="Check").last.click()
    expect(page.locator("[name='/config/landmarks']")).to_have_count(1)
    expect(page.get_by_role("heading", name="Not complete yet")).to_be_in_viewport()
    expect(page.locator("[name='/features/1/name']")).to_have_value("bmi")
    page.get_by_role("link", name="analyst ada").click()
    expect(page.locator("td time").first).to_contain_text("UTC")
    page.get_by_role("button", name="Sign out", exact=True).click()
    expect(page.get_by_label("Your token")).to_be_visible()
    context.close()
