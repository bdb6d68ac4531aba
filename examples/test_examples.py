"""The tests of the lessons, of the manual and of the recipes: `python -m pytest examples`.

Each command that a text shows is run, and its answer is compared with the text. wsgiref.validate
checks each request.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import atexit
import base64
import contextlib
import dis
import functools
import hashlib
import html
import html.parser
import http.client
import importlib.util
import inspect
import io
import json
import logging
import math
import os
import pathlib
import py_compile
import re
import runpy
import shlex
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree
from wsgiref.validate import validator

import pytest

import webapp
from webapp import Server, TestClient, ValidationExecutor, WebApp

ROOT = pathlib.Path(__file__).resolve().parents[1]
JSON, URLENCODED = "application/json", "application/x-www-form-urlencoded"
KEY = "no secret, but as long as one"
WINDOWS = sys.platform == "win32"

# ---- helpers -------------------------------------------------------------------------------------


def client(app, **options):
    """Make a client whose requests and responses wsgiref.validate checks."""
    return TestClient(validator(app), **options)


def lesson_path(name):
    return ROOT / "examples" / f"{name}.py"


def instrument_path(name):
    return ROOT / ".ci" / "instruments" / f"{name}.py"


def load(name, path_of=lesson_path):
    """Import a lesson or an instrument under a name of its own, as new each time."""
    if name == "login" and not hasattr(hashlib, "scrypt"):
        pytest.skip("hashlib has no scrypt here")
    path = path_of(name)
    spec = importlib.util.spec_from_file_location(f"lesson_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def compiled_copy():
    """Make a folder with webapp.py and its byte code, for the programs that the tests start.

    A container often forbids byte code, and then each of them would compile the file again.
    """
    folder = tempfile.TemporaryDirectory(prefix="webapp-")
    atexit.register(folder.cleanup)
    py_compile.compile(shutil.copy2(ROOT / "webapp.py", folder.name), doraise=True)
    return folder.name


def copy_webapp(folder):
    """Copy webapp.py into a folder, with its byte code, which is that of a file of this age."""
    shutil.copytree(compiled_copy(), folder, dirs_exist_ok=True)


def environ_of_a_program(**more):
    return {**os.environ, "PYTHONPATH": compiled_copy(), **more}


def run_python(folder, *arguments, text=True, **environ):
    """Run a program to its end, with webapp.py at hand."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environ_of_a_program(**environ),
        capture_output=True,
        text=text,
        timeout=100,
    )


def fetch(url):
    # No proxy that the environment may name is asked.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        url, timeout=10
    ) as response:
        return response.read()


# ---- curl commands -------------------------------------------------------------------------------


def curl_commands(text):
    """Yield the arguments of each `$ curl` line and the answer shown below it (indented as far, up
    to the next `$`)."""
    arguments, shown, indentation = None, [], 0
    for line in [*text.replace("\\\n", " ").splitlines(), "$"]:
        stripped = line.strip()
        if stripped[:1] == "$" or (stripped and len(line) - len(line.lstrip()) < indentation):
            if arguments:
                yield arguments, "\n".join(shown).rstrip()
            arguments, shown, indentation = None, [], len(line) - len(line.lstrip())
            if stripped.startswith("$ curl "):
                unquoted = re.sub(r"""'[^']*'|"[^"]*\"""", "", stripped)
                assert not re.search(r"[?*&;|<>]", unquoted), f"a shell needs quotes in: {stripped}"
                arguments = shlex.split(stripped)[2:]
        else:
            shown.append(line[indentation:])


def quote_value(field):
    name, _, value = field.partition("=")
    return f"{name}={urllib.parse.quote(value, safe='')}"


CURL = argparse.ArgumentParser("curl", add_help=False, allow_abbrev=False)
CURL.add_argument("url")
for _name in ("-i --include", "-I --head", "-N --no-buffer", "-L --location"):
    CURL.add_argument(*_name.split(), action="store_true")
for _name in ("-H --header", "-d --data", "-F --form"):
    CURL.add_argument(*_name.split(), action="append", default=[])
for _name in ("-X --request", "-b --cookie", "-c --cookie-jar", "-u --user", "-r --range"):
    CURL.add_argument(*_name.split())
CURL.add_argument("--data-urlencode", action="append", dest="data", type=quote_value)


class Curl:
    """As much of curl as the texts use, on a TestClient."""

    def __init__(self, client, folder):
        self.client, self.folder, self.jars = client, pathlib.Path(folder), {}

    def run(self, arguments, whole_pages):
        given = CURL.parse_args(arguments)
        assert re.match(r"http://(127\.0\.0\.1|localhost):8000/", given.url), given.url
        headers = {"User-Agent": "curl", "Accept": "*/*"}
        content = self.content(given, headers)
        headers.update(re.split(r":\s*", header, maxsplit=1) for header in given.header)
        if given.range:
            headers["Range"] = f"bytes={given.range}"
        if given.user:
            headers["Authorization"] = "Basic " + base64.b64encode(given.user.encode()).decode()
        if "=" in (given.cookie or ""):
            headers["Cookie"] = given.cookie
        self.client.cookies.clear()
        self.client.cookies.update(self.jars.get(given.cookie, {}))
        method = given.request or ("HEAD" if given.head else "POST" if content else "GET")
        response = self.client.request(
            method, given.url, headers=headers, follow_redirects=given.location, **content
        )
        self.jars[given.cookie_jar] = dict(self.client.cookies)
        if (
            whole_pages
            and response.headers.get("Content-Type", "").startswith("text/html")
            and response.body
        ):
            check_page(response.text)
        head = [f"HTTP/1.1 {response.status} {response.reason}"]
        head += [
            f"{name}: {value}"
            for name in response.headers
            for value in response.headers.getall(name)
        ]
        return (
            "\n".join([*head, "", response.text]) if given.include or given.head else response.text
        )

    def content(self, given, headers):
        if given.form:
            fields = [field.split("=", 1) for field in given.form]
            form = [(name, value) for name, value in fields if value[:1] != "@"]
            return {
                "form": form,
                "files": [(n, self.upload(value[1:])) for n, value in fields if value[:1] == "@"],
            }
        if given.data:
            headers["Content-Type"] = URLENCODED
            return {"body": "&".join(given.data)}
        return {}

    def upload(self, name):
        content_type = {".txt": "text/plain"}.get(
            pathlib.Path(name).suffix, "application/octet-stream"
        )
        return pathlib.Path(name).name, (self.folder / name).read_bytes(), content_type


def check_page(page):
    """Check what every page owes to screen readers and telephones."""
    tags = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    parser.feed(page)
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    labelled = {attributes.get("for") for tag, attributes in tags if tag == "label"}
    inputs = [
        attributes for tag, attributes in tags if tag in ("input", "select", "textarea", "progress")
    ]
    assert page.startswith("<!DOCTYPE html>\n<html lang=")
    assert re.search(r"<title>[^<]+</title>", page)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in tags
    assert len(ids) == len(set(ids))
    assert {
        attributes.get("id") for attributes in inputs if attributes.get("type") != "hidden"
    } <= labelled
    for attributes in inputs:
        described_by = attributes.get("aria-describedby", "").split()
        assert set(described_by) <= set(ids)
        assert described_by or "aria-invalid" not in attributes


def like(shown, printed):
    """Tell whether a text is printed as it is shown, where `...` is anything."""
    return re.fullmatch(
        re.escape(shown.strip()).replace(r"\.\.\.", ".*"), printed.strip(), re.DOTALL
    )


def answers(shown, printed):
    """Tell whether curl printed what a text shows; header fields may be left out."""
    if not shown.startswith("HTTP/"):
        return like(shown, printed)
    (head, _, body), (printed_head, _, printed_body) = (
        shown.partition("\n\n"),
        printed.partition("\n\n"),
    )
    (status, *fields), (printed_status, *printed_fields) = (
        head.splitlines(),
        printed_head.splitlines(),
    )
    found = all(any(like(field, other) for other in printed_fields) for field in fields)
    return like(status, printed_status) and found and like(body, printed_body)


def replay(text, client, folder=".", whole_pages=True):
    """Run the curl commands of a text and check the answers shown below them."""
    curl, commands = Curl(client, folder), list(curl_commands(text))
    assert commands
    for arguments, shown in commands:
        printed = curl.run(arguments, whole_pages)
        assert answers(shown, printed), (
            f"curl {shlex.join(arguments)}\n--- shown\n{shown}\n--- came\n{printed}"
        )


# ---- lessons -------------------------------------------------------------------------------------

LESSONS = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem[:5] != "test_")
# Which are started as modules, because they do more than serve `app`
SCRIPTS = (
    "embed",
    "live",
    "testing",
)


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch):
    """What a lesson writes goes there, as do the files that its docstring uploads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRYPT_COST", "16")
    (tmp_path / "notes.txt").write_bytes(b"hello world\n")
    (tmp_path / "large.bin").write_bytes(bytes(2**20 + 1))
    return tmp_path


@pytest.mark.parametrize("name", sorted(set(LESSONS) - {"embed", "live"}))
def test_curl_commands_of_a_lesson_answer_what_its_docstring_shows(name, in_tmp_path):
    module = load(name)
    replay(module.__doc__, client(module.app), in_tmp_path)


def test_lessons_are_listed_in_the_readme_with_the_command_that_starts_each():
    text = (ROOT / "examples" / "README.rst").read_text(encoding="utf-8")
    listed = re.findall(r"^`(\w+)\.py <\1\.py>`__ .* ``(.+)``$", text, re.MULTILINE)
    assert sorted(name for name, _ in listed) == LESSONS
    assert [name for name, _ in listed[:4]] == ["hello", "returns", "testing", "routes"]
    for name, command in listed:
        expected = (
            f"python3 -m examples.{name}"
            if name in SCRIPTS
            else f"python3 -m webapp examples/{name}.py"
        )
        assert command == expected
        assert command in lesson_path(name).read_text(encoding="utf-8")


def test_lessons_need_nothing_but_the_checkout(tmp_path):
    """Without site-packages, each warning an error.

    Each is imported as `-m webapp` does it, in one process.
    """
    program = (
        "import sys, runpy, webapp; [runpy.run_path(path) for path in sys.argv[1:]]; "
        "print(*sys.modules)"
    )
    paths = [
        str(lesson_path(name)) for name in LESSONS if name != "login" or hasattr(hashlib, "scrypt")
    ]
    done = run_python(
        tmp_path, "-S", "-W", "error", "-c", program, *paths, PYTHONPATH=str(ROOT), SCRYPT_COST="16"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "sys.path" not in "".join(
        lesson_path(name).read_text(encoding="utf-8") for name in LESSONS
    )


def test_command_of_the_first_lesson_starts_it():
    done = run_python(ROOT, "-m", "webapp", "--routes", "examples/hello.py")
    assert done.returncode == 0 and "/hello/{name}" in done.stdout


@pytest.mark.parametrize("name", "files guestbook live login returns upload".split())
def test_pages_of_lessons_share_one_stylesheet_which_is_served(name, in_tmp_path):
    source = lesson_path(name).read_text(encoding="utf-8")
    assert "<style>" not in source
    # Without it a browser asks for /favicon.ico, and the log shows a 404.
    assert source.count('<link rel="icon" href="data:,">') == source.count("<!DOCTYPE html>") == 1
    response = client(load(name).app).get("/static/style.css")
    assert (response.status, response.headers["Content-Type"]) == (200, "text/css; charset=UTF-8")


def test_guestbook_shows_each_invalid_field_and_loses_nothing_that_was_typed(in_tmp_path):
    browser = client(load("guestbook").app)
    page = browser.post(
        "/", form={"name": '"><b>' + "x" * 50, "message": "\r\nHello & </textarea>"}
    ).text
    check_page(page)
    assert (
        re.search('value="(&quot;|&#34;)&gt;&lt;b&gt;', page)
        and 'aria-describedby="name-error"' in page
    )
    # HTML drops the first line end.
    assert ">\n\r\nHello &amp; &lt;/textarea&gt;</textarea>" in page
    assert "message-error" not in page
    assert "Nobody yet" in browser.get("/").text


def test_upload_keeps_the_file_under_its_digest_whatever_its_name_is(in_tmp_path):
    browser = client(load("upload").app)
    for filename in (
        "../../notes.txt",
        "..",
        "/etc/passwd",
        "C:\\x",
        "x" * 300,
        "\u65e5\u672c.txt",
    ):
        response = browser.post("/", files={"file": (filename, b"hello world\n")})
        (digest,) = re.findall("<td>([0-9a-f]{64})</td>", response.text)
        kept = {path.name: path.read_bytes() for path in (in_tmp_path / "uploads").iterdir()}
        assert kept == {digest: b"hello world\n"}
        assert sorted(path.name for path in in_tmp_path.iterdir()) == [
            "large.bin",
            "notes.txt",
            "uploads",
        ]


def test_pages_of_a_local_tool_stay_out_of_frames_of_other_sites(recipe):
    """A click in such a frame would press a button of the tool (clickjacking)."""
    embed, live = load("embed"), load("live")
    button = recipe("How do I stop the server with a button?")["app"]
    tool = recipe(TOOL)
    for app in (embed.make_app(embed.Search(10)), live.app, button, tool["app"]):
        for path in ("/", f"/{tool['TOKEN']}/", "/nowhere"):
            headers = client(app).get(path).headers
            assert headers["X-Frame-Options"] == "SAMEORIGIN"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_embed_shows_how_far_the_script_has_come_and_can_end_it(capsys):
    module = load("embed")
    search = module.Search(limit=30)
    replay(module.__doc__, client(module.make_app(search)))  # the last command ends it
    search.run()
    assert search.primes == [2]

    class Watched(module.Search):
        def run(self):
            browser = client(module.make_app(self))
            url = re.search("http://[0-9.:]+", capsys.readouterr().out)[0]
            assert json.loads(fetch(f"{url}/status")) == {"tried": 2, "found": 1, "largest": 2}
            super().run()
            assert browser.get("/status").json == {"tried": 29, "found": 10, "largest": 29}
            check_page(browser.get("/").text)

    module.Search = Watched
    module.main(limit=30, port=0)
    assert capsys.readouterr().out == "10 primes up to 29\n"


def test_tests_of_the_testing_lesson_pass(capsys):
    runpy.run_path(str(lesson_path("testing")), run_name="__main__")
    assert capsys.readouterr().out == "5 tests passed\n"


@pytest.fixture
def todos(tmp_path, monkeypatch):
    monkeypatch.setenv("TODOS", str(tmp_path / "todos.sqlite3"))
    return client(load("todo_api").app)


def test_todo_api_answers_every_error_with_a_problem_detail(todos):
    as_json = {"headers": {"Content-Type": JSON}}
    for method, path, content, status, title in [
        ("PUT", "/todos/1", {"json": {}}, 405, "Method Not Allowed"),
        ("GET", "/todos/1", {}, 404, "Not Found"),
        ("DELETE", "/todos/999999999999999999", {}, 404, "Not Found"),
        ("POST", "/todos/1/done", {}, 404, "Not Found"),
        ("POST", "/todos", {"form": {"title": "x"}}, 415, "Unsupported Media Type"),
        ("POST", "/todos", {"body": "[" * 100_000, **as_json}, 400, "Bad Request"),
        ("POST", "/todos", {"body": '"' + "x" * 2**21 + '"', **as_json}, 413, "Content Too Large"),
        ("POST", "/todos", {"json": ["x"]}, 400, "Bad Request"),
        (
            "POST",
            "/todos",
            {"body": rb'{"title": "\ud800"}', **as_json},
            422,
            "Unprocessable Content",
        ),
        *(
            ("POST", "/todos", {"json": document}, 422, "Not valid")
            for document in ({}, {"title": 1}, {"title": " \n"}, {"title": "x" * 201})
        ),
    ]:
        response = todos.request(method, path, **content)
        found = (
            response.status,
            response.headers["Content-Type"],
            response.json["title"],
            response.json["status"],
        )
        assert found == (status, "application/problem+json", title, status)
        assert ("Allow" in response.headers) == (status == 405)
        assert ("detail" in response.json) == (status == 404)
    assert todos.get("/todos").json == {"todos": []}
    assert "HttpException(status_code).phrase" in lesson_path("todo_api").read_text(
        encoding="utf-8"
    )


def test_todo_api_keeps_todos_lists_done_ones_last_and_hides_failures(todos, tmp_path):
    places = [
        todos.post("/todos", json={"title": title}).headers["Location"]
        for title in (" Tea ", "\u00e4\u65e5")
    ]
    assert [todos.get(place).json["title"] for place in places] == ["Tea", "\u00e4\u65e5"]
    todos.post(places[0] + "/done")
    assert [todo["done"] for todo in todos.get("/todos").json["todos"]] == [False, True]
    assert todos.delete(places[1]).status == 204
    assert [todo["title"] for todo in todos.get("/todos").json["todos"]] == ["Tea"]
    (tmp_path / "todos.sqlite3").rename(tmp_path / "kept")
    (tmp_path / "todos.sqlite3").mkdir()
    assert todos.get("/todos").json == {
        "type": "about:blank",
        "title": "Internal Server Error",
        "status": 500,
    }


def test_live_streams_every_state_of_the_search_until_its_end(monkeypatch):
    module = load("live")

    class LastStep(module.Search):
        def state(self):
            state = super().state()
            self.tested = len(self.exponents)
            return state

    module.search = LastStep(limit=3000)
    module.search.tested, module.search.found = 428, [3, 5, 7, 13, 17, 19, 31, 61]
    replay(module.__doc__, client(module.app))

    module.search = module.Search(limit=100)
    browser = client(module.app)
    page = browser.get("/").text
    check_page(page)
    assert '<span id="tested">0</span> of 24' in page
    assert '<noscript><meta http-equiv="refresh"' in page
    work = threading.Thread(target=module.search.run)
    work.start()
    response = browser.get("/events")
    work.join()
    assert response.headers["Content-Type"] == "text/event-stream"
    tested = [
        int(number) for number in re.findall(r'data: {"tested": (\d+), "total": 24', response.text)
    ]
    assert tested == sorted(set(tested))
    assert response.text.endswith('"found": [3, 5, 7, 13, 17, 19, 31, 61, 89], "done": true}\n\n')
    # A late client hears the end at once.
    assert len(browser.get("/events").text.split("\n\n")) == 2
    page = browser.get("/").text
    assert "3, 5, 7, 13, 17, 19, 31, 61, 89" in page
    assert "Done." in page and "noscript" not in page


def test_files_lists_what_it_serves_and_every_link_leads_there(tmp_path):
    names = ["a b#%41&+.txt", "'\u65e5.txt", "index.txt", *([] if WINDOWS else ["?<b>.txt"])]
    for name in names:
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / ".secret").write_text("x")
    (tmp_path / "folder").mkdir()
    with contextlib.suppress(OSError):  # Windows lets few people make symbolic links
        (tmp_path / "link").symlink_to(ROOT / "webapp.py")
    browser = client(load("files").make_app(tmp_path))
    page = browser.get("/").text
    check_page(page)
    assert "<b>" not in page
    links = re.findall('<a href="([^"]+)"', page)
    assert len(links) == 2 * len(names)
    assert {browser.get("/" + link).text for link in links} == set(names)


def test_files_serves_nothing_that_it_does_not_list_but_the_index_page_of_a_folder(tmp_path):
    folder = tmp_path / "served"
    (folder / "site").mkdir(parents=True)
    (folder / "site" / "index.html").write_text("<p>Hi")
    (folder / ".secret").write_text("x")
    (tmp_path / "outside.txt").write_text("x")
    with contextlib.suppress(OSError):
        (folder / "link").symlink_to(tmp_path / "outside.txt")
    browser = client(load("files").make_app(folder))
    names = ("..%2Foutside.txt", ".secret", "link", "%00", "..", "a%5C..%5C.secret")
    for path in (
        "/download/site",
        *(prefix + name for name in names for prefix in ("/download/", "/files/")),
    ):
        response = browser.get(path, follow_redirects=True)
        assert (path, response.status, response.text) == (path, 404, "404 Not Found")
    response = browser.get("/files/site", follow_redirects=True)
    assert (response.text, response.headers["Content-Type"]) == (
        "<p>Hi",
        "text/html; charset=UTF-8",
    )
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_a_route_for_every_options_makes_a_405_of_each_unknown_path_as_the_readme_says():
    (pattern,) = re.findall(r"/\{rest:path\}", chapter("Routes"))
    app = WebApp()
    app.options(pattern, lambda context, rest: None)
    assert [client(app).get(path).status for path in ("/api/typo", "/typo")] == [405, 405]


def test_cors_allows_nothing_to_an_origin_that_is_not_listed():
    browser = client(load("cors").app)
    for origin in ([], "null", "", "https://shop.example.evil", "http://shop.example", "*"):
        for method in ("GET", "OPTIONS"):
            headers = {"Origin": origin, "Access-Control-Request-Method": "GET"}
            response = browser.request(method, "/api/prices", headers=headers)
            assert response.headers["Vary"] == "Origin"
            assert not [
                name for name in response.headers if name.lower().startswith("access-control")
            ]
    asking = {"Origin": "https://shop.example", "Access-Control-Request-Method": "PUT"}
    for path in ("/nowhere", "/api/nowhere", "/api/prices/tea/nowhere"):
        assert browser.request("OPTIONS", path, headers=asking).status == 404
        assert browser.get(path).status == 404
    assert browser.delete("/api/prices").headers["Allow"] == "GET, HEAD"
    response = browser.put("/api/prices/tea", json=5, headers={"Origin": "http://localhost:3000"})
    assert response.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert response.json == {"tea": 5, "cake": 4}


def test_login_keeps_no_password_tells_no_user_and_ends_sessions_of_users_gone(
    in_tmp_path,
):
    module = load("login")
    browser = client(module.app)
    for user in ("ada", "bob", '"><b>'):
        response = browser.post("/login", form={"user": user, "password": "secret words"})
        check_page(response.text)
        assert (response.status, "Set-Cookie" in response.headers) == (422, False)
        assert "There is nobody of that name with that password." in response.text
        assert not {"secret words", "<b>"} & set(re.findall("secret words|<b>", response.text))
    for form in ({}, {"user": "ada"}, {"password": "notes on the engine"}):
        assert browser.post("/login", form=form).status == 400
    module.add_user("bob", "the same")
    module.add_user("eve", "the same")
    assert "the same" not in repr(module.users)
    assert module.users["bob"][1] != module.users["eve"][1]
    browser.post("/login", form={"user": "bob", "password": "the same"})
    account = browser.get("/")
    check_page(account.text)
    assert account.headers["Cache-Control"] == "no-store"
    # The back/forward cache of Chromium keeps pages that are "no-store".
    assert '"pageshow", (event) => event.persisted && location.reload()' in account.text
    del module.users["bob"]
    assert browser.get("/").status == 303


@pytest.mark.parametrize(
    ("proxies", "address", "scheme", "host"),
    [("0", "127.0.0.1", "http", "inner:8000"), ("1", "203.0.113.7", "https", "www.example")],
)
def test_deploying_believes_as_many_proxies_as_told(proxies, address, scheme, host, monkeypatch):
    monkeypatch.setenv("TRUSTED_PROXIES", proxies)
    module = load("deploying")
    assert module.application is module.app
    told = {"Proto": "https", "For": "6.6.6.6, 203.0.113.7", "Host": "www.example"}
    headers = {
        "Host": "inner:8000",
        **{f"X-Forwarded-{name}": value for name, value in told.items()},
    }
    response = client(module.app).get(
        "/whoami", headers=headers, environ={"REMOTE_ADDR": "127.0.0.1"}
    )
    url = f"{scheme}://{host}/whoami"
    assert response.json == {"remote_address": address, "scheme": scheme, "host": host, "url": url}


# ---- instruments ---------------------------------------------------------------------------------


@pytest.fixture
def in_a_thorough_run(request):
    if request.config.getoption("--hypothesis-profile", None) != "thorough":
        pytest.skip("an instrument: --hypothesis-profile=thorough runs it")


def test_benchmark_measures_three_rows_and_compares_with_another_copy(in_a_thorough_run):
    arguments = ["--quick", "--only", "hello,form,equal-16", "--compare", str(ROOT / "webapp.py")]
    program = str(instrument_path("benchmark"))
    done = run_python(ROOT, program, *arguments, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if len(line) > 100] == []
    assert [line.split()[-3:] for line in lines if line[-6:] == "/other"] == [
        ["ratio", "limit", "/other"]
    ] * 2
    for title, limit in (
        ("hello", "0.65"),
        ("a form of five fields", "1.50"),
        ("the same hello, 16", "3.40"),
    ):
        assert [limit in line.split() for line in lines if line.startswith(title)] == [True]


def test_stalling_times_a_normal_client_beside_every_kind_at_once(capsys, in_a_thorough_run):
    module = load("stalling", instrument_path)
    count = len(module.list_kinds())
    options = (
        f"--kinds mix --connections {count} --seconds 0.5 --noise 60000"
        " --max-threads 1000 --max-memory 9999"
    )
    assert module.main(options.split()) == 0
    headings, kept, new, *most = capsys.readouterr().out.splitlines()
    name, opened, *figures = kept.split()
    assert (name, int(opened) >= count) == ("mix", True)
    assert (figures[:2], new.split()[:2]) == (["kept", "0"], ["new", "0"])
    assert max(map(len, (headings, kept, new, *most))) <= 100
    slow = module.Run(
        "silent", 1, 10, 10, {"new": [1.0, 3.1, math.inf]}, {"new": [1.0]}, (2, 8000), (73, 99_000)
    )
    goals = module.missed(slow, module.read_arguments(["--max-threads", "72"]))
    assert module.lines_of(slow, goals)[-1] == "  missed: failed, median, threads, memory"


def test_each_mistake_is_noticed_as_its_row_says(capsys):
    failed = load("mistakes", instrument_path).main([])
    assert not failed, capsys.readouterr().out


@pytest.fixture(scope="module")
def simulated():
    """The simulation, and the copy of webapp.py that it plays with."""
    module = load("simulation", instrument_path)
    with module.Program() as program:
        yield module, program


KINDS_OF_WORLDS = ["honest", "hostile", "crowded", "stopping", "waiting", "cramped", "encrypted"]


@pytest.mark.parametrize("kind", KINDS_OF_WORLDS)
def test_simulated_worlds_have_no_fault(simulated, kind):
    module, program = simulated
    seeds = range(3 if kind == "encrypted" else 5)  # TLS takes the most processor time
    worlds = [module.play(seed, kind, program) for seed in seeds]
    assert sum(len(world.completed) for world in worlds) > 3 * len(worlds)


def test_simulated_world_is_the_same_for_the_same_seed(simulated, capsys):
    module, program = simulated
    worlds = [module.play(3, "hostile", program, verbose) for verbose in (False, True)]
    assert len({(world.count, world.now) for world in worlds}) == 1
    assert capsys.readouterr().out.count("\n") > 100


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="the threads of a free-threaded build take other steps",
)
def test_first_lines_of_a_simulated_world_are_explained_in_the_course(simulated, capsys):
    module, program = simulated
    text = (ROOT / "examples" / "course" / "reading.rst").read_text(encoding="utf-8")
    kind, seed = re.search(r"simulation\.py --kind (\w+) --seed (\d+) -v", text).groups()
    module.play(int(seed), kind, program, verbose=True)
    told = text[text.index("The output begins with these lines") :].split(".. code:: text\n\n")[1]
    # Without the times: one call of the clock more moves all that follow.
    shown, ran = (
        [line.split(maxsplit=1)[1] for line in lines.splitlines()[:4]]
        for lines in (told.partition("\n\n")[0], capsys.readouterr().out)
    )
    assert shown == ran
    sizes = re.findall(r"``(_[A-Z]+)`` \(([\d,]+)[^)]*\)", told)
    assert sizes == [(name, f"{getattr(webapp, name):,}") for name in module.SIZES]


QUICKLY_FOUND = [  # a thorough run looks for all of them
    ("honest", "a closed socket that stays registered"),
    ("honest", "a body without its last chunk"),
    ("encrypted", "an end of TLS that is ignored"),
]


def test_simulation_can_plant_each_of_its_faults(simulated):
    module, _ = simulated
    source = (ROOT / "webapp.py").read_text(encoding="utf-8")
    assert [name for name in module.FAULTS if module.plant(name).startswith(source)] == []


@pytest.mark.parametrize(("kind", "name"), QUICKLY_FOUND)
def test_simulation_notices_a_planted_fault(simulated, kind, name):
    assert simulated[0].find_planted(name, 5, [kind]) is not None


def test_simulation_notices_all_planted_faults(simulated, in_a_thorough_run):
    module = simulated[0]
    assert [name for name in module.FAULTS if module.find_planted(name, 800) is None] == []


# ---- the manual: reading it ----------------------------------------------------------------------


def pages_of(folder):
    """The texts of a folder of examples/ by their names, a README.rst first."""
    paths = (ROOT / "examples" / folder).glob("*.rst")
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(paths)}


README = (ROOT / "README.rst").read_text(encoding="utf-8")
MANUAL = "\n".join(text for name, text in pages_of("manual").items() if name != "changes")


def chapter(title, text=MANUAL):
    """The text below a heading, up to the next heading of its rank or a higher one."""
    heading = re.search(rf"^{re.escape(title)}\n(=|-)\1+\n", text, re.MULTILINE)
    rank = "=" if heading[1] == "=" else "=-"
    following = re.compile(rf"^\S.*\n([{rank}])\1{{2,}}\n", re.MULTILINE).search(
        text, heading.end()
    )
    return text[heading.end() : following.start() if following else len(text)]


def blocks(text, language):
    """The `.. code::` blocks of a language, without their indentation."""
    found = re.findall(rf"^\.\. code:: {language}\n\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def table(text, number=0):
    """The rows of a simple table as lists of cells; a row that begins with an empty cell continues
    the one above."""
    rules = r"=+(?: +=+)+\n"
    found = re.findall(rf"^({rules})(?:.*\n{rules})?((?:(?!=|\n).*\n)+){rules}", text, re.MULTILINE)
    rule, body = found[number]
    starts = [match.start() for match in re.finditer("=+", rule)] + [None]
    rows = []
    for line in body.splitlines():
        cells = [line[start:end].strip() for start, end in zip(starts, starts[1:])]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells)]
    return rows


def run_program(*sources, file="manual.rst", **given):
    """Run a program, which stands in a file of that name, and return its names."""
    names = {"__name__": "program", **given}
    exec(compile("\n".join(sources), file, "exec", dont_inherit=True), names)
    return names


@contextlib.contextmanager
def started(folder, *command, says=("stderr", r"serving on (\S+)"), **options):
    """Start a program that serves on port 0, and yield it with the address it prints."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {"cwd": folder, "env": environ_of_a_program(), "text": True, **pipes, **options}
    with subprocess.Popen([sys.executable, *(command or ["app.py"])], **options) as process:
        try:
            stream, pattern = says
            yield process, re.search(pattern, getattr(process, stream).readline())[1]
        finally:
            process.terminate()
            process.communicate(timeout=30)


# ---- the manual: programs and commands -----------------------------------------------------------

STEPS = re.findall(r"^Step \d: .*", MANUAL, re.MULTILINE)


def test_first_application_answers_what_the_manual_shows_and_its_printed_address_is_a_page():
    (program,) = blocks(chapter("Installation"), "python")
    app = run_program(program)["app"]
    replay(chapter("Installation"), client(app))
    assert client(app).get("/").text == "Hello world"


def test_program_of_the_readme_answers_at_the_address_that_the_text_names():
    program, page = blocks(README, "python")
    assert len(program.splitlines()) <= 15
    path = re.search(r"http://127\.0\.0\.1:8000(/\S+)\.", README)[1]
    app = run_program(program.replace("if __name__", page + "\nif __name__"))["app"]
    assert client(app).get(path).text == "One tea costs 3 euros."
    assert "<tr><td>tea</td><td>3</td></tr>" in client(app).get("/").text


def test_readme_is_short_and_says_how_large_the_file_is():
    assert len(README.splitlines()) <= 300
    assert len(README.split()) <= 1800
    said = int(re.search(r"(\d+),(\d+)\s+lines", README).expand(r"\1\2"))
    lines = (ROOT / "webapp.py").read_text(encoding="utf-8").count("\n")
    assert abs(said - lines) <= 500


def test_program_that_package_indexes_show_runs():
    description = (ROOT / ".github" / "description.rst").read_text(encoding="utf-8")
    (program,) = blocks(description, "python")
    assert client(run_program(program)["app"]).get("/hello/Ada").text == "Hello Ada"


def test_two_commands_for_a_fresh_machine_stand_as_the_checks_expect_them():
    first, second = re.findall("^    (python3 .*)$", README, re.MULTILINE)
    assert (ROOT / first.split()[-1]).is_file()
    assert second == (
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python "
        "-m pytest -q"
    )
    # For .ci/run.
    assert re.search(r"^    python3 -m venv .*", README, re.MULTILINE)[0] == f"    {second}"
    assert f"\n    {first}\n    {second}\n" in chapter("Installation")
    assert max(map(len, README.splitlines())) <= 120


@pytest.mark.parametrize("last", range(1, len(STEPS)))
def test_each_step_of_the_tutorial_runs_and_answers_what_it_shows(last, monkeypatch):
    monkeypatch.setenv("GUESTBOOK_PASSWORD", "secret")
    program = [block for step in STEPS[:last] for block in blocks(chapter(step), "python")]
    replay(chapter(STEPS[last - 1]), client(run_program(*program)["app"]))


def test_tests_of_the_tutorial_pass_in_a_checkout(tmp_path):
    """Without hypothesis and its plugin, which the tutorial does not ask for."""
    copy_webapp(tmp_path)
    for name in ("conftest.py", "setup.cfg"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "hypothesis.py").write_text("raise ImportError")
    *steps, tests = [block for step in STEPS for block in blocks(chapter(step), "python")]
    (tmp_path / "guestbook.py").write_text("\n".join(steps), encoding="utf-8")
    (tmp_path / "test_guestbook.py").write_text(tests, encoding="utf-8")
    command = (
        blocks(chapter(STEPS[-1]), "console")[-1].strip().splitlines()[-1].replace("$ python3 ", "")
    )
    done = run_python(tmp_path, *command.split(), "-p", "no:hypothesispytest")
    assert "2 passed" in done.stdout, done.stdout


CONSOLE = "".join(blocks(MANUAL, "console")).replace("\\\n", "")
COMMANDS = [line[2:] for line in CONSOLE.splitlines() if line[:2] == "$ "]


def test_names_and_commands_of_the_manual_exist():
    for path in re.findall(r"examples/(?:\w+/)?\w+\.\w+", README + MANUAL):
        assert (ROOT / path).is_file(), path
    for name in re.findall(
        r"^(?:>>> |\.\.\. |    )*from webapp import (.*)$", MANUAL, re.MULTILINE
    ):
        assert set(name.split(", ")) <= set(webapp.__all__)
    made = {"hello.py", "guestbook.py", "test_guestbook.py", "webapp.py"}
    for command in COMMANDS:
        if not command.startswith("curl "):
            words = shlex.split(command)
            assert {word for word in words if word.endswith(".py")} <= made, command
            assert {word for word in words if re.fullmatch(r"[a-z]\w*:\w+", word)} <= {
                "hello:app"
            }, command


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory with the file and the first application, as the readme asks for."""
    copy_webapp(tmp_path)
    (tmp_path / "hello.py").write_text(*blocks(chapter("Installation"), "python"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(command):
    words = [sys.executable if word == "python3" else word for word in shlex.split(command)]
    if words[0] == "cp":  # of a shell that Windows has not
        return shutil.copyfile(*words[1:])
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_line_has_every_option_of_the_manuals_and_prints_the_checksum(project):
    commands = [
        *COMMANDS,
        *(command for block in blocks(RECIPES, "console") for command in block.splitlines()),
    ]
    options = {
        word
        for line in commands
        if "-m webapp" in line
        for word in line.split()
        if word.startswith("--")
    }
    options |= set(re.findall(r"``(--[a-z-]+)``", chapter("Running your application")))
    assert options <= set(re.findall("--[a-z][a-z-]+", run_command("python3 -m webapp --help")))
    assert "/hello/{name}" in run_command("python3 -m webapp --routes hello.py")
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    entry = re.search(r'webapp = "webapp:(\w+)"', settings)[1]
    assert callable(getattr(webapp, entry))
    copy = (project / "webapp.py").read_bytes()
    assert hashlib.sha256(copy).hexdigest() in run_command("python3 webapp.py --version")
    assert b"SPDX-License-Identifier: MIT" in copy and b"Permission is hereby granted" in copy


def test_application_behind_a_proxy_sees_the_visitor_as_nginx_tells_it():
    """The one configuration for nginx is that of deploying.py, and the manual names the same
    headers."""
    lesson = lesson_path("deploying").read_text(encoding="utf-8")
    app = WebApp(trusted_proxies=1)
    app.get("/")(lambda context: f"{context.request.url} {context.request.remote_address}")
    forwarded_for = "6.6.6.6, 1.2.3.4"  # the first is what the visitor sent
    variables = {
        "$http_host": "guestbook.example",
        "$scheme": "https",
        "$proxy_add_x_forwarded_for": forwarded_for,
    }
    headers = {
        name: variables[value]
        for name, value in re.findall(r"proxy_set_header (\S+) (\S+);", lesson)
    }
    assert client(app).get("/", headers=headers).text == "https://guestbook.example/ 1.2.3.4"
    manual = chapter("Deploying your application")
    assert set(headers) == {"Host", *re.findall(r"X-Forwarded-\w+", manual)}


FRONTEND = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend world
    bind 127.0.0.1:8080
    default_backend whoami
"""


def test_configuration_of_haproxy_is_valid_and_sets_what_that_of_nginx_sets(tmp_path):
    lesson = lesson_path("deploying").read_text(encoding="utf-8")
    (backend,) = re.findall(r"^    backend whoami\n(?:        .*\n)+", lesson, re.MULTILINE)
    named = set(re.findall(r"set-header (\S+) ", backend))
    assert "option forwardfor" in backend and "option http-no-delay" in backend
    assert {"Host", "X-Forwarded-For", *named} == set(
        re.findall(r"proxy_set_header (\S+) ", lesson)
    )
    (tmp_path / "haproxy.cfg").write_text(FRONTEND + textwrap.dedent(backend))
    try:
        command = ["haproxy", "-c", "-f", tmp_path / "haproxy.cfg"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no HAProxy here")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name",
    [
        str(path.relative_to(ROOT))
        for pattern in ("*.rst", ".github/*.rst", "examples/**/*.rst")
        for path in sorted(ROOT.glob(pattern))
    ],
)
def test_document_renders_without_a_warning(name):
    core = pytest.importorskip("docutils.core")
    from docutils.writers.html5_polyglot import Writer

    told = io.StringIO()
    settings = {"report_level": 1, "warning_stream": told, "syntax_highlight": "none"}
    text = (ROOT / name).read_text(encoding="utf-8")
    core.publish_string(text, str(ROOT / name), writer=Writer(), settings_overrides=settings)
    # An anchor is there for links from elsewhere.
    lines = [line for line in told.getvalue().splitlines() if "is not referenced." not in line]
    assert lines == []


# ---- the manual: one request ---------------------------------------------------------------------


def test_picture_of_a_request_names_sections_of_the_file():
    (picture,) = re.findall(r"::\n\n((?:    .*\n|\n)+)", chapter("One request"))
    right = " ".join(line[49:] for line in picture.splitlines())
    source = (ROOT / "webapp.py").read_text(encoding="utf-8")
    titles = re.findall(r"^# ---- (.+?) -+$", source, re.MULTILINE)
    named = [part.strip() for part in re.split(r"[,;]| and ", right)]
    sections = (
        "the server|patterns and routes|the context|statuses and exceptions|scopes|executors|the "
        "response|contents|"
        "sessions|the application|access lines"
    )
    for section in sections.split("|"):
        assert section in titles and (section in named or section in right), section


def fail(context, *_):
    raise RuntimeError("said nowhere")


def nothing(context, *_):
    return None


class Invalid(ValidationExecutor):
    def validate(self, context):
        self.add_errors({"title": ["is missing"], "age": ["is no number"]})


class Traced(WebApp):
    """Notes the stages of a request. `actions` maps a stage to what it does."""

    def __init__(self, **actions):
        super().__init__()
        self.calls, self.actions = [], actions

    def stage(self, name):
        def run(context, *rest):
            self.calls.append(name)
            return self.actions.get(name, nothing)(context, *rest)

        return run

    def on_request(self, context):
        return self.stage("on_request")(context)


HOOK_ROWS = {
    "a handler of scope 1 succeeds": ("GET /", {}),
    "a handler of scope 3 succeeds": ("GET /a/b/x", {}),
    "a handler of scope 3 fails": ("GET /a/b/x", {"handler": fail}),
    "a handler of scope 3 fails, and the error hook of scope 2 responds": (
        "GET /a/b/x",
        {"handler": fail, "error2": lambda *_: "sent"},
    ),
    "a handler of scope 3 fails, and the error hook of scope 3 fails too": (
        "GET /a/b/x",
        {"handler": fail, "error3": fail},
    ),
    "the before hook of scope 2 redirects": (
        "GET /a/b/x",
        {"before2": lambda c: c.response.redirect("/login")},
    ),
    "the before hook of scope 2 fails": ("GET /a/b/x", {"before2": fail}),
    "a validation in scope 3 fails": ("GET /a/b/x", {}),
    "a handler of scope 4 fails": ("GET /a/other", {"handler": fail}),
    "the path is unknown, such as ``/a/nowhere``": ("GET /a/nowhere", {}),
    "``/a/b/x`` does not allow the method": ("POST /a/b/x", {}),
    "``on_request`` answers the request": (
        "GET /a/b/x",
        {"on_request": lambda c: c.response.code(403)},
    ),
    "``on_request`` fails": ("GET /a/b/x", {"on_request": fail}),
}


@pytest.mark.parametrize(
    "row", table(chapter("Which hook runs for which route")), ids=lambda row: row[0]
)
def test_row_of_which_hook_runs(row):
    title, *expected = row
    request, actions = HOOK_ROWS[title]
    app, kinds = Traced(**actions), ("before", "error", "after")
    outer, second = app.path("/a"), app.path("/a")
    inner = outer.path("/b")
    for number, scope in enumerate((app, outer, inner, second), 1):
        for kind in kinds:
            getattr(scope, kind)(app.stage(f"{kind}{number}"))
    handler = Invalid if "validation" in title else app.stage("handler")
    for scope, pattern in ((app, "/"), (inner, "/x"), (second, "/other")):
        scope.get(pattern, handler)
    client(app).request(*request.split())
    ran = [
        " ".join(name[-1] for name in app.calls if name[:-1] == kind) or "none" for kind in kinds
    ]
    assert ran == expected


@pytest.mark.parametrize(
    ("guard", "status", "text"),
    [
        (lambda c: "closed", 200, "closed"),
        (lambda c: c.response.text("closed").send() and None, 200, "closed"),
        (lambda c: c.response.redirect("/login"), 303, "303 See Other"),
        (lambda c: (c.response.redirect("/login"), None)[1], 303, "303 See Other"),
        (lambda c: (c.response.code(403), None)[1], 403, ""),
        (lambda c: c.response.json({"closed": True}), 200, '{"closed": true}'),
        (lambda c: c.response.code(202), 202, ""),
        (fail, 500, "500 Internal Server Error"),
        (lambda c: c.response.header("X-Seen", "yes").cookie("seen", "yes"), 200, "secret"),
        (lambda c: (c.response.code(202), None)[1], 202, "secret"),
        (lambda c: (c.response.text("built"), None)[1], 200, "built"),
        (lambda c: (c.response.json("built", True), None)[1], 200, "secret"),
        (lambda c: (c.response.put_form({"built": "yes"}), None)[1], 200, "secret"),
    ],
)
@pytest.mark.parametrize("kind", ["before", "on_request", "executor"])
def test_box_about_guards(kind, guard, status, text):
    app = Traced(on_request=guard if kind == "on_request" else nothing)
    if kind == "before":
        app.before(guard)
    app.get("/", *([guard] if kind == "executor" else []), lambda context: "secret")
    response = client(app).get("/")
    assert (response.status, response.text) == (status, text)


# ---- the manual: security ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..%2Fapp.py", "%2Fetc%2Fhostname", "..", "none.txt", "a.txt"])
def test_check_of_a_name_in_a_path_opens_nothing_but_what_the_folder_lists(name, tmp_path):
    """A parameter may hold a slash, so the manual shows how a name is compared."""
    (check,) = re.findall(r"``(if name not in os.listdir\(folder\): .*)``", MANUAL)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("green", encoding="utf-8")
    (tmp_path / "app.py").write_text("of the application", encoding="utf-8")
    names = {"os": os, "folder": tmp_path / "notes", "NotFoundException": webapp.NotFoundException}
    app = WebApp()

    @app.get("/notes/{name}")
    def note(context, name):
        run_program(check, name=name, **names)
        return (names["folder"] / name).read_text(encoding="utf-8")

    target = f"/notes/{name}"
    environ = {"REQUEST_URI": target, "PATH_INFO": urllib.parse.unquote(target)}
    answer = client(app).get("/", environ=environ)
    shown = (200, "green") if name == "a.txt" else (404, "404 Not Found")
    assert (answer.status, answer.text) == shown


def test_security_names_the_header_that_keeps_a_page_out_of_frames():
    (call,) = re.findall(r'``context\.(response\.header\("X-Frame-Options", "\w+"\))``', MANUAL)
    assert call in chapter(
        "How do I keep other sites from framing my pages (clickjacking)?", RECIPES
    )


# ---- the manual: reference and limits ------------------------------------------------------------


def test_reference_names_everything_public():
    words = set(re.findall(r"\w+", " ".join(re.findall(r"``[^`]+``", MANUAL))))
    instances, app = [], WebApp(secret_key=KEY)
    app.get("/")(lambda context: instances.extend([context, context.request, context.response]))
    client(app).get("/")
    public = {
        name
        for thing in (*instances, app, Server, TestClient)
        for name in dir(thing)
        if name[0] != "_"
    }
    assert public - words == set()


def test_tables_for_flask_and_bottle_name_what_exists():
    app, answered = WebApp(secret_key=KEY), []
    app.post("/")(answered.append)
    client(app).post("/", json={})
    (context,) = answered
    known = {
        "context": context,
        "app": app,
        **{name: getattr(webapp, name) for name in webapp.__all__},
    }
    text = chapter("Coming from Flask or Bottle")
    rows = table(text, 0) + table(text, 1)
    assert len(rows) > 30
    others = {
        "return",
        "resolve_status_code",
        "on_request",
        "on_complete",
        "status_code",
        "x",
        "generate",
    }
    for _, ours in rows:
        for code in re.findall("``@?([^`]+)``", ours):
            found = re.match(r"(?:raise |return )?([A-Za-z_]\w*)((?:\.\w+)*)", code)
            if found[1] in known:
                functools.reduce(getattr, found[2].split(".")[1:], known[found[1]])
            else:
                assert found[1] in others, code


LIMIT_ROWS = {title: row for title, *row in table(chapter("Limits"))}
UNITS = {"MiB": 2**20, "KiB": 2**10, "days": 86400, "s": 1, "bytes": 1}


def limit(beginning):
    """The number in the row of the table that begins so, in bytes or seconds."""
    ((number, *unit),) = [
        row[0].split() for title, row in LIMIT_ROWS.items() if title.startswith(beginning)
    ]
    return int(number.replace(",", "")) * (UNITS[unit[0]] if unit else 1)


def test_limits_of_the_readme_are_the_defaults():
    parameters = {**inspect.signature(WebApp).parameters, **inspect.signature(Server).parameters}
    named = {
        match[1]: limit(title)
        for title in LIMIT_ROWS
        if (match := re.match("``([a-z_]+)``", title))
    }
    assert named == {name: parameters[name].default for name in named}
    numbers = {
        name for name, parameter in parameters.items() if type(parameter.default) in (int, float)
    }
    assert numbers - set(named) == {"port"}


def test_limits_that_are_no_arguments_are_those_that_the_tests_of_the_file_try():
    tried = (ROOT / "test_webapp.py").read_text(encoding="utf-8").partition("SERVER_LIMITS = [")[2]
    for row in ("request line", "the whole header"):
        number = limit(row)
        power = number.bit_length() - 1
        assert re.search(rf"^    \(\s*({number}|2\*\*{power}),", tried, re.MULTILINE), row


# ---- recipes -------------------------------------------------------------------------------------

PAGES_OF_RECIPES = pages_of("recipes")
RECIPES = "\n".join(PAGES_OF_RECIPES.values())
FIRST_LINES = blocks(PAGES_OF_RECIPES["README"], "python")
TITLES = re.findall(r"^(How do I .+)\n-+\n", RECIPES, re.MULTILINE)
FILE_NAME = re.compile(r"# (\w+\.py)\n|")  # the first line of a block that is a file of its own


def test_each_recipe_is_listed_once_with_its_page_and_its_own_anchor():
    listed = re.findall(
        r"^- `(.+?\?)\s+<(\w+)\.rst#([\w-]+)>`__$", PAGES_OF_RECIPES["README"], re.M
    )
    written = [
        (title, page, anchor)
        for page, text in PAGES_OF_RECIPES.items()
        for anchor, title in re.findall(r"^\.\. _([\w-]+):\n\n(?:.*\n\n)?(.+\?)\n-+\n", text, re.M)
    ]
    assert sorted(listed) == sorted(written) and len({anchor for *_, anchor in written}) == 105


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Run the recipe of a title in a folder with the files that it needs, and return its names."""
    files = {
        "favicon.ico": "icon",
        "dist/index.html": "<!DOCTYPE html>\n<title>Site</title>",
        **dict.fromkeys(("dist/assets/app.js", "static/app.js"), 'console.log("hello");\n'),
        **dict.fromkeys(("static/app.js.gz", "static/map.svg.gz"), "as if it were compressed"),
        "static/.secret": "of the application",
        "static/map.svg": "<svg/>",
        "static/style.css": "p { margin: 0 }\n",
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())

    def run(title, as_shown=True, **given):
        text = chapter(title, RECIPES)
        for name, value in (
            re.findall(r"^    \$ (\w+)=(\S+) python3 ", text, re.MULTILINE) if as_shown else ()
        ):
            monkeypatch.setenv(name, value)
        for template in blocks(text, "jinja"):
            write(re.match(r"\{# (\S+) #\}", template)[1], template)
        program = FIRST_LINES
        for block in blocks(text, "python"):
            name = FILE_NAME.match(block)[1]
            if name:
                write(name, block)
            if name == "app.py":  # the last of several files
                program = [block]
            elif not name:
                program = [*program, block]
        names = run_program(*program, __file__=str(tmp_path / "app.py"), **given)
        programs.append(names)
        return names

    programs = []
    for name, text in files.items():
        write(name, text)
    yield run
    for value in [value for names in programs for value in names.values()]:
        if isinstance(value, sqlite3.Connection):  # where a process would end
            value.close()
    for name in ("books", "core", "staff"):
        sys.modules.pop(name, None)


UNIX = "How do I listen on a Unix socket, or on a socket from systemd?"
START = "How do I run code at startup and shutdown?"
ANSWERING = [
    title
    for title in TITLES
    if "\n    $ curl " in chapter(title, RECIPES) and title not in (UNIX, START)
]


@pytest.mark.parametrize("title", ANSWERING)
def test_recipe_answers_what_it_shows(title, recipe, tmp_path):
    if title.startswith("How do I use Jinja2"):
        pytest.importorskip("jinja2", reason="webapp.py needs no templates, nor do its tests")
    if "SQLAlchemy" in title:
        pytest.importorskip("sqlalchemy", reason="webapp.py needs no database, nor do its tests")
    names = recipe(title)
    app = names["application" if "app.py:application" in chapter(title, RECIPES) else "app"]
    replay(chapter(title, RECIPES), client(app), tmp_path, whole_pages=False)
    if "engine" in names:  # SQLAlchemy keeps its connections open
        names["engine"].dispose()


def run_at_once(functions):
    """Call each in a thread, and wait for all of them."""
    start = threading.Barrier(len(functions))
    threads = [
        threading.Thread(target=lambda call=call: (start.wait(20), call())) for call in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


TESTING = [
    "How do I test as a logged-in visitor?",
    "How do I test an upload?",
    "How do I test a stream of events?",
]


@pytest.mark.parametrize("title", TESTING)
def test_recipe_of_tests_passes(title, recipe):
    tests = [test for name, test in recipe(title).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def save_recipe(title, folder, more="", **replaced):
    """Write the recipe to app.py, with other texts in place of some, and a route to ask for."""
    shown = blocks(chapter(title, RECIPES), "python")
    program = "\n".join(
        [*FIRST_LINES, *(block for block in shown if not FILE_NAME.match(block)[1])]
    )
    route = '@app.get("/")\ndef index(context):\n    return "Hello"\n'
    before, main, after = program.partition('\nif __name__ == "__main__":\n')
    route = "" if '@app.get("/")' in before else route
    program = "".join([before, "\n", route, more, main, after]).replace("port=8000", "port=0")
    for old, new in replaced.values():
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    (folder / "app.py").write_text(program, encoding="utf-8")


@pytest.mark.skipif(WINDOWS, reason="there is no SIGTERM that a program could take")
def test_recipe_start_and_end_run_around_the_server(tmp_path):
    save_recipe(START, tmp_path)
    with started(tmp_path) as (process, url):
        assert process.stdout.readline() == "opening\n"
        assert fetch(url) == b"Hello"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "closing\n"


def test_recipe_camera_sends_pictures_until_the_visitor_leaves(recipe):
    closed = threading.Event()
    camera = types.SimpleNamespace(capture=lambda: b"\xff\xd8 a picture", close=closed.set)
    names = recipe("How do I stream a camera (MJPEG)?", Camera=lambda: camera)
    with Server(names["app"], quiet=True) as server:
        with socket.create_connection((server.host, server.port), timeout=20) as sock:
            sock.sendall(b"GET /camera HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while (
                received.count(
                    b"--picture\r\nContent-Type: image/jpeg\r\nContent-Length: 12\r\n\r\n\xff\xd8"
                )
                < 3
            ):
                received += sock.recv(4096)
            assert b"Content-Type: multipart/x-mixed-replace; boundary=picture\r\n" in received
            assert not closed.is_set()
        assert closed.wait(20)


def test_recipe_camera_ends_its_stream_when_the_server_stops(recipe, monkeypatch):
    given, ended = {}, threading.Event()
    monkeypatch.setattr(WebApp, "run", lambda app, **options: given.update(options))
    camera = types.SimpleNamespace(capture=lambda: b"\xff\xd8 a picture", close=ended.set)
    title = "How do I stream a camera (MJPEG)?"
    app = recipe(title, Camera=lambda: camera, __name__="__main__")["app"]
    with Server(app, quiet=True, on_stop=given["on_stop"]) as server:
        stream = urllib.request.urlopen(f"{server.url}/camera", timeout=20)
        assert stream.readline() == b"--picture\r\n"
    with stream:
        assert stream.read().endswith(b"\xff\xd8 a picture\r\n")  # IncompleteRead if it was cut
    assert ended.wait(20)


@pytest.mark.parametrize("value", ["", "0"])
def test_recipe_traceback_is_never_shown_in_production(value, recipe, monkeypatch):
    monkeypatch.setenv("SHOW_TRACEBACKS", value)
    app = recipe("How do I see the traceback in the browser while I develop?", as_shown=False)[
        "app"
    ]
    assert client(app).get("/").text == "500 Internal Server Error"


def test_recipe_protects_what_is_added_later_in_every_spelling(recipe):
    app = recipe("How do I protect everything by default?")["app"]
    app.static("/static", "static")
    app.static("/private", "static")
    app.mount("/old", validator(lambda environ, start_response: pytest.fail("not protected")))
    with app.path("/new") as new:
        new.any("/{rest:path}", lambda context: "secret")
    browser = client(app)
    for path in (
        "/account",
        "//account/",
        "/new/x",
        "/old/x",
        "/private/app.js",
        "/private",
        "/login/../account",
    ):
        assert browser.get(path).status in (401, 404), path
    assert [
        browser.get(path).status for path in ("/account", "/new/x", "/old/x", "/private/app.js")
    ] == [401] * 4
    assert [browser.get(path).status for path in ("/login", "/static/app.js")] == [200, 200]


@pytest.mark.parametrize(
    ("basic", "bearer", "status"),
    [
        ("Basic YWRhOnNlY3JldA==", "Bearer 0123456789abcdef", 200),
        ("basic YWRhOnNlY3JldA==", "bearer 0123456789abcdef", 200),
        ("Basic YWRhOnNlY3JldA", "Bearer 0123456789abcde", 401),
        ("Basic YWRhOndyb25n", "Basic 0123456789abcdef", 401),
        ("Basic \xe9\xff", "Bearer \xe9\xff", 401),
        ("Basic", "Bearer", 401),
        ("", "", 401),
    ],
)
def test_recipes_of_authentication_let_in_those_who_know_the_secret(basic, bearer, status, recipe):
    app = recipe("How do I ask for a password (basic authentication)?")["app"]
    assert client(app).get("/", headers={"Authorization": basic}).status == status
    app = recipe("How do I check an API token (bearer authentication)?")["app"]
    assert client(app).get("/api/notes", headers={"Authorization": bearer}).status == status


SEARCHES = (
    "access log, atomic, check an image, clickjacking, flash message, graceful stop, inbox, json"
    " file, log out everywhere, maintenance mode, open the browser, outbox, postgresql pool,"
    " progress bar, proxying, random free port, rate limit, replay, reverse proxy, second process,"
    " stop when idle, time limit, two tabs, upload progress"
)


@pytest.mark.parametrize("words", SEARCHES.split(", "))
def test_words_that_people_search_for_are_in_the_title_of_a_recipe(words):
    assert [title for title in TITLES if words in title.lower()]


SECRETS = {
    title: re.search(r"""read_secret\(['"](\w+)""", chapter(title, RECIPES))[1]
    for title in TITLES
    if "read_secret(" in chapter(title, RECIPES)
}


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("title", SECRETS)
def test_recipe_does_not_start_without_its_secret(title, value, recipe, monkeypatch):
    for module in ("jwt", "psycopg_pool"):
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(ConnectionPool=print))
    monkeypatch.delenv(SECRETS[title], raising=False)
    if value is not None:
        monkeypatch.setenv(SECRETS[title], value)
    with pytest.raises(SystemExit, match=f"^{SECRETS[title]} is missing or empty"):
        recipe(title, as_shown=False)


def test_no_program_shown_takes_an_empty_secret():
    """An empty secret is one that everybody knows."""
    lessons = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")]
    shown = "\n".join([RECIPES, MANUAL, *(text for text in lessons if "WebApp" in text)])
    uses = re.findall(
        r"(.*)os\.environ(?:\.get\(|\[)\W*(\w*(?:KEY|SECRET|TOKEN|PASSWORD|URL)\w*)(.*)", shown
    )
    assert len(uses) > 5
    for before, name, behind in uses:
        has_a_default = behind.startswith('") or ')
        is_checked_by_the_framework = "secret_key=" in before or name == "SECRET_KEY"
        assert has_a_default or is_checked_by_the_framework, (before, name)
    for empty in ("", b"", ["", ""]):
        with pytest.raises(ValueError, match="secret_key"):
            WebApp(secret_key=empty)


def test_recipe_with_an_application_of_its_own_keeps_the_key_of_the_first_lines():
    made = re.findall(r"^ +app = (?!make_app).*", RECIPES, re.MULTILINE)
    assert len(made) > 8
    assert [line for line in made if "secret_key=" not in line] == ["    app = WebApp()"]  # core.py


def test_recipe_rate_limit_counts_by_address_and_remembers_no_more_than_it_says(recipe):
    names, now = recipe("How do I set a rate limit for requests?"), 1000.0
    names["time"] = types.SimpleNamespace(monotonic=lambda: now)
    names["REMEMBERED"] = 3
    names["app"].get("/")(lambda context: "Hello")
    browser = client(names["app"])

    def ask_from(address):
        response = browser.get("/", environ={"REMOTE_ADDR": address})
        return response.status, response.headers.get("Retry-After")

    assert [ask_from("10.0.0.1") for _ in range(5)] == [(200, None)] * 5
    now += 20.5
    assert [ask_from("10.0.0.1"), ask_from("10.0.0.2")] == [(429, "40"), (200, None)]
    now += 39.5
    assert [ask_from(f"10.0.0.{last}") for last in (1, *range(3, 50))] == [(200, None)] * 48
    assert len(names["counts"]) == 3
    customer = [f"2001:db8::{last}" for last in range(1, 6)]
    assert [ask_from(address) for address in customer] == [(200, None)] * 5
    assert ask_from("2001:db8:0:0:ffff::1") == (429, "61")
    assert ask_from("2001:db8:0:1::1") == ask_from("") == (200, None)


def test_recipe_if_match_tells_each_writer_the_tag_of_the_own_text(recipe):
    """A writer that got the tag of another text would overwrite it unseen."""
    names = recipe("How do I keep two people from overwriting each other's changes (If-Match)?")
    browser = client(names["app"])

    class Lock:
        """Lets another writer in as soon as the first has left."""

        others = ["second"]

        def __enter__(self):
            pass

        def __exit__(self, *exc_info):
            if self.others:
                browser.put("/note", headers={"If-Match": "*"}, body=self.others.pop())

    names["lock"] = Lock()
    first = browser.put("/note", headers={"If-Match": "*"}, body="mine").headers["ETag"]
    assert browser.get("/note").text == "second"
    assert browser.put("/note", headers={"If-Match": first}, body="lost").status == 412


def test_recipe_end_with_the_browser_changes_no_cookie_but_that_of_the_session(recipe):
    app = recipe("How do I end a session when the browser closes?")["app"]

    @app.post("/remember")
    def remember(context):
        context.session["user"] = "ada"
        context.response.cookie("remember_session", "x", max_age=60)

    cookies = client(app).post("/remember").headers.getall("Set-Cookie")
    assert sorted((cookie.partition("=")[0], "Max-Age=" in cookie) for cookie in cookies) == [
        ("remember_session", True),
        ("session", False),
    ]


def test_recipe_database_connection_is_closed_after_each_request_that_opened_one(recipe):
    names = recipe("How do I open a database connection for each request?")
    sqlite3, connect, opened = names["sqlite3"], names["connect"], []

    def connect_noting():
        opened.append(connect())
        return opened[-1]

    names["connect"] = connect_noting
    names["app"].get("/hello")(lambda context: "Hello")
    browser = client(names["app"])
    assert browser.post("/notes", form={"text": "buy tea"}).status == 201
    assert browser.post("/notes", form={}).status == 400
    assert browser.get("/notes").json == ["buy tea"]
    assert browser.get("/hello").status == 200
    assert len(opened) == 3
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_recipe_tests_with_a_database_pass(tmp_path):
    program = blocks(
        chapter("How do I open a database connection for each request?", RECIPES), "python"
    )
    (tests,) = blocks(
        chapter("How do I test an application that has a database?", RECIPES), "python"
    )
    (tmp_path / "notes.py").write_text("\n".join([*FIRST_LINES, *program]), encoding="utf-8")
    (tmp_path / "test_notes.py").write_text(tests, encoding="utf-8")
    done = run_python(
        tmp_path, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"
    )
    assert "2 passed" in done.stdout, done.stdout


LIVE = "How do I show a job's progress live, and end the job and its stream when the server stops?"


@pytest.mark.skipif(WINDOWS, reason="there is no SIGTERM that a program could take")
def test_recipe_live_progress_ends_job_and_stream_when_the_server_stops(tmp_path):
    save_recipe(LIVE, tmp_path, piece=("...  # a piece of the work", "stopping.wait(0.01)"))
    program = (tmp_path / "app.py").read_text(encoding="utf-8")
    program = program.replace('"total": 100}', '"total": 10**9}').replace(", 15)", ", 600)")
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    with started(tmp_path, says=PRINTED) as (process, url):
        with urllib.request.urlopen(f"{url}/progress", timeout=20) as stream:
            numbers = []
            while len(numbers) < 3:
                event = stream.readline() + stream.readline()
                numbers.append(json.loads(event.removeprefix(b"data: "))["done"])
            assert numbers == sorted(set(numbers))
            process.send_signal(signal.SIGTERM)
            assert stream.read().endswith(b"event: end\ndata: \n\n")
        assert process.wait(20) == 0


def test_recipe_live_progress_tells_its_end_and_wakes_for_a_stop(recipe):
    names = recipe(LIVE)
    stream = names["news"]()
    assert next(stream) == {"data": {"done": 0, "total": 100}}
    names["job"]()
    assert [*stream] == [{"data": {"done": 100, "total": 100}}, {"event": "end", "data": ""}]
    names["progress"]["done"] = 0
    stream, rest = names["news"](), []
    next(stream)
    waiting = threading.Thread(target=lambda: rest.extend(stream))
    waiting.start()
    names["stop_work"]()
    waiting.join(10)
    assert rest[-1] == {"event": "end", "data": ""}
    names["job"]()  # which has been stopped
    assert names["progress"]["done"] == 0


JSON_FILE = "How do I keep data in a JSON file (atomic writes, two tabs, a second process)?"


def test_recipe_json_file_takes_one_of_the_changes_made_of_one_version(recipe, tmp_path):
    names, statuses, seen = recipe(JSON_FILE), [], []
    browser, file = client(names["app"]), tmp_path / "note.json"

    def post(number):
        form = {"text": f"{number}" * 10_000, "version": "0"}
        statuses.append(client(names["app"]).post("/", form=form).status)

    def read():
        for _ in range(20):
            seen.append(client(names["app"]).get("/").status)
            if file.exists() and not WINDOWS:  # where nobody replaces a file that another one reads
                json.loads(file.read_text(encoding="utf-8"))

    run_at_once([*(functools.partial(post, number) for number in range(8)), read])
    assert sorted(statuses) == [303, *[409] * 7]
    assert seen == [200] * 20
    note = json.loads(file.read_text(encoding="utf-8"))
    assert note["version"] == 1 and note["text"] == note["text"][0] * 10_000
    assert f"{note['text']}</textarea>" in browser.get("/").text
    assert browser.post("/", form={"text": "x", "version": "1"}).status == 303
    assert sorted(path.name for path in tmp_path.glob("note*")) == ["note.json"]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_recipe_json_file_stays_whole_when_writing_fails(name, recipe, tmp_path):
    names = recipe(JSON_FILE)
    browser, file = client(names["app"]), tmp_path / "note.json"

    def fail_to_write(*_):
        raise OSError("no space left")

    assert browser.post("/", form={"text": "first", "version": "0"}).status == 303
    whole = file.read_bytes()
    names["os"] = types.SimpleNamespace(**{**vars(os), name: fail_to_write})
    assert browser.post("/", form={"text": "second", "version": "1"}).status == 500
    assert file.read_bytes() == whole
    names["os"] = os
    assert browser.post("/", form={"text": "second", "version": "1"}).status == 303
    assert "second</textarea>" in browser.get("/").text


def test_recipe_json_file_has_one_process(tmp_path):
    save_recipe(JSON_FILE, tmp_path)
    program = (tmp_path / "app.py").read_text(encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"port={taken.getsockname()[1]}"
        (tmp_path / "app.py").write_text(program.replace("port=0", port), encoding="utf-8")
        assert run_python(tmp_path, "app.py").returncode == 1


@pytest.mark.skipif(WINDOWS, reason="Windows has no fcntl")
def test_recipe_json_file_names_a_lock_that_a_second_process_does_not_get(tmp_path):
    text = " ".join(chapter(JSON_FILE, RECIPES).split())
    shown = re.findall(r"``(LOCK = open\(.*?|fcntl\.flock\(.*?)``", text)
    assert len(shown) == 2
    first = "\n".join(["import fcntl, pathlib, subprocess, sys", "HERE = pathlib.Path()", *shown])
    second = f"{first}\nprint('held')"
    both = f"{first}\nsubprocess.run([sys.executable, '-c', {second!r}])"
    done = run_python(tmp_path, "-c", both)
    assert done.stdout == "" and "BlockingIOError" in done.stderr
    done = run_python(tmp_path, "-c", second)  # the first has ended
    assert (done.stdout, done.stderr) == ("held\n", "")


JOB = "How do I run a long job with a progress bar?"


def test_recipe_job_tells_its_progress_and_that_it_failed(recipe, caplog):
    names = recipe(JOB)
    browser, going = client(names["app"]), threading.Event()

    def wait_and_fail(progress):
        assert going.wait(20)
        return 1 / 0

    good, names["work"] = names["work"], wait_and_fail
    first = browser.post("/jobs").headers["Location"]
    assert browser.get(first).json["state"] == "running"
    names["work"] = good
    second = browser.post("/jobs").headers["Location"]
    going.set()
    names["pool"].shutdown()
    assert browser.get(first).json == {"state": "failed", "done": 0, "total": 3}
    assert browser.get(second).json == {"state": "done", "done": 3, "total": 3}
    assert "a job failed\nTraceback" in caplog.text and "ZeroDivisionError" in caplog.text


def test_recipe_job_ends_before_its_next_piece_when_the_server_stops(recipe, monkeypatch):
    monkeypatch.setattr(WebApp, "run", lambda app, **options: given.update(options))
    given = {}
    names = recipe(JOB, __name__="__main__")
    given["on_stop"]()
    first, second = ({"done": 0, "total": 3} for _ in "12")
    for job in [names["pool"].submit(names["work"], progress) for progress in (first, second)]:
        job.result(20)
    assert first == second == {"done": 0, "total": 3}
    names["pool"].shutdown()


def test_recipe_job_counts_the_pieces_that_are_done(tmp_path):
    save_recipe(JOB, tmp_path, piece=("...  # a piece of the work", 'print(progress["done"])'))
    code = "import app; progress = {'done': 0, 'total': 3}; app.work(progress); print(progress)"
    done = run_python(tmp_path, "-c", code)
    assert done.stdout.splitlines() == ["0", "1", "2", "{'done': 3, 'total': 3}"]


WORKER = "How do I run a worker that starts and stops with the server?"
ON_STOP = "How do I tell streams and jobs that the server is stopping (on_stop, graceful stop)?"
TASKS = (
    "How do I receive and send webhooks without losing any, and do the slow work later"
    " (inbox, outbox, retries)?"
)
PRINTED = "stdout", r"Open (\S+)"  # by a program that makes a Server
WORKING = {
    "work": ("...  # a piece of the work", 'print("works", flush=True)'),
    "often": ("stopping.wait(60)", "stopping.wait(0.01)"),
    "end": (
        "    workers[0].join()\n",
        '    workers[0].join()\n    print("stopped", flush=True)\n',
    ),
}


@pytest.mark.skipif(WINDOWS, reason="there is no SIGTERM that a program could take")
def test_recipe_worker_starts_with_the_first_request_and_stops_with_the_server(tmp_path):
    save_recipe(WORKER, tmp_path, **WORKING)
    with started(tmp_path, "-m", "webapp", "--port", "0", "app.py") as (process, url):
        assert fetch(url) == b"Hello"
        assert process.stdout.readline() == "works\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().endswith("stopped\n")


FORKING = """
import os, sys
import app
from webapp import TestClient
for _ in range(2):
    if os.fork() == 0:
        assert [TestClient(app.app).get("/").text for _ in "12"] == ["Hello"] * 2
        app.stopping.wait(0.1)
        sys.exit()
assert [os.wait()[1] for _ in range(2)] == [0, 0]
assert not app.workers
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_recipe_worker_runs_in_each_process_of_a_server_that_forks(tmp_path):
    save_recipe(WORKER, tmp_path, **WORKING)
    done = run_python(tmp_path, "-c", FORKING)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("stopped") == 2 and done.stdout.count("works") >= 2


def test_recipe_https_is_trusted_by_clients_with_the_certificate(recipe, tmp_path, monkeypatch):
    title = "How do I use HTTPS for a device at home?"
    (command,) = blocks(chapter(title, RECIPES), "console")
    try:
        subprocess.run(
            shlex.split(command.replace("\\\n", ""))[1:],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl here")
    given = {}
    monkeypatch.setattr(WebApp, "run", lambda app, **options: given.update(options))
    app = recipe(title, __name__="__main__")["app"]
    app.get("/")(lambda context: context.request.scheme)
    assert (given["host"], given["port"]) == ("0.0.0.0", 8443)
    trust = ssl.create_default_context(cafile=str(tmp_path / "home.pem"))
    with Server(app, ssl_context=given["ssl_context"], quiet=True) as server:
        with socket.create_connection((server.host, server.port), timeout=8) as plain:
            with trust.wrap_socket(plain, server_hostname="raspberrypi.local") as secure:
                secure.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert b"".join(iter(lambda: secure.recv(4096), b"")).endswith(b"\r\n\r\nhttps")


def make_certificate(file):
    """Write a key and a certificate for localhost that is signed by itself."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 9"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    written = ["-keyout", str(file), "-out", str(file.with_suffix(".crt"))]
    try:
        subprocess.run([*command.split(), *written], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    file.write_text(file.read_text() + file.with_suffix(".crt").read_text())


def test_recipe_renews_a_certificate_and_keeps_it_if_the_new_one_is_wrong(recipe, tmp_path, caplog):
    first, second, site = (tmp_path / f"{name}.pem" for name in ("first", "second", "site"))
    for file in (first, second):
        make_certificate(file)
    site.write_bytes(first.read_bytes())
    names = recipe("How do I renew a certificate without a restart?")

    def trusts(server, file):
        trust = ssl.create_default_context(cafile=str(file))
        try:
            with socket.create_connection((server.host, server.port), timeout=8) as plain:
                with trust.wrap_socket(plain, server_hostname="localhost"):
                    return True
        except ssl.SSLCertVerificationError:
            return False

    with Server(names["app"], ssl_context=names["encryption"], quiet=True) as server:
        assert (trusts(server, first), trusts(server, second)) == (True, False)
        key, certificate = first.read_text(), second.with_suffix(".crt").read_text()
        site.write_text(key.partition("-----BEGIN CERT")[0] + certificate)  # of another key
        names["renew"](1, None)
        assert (trusts(server, first), trusts(server, second)) == (True, False)
        site.write_bytes(second.read_bytes())
        names["renew"](1, None)
        assert (trusts(server, first), trusts(server, second)) == (False, True)
    said = [record.getMessage() for record in caplog.records if record.name == "site"]
    assert len(said) == 1 and said[0].startswith("the old certificate stays: ")


def test_recipe_tells_visitors_by_their_certificates(recipe):
    title = "How do I ask visitors for a client certificate (mutual TLS)?"
    visitor = client(recipe(title)["app"])
    assert visitor.get("/").status == 403
    assert visitor.get("/", headers={"SSL-Client-Cert": "forged"}).status == 403
    sent = {"SSL_CLIENT_CERT": ssl.DER_cert_to_PEM_cert(b"a certificate")}
    assert visitor.get("/", environ=sent).text == hashlib.sha256(b"a certificate").hexdigest()


def test_recipe_log_file_holds_requests_and_traces(tmp_path):
    save_recipe(
        "How do I log to a file?", tmp_path, '@app.get("/fail")\ndef fail(context):\n    1 / 0\n'
    )
    patterns = (
        r" webapp\.access INFO 127\.0\.0\.1 GET / 200 5 ",
        r" webapp\.access INFO 127\.0\.0\.1 GET /fail 500 ",
        r" webapp ERROR .*\nGET /fail, handled by .*\nTraceback \(most recent call "
        r"last\):\n(?s:.*)ZeroDivisionError",
    )
    with started(tmp_path) as (_, url):
        assert fetch(url) == b"Hello"
        with pytest.raises(urllib.error.HTTPError) as failed:
            fetch(f"{url}/fail")
        failed.value.close()
        threading.Event().wait(0.3)  # on Windows the server is killed, and no line follows
    log = (tmp_path / "app.log").read_text(encoding="utf-8")
    assert [pattern for pattern in patterns if not re.search(pattern, log)] == [], log


def test_recipe_units_of_systemd_are_such(tmp_path):
    title = "How do I start my application when the machine boots (systemd)?"
    (service,) = blocks(chapter(title, RECIPES), "ini")
    (sockets,) = blocks(chapter(UNIX, RECIPES), "ini")
    (tmp_path / "hello.service").write_text(service.replace("/usr/bin/python3", sys.executable))
    (tmp_path / "hello.socket").write_text(sockets)
    command = [
        "systemd-analyze",
        "verify",
        "--man=no",
        tmp_path / "hello.service",
        tmp_path / "hello.socket",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no systemd here")
    assert not [line for line in done.stderr.splitlines() if "hello." in line]


NEEDS_UNIX_SOCKETS = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here"
)


def ask_unix(place):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(8)
        sock.connect(str(place))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: sock.recv(4096), b""))


@NEEDS_UNIX_SOCKETS
def test_recipe_listens_on_a_unix_socket_and_again_where_an_old_one_lies(tmp_path):
    save_recipe(UNIX, tmp_path)
    for _ in range(2):
        with started(tmp_path) as (_, place):
            assert place == f"unix:{tmp_path / 'hello.sock'}"
            assert ask_unix(tmp_path / "hello.sock").endswith(b"\r\n\r\nHello")


@NEEDS_UNIX_SOCKETS
def test_recipe_of_a_unix_socket_shows_a_command_that_listens_on_it(tmp_path):
    save_recipe("How do I log to a file?", tmp_path)
    command = re.search("^    [$] python3 (-m webapp --unix .*)$", RECIPES, re.MULTILINE)[1]
    with started(tmp_path, *command.split()) as (_, place):
        assert place == "unix:hello.sock"
        assert ask_unix(tmp_path / "hello.sock").endswith(b"\r\n\r\nHello")


def test_recipe_servers_share_a_socket_and_end_together(tmp_path):
    title = "How do I run several servers on one socket?"
    save_recipe(title, tmp_path, port=("8000", "0"))
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    options = {"cwd": tmp_path, "env": environ_of_a_program(), "text": True, **pipes}
    with subprocess.Popen([sys.executable, "-u", "app.py"], **options) as process:
        url = re.search(r"serving on (\S+)", process.stdout.readline())[1]
        assert [fetch(url) for _ in range(9)] == [b"Hello"] * 9
        process.communicate("\n", timeout=30)
    assert process.returncode == 0


def test_recipe_docker_starts_what_it_has_copied(project):
    (lines,) = blocks(chapter("How do I run my application in Docker?", RECIPES), "docker")
    said = dict(line.split(" ", 1) for line in lines.strip().splitlines())
    assert list(said) == ["FROM", "WORKDIR", "COPY", "USER", "EXPOSE", "CMD"]
    assert said["COPY"].split() == ["webapp.py", "hello.py", "./"]
    python, *arguments = json.loads(said["CMD"])
    assert (python, arguments[arguments.index("--port") + 1]) == ("python", said["EXPOSE"])
    arguments[arguments.index("--port") + 1] = "0"
    with started(project, *arguments) as (_, url):
        assert fetch(f"http://127.0.0.1:{url.rpartition(':')[2]}/hello/Docker") == b"Hello Docker"


@pytest.mark.skipif(WINDOWS, reason="no mkdir here")
def test_recipe_makes_a_pyz_that_serves(project):
    program = (project / "hello.py").read_text(encoding="utf-8")
    (project / "hello.py").write_text(program.replace("port=8000", "port=0"), encoding="utf-8")
    *made, start = (
        blocks(chapter("How do I pack everything into one file (.pyz)?", RECIPES), "console")[0]
        .strip()
        .splitlines()
    )
    for line in made:
        run_command(line[2:])
    assert start == "$ python3 hello.pyz"
    (project / "elsewhere").mkdir()
    (project / "hello.pyz").rename(project / "elsewhere" / "hello.pyz")
    with started(project / "elsewhere", "-I", "hello.pyz") as (_, url):
        assert fetch(f"{url}/hello/pyz") == b"Hello pyz"


@pytest.mark.parametrize(
    "path, status, text", [("/", "200 OK", b"Hello"), ("/no", "404 Not Found", b"404 Not Found")]
)
def test_recipe_answers_as_a_cgi_script(path, status, text, tmp_path):
    save_recipe("How do I run my application as a CGI script?", tmp_path)
    server = {"GATEWAY_INTERFACE": "CGI/1.1", "SERVER_NAME": "localhost", "SERVER_PORT": "80"}
    server.update(
        SERVER_PROTOCOL="HTTP/1.1",
        SCRIPT_NAME="/cgi-bin/app.py",
        QUERY_STRING="",
        REQUEST_METHOD="GET",
    )
    done = run_python(tmp_path, "app.py", text=False, PATH_INFO=path, **server)
    head, _, body = done.stdout.replace(b"\r\n", b"\n").partition(b"\n\n")
    assert (done.stderr, body, f"Status: {status}" in head.decode().splitlines()) == (
        b"",
        text,
        True,
    )


@pytest.mark.parametrize("command", [("--port", "0"), ()])
def test_recipe_takes_its_port_from_command_line_or_environment(command, tmp_path, monkeypatch):
    save_recipe("How do I take the port from the command line or from PORT?", tmp_path)
    monkeypatch.setenv("PORT", "no number" if command else "0")
    with started(tmp_path, "app.py", *command) as (_, url):
        assert fetch(url) == b"Hello"
    done = run_python(tmp_path, "app.py", PORT="eighty")
    assert done.returncode == 2 and "invalid int value: 'eighty'" in done.stderr


PHONE = "How do I open my site on my phone or on another computer (the address of this machine)?"


def test_recipe_prints_an_address_at_which_the_server_answers(recipe, monkeypatch, capsys):
    given = {}
    monkeypatch.setattr(WebApp, "run", lambda app, **options: given.update(options))
    try:
        names = recipe(PHONE, __name__="__main__")
    except OSError:
        pytest.skip("no network here")
    assert given == {"host": "0.0.0.0", "port": 8000}
    names["app"].get("/")(lambda context: "Hello")
    printed = re.search(r"http://[0-9.]+:8000$", capsys.readouterr().out)[0]
    with Server(names["app"], given["host"], quiet=True) as server:
        assert fetch(printed.replace("8000", str(server.port))) == b"Hello"


def test_recipe_serves_each_site_under_its_names_only(recipe):
    browser = client(
        recipe("How do I serve several sites by their host names, or refuse other host names?")[
            "application"
        ]
    )
    for host, text in (
        ("SHOP.example.org:443", "Tea"),
        ("shop.example.org.evil.example", "404 Not Found"),
        ("[::1]:8000", "404 Not Found"),
        ("", "404 Not Found"),
    ):
        assert browser.get("/", headers={"Host": host}).text == text


def test_recipe_form_shows_again_what_was_chosen_and_takes_nothing_else(recipe):
    title = "How do I show a form again with its checkboxes, radio buttons and dropdown?"
    browser = client(recipe(title)["app"])

    def chosen(page):
        return re.findall(r'value="(\w+)" (?:checked|selected)', page)

    assert chosen(browser.get("/").text) == ["small", "noon"]
    for form, problem, again in (
        ({"size": "large", "time": "evening", "extras": "rum"}, "not have", ["large", "evening"]),
        ({"size": "huge", "time": "noon", "extras": ["honey"]}, "choose", ["noon", "honey"]),
        ({"size": '"><b>'}, "choose", []),
    ):
        response = browser.post("/", form=form)
        assert (response.status, chosen(response.text)) == (422, again)
        assert problem in response.text and "<b>" not in response.text


def test_recipe_feed_is_xml_whose_links_lead_to_the_notes(recipe):
    names = recipe("How do I create an RSS feed or other XML?")
    browser = client(names["app"])
    root = xml.etree.ElementTree.fromstring(browser.get("/feed.xml").body)
    assert [item.text for item in root.iterfind("channel/item/title")] == [*names["NOTES"].values()]
    for item in root.iterfind("channel/item"):
        path = item.find("link").text.replace(names["SITE"], "")
        assert browser.get(path).text == item.find("title").text
    names["NOTES"][3] = "\x00a\x1b[1m\ufffe\ud800\U0001f375"
    root = xml.etree.ElementTree.fromstring(browser.get("/feed.xml").body)
    *_, title = root.iterfind("channel/item/title")
    assert title.text == "\ufffda\ufffd[1m\ufffd\ufffd\U0001f375"


def test_recipe_breakpoint_opens_the_debugger_at_the_terminal(tmp_path):
    save_recipe("How do I debug a handler with breakpoint()?", tmp_path)
    with started(tmp_path, "-m", "webapp", "--port", "0", "app.py") as (process, url):
        process.stdin.write("p a\nc\n")
        process.stdin.flush()
        assert fetch(f"{url}/sum/33/4") == b"37"
        process.terminate()
        assert "(Pdb) 33\n" in process.stdout.read()


def test_recipe_transactions_sell_nothing_twice(recipe):
    names = recipe('How do I use transactions in sqlite, and avoid "database is locked"?')
    with names["transaction"]() as database:
        database.execute("UPDATE stock SET amount = 20")
    statuses = []

    def buy():
        browser = client(names["app"])
        statuses.extend(browser.post("/buy/tea").status for _ in range(8))

    threads = [threading.Thread(target=buy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] * 20 + [409] * 12
    with pytest.raises(ZeroDivisionError), names["transaction"]() as database:
        database.execute("UPDATE stock SET amount = 5")
        raise ZeroDivisionError
    assert client(names["app"]).post("/buy/tea").status == 409


def test_recipe_session_on_the_server_ends_with_the_logout_and_with_its_time(recipe):
    names = recipe("How do I keep sessions on the server (in sqlite)?")
    browser, thief = client(names["app"]), client(names["app"])
    browser.cookies["visit"] = "chosen by somebody else"
    browser.post("/login")
    thief.cookies.update(browser.cookies)
    assert re.fullmatch("[0-9a-f]{64}", thief.cookies["visit"])
    assert thief.get("/me").json == {"user": "ada", "basket": ["tea"]}
    browser.post("/login")
    assert thief.get("/me").json == {} != browser.get("/me").json
    names["time"] = types.SimpleNamespace(time=lambda: time.time() + names["MAX_AGE"] + 1)
    assert browser.get("/me").json == {}


def test_recipe_work_after_the_answer_gets_values_and_logs_its_failure(recipe, caplog):
    names = recipe("How do I do work after the response, such as sending an email?")
    going, sent = threading.Event(), []

    def send_mail(address):
        assert going.wait(20)
        sent.append(address)
        return 1 / 0

    names["send_mail"] = send_mail
    assert client(names["app"]).post("/orders", form={"address": "ada@x.example"}).status == 202
    assert sent == []
    going.set()
    names["pool"].shutdown()
    assert sent == ["ada@x.example"] and "ZeroDivisionError" in caplog.text


def test_recipe_button_stops_the_server_and_is_answered(recipe, monkeypatch):
    names = recipe("How do I stop the server with a button?")
    assert client(names["app"]).post("/stop").status == 503  # it is not run by this file
    server = names["server"] = Server(names["app"], quiet=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    assert b'<form method="post" action="/stop">' in fetch(server.url)
    request = urllib.request.Request(f"{server.url}/stop", b"", {"Origin": "http://evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        fetch(request)
    refused.value.close()
    request.remove_header("Origin")
    assert fetch(request) == b"Stopped."
    thread.join(20)
    assert not thread.is_alive()


def test_recipe_access_log_is_json_with_a_field_for_each_fact(tmp_path):
    title = "How do I write the access log as JSON?"
    save_recipe(title, tmp_path)
    with started(tmp_path) as (process, url):
        assert fetch(url) == b"Hello"
        with pytest.raises(urllib.error.HTTPError, match="404") as failed:
            fetch(f"{url}/%22nowhere?a=%0a")
        failed.value.close()
        found, missed = (json.loads(process.stderr.readline()) for _ in range(2))
    fields = "remote_address method target status size milliseconds reason".split()
    assert list(found) == ["time", *fields]
    assert (found["remote_address"], found["method"], found["target"]) == ("127.0.0.1", "GET", "/")
    assert (found["status"], found["size"], found["reason"]) == (200, 5, None)
    assert isinstance(found["milliseconds"], float)
    assert (missed["target"], missed["status"]) == ("/%22nowhere?a=%0a", 404)
    assert missed["reason"] == "no such route"


def test_recipe_json_log_has_the_id_of_the_request_on_each_of_its_lines(recipe):
    names, out = recipe("How do I log as JSON, with a request id?"), io.StringIO()
    names["app"].get("/fail")(lambda context: 1 / 0)
    handler = logging.StreamHandler(out)
    handler.setFormatter(names["AsJson"]())
    loggers = [logging.getLogger(name) for name in ("site", "webapp")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel("INFO")
    try:
        browser = client(names["app"])
        ids = [
            browser.get(path, headers={"X-Request-ID": given}).headers["X-Request-ID"]
            for path, given in (("/", "7-a"), ("/", 'x"\\'), ("/fail", ""), ("/no", "a" * 65))
        ]
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel("NOTSET")
    assert ids[0] == "7-a" and all(re.fullmatch("[0-9a-f]{16}", id) for id in ids[1:])
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["request"], line["message"]) for line in lines if "trace" not in line] == [
        (ids[0], "somebody looks"),
        (ids[1], "somebody looks"),
    ]
    (failed,) = [line for line in lines if "trace" in line]
    assert failed["request"] == ids[2] and "ZeroDivisionError" in failed["trace"]


def test_recipe_json_log_tells_why_a_request_was_refused_by_the_application_or_the_server(tmp_path):
    save_recipe("How do I log as JSON, with a request id?", tmp_path)
    with started(tmp_path) as (process, url):
        port = urllib.parse.urlsplit(url).port
        for sent in (
            b"nonsense",
            b"GET / HTTP/1.1\r\nHost: evil.example",
            b"POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: 8",
            b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: 7",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
                sock.sendall(sent + b"\r\nConnection: close\r\n\r\n")
                while sock.recv(4096):
                    pass
        lines = []
        while sum("target" in line for line in lines) < 5:
            lines.append(json.loads(process.stderr.readline()))
        process.terminate()  # on Windows it writes nothing more
        lines += map(json.loads, process.stderr)
    access = [line for line in lines if "target" in line]
    assert [(line["status"], bool(line["reason"])) for line in access] == [
        (status, status != 200) for status in (400, 421, 405, 200, 404)
    ]
    assert {line["request"] for line in access[:2]} == {"-"}  # the application never saw them
    why, line = [line for line in lines if line["request"] == "7"]
    assert "'no such route'" in why["message"] and line["target"] == "/nowhere"
    looks, line = [line for line in lines if line["request"] == "8"]
    assert looks["message"] == "somebody looks" and line["target"] == "/"


def test_recipes_with_a_class_of_their_own_can_be_joined(recipe):
    """Each method that a recipe overrides calls the one of the next class."""
    overridden = re.findall(
        r"^( +)def (on_request|on_complete)\(self, context\):\n((?:\1 .*\n|\n)+)",
        RECIPES,
        re.MULTILINE,
    )
    assert len(overridden) >= 4
    assert [body for _, name, body in overridden if f"super().{name}(context)" not in body] == []
    logged = recipe("How do I log as JSON, with a request id?")["Site"]
    counting = recipe("How do I count requests (metrics for Prometheus)?")
    app = type("Both", (logged, counting["Counted"]), {})(secret_key=KEY)
    app.get("/tea")(lambda context: "green")
    assert client(app).get("/tea", headers={"X-Request-ID": "7"}).headers["X-Request-ID"] == "7"
    assert counting["counts"] == {("GET", "/tea", 200): 1}


def test_recipe_health_check_leaves_no_line_and_hides_no_other_request(tmp_path):
    name = (
        '@app.get("/name")\ndef name(context):\n    context.request.query["x GET /health 200 "]\n'
    )
    save_recipe("How do I answer a health check without a line in the log?", tmp_path, name)
    with started(tmp_path, "-m", "webapp", "--port", "0", "app.py") as (process, url):
        assert fetch(f"{url}/health") == b"ok"
        for path in ("/name", "/health/x"):
            with pytest.raises(urllib.error.HTTPError) as failed:
                fetch(url + path)
            failed.value.close()
            assert f"GET {path} 4" in process.stderr.readline()


@pytest.mark.parametrize(
    "location",
    ["//evil.example", "/\\evil.example", "http://localhost@evil.example", "javascript:x"],
)
def test_recipe_safe_next_never_leads_to_another_site(location, recipe):
    title = "How do I send visitors back to the previous page after they log in (safe next)?"
    browser = client(recipe(title)["app"])
    link = browser.get("/login", query={"next": location}).text
    assert html.unescape(re.search('name="next" value="([^"]*)"', link)[1]) == location
    answer = browser.post("/login", form={"next": location})
    host = urllib.parse.urlsplit(urllib.parse.urljoin("http://here/", answer.headers["Location"]))
    assert (answer.status, host.netloc, host.scheme) == (303, "here", "http")


def test_recipe_long_poll_ends_when_the_server_stops(recipe, monkeypatch):
    monkeypatch.setattr(WebApp, "run", lambda app, **options: given.update(options))
    given, answered = {}, []
    title = "How do I wait for updates without a stream (long polling)?"
    app = recipe(title, __name__="__main__", LONGEST=600)["app"]
    with Server(app, on_stop=given["on_stop"], quiet=True) as server:
        waiting = threading.Thread(
            target=lambda: answered.append(fetch(f"{server.url}/messages?after=1"))
        )
        waiting.start()
        threading.Event().wait(0.1)
    waiting.join()
    assert answered == [b'{"messages": [], "after": 1}']


@pytest.mark.skipif(WINDOWS, reason="there is no SIGTERM that a program could take")
def test_recipe_streams_and_threads_hear_that_the_server_stops(tmp_path):
    save_recipe(ON_STOP, tmp_path, often=("stopping.wait(1)", "stopping.wait(0.01)"))
    with started(tmp_path, says=PRINTED) as (process, url):
        with urllib.request.urlopen(f"{url}/ticks", timeout=20) as stream:
            assert stream.readline() == b"data: 1\n"
            process.send_signal(signal.SIGTERM)
            assert stream.read().endswith(b"event: end\ndata: The server stops.\n\n")
        assert process.wait(20) == 0


def test_recipe_stores_an_upload_under_its_own_name_and_sends_it_as_a_download(recipe, tmp_path):
    browser = client(recipe("How do I store an upload and serve it again?")["app"])
    page = ("../x.html", b"<script>", "text/html")
    answer = browser.post("/uploads", files={"file": page})
    assert answer.status == 201
    again = browser.get(answer.headers["Location"])
    assert (again.body, again.headers["Content-Type"]) == (b"<script>", "application/octet-stream")
    assert again.headers["Content-Disposition"].startswith("attachment")
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == [
        answer.headers["Location"].rpartition("/")[2]
    ]
    assert browser.post("/uploads", files={"file": ("", b"", "text/plain")}).status == 400
    assert not (tmp_path / "x.html").exists()


# ---- recipes, with more than one visitor ---------------------------------------------------------


def test_recipe_signed_link_opens_one_path_for_an_hour(recipe):
    title = "How do I make a link that works for an hour (a signed link, a password reset)?"
    names, now = recipe(title), 1e9
    names["time"] = types.SimpleNamespace(time=lambda: now)
    browser = client(names["app"])
    link = browser.post("/links/may").text
    assert browser.get(link).text == "The report may"
    assert browser.get(link.replace("/may", "/june")).status == 403
    assert browser.get(link.replace("expires=1", "expires=2")).status == 403
    now += 3601
    expired = browser.get(link)
    assert (expired.status, expired.text[:28]) == (410, "This link was valid for an h")


def test_recipe_lockout_locks_one_account_for_its_pause(recipe):
    names, now = recipe("How do I stop people from guessing passwords (lockout)?"), 1000.0
    names["time"] = types.SimpleNamespace(monotonic=lambda: now)
    browser = client(names["app"])

    def log_in(user, password="secret"):
        return browser.post("/login", form={"user": user, "password": password}).status

    assert [log_in("ada", "no") for _ in range(4)] == [401] * 4
    assert log_in("ada") == 204
    assert [log_in("ada", "no") for _ in range(6)] == [401] * 5 + [429]
    now += names["PAUSE"] - 1
    assert [log_in("ada"), log_in("Ada "), log_in("eve")] == [429, 429, 204]
    now += 1
    assert [log_in("ada"), log_in("ada")] == [204, 204]


@pytest.mark.parametrize(
    ("password", "statuses"), [("secret", [204] * 20), ("no", [401] * 5 + [429] * 15)]
)
def test_recipe_lockout_counts_tries_that_come_at_once(password, statuses, recipe):
    app, answered = recipe("How do I stop people from guessing passwords (lockout)?")["app"], []

    def log_in():
        answered.append(
            client(app).post("/login", form={"user": "ada", "password": password}).status
        )

    run_at_once([log_in] * 20)
    assert sorted(answered) == statuses


def test_recipe_jwt_is_read_by_a_library(recipe, monkeypatch):
    title = "How do I check a JWT, or log in with OAuth?"
    jwt = pytest.importorskip("jwt", reason="webapp.py needs no tokens, nor do its tests")
    key = "0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("JWT_KEY", key)
    browser = client(recipe(title)["app"])
    for claims, signed_with, status in (
        ({"sub": "ada", "exp": time.time() + 60}, key, 200),
        ({"sub": "ada", "exp": time.time() - 60}, key, 401),
        ({"sub": "ada"}, key, 401),
        ({"sub": "ada", "exp": time.time() + 60}, key[::-1], 401),
    ):
        token = jwt.encode(claims, signed_with, "HS256")
        assert browser.get("/me", headers={"Authorization": f"Bearer {token}"}).status == status
    assert browser.get("/me").status == 401


def test_recipe_upload_with_progress_takes_what_the_page_sends(recipe):
    browser = client(recipe("How do I show upload progress?")["app"])
    assert "XMLHttpRequest" in browser.get("/upload").text
    answer = browser.post("/upload", files={"file": ("a.txt", b"hello")})
    assert answer.text == "a.txt: 5 bytes"


@pytest.mark.parametrize(
    ("beginning", "status"),
    [
        (b"\x89PNG\r\n\x1a\n", 200),
        (b"\xff\xd8\xff\xe0", 200),
        (b"GIF89a", 200),
        (b"<svg>", 415),
        (b"", 415),
    ],
)
def test_recipe_image_is_known_by_its_first_bytes(beginning, status, recipe):
    browser = client(recipe("How do I check an image that somebody uploads?")["app"])
    file = (
        ("picture.png", beginning + bytes(100), "image/png") if beginning else ("picture.png", b"")
    )
    answer = browser.post("/pictures", files={"picture": file})
    assert answer.status == status
    assert ("Please send" in answer.text) == (status == 415)


def test_recipe_pydantic_answers_422_with_the_input(recipe):
    pytest.importorskip("pydantic", "2", reason="webapp.py needs no models, nor do its tests")
    browser = client(recipe("How do I check JSON with pydantic?")["app"])
    assert browser.post("/orders", json={"tea": "assam", "cups": 2}).json == {
        "tea": "assam",
        "cups": 2,
    }
    wrong = browser.post("/orders", json={"tea": "", "cups": 200})
    assert (wrong.status, sorted(wrong.json["validation"])) == (422, ["cups", "tea"])
    assert wrong.json["cups"] == 200


def test_recipe_postgresql_gives_each_handler_a_connection_of_the_pool(recipe, monkeypatch):
    """There is no database here, so the pool is one of the test."""
    opened = []

    class Pool:
        def __init__(self, url, **options):
            assert (url, options["open"]) == ("postgresql:///notes", False)

        def open(self):
            opened.append("open")

        @contextlib.contextmanager
        def connection(self):
            yield types.SimpleNamespace(execute=lambda query: [("buy tea",)])

    monkeypatch.setitem(sys.modules, "psycopg_pool", types.SimpleNamespace(ConnectionPool=Pool))
    monkeypatch.setenv("DATABASE_URL", "postgresql:///notes")
    app = recipe("How do I use a PostgreSQL pool?")["app"]
    assert opened == []
    assert client(app).get("/notes").json == ["buy tea"]


def test_recipe_webhook_is_taken_with_a_fresh_signature_only(recipe):
    names, now = recipe("How do I check the signature of a webhook?"), 1e9
    names["time"] = types.SimpleNamespace(time=lambda: now)
    browser, body = client(names["app"]), b'{"id": 7}'

    def send(moment, body=body, signed=body):
        text = f"{moment}.".encode() + signed
        signature = names["hmac"].new(b"secret", text, "sha256").hexdigest()
        headers = {
            "X-Timestamp": str(moment),
            "X-Signature": signature,
            "Content-Type": "application/json",
        }
        return browser.post("/webhooks/shop", body=body, headers=headers).status

    assert send(int(now)) == 200
    assert send(int(now) - 301) == send(int(now) + 301) == 403
    assert send(int(now), signed=b'{"id": 8}') == 403
    names["app"] = WebApp()
    names["app"].post("/stripe", names["stripe_signed"])(lambda context: "taken")
    browser = client(names["app"])

    def send_stripe(field):
        return browser.post("/stripe", body=b"{}", headers={"Stripe-Signature": field}).text

    right = names["hmac"].new(b"secret", b"1000000000.{}", "sha256").hexdigest()
    old = names["hmac"].new(b"secret", b"999999000.{}", "sha256").hexdigest()
    assert send_stripe(f"t=1000000000,v1={right}") == "taken"
    assert send_stripe(f"t=1000000000,v1=00,v1={right},v0=00") == "taken"
    assert send_stripe(f"t=999999000,v1={old}") == "The webhook is too old."
    for wrong in (f"t=1000000001,v1={right}", f"v1={right}", "t=1000000000", "t,v1=", "=,"):
        assert send_stripe(wrong) == "The signature is wrong."


def test_recipe_idempotency_key_belongs_to_one_order_which_is_done_once(recipe):
    names = recipe("How do I process each webhook or order only once (idempotency key, replay)?")
    teas, answers = ["assam", "ceylon", "sencha"] * 2, []

    def order(tea):
        headers = {"Idempotency-Key": "same"}
        answer = client(names["app"]).post("/orders", headers=headers, form={"tea": tea})
        answers.append((answer.status, answer.text))

    run_at_once([functools.partial(order, tea) for tea in teas])
    refused = (422, "This Idempotency-Key belongs to another order.")
    (done,) = {answer for answer in answers if answer[0] == 200}
    assert sorted(answers) == [done] * 2 + [refused] * 4


def test_recipe_tasks_are_noted_once_and_tried_until_they_are_done(recipe, caplog):
    names, now, done, is_down = recipe(TASKS), 1e9, [], True
    names["time"] = types.SimpleNamespace(time=lambda: now)

    def make_invoice(key, event):
        if is_down:
            raise OSError("nobody answers")
        done.append((key, event))

    names["TASKS"]["make_invoice"] = make_invoice
    browser = client(names["app"])
    for number in (7, 8, 7):
        assert browser.post("/webhooks/shop", json={"id": number}).status == 202
    names["do_what_is_due"]()
    is_down = False
    names["do_what_is_due"]()
    assert done == [] and "task shop 7\nTraceback" in caplog.text
    now += 60
    names["do_what_is_due"]()
    names["do_what_is_due"]()
    assert sorted(done) == [("shop 7", {"id": 7}), ("shop 8", {"id": 8})]
    assert browser.post("/webhooks/shop", json={"id": 7}).status == 202
    names["do_what_is_due"]()
    assert len(done) == 2


def test_recipe_tasks_send_webhooks_by_http(recipe):
    names, received = recipe(TASKS), []
    receiver = WebApp()

    @receiver.post("/hook")
    def hook(context):
        received.append((context.request.headers["Idempotency-Key"], context.request.json))

    with Server(receiver, quiet=True) as server:
        with names["connect"]() as database, database:
            hook_of = {"url": f"{server.url}/hook", "document": {"tea": 1}}
            names["enqueue"](database, "paid 7", "send_webhook", **hook_of)
        names["do_what_is_due"]()
    assert received == [("paid 7", {"tea": 1})]


@pytest.mark.skipif(WINDOWS, reason="there is no SIGTERM that a program could take")
def test_recipe_tasks_are_worked_off_by_a_program_of_its_own_which_ends_its_task(tmp_path):
    work = (
        "...  # takes seconds",
        'print(key, flush=True); time.sleep(0.5); print("made", flush=True)',
    )
    save_recipe(TASKS, tmp_path, work=work)
    (worker,) = [text for text in blocks(chapter(TASKS, RECIPES), "python") if text[0] == "#"]
    (tmp_path / "worker.py").write_text(worker, encoding="utf-8")
    with started(tmp_path, "-m", "webapp", "--port", "0", "app.py") as (_, url):
        event = urllib.request.Request(f"{url}/webhooks/shop", b'{"id": 7}', {"Content-Type": JSON})
        urllib.request.urlopen(event, timeout=20).close()
        with started(tmp_path, "worker.py", says=("stdout", "shop (7)")) as (process, _):
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read() == "made\n"
            assert process.wait(20) == 0


PIECES_OF_WORK = {WORKER: "look_for_mail", ON_STOP: "look_for_mail", TASKS: "do_what_is_due"}


def test_recipes_with_a_loop_that_works_are_those_that_are_tested():
    loops = [title for title in TITLES if "def work():" in chapter(title, RECIPES)]
    assert sorted(loops) == sorted(PIECES_OF_WORK)


@pytest.mark.parametrize("title", PIECES_OF_WORK)
def test_recipe_logs_a_piece_of_work_that_fails_and_goes_on(title, recipe, caplog):
    names = recipe(title)
    failures = [OSError(), http.client.BadStatusLine("x"), ValueError(), sqlite3.OperationalError()]

    def fail():
        raise waiting.pop()

    waiting = failures[:]
    names[PIECES_OF_WORK[title]] = fail
    names["stopping"] = types.SimpleNamespace(wait=lambda seconds: not waiting)
    names["work"]()
    assert [record.exc_info[1] for record in caplog.records] == failures[::-1]


@pytest.mark.parametrize("title", [ON_STOP, TASKS])
def test_recipe_starts_no_worker_where_the_port_is_taken(title, tmp_path):
    save_recipe(title, tmp_path, '\nthreading.Thread.start = lambda thread: print("started")\n')
    program = (tmp_path / "app.py").read_text(encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"port={taken.getsockname()[1]}"
        (tmp_path / "app.py").write_text(program.replace("port=0", port), encoding="utf-8")
        done = run_python(tmp_path, "app.py")
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("title", [ON_STOP, TASKS])
def test_recipe_ends_its_worker_when_the_server_cannot_serve(title, tmp_path):
    fail = (
        "\ndef fail(server):\n    raise RuntimeError('no threads')\n\nServer.serve_forever = fail\n"
    )
    save_recipe(title, tmp_path, fail)
    done = run_python(tmp_path, "app.py")
    assert done.returncode == 1 and done.stderr.endswith("RuntimeError: no threads\n")


def test_recipe_cron_is_a_program_of_its_own(tmp_path):
    title = "How do I run something every hour (cron)?"
    (program,) = blocks(chapter(title, RECIPES), "python")
    (tmp_path / "cleanup.py").write_text(program, encoding="utf-8")
    done = run_python(tmp_path, "cleanup.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_recipe_asyncio_has_one_loop_for_requests_that_come_at_once(recipe):
    names = recipe("How do I call async code (asyncio)?")
    loops, new = [], asyncio.new_event_loop

    def new_loop():
        threading.Event().wait(0.01)
        loops.append(new())
        return loops[-1]

    names["asyncio"] = types.SimpleNamespace(**{**vars(asyncio), "new_event_loop": new_loop})
    run_at_once([lambda: names["wait_for"](asyncio.sleep(0))] * 8)
    assert len(loops) == 1
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        names["wait_for"](asyncio.sleep(60), seconds=0.01)


def test_no_recipe_makes_its_one_object_by_a_cache_without_a_lock():
    """functools.lru_cache calls the function twice for two threads that come at once."""
    assert "lru_cache(" not in RECIPES and "functools.cache" not in RECIPES


def test_recipe_time_limit_answers_503_while_the_job_still_runs(recipe):
    names, ended = (
        recipe("How do I set a time limit for a handler?"),
        threading.Event(),
    )
    names["LONGEST"] = 0.01
    names["search"] = lambda text: ended.wait(20)
    try:
        answer = client(names["app"]).get("/search?q=tea")
    finally:
        ended.set()
        names["pool"].shutdown()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")


TOOL = "How do I write a tool (open the browser, random free port, stop when idle)?"


def test_recipe_tool_answers_only_who_has_the_token_and_ends(recipe):
    names, stopped = recipe(TOOL), []
    server = types.SimpleNamespace(stop=lambda: stopped.append(True))
    browser, token = client(names["app"]), names["TOKEN"]
    strange = ("/", "/stop", "/guess/", "/guess/stop", f"/{token[1:]}/", f"/?token={token}")
    assert {browser.get(path).status for path in strange} == {404}
    assert {browser.post(path).status for path in strange} == {404}
    assert not names["stopping"].is_set()
    page = browser.get(f"/{token}/")
    assert "Set-Cookie" not in page.headers and not browser.cookies
    action = re.search('action="([^"]+)"', page.text)[1]
    assert browser.post(action, headers={"Origin": "http://evil.example"}).status == 403
    assert browser.post(action).text == "You may close this page."
    names["end_when_idle"](server)
    assert stopped == [True]


def test_recipe_tool_counts_allowed_requests_and_open_streams_only(recipe):
    names, waits = recipe(TOOL), []
    token = names["TOKEN"]

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            stream.close()

    names["tool"].get("/stream")(lambda context: iter(["one", "two"]))
    names["stopping"] = types.SimpleNamespace(wait=wait)
    server = types.SimpleNamespace(stop=lambda: waits.append("stopped"))
    app, browser = names["app"], client(names["app"])
    before = names["last"][0] = time.monotonic() - 2 * names["IDLE"]
    browser.get("/guess/")
    assert names["last"] == [before]
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": f"/{token}/stream", "wsgi.input": io.BytesIO()}
    stream = app(environ, lambda status, headers: None)
    assert next(iter(stream)) == b"one"
    assert names["last"] == [before] and len(names["open_requests"]) == 1
    names["IDLE"] = -1
    names["end_when_idle"](server)
    assert waits == [1, 1, "stopped"]
    assert names["last"] > [before] and names["open_requests"] == []
    browser.get(f"/{token}/")
    assert names["open_requests"] == []


BROWSER = """
import os, pathlib, re, sys, urllib.parse, urllib.request
page = pathlib.Path(urllib.request.url2pathname(urllib.parse.urlsplit(sys.argv[1]).path))
modes = [f"{path.stat().st_mode & 0o077:o}" for path in (page.parent, page)]
address = re.search('url=([^"]+)', page.read_text())[1]
fetch = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
assert b"Done" in fetch(address).read()
told = [sys.argv[1], modes[0], address]
pathlib.Path("told.txt").write_text("\\n".join(told))
fetch(f"{address}stop", b"").read()
"""


@pytest.mark.skipif(WINDOWS, reason="BROWSER is a command of a POSIX shell")
def test_recipe_tool_opens_the_browser_and_shows_other_users_no_token(tmp_path):
    save_recipe(TOOL, tmp_path)
    (tmp_path / "browser.py").write_text(BROWSER, encoding="utf-8")
    done = run_python(tmp_path, "app.py", BROWSER=f"{sys.executable} browser.py %s")
    assert done.returncode == 0
    argument, mode, address = (tmp_path / "told.txt").read_text(encoding="utf-8").split("\n")
    token = urllib.parse.urlsplit(address).path.strip("/")
    assert len(token) > 40 and token not in argument
    assert mode == "0"  # the folder of the page is its owner's alone
    assert not pathlib.Path(urllib.parse.urlsplit(argument).path).exists()
    assert done.stdout == f"Open {address}\n"
    assert token not in done.stderr


def test_recipe_tool_and_recipe_live_progress_join_as_the_text_says(tmp_path):
    (tool,), (live,) = (blocks(chapter(title, RECIPES), "python") for title in (TOOL, LIVE))
    tool, last = tool.split('\nif __name__ == "__main__":\n')
    live = live.partition('\nif __name__ == "__main__":\n')[0].replace("@app.get", "@tool.get")
    work = "threading.Thread(target=job)"
    for old, new in [
        ("on_stop=stopping.set", "on_stop=stop_work"),
        ("webbrowser.open", "print"),
        ("server.serve_forever()", f"worker = {work}; worker.start(); server.serve_forever()"),
    ]:
        assert last.count(old) == 1
        last = last.replace(old, new)
    live = live.replace("...  # a piece of the work", "stopping.wait(0.01)")
    live = live.replace('"total": 100}', '"total": 10**9}').replace(", 15)", ", 600)")
    last = 'if __name__ == "__main__":\n' + last
    program = "\n".join([*FIRST_LINES, tool, live, last])
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    with started(tmp_path, says=PRINTED) as (process, address):
        action = re.search(b'action="([^"]+)"', fetch(address))[1].decode()
        with urllib.request.urlopen(f"{address}progress", timeout=20) as stream:
            assert stream.readline().startswith(b'data: {"done": ')
            pressed = urllib.request.Request(urllib.parse.urljoin(address, action), b"")
            assert fetch(pressed) == b"You may close this page."
            assert stream.read().endswith(b"event: end\ndata: \n\n")
        assert process.wait(20) == 0


def read_globals(code):
    """The names of the program that its functions read."""
    for inner in filter(inspect.iscode, code.co_consts):
        steps = dis.get_instructions(inner)
        yield from (step.argval for step in steps if step.opname == "LOAD_GLOBAL")
        yield from read_globals(inner)


def names_of_the_last_block(program):
    """The names that only the block below `if __name__ == "__main__"` sets, and functions read."""

    def set_by(nodes):
        found = [name for node in nodes for name in ast.walk(node) if isinstance(name, ast.Name)]
        return {name.id for name in found if isinstance(name.ctx, ast.Store)}

    nodes = ast.parse(program).body
    last = [node for node in nodes if ast.unparse(node).startswith("if __name__ == '__main__'")]
    only = set_by(last) - set_by(node for node in nodes if node not in last)
    return only & set(read_globals(compile(program, "program", "exec")))


def test_name_that_only_the_last_block_sets_is_found():
    program = "def stop():\n    server.stop()\n\nif __name__ == '__main__':\n    server = 1\n"
    assert names_of_the_last_block(program) == {"server"}
    assert names_of_the_last_block("server = None\n" + program) == set()
    assert names_of_the_last_block(program.replace("stop()", "stop(server)", 1)) == set()


SHOWN = {
    **{title: "\n".join(blocks(chapter(title, RECIPES), "python")) for title in TITLES},
    **{lesson: (ROOT / "examples" / f"{lesson}.py").read_text("utf-8") for lesson in LESSONS},
}


@pytest.mark.parametrize("title", [title for title in SHOWN if "__main__" in SHOWN[title]])
def test_no_handler_shown_uses_a_name_that_only_the_program_has(title):
    """TestClient and other servers never run the last block."""
    assert names_of_the_last_block(SHOWN[title]) == set()


PROXY = "How do I forward some paths to another server (reverse proxy, proxying)?"


def test_recipe_forwards_requests_and_answers(recipe):
    names, backend = recipe(PROXY), WebApp()

    @backend.post("/orders/{name}")
    def order(context, name):
        context.response.code(201)
        return {"name": name, "query": context.request.query_string, "body": context.request.json}

    @backend.get("/away")
    def away(context):
        context.response.redirect("/login")

    @backend.get("/large")
    def large(context):
        return (bytes(2**20) for _ in range(20))

    @backend.get("/nothing")
    def nothing(context):
        context.response.code(204)

    def odd(environ, start_response):
        start_response("200 OK", [("Content-Type", "unreadable"), ("ETag", "abc")])
        return [b"odd"]

    backend.mount("/odd", odd)
    browser = client(names["app"])
    with Server(backend, quiet=True) as server:
        names["BACKEND"] = server.url
        unreadable = browser.get("/api/odd")
        assert unreadable.headers["Content-Type"] == "application/octet-stream"
        assert unreadable.body == b"odd"
        answer = browser.post("/api/orders/green%20tea?cups=2", json=[1])
        assert (answer.status, answer.json) == (
            201,
            {"name": "green tea", "query": "cups=2", "body": [1]},
        )
        assert browser.get("/api/missing").status == 404
        moved = browser.get("/api/away")
        assert (moved.status, moved.headers["Location"]) == (303, "/login")
        assert len(browser.get("/api/large").body) == 20 * 2**20
        assert [browser.get("/api/nothing").status, browser.head("/api/large").status] == [204, 200]
    assert browser.get("/api/away").status == 502


@pytest.mark.parametrize(
    "path", ["..%2Fsecret", "a/..%2F..%2Fsecret", "..", ".%2Fa", "..%5Csecret", "a/..", "%2E%2E/a"]
)
def test_recipe_forwards_nothing_outside_of_its_path(path, recipe):
    names = recipe(PROXY)
    names["opener"] = types.SimpleNamespace(open=lambda *given, **options: pytest.fail(given))
    target = f"/api/{path}"
    environ = {"REQUEST_URI": target, "PATH_INFO": urllib.parse.unquote(target)}
    assert client(names["app"]).get("/", environ=environ).status == 404


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (b"nonsense\r\n\r\n", 502),
        (b"", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n123\r\n4\r\n", 502),
    ],
)
def test_recipe_never_ends_a_forwarded_answer_that_was_cut(given, status, recipe):
    """A visitor whose answer has begun notices, because the connection is cut."""
    names = recipe(PROXY)

    def answer_once():
        sock, _ = backend.accept()
        with sock:
            sock.recv(65536)
            sock.sendall(given)

    with socket.create_server(("127.0.0.1", 0)) as backend:
        names["BACKEND"] = f"http://127.0.0.1:{backend.getsockname()[1]}"
        thread = threading.Thread(target=answer_once)
        thread.start()
        with Server(names["app"], quiet=True) as server:
            failure = urllib.error.HTTPError if status else http.client.IncompleteRead
            with pytest.raises(failure) as failed:
                fetch(f"{server.url}/api/x")
        thread.join()
    if status:
        assert failed.value.code == status
        failed.value.close()


def test_recipe_sentry_hears_of_failures_by_the_log(recipe, monkeypatch, caplog):
    calls = []
    sentry = types.SimpleNamespace(init=lambda *given, **options: calls.append(given))
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry)
    monkeypatch.setenv("SENTRY_DSN", "https://key@sentry.invalid/1")
    app = recipe("How do I send errors to Sentry?")["app"]
    app.get("/")(lambda context: 1 / 0)
    with caplog.at_level(logging.ERROR, "webapp"):
        assert client(app).get("/").status == 500
    assert calls == [("https://key@sentry.invalid/1",)]
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


BEHIND_NGINX = (
    "How do I run my application behind nginx, on a shared host (Passenger), or on an unusual port?"
)


def test_recipe_passenger_loads_the_application(recipe, tmp_path):
    (program,) = blocks(chapter(BEHIND_NGINX, RECIPES), "python")
    (tmp_path / "app.py").write_text("app = print\n", encoding="utf-8")
    (tmp_path / "passenger_wsgi.py").write_text(program, encoding="utf-8")
    done = run_python(tmp_path, "-c", "import passenger_wsgi; print(passenger_wsgi.application)")
    assert done.stdout == "<built-in function print>\n"


def test_every_recipe_is_tested():
    """A test names each recipe that shows no answer of curl."""
    source = pathlib.Path(__file__).read_text(encoding="utf-8")
    untested = [title for title in TITLES if title not in ANSWERING and f'"{title}"' not in source]
    assert [title for title in untested if "PyInstaller" not in title] == []  # which has no code
