"""The tests of the course in `building.rst`: each step is built from the text, and its tests pass
with it and with webapp.py, and fail with the step before."""

from __future__ import annotations

import contextlib
import doctest
import functools
import gc
import html
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import types
import urllib.parse
import xml.etree.ElementTree as ElementTree
from unittest import mock

import pytest

# A script finds webapp.py, even if not installed.
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[2]))
import building
from test_reading import compiled_parts, places

import webapp

TEXT = building.COURSE.read_text(encoding="utf-8")
STEPS = range(1, len(building.TITLES) + 1)
every_step = pytest.mark.parametrize("step", STEPS)
built = functools.cache(building.built)


@pytest.fixture
def impatient(monkeypatch):
    """Let nobody wait long for what a mistake leaves undone."""
    connect = socket.create_connection
    monkeypatch.setattr(
        socket, "create_connection", lambda address, *_, **options: connect(address, timeout=1)
    )


def fails(step, module):
    """Tell whether a test of a step fails; those behind it do not run."""
    with contextlib.closing(building.failures(step, module)) as outcomes:
        return any(error is not None for _, error in outcomes)


@every_step
def test_tests_of_a_step_pass_with_the_file_of_the_course(step):
    for earlier in range(1, step + 1):
        for name, error in building.failures(earlier, building.load(built(step))):
            if error is not None:
                raise AssertionError(f"step {earlier}: {name}") from error


@every_step
def test_tests_of_a_step_pass_with_the_file_of_the_course_in_a_hurry_too(step, impatient):
    """So a mistake is what fails the tests below, and not the hurry."""
    assert not fails(step, building.load(built(step)))


@every_step
def test_tests_of_a_step_pass_with_webapp_itself(step):
    for name, error in building.failures(step, webapp):
        if error is not None:
            raise AssertionError(name) from error


@every_step
def test_tests_of_a_step_fail_with_the_step_before(step, impatient):
    assert fails(step, building.load(built(step - 1)))


def run_session(session):
    """Type a session at the prompt, and return what differs from it."""
    parser, options = doctest.DocTestParser(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = parser.get_doctest(session, {"__name__": "__main__"}, "prompt", None, 0)
    # Without `verbose=False` it tells of each example where pytest has the option -v.
    runner, told = doctest.DocTestRunner(verbose=False, optionflags=options), []
    runner.run(test, out=told.append)
    return "".join(told)


@every_step
def test_failure_at_the_prompt_is_real(step):
    (session,) = building.blocks(building.part(building.TITLES[step - 1], "Today"), "pycon")
    with mock.patch.dict(sys.modules, mine=building.load(built(step - 1))):
        assert run_session(session) == ""


@every_step
@pytest.mark.parametrize("whose", ["mine", "webapp"])
def test_page_of_a_step_shows_what_the_text_says(step, whose, monkeypatch):
    (page,) = building.blocks(building.part(building.TITLES[step - 1], "See it"), "python")
    shown = re.findall(
        r"^- http://localhost:8000(/.*) shows ``(.+?)``",
        building.part(building.TITLES[step - 1], "See it"),
        re.MULTILINE,
    )
    assert shown
    module = building.load(built(step)) if whose == "mine" else webapp
    served = []
    see = types.ModuleType("see")
    see.serve = served.append
    monkeypatch.setattr(module.WebApp, "run", lambda app: served.append(app), raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with mock.patch.dict(sys.modules, mine=module, see=see):
        building.load(page, "page")
        ask = building.load(building.tests_of(1)).ask
    (app,) = served
    for address, text in shown:
        path, _, query = address.partition("?")
        answer = ask(app, "GET", path, QUERY_STRING=urllib.parse.quote(query, "=&"))
        body = answer.body.decode()
        if answer.headers["Content-Type"].startswith("text/html"):
            body = html.unescape(re.sub(r"<[^>]+>", "", body))
        assert text in body


@every_step
def test_step_has_all_its_parts_and_names_places_of_webapp(step):
    title = building.TITLES[step - 1]
    names = re.findall(r"^\*\*(.+)\*\*$", building.chapter(title), re.MULTILINE)
    assert names == [
        "Today",
        "Questions",
        "Checkpoints",
        "Hint",
        "See it",
        "Now read",
    ]
    tests = re.findall(r"^def (test_\w+)", building.tests_of(step), re.MULTILINE)
    numbers = re.findall(
        r"^\*Checkpoint (\d+)\.\*", building.part(title, "Checkpoints"), re.MULTILINE
    )
    assert list(map(int, numbers)) == list(range(1, len(tests) + 1))
    read = building.part(title, "Now read")
    asked = [name for item in re.findall("^- (.+?):", read, re.M) for name in item.split(", ")]
    assert len(asked) >= 2
    assert [name for name in asked if name.strip("`") not in places()] == []
    # Each question has an answer behind it.
    items = re.split("^- ", read, flags=re.M)[1:]
    assert [item for item in items if not re.search(r"\?\s+\(", item)] == []


@every_step
def test_each_question_of_a_step_has_an_answer(step):
    title = building.TITLES[step - 1]
    questions = building.part(title, "Questions")
    answers = building.part(title, "Answers", building.SOLUTIONS)
    assert questions.count("\n- ") == answers.count("\n- ") >= 3


def functions_of(step):
    """Yield name and text of each function and each method that the solution of a step shows."""
    for block in building.blocks(building.solution(building.TITLES[step - 1]), "python"):
        for name, text in building.pieces(block):
            if not text.startswith("class "):
                yield name, text
            else:
                for member, lines in building.members(text)[1]:
                    yield f"{name}.{member}", lines


def test_solution_shows_no_function_twice():
    shown, again = {}, []
    for step in STEPS:
        for name, text in functions_of(step):
            if "def " in text and shown.get(name) == text:
                again.append((step, name))
            shown[name] = text
    # The head of the class changes in step 3.
    assert again == [(3, "WebApp.on_request")]


def test_course_has_steps_in_order_and_short_lines():
    numbers = [int(re.search(r"\d+", title)[0]) for title in building.TITLES]
    assert numbers == list(STEPS)
    sizes = [len(built(step).splitlines()) for step in STEPS]
    assert sizes == sorted(sizes)
    lines = TEXT.splitlines() + building.SOLUTIONS.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 100 and "AssertionError" not in line] == []


@pytest.mark.parametrize("name", ["building", "solutions", "teaching", "reading"])
def test_no_sentence_of_a_course_begins_with_a_clause(name):
    text = building.COURSE.with_name(f"{name}.rst").read_text(encoding="utf-8")
    prose = re.sub(r"^( *)\.\. (?:code|image)::.*\n(?:\1 +.*\n|\n)+", "\n", text, flags=re.M)
    sentences = re.findall(
        r"(?:^- |^|[.?:)] )((?:What|Whatever|Who|Whoever|Where|Of) [^.?]*[.?])", prose, re.M
    )
    assert [sentence for sentence in sentences if not sentence.endswith("?")] == []


# ---- plausible mistakes --------------------------------------------------------------------------

# Step, lines of its file, and what a learner might write in their place.
MISTAKES = [
    (1, 'b"" if environ["REQUEST_METHOD"] == "HEAD" else body', "body"),
    (1, '[b"" if environ["REQUEST_METHOD"] == "HEAD" else body]', "body"),
    (1, "str(len(body))", "len(body)"),
    (2, "self._send(value)\n        return True", "self._send(value)\n        return False"),
    (
        2,
        "self._build(data, content_type)",
        'self._build(data, "application/octet-stream")',
    ),
    (2, "text.encode(), _TEXT", 'text.encode("latin-1"), _TEXT'),
    (2, "if value is not None and value is not self:", "if value and value is not self:"),
    (2, "not self.sent and value is None", "not self.sent and not value"),
    (2, "name.lower(): _check", "name: _check"),
    (2, r"[^\x20-\x7e\x80-\xff]", r"[^\x20-\x7e\x80-\xff\r\n]"),
    (2, "_TOKEN.fullmatch", "_TOKEN.match"),
    (2, "if code >= 200", "if code"),
    (2, ", allow_nan=False", ""),
    (2, ", ensure_ascii=False", ""),
    (2, "_BODILESS = {204, 205, 304}", "_BODILESS = {204, 304}"),
    (2, "if status in (204, 304)", "if status == 204"),
    (2, "if self._state == _HANDED_OVER", "if self.sent"),
    (2, "self._state = _HANDED_OVER", "pass"),
    (3, "[0-9]{1,18}", r"\\d+"),
    (3, "_INTEGER.fullmatch", "_INTEGER.match"),
    (3, 'text.encode("latin-1").decode("utf-8")', "text"),
    (3, 'path.split("/") if segment', 'path.split("/")'),
    (3, "[*values, int(segment)]", "[*values, segment]"),
    (3, 'node.routes.setdefault("HEAD", route)', 'node.routes["HEAD"] = route'),
    (3, "if node.name is not None", "elif node.name is not None"),
    (3, "methods.update(node.routes)", "methods = set(node.routes)"),
    (3, "if method in node.routes:", "if node.routes:"),
    (3, ', ".join(sorted(methods))', ', ".join(sorted(methods, reverse=True))'),
    (3, "code(405 if methods else 404)", "code(404)"),
    (3, "other.method == route.method", "False"),
    (3, "len(names) != len(set(names))", "False"),
    (3, "            return handler\n", ""),
    (4, "response._undo_step(headers_before, status)", "response._status = status"),
    (4, "self._headers = headers\n", "self._headers = {}\n"),
    (4, "self._headers = headers\n", "pass\n"),
    (5, "self._status = status\n        self._body = None", "self._status = status"),
    (
        4,
        "self.text(_STATUS_LINES[self.status])",
        "self.text(self.reason or _STATUS_LINES[self.status])",
    ),
    (4, 'if key != "content-type"', "if key"),
    (
        4,
        "if response.sent:\n            return\n        response._undo",
        "response._state = _OPEN\n        response._undo",
    ),
    (
        4,
        "return _check_status(self.resolve_status_code(cause))",
        "return self.resolve_status_code(cause)",
    ),
    (4, "repr(context.request.path)", "context.request.path"),
    (4, "level = logging.ERROR if status >= 500 else logging.DEBUG", "level = logging.ERROR"),
    (4, "exc_info=trace", "exc_info=None"),
    (4, "except UnicodeError", "except KeyError"),
    (4, 'weights[0].strip("0.") != ""', "True"),
    (4, 'weights[0].strip("0.") != ""', 'weights[0] != "0"'),
    (4, "finally:\n            self._complete(context)", "finally:\n            pass"),
    (
        4,
        "return [context.response._hand_over(start_response)]\n        finally:\n"
        "            self._complete(context)",
        "pass\n        finally:\n"
        "            self._complete(context)\n"
        "        return [context.response._hand_over(start_response)]",
    ),
    (4, "_LOG.error(_HOOK_FAILED", "_LOG.debug(_HOOK_FAILED"),
    (4, "for name, value in cause.headers.items()", "for name, value in ()"),
    (
        5,
        "for scope in reversed(scopes) for hook in scope._before",
        "for scope in scopes for hook in scope._before",
    ),
    (
        5,
        "for scope in scopes for hook in scope._after",
        "for scope in reversed(scopes) for hook in scope._after",
    ),
    (
        5,
        "for scope in scopes for hook in scope._error",
        "for scope in reversed(scopes) for hook in scope._error",
    ),
    (5, "self._miss_hooks.before = []", "pass"),
    (5, "self._miss_hooks = _Hooks(self)\n", "self._miss_hooks = _Hooks()\n"),
    (5, "context._hooks = _NO_HOOKS\n", "pass\n"),
    (5, "if value is None or value is self:", "if not value or value is self:"),
    (5, "self.status < 300", "self.status < 400"),
    (5, "built = value is self and (", "built = ("),
    (
        5,
        "                headers_before = response._headers\n            if context._miss",
        "            if context._miss",
    ),
    (
        5,
        "                    return\n                headers_before = response._headers\n",
        "                    return\n",
    ),
    (5, "response._restore(saved)", "pass"),
    (5, "_LOG.error(_HOOK_FAILED", "_LOG.debug(_HOOK_FAILED"),
    (
        5,
        "if response.sent:\n                return\n        response._send_default",
        "pass\n        response._send_default",
    ),
    (5, "response._send_default()  # what", "pass  # what"),
    (
        5,
        "for hook in [*context._hooks.error, _send_what_was_built]",
        "for hook in [_send_what_was_built, *context._hooks.error]",
    ),
    (
        5,
        "if response._send_if_answered(self.on_request(context)):\n"
        "                context._hooks = _NO_HOOKS\n",
        "hooks, context._hooks = context._hooks, _NO_HOOKS\n"
        "            if not response._send_if_answered(self.on_request(context)):\n"
        "                context._hooks = hooks\n"
        "            else:\n",
    ),
    (5, "self._sealed = True", "pass"),
    (5, "if not route.handlers:", "if False:"),
    (5, 'Scope(self._app, self, f"{self._prefix}/{prefix}")', "Scope(self._app, self, prefix)"),
    (5, "Scope(self._app, self, f", "Scope(self._app, None, f"),
    (6, "read(length)", "read()"),
    (6, "if len(data) < length:", "if False:"),
    (6, "if length > self._app._max_body_size:", "if False:"),
    (6, "length > self._app", "length >= self._app"),
    (6, "_LENGTH.fullmatch(sent)", "sent.isascii() or not sent.isdigit()"),
    (6, "_LENGTH.fullmatch(sent)", "(sent.isascii() and sent.isdigit())"),
    (6, ', errors="strict"', ""),
    (6, "keep_blank_values=True, ", ""),
    (6, "(HttpException, KeyError)", "(HttpException)"),
    (6, "raise _MissingField(400, f", "raise KeyError(f"),
    (6, "except (ValueError, RecursionError)", "except ValueError"),
    (6, ", parse_constant=_refuse_constant", ""),
    (6, '.partition(";")[0].strip().lower()', ""),
    (6, "return self._values[name][0]", "return self._values[name][-1]"),
    (
        6,
        "made = executor()\n",
        "made = executor.made = getattr(executor, 'made', None) or executor()\n",
    ),
    (6, "context.response.code(422)", "raise HttpException(422)"),
    (6, '{**given, "validation": self._errors}', '{"validation": self._errors, **given}'),
    (6, "if not made.canceled:\n        return value\n", "if False:\n        pass\n"),
    (6, "if not made.canceled:", "if True:"),
    (6, "texts if texts[1:] else texts[0]", "texts[0]"),
    (6, '("query", "form", "json")', '("form", "query", "json")'),
    (
        6,
        "                    return\n            response._send()",
        "                    return\n                headers_before = response._headers\n"
        "            response._send()",
    ),
    (6, "with contextlib.suppress(HttpException)", "with contextlib.suppress(OSError)"),
    (7, "return html.escape(str(value))", "return html.escape(str(value), quote=False)"),
    (7, "return html.escape(str(value))", "return str(value)"),
    (7, "if values:\n", "if True:\n"),
    (7, "_HtmlFormatter().vformat(template, (), values)", "template.format(**values)"),
    (7, "elif format_spec:", "elif False:"),
    (7, "Markup(str(self) + _as_html(other))", "Markup(str(self) + str(other))"),
    (7, "Markup(_as_html(other) + str(self))", "Markup(str(other) + str(self))"),
    (7, "Markup(str(self).join(map(_as_html, items)))", "Markup(str(self).join(items))"),
    (7, "return cls(_as_html(value))", "return cls(html.escape(str(value)))"),
    (7, "Markup(_HtmlFormatter().vformat(self, ", "str(_HtmlFormatter().vformat(self, "),
    (
        7,
        'if hasattr(value, "__html__"):\n            self.html',
        "if False:\n            self.html",
    ),
    (8, 'if "_" in name:', "if False:"),
    (8, "or _NOT_IN_FIELD.search(value)", ""),
    (8, "or not _TOKEN.fullmatch(name)", ""),
    (8, 'unquote(path, "latin-1")', "unquote(path)"),
    (8, 'urllib.parse.unquote(path, "latin-1")', "path"),
    (8, "+) (/[!-~]*) HTTP", "+) +(/[!-~]*) HTTP"),
    (8, 'if minor == "1" and "HTTP_HOST" not in environ', "if False"),
    (8, 'if not _LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "0"))', "if False"),
    (
        8,
        '_LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "0"))',
        'environ.get("CONTENT_LENGTH", "0").isdigit()',
    ),
    (8, 'raise HttpException(501, "a body in chunks")', "pass"),
    (
        8,
        'if "HTTP_TRANSFER_ENCODING" in environ:',
        'if "HTTP_TRANSFER_ENCODING" in environ and "CONTENT_LENGTH" not in environ:',
    ),
    (8, "os_environ = {}", "pass"),
    (8, 'http_version = "1.1"', "pass"),
    (8, "elif not self._has_no_body():", "else:"),
    (8, 'del self.headers["Content-Length"]', "pass"),
    (8, "        if not self.bodiless:\n            super", "        if True:\n            super"),
    (8, "except BaseException:\n            self.log", "except KeyError:\n            self.log"),
    (8, "self.base_env", "self.environ"),
    (8, "                except OSError:\n", "                except KeyError:\n"),
    (8, "time.sleep(0.1)", "pass"),
    (8, "except Exception as error:  # such", "except KeyError as error:  # such"),
    (8, "io.BytesIO(body), sock", "reader, sock"),
    (8, "if len(body) < length:", "if False:"),
    (8, 'raise HttpException(400, "a line end without CR")', "pass"),
    (8, r'_NOT_IN_FIELD = re.compile(r"[^', r'_NOT_IN_FIELD = re.compile(r"[^\r'),
    (8, r'_NOT_IN_FIELD = re.compile(r"[^', r'_NOT_IN_FIELD = re.compile(r"[^\0'),
    (8, r"HTTP/1\.([01])", r"HTTP/[0-9]\.([01])"),
    (8, "+) (/[!-~]*) HTTP", "+) ([!-~]*) HTTP"),
    (8, '("204", "304")', '("204",)'),
    (8, "if not quiet:", "if True:"),
    (8, "file=sys.stderr", "file=sys.stdout"),
    (8, 'environ["SERVER_NAME"] = self.host', "pass"),
    (8, "except _ClientLeft:\n            raise", "except ConnectionError:\n            return"),
    (8, "BaseException:\n            self.handle", "Exception:\n            self.handle"),
    (8, "BaseException:\n            self.log", "Exception:\n            self.log"),
    (8, r'head.endswith(b"\r\n\r\n")', r'head.endswith(b"\r\n")'),
    (
        8,
        "except OSError:\n            pass  # the client has left\n        except Exception",
        "except KeyError",
    ),
    (8, r'value.strip(" \t")', "value"),
    (8, 'f"{environ[key]}, {value}" if key in environ else value', "value"),
    (8, 'environ["REMOTE_ADDR"] = address', "pass"),
    (8, 'if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):', "if True:"),
    (9, "self._body.begin()", "pass"),
    (9, "self._context.app._complete(self._context)", "pass"),
    (
        9,
        "[*context.request._closing, lambda: self.on_complete(context)]",
        "[lambda: self.on_complete(context), *context.request._closing]",
    ),
    (
        9,
        "if isinstance(body, bytes):\n                self._complete",
        "if True:\n                self._complete",
    ),
    (9, r'b"%x\r\n', r'b"%d\r\n'),
    (
        9,
        "super().finish_content()\n        if self.chunked",
        "super().finish_content()\n        if False",
    ),
    (9, "if modern and", "if"),
    (9, "        if not self.bodiless:\n            super", "        if True:\n            super"),
    (9, "_log_failure(self._context, cause, 500)", "pass"),
    (9, "len(head) > _MAX_HEAD", "False"),
    (9, "if _SINGLE_LF.search(head):", "if False:"),
    (9, "or _receive(self._sock, size)", "or self._sock.recv(size)"),
    (9, "max(until - time.monotonic(), 0.001)", "self.header_timeout"),
    (
        9,
        "except socket.timeout:\n            raise HttpException(408",
        "except KeyError:\n            raise HttpException(408",
    ),
    (9, "min(len(buffer), self._left)", "len(buffer)"),
    (9, "self._begun[:size] or _receive(self._sock, size)", "_receive(self._sock, size)"),
    (9, 'elif hasattr(value, "__next__")', "elif False"),
    (
        10,
        "            self._answer(connection)\n",
        "            with self._leading:\n                self._answer(connection)\n",
    ),
    (10, "len(self.data) >= self.length or self.length > _MAX_COLLECTED", "True"),
    (10, "long = connection.refusal is None and", "long = False and"),
    (10, "connection.refusal = refusal\n", "pass\n"),
    (
        10,
        "self._selector.unregister(self._listener)\n"
        "            self._pause_ends = time.monotonic() + 0.1\n",
        "pass\n",
    ),
    (
        10,
        "            self._selector.register(self._listener, selectors.EVENT_READ)\n        for",
        "        for",
    ),
    (10, "range(threads)", "range(1)"),
    (10, "range(threads)", "range(60)"),
    (10, "self._answered.append(connection)", "connection.socket.close()"),
    (10, "self._serve(connection)\n", "self._serve(connection)\n            time.sleep(1)\n"),
    (10, "            self._check_deadlines()\n", ""),
    (10, "self.data += more", "self.data = more"),
    (10, "return max(min(deadlines) - time.monotonic(), 0) if deadlines else None", "return None"),
    (10, "connection.socket.close()\n        for each", "pass\n        for each"),
    (10, "self._listener, self._wake_receiver,", "self._wake_receiver,"),
]


def compiled_mistake(step, right, wrong):
    """Compile the file of a step, with a mistake in one of its parts."""
    source = built(step)
    assert right in source
    return list(compiled_parts(source.replace(right, wrong, 1), "mine.py"))


def module_of(parts):
    module = types.ModuleType("mine")
    for code in parts:
        exec(code, module.__dict__)
    return module


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistake_of_a_learner_is_caught(number, impatient):
    step, right, wrong = MISTAKES[number]
    parts = compiled_mistake(step, right, wrong)
    try:
        module = module_of(parts)
    except Exception:
        return
    noticed = any(fails(each, module) for each in range(step, 0, -1))
    assert noticed, f"no test of the steps 1 to {step} notices that {right!r} became {wrong!r}"
    if step >= 8:
        for _ in range(1 if hasattr(gc, "freeze") else 3):  # PyPy needs more than one
            gc.collect()  # sockets that a broken server has left open


# ---- the program ---------------------------------------------------------------------------------


def run(*arguments, folder=building.COURSE.parent, **options):
    program = [sys.executable, str(folder / "building.py"), *map(str, arguments)]
    options["env"] = {**os.environ, "PYTHONIOENCODING": "cp1252"}  # as on Windows
    return subprocess.run(program, capture_output=True, text=True, encoding="utf-8", **options)


@pytest.fixture
def run_here(capsys):
    """Run the program in this process; return what it prints."""

    def run_here(*arguments):
        leaves = mock.patch.object(building, "leave", sys.exit)
        with leaves, contextlib.suppress(SystemExit):
            building.main([*map(str, arguments)])
        return capsys.readouterr().out

    return run_here


def test_program_prints_a_file_and_runs_tests_with_it(tmp_path):
    mine = tmp_path / "mine.py"
    printed = run(2).stdout
    assert printed == built(2)
    mine.write_text(printed, encoding="utf-8")
    good, bad = run(2, mine), run(3, mine)
    assert good.returncode == 0 and "Your file is at the end of step 2." in good.stdout
    assert bad.returncode == 1 and "a route answers its path and method ... FAILS" in bad.stdout
    assert 'app.get("/hello/{name}")' in bad.stdout
    answer = run(0)
    assert answer.returncode == 1 and answer.stderr.startswith(building.__doc__)


def test_program_prints_files_tests_and_texts(run_here):
    assert run_here(4) == built(4)
    assert run_here(1, "--tests") == building.printed(building.tests_of(1), 1)
    kept = run_here(1, "--kept")
    assert kept.startswith(f"{building.tests_of(1)}\n\n{building.kept_test(1)}")
    handed_out = run_here(3, "--text")
    assert handed_out.startswith(building.TITLES[2]) and "*Checkpoint 9.*" in handed_out
    assert "**Now read**" in handed_out and building.TITLES[3] not in handed_out
    assert "class _Router" not in handed_out and "**Hint**" not in handed_out
    introduction = run_here(0, "--text")
    assert "see.py" in introduction and "- *Today* shows" in introduction


def test_program_says_what_has_failed(tmp_path, run_here):
    mine = tmp_path / "mine.py"
    # A test with rows says which row has failed.
    mine.write_text(built(4).replace("if wanted and media_range", "if media_range"), "utf-8")
    wrong = run_here(4, mine)
    assert "\n      accept is 'application/json;q=0'\n      is_json is False\n" in wrong
    # A comparison says what was there.
    mine.write_text(built(3).replace("[*values, int(segment)]", "[*values, segment]"), "utf-8")
    assert """\n      the left side is b'{"id": "7"}'\n""" in run_here(3, mine)
    # A server that fails says why.
    unread = built(8).replace('_LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "0"))', "True")
    mine.write_text(unread, encoding="utf-8")
    assert "ValueError: invalid literal for int() with base 10: '3, 4'" in run_here(8, mine)


@pytest.mark.parametrize("arguments", ["", "0", "eleven", "1 mine.py --kept", "1 a.py b.py c.py"])
def test_program_explains_itself_when_arguments_are_wrong(arguments):
    with pytest.raises(SystemExit) as ended:
        building.main(arguments.split())
    assert "--text      print" in str(ended.value)


def test_program_runs_the_tests_of_a_teacher(tmp_path):
    mine, kept = tmp_path / "mine.py", tmp_path / "test_kept_1.py"
    mine.write_text(built(1), encoding="utf-8")
    kept.write_text(run(1, "--kept").stdout, encoding="utf-8")
    good = run(1, mine, kept)
    assert good.returncode == 0 and "  kept back of step 1 ... ok\n" in good.stdout
    before, _, behind = kept.read_text(encoding="utf-8").rpartition('"13"')
    kept.write_text(f'{before}"14"{behind}', encoding="utf-8")
    bad = run(1, mine, kept)
    assert bad.returncode == 1 and "  kept back of step 1 ... FAILS\n" in bad.stdout
    assert "the left side is '13'" in bad.stdout
    # As a program the file would run no test, which looks like a pass.
    alone = subprocess.run([sys.executable, kept], capture_output=True, text=True)
    assert alone.returncode == 1 and "Run this file with pytest" in alone.stderr


def test_program_says_which_file_is_missing(tmp_path):
    for name in ("building.py", "building.rst"):
        (tmp_path / name).write_bytes((building.COURSE.parent / name).read_bytes())
    mine = tmp_path / "mine.py"
    mine.write_text(built(1), encoding="utf-8")
    assert run(1, mine, folder=tmp_path).returncode == 0
    for arguments, name in [
        ((2,), "solutions.rst"),
        ((2, "--kept"), "teaching.rst"),
        ((2, tmp_path / "nowhere.py"), "nowhere.py"),
        ((1, mine, tmp_path / "nowhere.py"), "nowhere.py"),
    ]:
        answer = run(*arguments, folder=tmp_path)
        assert answer.returncode == 1
        assert answer.stderr.startswith(f"There is no file {tmp_path / name}.")
    (tmp_path / "building.rst").unlink()
    answer = run(1, mine, folder=tmp_path)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"There is no file {tmp_path / 'building.rst'}.")


def test_program_ends_a_test_that_waits_for_ever(tmp_path, monkeypatch, capsys):
    mine = tmp_path / "mini.py"
    mine.write_text("import threading\n\nWebApp = threading.Event().wait\n", encoding="utf-8")
    monkeypatch.setattr(building, "LIMIT", 0.5)
    assert not building.check(1, mine)
    printed = capsys.readouterr().out
    assert "an application without pages answers 404 ... FAILS" in printed
    assert "It has not ended after 0.5 seconds. It waits here:" in printed
    assert 'answer = ask(mine.WebApp(), "GET", "/anything")' in printed
    mine.write_text("import threading\n\nthreading.Event().wait()\n", encoding="utf-8")
    assert not building.check(1, mine)
    printed = capsys.readouterr().out
    assert f"{mine} cannot be imported:" in printed and "\n          threading.Event()" in printed


def test_program_ends_though_threads_of_the_file_run(tmp_path):
    mine = tmp_path / "mine.py"
    endless = "threading.Thread(target=threading.Event().wait).start()"
    mine.write_text(f"{built(1)}\n\nimport threading\n\n{endless}\n", encoding="utf-8")
    assert run(1, mine, timeout=60).returncode == 0


def test_program_shows_the_lines_of_the_file_that_it_was_given(tmp_path):
    mine, other = tmp_path / "mine.py", tmp_path / "mini.py"
    mine.write_text("the wrong file\n" * 99, encoding="utf-8")
    other.write_text("\n\nclass WebApp:\n    pass\n\n\n{}['x']\n", encoding="utf-8")
    answer = run(1, "mini.py", cwd=tmp_path)
    assert answer.returncode == 1 and "mini.py cannot be imported" in answer.stdout
    assert 'File "mini.py", line 7' in answer.stdout and "{}['x']" in answer.stdout
    other.write_text("def WebApp():\n    import sys\n    sys.exit('bye')\n", encoding="utf-8")
    answer = run(1, "mini.py", cwd=tmp_path)
    assert answer.returncode == 1 and "sys.exit('bye')" in answer.stdout


# ---- the page for teachers -----------------------------------------------------------------------

TEACHING = building.TEACHING.read_text(encoding="utf-8")
PICTURES = building.COURSE.with_name("pictures")


def test_points_of_a_step_are_its_checkpoints():
    points = re.findall(r"^(\d+) +(\d+)$", TEACHING, re.MULTILINE)
    tests = [building.tests_of(step).count("\ndef test_") for step in STEPS]
    assert [(int(step), int(number)) for step, number in points] == [*enumerate(tests, 1)]
    assert max(map(len, TEACHING.splitlines())) <= 100


def passes_kept_test(step, module):
    with mock.patch.dict(sys.modules, mine=module):
        tests = building.load(f"{building.tests_of(step)}\n\n{building.kept_test(step)}")
        try:
            vars(tests)[f"test_kept_back_of_step_{step}"]()
        except Exception:
            return False
    return True


@every_step
def test_what_a_teacher_keeps_back_passes_from_its_step_on(step, impatient):
    for later in range(step, len(STEPS) + 1):
        assert passes_kept_test(step, building.load(built(later))), later
    assert passes_kept_test(step, webapp)
    assert not passes_kept_test(step, building.load(built(step - 1)))


@pytest.mark.parametrize("step", range(1, 8))  # the mistakes of the others take minutes
def test_what_a_teacher_keeps_back_catches_most_mistakes_of_its_step(step):
    passed, rows = [], [row[1:] for row in MISTAKES if row[0] == step]
    for right, wrong in rows:
        if passes_kept_test(step, module_of(compiled_mistake(step, right, wrong))):
            passed.append((right, wrong))
    assert len(passed) < 0.4 * len(rows), passed


def test_weeks_of_a_teacher_name_each_step_and_each_picture():
    for step in STEPS:
        assert re.search(rf"^\d+ +.*\bstep {step}\b", TEACHING, re.MULTILINE)
    pictures = {path.name for path in PICTURES.glob("*.svg")}
    assert set(re.findall(r"``(\w+\.svg)``", TEACHING)) == pictures


def test_session_of_the_first_week_is_real():
    session = building.blocks(building.chapter("The first week", building.TEACHING), "pycon")[0]
    assert run_session(session) == ""


# ---- the pictures --------------------------------------------------------------------------------

SOURCE = pathlib.Path(webapp.__file__).read_text(encoding="utf-8")


def words_of(name):
    """Return the texts of a picture as one text."""
    picture = ElementTree.parse(PICTURES / f"{name}.svg").getroot()
    style = picture.find("{http://www.w3.org/2000/svg}style").text
    assert "prefers-color-scheme: dark" in style
    return " ".join(part.text for part in picture.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("name", ["request", "connection"])
def test_names_in_a_picture_are_names_of_the_file(name):
    named = set(re.findall(r"\b_\w+|\b\w+\.\w+|\bon_\w+|\b[A-Z]{4,}\b", words_of(name)))
    stages = {stage[1:] for stage in re.findall(r"\b_[A-Z]+\b", SOURCE)}
    known = {part for place in places() for part in (place, place.rpartition(".")[2])}
    assert len(named) >= 7 and named - known - stages == set()


def test_pictures_of_the_course_show_what_it_builds():
    assert "Response.send Response._hand_over" in words_of("response")
    for name in re.findall(r"_\w+", words_of("response") + words_of("threads")):
        assert f"{name}" in built(10)
    (tree,) = (block for block in building.blocks(TEXT, "python") if "comes_back" in block)
    for text in re.findall(r'"(.+?)"', words_of("routes")):
        assert text.split()[0] in tree
    request, _, answer = words_of("message").partition("The server sends")
    (target,) = re.findall(r"GET (\S+) HTTP/1\.1\\r\\n .*Host: localhost\\r\\n .* \\r\\n ", request)
    assert target in TEACHING
    (length,) = re.findall(r"Content-Length: (\d+)\\r\\n .* \\r\\n .* Hello the body", answer)
    assert int(length) == len("Hello")
    chunks = re.findall(r"(\w+) length \\r\\n (\w+) (\d+) byte", words_of("chunks"))
    assert len(chunks) == 2
    for length, data, count in chunks:
        assert int(length, 16) == len(data) == int(count)


def test_table_of_stages_is_that_of_the_file_and_the_picture_draws_a_part_of_it():
    owners = dict(re.findall(r"^# ([A-Z]+) +(leader|thread) +[A-Z, ]+$", SOURCE, re.MULTILINE))
    table = re.findall(r"^# ([A-Z]+) +(?:leader|thread) +([A-Z, ]+)$", SOURCE, re.MULTILINE)
    assert len(table) == 7
    wanted = {(stage, each) for stage, behind in table for each in behind.split(", ")}
    reading = building.COURSE.with_name("reading.rst").read_text(encoding="utf-8")
    rows = re.findall(r"^([A-Z]+) +(leader|thread) +([A-Z]+) +\w", reading, re.MULTILINE)
    assert {(stage, behind) for stage, _, behind in rows} == wanted and len(rows) == len(wanted)
    assert all(owners[stage] == owner for stage, owner, _ in rows)
    picture = ElementTree.parse(PICTURES / "connection.svg").getroot()
    drawn = [path.get("id") for path in picture.iter("{http://www.w3.org/2000/svg}path")]
    edges = {tuple(edge.split("-")) for edge in drawn if edge}
    assert edges <= wanted and {stage for edge in edges for stage in edge} == {*owners, "CLOSED"}


def test_picture_of_the_lead_names_what_the_file_has():
    assert set(re.findall(r"_[A-Z]+\b", words_of("lead"))) == {"_QUICK"} and "\n_QUICK = " in SOURCE


def test_number_of_routes_in_a_picture_is_that_of_its_text():
    numbers = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
    (number,) = re.findall(r"tree of (\w+) routes", words_of("routes"))
    assert numbers[number] == len(re.findall(r'"', words_of("routes"))) / 2


@pytest.mark.parametrize(
    ("page", "pictures"),
    [
        ("examples/manual/requests.rst", ["request"]),
        ("webapp.py", ["request", "connection"]),
        ("examples/course/reading.rst", ["request", "connection", "lead"]),
        (
            "examples/course/building.rst",
            "message wsgi response routes request chunks threads lead connection".split(),
        ),
    ],
)
def test_page_points_to_its_pictures(page, pictures):
    text = (building.COURSE.parents[2] / page).read_text(encoding="utf-8")
    for picture in pictures:
        assert f"pictures/{picture}.svg" in text
