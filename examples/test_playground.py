"""The tests of `playground.html`: its Python runs here, and the whole page in node with Pyodide,
where both are installed."""

from __future__ import annotations

import html.parser
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "examples" / "playground.html"


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
    parser.feed(PAGE.read_text(encoding="utf-8"))
    return parser.found


def script(scripts, identity):
    (text,) = (text for attributes, text in scripts if attributes.get("id") == identity)
    return text


@pytest.fixture
def engine(scripts, monkeypatch):
    """Return the Python of the page as a module."""
    monkeypatch.setitem(sys.modules, "app", None)  # the engine replaces it
    logger = logging.getLogger("webapp")
    monkeypatch.setattr(logger, "handlers", logger.handlers[:])  # the engine adds one
    module = types.ModuleType("engine")
    exec(script(scripts, "engine"), vars(module))
    return module


def examples_of(scripts):
    return {
        attributes["title"]: (attributes["data-path"], text.strip() + "\n")
        for attributes, text in scripts
        if attributes.get("class") == "example"
    }


def test_each_example_of_the_playground_answers(engine, scripts):
    wanted = {
        "Hello": "Hello Ada",
        "A form": '{"titles": []}',
        "Blocks and errors": "<p>Status 403: for staff.",
        "A session": "visit 1",
        "A stream": "0\n1\n2\n",
    }
    examples = examples_of(scripts)
    assert examples.keys() == wanted.keys()
    for title, (path, source) in examples.items():
        assert engine.run(source) == ""
        assert json.loads(engine.send("GET", path, "", ""))["body"] == wanted[title]


def test_playground_sends_forms_and_keeps_cookies(engine, scripts):
    assert engine.run(examples_of(scripts)["A session"][1]) == ""
    visits = [json.loads(engine.send("GET", "/", "", ""))["body"] for _ in range(3)]
    assert visits == ["visit 1", "visit 2", "visit 3"]
    assert engine.run(examples_of(scripts)["A form"][1]) == ""
    fields = "Content-Type: application/x-www-form-urlencoded"
    answer = json.loads(engine.send("POST", "/", fields, "title="))
    assert answer["head"].startswith("422 Unprocessable Content\n")
    answer = json.loads(engine.send("POST", "/", fields, "title=Tea"))
    assert answer["head"].startswith("303 See Other\n") and "\nLocation: /" in answer["head"]
    assert json.loads(engine.send("GET", "/", "", ""))["body"] == '{"titles": ["Tea"]}'


def test_playground_shows_the_line_that_failed(engine, scripts):
    assert "SyntaxError" in engine.run("def")
    mistake = engine.run("import webapp\n\n1 / 0\n")
    assert mistake.startswith("Traceback") and 'File "app.py", line 3' in mistake
    assert "engine" not in mistake
    assert "AttributeError" in engine.run("x = 1")
    source = examples_of(scripts)["Blocks and errors"][1]
    assert engine.run(source) == ""
    answer = json.loads(engine.send("GET", "/broken?a=1", "", ""))
    assert answer["head"].startswith("500 ")
    assert 'return context.request.query["a"] / 2' in answer["log"]
    assert json.loads(engine.send("GET", "/admin/users?key=tea", "", ""))["log"] == ""


def test_playground_loads_only_what_lies_beside_it(scripts):
    page = PAGE.read_text(encoding="utf-8")
    assert not re.search(r"https?:|//\w", page)
    assert [attributes["src"] for attributes, _ in scripts if "src" in attributes] == [
        "pyodide/pyodide.js"
    ]


# A page without a browser: elements with the few attributes that the playground uses.
NODE = """
const fs = require("fs");
const [root, pyodide] = process.argv.slice(2);
const page = fs.readFileSync(root + "/examples/playground.html", "utf8");
const scripts = [...page.matchAll(/<script([^>]*)>([^]*?)<\\/script>/g)];
const element = (text, attributes = "") => ({
  textContent: text, value: "", selectedIndex: 0, disabled: true, listeners: {},
  getAttribute: (name) => attributes.match(new RegExp(name + '="([^"]*)"'))[1],
  addEventListener(name, listener) { this.listeners[name] = listener; },
  append() {},
});
const parts = {engine: element(scripts.find((s) => s[1].includes('id="engine"'))[2])};
const part = (id) => (parts[id] ??= element(""));
globalThis.document = {
  getElementById: part,
  createElement: () => element(""),
  querySelectorAll: () =>
    scripts.filter((s) => s[1].includes('class="example"')).map((s) => element(s[2], s[1])),
};
globalThis.fetch = async (name) =>
  ({ok: name === "../webapp.py", text: async () => fs.readFileSync(root + "/webapp.py", "utf8")});
globalThis.loadPyodide = () => require(pyodide).loadPyodide();
(0, eval)(scripts.find((s) => s[1].includes('id="page"'))[2]);
(async () => {
  while (part("state").textContent === "") await new Promise((done) => setTimeout(done, 20));
  const told = [part("state").textContent];
  const ask = (example, path) => {
    part("example").selectedIndex = example;
    part("example").listeners.change();
    part("method").value = "GET";
    part("path").value = path;
    part("send").listeners.click();
    told.push(part("answer").textContent, part("log").textContent);
  };
  ask(0, "/hello/Ada");
  ask(2, "/broken?a=1");
  ask(4, "/");
  ask(3, "/");
  part("send").listeners.click();
  told.push(part("answer").textContent);
  part("editor").value = "1 / 0";
  part("run").listeners.click();
  told.push(part("answer").textContent);
  console.log(JSON.stringify(told));
})();
"""


def find_pyodide(node):
    """Return the path of pyodide.js: beside the page, or where node finds packages."""
    beside = PAGE.with_name("pyodide") / "pyodide.js"
    if beside.exists():
        return str(beside)
    found = subprocess.run(
        [node, "-p", "require.resolve('pyodide/pyodide.js')"], capture_output=True, text=True
    )
    return found.stdout.strip()


def test_playground_runs_in_pyodide(tmp_path):
    node = shutil.which("node")
    pyodide = node and find_pyodide(node)
    if not pyodide:
        pytest.skip("needs node and pyodide (NODE_PATH=.../node_modules)")
    program = tmp_path / "page.js"
    program.write_text(NODE, encoding="utf-8")
    done = subprocess.run(
        [node, str(program), str(ROOT), pyodide], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    state, hello, log, broken, trace, stream, _, _, _, visit, mistake = json.loads(done.stdout)
    assert state == "Python is ready."
    assert hello.startswith("200 OK\n") and hello.endswith("\n\nHello Ada") and log == ""
    assert broken.startswith("500 ") and 'return context.request.query["a"] / 2' in trace
    assert stream.endswith("\n\n0\n1\n2\n") and visit.endswith("\n\nvisit 2")
    assert 'File "app.py", line 1' in mistake and "ZeroDivisionError" in mistake
