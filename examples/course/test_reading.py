"""Tests for the course in `reading.rst`: the functions that it names exist, its experiments print
what it shows, and its broken copies fail a test.

`python examples/course/test_reading.py 3` prints where the functions of evening 3 are.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import doctest
import functools
import inspect
import io
import itertools
import logging
import os
import pathlib
import re
import socket
import subprocess
import sys
import types
from unittest import mock
from wsgiref.handlers import BaseHandler, SimpleHandler

import pytest

# A script finds webapp.py, even if not installed, and the tests of the lessons.
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(2, str(pathlib.Path(__file__).resolve().parents[2]))
from test_examples import MANUAL, STEPS, blocks, chapter, client, replay, run_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
COURSE = (ROOT / "examples" / "course" / "reading.rst").read_text(encoding="utf-8")
SOURCE = (ROOT / "webapp.py").read_text(encoding="utf-8")
TITLES = re.findall(r"^(Evening \d+: .+)\n=+\n", COURSE, re.MULTILINE)
MOST_LINES = 500
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
NUMBERS = {word: number for number, word in enumerate([*WORDS.split(), "sixteen"], 1)}
every_evening = pytest.mark.parametrize("title", TITLES)


def part(title, name):
    """Return the part of an evening below a line in bold, up to the next such line."""
    return re.split(rf"^\*\*{name}\*\*\n", chapter(title, COURSE), flags=re.MULTILINE)[1].partition(
        "\n**"
    )[0]


# ---- the places ----------------------------------------------------------------------------------


@functools.cache
def places():
    """Map the dotted name of each function, class, method and variable in the source to its first
    and last line."""
    found = {}

    def look_into(body, prefix):
        for node in body:
            names = [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [
                    name.id
                    for target in targets
                    for name in ast.walk(target)
                    if isinstance(name, ast.Name)
                ]
            first = min(
                [node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]
            )
            for name in names:
                found.setdefault(prefix + name, (first, node.end_lineno))
            if isinstance(node, ast.ClassDef):
                look_into(node.body, f"{prefix}{node.name}.")

    look_into(ast.parse(SOURCE).body, "")
    return found


def reading_list(title):
    """Return the names that an evening asks you to read. They are at the beginning of its items."""
    items = re.findall(r"^- ((?:``[\w.]+``(?:,\s+)?)+)", part(title, "Read"), re.MULTILINE)
    return [name for item in items for name in re.findall("``(.+?)``", item)]


def table_of_lines(title):
    """Return a line for each function of an evening, in a form that editors can open, and the
    number of lines that all of them have together."""
    spans = [(name, *places()[name]) for name in reading_list(title)]
    table = [
        f"webapp.py:{first:<6}{last - first + 1:4} lines  {name}" for name, first, last in spans
    ]
    return table, len(set(itertools.chain(*(range(first, last + 1) for _, first, last in spans))))


@every_evening
def test_places_of_an_evening_exist_and_have_at_most_500_lines(title):
    missing = [name for name in reading_list(title) if name not in places()]
    assert not missing
    table, lines = table_of_lines(title)
    print(f"\n{title}: {lines} lines", *table, sep="\n")
    assert len(table) >= 8 and 100 <= lines <= MOST_LINES


def test_script_prints_the_places_of_an_evening_though_nothing_is_installed(tmp_path):
    here = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = [sys.executable, str(ROOT / "examples" / "course" / "test_reading.py"), "3"]
    printed = subprocess.run(
        program, cwd=tmp_path, env=here, capture_output=True, text=True, check=True
    ).stdout
    assert printed.splitlines() == table_of_lines(TITLES[2])[0]


def test_private_names_in_the_text_of_the_course_exist():
    text = re.sub(r"^    .*\n", "", COURSE, flags=re.MULTILINE)
    named = set(re.findall(r"``(?:\w+\.)?(_[A-Za-z]\w*)``", text))
    assert named - set(re.findall(r"\w+", SOURCE)) - vars(BaseHandler).keys() == set()
    classes = {place for place in places() if inspect.isclass(getattr(intact(), place, None))}
    dotted = set(re.findall(r"``((\w+)\.\w+)", text))
    assert dotted
    attributes = {name for name, owner in dotted if owner in classes and name not in places()}
    # Exercises ask for these.
    assert attributes == {"Markup.json", "Server.max_per_client"}
    suite = (ROOT / "test_webapp.py").read_text(encoding="utf-8")
    assert re.findall(r"^SOON = \d+", suite, re.M) == re.findall("``(SOON = 60)``", text)


def test_each_evening_has_all_its_parts_and_a_solution():
    assert [int(re.search(r"\d+", title)[0]) for title in TITLES] == list(range(1, 16))
    for title in TITLES:
        names = re.findall(r"^\*\*(.+)\*\*$", chapter(title, COURSE), re.MULTILINE)
        wanted = ["The picture", "Read", "Beside it", "Try", "Break", "Exercise", "Stop here"]
        assert names == wanted + ["Contribute"] * (title == TITLES[9])
        assert re.match(r"\n\*How [^*]+\?\*\n", chapter(title, COURSE)), title
        assert re.search(r"RFC|PEP|standard", part(title, "Beside it")), title
    assert max(map(len, COURSE.splitlines())) <= 120


def grown(before, lines):
    """Return the whole picture of an evening, if `before` was the picture of the evening before.

    `...` stands for lines of it, up to the one that follows.
    """
    whole, place = [], 0
    for line, following in zip(lines, [*lines[1:], None]):
        text, end = line[1:], place + 1
        if line[0] == "+":
            whole.append(text)
            continue
        if text.strip() == "...":
            end = len(before) if following is None else before.index(following[1:], place)
            assert end > place, f"nothing is left out at {line}"
        else:
            assert before[place:end] == [text]
        whole += before[place:end]
        place = end
    assert place == len(before)
    return whole


def test_picture_grows_from_evening_to_evening_and_names_what_exists():
    before = []
    words = {name for place in places() for name in place.split(".")}
    shown_whole = [
        int(number)
        for number in re.findall(r"\d+", re.search(r"Evenings\s([\d,\s]+ and \d+)", COURSE)[1])
    ]
    assert shown_whole == [1, 7, 10]
    for number, title in enumerate(TITLES, 1):
        (picture,) = blocks(part(title, "The picture"), "text")
        lines = picture.rstrip().splitlines()
        assert {line[0] for line in lines} == ({"+"} if not before else {" ", "+"})
        assert ("..." not in picture.replace("/1.1...", "")) == (number in shown_whole), title
        before = grown(before, lines)
        named = set(re.findall(r"\b_[a-z]\w+|\b[A-Z][a-z]+[A-Z]\w+", picture)) - {
            "URLs",
            "SameSite",
        }
        assert named <= words, named - words
        dotted = set(re.findall(r"\b_?[A-Z]\w+\.\w+", picture))
        assert dotted <= places().keys(), dotted - places().keys()


def test_evening_0_of_the_course_prints_what_the_first_picture_has(capsys):
    text = chapter("Evening 0, half an hour: watch one request", COURSE)
    (program,) = blocks(text, "python")
    printed = blocks(text, "text")[0].rstrip("\n") + "\n"
    names = run_program(program, file="watch.py", __name__="watch")
    first, second = capsys.readouterr().out.split("---- again\n")
    names["webapp"]._names_json.cache_clear()  # other tests of this process may have asked
    assert "about thirty lines, and two fewer the next time" in " ".join(text.split())
    counts = []
    for _ in range(2):
        names["watch"](names["app"], "/bye")
        missed = capsys.readouterr().out
        counts.append(len(missed.splitlines()))
        assert "\n    _answer_failure\n" in missed
    assert 26 <= counts[1] == counts[0] - 2 <= 34
    assert second == printed and "_seal" in first
    assert len(printed.splitlines()) == 10
    (picture,) = blocks(part(TITLES[0], "The picture"), "text")
    read = {name.rpartition(".")[2] for name in reading_list(TITLES[0])}
    assert set(printed.split()) <= read
    steps = [name for name in ("_match", "_respond", "_hand_over") if f"\n  {name}\n" in printed]
    assert re.findall(r"^\+  (_match|_respond|_hand_over)\b", picture, re.MULTILINE) == steps


def test_places_that_the_course_of_building_names_exist():
    text = (ROOT / "examples" / "course" / "building.rst").read_text(encoding="utf-8")
    lists = re.findall(r"^\*\*Now read\*\*\n\n((?:[- ].+\n)+)", text, re.MULTILINE)
    named = re.findall(r"^- ``(.+?)``:", "".join(lists), re.MULTILINE)
    assert len(lists) == 10 and set(named) - places().keys() == set()


def test_course_counts_the_functions_of_its_first_evening_and_its_words():
    assert NUMBERS[re.search(r"in (\w+) functions", TITLES[0])[1]] == len(reading_list(TITLES[0]))
    number, table = re.search(
        r"^(\w+) words have one meaning(.+?)^Evening", COURSE, re.M | re.S
    ).groups()
    rows = table.split("\n=========== ")[2].splitlines()[1:]
    assert NUMBERS[number.lower()] == len(rows)


def steps_of(title):
    """Map each function in the table of an evening to what the table says about whose it is."""
    rows = re.findall(
        r"^((?:``\w+``(?:, )?)+) +(ours|wsgiref's|not called)  ", part(title, "Read"), re.M
    )
    return {name: whose for names, whose in rows for name in re.findall(r"\w+", names)}


def test_table_of_the_steps_of_wsgiref_says_whose_each_is():
    table = steps_of(TITLES[11])
    run = vars(intact()._RequestHandler)
    made = {name for name, value in vars(BaseHandler).items() if inspect.isfunction(value)}
    # Newer releases of Python have another function, which start_response() calls.
    assert made - {"_validate_status"} == table.keys()
    assert {name for name in table if table[name] == "ours"} == made & run.keys()

    class Noting(intact()._RequestHandler):
        """Note which of the other functions run."""

    ran = set()
    for name in made - run.keys():

        def note(self, *arguments, name=name):
            ran.add(name)
            return getattr(BaseHandler, name)(self, *arguments)

        setattr(Noting, name, note)
    app = intact().WebApp()
    app.get("/whole")(lambda context: "onetwo")
    app.get("/stream")(lambda context: context.response.stream(["one", "two"]))
    app.get("/fail")(lambda context: 1 / 0)
    app.get("/file")(lambda context: context.response.file(__file__))
    server = intact().Server(app, quiet=True)
    pair = socket.socketpair()
    for path in ("whole", "stream", "fail", "file", "none"):
        head = intact()._parse_head(f"GET /{path} HTTP/1.1\r\nHost: localhost".encode())
        run = Noting(intact()._Connection(server, pair[0], ""), head)
        run.run(app)
        if run.file is not None:
            server._files.discard(run.file)
            run.file.close()
    server.stop()
    for each in pair:
        each.close()
    assert ran - {"_validate_status"} == {name for name in table if table[name] == "wsgiref's"}


def test_numbers_in_the_text_are_those_of_the_file():
    file = intact()
    server = inspect.signature(file.Server.__init__).parameters
    words = {number: word for word, number in NUMBERS.items()}
    milliseconds = 1000 * file._QUICK
    half, whole = (words[round(each)] for each in (milliseconds / 2, milliseconds))
    assert file._OFFLOAD_SECONDS == 0.5 and file._TURN == 0.005
    (picture,) = blocks(part(TITLES[0], "The picture"), "text")
    for sentence in (
        *(
            f"``{name}`` ({getattr(file, name):,}{after})"
            for name, after in [("_PIECE", " in the file"), ("_SLICE", ""), ("_COLLECTED", "")]
        ),
        f"if it is no longer than {file._COLLECTED // 2**20} MiB",
        f"every {half} milliseconds",
        f"{half} to {whole} milliseconds",
        f"{words[file._WAITS_IN_A_ROW]} responses in a row",
        "leaves all requests to helpers for half a second",
        f"With {server['threads'].default} slots",
        f"one of at most {file.Server.max_waiting:,} slots",
        f"at most {file.Server.max_waiting:,} of them",
        f"more time for each {file._PIECE // 1024} KiB that move",
        f"takes {words[server['stop_timeout'].default]} seconds longer than ``SOON``",
        f"from memory: {words[len(picture.rstrip().splitlines())]} lines",
    ):
        assert sentence in " ".join(COURSE.split()), sentence


@pytest.mark.parametrize(
    "kind",
    [ConnectionAbortedError, BrokenPipeError, ConnectionResetError, ConnectionRefusedError],
)
def test_wsgiref_returns_without_logging_after_the_kinds_that_the_table_names(kind):
    def app(environ, start_response):
        raise kind

    errors = io.StringIO()
    run = SimpleHandler(io.BytesIO(), io.BytesIO(), errors, {"SERVER_PROTOCOL": "HTTP/1.1"})
    run.run(app)
    assert ("Traceback" not in errors.getvalue()) is (
        f"``{kind.__name__}``" in part(TITLES[11], "Read")
    )


def test_world_of_the_simulation_begins_as_the_text_shows():
    text = part(TITLES[13], "Beside it")
    (command,) = re.findall(r"``python3 (\S+simulation\.py [^`]+)``", text)
    shown = blocks(text, "text")[0].rstrip("\n")
    with subprocess.Popen(
        [sys.executable, *command.split()], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as world:
        printed = [world.stdout.readline().rstrip() for _ in shown.splitlines()]
        world.kill()
    assert [line.strip() for line in printed] == [line.strip() for line in shown.splitlines()]


# ---- the experiments -----------------------------------------------------------------------------


@every_evening
def test_experiment_of_an_evening_prints_what_the_course_shows(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("webapp"), "disabled", False)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    examples = "\n".join(blocks(part(title, "Try"), "pycon"))
    assert ">>> " in examples
    test = doctest.DocTestParser().get_doctest(
        examples, {"__name__": "__main__"}, title, "reading.rst", 0
    )
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not failed, "".join(said)


# ---- copies that are changed ---------------------------------------------------------------------


def patched(source, patch):
    """Apply a patch as the course shows it. The lines that begin with a space or a minus must be
    found in the source exactly once."""
    hunks = [[]]
    for line in patch.rstrip().splitlines():
        if line.startswith("@@"):
            hunks.append([])
        else:
            hunks[-1].append(line)
    for hunk in filter(None, hunks):
        old = "".join(line[1:] + "\n" for line in hunk if line[:1] != "+")
        new = "".join(line[1:] + "\n" for line in hunk if line[:1] != "-")
        assert source.count(old) == 1, f"found {source.count(old)} times:\n{old}"
        source = source.replace(old, new)
    return source


def compile_statements(statements, file):
    return compile(statements, file, "exec", annotations.compiler_flag, dont_inherit=True)


def for_each_part(make, source, made):
    """Yield what `make` returns for each text between two blank lines. `made` keeps the results,
    because copies of a file have most of these texts in common. Two blank lines inside a string do
    not end a text, because what precedes them is not a complete statement."""
    line, text = 0, ""
    for part in re.split(r"(?<=\n\n\n)(?=\S)", source):
        text += part
        if text not in made:
            try:
                made[text] = make("\n" * line + text)
            except SyntaxError:
                continue
        yield made[text]
        line, text = line + text.count("\n"), ""
    assert not text, make("\n" * line + text)


CODE_OF_FILES = collections.defaultdict(dict)


def compiled_parts(source, file):
    """Yield the code of a file in parts. Each part is compiled only once."""
    make = functools.partial(compile_statements, file=file)
    return for_each_part(make, source, CODE_OF_FILES[file])


def load(source=SOURCE):
    """Load a copy of webapp.py as a module, in this process."""
    module = types.ModuleType("webapp")
    module.__file__ = str(ROOT / "copy" / "webapp.py")
    with mock.patch.dict(sys.modules, webapp=module):
        for code in compiled_parts(source, module.__file__):
            exec(code, module.__dict__)
    return module


@functools.cache
def intact():
    return load()


PARSED = {}


@functools.cache
def statements(patch=""):
    """Return the statements of the test suite."""
    source = patched((ROOT / "test_webapp.py").read_text(encoding="utf-8"), patch)
    parts = for_each_part(ast.parse, source, PARSED)
    return [statement for part in parts for statement in part.body]


@functools.cache
def names_of(statement):
    """Return the names that a statement uses, and the names that it defines."""
    used, given, own = set(), set(), set()
    for part in ast.walk(statement):
        if isinstance(part, ast.Name):
            (used if isinstance(part.ctx, ast.Load) else given).add(part.id)
        elif isinstance(part, ast.comprehension):
            own.update(name.id for name in ast.walk(part.target) if isinstance(name, ast.Name))
    if hasattr(statement, "name"):
        used, given = used - given, {statement.name}  # a function stores its own names
    elif isinstance(statement, (ast.AugAssign, ast.Expr)):
        used = given = used | given  # because they change what they name
    return used - own, given - own


@functools.cache
def given_by(statement):
    """Return the names that a statement defines, without the local names of a function."""
    return {statement.name} if hasattr(statement, "name") else names_of(statement)[1]


@functools.cache
def compiled(statement):
    return compile_statements(ast.Module([statement], []), str(ROOT / "test_webapp.py"))


def suite_for(copy, test, patch=""):
    """Return as much of the suite as a test needs, using a copy of webapp.py."""
    whole, wanted = statements(patch), {test}
    needed = {each for each in whole if isinstance(each, (ast.Import, ast.ImportFrom))}
    while more := {each for each in whole if given_by(each) & wanted} - needed:
        needed |= more
        wanted = wanted.union(*(names_of(each)[0] for each in more))
    suite = types.ModuleType("test_of_a_copy")
    suite.__file__ = str(ROOT / "test_webapp.py")
    with mock.patch.dict(sys.modules, webapp=copy, test_of_a_copy=suite):
        for statement in whole:
            if statement in needed:
                exec(compiled(statement), suite.__dict__)
    return suite


def rows_of(test):
    """Return the arguments of each row of a parametrized test."""
    tables = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names = (
                re.split(r",\s*", mark.args[0]) if isinstance(mark.args[0], str) else mark.args[0]
            )
            values = [
                row.values if isinstance(row, type(pytest.param())) else row for row in mark.args[1]
            ]
            tables.append([dict(zip(names, row if len(names) > 1 else [row])) for row in values])
    return [
        {name: value for row in rows for name, value in row.items()}
        for rows in itertools.product(*tables)
    ]


@contextlib.contextmanager
def fixtures_of(test, row, suite, request):
    """Provide the fixtures that a test asks for: the ones of pytest, and the ones of the suite,
    which are context managers."""
    given = {}
    with contextlib.ExitStack() as stack:
        for name in inspect.signature(test).parameters:
            if name == "tmp_path":
                given[name] = request.getfixturevalue("tmp_path_factory").mktemp("row")
            elif name not in row and hasattr(suite, name):
                fixture = getattr(suite, name)
                make = getattr(
                    fixture, "_get_wrapped_function", lambda made=fixture: inspect.unwrap(made)
                )()
                given[name] = stack.enter_context(contextlib.contextmanager(make)())
            elif name not in row:
                given[name] = request.getfixturevalue(name)
        yield given


def failures(copy, name, request, only=None, patch="", **changed):
    """Run all or some rows of a test with a copy, and only the explicit examples of a property
    test. Yield the rows that fail. Names of the suite can be changed, as a reader changes SOON."""
    suite = suite_for(copy, name, patch)
    vars(suite).update(changed)
    test = getattr(suite, name)
    if hasattr(test, "hypothesis"):
        from hypothesis import Phase  # the list of an evening does not need it

        test = suite.settings(phases=[Phase.explicit])(test)
    for number, row in enumerate(rows_of(test)):
        if only is not None and only != number and only not in row.values():
            continue
        with mock.patch.dict(sys.modules, webapp=copy, test_of_a_copy=suite):
            try:
                with fixtures_of(test, row, suite, request) as given:
                    test(**row, **given)
            except (Exception, pytest.fail.Exception):
                yield number


@every_evening
def test_copy_that_is_broken_fails_the_test_that_the_course_names(title, request, monkeypatch):
    (patch,) = blocks(part(title, "Break"), "diff")
    (place,) = re.findall(r"^In ``([\w.]+)``:$", part(title, "Break"), re.MULTILINE)
    first, last = places()[place]
    # The lines of the patch are in the function that the text names.
    patched("".join(SOURCE.splitlines(keepends=True)[first - 1 : last]), patch)
    (name,) = re.findall("``(test_[a-z0-9_]+)``", part(title, "Break"))
    if "expects a reset" in part(title, "Break") and suite_for(intact(), name).WITHOUT_RESETS:
        pytest.skip("Wine closes a socket in the same way, whatever SO_LINGER says")
    only = (re.findall('row "(.+)"', part(title, "Break")) or [None])[0]
    broken = load(patched(SOURCE, patch))
    # Do not wait long for what the broken copy leaves undone.
    broken.Server.__init__.__kwdefaults__["stop_timeout"] = 0.1
    connect = socket.create_connection
    with monkeypatch.context() as patience:
        patience.setattr(
            socket, "create_connection", lambda address, timeout=None: connect(address, timeout=1)
        )
        row = next(failures(broken, name, request, only, SOON=3), None)
    assert row is not None
    assert list(failures(intact(), name, request, row)) == []


def run_tests(program, copy):
    """Run the test functions of a program, which imports a copy instead of webapp."""
    with mock.patch.dict(sys.modules, webapp=copy):
        names = run_program(program, file="test_mine.py", __name__="test_mine")
        tests = [value for name, value in names.items() if name.startswith("test_")]
        assert tests
        for test in tests:
            test()


@every_evening
def test_exercise_fails_before_its_solution_and_passes_after_it(title):
    (program,) = blocks(part(title, "Exercise"), "python")
    (patch,) = blocks(chapter(f"Solution for evening {TITLES.index(title) + 1}", COURSE), "diff")
    with pytest.raises(Exception):  # noqa: B017, PT011
        run_tests(program, intact())
    run_tests(program, load(patched(SOURCE, patch)))


def test_contribution_is_noticed_by_its_row_another_test_and_two_steps(request, monkeypatch):
    text = part(TITLES[9], "Contribute")
    row, rule = blocks(text, "diff")
    of_the_row, another = re.findall("``(test_[a-z0-9_]+)``", text)
    changed = load(patched(SOURCE, rule))
    assert list(failures(intact(), of_the_row, request, patch=row)) == []
    assert len(list(failures(changed, of_the_row, request, patch=row))) == 1
    assert next(failures(changed, another, request), None) is not None
    monkeypatch.setenv("GUESTBOOK_PASSWORD", "secret")
    steps = [chapter(step, MANUAL) for step in STEPS[:-1]]
    noticed = []
    for number in range(1, len(steps) + 1):
        program = [block for step in steps[:number] for block in blocks(step, "python")]
        with mock.patch.dict(sys.modules, webapp=changed):
            app = run_program(*program)["app"]
        try:
            replay(steps[number - 1], client(app))
        except AssertionError as error:
            assert "HTTP/1.1 303" in str(error)
            noticed.append(number)
    assert noticed == [
        int(number) for number in re.findall(r"\d", re.search(r"in steps ([\d and]+)", text)[1])
    ]


if __name__ == "__main__":
    if sys.argv[1:] not in [[str(number)] for number in range(1, len(TITLES) + 1)]:
        sys.exit(f"give the number of an evening, from 1 to {len(TITLES)}")
    print(*table_of_lines(TITLES[int(sys.argv[1]) - 1])[0], sep="\n")
