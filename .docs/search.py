"""The index of the search: the sections of all documents, read from the files as they are.

Sphinx knows pages and no sections, so the search would not lead to a recipe. `static/search.js`
ranks the sections. This module needs nothing but Python, because the tests use it, too. Words that
people search for, and that do not stand in a title, are a comment below it:

    .. search words: Excel, xlsx, spreadsheet

In a lesson the comment of that name stands below its docstring.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TITLE = re.compile(r"^(?:\.\. _([\w-]+):\n\n)?(?:([=-])\2+\n)?(\S.*)\n([=-])\4{2,}\n", re.MULTILINE)
WORDS = re.compile(r"^(?:\.\.|#) search words:((?:.*\n)(?:(?:   |#  )\s*\S.*\n)*)", re.MULTILINE)
CODE = re.compile(r"^(?:    .*\n|\n)+", re.MULTILINE)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


# The lessons in the order of their table, each with what it teaches.
LESSONS = re.findall(r"^`(\w+)\.py <\1\.py>`__ +(.+?)  +``", read("examples/README.rst"), re.M)


def list_documents(reference):
    """Return the file of each page by the page's name, as `manual/limits`."""
    found = {"index": "README.rst", "lessons/index": "examples/README.rst"}
    for folder in ("manual", "recipes", "course"):
        for path in sorted((ROOT / "examples" / folder).glob("*.rst")):
            name = "index" if path.stem == "README" else path.stem
            found[f"{folder}/{name}"] = f"examples/{folder}/{path.name}"
    found["project/contributing"] = ".github/CONTRIBUTING.rst"
    for name, _ in LESSONS:
        found[f"lessons/{name}"] = f"examples/{name}.py"
    for name in ("index", *reference):
        found[f"reference/{name}"] = "webapp.py"
    return found


class Section(NamedTuple):
    page: str  # "recipes/pages"
    anchor: str  # "csv"; "" for the beginning of a page
    title: str
    words: str  # that people search for, separated by commas
    text: str  # prose, without marks
    code: str


def slug(title):
    """Return the anchor that docutils and GitHub make of a title."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def plain(text):
    """Return reStructuredText as one line without its marks."""
    text = re.sub(r"^\.\. .*(?:\n   .*)*|^[=+~-]+(?: +[=+-]+)*$|[+|]", "", text, flags=re.MULTILINE)
    text = re.sub(r"`([^`<]*?)\s*<[^`>]*>`_+", r"\1", text)
    return " ".join(re.sub(r"``|`_*|\*\*|::$", "", text, flags=re.MULTILINE).split())


def sections_of(page, text):
    """Yield the sections of a document."""
    titles = [*TITLE.finditer(text)]
    for title, following in zip(titles, [*titles[1:], None]):
        body = text[title.end() : following.start() if following else len(text)]
        words = " ".join(" ".join(WORDS.findall(body)).split())
        body = WORDS.sub("", body)
        code = " ".join(" ".join(CODE.findall(body)).split())
        anchor = "" if title is titles[0] else title[1] or slug(title[3])
        yield Section(page, anchor, plain(title[3]), words, plain(CODE.sub("\n", body)), code)


def section_of_lesson(name, source):
    docstring = ast.get_docstring(ast.parse(source))
    title, _, text = docstring.partition("\n")
    words = " ".join(" ".join(WORDS.findall(source)).replace("#", "").split())
    prose, code = plain(CODE.sub("\n", f"{text}\n")), " ".join(CODE.findall(f"{text}\n"))
    return Section(f"lessons/{name}", "", f"{name}.py: {title}", words, prose, code)


PROPERTIES = (property, functools.cached_property, classmethod, staticmethod)


def getdoc(value):
    """Return the docstring of a member of a class, and none of the type of a value."""
    if inspect.isfunction(value) or isinstance(value, PROPERTIES):
        return inspect.getdoc(value)
    return type(value).__module__ == "webapp" and vars(value).get("__doc__")


def sections_of_reference(groups):
    """Yield a section for each public name, and for each member of a class."""
    import webapp

    for group, (_, names) in groups.items():
        for name in names:
            thing = getattr(webapp, name)
            members = vars(thing) if inspect.isclass(thing) else {}
            docstrings = {name: inspect.getdoc(thing)}
            for member, value in members.items():
                if member[0] != "_" and hasattr(thing, member) and not hasattr(str, member):
                    docstrings[f"{name}.{member}"] = getdoc(value)
            for title, docstring in docstrings.items():
                if docstring:
                    anchor, text = f"webapp.{title}", plain(docstring)
                    yield Section(f"reference/{group}", anchor, title, "", text, "")


def sections(documents, groups):
    """Yield the sections of documents (page to path) and of the reference."""
    for page, path in documents.items():
        if path.endswith(".rst"):
            yield from sections_of(page, read(path))
        elif page.startswith("lessons/"):
            yield section_of_lesson(page.partition("/")[2], read(path))
    yield from sections_of_reference(groups)


def as_script(found):
    """Return the index as a script, because a page that was opened as a file may load no JSON."""
    rows = [[*section[:4], section.text[:160], *map(words_of, section[4:])] for section in found]
    return f"const SECTIONS = {json.dumps(rows, ensure_ascii=False, separators=(',', ':'))};\n"


def words_of(text):
    return " ".join(dict.fromkeys(re.findall(r"[^\W_][\w-]*", text.lower())))


def write_index(app, failure):
    if failure is None:
        found = sections(app.project.documents, app.config.reference)
        Path(app.outdir, "_static", "sections.js").write_text(as_script(found), encoding="utf-8")


def leave_out_that_of_sphinx(app):
    app.builder.search = False


def setup(app):
    app.connect("builder-inited", leave_out_that_of_sphinx)
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True}
