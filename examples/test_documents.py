"""The tests of the documents as a whole: their links, their search words, and the search."""

from __future__ import annotations

import pathlib
import re
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / ".docs"))
import search

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATHS = [ROOT / "README.rst", *sorted((ROOT / "examples").glob("**/*.rst"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}


def without_programs(text):
    """Leave out what is indented as a program, where a link would be none."""
    return re.sub(r"^    .*\n", "", text, flags=re.MULTILINE)


def anchors_of(text):
    titles = [search.slug(match[3]) for match in search.TITLE.finditer(text)]
    return {*titles, *re.findall(r"^\.\. _([\w-]+):\s", text, re.MULTILINE)}


def broken_links(name, text):
    """Yield the links of a document that lead to no file, or to no title or anchor in it."""
    text = without_programs(text)
    targets = re.findall(r"`[^`<]*<([^>`]+)>`_", text)
    targets += re.findall(r"^\.\. (?:_[^:\n]+:|image::|figure::) +(\S+)$", text, re.MULTILINE)
    for target in targets:
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (ROOT / name).parent / path if path else ROOT / name
        found = file.read_text(encoding="utf-8") if file.is_file() else None
        if found is None or (anchor and anchor not in anchors_of(found)):
            yield target
    known = {
        " ".join(each.lower().split()) for each in re.findall(r"^(\S.*)\n[=-]{3,}\n", text, re.M)
    }
    known |= {each.lower() for each in re.findall(r"^\.\. _`?([^:`\n]+)`?:", text, re.MULTILINE)}
    for reference in re.findall(r"(?<!`)`([^`<>]+)`_(?!_)", text):
        if " ".join(reference.lower().split()) not in known:
            yield reference


@pytest.mark.parametrize("name", TEXTS)
def test_links_of_a_document_lead_somewhere(name):
    assert [*broken_links(name, TEXTS[name])] == []


def test_broken_links_are_noticed():
    text = "Yes\n===\n\n`a <no.rst>`__ `b <README.rst#no>`__ `c <README.rst>`__ `No`_ `Yes`_\n"
    assert [*broken_links("README.rst", text)] == ["no.rst", "README.rst#no", "No"]
