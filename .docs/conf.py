"""The site: `python -m sphinx -W -n .docs build/site` makes it from the documents where they are.

No document has a line that only Sphinx understands, because people read them on GitHub too.
`documents.py` does what Sphinx wants more, and `search.py` makes the index of the search.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import webapp

project = "webapp.py"
version = release = webapp.__version__
extensions = ["sphinx.ext.autodoc", "documents", "search"]
root_doc = "index"
source_suffix = {".rst": "restructuredtext", ".py": "restructuredtext"}
nitpicky = True
highlight_language = "none"
smartquotes = False
html_theme = "furo"
html_title = f"webapp.py {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
templates_path = ["templates"]
html_additional_pages = {"search": "search.html"}
html_use_index = html_copy_source = html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
pygments_style, pygments_dark_style = "tango", "monokai"

# ---- the menu ------------------------------------------------------------------------------------

menu = {
    "Start here": ["manual/installation", "manual/tutorial", "manual/coming-from", "lessons/index"],
    "How do I ...?": ["recipes/index", "manual/trouble"],
    "Look it up": [
        "manual/requests",
        "manual/calls",
        "reference/index",
        "manual/running",
        "manual/deploying",
        "manual/security",
        "manual/limits",
        "manual/performance",
        "manual/glossary",
        "manual/versions",
        "manual/changes",
        "manual/working",
        "project/contributing",
    ],
    "Courses": ["course/reading", "course/building", "course/solutions", "course/teaching"],
}
recipes = [
    "application",
    "pages",
    "forms",
    "streams",
    "errors",
    "access",
    "data",
    "testing",
    "background",
    "running",
    "logging",
]
# The names of `__all__`, by the page of the reference that describes them.
reference = {
    "application": ("The application and its routes", ["WebApp", "Scope", "Route", "same_origin"]),
    "context": ("The context and executors", ["WebContext", "Executor", "ValidationExecutor"]),
    "request": ("The request", ["Request", "Fields", "Headers", "UploadedFile"]),
    "response": ("The response", ["Response", "Markup"]),
    "exceptions": (
        "Exceptions",
        [
            "HttpException",
            "NotFoundException",
            "MethodNotAllowedException",
            "CodeException",
        ],
    ),
    "server": ("The server", ["Server"]),
    "testing": ("The test client", ["TestClient", "TestResponse"]),
}
