"""Tests for `teaching.rst`: its plans add up, and its commands do what it says."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import building
import pytest

HERE = pathlib.Path(building.__file__).parent
TEXT = (HERE / "teaching.rst").read_text(encoding="utf-8")


def chapter(title):
    return building.chapter(title, HERE / "teaching.rst")


def table_below(text, head):
    """Return the rows of the table whose heading begins with a text."""
    below = text[text.index(f"\n{head}") :]
    rows = re.split(r"^=[= ]+$", below, maxsplit=2, flags=re.MULTILINE)[1]
    return re.findall(r"^(\S.*)$", rows, re.MULTILINE)


def numbers_in(rows):
    return [int(row.split()[0]) for row in rows]


# ---- the plan ------------------------------------------------------------------------------------


def test_minutes_of_the_meetings_add_up_and_each_student_has_a_turn():
    plans = chapter("Plans")
    usual = table_below(plans, "minutes  what happens\n")
    last = table_below(plans, "minutes  what happens in week 12")
    assert sum(numbers_in(usual)) == sum(numbers_in(last)) == 90
    (students,) = re.findall(r"two\s+students come to your desk", plans)[:1]
    weeks = range(3, 12)
    turns = 2 * len(weeks)
    (left,) = (minutes for minutes in last if "last two defences" in minutes)
    assert turns == 18 and turns + int(left.split()[0]) // 10 == 20
    assert re.search(r"eighteen\s+students\s[^.]*week\s+11\b", plans)
    checkpoints = next(row for row in usual if "The checkpoints" in row)
    assert int(checkpoints.split()[0]) >= 2 * 10
    assert 3 * len(range(3, 9)) + 2 == 20  # with ten weeks
    first = numbers_in(table_below(chapter("The first week"), "minute  what happens"))
    assert first == sorted(first) and first[0] == 0 and first[-1] < 90


def test_hours_of_a_teacher_are_those_of_twenty_students():
    rows = table_below(chapter("Plans"), "what you read")
    assert len(rows) == 3
    for row in rows:
        number, students, minutes, hours = map(float, row.split()[-4:])
        assert students == 20 and round(number * students * minutes / 60, 1) == hours


def test_marks_add_up_in_both_schemes():
    schemes = [
        re.findall(r"^- (\d+) %: ", chapter(title), re.MULTILINE)
        for title in ("Points", "Assistants")
    ]
    assert [sum(map(int, scheme)) for scheme in schemes] == [100, 100]


def test_exam_has_ten_questions_and_none_of_them_is_a_question_of_the_course():
    exam = re.sub(r"\s+", " ", chapter("A written exam"))
    numbers = re.findall(r" (\d+)\. \(", exam)
    assert numbers == [str(number) for number in range(1, 11)]
    for name in ("building", "solutions", "reading"):
        text = (HERE / f"{name}.rst").read_text(encoding="utf-8")
        for question in re.findall(r"[A-Z][^.?]+\?", re.sub(r"\s+", " ", text)):
            assert len(question) < 25 or question not in exam, question


# ---- standards -----------------------------------------------------------------------------------

# The sections that the courses name, with their titles. A new one is looked up before it is added.
SECTIONS = {
    "2046": {"5.1.1": "Common Syntax"},
    "3986": {"3.3": "Path"},
    "6585": {"4": "429 Too Many Requests"},
    "7578": {"4": "Definition of multipart/form-data"},
    "8259": {"6": "Numbers", "9": "Parsers"},
    "9110": {
        "5.5": "Field Values",
        "5.6": "Common Rules for Defining Field Values",
        "5.6.2": "Tokens",
        "6.4.1": "Content Semantics",
        "7.2": "Host and :authority",
        "8.6": "Content-Length",
        "9.3.2": "HEAD",
        "10.1.1": "Expect",
        "12.5.1": "Accept",
        "12.5.4": "Accept-Language",
        "12.5.5": "Vary",
        "13.2.2": "Precedence of Preconditions",
        "14.2": "Range",
        "15": "Status Codes",
        "15.5.6": "405 Method Not Allowed",
        "15.5.9": "408 Request Timeout",
        "15.6": "Server Error 5xx",
    },
    "9112": {
        "2": "Message",
        "2.1": "Message Format",
        "2.2": "Message Parsing",
        "3.2": "Request Target",
        "3.2.2": "absolute-form",
        "6": "Message Body",
        "6.3": "Message Body Length",
        "7.1": "Chunked Transfer Coding",
        "8": "Handling Incomplete Messages",
        "9.3": "Persistence",
        "9.5": "Failures and Timeouts",
        "9.6": "Tear-down",
        "11.2": "Request Smuggling",
    },
}


def test_sections_of_standards_that_the_courses_name_were_looked_up():
    named = set()
    files = [HERE / f"{name}.rst" for name in ("building", "reading", "solutions", "teaching")]
    for file in [*files, *(HERE / "pictures").glob("*.svg")]:
        text = re.sub(r"\s+", " ", file.read_text(encoding="utf-8"))
        for rfc, rest in re.findall(r"RFC (\d+)(.*?)(?=RFC \d|[.!?)] [A-Z]|$)", text):
            for first, last in re.findall(r"[Ss]ections? ([\d.]*\d)(?: to (\d+))?", rest):
                named |= {(rfc, section) for section in (first, last) if section}
        for section, rfc in re.findall(r"[Ss]ection ([\d.]*\d) of RFC (\d+)", text):
            named.add((rfc, section))
    known = {(rfc, section) for rfc, sections in SECTIONS.items() for section in sections}
    assert len(named) > 30 and named - known == set()


# ---- files ---------------------------------------------------------------------------------------

# The files that a reader makes, and one of Python.
MADE = {
    "answers.txt",
    "assistant.txt",
    "mine.py",
    "page.py",
    "points.csv",
    "see.py",
    "shop.py",
    "submissions/ada/mine.py",
    "test_mine.py",
    "watch.py",
    "wsgiref/handlers.py",
}


@pytest.mark.parametrize("name", ["building", "reading", "solutions", "teaching"])
def test_files_that_a_course_names_exist(name):
    text = (HERE / f"{name}.rst").read_text(encoding="utf-8")
    prose = re.sub(r"^    .*\n", "", text, flags=re.MULTILINE)
    named = set(re.findall(r"``([\w./-]+\.(?:py|rst|svg|html|txt|csv))``", prose))
    folders = (HERE, HERE / "pictures", HERE.parents[1])
    missing = {file for file in named if not any((folder / file).exists() for folder in folders)}
    assert "README" not in prose
    methods = {"Response.html", "context.response.html"}
    assert missing - MADE - methods == set()


# ---- machines ------------------------------------------------------------------------------------


def run(*arguments, folder):
    program = [sys.executable, *map(str, arguments)]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, encoding="utf-8")


def test_classroom_has_three_files_and_no_solution(tmp_path):
    (command,) = re.findall(r"\$ python3 \S*(building\.py) --classroom (\S+)", TEXT)
    classroom = tmp_path / pathlib.Path(command[1]).name
    done = run(HERE / command[0], "--classroom", classroom, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    files = {file.name: file.read_text(encoding="utf-8") for file in classroom.iterdir()}
    assert files.keys() == {"building.py", "building.rst", "webapp.py"}
    assert len(done.stdout.splitlines()) == 3
    kept = [building.kept_test(step) for step in range(1, len(building.TITLES) + 1)]
    solved = [
        block
        for title in building.TITLES
        for block in building.blocks(building.solution(title), "python")
    ]
    given = re.sub(r"\s+", " ", "".join(files.values()))
    for text in [*kept, *solved]:
        assert re.sub(r"\s+", " ", text) not in given
    # A student can work in this folder.
    mine = classroom / "mine.py"
    mine.write_text("", encoding="utf-8")
    assert "answers 404 ... FAILS" in run("building.py", "1", "mine.py", folder=classroom).stdout
    mine.write_text(building.built(1), encoding="utf-8")
    assert run("building.py", "1", "mine.py", folder=classroom).returncode == 0
    assert run("building.py", "1", "--text", folder=classroom).stdout.startswith("Step 1: ")
    for arguments, missing in [(["1"], "solutions.rst"), (["1", "--kept"], "teaching.rst")]:
        answer = run("building.py", *arguments, folder=classroom)
        assert answer.returncode == 1 and missing in answer.stderr
    # A folder that exists already may contain files that students should not see.
    again = run(HERE / "building.py", "--classroom", classroom, folder=tmp_path)
    assert again.returncode == 1 and "new one" in again.stderr


def test_table_says_what_needs_pytest():
    suite = (HERE.parents[1] / "test_webapp.py").read_text(encoding="utf-8")
    assert re.search("^from hypothesis import", suite, re.MULTILINE)  # for each *Break*
    reading = (HERE / "reading.rst").read_text(encoding="utf-8")
    exercises = re.findall(r"^\*\*Exercise\*\*\n(.+?)^\*\*Stop here", reading, re.M | re.S)
    assert len(exercises) == 15 and "hypothesis" not in "".join(exercises)
    course = (HERE / "building.rst").read_text(encoding="utf-8")
    programs = "".join(building.blocks(course, "python"))
    assert not re.search(r"^(?:import|from) (?:pytest|hypothesis)", programs, re.MULTILINE)
    weeks = re.findall(r"^(\d+) .+evening \d", TEXT, re.MULTILINE)
    assert weeks == ["6", "7"] and "homework of weeks 6 and 7 needs pytest" in TEXT


# ---- accessibility -------------------------------------------------------------------------------


@pytest.mark.parametrize("picture", sorted((HERE / "pictures").glob("*.svg")), ids=lambda p: p.stem)
def test_picture_has_a_title_and_a_description_and_is_more_than_colour(picture):
    root = ElementTree.parse(picture).getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.findtext(f"{name}title") and len(root.findtext(f"{name}desc")) > 40
    style = root.findtext(f"{name}style")
    assert "prefers-color-scheme: dark" in style


@pytest.mark.parametrize("name", ["building", "reading", "solutions", "teaching"])
def test_each_image_of_a_text_has_a_text_in_its_place(name):
    text = (HERE / f"{name}.rst").read_text(encoding="utf-8")
    images = re.findall(r"^\.\. image:: .+\n((?:   .+\n)*)", text, re.MULTILINE)
    assert all(":alt: " in options for options in images)
