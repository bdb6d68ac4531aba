"""Build your own framework: the program that comes with the course in `building.rst`.

    python3 building.py 3 > mine.py        print the file as it is at the end of step 3
    python3 building.py 3 mine.py          run the tests for steps 1 to 3 with your file
    python3 building.py 3 --hint           print a hint for step 3 (--hint 2: the second one)
    python3 building.py 3 --tests          print the tests for step 3
    python3 building.py 3 --text           print step 3 without its hint (0: the introduction)

For teachers:

    python3 building.py --classroom ../classroom     create a folder for students
    python3 building.py 3 --kept           print the tests, with the one that you hold back
    python3 building.py 3 mine.py test_kept_3.py     run the tests in that file, too
    python3 building.py --points FOLDER    print the points of each FOLDER/NAME/mine.py
    python3 building.py 3 --points FOLDER  do the same for steps 1 to 3 only
    python3 building.py --points FOLDER points.csv   write the table to a file, too

All tests of the course are in `building.rst`, and all solutions are in `solutions.rst`. This
program takes them from there. It stops a test that takes longer than 20 seconds.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import functools
import itertools
import json
import linecache
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import traceback
import types

COURSE = pathlib.Path(__file__).with_name("building.rst")
SOLUTIONS = COURSE.with_name("solutions.rst")
TEACHING = COURSE.with_name("teaching.rst")
WHAT_IS_IN = {
    COURSE: "It contains the text and the tests of the course.",
    SOLUTIONS: "It contains all solutions. If your teacher has removed it, ask for the file.",
    TEACHING: "It contains the tests that a teacher holds back.",
}
MORE_HINTS = "More hints"
LIMIT = 20  # seconds for each test; the sockets in the tests have a limit of 10


# ---- the text ------------------------------------------------------------------------------------


def read(file):
    """Return the text of a file. If this fails, end the program with a plain message."""
    try:
        return file.read_text(encoding="utf-8-sig")  # editors on Windows may write a mark
    except FileNotFoundError:
        sys.exit(f"There is no file {file}. {WHAT_IS_IN.get(file, '')}")
    except UnicodeError:
        sys.exit(f"{file} is not encoded in UTF-8. Save it as UTF-8 in your editor.")
    except OSError as error:
        sys.exit(f"{file} cannot be read: {error}")


TITLES = re.findall(r"^(Step \d+: .+)\n=+$", read(COURSE), re.MULTILINE)


def chapter(title, file=COURSE):
    """Return the text below a title, up to the next title."""
    text = read(file)
    below = text.partition(f"\n{title}\n{'=' * len(title)}\n")[2]
    return re.split(r"\n[^\n]+\n={3,}\n", below)[0]


def part(title, name, file=COURSE):
    """Return the part of a chapter below a line in bold, up to the next such line."""
    below = re.split(rf"^\*\*{name}\*\*$", chapter(title, file), flags=re.MULTILINE)[1]
    return below.partition("\n**")[0]


def solution(title):
    """Return the solution of a step."""
    return part(title, "One way to write it", SOLUTIONS)


def text_of(step):
    """Return the text of a step without its hint, for a teacher to hand out. Step 0 is the text
    before the first one, with the beginning of the page."""
    title = ["Before the first step", *TITLES][step]
    parts = re.split(r"^(?=\*\*[^*]+\*\*$)", chapter(title), flags=re.MULTILINE)
    kept = [text for text in parts if not text.startswith("**Hint**")]
    beginning = "" if step else read(COURSE).partition(".. contents::")[0]
    return f"{beginning}{title}\n{'=' * len(title)}\n" + "".join(kept).rstrip("\n") + "\n"


def hints_of(step):
    """Return the hints for a step. The first one is the hint in the text of the step."""
    title = TITLES[step - 1]
    found = [part(title, "Hint")]
    if f"\n**Step {step}**\n" in chapter(MORE_HINTS):
        found += re.split("^- ", part(MORE_HINTS, f"Step {step}"), flags=re.MULTILINE)[1:]
    return [" ".join(text.split()) for text in found]


def hint(step, number):
    """Return one hint, with its number and the way to the next one."""
    hints = hints_of(step)
    if not 1 <= number <= len(hints):
        sys.exit(f"Step {step} has {len(hints)} hints. The first one has the number 1.")
    lines = textwrap.wrap(f"Hint {number} of {len(hints)}: {hints[number - 1]}", 80)
    if number < len(hints):
        lines += ["", f"For the next hint, run: building.py {step} --hint {number + 1}"]
    return "\n".join(lines) + "\n"


def hints_for(step, test):
    """Return the numbers of the hints for the checkpoint of a test."""
    tests = re.findall(r"^def (test_\w+)", tests_of(step), re.MULTILINE)
    checkpoint = tests.index(test) + 1
    return [
        number
        for number, text in enumerate(hints_of(step), 1)
        if (named := re.match(r"Checkpoints? ([^:]+):", text))
        and str(checkpoint) in re.findall(r"\d+", named[1])
    ]


def blocks(text, language):
    """Return the blocks of code in a text, without their indents."""
    found = re.findall(rf"^\.\. code:: {language}\n\n((?: {{4}}.*\n|\n)+)", text + "\n", re.M)
    return [textwrap.dedent(block).strip("\n") + "\n" for block in found]


@functools.cache
def tests_of(step):
    """Return the tests for a step as a program, after all helpers from earlier steps."""
    imports, rest = {}, {}
    texts = [part(title, "Checkpoints") for title in TITLES[:step]]
    for text in [part("Before the first step", "The tests"), *texts]:
        for name, piece in itertools.chain(*map(pieces, blocks(text, "python"))):
            if piece.startswith(("import ", "from ")):
                imports[name] = piece
            elif text is texts[-1] or not name.startswith("test_"):
                rest[name] = piece
    return "\n".join(in_order(imports)) + "\n\n\n" + "\n\n\n".join(rest.values()) + "\n"


def kept_test(step):
    """Return the test for a step that a teacher holds back."""
    (test,) = blocks(part("Tests that you hold back", f"Step {step}", TEACHING), "python")
    return test


def printed(tests, step):
    """Return tests as a file. As a program it would not run any of them, so it tells the user."""
    command = f"python3 examples/course/building.py {step} mine.py FILE"
    message = f"Run this file with pytest, or with this command: {command}"
    return f'{tests}\n\nif __name__ == "__main__":\n    raise SystemExit("{message}")\n'


def make_classroom(folder):
    """Copy the files that students need into a new folder. They contain no solutions."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        sys.exit(f"The folder must be a new one, because students will see what is in it: {error}")
    above = next(place for place in COURSE.resolve().parents if (place / "webapp.py").exists())
    for file in (pathlib.Path(__file__), COURSE, above / "webapp.py"):
        shutil.copy(file, folder)
        print(folder / file.name)


# ---- the learner's file --------------------------------------------------------------------------


def pieces(source):
    """Return the name and the text of each statement, with the comments above it."""
    lines, found, end = source.splitlines(), [], 0
    for node in ast.parse(source).body:
        name = getattr(node, "name", None)
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            name = ast.unparse(node)
        text = "\n".join(lines[end : node.end_lineno]).strip("\n")
        end = node.end_lineno
        found.append((name, text))
    return found


def in_order(imports):
    return sorted(imports, key=lambda line: (line.startswith("from "), line))


def members(text):
    """Return the head of a class, and the name and the text of each member."""
    (node,) = ast.parse(text).body
    lines, end, found = text.splitlines(), node.body[0].lineno - 1, []
    head = "\n".join(lines[:end])
    for member in node.body:
        name = getattr(member, "name", None) or ast.unparse(member).partition(" = ")[0]
        found.append((name, "\n".join(lines[end : member.end_lineno]).strip("\n")))
        end = member.end_lineno
    return head, found


def changes(text):
    """Tell whether the text of a class begins with `...`, which means that other members stay."""
    return members(text)[1][0][0] == "..."


def merged(old, new):
    """Return a class with the members of another text. They replace members with the same name,
    and a member such as `del name` removes one."""
    head, before = members(old)
    kept = dict(before)
    for name, text in members(new)[1][1:]:
        if name.startswith("del "):
            del kept[name[4:]]
        else:
            kept[name] = text
    return head + "\n" + "\n\n".join(kept.values())


def built(step):
    """Return the learner's file as it is at the end of a step. For step 0 it is empty."""
    imports, rest = {}, {}
    for title in TITLES[:step]:
        for block in blocks(solution(title), "python"):
            for name, text in pieces(block):
                if text.startswith(("import ", "from ")):
                    imports[name] = text
                elif name in rest and text.startswith("class ") and changes(text):
                    rest[name] = merged(rest[name], text)
                else:
                    rest.pop(name, None)
                    rest[name] = text
    whole = [*in_order(imports), ""] if imports else []
    before = ""
    for text in rest.values():
        large = "\n" in text or "\n" in before
        whole += ["", "", text] if large and whole[-1:] != [""] else ["", text] if large else [text]
        before = text
    return "\n".join(whole) + "\n"


# ---- running the tests ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def compiled(source, file):
    return compile(source, file, "exec", dont_inherit=True)


def comparisons(statement):
    """Return the comparisons in an assertion, or none if it also contains something else."""
    parts = statement.test.values if isinstance(statement.test, ast.BoolOp) else [statement.test]
    return parts if all(isinstance(part, ast.Compare) for part in parts) else []


@functools.lru_cache(maxsize=32)
def compiled_tests(source, file):
    """Compile tests. Each assertion stores the left side of its comparison for `values_at`."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for part in comparisons(node) if isinstance(node, ast.Assert) else []:
            name = ast.copy_location(ast.Name("_left", ast.Store()), part.left)
            part.left = ast.copy_location(ast.NamedExpr(name, part.left), part.left)
    return compile(tree, file, "exec", dont_inherit=True)


def load(source, name="mine", compiler=compiled, file=None):
    """Return a module made from a text. Tracebacks name the file."""
    module = types.ModuleType(name)
    module.__file__ = str(file or f"{name}.py")
    linecache.cache[module.__file__] = (len(source), None, source.splitlines(True), name)
    exec(compiler(source, module.__file__), module.__dict__)
    return module


class TooLong(Exception):
    """A test did not end in time."""


def outcome(function):
    """Call a function in a thread. Return its exception, None if there is none, or TooLong if the
    function does not end."""
    ended, streams = [], (sys.stdout, sys.stderr)

    def run():
        try:
            function()
        except BaseException as error:  # such as SystemExit, from a file that is not a program yet
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    if ended:
        return ended.pop()  # the frames of an exception have a reference to `ended`
    sys.stdout, sys.stderr = streams  # the function may have replaced them
    stack = traceback.extract_stack(sys._current_frames().get(thread.ident))
    own = [place.filename == run.__code__.co_filename for place in stack]
    where = "".join(traceback.format_list(stack[len(own) - own[::-1].index(True) :]))
    return TooLong(f"It did not end within {LIMIT} seconds. It is waiting here:\n{where}")


def run_tests(source, name, module, begin=lambda name: None):
    """Run tests with a module. Yield each name with the exception, or None if the test passed.
    Before each test runs, `begin` gets its name."""
    earlier = sys.modules.get("mine")
    sys.modules["mine"] = module
    try:
        tests = load(source, name, compiled_tests)
        for name, test in vars(tests).copy().items():
            if name.startswith("test_"):
                begin(name)
                yield name, outcome(test)
    finally:
        del sys.modules["mine"]
        if earlier is not None:
            sys.modules["mine"] = earlier


def failures(step, module, begin=lambda name: None):
    """Run the tests for a step with a module. Yield what `run_tests` yields."""
    return run_tests(tests_of(step), f"tests_of_step_{step}", module, begin)


def values_in(frame, number):
    """Yield the names and the values of the variables at a line: in the statement that failed, and
    in the loops around it."""
    for node in ast.walk(ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))):
        if not isinstance(node, ast.stmt) or not node.lineno <= number <= node.end_lineno:
            continue
        named = node.target if isinstance(node, ast.For) else node
        if named is node and hasattr(node, "body"):
            continue
        for part in ast.walk(named):
            if isinstance(part, ast.Name) and part.id in frame.f_locals:
                yield part.id, frame.f_locals[part.id]
        if isinstance(node, ast.Assert) and comparisons(node) and "_left" in frame.f_locals:
            yield "the left side", frame.f_locals["_left"]


def values_at(error):
    """Return a line for each variable of a test that failed, with its value."""
    if isinstance(error, TooLong):
        return []
    frames = list(traceback.walk_tb(error.__traceback__.tb_next))
    file = frames[0][0].f_code.co_filename
    values = [
        value
        for frame, number in frames
        if frame.f_code.co_filename == file
        for value in values_in(frame, number)
        if value[0] != "the left side" or isinstance(error, AssertionError)
    ]
    shown = dict.fromkeys(f"{name} is {value!r:.300}" for name, value in values)
    return [line for line in shown if " at 0x" not in line]


def trace_of(error):
    """Return the lines of a traceback, without the lines of this program."""
    if isinstance(error, TooLong):
        return [str(error)]
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == trace_of.__code__.co_filename:
        trace = trace.tb_next
    return traceback.format_exception(type(error), error, trace)


def load_file(path):
    """Return the module of the learner's file. If importing it fails, print why and return None."""
    source, loaded = read(path), []
    error = outcome(lambda: loaded.append(load(source, file=path)))
    if error is None:
        return loaded[0]
    print(f"{path} cannot be imported:")
    print(textwrap.indent("".join(trace_of(error)), "      "), end="")
    return None


def begin(name):
    print(f"  {name[5:].replace('_', ' ')} ... ", end="", flush=True)


@contextlib.contextmanager
def log_of_program():
    """Collect what the learner's file logs. It is not printed, because many tests cause failures on
    purpose."""
    records, handler, logger = [], logging.Handler(), logging.getLogger("webapp")
    handler.emit = records.append
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)  # the cause of a wrong 404 is logged at this level
    try:
        yield records
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def all_pass(outcomes, records, step=None):
    """Print the outcomes up to the first failure, and return whether all tests passed."""
    with contextlib.closing(outcomes):
        for name, error in outcomes:
            if error is not None:
                print("FAILS")
                print_failure(error, records)
                if step is not None:
                    print_hints(step, name)
                return False
            print("ok")
            records.clear()
    return True


def print_failure(error, records):
    lines = trace_of(error)
    lines += [f"{line}\n" for line in values_at(error)]
    for record in records[-3:]:
        lines += [f"Your program has logged ({record.levelname}): {message_of(record)}\n"]
        if record.exc_info:
            lines += traceback.format_exception(*record.exc_info)
    print(textwrap.indent("".join(lines), "      "), end="")
    print("Fix this checkpoint first, because later ones build on it.")


def message_of(record):
    try:
        return record.getMessage()
    except Exception as error:  # the call is the learner's, and may be wrong
        return f"{record.msg!r} with {record.args!r} cannot be formatted: {error}"


def print_hints(step, test):
    for number in hints_for(step, test):
        print(f"For a hint, run: building.py {step} --hint {number}")


def check(last, path, more=None):
    """Run the tests for the steps up to `last` with a file, and then the tests of another file.
    Return whether all of them pass."""
    others = None if more is None else read(more)
    with log_of_program() as records:
        module = load_file(path)
        if module is None:
            return False
        for step in range(1, last + 1):
            print(TITLES[step - 1])
            if not all_pass(failures(step, module, begin), records, step):
                return False
        if others is not None:
            print(more)
            if not all_pass(run_tests(others, "other_tests", module, begin), records):
                return False
    print(f"All tests pass. Your file is at the end of step {last}.")
    return True


# ---- points for a teacher ------------------------------------------------------------------------

MOST_ENDLESS = 3  # tests of one file that may take too long


def count_points(last, path, result):
    """Run all tests with a file. After each step, write its points to `result` as JSON."""
    points, notes, endless = [], [], 0

    def write():
        result.write_text(json.dumps([points, "; ".join(notes)]), encoding="utf-8")

    with log_of_program():
        module = load_file(path)
        if module is None:
            notes.append("cannot be imported")
            return write()
        if "webapp" in sys.modules:
            notes.append("imports webapp")
        for step in range(1, last + 1):
            points.append(0)
            for _, error in failures(step, module):
                points[-1] += error is None
                endless += isinstance(error, TooLong)
                if endless == MOST_ENDLESS:
                    notes.append(f"stopped in step {step}: {endless} tests did not end")
                    return write()
            write()
    return None


def points_of(last, path):
    """Return the points of a file for each step, and a note. The file runs in another process, so
    that a file which ends its process does not stop this program."""
    if not path.is_file():
        return [], "no mine.py"
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "points.json")
        command = [sys.executable, os.path.abspath(__file__), str(last), path.name]
        ended = subprocess.run(
            [*command, "--count", str(result)],
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        points, note = [], ""
        with contextlib.suppress(OSError, ValueError):  # the learner's file may have destroyed it
            points, note = json.loads(result.read_text(encoding="utf-8"))
    if ended.returncode:
        note = "; ".join(filter(None, [note, f"ended with status {ended.returncode}"]))
    elif len(points) < last and not note:
        note = "ended early"
    return points, note


def print_points(last, folder, table=None):
    """Print the points of all submissions in a folder as a table, and write them to a CSV file."""
    try:
        submissions = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        sys.exit(f"{folder} cannot be read: {error}")
    if not submissions:
        sys.exit(f"{folder} has no folders. Each submission is a file such as ada/mine.py in it.")
    most = [tests_of(step).count("\ndef test_") for step in range(1, last + 1)]
    width = max(len(path.name) for path in [*submissions, pathlib.Path("name")])
    steps = [*map(str, range(1, last + 1))]
    rows = [["name", *steps, "points", "note"], ["of", *most, sum(most), ""]]
    for row in rows:
        print_row(row, width)
    for path in submissions:
        points, note = points_of(last, path / "mine.py")
        shown = points + [""] * (last - len(points))
        rows.append([path.name, *shown, sum(points), note])
        print_row(rows[-1], width)
    if table is not None:
        write_table(rows, table)


def print_row(row, width):
    name, *points, total, note = row
    line = f"{name:{width}}" + "".join(f"{number:>4}" for number in points) + f"{total:>8}  {note}"
    print(line.rstrip(), flush=True)


def write_table(rows, path):
    """Write rows as CSV. The mark at the beginning tells Excel that the file is UTF-8."""
    try:
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            for name, *others in rows:
                # If a name began like this, a spreadsheet would read it as a formula.
                safe = f"'{name}" if str(name)[:1] in "=+-@" else name
                csv.writer(file).writerow([safe, *others])
    except OSError as error:
        sys.exit(f"{path} cannot be written: {error}")


# ---- the program ---------------------------------------------------------------------------------


def leave(status):
    """End the process, even if threads of the learner's file are still running."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(arguments):
    if arguments[:1] == ["--classroom"] and len(arguments) == 2:
        make_classroom(pathlib.Path(arguments[1]))
        return
    sys.stdout.reconfigure(encoding="utf-8")  # a Windows code page has no Japanese
    step = None
    if arguments and _NUMBER.fullmatch(arguments[0]):
        step, *arguments = int(arguments[0]), *arguments[1:]
    if step is not None and step not in range(len(TITLES) + 1):
        sys.exit(__doc__)
    what, *others = arguments or [None]
    if what == "--points" and step != 0 and len(others) in (1, 2):
        print_points(step or len(TITLES), *map(pathlib.Path, others))
    elif step is None or (step == 0 and what != "--text"):
        sys.exit(__doc__)
    elif what == "--hint" and len(others) <= 1 and all(map(_NUMBER.fullmatch, others)):
        print(hint(step, *map(int, others or ["1"])), end="")
    elif others[:1] == ["--count"] and len(others) == 2:
        leave(count_points(step, pathlib.Path(what), pathlib.Path(others[1])) or 0)
    elif any(given.startswith("-") for given in others) or len(others) > 1:
        sys.exit(__doc__)
    elif what is None:
        print(built(step), end="")
    elif what.startswith("-") and (others or what not in PRINTED):
        sys.exit(__doc__)
    elif what in PRINTED:
        print(PRINTED[what](step), end="")
    else:
        run_checks(step, *map(pathlib.Path, arguments))


def run_checks(step, *paths):
    """Run the tests with the learner's file, and end the process."""
    try:
        passed = check(step, *paths)
    except KeyboardInterrupt:
        print("stopped")
        leave(130)
    leave(0 if passed else 1)


_NUMBER = re.compile("[0-9]{1,9}")
PRINTED = {
    "--tests": lambda step: printed(tests_of(step), step),
    "--kept": lambda step: printed(f"{tests_of(step)}\n\n{kept_test(step)}", step),
    "--text": text_of,
}


if __name__ == "__main__":
    main(sys.argv[1:])
