"""A result and what is made of it: labels of rows, its file, reports as HTML, JSON and CSV.

Reports use only what the coordinator released; they read no rows::

    found = Facts(result, definition, document.provenance)
    html(found), json_text(found), csv_text(found)
"""
