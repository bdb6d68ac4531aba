"""The tests of the course in `building.rst`: each step is built from the text, and its tests pass
with it and with webapp.py, and fail with the step before."""

from __future__ import annotations

import contextlib
import csv
import doctest
import functools
import gc
import html
import io
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.parse
import xml.etree.ElementTree as ElementTree
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
def test_tests_of_a_step_pass_with_the_file_of_the_course(step, impatient):
    """In a hurry, too: so a mistake is what fails the tests below, and not the hurry."""
    for earlier in range(1 if step in (7, 10) else max(step - 1, 1), step + 1):
        for name, error in building.failures(earlier, building.load(built(step))):
            if error is not None:
                raise AssertionError(f"step {earlier}: {name}") from error


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
    parts = ["Today", "Questions", "Checkpoints", "Hint", "See it", "Now read"]
    assert [name for name in names if name != "Flask on your server"] == parts
    tests = re.findall(r"^def (test_\w+)", building.tests_of(step), re.MULTILINE)
    numbers = re.findall(
        r"^\*Checkpoint (\d+)\.\*", building.part(title, "Checkpoints"), re.MULTILINE
    )
    assert list(map(int, numbers)) == list(range(1, len(tests) + 1))
    read = building.part(title, "Now read")
    asked = [name for item in re.findall("^- (.+?):", read, re.M) for name in item.split(", ")]
    assert len(asked) >= 2
    assert [name for name in asked if name.strip("`") not in places()] == []
    assert [item for item in re.split("^- ", read, flags=re.M)[1:] if "?" not in item] == []
    # The answers are elsewhere, so that nobody sees them before the question.
    answers = building.part(title, "Now read", building.SOLUTIONS)
    assert re.findall("^- (.+?):", answers, re.M) == re.findall("^- (.+?):", read, re.M)


@every_step
def test_each_step_has_hints_for_its_checkpoints(step):
    hints = building.hints_of(step)
    assert len(hints) >= 3 and hints[0] in " ".join(TEXT.split())
    tests = re.findall(r"^def (test_\w+)", building.tests_of(step), re.MULTILINE)
    named = {number for test in tests for number in building.hints_for(step, test)}
    assert named == {*range(2, len(hints) + 1)}


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


# ---- plausible mistakes --------------------------------------------------------------------------

# Step, a checkpoint that notices the mistake, lines of the file of the step, and what a learner
# might write in their place. That checkpoint is tried first, because all of them take minutes.
MISTAKES = [
    (1, "1.3", 'b"" if environ["REQUEST_METHOD"] == "HEAD" else body', "body"),
    (1, "1.1", '[b"" if environ["REQUEST_METHOD"] == "HEAD" else body]', "body"),
    (1, "1.1", "str(len(body))", "len(body)"),
    (2, "2.1", "self._send(value)\n        return True", "self._send(value)\n        return False"),
    (
        2,
        "2.3",
        "self._build(data, content_type)",
        'self._build(data, "application/octet-stream")',
    ),
    (2, "2.1", "text.encode(), _TEXT", 'text.encode("latin-1"), _TEXT'),
    (2, "2.4", "if value is not None and value is not self:", "if value and value is not self:"),
    (2, "2.4", "not self.sent and value is None", "not self.sent and not value"),
    (2, "2.5", "name.lower(): _check", "name: _check"),
    (2, "2.5", r"[^\x20-\x7e\x80-\xff]", r"[^\x20-\x7e\x80-\xff\r\n]"),
    (2, "2.5", "_TOKEN.fullmatch", "_TOKEN.match"),
    (2, "2.8", "if code >= 200", "if code"),
    (2, "2.4", ", allow_nan=False", ""),
    (2, "2.8", "_BODILESS = {204, 205, 304}", "_BODILESS = {204, 304}"),
    (2, "2.8", "if status in (204, 304)", "if status == 204"),
    (2, "2.7", "if self._state == _HANDED_OVER", "if self.sent"),
    (2, "2.7", "self._state = _HANDED_OVER", "pass"),
    (3, "3.3", "[0-9]{1,18}", r"\\d+"),
    (3, "3.3", "_INTEGER.fullmatch", "_INTEGER.match"),
    (3, "3.2", 'text.encode("latin-1").decode("utf-8")', "text"),
    (3, "3.2", 'path.split("/") if segment', 'path.split("/")'),
    (3, "3.3", "[*values, int(segment)]", "[*values, segment]"),
    (3, "3.7", 'node.routes.setdefault("HEAD", route)', 'node.routes["HEAD"] = route'),
    (3, "3.4", "if node.name is not None", "elif node.name is not None"),
    (3, "3.5", "methods.update(node.routes)", "methods = set(node.routes)"),
    (3, "3.5", "if method in node.routes:", "if node.routes:"),
    (3, "3.5", "code(405 if methods else 404)", "code(404)"),
    (3, "3.8", "other.method == route.method", "False"),
    (3, "3.8", "len(names) != len(set(names))", "False"),
    (3, "3.1", "            return handler\n", ""),
    (4, "4.3", "response._undo_step(headers_before, status)", "response._status = status"),
    (4, "4.3", "self._headers = headers\n", "self._headers = {}\n"),
    (4, "4.3", "self._headers = headers\n", "pass\n"),
    (5, "5.7", "self._status = status\n        self._body = None", "self._status = status"),
    (
        4,
        "4.1",
        "self.text(_STATUS_LINES[self.status])",
        "self.text(self.reason or _STATUS_LINES[self.status])",
    ),
    (4, "4.3", 'if key != "content-type"', "if key"),
    (
        4,
        "4.10",
        "if response.sent:\n            return\n        response._undo",
        "response._state = _OPEN\n        response._undo",
    ),
    (
        4,
        "4.7",
        "return _check_status(self.resolve_status_code(cause))",
        "return self.resolve_status_code(cause)",
    ),
    (4, "4.8", "repr(context.request.path)", "context.request.path"),
    (4, "4.8", "if status >= 500:", "if True:"),
    (4, "4.8", "status, exc_info=cause", "status"),
    (4, "4.8", '%d %r", method, path, status, cause', '%d", method, path, status'),
    (4, "4.4", "except UnicodeError", "except KeyError"),
    (4, "4.5", 'weights[0].strip("0.") != ""', "True"),
    (4, "4.5", 'weights[0].strip("0.") != ""', 'weights[0] != "0"'),
    (4, "4.9", "finally:\n            self._complete(context)", "finally:\n            pass"),
    (
        4,
        "4.9",
        "return [context.response._hand_over(start_response)]\n        finally:\n"
        "            self._complete(context)",
        "pass\n        finally:\n"
        "            self._complete(context)\n"
        "        return [context.response._hand_over(start_response)]",
    ),
    (4, "4.9", "_LOG.error(_HOOK_FAILED", "_LOG.debug(_HOOK_FAILED"),
    (4, "4.1", "for name, value in cause.headers.items()", "for name, value in ()"),
    (
        5,
        "5.2",
        "for scope in reversed(scopes) for hook in scope._before",
        "for scope in scopes for hook in scope._before",
    ),
    (
        5,
        "5.2",
        "for scope in scopes for hook in scope._after",
        "for scope in reversed(scopes) for hook in scope._after",
    ),
    (
        5,
        "5.6",
        "for scope in scopes for hook in scope._error",
        "for scope in reversed(scopes) for hook in scope._error",
    ),
    (5, "5.3", "self._miss_hooks.before = []", "pass"),
    (5, "5.3", "self._miss_hooks = _Hooks(self)\n", "self._miss_hooks = _Hooks()\n"),
    (5, "5.11", "context._hooks = _NO_HOOKS\n", "pass\n"),
    (5, "5.4", "if value is None or value is self:", "if not value or value is self:"),
    (5, "5.4", "self.status < 300", "self.status < 400"),
    (5, "5.5", "is_given = value is self and ", "is_given = "),
    (5, "5.4", "if self._body is None and self.status", "if self.status"),
    (
        5,
        "5.9",
        "                headers_before = response._headers\n            if context._miss",
        "            if context._miss",
    ),
    (
        5,
        "5.9",
        "                    return\n                headers_before = response._headers\n",
        "                    return\n",
    ),
    (5, "5.8", "response._restore(saved)", "pass"),
    (5, "4.9", "_LOG.error(_HOOK_FAILED", "_LOG.debug(_HOOK_FAILED"),
    (
        5,
        "5.1",
        "if response.sent:\n                return\n        response._send_default",
        "pass\n        response._send_default",
    ),
    (5, "5.8", "response._send_default()  # what", "pass  # what"),
    (
        5,
        "5.3",
        "for hook in [*context._hooks.error, _send_what_was_built]",
        "for hook in [_send_what_was_built, *context._hooks.error]",
    ),
    (
        5,
        "5.11",
        "if response._send_if_answered(self.on_request(context)):\n"
        "                context._hooks = _NO_HOOKS\n",
        "hooks, context._hooks = context._hooks, _NO_HOOKS\n"
        "            if not response._send_if_answered(self.on_request(context)):\n"
        "                context._hooks = hooks\n"
        "            else:\n",
    ),
    (5, "5.12", "self._sealed = True", "pass"),
    (5, "5.12", "if not route.handlers:", "if False:"),
    (
        5,
        "5.1",
        'Scope(self._app, self, f"{self._prefix}/{prefix}")',
        "Scope(self._app, self, prefix)",
    ),
    (5, "5.2", "Scope(self._app, self, f", "Scope(self._app, None, f"),
    (6, "6.2", "read(length)", "read()"),
    (6, "6.2", "if len(data) < length:", "if False:"),
    (6, "6.3", "if length > self._app._max_body_size:", "if False:"),
    (6, "6.3", "length > self._app", "length >= self._app"),
    (6, "6.2", "_LENGTH.fullmatch(sent)", "sent.isascii() or not sent.isdigit()"),
    (6, "6.2", "_LENGTH.fullmatch(sent)", "(sent.isascii() and sent.isdigit())"),
    (6, "6.1", ', errors="strict"', ""),
    (6, "6.1", "keep_blank_values=True, ", ""),
    (6, "6.1", "(HttpException, KeyError)", "(HttpException)"),
    (6, "6.1", "raise _MissingField(400, f", "raise KeyError(f"),
    (6, "6.5", "except (ValueError, RecursionError)", "except ValueError"),
    (6, "6.5", ", parse_constant=_refuse_constant", ""),
    (6, "6.5", ", parse_float=_finite", ""),
    (6, "6.9", '"utf-8", "backslashreplace"', '"utf-8"'),
    (6, "6.4", '.partition(";")[0].strip().lower()', ""),
    (6, "6.1", "return self._values[name][0]", "return self._values[name][-1]"),
    (
        6,
        "6.6",
        "made = executor()\n",
        "made = executor.made = getattr(executor, 'made', None) or executor()\n",
    ),
    (6, "6.8", "context.response.code(422)", "raise HttpException(422)"),
    (6, "6.8", '{**given, "validation": self._errors}', '{"validation": self._errors, **given}'),
    (6, "6.6", "if not made.canceled:\n        return value\n", "if False:\n        pass\n"),
    (6, "6.7", "if not made.canceled:", "if True:"),
    (6, "6.8", "texts if texts[1:] else texts[0]", "texts[0]"),
    (6, "6.8", '("query", "form", "json")', '("form", "query", "json")'),
    (
        6,
        "6.6",
        "                    return\n            response._send()",
        "                    return\n                headers_before = response._headers\n"
        "            response._send()",
    ),
    (6, "6.8", "with contextlib.suppress(HttpException)", "with contextlib.suppress(OSError)"),
    (7, "7.2", "return html.escape(str(value))", "return html.escape(str(value), quote=False)"),
    (7, "7.2", "return html.escape(str(value))", "return str(value)"),
    (7, "7.1", "if values:\n", "if True:\n"),
    (7, "7.2", "_HtmlFormatter().vformat(template, (), values)", "template.format(**values)"),
    (7, "7.5", "elif format_spec:", "elif False:"),
    (7, "7.6", "Markup(str(self) + _as_html(other))", "Markup(str(self) + str(other))"),
    (7, "7.6", "Markup(_as_html(other) + str(self))", "Markup(str(other) + str(self))"),
    (7, "7.6", "Markup(str(self).join(map(_as_html, items)))", "Markup(str(self).join(items))"),
    (7, "7.6", "return cls(_as_html(value))", "return cls(html.escape(str(value)))"),
    (7, "7.6", "Markup(_HtmlFormatter().vformat(self, ", "str(_HtmlFormatter().vformat(self, "),
    (
        7,
        "7.5",
        'if hasattr(value, "__html__"):\n            self.html',
        "if False:\n            self.html",
    ),
    (8, "8.3", 'if "_" in name:', "if False:"),
    (8, "8.5", "or _NOT_IN_FIELD.search(value)", ""),
    (8, "8.5", "or not _TOKEN.fullmatch(name)", ""),
    (8, "8.2", 'unquote(path or "/", "latin-1")', 'unquote(path or "/")'),
    (8, "8.2", 'urllib.parse.unquote(path or "/", "latin-1")', 'path or "/"'),
    (8, "8.5", "+) ([!-~]+) HTTP", "+) +([!-~]+) HTTP"),
    (8, "8.5", 'if minor == "1" and "HTTP_HOST" not in environ', "if False"),
    (8, "8.5", 'if not _LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "0"))', "if False"),
    (
        8,
        "8.5",
        '_LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "0"))',
        'environ.get("CONTENT_LENGTH", "0").isdigit()',
    ),
    (8, "8.5", 'raise HttpException(501, "a body in chunks")', "pass"),
    (
        8,
        "8.5",
        'if "HTTP_TRANSFER_ENCODING" in environ:',
        'if "HTTP_TRANSFER_ENCODING" in environ and "CONTENT_LENGTH" not in environ:',
    ),
    (8, "8.2", "os_environ = {}", "pass"),
    (8, "8.2", 'http_version = "1.1"', "pass"),
    (8, "8.6", "elif not self._has_no_body():", "else:"),
    (8, "8.6", 'del self.headers["Content-Length"]', "pass"),
    (
        8,
        "8.6",
        "        if not self.bodiless:\n            super",
        "        if True:\n            super",
    ),
    (
        8,
        "8.7",
        "except BaseException:\n            self.log",
        "except KeyError:\n            self.log",
    ),
    (8, "8.7", "self.base_env", "self.environ"),
    (8, "8.9", "                except OSError:\n", "                except KeyError:\n"),
    (8, "8.9", "time.sleep(0.1)", "pass"),
    (8, "8.8", "except Exception as error:  # such", "except KeyError as error:  # such"),
    (8, "8.4", "io.BytesIO(body), answer", "reader, answer"),
    (8, "8.4", "if len(body) < length:", "if False:"),
    (8, "8.5", 'raise HttpException(400, "a line end without CR")', "pass"),
    (8, "8.5", r'_NOT_IN_FIELD = re.compile(r"[^', r'_NOT_IN_FIELD = re.compile(r"[^\r'),
    (8, "8.5", r'_NOT_IN_FIELD = re.compile(r"[^', r'_NOT_IN_FIELD = re.compile(r"[^\0'),
    (8, "8.5", r"HTTP/1\.([01])", r"HTTP/[0-9]\.([01])"),
    (8, "8.5", "if host is None and path is None:", "if match is None:"),
    (8, "8.5", 'if not _HOST_FIELD.fullmatch(environ.get("HTTP_HOST", ""))', "if False"),
    (8, "8.5", 'environ["HTTP_HOST"] = host', "pass"),
    (8, "8.5", 'unquote(path or "/"', 'unquote(path or ""'),
    (8, "8.5", r'2 if head.startswith(b"\r\n") else 0', "0"),
    (8, "8.10", "sock.sendall(_CONTINUE)", "pass"),
    (8, "8.10", '"").lower() == "100-continue"', '"") == "100-continue"'),
    (8, "8.10", "if length and _awaits_continue(environ)", "if _awaits_continue(environ)"),
    (8, "8.10", 'return expected and environ["SERVER_PROTOCOL"] == "HTTP/1.1"', "return expected"),
    (8, "8.6", '("204", "304")', '("204",)'),
    (8, "8.1", "if not quiet:", "if True:"),
    (8, "8.1", "file=sys.stderr", "file=sys.stdout"),
    (8, "8.2", 'environ["SERVER_NAME"] = self.host', "pass"),
    (
        8,
        "8.7",
        "except _ClientLeft:\n            raise",
        "except ConnectionError:\n            return",
    ),
    (8, "8.7", "BaseException:\n            self.handle", "Exception:\n            self.handle"),
    (8, "8.7", "BaseException:\n            self.log", "Exception:\n            self.log"),
    (8, "8.1", r'head.endswith(b"\r\n\r\n")', r'head.endswith(b"\r\n")'),
    (
        8,
        "8.8",
        "except OSError:\n            pass  # the client has left\n        except Exception",
        "except KeyError",
    ),
    (8, "8.1", r'value.strip(" \t")', "value"),
    (8, "8.3", 'f"{environ[key]}, {value}" if key in environ else value', "value"),
    (8, "8.2", 'environ["REMOTE_ADDR"] = address', "pass"),
    (8, "8.3", 'if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):', "if True:"),
    (9, "9.2", "self._body.begin()", "pass"),
    (9, "9.3", "self._context.app._complete(self._context)", "pass"),
    (
        9,
        "9.3",
        "[*context.request._closing, lambda: self.on_complete(context)]",
        "[lambda: self.on_complete(context), *context.request._closing]",
    ),
    (
        9,
        "9.1",
        "if isinstance(body, bytes):\n                self._complete",
        "if True:\n                self._complete",
    ),
    (9, "9.4", r'b"%x\r\n', r'b"%d\r\n'),
    (
        9,
        "9.4",
        "super().finish_content()\n        if self.chunked",
        "super().finish_content()\n        if False",
    ),
    (9, "9.4", "if modern and", "if"),
    (
        9,
        "8.6",
        "        if not self.bodiless:\n            super",
        "        if True:\n            super",
    ),
    (9, "9.6", "length > _MAX_HEAD", "False"),
    (9, "8.5", "if _SINGLE_LF.search(data, start, length):", "if False:"),
    (9, "8.4", "or _receive(self._sock, size)", "or self._sock.recv(size)"),
    (9, "9.7", "max(until - time.monotonic(), 0.001)", "self.header_timeout"),
    (
        9,
        "9.9",
        "except socket.timeout:\n            raise HttpException(408",
        "except KeyError:\n            raise HttpException(408",
    ),
    (9, "9.8", "min(len(buffer), self._left)", "len(buffer)"),
    (9, "8.4", "self._begun[:size] or _receive(self._sock, size)", "_receive(self._sock, size)"),
    (9, "9.1", 'elif hasattr(value, "__next__")', "elif False"),
    (9, "9.10", "left = left[self._sock.send(left) :]", 'left = self._sock.sendall(left) or b""'),
    (9, "9.9", "sock.settimeout(self.body_timeout)", "sock.settimeout(None)"),
    (9, "9.8", "if not self._begun:\n", "if True:\n"),
    (9, "9.8", "self._ask = None\n", "pass\n"),
    (9, "9.8", "ask = answer.ask_for_body if", "ask = answer.ask_for_body() if"),
    (
        10,
        "10.3",
        "            self._answer(connection)\n",
        "            with self._leading:\n                self._answer(connection)\n",
    ),
    (10, "10.4", "len(self.data) >= self.length or self.length > _MAX_COLLECTED", "True"),
    (
        10,
        "10.4",
        "if connection.refusal is None and connection.length",
        "if False and connection.length",
    ),
    (10, "10.4", "stack.enter_context(self._counted()) > self._most_waiting", "False"),
    (10, "8.5", "connection.refusal = refusal\n", "pass\n"),
    (
        10,
        "8.9",
        "self._selector.unregister(self._listener)\n"
        "            self._pause_ends = time.monotonic() + 0.1\n",
        "pass\n",
    ),
    (
        10,
        "8.9",
        "            self._selector.register(self._listener, selectors.EVENT_READ)\n        for",
        "        for",
    ),
    (10, "9.8", "if collected and", "if False and"),
    (10, "9.8", "self.unsent = self.unsent[", "self.unsent = memoryview(b'')["),
    (10, "9.8", "if self._connection.unsent:\n", "if False:\n"),
    (
        10,
        "10.6",
        "if now - progress > (min(self.body_timeout, 1) if many else self.body_timeout)",
        "if 0",
    ),
    (10, "9.8", "EVENT_WRITE if connection.unsent else", "EVENT_READ if connection.unsent else"),
    (10, "10.3", "range(threads)", "range(1)"),
    (10, "10.4", "range(threads)", "range(60)"),
    (10, "10.6", "self._answered.append(connection)", "connection.socket.close()"),
    (
        10,
        "10.1",
        "self._serve(connection)\n",
        "self._serve(connection)\n            time.sleep(1)\n",
    ),
    (10, "10.2", "            self._check_deadlines()\n", ""),
    (10, "10.1", "self.data += more", "self.data = more"),
    (
        10,
        "10.2",
        "return max(min(deadlines) - time.monotonic(), 0) if deadlines else None",
        "return None",
    ),
    (10, "10.5", "connection.socket.close()\n        for each", "pass\n        for each"),
    (10, "10.5", "self._listener, self._wake_receiver,", "self._wake_receiver,"),
]


# Each checkpoint notices one of its mistakes; a thorough run tries all of them.
TRIED = [
    number
    for number, row in enumerate(MISTAKES)
    if settings().max_examples > 1000 or row[1] not in {other[1] for other in MISTAKES[:number]}
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


def notices(checkpoint, module):
    """Tell whether the test of a checkpoint such as 4.2 fails with a module."""
    step, number = map(int, checkpoint.split("."))
    with mock.patch.dict(sys.modules, mine=module):
        tests = building.load(
            building.tests_of(step), f"tests_of_step_{step}", building.compiled_tests
        )
        test = [value for name, value in vars(tests).items() if name.startswith("test_")][
            number - 1
        ]
        return building.outcome(test) is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", TRIED)
def test_mistake_of_a_learner_is_caught(number, impatient):
    step, checkpoint, right, wrong = MISTAKES[number]
    module = module_of(compiled_mistake(step, right, wrong))
    noticed = notices(checkpoint, module) or any(fails(each, module) for each in range(step, 0, -1))
    assert noticed, f"no test of the steps 1 to {step} notices that {right!r} became {wrong!r}"
    if step >= 8:
        for _ in range(1 if hasattr(gc, "freeze") else 3):  # PyPy needs more than one
            gc.collect()  # sockets that a broken server has left open


# ---- programs that are right ---------------------------------------------------------------------

# Step, lines of its file, and what is right by the text, too.
RIGHT_TOO = [
    # A document that JSON cannot write is refused where it is built, and not only by `send`.
    (
        2,
        "return self._build(document, _JSON)",
        "json.dumps(document, allow_nan=False)\n        return self._build(document, _JSON)",
    ),
    # Before Python 3.13 HTTPStatus has older phrases for 413 and 422.
    (6, '    413: "413 Content Too Large",\n    422: "422 Unprocessable Content",\n', ""),
    # A status of 422 that `execute` has set does not end the request before on_cancel has run.
    (
        6,
        "        self.validate(context)\n"
        "        if self.canceled:\n"
        "            context.response.code(422)\n",
        "        context.response.code(422)\n"
        "        self.validate(context)\n"
        "        if not self.canceled:\n"
        "            context.response._status = None\n",
    ),
    # An Allow with HEAD in it is what RFC 9110 asks for.
    (
        4,
        '{"Allow": ", ".join(sorted(allow))}',
        '{"Allow": ", ".join(sorted({*allow, *(["HEAD"] if "GET" in allow else [])}))}',
    ),
    # A stream that breaks off is logged by the server, and not by the application.
    (9, "            _log_failure(self._context, cause, 500)\n", ""),
    # A server may tell more than the course asks for, but not as an error.
    (8, '_LOG.debug("a request was refused: %r", cause)', '_LOG.warning("refused: %r", cause)'),
    (
        8,
        '_LOG.error("%r %r failed", method, path, exc_info=exc_info)',
        '_LOG.error("%r %r failed", method, path, exc_info=exc_info)\n'
        '        _LOG.error("the client gets a 500, or half an answer")',
    ),
    # Numbers of base 16 have capital letters, or zeros in front of them.
    (9, r'b"%x\r\n', r'b"%X\r\n'),
    (9, r'b"%x\r\n', r'b"%06x\r\n'),
    # JSON has blanks, or none, and may escape any character.
    (2, ", ensure_ascii=False, allow_nan=False", ', allow_nan=False, separators=(",", ":")'),
    (6, ", ensure_ascii=False, allow_nan=False", ', allow_nan=False, separators=(",", ":")'),
    # Names of header fields have no case, and the methods in Allow no order.
    (2, "list(fields.values())", "[(name.lower(), text) for name, text in fields.values()]"),
    (9, "list(fields.values())", "[(name.upper(), text) for name, text in fields.values()]"),
    (4, "join(sorted(allow))", "join(sorted(allow, reverse=True))"),
    # The course says what stands in a record of the log, and not in which order.
    (
        4,
        '_LOG.error("%s %s: %d", method, path, status,',
        '_LOG.error("%d %s %s", status, path, method,',
    ),
    (4, '_LOG.debug("%s %s: %d %r", method,', '_LOG.debug("handled: %s %s: %d %r", method,'),
]


def programs_that_are_right(step):
    """Yield the file of a step with what is right, too, in as few programs as can be: lines that
    another row has changed already are for the next one."""
    rows = [row[1:] for row in RIGHT_TOO if row[0] == step]
    while rows:
        source, left = built(step), []
        for one, other in rows:
            if one in source:
                source = source.replace(one, other, 1)
            else:
                left.append((one, other))
        assert len(left) < len(rows), left
        rows = left
        yield source


@pytest.mark.parametrize("step", sorted({row[0] for row in RIGHT_TOO}))
def test_programs_that_are_right_pass(step):
    for source in programs_that_are_right(step):
        module = module_of(compiled_parts(source, "mine.py"))
        for each in {*range(1, min(step, 7) + 1), step}:  # those of the servers take their time
            for name, error in building.failures(each, module):
                if error is not None:
                    raise AssertionError(f"step {each}: {name}") from error
        assert passes_kept_test(step, module)


# ---- the server of the course --------------------------------------------------------------------

SERVERS = [8, 9, 10]
every_server = pytest.mark.parametrize("step", SERVERS)


@pytest.fixture
def course(step, monkeypatch):
    """The file of a step as a module, and the helpers of its tests."""
    module = building.load(built(step))
    monkeypatch.setitem(sys.modules, "mine", module)
    return module, building.load(building.tests_of(max(step, 9)))


HOST = b"Host: one\r\n\r\n"


@every_server
@pytest.mark.parametrize(
    ("data", "status", "wanted"),
    [
        # RFC 9112 section 3.2.2: each server must accept an absolute target, which replaces Host.
        (b"GET http://two/a?b HTTP/1.1\r\n" + HOST, 200, ["two", "/a", "b"]),
        (b"GET http://two/a?b HTTP/1.0\r\n\r\n", 200, ["two", "/a", "b"]),
        (b"GET HTTPS://[::1]:80 HTTP/1.1\r\n" + HOST, 200, ["[::1]:80", "/", ""]),
        (b"GET http://two?b HTTP/1.1\r\n" + HOST, 200, ["two", "/", "b"]),
        (b"GET http://two//a??b HTTP/1.1\r\n" + HOST, 200, ["two", "//a", "?b"]),
        (b"GET /http://two/ HTTP/1.1\r\n" + HOST, 200, ["one", "/http://two/", ""]),
        (b"GET http://two/ HTTP/1.1\r\n\r\n", 400, None),
        (b"GET http:/// HTTP/1.1\r\n" + HOST, 400, None),
        (b"GET http://:80/ HTTP/1.1\r\n" + HOST, 400, None),
        (b"GET http://a@two/ HTTP/1.1\r\n" + HOST, 400, None),
        (b"GET http://two:8x/ HTTP/1.1\r\n" + HOST, 400, None),
        (b"GET ftp://two/ HTTP/1.1\r\n" + HOST, 400, None),
        (b"GET two HTTP/1.1\r\n" + HOST, 400, None),
        (b"GET ?b HTTP/1.1\r\n" + HOST, 400, None),
        # RFC 9112 section 3.2: one Host, and a valid one.
        (b"GET / HTTP/1.1\r\nHost: two\r\n" + HOST, 400, None),
        (b"GET / HTTP/1.1\r\nHost: one\r\n" + HOST, 400, None),
        (b"GET / HTTP/1.0\r\nHost: one\r\n" + HOST, 400, None),
        (b"GET / HTTP/1.1\r\nHost:\r\n" + HOST, 400, None),
        (b"GET / HTTP/1.1\r\nHost:\r\nhost:\r\n\r\n", 400, None),
        (b"GET / HTTP/1.1\r\nHost: one/a\r\n\r\n", 400, None),
        (b"GET / HTTP/1.1\r\nHost: one two\r\n\r\n", 400, None),
        (b"GET / HTTP/1.1\r\nHost: caf\xc3\xa9\r\n\r\n", 400, None),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 200, ["", "/", ""]),
        (b"GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", 200, ["[::1]:8000", "/", ""]),
        # RFC 9112 section 2.2: a server should ignore an empty line before the first one.
        (b"\r\nGET / HTTP/1.1\r\n" + HOST, 200, ["one", "/", ""]),
        (b"\r\n\r\nGET / HTTP/1.1\r\n" + HOST, 400, None),
        (b"\nGET / HTTP/1.1\r\n" + HOST, 400, None),
        (b" \r\nGET / HTTP/1.1\r\n" + HOST, 400, None),
    ],
)
def test_server_of_the_course_reads_heads_as_the_rfc_says(course, data, status, wanted):
    _, tests = course
    head, body = tests.talk(tests.echo("HTTP_HOST", "PATH_INFO", "QUERY_STRING"), data)
    assert int(head.split()[1]) == status
    assert wanted is None or body.decode() == repr(wanted)


@every_server
def test_server_of_the_course_takes_an_empty_line_in_pieces(course):
    module, tests = course
    data = b"\r\n" + tests.request("POST", "/", "Content-Length: 4", body=b"\r\nab")
    with module.Server(tests.greedy, quiet=True) as server, tests.connected(server) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            sock.sendall(bytes([byte]))
        assert tests.received(sock).endswith(b"\r\n\r\n\r\nab")


@functools.cache
def last_step():
    return building.load(built(10))


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"\r\n\r\n"]), max_size=9), st.data())
def test_head_in_pieces_ends_where_a_whole_one_ends(pieces, data):
    module = last_step()

    def found(seen):
        try:
            return module._find_head(arrived, seen)
        except module.HttpException as refusal:
            return refusal.status_code

    whole, seen = b"".join(pieces), 0
    while seen < len(whole):
        arrived = whole[: data.draw(st.integers(seen + 1, len(whole)))]
        assert found(seen) == found(0)
        if found(0) == 400 or found(0)[1] >= 0:
            return  # the server reads no further
        seen = len(arrived)


@every_server
@pytest.mark.parametrize("length", [1, 70_000, 3_000_000])
def test_server_of_the_course_asks_for_a_body_once(course, length):
    module, tests = course
    body = bytes(length)
    fields = [f"Content-Length: {length}", "Expect: 100-continue"]
    with module.Server(tests.greedy, quiet=True) as server:
        with tests.connected(server) as sock:
            sock.sendall(tests.request("POST", "/", *fields))
            assert tests.head_from(sock) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(body)
            assert tests.head_from(sock).startswith(b"HTTP/1.1 200 ")
            assert tests.received(sock) == body
        with tests.connected(server) as sock:  # it does not wait for the answer to its question
            sock.sendall(tests.request("POST", "/", *fields, body=body))
            heads = [tests.head_from(sock)]
            if heads[0].startswith(b"HTTP/1.1 100 "):
                heads.append(tests.head_from(sock))
            assert heads[-1].startswith(b"HTTP/1.1 200 ") and tests.received(sock) == body


@pytest.mark.parametrize("step", [9, 10])
@pytest.mark.parametrize("chunked", [False, True])
def test_server_of_the_course_sends_a_body_of_any_length_to_who_reads_steadily(course, chunked):
    module, tests = course
    size, path = 30_000_000, "/stream" if chunked else "/large"
    app, limit = tests.large_pages(), 1
    with (
        module.Server(app, quiet=True, body_timeout=limit) as server,
        tests.connected(server) as sock,
    ):
        sock.sendall(tests.request("GET", path))
        tests.head_from(sock)
        got, started = 0, time.monotonic()
        while data := sock.recv(300_000):
            got += len(data)
            time.sleep(0.02)
        assert time.monotonic() - started > limit and got >= size


@pytest.mark.parametrize("step", [10])
def test_body_that_comes_slowly_keeps_no_other_request_waiting(course):
    module, _ = course
    comes, asked = threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def read(self, size=-1):
            asked.set()
            comes.wait(10)
            return super().read(size)

    def request(file):
        environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "4", "wsgi.input": file}
        return module.Request(module.WebApp(), environ)

    slow = threading.Thread(target=lambda: request(Slow(b"slow")).body)
    slow.start()
    try:
        assert asked.wait(10)
        bodies = []
        other = threading.Thread(target=lambda: bodies.append(request(io.BytesIO(b"fast")).body))
        other.start()
        other.join(5)
        assert bodies == [b"fast"]
    finally:
        comes.set()
        slow.join()
        other.join()


@pytest.mark.parametrize("path", ["/large", "/stream", "/one"])
@pytest.mark.parametrize("step", [10])
def test_eight_clients_that_do_not_read_stop_nobody(course, path):
    module, tests = course
    app, size = tests.large_pages(), 9_000_000 if path == "/one" else 30_000_000
    app.get("/one")(lambda context: iter(["x" * size]))
    with module.Server(app, quiet=True) as server, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(tests.connected(server)) for _ in range(8)]
        for sock in socks:
            sock.sendall(tests.request("GET", path))
        assert tests.quick(server) < 5
        with tests.connected(server) as sock:  # nor is one that reads cut off for their sake
            sock.sendall(tests.request("GET", path))
            assert len(tests.received(sock)) > size


@pytest.mark.parametrize("step", [10])
def test_server_of_the_course_sends_what_is_left_when_it_stops(course):
    module, tests = course
    app = tests.large_pages()
    with module.Server(app, quiet=True) as server, tests.connected(server) as sock:
        sock.sendall(tests.request("GET", "/large"))
        start = sock.recv(1)
        stops = threading.Thread(target=server.stop)
        stops.start()
        assert len(start + tests.received(sock)) > 30_000_000
        stops.join()


@pytest.mark.parametrize("step", [10])
def test_two_hundred_clients_are_answered(course):
    module, tests = course
    app = tests.echo("PATH_INFO")
    with module.Server(app, quiet=True) as server, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(tests.connected(server)) for _ in range(200)]
        for sock in reversed(socks):
            sock.sendall(tests.request("GET", "/a"))
        assert all(tests.received(sock).endswith(b"['/a']") for sock in socks)


WIRE = st.text(st.characters(max_codepoint=255))  # as a server gives the bytes of a client
BODIES = st.binary() | st.sampled_from(
    [
        b'{"a": "\\ud800"}',
        b'{"\\udfff": [1]}',
        b'{"a": 1e999}',
        b'{"a": NaN}',
        b'{"a": ' + b"9" * 5_000 + b"}",
        b'{"a": ' * 100_000,
        b'{"a": ' + b"[" * 400 + b"]" * 400 + b"}",
        b"a=%ff",
        b"a=1&" * 2_000,
    ]
)
ENVIRONS = st.fixed_dictionaries(
    {
        "REQUEST_METHOD": st.sampled_from(["POST", "HEAD", "\xff"]) | WIRE,
        "PATH_INFO": st.sampled_from(["/", "/" + "9" * 5_000, "/a" * 2_000, "/%00"]) | WIRE,
        "QUERY_STRING": st.sampled_from(["", "a=%ff", "a=1&" * 2_000]) | WIRE,
    },
    optional={
        "CONTENT_LENGTH": st.sampled_from(["", "1", "9" * 5_000, "-1", "\xb2"]) | WIRE,
        "CONTENT_TYPE": st.sampled_from(
            ["application/json", "application/x-www-form-urlencoded", ";", "+json"]
        )
        | WIRE,
        "HTTP_ACCEPT": st.sampled_from(["application/json", ";q=;;,"]) | WIRE,
    },
)


@functools.cache
def reading_app(step, name, checked):
    """Return an application of a step whose pages read an attribute of the request."""
    module = building.load(built(step))
    app = module.WebApp()

    def handler(context, *values):
        getattr(context.request, name)
        return [*map(str, values)]

    before = []
    if checked:

        class Never(module.ValidationExecutor):
            def validate(self, context):
                self.add_error("a", "never")

        before = [Never]
    for pattern in ("/", "/{n:int}", "/{a}/{b}"):
        app.route("POST", pattern, *before)(handler)
    return app


@pytest.mark.parametrize("step", STEPS[3:])
@settings(deadline=None)
@given(environ=ENVIRONS, body=BODIES, data=st.data())
def test_no_input_raises_out_of_the_application_or_is_a_500(step, environ, body, data):
    names = ["path", "method", "query", "form", "json", "body"][: 6 if step >= 6 else 2]
    name = data.draw(st.sampled_from(names))
    app = reading_app(step, name, step >= 6 and data.draw(st.booleans()))
    length = {} if "CONTENT_LENGTH" in environ else {"CONTENT_LENGTH": str(len(body))}
    told = []

    def start_response(status, headers, exc_info=None):
        told.append(int(status[:3]))

    b"".join(app({**environ, **length, "wsgi.input": io.BytesIO(body)}, start_response))
    assert len(told) == 1 and 200 <= told[0] < 500


@every_server
def test_flask_runs_on_the_server_of_the_course(course):
    flask = pytest.importorskip("flask")
    module, tests = course
    (program,) = building.blocks(
        building.part(building.TITLES[7], "Flask on your server"), "python"
    )
    assert len(program.partition("import mine\n")[2].split("\n", 1)[1].strip().splitlines()) == 2

    def visit(message):
        """Stand for the person who presses Enter."""
        (server,) = servers
        with tests.connected(server) as sock:
            sock.sendall(tests.request("GET", "/hello/%3CAda%3E"))
            pages.append(tests.received(sock))

    servers, pages = [], []

    class OnAnyPort(module.Server):
        def __init__(self, app, port):
            assert port == 8000
            super().__init__(app, quiet=True)
            servers.append(self)

    with mock.patch.object(module, "Server", OnAnyPort), mock.patch("builtins.input", visit):
        shop = building.load(program, "shop")
    assert pages[0].startswith(b"HTTP/1.1 200 ") and b"<h1>Hello &lt;Ada&gt;</h1>" in pages[0]

    app = flask.Flask("course")

    @app.post("/form")
    def form():
        flask.session["seen"] = flask.request.form["name"]
        return flask.redirect("/hello/" + flask.session["seen"])

    @app.get("/stream")
    def stream():
        return flask.stream_with_context(f"{number}\n" for number in range(3)), 200

    app.secret_key = "secret"
    fields = ["Content-Type: application/x-www-form-urlencoded", "Content-Length: 8"]
    head, _ = tests.talk(app, tests.request("POST", "/form", *fields, body=b"name=Ada"))
    assert head.startswith("HTTP/1.1 302 ") and "Location: /hello/Ada" in head
    assert "Set-Cookie: session=" in head
    assert tests.talk(shop.app, tests.request("GET", "/none"))[0].startswith("HTTP/1.1 404 ")
    head, body = tests.talk(app, tests.request("GET", "/stream"))
    if "chunked" in head.lower():
        body = b"".join(tests.chunks_of(body))
    assert body == b"0\n1\n2\n"


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
    assert "\n      the left side is {'id': '7'}\n" in run_here(3, mine)
    # A wrong 4xx names its cause, which is a record for debugging, and there is a hint.
    mine.write_text(built(6).replace('self.content_type != "application/json"', "True"), "utf-8")
    printed = run_here(6, mine)
    assert "(DEBUG)" in printed and "HttpException(\"not JSON: 'application/json'\")" in printed
    mine.write_text(built(3).replace("[*values, int(segment)]", "[*values, segment]"), "utf-8")
    assert "building.py 3 --hint 3\n" in run_here(3, mine)
    # A record that cannot be formatted is shown as it is.
    text = built(4).replace('"%s %s: %d %r", method', '"%s %d: %d %r", method')
    mine.write_text(text.replace("if wanted and media_range", "if media_range"), "utf-8")
    assert "cannot be formatted" in run_here(4, mine)
    # A server that fails says why.
    unread = built(8).replace('_LENGTH.fullmatch(environ.get("CONTENT_LENGTH", "0"))', "True")
    mine.write_text(unread, encoding="utf-8")
    assert "ValueError: invalid literal for int() with base 10: '3, 4'" in run_here(8, mine)


WRONG_ARGUMENTS = [
    "",
    "0",
    "11",
    "eleven",
    "\xb2 mine.py",
    "0 mine.py",
    "1 mine.py --kept",
    "1 --kept mine.py",
    "1 --keep",
    "1 a.py b.py c.py",
    "1 --hint two",
    "1 --hint \xb2",
    "1 --hint 1 2",
    "--hint",
    "--points",
    "0 --points folder",
    "--points a b c",
]


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS)
def test_program_explains_itself_when_arguments_are_wrong(arguments):
    with pytest.raises(SystemExit) as ended:
        building.main(arguments.split())
    assert "--text           print" in str(ended.value)


def test_program_prints_one_hint_at_a_time(run_here):
    page = " ".join(building.part(building.TITLES[7], "Hint").split())
    first, second = run_here(8, "--hint"), run_here(8, "--hint", 2)
    assert page in " ".join(first.split()) and "building.py 8 --hint 2" in first
    assert "Checkpoints 2, 3 and 5" in second and page not in " ".join(second.split())
    last = len(building.hints_of(8))
    assert "--hint" not in run_here(8, "--hint", last)
    for number in (0, last + 1):
        with pytest.raises(SystemExit, match=f"has {last} hints"):
            building.main(["8", "--hint", str(number)])


WHERE = pathlib.Path(webapp.__file__).parent
SUBMISSIONS = {
    "ada": built(3),
    "Bob Grün_12_file_": "\ufeff" + built(2).replace("\n", "\r\n"),  # written on Windows
    "=cmd": built(1),
    "empty": None,
    "copied": f"import sys\nsys.path.append({str(WHERE)!r})\nfrom webapp import *\n",
    "broken": "def\n",
    "utf-16": "WebApp = 1\n",
    "leaves": built(1) + "\n\nimport os\nWebApp.on_request = lambda self, context: os._exit(3)\n"
    "WebApp.__call__ = lambda self, environ, start_response: os._exit(3)\n",
    "asks": "input()\n",
    "talks": built(1) + "\nprint('[[99], \"\"]')\n",
    "reads": built(1) + "\nopen('mine.py').close()\n",
}


def test_program_prints_the_points_of_all_submissions(tmp_path, capsys):
    folder, table = tmp_path / "sub missions", tmp_path / "points.csv"
    for name, source in SUBMISSIONS.items():
        (folder / name).mkdir(parents=True)
        encoding = "utf-16" if name == "utf-16" else "utf-8"
        if source is not None:
            (folder / name / "mine.py").write_bytes(source.encode(encoding))
    (folder / "readme.txt").write_text("no submission", "utf-8")
    building.main(["3", "--points", str(folder), str(table)])
    printed = capsys.readouterr().out.splitlines()
    found = {line[:17].strip(): line[17:].split() for line in printed}
    assert [*found] == ["name", "of", *sorted(SUBMISSIONS, key=pathlib.Path)]
    assert found["of"] == ["4", "8", "9", "21"] == found["ada"]
    assert found["Bob Grün_12_file_"] == ["4", "8", "0", "12"]
    assert found["copied"] == ["4", "8", "9", "21", "imports", "webapp"]
    for name in ("=cmd", "talks", "reads"):
        assert found[name][0] == "4" and found[name][1:3] == ["0", "0"], name
    for name, note in [
        ("empty", "no mine.py"),
        ("broken", "cannot be imported"),
        ("asks", "cannot be imported"),
        ("utf-16", "ended with status 1"),
        ("leaves", "ended with status 3"),
    ]:
        assert " ".join(found[name]) == f"0 {note}"
    text = table.read_bytes().decode("utf-8-sig")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0] == ["name", "1", "2", "3", "points", "note"]
    assert {len(row) for row in rows} == {6} and len(rows) == len(found)
    assert ["'=cmd", "4", "0", "0", "4", ""] in rows
    assert ["Bob Grün_12_file_", "4", "8", "0", "12", ""] in rows


def test_points_end_with_tests_that_do_not_end(tmp_path, monkeypatch):
    mine, result = tmp_path / "mine.py", tmp_path / "points.json"
    waits = "lambda self, environ, start_response: threading.Event().wait()"
    mine.write_text(f"{built(1)}\n\nimport threading\nWebApp.__call__ = {waits}\n", "utf-8")
    monkeypatch.setattr(building, "LIMIT", 0.2)
    building.count_points(10, mine, result)
    points, note = json.loads(result.read_text("utf-8"))
    assert points == [0] and "3 tests did not end" in note


def test_points_say_which_folder_is_missing(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SystemExit) as ended:
            building.main(["1", "--points", str(folder)])
        assert str(ended.value).startswith(str(folder))
    (tmp_path / "ada").mkdir()
    with pytest.raises(SystemExit) as ended:
        building.main(["1", "--points", str(tmp_path), str(tmp_path)])
    assert "cannot be written" in str(ended.value)


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
    assert "0.5 seconds" in printed
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
    for later in {step, min(step + 1, len(STEPS)), len(STEPS)}:
        assert passes_kept_test(step, building.load(built(later))), later
    assert passes_kept_test(step, webapp)
    assert not passes_kept_test(step, building.load(built(step - 1)))


@pytest.mark.parametrize("step", range(1, 8))  # the mistakes of the others take minutes
def test_what_a_teacher_keeps_back_catches_most_mistakes_of_its_step(step):
    passed, rows = [], [row[2:] for row in MISTAKES if row[0] == step]
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
