"""The check of the built documentation finds what it is for, on a made-up site."""

from pathlib import Path

import pytest

import check_site


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ('<a href="b.html#there">ok</a> <a href="https://example.org">ok</a>', None),
        ('<img src="data:image/png;base64,AA=="> <script src="own.js"></script>', None),
        ('<a href="gone.html">x</a>', "a.html: gone.html: no such file"),
        ('<a href="b.html#gone">x</a>', "a.html: b.html#gone: no such section"),
        ('<a href="#gone">x</a>', "a.html: #gone: no such section"),
        ('<a href="../c.html">x</a>', "a.html: ../c.html: leads out of the site"),
        ('<script src="//example.org/x.js"></script>', "//example.org/x.js: loaded from elsewhere"),
        ('<img src="https://example.org/x.png">', "x.png: loaded from elsewhere"),
        ("<script>alert(1)</script>", "a.html: a script inside the page"),
        ("<style>p { color: red }</style>", "a.html: a style inside the page"),
        ('<p style="color: red">', "a.html: a style or a handler of <p> inside the page"),
    ],
)
def test_a_fault_of_a_page_is_found(tmp_path: Path, page: str, fault: str | None) -> None:
    (tmp_path / "a.html").write_text(page, "utf-8")
    (tmp_path / "b.html").write_text('<p id="there">', "utf-8")
    (tmp_path / "own.js").write_text("", "utf-8")
    (tmp_path / "own.css").write_text("a { background: url(own.png) }", "utf-8")
    found = list(check_site.faults(tmp_path))
    assert len(found) == (fault is not None)
    assert fault is None or found[0].endswith(fault)
    (tmp_path / "own.css").write_text("@import 'https://example.org/x.css'", "utf-8")
    assert len(list(check_site.faults(tmp_path))) == len(found) + 1
