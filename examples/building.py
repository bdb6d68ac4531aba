"""Build your own framework: the program beside the course in `building.rst`.

    python3 examples/building.py 3 > mine.py     print the file at the end of step 3
    python3 examples/building.py 3 mine.py       run the tests of steps 1 to 3 with your file
    python3 examples/building.py 3 --tests       print the tests of step 3
    python3 examples/building.py 3 --kept        print them with one test that a teacher keeps back
    python3 examples/building.py 3 --text        print step 3 without its hint (0: the introduction)

`building.rst` holds all tests of the course, and `solutions.rst` holds all code. This program cuts
them out.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import logging
import pathlib
import re
import sys
import textwrap
import traceback
import types

COURSE = pathlib.Path(__file__).with_name("building.rst")
SOLUTIONS = COURSE.with_name("solutions.rst")
TEACHING = COURSE.with_name("teaching.rst")
TITLES = re.findall(r"^(Step \d+: .+)\n=+$", COURSE.read_text(encoding="utf-8"), re.MULTILINE)


# ---- the text ------------------------------------------------------------------------------------


def chapter(title, file=COURSE):
    """Return the text below a title, up to the next title."""
    text = file.read_text(encoding="utf-8")
    below = text.partition(f"\n{title}\n{'=' * len(title)}\n")[2]
    return re.split(r"\n[^\n]+\n={3,}\n", below)[0]


def part(title, name, file=COURSE):
    """Return the text of a chapter below a line in bold, up to the next such line."""
    below = re.split(rf"^\*\*{name}\*\*$", chapter(title, file), flags=re.MULTILINE)[1]
    return below.partition("\n**")[0]


def solution(title):
    """Return the solution of a step."""
    return part(title, "One way to write it", SOLUTIONS)


def text_of(step):
    """Return the text of a step without its hint, for a teacher to hand out. Step 0 is the text
    before the first one."""
    title = ["Before the first step", *TITLES][step]
    parts = re.split(r"^(?=\*\*[^*]+\*\*$)", chapter(title), flags=re.MULTILINE)
    kept = [text for text in parts if not text.startswith("**Hint**")]
    return f"{title}\n{'=' * len(title)}\n" + "".join(kept).rstrip("\n") + "\n"


def blocks(text, language):
    """Return the blocks of code in a text, without their indents."""
    found = re.findall(rf"^\.\. code:: {language}\n\n((?: {{4}}.*\n|\n)+)", text + "\n", re.M)
    return [textwrap.dedent(block).strip("\n") + "\n" for block in found]


@functools.cache
def tests_of(step):
    """Return the tests of a step as a program, behind all helpers of the steps before."""
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
    """Return the test of a step that a teacher keeps back."""
    (test,) = blocks(part("Tests that you keep back", f"Step {step}", TEACHING), "python")
    return test


# ---- the learner's file --------------------------------------------------------------------------


def pieces(source):
    """Return name and text of each statement, with the comments above it."""
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
    """Return the head of a class, and name and text of each member."""
    (node,) = ast.parse(text).body
    lines, end, found = text.splitlines(), node.body[0].lineno - 1, []
    head = "\n".join(lines[:end])
    for member in node.body:
        name = getattr(member, "name", None) or ast.unparse(member).partition(" = ")[0]
        found.append((name, "\n".join(lines[end : member.end_lineno]).strip("\n")))
        end = member.end_lineno
    return head, found


def changes(text):
    """Tell whether the text of a class begins with `...`, and so leaves its other members."""
    return members(text)[1][0][0] == "..."


def merged(old, new):
    """Return a class with the members of another text, which replace those of the same name. A
    member such as `del name` removes one."""
    head, before = members(old)
    kept = dict(before)
    for name, text in members(new)[1][1:]:
        if name.startswith("del "):
            del kept[name[4:]]
        else:
            kept[name] = text
    return head + "\n" + "\n\n".join(kept.values())


def built(step):
    """Return the learner's file at the end of a step; for step 0 it is empty."""
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
    """Return the comparisons that an assertion consists of; none if it consists of others, too."""
    parts = statement.test.values if isinstance(statement.test, ast.BoolOp) else [statement.test]
    return parts if all(isinstance(part, ast.Compare) for part in parts) else []


@functools.lru_cache(maxsize=32)
def compiled_tests(source, file):
    """Compile tests. Each assertion keeps the left side of its comparison, for `values_at`."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for part in comparisons(node) if isinstance(node, ast.Assert) else []:
            name = ast.copy_location(ast.Name("_left", ast.Store()), part.left)
            part.left = ast.copy_location(ast.NamedExpr(name, part.left), part.left)
    return compile(tree, file, "exec", dont_inherit=True)


def load(source, name="mine", compiler=compiled):
    """Return a module made of a text."""
    module = types.ModuleType(name)
    module.__file__ = f"{name}.py"
    linecache.cache[module.__file__] = (len(source), None, source.splitlines(True), name)
    exec(compiler(source, module.__file__), module.__dict__)
    return module


def failures(step, module):
    """Run the tests of a step with a module; yield name and exception (None: it passed)."""
    earlier = sys.modules.get("mine")
    sys.modules["mine"] = module
    try:
        tests = load(tests_of(step), f"tests_of_step_{step}", compiled_tests)
        for name, test in vars(tests).copy().items():
            if name.startswith("test_"):
                try:
                    test()
                except Exception as error:
                    yield name, error
                else:
                    yield name, None
    finally:
        del sys.modules["mine"]
        if earlier is not None:
            sys.modules["mine"] = earlier


def values_in(frame, number):
    """Yield name and value of what the statements at a line name: the statement that has failed,
    and the loops around it."""
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
    """Return a line for each value that a test had when it failed."""
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


def check(last, path):
    """Run the tests of the steps up to `last` with a file; return whether all pass."""
    failed, handler = [], logging.Handler(logging.ERROR)
    handler.emit = failed.append  # not to the terminal, because many tests fail on purpose
    logging.getLogger("webapp").addHandler(handler)
    module = load(pathlib.Path(path).read_text(encoding="utf-8"))
    for step in range(1, last + 1):
        print(TITLES[step - 1])
        for name, error in failures(step, module):
            print("  ok    " if error is None else "  FAILS ", name[5:].replace("_", " "))
            if error is not None:
                lines = traceback.format_exception(type(error), error, error.__traceback__.tb_next)
                lines += [f"{line}\n" for line in values_at(error)]
                if failed and failed[-1].exc_info:
                    lines += ["The last failure in the log of your program:\n"]
                    lines += traceback.format_exception(*failed[-1].exc_info)
                print(textwrap.indent("".join(lines), "      "), end="")
                print("Mend this one first: a later checkpoint builds on it.")
                return False
            failed.clear()
    print(f"Your file is at the end of step {last}.")
    return True


def main(arguments):
    first = 0 if arguments[1:] == ["--text"] else 1
    if not arguments or not arguments[0].isdigit() or not first <= int(arguments[0]) <= len(TITLES):
        sys.exit(__doc__)
    step = int(arguments[0])
    sys.stdout.reconfigure(encoding="utf-8")  # a Windows code page has no Japanese
    if len(arguments) == 1:
        print(built(step), end="")
    elif arguments[1] == "--tests":
        print(tests_of(step), end="")
    elif arguments[1] == "--kept":
        print(f"{tests_of(step)}\n\n{kept_test(step)}", end="")
    elif arguments[1] == "--text":
        print(text_of(step), end="")
    else:
        sys.exit(not check(step, arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
