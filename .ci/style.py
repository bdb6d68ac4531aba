#!/usr/bin/env python3
"""style.py: judges the style of webapp.py and of its tests, and prints what it finds.

The tests themselves are about what the framework does. Whether a reader finds their way through
them is a question of its own, and this program asks it: whether each thing stands below what it is
made of, whether a name means one thing, and whether the code is as dense as was promised. Exit
status 1 if it finds something.
"""

import ast
import collections
import doctest
import io
import os
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).parents[1]
FILE, TESTS = ROOT / "webapp.py", ROOT / "test_webapp.py"
FILES_OF_TESTS = [ROOT / "conftest.py", TESTS, *sorted(ROOT.glob("examples/**/test_*.py"))]
# A name that a section may use although a later one defines it, with the reason.
DEFINED_BELOW = {
    "_observer": "what an application tells its server is read with the server's side of WSGI",
    "_BodyFile": "it is what a server gives an application, and request.stream looks the same",
    "_report": "the log tells of requests and routes, so these are explained first",
    "_run": "WebApp.run is a convenience of the application, and serving is the last thing a "
    "reader needs to know",
}


# The functions that evaluate source text, and why their text is source.
EVALUATED = {
    "test_webapp.py, from_a_file_named": "a program whose file has a name with line ends",
    "test_webapp.py, template_string": "template strings are a mistake in Python 3.13",
    "test_webapp.py, load_copy": "the file",
    "test_webapp.py, run_program": "a program with a mistake, and as its message says to write it",
    "test_webapp.py, test_static_of_the_own_folder_is_a_warning": "a program in that folder",
    "test_building.py, module_of": "the file of the course with a mistake",
    "test_examples.py, load": "a program of the examples",
    "test_examples.py, test_tests_of_the_testing_lesson_pass": "a program of the examples",
    "test_examples.py, run_program": "a program of a document",
    "test_playground.py, engine": "the program of a page",
    "test_reading.py, load": "a copy of the file with a mistake",
    "test_reading.py, suite_for": "a copy of these tests with a change",
}
MEASURED_TIME = re.compile(r"#[^\"\n]*?(?:\d (?:µs|ms)\b|\b\d+ times as)")


def parse(path):
    """Return the text and the tree of a file."""
    source = path.read_text(encoding="utf-8")
    return source, ast.parse(source)


# ---- each thing stands below what it is made of --------------------------------------------------


def names_of_code(node):
    """The names in a statement but for its annotations: a type checker reads annotations, and a
    reader need not know their names beforehand.

    >>> [name.id for name in names_of_code(ast.parse("def f(a: b) -> c: return d"))]
    ['d']
    """
    annotations = [
        getattr(each, kind)
        for each in ast.walk(node)
        for kind in ("annotation", "returns")
        if getattr(each, kind, None) is not None
    ]
    skipped = {id(each) for annotation in annotations for each in ast.walk(annotation)}
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return [name for name in names if id(name) not in skipped]


def forward_uses(tree, part_of):
    """List each name that one part of a file reads and a later part defines; `part_of` gives the
    part of a line.

    >>> forward_uses(ast.parse("a = b" + "\\n" + "b = 1"), lambda line: line)
    [('b', 1)]
    """
    defined, read = {}, []
    for node in tree.body:
        part, names = part_of(node.lineno), names_of_code(node)
        own = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        for name in [node.name] if hasattr(node, "name") else own:
            defined.setdefault(name, part)
        for each in ast.walk(node):
            if isinstance(each, ast.arg):
                own.add(each.arg)
            elif isinstance(each, (ast.ExceptHandler, ast.FunctionDef)):
                own.add(each.name)
        read += [(name.id, part, name.lineno) for name in names if name.id not in own]
    return [(name, line) for name, part, line in read if defined.get(name, part) > part]


def check_order_of_sections():
    """Yield each name that a section uses and a later one defines."""
    source, tree = parse(FILE)
    begins = [n for n, line in enumerate(source.split("\n"), 1) if line.startswith("# ---- ")]
    found = forward_uses(tree, lambda line: sum(begin <= line for begin in begins))
    for name, line in found:
        if name not in DEFINED_BELOW:
            yield f"webapp.py:{line}: {name} is defined in a later section"
    for name in {*DEFINED_BELOW} - {name for name, _ in found}:
        yield f"no section needs the exception for {name}"


def check_order_of_helpers():
    """Yield each helper of the tests that is used above its definition."""
    for name, line in forward_uses(parse(TESTS)[1], lambda line: line):
        yield f"test_webapp.py:{line}: {name} is defined below"


# ---- a name means one thing ----------------------------------------------------------------------


def check_names():
    """Yield each name of a module that is given twice, and so replaces another thing."""
    for path in (FILE, TESTS):
        counts = collections.Counter()
        for node in parse(path)[1].body:
            targets = [*getattr(node, "targets", [])]
            if isinstance(node, ast.With):  # it would give names, too
                yield f"{path.name}:{node.lineno}: a block outside of a function"
            if isinstance(node, ast.AnnAssign):
                targets.append(node.target)
            for target in targets:  # but for the variable of a loop, which is used in the loop only
                names = [each for each in ast.walk(target) if isinstance(each, ast.Name)]
                counts.update(each.id for each in names if isinstance(each.ctx, ast.Store))
            counts.update([node.name] if hasattr(node, "name") else [])
        for name, count in counts.items():
            if count > 1:
                yield f"{path.name}: {name} is defined {count} times"


def check_test_names():
    """Yield each test whose name does not fit a line with its arguments."""
    for path in FILES_OF_TESTS:
        for node in parse(path)[1].body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                line = f"def {node.name}({ast.unparse(node.args)}):"
                if len(line) > 100:
                    yield f"{path.name}:{node.lineno}: {len(line)} columns: {line}"


# ---- source text stands in strings only where it is what is tested -------------------------------


def functions_that_evaluate(tree):
    """List the function around each use of what evaluates source text, `module` outside of one:

    >>> functions_that_evaluate(ast.parse("def f(): return eval('1')" + "\\n" + "map(exec, [])"))
    ['f', 'module']
    """
    found = []
    for node in tree.body:
        for each in ast.walk(node):
            name = getattr(each, "id", getattr(each, "attr", None))
            if name in ("eval", "exec", "exec_module", "run_path"):
                found.append(getattr(node, "name", "module"))
    return found


def check_evaluated_text():
    """Yield each function that evaluates source text: an editor does not find what is in it."""
    found = [
        f"{path.name}, {function}"
        for path in FILES_OF_TESTS
        for function in functions_that_evaluate(parse(path)[1])
    ]
    for each in found:
        if each not in EVALUATED:
            yield f"{each}: evaluates text"
    for each in EVALUATED:
        if found.count(each) != 1:
            yield f"{each}: evaluates text {found.count(each)} times"


# ---- the code is no denser than promised ---------------------------------------------------------


def tokens_of_code(source):
    """Yield each token that is no comment, line end or indent; a formatted string is one of them.

    On Python 3.12 and newer a formatted string arrives in parts: only its first part is taken.
    """
    quiet = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        if depth == 0 and name not in quiet:
            yield token
        depth += name in ("FSTRING_START", "TSTRING_START")
        depth -= name in ("FSTRING_END", "TSTRING_END")


def count_tokens(source, tree):
    """Return the number of tokens of code, and the number of lines that such a token touches.

    Docstrings do not count. A formatted string is one token, and the tokens of each value within
    it count, too, so f"{path.name}!" has four. Each version of Python gives the same numbers.

    >>> count_tokens("f'{path.name}!'", ast.parse("f'{path.name}!'"))
    (4, 1)
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings, within, lines = set(), 0, set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings.add(node.body[0].lineno)
        elif isinstance(node, ast.FormattedValue):
            within += len([*tokens_of_code(ast.unparse(node.value))])
        elif isinstance(node, (ast.Constant, ast.JoinedStr)) and node.lineno not in docstrings:
            # A docstring is walked behind its function or class, and so it is known.
            lines.update(range(node.lineno, node.end_lineno + 1))
    tokens = [
        token
        for token in tokens_of_code(source)
        if token.type != tokenize.STRING or token.start[0] not in docstrings
    ]
    lines.update(token.start[0] for token in tokens)
    return len(tokens) + within, len(lines)


def count_statements_lines(function):
    """Return the number of lines of a function without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    lines = function.end_lineno - function.lineno + 1
    return lines - (docstring.end_lineno - docstring.lineno + 1 if docstring else 0)


def tokens_on_a_line(path):
    """Return the mean number of tokens on a line of code."""
    tokens, lines = count_tokens(*parse(path))
    return tokens / lines


def widest_line(*patterns):
    """Return the columns of the longest line in the files that the patterns name."""
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    return max(len(line) for file in files for line in file.read_text("utf-8").splitlines())


def check_budgets():
    """Yield each number that is larger than promised."""
    source, tree = parse(FILE)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    # A name of this form is that of a logger, too.
    keys = {*re.findall(r'"(webapp\.\w+)"', source)} - {"webapp.access"}
    for what, now, most in (
        ("columns", widest_line("*.py", "examples/**/*.py", ".ci/**/*.py"), 100),
        ("tokens on a line of the file", tokens_on_a_line(FILE), 8.6),
        ("tokens on a line of the tests", tokens_on_a_line(TESTS), 8.6),
        (
            "functions of more than 60 lines",
            sum(count_statements_lines(each) > 60 for each in functions),
            2,
        ),
        ("memos", len(re.findall(r"lru_cache\(|functools.cache", source)), 7),
        ("keys in the environ", len(keys), 1),
        ("comments with a measured time", len(MEASURED_TIME.findall(source)), 0),
    ):
        if now > most:
            yield f"{now} {what}, and {most} are promised"


# ---- tests go the public ways --------------------------------------------------------------------

MOST_PRIVATE = 70  # tests that reach into private names of the file
A_PRIVATE_NAME = re.compile(r"_[A-Za-z]\w*")


def given_names(tree):
    """The names of functions, classes and variables, those of attributes, and those in __slots__.

    >>> sorted(given_names(ast.parse("class A: __slots__ = '_b', '_c'" + "\\n" + "d.e = '_f'")))
    ['A', '__slots__', '_b', '_c', 'e']
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))


def tests_that_reach(tree, private):
    """List the tests in which one of these names stands behind a dot or as a text, or which use
    what reaches it: a helper, a fixture or a table.

    >>> lines = ["def f(): a._b", "c = [f]", "def test_one(): c", "def test_two(): d._e"]
    >>> tests_that_reach(ast.parse(chr(10).join(lines)), {"_b"})
    ['test_one']
    """
    uses, reach = {}, set()
    for node in tree.body:
        names, direct = set(), False
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute):
                owner = getattr(each.value, "id", None)
                direct |= each.attr in private and owner not in sys.stdlib_module_names
            elif isinstance(each, ast.Constant):
                direct |= isinstance(each.value, str) and each.value in private
            elif isinstance(each, (ast.Name, ast.arg)):
                names.add(getattr(each, "id", getattr(each, "arg", None)))
        stored = [
            each.id
            for each in ast.walk(node)
            if isinstance(getattr(each, "ctx", 0), ast.Store) and isinstance(each, ast.Name)
        ]
        for name in [node.name] if hasattr(node, "name") else stored:
            uses.setdefault(name, set()).update(names - {name})
            reach |= {name} if direct else set()
    while more := {name for name in uses if uses[name] & reach} - reach:
        reach |= more
    return [name for name in uses if name in reach and name.startswith("test_")]


def check_private_names():
    """Yield the tests that reach into private names of the file, if they are more than promised."""
    private = {name for name in given_names(parse(FILE)[1]) if A_PRIVATE_NAME.fullmatch(name)}
    private -= {name for module in (os, sys) for name in dir(module)}
    found = tests_that_reach(parse(TESTS)[1], private)
    if len(found) > MOST_PRIVATE:
        yield f"{len(found)} tests reach into private names, and {MOST_PRIVATE} are promised:"
        yield from found


def check_imports():
    """Yield what the file imports from outside the standard library, for type checkers, too."""
    for node in ast.walk(parse(FILE)[1]):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module]
        for name in names:
            if name.partition(".")[0] not in {*sys.stdlib_module_names, "__main__"}:
                yield f"{FILE.name}:{node.lineno}: {name} is not in the standard library"


CHECKS = [
    check_order_of_sections,
    check_order_of_helpers,
    check_names,
    check_test_names,
    check_evaluated_text,
    check_private_names,
    check_imports,
    check_budgets,
]


def main():
    found = [line for check in CHECKS for line in check()]
    print("\n".join(found) or f"style.py: {len(CHECKS)} checks passed")
    return 1 if found or doctest.testmod().failed else 0


if __name__ == "__main__":
    sys.exit(main())
