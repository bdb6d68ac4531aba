"""The tests of the documents as a whole: their links, their search words, and the search."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / ".docs"))
import conf
import plot
import search
import terminals

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATHS = [
    ROOT / "README.rst",
    *sorted([*ROOT.glob("examples/**/*.rst"), *ROOT.glob(".github/*.rst")]),
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PATHS}


def without_programs(text):
    """Leave out what is indented as a program, where a link would be none."""
    return re.sub(r"^    .*\n", "", text, flags=re.MULTILINE)


def anchors_of(text):
    titles = [search.slug(match[3]) for match in search.TITLE.finditer(text)]
    titles += [search.slug(title) for title in re.findall(r"^(\S.*)\n~{3,}\n", text, re.MULTILINE)]
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


def test_plot_of_the_figures_is_drawn_from_the_table_of_the_page():
    tables = plot.read_tables(TEXTS["examples/manual/performance.rst"])
    for title, rows in plot.SHOWN.items():
        assert [row for row in rows if "webapp" not in tables[title].get(row, ())] == []
    assert plot.PAGE.with_suffix(".svg").read_text(encoding="utf-8") == plot.draw(tables)
    assert plot.summary(tables) in TEXTS["README.rst"]
    assert len(tables["in the process"]) > 20 < sum(map(len, tables.values()))


@pytest.mark.skipif(sys.platform == "win32", reason="the picture shows the paths of POSIX")
def test_picture_of_a_failure_shows_what_the_program_of_the_readme_prints(tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    picture = terminals.draw(*terminals.outputs(tmp_path.resolve(), environ))
    assert terminals.PICTURE.read_text(encoding="utf-8") == picture


# ---- the search ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sections():
    """The sections that the site finds."""
    return [*search.sections(search.list_documents(conf.reference), conf.reference)]


def test_search_words_are_words_that_the_title_does_not_have(sections):
    assert sum(bool(section.words) for section in sections) > 140
    for section in sections:
        title = {*re.findall(r"\w+", section.title.lower())}
        for phrase in filter(None, section.words.split(", ")):
            missing = {*re.findall(r"\w+", phrase.lower())} - title
            assert missing, f"{section.page}: {phrase!r} stands in the title {section.title!r}"
    pages = {f"recipes/{name}" for name in conf.recipes}
    recipes = [each for each in sections if each.page in pages]
    assert [each.title for each in recipes if each.anchor and not each.words] == []


def questions_of(name):
    """Return the questions of a set with the sections that answer each."""
    text = (ROOT / ".docs" / "questions" / f"{name}.txt").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line[:1] != "#"]
    return [(question, answers.split()) for question, answers, *_ in rows]


QUESTIONS = [*questions_of("public"), *questions_of("own")]


def test_each_question_names_sections_that_exist(sections):
    places = {f"{each.page}#{each.anchor}".strip("#") for each in sections}
    for question, answers in QUESTIONS:
        assert {*answers} <= places, question


def found_by(sections, questions, folder):
    """Return the places of the results for each question, the best first."""
    ranking = json.dumps(str(ROOT / ".docs" / "static" / "search.js"))
    asking = (
        f"const {{prepare, search}} = require({ranking});\n"
        f"const index = prepare(SECTIONS), questions = {json.dumps(questions)};\n"
        "const place = ({section: {page, anchor}}) => anchor ? `${page}#${anchor}` : page;\n"
        "console.log(JSON.stringify(questions.map((each) => search(index, each).map(place))));\n"
    )
    program = folder / "ask.js"
    program.write_text(search.as_script(sections) + asking, encoding="utf-8")
    return json.loads(subprocess.run(["node", program], capture_output=True, check=True).stdout)


@pytest.mark.skipif(
    shutil.which("node") is None, reason="the search is JavaScript, and no node here"
)
def test_search_answers_the_questions_of_both_sets(sections, tmp_path):
    """Each set was used once, when the search was finished; the figures may not become less."""
    found = found_by(sections, [question for question, _ in QUESTIONS], tmp_path)
    assert all(found)
    answered = []
    for (_, answers), places in zip(QUESTIONS, found):
        answered.append(any(is_answer(place, answers) for place in places[:3]))
    assert sum(answered[:60]) >= 50 and sum(answered[60:]) >= 30


def is_answer(place, answers):
    """A page without an anchor stands for all of its sections."""
    return place in answers or place.partition("#")[0] in answers
