"""The tests of the lessons, of README.rst and of the recipes: `python -m pytest examples`.

Each command that a text shows is run, and its answer is compared with the text. Every request goes through
wsgiref.validate.
"""

from __future__ import annotations

import argparse
import base64
import html.parser
import importlib.util
import json
import math
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from wsgiref.validate import validator

import pytest

from webapp import HttpException, TestClient, WebApp

ROOT = pathlib.Path(__file__).resolve().parents[1]
JSON = "application/json"
WINDOWS = sys.platform == "win32"

# ---- helpers ---------------------------------------------------------------------------------------------------------


def client(app, **options):
    """Make a client whose requests and responses wsgiref.validate checks."""
    return TestClient(validator(app), **options)


def can_link(folder):
    """Windows lets few people make symbolic links, and Wine makes none that lead anywhere."""
    try:
        os.symlink(folder, folder / "probe")
        return (folder / "probe" / "probe").is_dir()
    except OSError:
        return False
    finally:
        (folder / "probe").unlink(missing_ok=True)


def lesson_path(name):
    return ROOT / "examples" / f"{name}.py"


def load(name):
    """Import a program of examples/ under a name of its own, as new each time."""
    path = lesson_path(name)
    spec = importlib.util.spec_from_file_location(f"lesson_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_python(folder, *arguments, text=True, **environ):
    """Run a program to its end, with webapp.py at hand."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=text, timeout=100)


def fetch(url):
    # No proxy that the environment may name is asked.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as response:
        return response.read()


# ---- curl commands ---------------------------------------------------------------------------------------------------


def curl_commands(text):
    """Yield the arguments of each `$ curl` line and the answer shown below it (indented as far, up to the next `$`)."""
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
for _name in ("-i --include", "-I --head", "-N --no-buffer", "-L --location", "-G --get"):
    CURL.add_argument(*_name.split(), action="store_true")
for _name in ("-H --header", "-d --data", "-F --form"):
    CURL.add_argument(*_name.split(), action="append", default=[])
for _name in ("-X --request", "-b --cookie", "-c --cookie-jar", "-u --user", "-r --range"):
    CURL.add_argument(*_name.split())
CURL.add_argument("--data-urlencode", action="append", dest="data", type=quote_value)


class Curl:
    """As much of curl as the texts use, on a TestClient: `run(arguments)` gives what curl would print."""

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
        self.client.cookies = dict(self.jars.get(given.cookie, {}))
        method = given.request or ("HEAD" if given.head else "POST" if content else "GET")
        response = self.client.request(method, given.url, headers=headers, follow_redirects=given.location, **content)
        self.jars[given.cookie_jar] = self.client.cookies
        if whole_pages and response.headers.get("Content-Type", "").startswith("text/html") and response.body:
            check_page(response.text)
        head = [f"HTTP/1.1 {response.status} {response.reason}"]
        head += [f"{name}: {value}" for name in response.headers for value in response.headers.getall(name)]
        return "\n".join([*head, "", response.text]) if given.include or given.head else response.text

    def content(self, given, headers):
        if given.form:
            fields = [field.split("=", 1) for field in given.form]
            form = [(name, value) for name, value in fields if value[:1] != "@"]
            return {"form": form, "files": [(n, self.upload(value[1:])) for n, value in fields if value[:1] == "@"]}
        if given.data and given.get:
            given.url += "?" + "&".join(given.data)
        elif given.data:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            return {"body": "&".join(given.data)}
        return {}

    def upload(self, name):
        content_type = {".txt": "text/plain"}.get(pathlib.Path(name).suffix, "application/octet-stream")
        return name, (self.folder / name).read_bytes(), content_type


def check_page(page):
    """Check what every page owes to screen readers and telephones."""
    tags = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    parser.feed(page)
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    labelled = {attributes.get("for") for tag, attributes in tags if tag == "label"}
    inputs = [attributes for tag, attributes in tags if tag in ("input", "select", "textarea", "progress")]
    assert page.startswith("<!DOCTYPE html>\n<html lang=")
    assert re.search(r"<title>[^<]+</title>", page)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in tags
    assert len(ids) == len(set(ids))
    assert {attributes.get("id") for attributes in inputs if attributes.get("type") != "hidden"} <= labelled
    for attributes in inputs:
        described_by = attributes.get("aria-describedby", "").split()
        assert set(described_by) <= set(ids)
        assert described_by or "aria-invalid" not in attributes


def like(shown, printed):
    """Tell whether a text is printed as it is shown, where `...` is anything."""
    return re.fullmatch(re.escape(shown.strip()).replace(r"\.\.\.", ".*"), printed.strip(), re.DOTALL)


def answers(shown, printed):
    """Tell whether curl printed what a text shows; header fields may be left out."""
    if not shown.startswith("HTTP/"):
        return like(shown, printed)
    (head, _, body), (printed_head, _, printed_body) = shown.partition("\n\n"), printed.partition("\n\n")
    (status, *fields), (printed_status, *printed_fields) = head.splitlines(), printed_head.splitlines()
    found = all(any(like(field, other) for other in printed_fields) for field in fields)
    return like(status, printed_status) and found and like(body, printed_body)


def replay(text, client, folder=".", whole_pages=True):
    """Run the curl commands of a text and check the answers shown below them."""
    curl, commands = Curl(client, folder), list(curl_commands(text))
    assert commands
    for arguments, shown in commands:
        printed = curl.run(arguments, whole_pages)
        assert answers(shown, printed), f"curl {shlex.join(arguments)}\n--- shown\n{shown}\n--- came\n{printed}"


# ---- lessons ---------------------------------------------------------------------------------------------------------

LESSONS = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "test_examples")
SCRIPTS = ("embed", "live", "testing")  # which are started as modules, because they do more than serve `app`


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
    listed = re.findall(r"^``(\w+)\.py`` .* ``(.+)``$", text, re.MULTILINE)
    assert sorted(name for name, _ in listed) == LESSONS
    assert [name for name, _ in listed[:4]] == ["hello", "returns", "testing", "routes"]
    for name, command in listed:
        expected = f"python3 -m examples.{name}" if name in SCRIPTS else f"python3 -m webapp examples/{name}.py"
        assert command == expected
        assert command in lesson_path(name).read_text(encoding="utf-8")


def test_lessons_need_nothing_but_the_checkout(tmp_path):
    """Without site-packages, each warning an error. Each is imported as `-m webapp` does it, in one process."""
    program = "import sys, runpy, webapp; [runpy.run_path(path) for path in sys.argv[1:]]; print(*sys.modules)"
    paths = [str(lesson_path(name)) for name in LESSONS]
    done = run_python(tmp_path, "-S", "-W", "error", "-c", program, *paths, PYTHONPATH=str(ROOT), SCRYPT_COST="16")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sys.path" not in "".join(lesson_path(name).read_text(encoding="utf-8") for name in LESSONS)


def test_command_of_the_first_lesson_starts_it():
    done = subprocess.run(
        [sys.executable, "-m", "webapp", "--routes", "examples/hello.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "/hello/{name}" in done.stdout


@pytest.mark.parametrize("name", sorted(set(LESSONS) - {"embed", "testing"}))
def test_lesson_serves_on_port_8000_when_it_is_started_as_a_program(name, in_tmp_path, monkeypatch):
    path, before, started = str(lesson_path(name)), set(threading.enumerate()), []

    def run(app, **options):
        beside = [thread.daemon for thread in set(threading.enumerate()) - before]
        started.append((options, beside))

    monkeypatch.setattr(sys, "argv", [path])
    monkeypatch.setattr(WebApp, "run", run)
    names = runpy.run_path(path, run_name="__main__")
    assert started == [({"port": 8000}, [True] * (name == "live"))]  # which searches while it serves
    if name == "live":
        names["search"].exponents.clear()  # that ends it


@pytest.mark.parametrize("name", "embed errors files guestbook live login returns upload".split())
def test_pages_of_lessons_share_one_stylesheet_which_is_served(name, in_tmp_path):
    module = load(name)
    assert "<style>" not in lesson_path(name).read_text(encoding="utf-8")
    app = module.make_app(module.Search(limit=3)) if name == "embed" else getattr(module, "app", None)
    if name != "errors":
        response = client(app).get("/static/style.css")
        assert (response.status, response.headers["Content-Type"]) == (200, "text/css; charset=UTF-8")


def test_guestbook_shows_each_invalid_field_and_loses_nothing_that_was_typed(in_tmp_path):
    browser = client(load("guestbook").app)
    page = browser.post("/", form={"name": '"><b>' + "x" * 50, "message": "\r\nHello & </textarea>"}).text
    check_page(page)
    assert 'value="&quot;&gt;&lt;b&gt;' in page and 'aria-describedby="name-error"' in page
    assert ">\n\r\nHello &amp; &lt;/textarea&gt;</textarea>" in page  # HTML drops the first line end
    assert "message-error" not in page
    assert "Nobody yet" in browser.get("/").text


def test_guestbook_thanks_once_and_keeps_name_and_entries(in_tmp_path):
    browser = client(load("guestbook").app)
    form = {"name": "Ada", "message": "One\r\ntwo"}
    assert "Thank you, Ada." in browser.post("/", form=form, follow_redirects=True).text
    page = browser.get("/").text
    assert "Thank you" not in page and 'value="Ada"' in page
    restarted = client(load("guestbook").app)  # with another key: the session ends, the entries stay
    restarted.cookies = browser.cookies
    page = restarted.get("/").text
    assert 'value=""' in page and "<li><b>Ada</b>: One\r\ntwo</li>" in page


def test_upload_keeps_the_file_under_its_digest_whatever_its_name_is(in_tmp_path):
    browser = client(load("upload").app)
    for filename in ("../../notes.txt", "..", "/etc/passwd", "C:\\x", "x" * 300, "\u65e5\u672c.txt"):
        response = browser.post("/", files={"file": (filename, b"hello world\n")})
        (digest,) = re.findall("<td>([0-9a-f]{64})</td>", response.text)
        kept = {path.name: path.read_bytes() for path in (in_tmp_path / "uploads").iterdir()}
        assert kept == {digest: b"hello world\n"}
        assert sorted(path.name for path in in_tmp_path.iterdir()) == ["large.bin", "notes.txt", "uploads"]


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


@pytest.mark.parametrize("start", [["-m", "pytest", "-q", "-p", "no:cacheprovider"], []], ids=["pytest", "python"])
def test_tests_of_the_testing_lesson_pass_from_any_directory(start, tmp_path):
    done = run_python(tmp_path, *start, str(lesson_path("testing")))
    assert (done.returncode, "5 passed" in done.stdout or "5 tests passed" in done.stdout) == (0, True), done.stdout


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
        ("POST", "/todos", {"body": rb'{"title": "\ud800"}', **as_json}, 422, "Unprocessable Content"),
        *(
            ("POST", "/todos", {"json": document}, 422, "Not valid")
            for document in (["x"], {}, {"title": 1}, {"title": " \n"}, {"title": "x" * 201})
        ),
    ]:
        response = todos.request(method, path, **content)
        found = (response.status, response.headers["Content-Type"], response.json["title"], response.json["status"])
        assert found == (status, "application/problem+json", title, status)
        assert ("Allow" in response.headers) == (status == 405)
        assert ("detail" in response.json) == (status == 404)
    assert todos.get("/todos").json == {"todos": []}


def test_todo_api_has_a_phrase_for_each_status(tmp_path, monkeypatch):
    monkeypatch.setenv("TODOS", str(tmp_path / "todos.sqlite3"))
    module = load("todo_api")

    @module.app.get("/{status:int}")
    def fail(context, status):
        raise HttpException(status)

    assert client(module.app).get("/499").json == {"type": "about:blank", "title": "Client Error", "status": 499}


def test_todo_api_keeps_todos_and_lists_those_that_are_done_last_and_hides_failures(todos, tmp_path):
    places = [todos.post("/todos", json={"title": title}).headers["Location"] for title in (" Tea ", "\u00e4\u65e5")]
    assert [todos.get(place).json["title"] for place in places] == ["Tea", "\u00e4\u65e5"]
    todos.post(places[0] + "/done")
    assert [todo["done"] for todo in todos.get("/todos").json["todos"]] == [False, True]
    assert todos.delete(places[1]).status == 204
    assert [todo["title"] for todo in todos.get("/todos").json["todos"]] == ["Tea"]
    (tmp_path / "todos.sqlite3").rename(tmp_path / "kept")
    (tmp_path / "todos.sqlite3").mkdir()
    assert todos.get("/todos").json == {"type": "about:blank", "title": "Internal Server Error", "status": 500}


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
    tested = [int(number) for number in re.findall(r'data: {"tested": (\d+), "total": 24', response.text)]
    assert tested == sorted(set(tested))
    assert response.text.endswith('"found": [3, 5, 7, 13, 17, 19, 31, 61, 89], "done": true}\n\n')
    assert len(browser.get("/events").text.split("\n\n")) == 2  # a late client hears the end at once
    page = browser.get("/").text
    assert "3, 5, 7, 13, 17, 19, 31, 61, 89" in page
    assert "Done." in page and "noscript" not in page


def test_live_page_and_script_name_the_same_elements_and_a_comment_is_sent_while_nothing_happens(monkeypatch):
    module = load("live")
    browser = client(module.app)
    response = browser.get("/live.js")
    assert response.headers["Content-Type"] == "text/javascript; charset=UTF-8"
    named = set(re.findall(r'(?:show|getElementById)\("(\w+)"', response.text))
    assert named == set(re.findall(r'id="(\w+)"', browser.get("/").text))
    monkeypatch.setattr(module.search.changed, "wait_for", lambda predicate, timeout: False)
    assert next(module.progress()) == {"comment": "still there"}


def test_files_lists_what_it_serves_and_every_link_leads_there(tmp_path):
    names = ["a b#%41&+.txt", "'\u65e5.txt", "index.txt", *([] if WINDOWS else ["?<b>.txt"])]
    links_work = can_link(tmp_path)
    for name in names:
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / ".secret").write_text("x")
    (tmp_path / "folder").mkdir()
    if links_work:
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
    if can_link(tmp_path):
        (folder / "link").symlink_to(tmp_path / "outside.txt")
    browser = client(load("files").make_app(folder))
    names = ("..%2Foutside.txt", ".secret", "link", "%00", "..", "a%5C..%5C.secret")
    for path in ("/download/site", *(prefix + name for name in names for prefix in ("/download/", "/files/"))):
        response = browser.get(path, follow_redirects=True)
        assert (path, response.status, response.text) == (path, 404, "404 Not Found")
    response = browser.get("/files/site", follow_redirects=True)
    assert (response.text, response.headers["Content-Type"]) == ("<p>Hi", "text/html; charset=UTF-8")
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_cors_allows_nothing_to_an_origin_that_is_not_listed():
    browser = client(load("cors").app)
    for origin in ([], "null", "", "https://shop.example.evil", "http://shop.example", "*"):
        for method in ("GET", "OPTIONS"):
            headers = {"Origin": origin, "Access-Control-Request-Method": "GET"}
            response = browser.request(method, "/api/prices", headers=headers)
            assert response.headers["Vary"] == "Origin"
            assert not [name for name in response.headers if name.lower().startswith("access-control")]
    response = browser.put("/api/prices/tea", json=5, headers={"Origin": "http://localhost:3000"})
    assert response.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert response.json == {"tea": 5, "cake": 4}


def test_cors_leaves_credentials_out_and_preflights_untouched_by_the_hooks_of_a_block():
    app = WebApp()
    preflight, allow_origin = load("cors").cors("https://a.example")
    app.options("/api/{rest:path}", preflight)
    with app.path("/api") as api:
        api.after(allow_origin)

        @api.before
        def refuse(context):
            raise HttpException(401, headers={"WWW-Authenticate": "Bearer"})

        api.get("/x", lambda context: "never")
    for method, status in (("OPTIONS", 204), ("GET", 401)):
        response = client(app).request(method, "/api/x", headers={"Origin": "https://a.example"})
        assert response.status == status
        assert response.headers["Access-Control-Allow-Origin"] == "https://a.example"
        assert "Access-Control-Allow-Credentials" not in response.headers


def test_login_keeps_no_password_does_not_tell_who_is_a_user_and_ends_the_session_of_a_user_who_is_gone(in_tmp_path):
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
    assert browser.get("/").status == 200
    del module.users["bob"]
    assert browser.get("/").status == 303


@pytest.mark.parametrize(
    ("proxies", "address", "scheme", "host"),
    [("0", "127.0.0.1", "http", "inner:8000"), ("1", "203.0.113.7", "https", "www.example")],
)
def test_deploying_believes_as_many_proxies_as_it_is_told(proxies, address, scheme, host, monkeypatch):
    monkeypatch.setenv("TRUSTED_PROXIES", proxies)
    module = load("deploying")
    assert module.application is module.app
    told = {"Proto": "https", "For": "6.6.6.6, 203.0.113.7", "Host": "www.example"}
    headers = {"Host": "inner:8000", **{f"X-Forwarded-{name}": value for name, value in told.items()}}
    response = client(module.app).get("/whoami", headers=headers, environ={"REMOTE_ADDR": "127.0.0.1"})
    url = f"{scheme}://{host}/whoami"
    assert response.json == {"remote_address": address, "scheme": scheme, "host": host, "url": url}


# ---- instruments -----------------------------------------------------------------------------------------------------


def test_benchmark_measures_three_rows_and_compares_with_another_copy():
    path = lesson_path("instruments/benchmark")
    arguments = ["--quick", "--only", "hello,form,equal-16", "--compare", str(ROOT / "webapp.py")]
    done = subprocess.run([sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert [line.split()[-3:] for line in lines if line[-6:] == "/other"] == [["ratio", "limit", "/other"]] * 2
    for title, limit in (("hello", "0.65"), ("a form of five fields", "1.50"), ("the same hello, 16", "4.20")):
        (line,) = [line for line in lines if line.startswith(title)]
        assert float(line.split()[-3 if "*" in line else -2].replace("*", "")) and limit in line.split()


def test_stalling_times_a_normal_client_beside_every_kind_at_once(capsys):
    module = load("instruments/stalling")
    count = len(module.list_kinds())
    options = f"--kinds mix --connections {count} --seconds 0.5 --noise 60000 --max-threads 1000 --max-memory 9999"
    assert module.main(options.split()) == 0
    headings, kept, new, *most = capsys.readouterr().out.splitlines()
    assert headings.split()[:4] == ["kind", "opened", "client", "failed"]
    name, opened, *figures = kept.split()
    assert (name, int(opened) >= count) == ("mix", True)
    assert (figures[:2], new.split()[:2]) == (["kept", "0"], ["new", "0"])
    assert max(map(len, (headings, kept, new, *most))) <= 100


@pytest.mark.parametrize(
    ("times", "most", "goals"),
    [
        ([1.0, 2.9, 99.0], (72, 9000), []),
        ([1.0, 3.1, 3.2], (72, 9000), ["median"]),
        ([1.0, 1.0, math.inf], (73, 9000), ["failed", "threads"]),
        ([1.0, 1.0, 1.0], (1, 99_000), ["memory"]),
        ([1.0, 1.0, 1.0], None, []),  # where there is no /proc
    ],
)
def test_stalling_names_the_goals_that_a_server_misses(times, most, goals):
    module = load("instruments/stalling")
    before = most and (2, 8000)
    run = module.Run("silent", 1, 10, 10, {"kept": [1.0], "new": times}, {"kept": [1.0], "new": [1.0]}, before, most)
    assert module.missed(run, module.read_arguments(["--max-threads", "72"])) == goals
    last = module.lines_of(run, goals)[-1]
    assert not goals or last == f"  missed: {', '.join(goals)}"
