"""Settings of the documentation site: ``make docs-site``."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "fedclust"
author = "fedclust"
release = version = version_of("fedclust")
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "site_extension",
]
templates_path = ["templates"]
exclude_patterns = ["templates"]

# Sections are linked as on a Git host.
myst_heading_anchors = 4

autosummary_generate = False
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
# Types of numpy and pydantic are described elsewhere, and the site links nothing elsewhere.
nitpick_ignore_regex = [("py:.*", ".*")]

html_title = "fedclust"
html_favicon = "../service/fedclust_service/http/static/icon.svg"
html_static_path = ["static"]
html_copy_source = False
# The search finds names as well, and the index would need styles inside its page.
html_use_index = False
html_domain_indices = False
html_show_sourcelink = False

if tags.has("print"):  # noqa: F821 (Sphinx defines it): one page, for the PDF
    html_theme = "basic"
    html_css_files = ["print.css"]
else:
    html_theme = "pydata_sphinx_theme"
    html_css_files = ["site.css"]
    html_js_files = ["site.js"]
    html_context = {"default_mode": "auto"}
    html_sidebars = {"**": ["site_nav.html"]}
    html_theme_options = {
        "logo": {"text": "fedclust"},
        "navbar_center": [],
        "navbar_end": ["theme-switcher"],
        "secondary_sidebar_items": ["page-toc"],
        "footer_start": [],
        "footer_end": [],
    }
