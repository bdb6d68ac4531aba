"""The tests of `playground.html`.

Its Python runs here. The whole page runs in Chromium with Pyodide where both are installed:
`apt-get install chromium chromium-driver`, `npm install pyodide`, and the folder of node's packages
in NODE_PATH.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html.parser
import http.server
import json
import logging
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.error
import urllib.request

import pytest

PAGE = pathlib.Path(__file__).resolve().with_name("playground.html")
ROOT = next(folder for folder in PAGE.parents if (folder / "webapp.py").exists())
TEXT = PAGE.read_text(encoding="utf-8")


class Scripts(html.parser.HTMLParser):
    """Collect the scripts of a page: attributes and text."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "script":
            self.found.append((dict(attributes), ""))

    def handle_data(self, data):
        if self.found and self.found[-1][1] == "":
            self.found[-1] = (self.found[-1][0], data)


@pytest.fixture(scope="module")
def scripts():
    parser = Scripts()
    parser.feed(TEXT)
    return parser.found


def script(scripts, identity):
    (text,) = (text for attributes, text in scripts if attributes.get("id") == identity)
    return text


@pytest.fixture
def engine(scripts, monkeypatch):
    """Return the Python of the page as a module. `told` has what it shows in the log box."""
    monkeypatch.setitem(sys.modules, "app", None)  # the engine replaces it
    logger = logging.getLogger("webapp")
    monkeypatch.setattr(logger, "handlers", logger.handlers[:])  # the engine adds one
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    module = types.ModuleType("engine")
    module.told = []
    module.tell = module.told.append
    level = logger.level
    exec(script(scripts, "engine"), vars(module))
    yield module
    logger.setLevel(level)


def examples_of(scripts):
    return {
        attributes["title"]: (attributes, text.strip() + "\n")
        for attributes, text in scripts
        if attributes.get("class") == "example"
    }


def send(engine, method, target, fields="", body=""):
    """Send a request; return status, body and what the log box shows."""
    engine.told.clear()
    answer = json.loads(engine.send(method, target, fields, body))
    return answer["status"], answer["body"], "".join(engine.told)


# ---- the Python of the page ----------------------------------------------------------------------


def test_each_example_of_the_playground_answers(engine, scripts):
    wanted = {
        "Hello": ("200 OK", "Hello Ada", ""),
        "A failure": ("400 Bad Request", "400 Bad Request", "int does not accept 'nine'"),
        "A form": ("422 Unprocessable Content", "Please give it a title.", ""),
        "Groups and errors": ("403 Forbidden", "<p>Status 403: for staff.", "'no key'"),
        "A session": ("200 OK", "visit 1", ""),
        "A stream": ("200 OK", "0\n1\n2\n", "the next piece is 2"),
        "An empty program": ("404 Not Found", "404 Not Found", "no such route"),
    }
    examples = examples_of(scripts)
    assert examples.keys() == wanted.keys()
    for title, (given, source) in examples.items():
        assert engine.run(source) == ""
        answer = send(
            engine,
            given.get("data-method", "GET"),
            given["data-path"],
            given.get("data-fields", ""),
            given.get("data-body", ""),
        )
        status, body, shown = wanted[title]
        assert answer[0] == status and body in answer[1]
        assert shown in answer[2] and bool(shown) == bool(answer[2]), title


def test_playground_sends_forms_and_keeps_cookies(engine, scripts):
    assert engine.run(examples_of(scripts)["A session"][1]) == ""
    visits = [send(engine, "GET", "/")[1] for _ in range(3)]
    assert visits == ["visit 1", "visit 2", "visit 3"]
    given, source = examples_of(scripts)["A form"]
    assert engine.run(source) == ""
    answer = json.loads(engine.send("POST", "/", given["data-fields"], "title=Tea"))
    assert answer["status"] == "303 See Other" and "Location: /" in answer["fields"].splitlines()
    assert send(engine, "GET", "/")[1] == '{"titles": ["Tea"]}'
    status, body, _ = send(engine, "GET", "/", "no colon")
    assert status == "The request has no response." and "no colon" in body


def test_playground_shows_the_line_that_failed(engine, scripts):
    assert "SyntaxError" in engine.run("def")
    mistake = engine.run("import webapp\n\n1 / 0\n")
    assert mistake.startswith("Traceback") and 'File "app.py", line 3' in mistake
    assert "engine" not in mistake
    assert "AttributeError" in engine.run("x = 1") and "SystemExit" in engine.run(
        "raise SystemExit"
    )
    assert engine.run(examples_of(scripts)["Groups and errors"][1]) == ""
    status, _, shown = send(engine, "GET", "/broken?a=1")
    assert status == "500 Internal Server Error"
    assert shown.startswith("ERROR ") and 'return context.request.query["a"] / 2' in shown
    assert engine.run(examples_of(scripts)["A failure"][1]) == ""
    assert "ZeroDivisionError" in send(engine, "GET", "/share?of=0")[2]
    status, body, shown = send(engine, "GET", "/share?of=101")
    assert status == "422 Unprocessable Content" and "At most 100" in body
    assert shown.startswith("DEBUG ") and "101 is too large" in shown


def test_playground_shows_what_a_program_prints_up_to_a_limit(engine):
    program = (
        "import sys, webapp\nprint('to see')\n"
        "print('an error', file=sys.stderr)\napp = webapp.WebApp()\n"
        "app.get('/')(lambda context: print('x' * 1_000_000))\n"
        "app.get('/image')(lambda context: context.response.body(b'\\xff', 'image/a'))\n"
    )
    assert engine.run(program) == ""
    shown = "".join(engine.told)
    assert shown == "to see\nan error\n"
    for _ in range(2):  # each request has the limit for itself
        _, _, shown = send(engine, "GET", "/")
        assert engine.MOST < len(shown) < engine.MOST + 1000 and shown.startswith("xxx")
        assert "not shown" in shown
    assert send(engine, "GET", "/image")[1] == "(1 bytes that are not text)"


# ---- the page ------------------------------------------------------------------------------------


def test_playground_names_one_place_elsewhere_and_the_sums_of_its_files(scripts):
    """Nothing is loaded from elsewhere before the visitor asks for it, and then a file that was
    changed is refused."""
    assert not [attributes for attributes, _ in scripts if "src" in attributes]
    assert "<link" not in TEXT and "@import" not in TEXT
    program = script(scripts, "page")
    places = set(re.findall(r"https?:[^\s\"'`<]*", TEXT)) - {"https://playground.invalid/"}
    assert places == {"https://cdn.jsdelivr.net/npm/pyodide@${VERSION}/"}
    sums = re.findall(r'"([\w.-]+)": "sha384-([\w+/]{64})"', program)
    assert len(sums) == 5
    folder = find_pyodide()
    (version,) = re.findall(r'VERSION = "(.+)"', program)
    if folder is None or json.loads((folder / "package.json").read_text())["version"] != version:
        pytest.skip(f"needs Pyodide {version} to compare with")
    for name, wanted in sums:
        found = hashlib.sha384((folder / name).read_bytes()).digest()
        assert base64.b64encode(found).decode() == wanted, name


def find_pyodide():
    """Return the folder of Pyodide: beside the page, or where node finds packages, or None."""
    folder = PAGE.with_name("pyodide")
    node = shutil.which("node")
    if not folder.exists() and node:
        program = [node, "-p", "require.resolve('pyodide/package.json')"]
        found = subprocess.run(program, capture_output=True, text=True, check=False).stdout.strip()
        folder = pathlib.Path(found).parent if found else folder
    return folder if (folder / "pyodide.asm.mjs").exists() else None


class Files(http.server.SimpleHTTPRequestHandler):
    """Serve the checkout, and Pyodide beside the page."""

    pyodide = None

    def translate_path(self, path):
        _, found, name = path.partition("/pyodide/")
        if found:
            return str(self.pyodide / name if self.pyodide else ROOT / "no folder")
        return super().translate_path(path)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(pyodide):
    """Serve the page; yield its address."""
    handler = type("Handler", (Files,), {"pyodide": pyodide})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: handler(*arguments, directory=str(ROOT))
    ) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            path = PAGE.relative_to(ROOT).as_posix()
            yield f"http://127.0.0.1:{server.server_address[1]}/{path}"
        finally:
            server.shutdown()


class Browser:
    """A browser, by the protocol of W3C's WebDriver."""

    def __init__(self, address, binary):
        self.address = address
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu"]
        # Names lead nowhere: there is no network.
        arguments.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
        options = {"args": arguments, "binary": binary}
        options["mobileEmulation"] = {"deviceMetrics": {"width": 390, "height": 800}}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options}
        session = self.ask("POST", "/session", capabilities={"alwaysMatch": wanted})
        self.address += f"/session/{session['sessionId']}"

    def ask(self, method, path, **given):
        data = json.dumps(given).encode() if method == "POST" else None
        fields = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, fields, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, address):
        self.ask("POST", "/url", url=address)

    def find(self, identity):
        found = self.ask("POST", "/element", using="css selector", value=f"#{identity}")
        return f"/element/{next(iter(found.values()))}"

    def click(self, identity):
        self.ask("POST", f"{self.find(identity)}/click")

    def type(self, identity, keys):
        self.ask("POST", f"{self.find(identity)}/value", text=keys)

    def run(self, program):
        return self.ask("POST", "/execute/sync", script=program, args=[])

    def text(self, identity):
        return self.run(f"return document.getElementById('{identity}').textContent")

    def value(self, identity):
        return self.run(f"return document.getElementById('{identity}').value")

    def choose(self, title):
        self.type("example", title)

    def until(self, identity, text):
        """Wait until an element has a text; return all of its text."""
        end = time.monotonic() + 60
        while text not in (found := self.text(identity)):
            assert time.monotonic() < end, f"{identity}: {found}"
            time.sleep(0.02)
        return found


@pytest.fixture
def browser():
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        pytest.skip("needs chromium and chromedriver")
    program = pathlib.Path("/usr/lib/chromium/chromium")  # Debian's script ends badly in containers
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            end = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(f"{address}/status", timeout=60).close()
                    break
                except urllib.error.URLError:
                    assert time.monotonic() < end
                    time.sleep(0.05)
            browser = Browser(address, str(program) if program.exists() else chromium)
            try:
                yield browser
            finally:
                browser.ask("DELETE", "")
        finally:
            process.terminate()


ENTER, CONTROL, END, RELEASE = "\ue007", "\ue009", "\ue010", "\ue000"


@pytest.fixture
def pyodide():
    folder = find_pyodide()
    if folder is None:
        pytest.skip("needs pyodide (NODE_PATH=.../node_modules)")
    return folder


def test_playground_plays_in_chromium(pyodide, browser):
    with served(pyodide) as address:
        browser.open(address)
        browser.until("state", "Python is ready.")
        assert browser.run("return document.documentElement.scrollWidth") <= 390
        browser.type("path", ENTER)
        browser.until("status", "200 OK")
        assert browser.text("answer").endswith("\n\nHello Ada")

        browser.choose("Groups and errors")
        browser.click("send")
        browser.until("status", "403 Forbidden")
        assert (
            browser.text("log") == "DEBUG 'GET' '/admin/users': 403 HttpException(403, 'no key')\n"
        )
        frame = browser.find("view").rpartition("/")[2]
        browser.ask("POST", "/frame", id={"element-6066-11e4-a52e-4f735466cecf": frame})
        assert "Status 403" in browser.run("return document.body.textContent")
        browser.ask("POST", "/frame", id=None)

        # The text of a learner is kept, for each example.
        browser.choose("Hello")
        mine = f"{ENTER}while True:{ENTER}print('on and on')"
        browser.type("editor", CONTROL + END + RELEASE + mine)
        program = browser.value("editor")
        assert program.endswith("{name}\"\n\nwhile True:\n    print('on and on')")
        browser.choose("A stream")
        browser.click("send")
        browser.until("log", "the next piece is 2")
        browser.choose("Hello")
        assert browser.value("editor") == program
        browser.open(address)
        assert browser.value("editor") == program
        browser.until("state", "Python is ready.")

        # A program without an end can be stopped.
        browser.type("editor", CONTROL + ENTER)
        browser.until("state", "Press Stop")
        browser.until("log", "on and on\non and on\n")
        browser.click("stop")
        browser.until("state", "Python is ready again")
        assert browser.text("status") == "Stopped."
        browser.click("restore")
        browser.ask("POST", "/alert/accept")
        assert "while" not in browser.value("editor")
        browser.type("editor", CONTROL + END + RELEASE + "1 / 0" + CONTROL + ENTER)
        browser.until("status", "mistake")
        assert "ZeroDivisionError" in browser.text("answer")


def test_playground_labels_what_can_be_used_and_says_what_to_copy_without_a_network(browser):
    with served(None) as address:
        browser.open(address)
        browser.until("state", "Press Run or Send")
        browser.click("send")
        said = browser.until("state", "could not be loaded")
        folder = re.sub(r"http://[^/]+", "", address).replace("playground.html", "pyodide/")
        assert f"no folder {folder}" in said
        assert browser.text("place") == address.replace("playground.html", "pyodide/pyodide.mjs")
        shown = browser.run("return document.getElementById('place').checkVisibility()")
        assert shown is True
        selector = "button, input, select, textarea, pre, summary"
        labels = []
        for found in browser.ask("POST", "/elements", using="css selector", value=selector):
            (element,) = found.values()
            labels.append(browser.ask("GET", f"/element/{element}/computedlabel"))
        assert len(labels) == 14 and all(labels) and len(set(labels)) == len(labels)
        live = browser.run("return [...document.querySelectorAll('[role]')].map((e) => e.role)")
        assert live == ["status", "status", "region", "log"]
