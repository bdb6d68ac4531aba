"""Measure webapp.py: the framework beside other frameworks, the server beside a raw loop and other
servers.

    python3 .ci/instruments/benchmark.py                      # everything: about five minutes
    python3 .ci/instruments/benchmark.py --only hello,differ  # rows by their beginnings
    python3 .ci/instruments/benchmark.py --compare old.py     # with another webapp.py
    python3 .ci/instruments/benchmark.py --servers waitress   # other servers, with Falcon
    python3 .ci/instruments/benchmark.py --quick              # seconds; no figures
    python3 .ci/instruments/benchmark.py --plain DIRECTORY    # with a Falcon without Cython
    python3 .ci/instruments/benchmark.py --python pypy3       # hello by another Python, too

Install Bottle, Falcon, Flask, uWSGI, Waitress, cheroot and gunicorn first. Missing ones are left
out. The exit status is 1 if a row misses its limit, or if webapp.py gives a wrong answer.

The first table calls an application as a server does, with a new copy of the environment for each
request. The second table goes through sockets, with connections that are kept. `base` is what the
ratio divides by: the raw loop, which looks for an empty line, understands nothing, and sends a
constant; for uploads uWSGI with Falcon; for the access log the same server without it; for
a 304 the same server's hello; for another Python the hello by this one.

The third table has handlers that wait, as for a query, at 32 connections. Its figures are answers
in a second, and the base is Waitress with 32 threads. In the mixture nine of ten requests do not
wait, and one waits for 20 ms. The next row has the milliseconds that half of the quick ones take at
most. On a free-threaded build, the last row has a handler that computes for 2 ms: the base is the
same server on one core, and the others use all cores.

- *The same hello* repeats one request with five header fields, byte for byte.
- *Different requests* are 1,000 requests as a proxy passes them on from browsers: thirteen header
  fields, with different paths, queries, cookies, referrers, addresses and request ids. The answer
  is a parameter of the path.
- Forms have the boundary of a browser: `----WebKitFormBoundary` and 16 characters.
- *Pages* are made by `html` and `Markup.format`, by Bottle's SimpleTemplate, by Jinja (the column
  of Flask), and by markupsafe's `format` (the column of Falcon). The ratio is that to Jinja.
- *A look of --reload* finds out whether a file has changed, beside 20,000 folders without
  modules. It is compared with Werkzeug's reloader (the column of Flask).
- *Ten things* are those that handlers do most, as the manuals of webapp.py, Bottle and Flask say to
  do them: `--only ten`.

How it measures, and why:

- A figure is processor time, because rates on a shared machine vary by a factor of three. The
  figure is that of the server alone. Only rows with slow handlers count requests in a second.
- Everybody is measured once in each round, so a machine that slows down slows down everybody. A
  figure is the median of the rounds. A ratio is the median of the ratios within the rounds.
- Each framework and each server has a process of its own. Servers and clients run on different
  cores where the system allows it. The garbage collector is on, but objects from before a round are
  frozen.
- Each answer is checked before it is timed.

Carry over ratios, never microseconds, and keep them in proportion: one question to a database takes
500 µs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.util
import inspect
import io
import itertools
import json
import logging
import os
import platform
import random
import re
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller, truediv
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

# Measured, unless it is not there: then the installed one.
WEBAPP = Path(__file__).resolve().parents[2] / "webapp.py"
HELLO = "Hello World"
DOCUMENT = {"id": 7, "name": "Ada", "tags": ["a", "b", "c"], "active": True, "score": 1.5}
SLOW = 0.05  # seconds that the slow handler takes
WAITS = (0.3, 1, 3, 5, 8, 20)  # milliseconds
CROWD = 32  # connections to handlers that wait, and threads of the servers beside ours
BOUNDARY = "----WebKitFormBoundary7MA4YWxkTrZu0gWs"

# ---- requests ------------------------------------------------------------------------------------

Sink = type("Sink", (io.TextIOBase,), {"write": lambda self, text: len(text)})
ENVIRON = {
    **{
        "SCRIPT_NAME": "",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
    },
    **{
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": "50000",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
    },
    **{
        "wsgi.errors": Sink(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    },
}
PLAIN = {
    "Host": "127.0.0.1",
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "Accept-Language": "en-GB,en;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}


def browser(number):
    """Return the header fields of a browser behind a proxy; each number gives other values of the
    same length."""
    chance = random.Random(number)
    token = [f"{chance.getrandbits(128):032x}" for _ in range(4)]
    return {
        "Host": "shop.example",
        "X-Forwarded-For": f"203.0.113.{number % 150 + 100}",
        "X-Forwarded-Proto": "https",
        "X-Request-Id": token[0],
        "User-Agent": "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 "
        f"(KHTML, like Gecko) "
        f"Chrome/{chance.randint(100, 149)}.0.0.0 Safari/537.36",
        "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,"
        "image/avif,image/webp,*/*;q=0.8",
        "Accept-Language": "en-GB,en;q=0.9,de;q=0.8",
        "Accept-Encoding": "gzip, deflate, br, zstd",
        "Referer": f"https://shop.example/lists/{token[1][:12]}?page={number % 90 + 10}",
        "Cookie": f"session={token[2]}; theme=dark; seen={token[3]}",
        "Sec-Fetch-Dest": "document",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Site": "same-origin",
    }


class Request(NamedTuple):
    """A request, what the body of the right answer contains without its spaces, and its status."""

    path: str
    answer: str = ""
    status: int = 200
    method: str = "GET"
    headers: dict[str, str] = PLAIN
    body: bytes = b""

    def environ(self):
        path, _, query = self.path.partition("?")
        environ = {
            **ENVIRON,
            "REQUEST_METHOD": self.method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
        }
        for name, value in self.headers.items():
            environ[
                "HTTP_" * (not name.startswith("Content-")) + name.upper().replace("-", "_")
            ] = value
        return {**environ, "wsgi.input": io.BytesIO(self.body)}

    def payload(self):
        lines = [f"{name}: {value}" for name, value in self.headers.items()]
        return (
            "\r\n".join([f"{self.method} {self.path} HTTP/1.1", *lines, "", ""]).encode()
            + self.body
        )

    def check(self, status, body):
        if status != self.status or self.answer.replace(" ", "") not in body.decode().replace(
            " ", ""
        ):
            raise ValueError(f"{self.method} {self.path} answers {status} and {body[:60]!r}")


def post(path, answer, content_type, body):
    headers = {**browser(0), "Content-Type": content_type, "Content-Length": str(len(body))}
    return Request(path, answer, 200, "POST", headers, body)


def upload(count, size):
    """Make a form of files of random bytes; the answer is the sum of their sizes."""
    disposition = 'Content-Disposition: form-data; name="file"; filename="a.bin"'
    head = f"--{BOUNDARY}\r\n{disposition}\r\nContent-Type: x/y\r\n\r\n"
    body = (
        head.encode() + random.Random(0).randbytes(size) + b"\r\n"
    ) * count + f"--{BOUNDARY}--\r\n".encode()
    return post("/upload", str(count * size), f"multipart/form-data; boundary={BOUNDARY}", body)


NOUNS = (
    "issues pulls commits branches labels releases hooks keys teams forks events gists orgs feeds "
    "tags trees blobs"
)
SHAPES = """GET /*|POST /*|GET /*/latest|GET /*/{id}|PUT /*/{id}|DELETE /*/{id}|\
GET /*/{id}/comments/{number}|GET /users/{user}/*|\
GET /users/{user}/*/{id}|DELETE /users/{user}/*/{id}"""
# Method and pattern of 200 routes, as a large API has them.
ROUTES = [
    s.replace("*", noun).split()
    for noun in f"{NOUNS} refs notes stars".split()
    for s in SHAPES.split("|")
]

# With these, there are more than 300. A page has links to twenty of them.
LINKED = [f"/linked/part-{n}/{{number}}/more" for n in range(100)]
FIRST_LINK = "/linked/part-0/7/more"

# ---- applications: each as its documentation says, in its fastest reasonable configuration -------

SIZE = methodcaller("seek", 0, os.SEEK_END)  # of a file
TALLY = itertools.count()  # every hook takes a number, so that it can be told how many ran


RECORDS = [
    (n, f"Person <{n}>", f"person{n}@example.org", n * 1.25, "tea & milk" if n % 3 else "coffee")
    for n in range(1000)
]
LISTS = [[(n, f"part {n} & {m}") for n in range(20)] for m in range(50)]
DOCUMENTS = [dict(zip(("id", "name", "mail", "price", "likes"), record)) for record in RECORDS]
# The same two pages as templates of webapp.py, of Jinja, and of Bottle's SimpleTemplate.
OUR_ROW = "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{}</td></tr>"
OUR_LINK, OUR_LIST = '<li><a href="/{}">{}</a></li>', "<li><ul>{}</ul></li>"
JINJA_ROWS = """<table>{% for a, b, c, d, e in rows %}\
<tr><td>{{ a }}</td><td>{{ b }}</td><td>{{ c }}</td><td>{{ "%.2f" % d }}</td><td>{{ e }}</td></tr>\
{% endfor %}</table>"""
JINJA_LISTS = """<ul>{% for links in lists %}<li><ul>{% for number, name in links %}\
<li><a href="/{{ number }}">{{ name }}</a></li>{% endfor %}</ul></li>{% endfor %}</ul>"""
SIMPLE_ROWS = r"""<table>\\
% for a, b, c, d, e in rows:
<tr><td>{{a}}</td><td>{{b}}</td><td>{{c}}</td><td>{{"%.2f" % d}}</td><td>{{e}}</td></tr>\\
% end
</table>"""
SIMPLE_LISTS = r"""<ul>\\
% for links in lists:
<li><ul>\\
% for number, name in links:
<li><a href="/{{number}}">{{name}}</a></li>\\
% end
</ul></li>\\
% end
</ul>"""
EVENT = "the kettle boils"
SECRET = "a secret of the benchmark, of no use elsewhere"


class Taken(Exception):
    """An exception that the applications answer with a 409."""


def throw(kind):
    # A new exception each time, because a second raise keeps the traceback of the first.
    raise kind("out of order")


def count(*_):
    next(TALLY)


def wait(milliseconds):
    time.sleep(float(milliseconds) / 1000)
    return HELLO


def compute(seconds=0.002):
    """Compute for so many seconds of the processor's time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))
    return HELLO


def item(number, sought):
    return {"number": number, "sought": sought, "items": [1, 2, 3]}


def load_webapp(path):
    """Import a copy of webapp.py as `webapp`."""
    if not Path(path).exists():
        return importlib.import_module("webapp")
    spec = importlib.util.spec_from_file_location("webapp", path)
    sys.modules["webapp"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def webapp_app(path=WEBAPP, hooked=False):
    WebApp = load_webapp(path).WebApp

    class Application(WebApp):
        def resolve_status_code(self, cause):
            return 409 if type(cause) is Taken else super().resolve_status_code(cause)

    def saying(text):
        return lambda context: text

    app = Application(secret_key=SECRET)
    for method, pattern in ROUTES:
        app.route(method, pattern, saying(pattern))
    app.get("/hello", lambda context: HELLO)
    app.get("/json", lambda context: DOCUMENT)
    app.get("/people/{name}", lambda context, name: name)
    app.get("/crash", lambda context: throw(RuntimeError))
    app.post("/form", lambda context: context.request.form["age"])
    app.post("/json", lambda context: context.request.json["name"])
    app.post(
        "/upload",
        lambda context: str(sum(file.size for file in context.request.files.getall("file"))),
    )
    with app.path("/taken") as block:
        block.error(lambda context, cause, status_code: "taken")
        block.get("", lambda context: throw(Taken))
    with app.path("/a") as a, a.path("/b") as b, b.path("/c") as c:
        for block in (a, b, c):
            block.before(count)
            block.after(count)
        c.get("/hello", lambda context: HELLO)
    app.get(
        "/items/{number:int}",
        lambda context, number: item(number, context.request.query.get("sought")),
    )
    app.get("/slow", lambda context: time.sleep(SLOW) or HELLO)
    app.get("/wait/{milliseconds}", lambda context, milliseconds: wait(milliseconds))
    app.get("/compute", lambda context: compute())
    app.post("/body", lambda context: str(len(context.request.body)))
    app.static("/files", os.environ.get("BENCHMARK_FILES", "."))
    add_pages(app, OUR_ROW, OUR_LINK, OUR_LIST)
    return app


def add_pages(app, row, link, links):
    """Add the pages and the ten things to an application of webapp.py."""
    from webapp import HttpException, Markup

    row, link, links = Markup(row), Markup(link), Markup(links)

    def table(context, records=RECORDS):
        rows = [row.format(*record) for record in records]
        context.response.html("<table>{rows}</table>", rows=rows)

    def lists(context):
        items = [links.format([link.format(*each) for each in part]) for part in LISTS]
        context.response.html("<ul>{items}</ul>", items=items)

    def search(context):
        query = context.request.query
        return f"{query['q']} {query.parse('page', int, default=1)}"

    def login(context):
        form = context.request.form
        return f"{form['name']} {form['city']}"

    def visits(context):
        context.session["visits"] = context.session.get("visits", 0) + 1
        return "counted"

    def refuse(context):
        raise HttpException(409)

    app.get("/page", table)
    app.get("/lists", lists)
    app.get("/search", search)
    app.post("/login", login)
    app.get("/small-page", lambda context: table(context, RECORDS[:10]))
    app.get("/visits", visits)
    app.get("/old", lambda context: context.response.redirect("/hello"))
    app.get("/rows", lambda context: DOCUMENTS)
    app.get("/event", lambda context: context.response.events([{"data": EVENT}]))
    app.get("/refuse", refuse)
    linked = [lambda context, number, text=text: text for text in LINKED]
    for pattern, view in zip(LINKED, linked):
        app.get(pattern, view)
    app.get("/links", lambda context: [context.url(view, number=7) for view in linked[::5]])


VIEWS = [  # of Bottle and Flask, which call them alike
    ("GET", "/hello", lambda: HELLO),
    ("GET", "/json", lambda: DOCUMENT),
    ("GET", "/people/<name>", lambda name: name),
    ("GET", "/crash", lambda: throw(RuntimeError)),
    *(
        (method, re.sub("{(.+?)}", r"<\1>", text), lambda text=text, **_: text)
        for method, text in ROUTES
    ),
]


def bottle_app(path=None, hooked=False):
    """Hooks are decorators of the route, because Bottle's own hooks belong to the whole
    application."""
    import bottle
    from bottle import HTTPError, request

    def counting(view):
        return lambda: (count(), view(), count())[1]

    def document(error):  # Bottle's own page is a template, and slow
        bottle.response.content_type = "application/json"
        return json.dumps({"error": error.body})

    bottle.BaseRequest.MEMFILE_MAX = 2**21
    app = bottle.Bottle()
    for method, pattern, view in VIEWS:
        app.route(pattern, method, view)
    app.get("/taken", callback=lambda: throw(lambda text: HTTPError(409, text)))
    app.post("/form", callback=lambda: request.forms["age"])
    app.post("/json", callback=lambda: request.json["name"])
    app.post(
        "/upload",
        callback=lambda: str(sum(SIZE(part.file) for part in request.files.getall("file"))),
    )
    app.get("/a/b/c/hello", callback=lambda: HELLO, apply=[counting] * 3)
    table = bottle.SimpleTemplate(SIMPLE_ROWS)
    lists = bottle.SimpleTemplate(SIMPLE_LISTS)

    def visits():
        count = (request.get_cookie("visits", secret=SECRET) or 0) + 1
        bottle.response.set_cookie("visits", count, secret=SECRET)
        return "counted"

    def documents():
        bottle.response.content_type = "application/json"
        return json.dumps(DOCUMENTS)

    def event():
        bottle.response.content_type = "text/event-stream"
        yield f"data: {EVENT}\n\n"

    app.get("/page", callback=lambda: table.render(rows=RECORDS))
    app.get("/lists", callback=lambda: lists.render(lists=LISTS))
    app.get("/search", callback=lambda: f"{request.query.q} {request.query.get('page', type=int)}")
    app.post("/login", callback=lambda: f"{request.forms.name} {request.forms.city}")
    app.get("/small-page", callback=lambda: table.render(rows=RECORDS[:10]))
    app.get("/visits", callback=visits)
    app.get("/old", callback=lambda: bottle.redirect("/hello", 303))
    app.get("/rows", callback=documents)
    root = os.environ.get("BENCHMARK_FILES", ".")
    app.get("/files/<name:path>", callback=lambda name: bottle.static_file(name, root))
    app.get("/event", callback=event)
    app.get("/refuse", callback=lambda: bottle.abort(409))
    app.error(409, lambda error: "taken")
    app.error(404, document)
    app.error(405, document)
    return app


def flask_app(path=None, hooked=False):
    """Hooks belong to three nested blueprints."""
    import flask
    from flask import request

    class InMemory(flask.Request):
        def _get_file_stream(self, *args, **kwargs):
            return io.BytesIO()

    app = flask.Flask("benchmark", static_folder=None)
    app.request_class = InMemory
    app.secret_key = SECRET
    # `from_string` of an environment does not escape; a page of Flask does.
    app.jinja_env.autoescape = True
    table = app.jinja_env.from_string(JINJA_ROWS)
    lists = app.jinja_env.from_string(JINJA_LISTS)
    root = os.environ.get("BENCHMARK_FILES", ".")

    def visits():
        flask.session["visits"] = flask.session.get("visits", 0) + 1
        return "counted"

    linked_patterns = [pattern.replace("{number}", "<number>") for pattern in LINKED]
    linked = [f"GET {pattern}" for pattern in linked_patterns]

    def event():
        events = (f"data: {text}\n\n" for text in [EVENT])
        return flask.Response(events, mimetype="text/event-stream")

    for method, pattern, view in [
        *VIEWS,
        ("GET", "/taken", lambda: throw(Taken)),
        ("POST", "/form", lambda: request.form["age"]),
        ("POST", "/json", lambda: request.get_json()["name"]),
        (
            "POST",
            "/upload",
            lambda: str(sum(SIZE(part.stream) for part in request.files.getlist("file"))),
        ),
        ("GET", "/page", lambda: table.render(rows=RECORDS)),
        ("GET", "/lists", lambda: lists.render(lists=LISTS)),
        (
            "GET",
            "/search",
            lambda: f"{request.args['q']} {request.args.get('page', 1, type=int)}",
        ),
        ("POST", "/login", lambda: f"{request.form['name']} {request.form['city']}"),
        ("GET", "/small-page", lambda: table.render(rows=RECORDS[:10])),
        ("GET", "/visits", visits),
        ("GET", "/old", lambda: flask.redirect("/hello", 303)),
        ("GET", "/rows", lambda: flask.jsonify(DOCUMENTS)),
        ("GET", "/files/<path:name>", lambda name: flask.send_from_directory(root, name)),
        ("GET", "/event", event),
        ("GET", "/refuse", lambda: flask.abort(409)),
        ("GET", "/links", lambda: [flask.url_for(name, number=7) for name in linked[::5]]),
        *(("GET", pattern, lambda number: str(number)) for pattern in linked_patterns),
    ]:
        app.add_url_rule(pattern, f"{method} {pattern}", view, methods=[method])
    app.register_error_handler(Taken, lambda error: ("taken", 409))
    app.register_error_handler(404, lambda error: ({"error": error.name}, 404))
    a, b, c = (flask.Blueprint(name, "benchmark", url_prefix="/" + name) for name in "abc")
    c.add_url_rule("/hello", "hello", lambda: HELLO)
    for parent, blueprint in ((b, c), (a, b), (app, a)):
        blueprint.before_request(count)
        blueprint.after_request(lambda response: count() or response)
        parent.register_blueprint(blueprint)
    return app


def falcon_app(path=None, hooked=False):
    """Hooks are middleware, which is faster than the hooks of one responder; only `hooked`
    applications have it."""
    import falcon

    class Hooks:
        def process_request(self, req, resp):
            next(TALLY)

        def process_response(self, req, resp, resource, succeeded):
            next(TALLY)

    def hello(req, resp):
        resp.text = HELLO

    def person(req, resp, name):
        resp.text = name

    def wait_for(req, resp, milliseconds):
        resp.text = wait(milliseconds)

    def document(req, resp):
        resp.content_type, resp.media = falcon.MEDIA_JSON, DOCUMENT

    def numbered(req, resp, number):
        resp.content_type, resp.media = falcon.MEDIA_JSON, item(number, req.get_param("sought"))

    def saying(make, status=falcon.HTTP_200):
        def respond(req, resp, *_, **params):
            resp.status, resp.text = status, make(req)

        return respond

    def with_markupsafe(make):
        """Answer with a page that markupsafe has made."""

        def respond(req, resp):
            import markupsafe

            resp.content_type, resp.text = falcon.MEDIA_HTML, make(markupsafe.Markup)

        return respond

    def table(markup):
        row = markup(OUR_ROW)
        rows = markup("").join([row.format(*record) for record in RECORDS])
        return markup("<table>{}</table>").format(rows)

    def lists(markup):
        link, links, nothing = markup(OUR_LINK), markup(OUR_LIST), markup("")
        parts = [links.format(nothing.join([link.format(*x) for x in part])) for part in LISTS]
        return markup("<ul>{}</ul>").format(nothing.join(parts))

    app = falcon.App(media_type=falcon.MEDIA_TEXT, middleware=[Hooks() for _ in range(3 * hooked)])
    routes = {}
    for method, pattern, responder in [
        ("GET", "/hello", hello),
        ("GET", "/a/b/c/hello", hello),
        ("GET", "/json", document),
        ("GET", "/people/{name}", person),
        ("GET", "/wait/{milliseconds}", wait_for),
        ("GET", "/crash", saying(lambda req: throw(RuntimeError))),
        ("GET", "/taken", saying(lambda req: throw(Taken))),
        ("POST", "/form", saying(lambda req: req.get_media()["age"])),
        ("POST", "/json", saying(lambda req: req.get_media()["name"])),
        (
            "POST",
            "/upload",
            saying(lambda req: str(sum(len(part.stream.read()) for part in req.get_media()))),
        ),
        ("GET", "/items/{number:int}", numbered),
        ("POST", "/body", saying(lambda req: str(len(req.bounded_stream.read())))),
        ("GET", "/page", with_markupsafe(table)),
        ("GET", "/lists", with_markupsafe(lists)),
        *((method, pattern, saying(lambda req, text=pattern: text)) for method, pattern in ROUTES),
    ]:
        routes.setdefault(pattern, {})["on_" + method.lower()] = responder
    for pattern, responders in routes.items():
        app.add_route(pattern, SimpleNamespace(**responders))
    app.add_error_handler(Taken, saying(lambda req: "taken", falcon.HTTP_409))
    return app


FRAMEWORKS = {
    "webapp": webapp_app,
    "other": webapp_app,
    "bottle": bottle_app,
    "falcon": falcon_app,
    "plain": falcon_app,
    "flask": flask_app,
}
PEERS = ("bottle", "falcon", "plain", "flask")
# Programs that look at the files of a program once in a while, as --reload does it.
LOOK = {
    "webapp": """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("webapp", FILE)
webapp = sys.modules["webapp"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(webapp)
look = webapp._Watch("").look
""",
    "flask": """
import flask, werkzeug._reloader
look = werkzeug._reloader.StatReloaderLoop().__enter__().run_step
""",
    "time": """
import time
look()
began = time.process_time()
for _ in range(5):
    look()
print((time.process_time() - began) * 200)
""",
}

# The smallest program with each framework; the row "start" waits for its first answer.
SMALLEST = {
    "webapp": """
import webapp
app = webapp.WebApp()
app.get("/")(lambda context: "Hello")
app.run(port=PORT)
""",
    "bottle": """
import bottle
app = bottle.Bottle()
app.get("/")(lambda: "Hello")
app.run(port=PORT)
""",
    "flask": """
import flask
app = flask.Flask("hello")
app.get("/")(lambda: "Hello")
app.run(port=PORT)
""",
    "falcon": """
import falcon
from wsgiref.simple_server import make_server
class Hello:
    def on_get(self, req, resp):
        resp.text = "Hello"
app = falcon.App()
app.add_route("/", Hello())
make_server("127.0.0.1", PORT, app).serve_forever()
""",
}
SMALLEST["other"] = SMALLEST["webapp"]

# ---- servers -------------------------------------------------------------------------------------


def raw_loop(port):
    """Answer everything with a constant, and understand nothing but the end of a head."""
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    missing = {}  # bytes of the bodies that are still to come
    while True:
        for (connection, *_), _ in selector.select():
            if connection is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                continue
            data = connection.recv(2**16)
            if not data:
                selector.unregister(connection)
                connection.close()
                continue
            if connection in missing:
                missing[connection] -= len(data)
                if missing[connection]:
                    continue
                del missing[connection]
            elif (end := data.find(b"\r\n\r\n")) < 0:
                continue
            elif data[:1] == b"P":
                missing[connection] = end + 4 + 2**20 - len(data)
                continue
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nHello World")


def serve_waitress(port):
    from waitress import serve

    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # each request that waits
    serve(falcon_app(), listen=f"127.0.0.1:{port}", threads=CROWD)


def serve_cheroot(port):
    from cheroot.wsgi import Server

    server = Server(("127.0.0.1", port), falcon_app(), CROWD)
    server.keep_alive_conn_limit = 64
    server.start()


def serve_gthread(port):
    from gunicorn.app.base import BaseApplication

    class Application(BaseApplication):
        def load_config(self):
            self.cfg.set("bind", f"127.0.0.1:{port}")
            self.cfg.set("worker_class", "gthread")
            self.cfg.set("threads", CROWD)
            self.cfg.set("keepalive", 60)
            self.cfg.set("post_fork", lambda arbiter, worker: end_with_parent())

        def load(self):
            return falcon_app()

    Application().run()


def serve_bjoern(port):
    import bjoern

    bjoern.run(falcon_app(), "127.0.0.1", port)


def serve_fastwsgi(port):
    import fastwsgi

    fastwsgi.run(falcon_app(), "127.0.0.1", port)


def start_uwsgi(port):
    """Start uWSGI with one process and 16 threads; return a function that tells its time."""
    program = shutil.which("uwsgi", path=Path(sys.executable).parent) or "uwsgi"
    command = [program, "--http11-socket", f"127.0.0.1:{port}", "--threads", "16", "--need-app"]
    command += ["--disable-logging", "--no-orphans", "--die-on-term", "--listen", "64"]
    command += ["--pythonpath", str(Path(__file__).parent)]
    command += ["--module", "benchmark:falcon_app()"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)

    def used():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return used


def end_with_parent():
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


SERVERS = {
    name[6:]: function for name, function in list(globals().items()) if name.startswith("serve_")
}


def serve(name, path, port):
    """Be a server; tell the seconds of processor time for each line of input, and end with it."""

    used = start_uwsgi(port) if name == "uwsgi" else time.process_time

    def answer():
        for _ in sys.stdin:
            print(used(), flush=True)
        os._exit(0)

    threading.Thread(target=answer, daemon=True).start()
    if name == "uwsgi":
        signal.pause()
    elif name == "loop":
        raw_loop(port)
    elif name in SERVERS:
        SERVERS[name](port)
    else:
        app, options = webapp_app(path), {}
        if "trusted_hosts" in inspect.signature(sys.modules["webapp"].Server).parameters:
            options = {"trusted_hosts": ["shop.example", "127.0.0.1"]}
        app.run(port=port, quiet=name.endswith("quiet"), **options)


# ---- rows of the tables --------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of a table: what is asked, what the ratio divides by, and what the ratio must not
    exceed. Below 0 the limit is the least number of answers in a second."""

    name: str
    title: str
    requests: list[Request]
    base: str = "best"  # "best", "bottle" and "flask" are frameworks, for rows in the process
    limit: float = 0  # none
    clients: int = 0  # connections; none: in the process
    hooks: int = 0  # that each request runs
    least: float = 0  # what the ratio must reach, if figures are answers in a second

    def is_rate(self):
        return self.limit < 0 or self.least > 0

    def waits(self):
        """Tell whether it belongs to the table of handlers that wait."""
        return self.base in ("waitress", "core")


@functools.cache
def rows():
    """Return all rows by name."""

    def varied(path, answer="", status=200, method="GET", **headers):
        return [
            Request(path, answer, status, method, {**browser(n), **headers}) for n in range(100)
        ]

    hello, slow = Request("/hello", HELLO), Request("/slow", HELLO)
    names = [f"person{n:03}" for n in range(100)]
    people = [Request(f"/people/{name}", name, headers=browser(n)) for n, name in enumerate(names)]
    routes = [
        Request(pattern, pattern, 200, method, browser(n))
        for n, (method, pattern) in enumerate(ROUTES)
    ]
    pairs = b"name=Ada+Lovelace&city=Grand+Rapids%2C+MI&mail=ada%40example.org&age=36&newsletter=on"
    form = post("/form", "36", "application/x-www-form-urlencoded", pairs)
    login = post("/login", "Ada Lovelace Grand Rapids", form.headers["Content-Type"], pairs)

    def document(count):
        people = [
            {"id": i, "name": f"person {i}", "tags": ["x", "y"], "score": i / 8}
            for i in range(count)
        ]
        text = json.dumps({"name": "Ada", "people": people})
        return post("/json", "Ada", "application/json", text.encode())

    queries = [f"?sought=tea{n % 900 + 100}&page={n % 90 + 10}" for n in range(1000)]
    different = [
        Request(f"/people/{1000 + n}{q}", f"{1000 + n}", headers=browser(n))
        for n, q in enumerate(queries)
    ]
    documents = [
        request._replace(path=request.path.replace("people", "items")) for request in different
    ]
    unchanged = Request("/files/large", status=304, headers={**PLAIN, "If-None-Match": "*"})
    sent = post("/body", "", "application/octet-stream", bytes(2**20))
    waiting = [
        Row(
            f"wait-{each:g}",
            f"each waits {each:g} ms",
            [Request(f"/wait/{each:g}", HELLO)],
            "waitress",
            clients=CROWD,
            least=1.2 if each <= 3 else 1.0,
        )
        for each in WAITS
    ]
    mixture = [hello] * 9 + [Request("/wait/20", HELLO)]
    waiting += [
        Row("mixed", "one of ten waits 20 ms", mixture, "waitress", clients=CROWD, least=1.0),
        Row("mixed-quick", "the quick ones, ms", mixture, "waitress", 1.0, CROWD),
    ]
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        computing = [Request("/compute", HELLO)]
        waiting.append(
            Row("cores", "each computes 2 ms", computing, "core", clients=CROWD, least=1.6)
        )
    return {
        row.name: row
        for row in [
            Row("hello", "hello", varied("/hello", HELLO), limit=0.65),
            Row("json", "a small JSON document", varied("/json", '"name": "Ada"'), limit=0.6),
            Row("parameter", "a path with one parameter", people, limit=0.75),
            Row("routes", "200 routes of a large API", routes, limit=0.8),
            Row(
                "404",
                "404 as JSON",
                varied("/nowhere", '{"', 404, Accept="application/json"),
                limit=0.5,
            ),
            Row("405", "405", varied("/hello", "", 405, "DELETE"), limit=0.6),
            Row("405-several", "405, two methods", varied("/issues", "", 405, "PUT"), limit=0.6),
            Row(
                "hooks",
                "three hooks before and after",
                varied("/a/b/c/hello", HELLO),
                limit=0.77,
                hooks=6,
            ),
            Row("exception", "an exception, 409 by a hook", varied("/taken", "taken", 409)),
            Row("crash", "an exception, 500, logged", varied("/crash", "", 500)),
            Row("form", "a form of five fields", [form], limit=1.5),
            Row("body", "a JSON body of 1 KiB", [document(15)], limit=1.3),
            Row("body-100", "a JSON body of 100 KiB", [document(1450)], limit=2.0),
            # Peers that can be told to keep an upload in memory are told to.
            Row("upload-1", "an upload of 1 MiB, one file", [upload(1, 2**20)], limit=1.0),
            Row("upload-4", "an upload of 1 MiB, four files", [upload(4, 2**18)], limit=1.1),
            Row("page", "a page of 1,000 rows", varied("/page", "Person"), "flask", 1.2),
            Row("lists", "a page of nested lists", varied("/lists", "part"), "flask", 1.2),
            Row("links", "20 links among 300 routes", varied("/links", FIRST_LINK), "flask", 1.0),
            Row("ten-query", "a query", varied("/search?q=tea&page=3", "tea 3")),
            Row("ten-form", "a form", [login]),
            Row("ten-page", "a page of ten rows", varied("/small-page", "Person")),
            Row("ten-session", "a session, read and written", varied("/visits", "counted")),
            Row("ten-redirect", "a redirect", varied("/old", "", 303)),
            Row("ten-rows", "a JSON list of 1,000 rows", varied("/rows", '"price":')),
            Row("ten-upload", "an upload of 10 KiB", [upload(1, 10 * 2**10)]),
            Row("ten-file", "a file of 100 KiB", varied("/files/large")),
            Row("ten-event", "an event", varied("/event", EVENT)),
            Row("ten-error", "an error", varied("/refuse", "", 409)),
            Row("look", "a look of --reload, ms", [], "flask", 2.0),
            Row("start", "start to first answer, ms", [], "bottle", 0.85),
            Row("start-plain", "the same without byte code", [], "bottle", 1.45),
            Row("equal-16", "the same hello, 16 connections", [hello], "loop", 3.4, 16),
            Row("different-16", "different requests, 16", different, "loop", 4.7, 16),
            Row("equal-64", "the same hello, 64 connections", [hello], "loop", 3.2, 64),
            Row("different-64", "different requests, 64", different, "loop", 4.3, 64),
            Row("documents-16", "different, JSON answers, 16", documents, "loop", 0, 16),
            Row("log", "hello, logged to a file, 16", [hello], "quiet", 1.35, 16),
            Row("304", "304 for a file, 16 connections", [unchanged, hello], "hello", 3, 16),
            Row("sent", "1 MiB sent, 16 connections", [sent], "uwsgi", 1.1, 16),
            Row("slow", "50 ms, 64 clients, answers a s", [slow], "", -1100, 64),
            Row("python", "hello by another Python, 16", [hello], "python", 0, 16),
            *waiting,
        ]
    }


# ---- in the process ------------------------------------------------------------------------------


def call(app, environ, body, start_response=lambda status, headers, exc_info=None: None):
    """Serve a request as a server does."""
    environ = environ.copy()
    if body:
        environ["wsgi.input"] = io.BytesIO(body)
    result = app(environ, start_response)
    answer = b"".join(result)
    if hasattr(result, "close"):
        result.close()
    return answer


def check(app, request, hooks):
    """Raise ValueError unless an application answers as it should, and runs so many hooks."""
    started, before = [], next(TALLY)
    body = call(app, request.environ(), request.body, lambda *arguments: started.extend(arguments))
    ran = next(TALLY) - before - 1
    request.check(int(started[0][:3]), body)
    if ran != hooks or (
        request.status == 405 and "allow" not in [name.lower() for name, _ in started[1]]
    ):
        raise ValueError(f"runs {ran} hooks, and has the headers {started[1]}")


def cookies_of(app, request):
    """Return the cookies of an answer as the field of a request that a browser sends back."""
    started = []
    call(app, request.environ(), request.body, lambda *arguments: started.extend(arguments))
    pairs = [value.partition(";")[0] for name, value in started[1] if name == "Set-Cookie"]
    return "; ".join(pairs)


def spools(app, request):
    """Tell whether an application puts a body into a temporary file."""
    paths, open_file = [], os.open

    def noting(path, *arguments, **options):
        paths.append(str(path))
        return open_file(path, *arguments, **options)

    os.open = noting
    try:
        call(app, request.environ(), request.body)
    finally:
        os.open = open_file
    return any(path.startswith(tempfile.gettempdir()) for path in paths)


def timed(app, asked, repeats):
    """Return the seconds of processor time that the requests take."""
    started = time.process_time()
    for _ in range(repeats):
        for environ, body in asked:
            call(app, environ, body)
    return time.process_time() - started


def work(name, path):
    """Be a framework: measure a row for each line of the input, and tell the microseconds that a
    request takes."""
    logging.basicConfig(stream=Sink())  # formats records, because that is what costs
    if name == "plain":
        sys.path.insert(0, path)
    prepared = {}
    for line in sys.stdin:
        row_name, seconds = json.loads(line)
        try:
            if not seconds:
                print(json.dumps(spools(prepared[row_name][0], rows()[row_name].requests[0])))
                sys.stdout.flush()
                continue
            if row_name not in prepared:
                row, tried = rows()[row_name], 1
                app = FRAMEWORKS[name](path, row.hooks > 0)
                for request in row.requests:
                    check(app, request, row.hooks)
                asked = [(request.environ(), request.body) for request in row.requests]
                if row_name == "ten-session":
                    for environ, _ in asked:
                        environ["HTTP_COOKIE"] = cookies_of(app, row.requests[0])
                while (elapsed := timed(app, asked, tried)) < seconds / 4:
                    tried *= 2
                prepared[row_name] = app, asked, max(1, round(tried * seconds / elapsed))
            app, asked, repeats = prepared[row_name]
            gc.collect()
            getattr(gc, "freeze", gc.collect)()  # PyPy has none
            print(json.dumps(timed(app, asked, repeats) / repeats / len(asked) * 1e6), flush=True)
        except Exception as error:
            print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)


# ---- through sockets -----------------------------------------------------------------------------


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection, length):
    while length:  # Windows may give less
        received = len(connection.recv(length, socket.MSG_WAITALL))
        if not received:
            raise ValueError("an answer broke off")
        length -= received


def ask_once(connection, request, constant=False):
    """Check an answer, unless the server always sends a constant; return its length."""
    connection.sendall(request.payload())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(2**16) or b"\r\n\r\n"
    head, _, body = answer.partition(b"\r\n\r\n")
    length = (
        0
        if not constant and request.status == 304
        else int(re.findall(rb"(?i)\ncontent-length: *(\d+)", head)[0])
    )
    while len(body) < length:
        body += connection.recv(2**16) or bytes(length)
    if not constant:
        request.check(int(head[9:12]), body)
    return len(head) + 4 + length


def ask_in_turn(connections, payloads, length, end):
    """Answer each answer with a request, one connection after the other; return the number of
    answers."""
    payloads, rounds = itertools.cycle(payloads), 0
    for connection in connections:
        connection.sendall(next(payloads))
    while time.perf_counter() < end:
        for connection in connections:
            receive(connection, length)
            connection.sendall(next(payloads))
        rounds += 1
    for connection in connections:
        receive(connection, length)
    return (rounds + 1) * len(connections)


def ask_in_threads(connections, *asked):
    """Do the same with each connection in a thread of its own."""
    with ThreadPoolExecutor(len(connections)) as pool:
        return sum(pool.map(lambda each: ask_in_turn([each], *asked), connections))


def ask_as_ready(connections, payloads, length, end):
    """Answer each answer with a request, whichever connection comes first; return the number of
    answers, and the seconds that each answer to the first payload took."""
    answers, quick = 0, []
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(connections):
            # Each connection begins at another place.
            state = SimpleNamespace(number=number * 7, began=0.0, left=0)
            selector.register(connection, selectors.EVENT_READ, state)

        def send(connection, state):
            state.number += 1
            state.left = length
            state.began = time.perf_counter()
            connection.sendall(payloads[state.number % len(payloads)])

        for key in [*selector.get_map().values()]:
            send(key.fileobj, key.data)
        open_ones = len(connections)
        while open_ones:
            for (connection, _, _, state), _ in selector.select():
                received = len(connection.recv(state.left))
                state.left -= received or 1
                if not received:
                    raise ValueError("an answer broke off")
                if state.left:
                    continue
                answers += 1
                now = time.perf_counter()
                if payloads[state.number % len(payloads)] is payloads[0]:
                    quick.append(now - state.began)
                if now < end:
                    send(connection, state)
                else:
                    open_ones -= 1
    return answers, quick


class Child:
    """This program in another process. It answers each line with a line, and ends with this
    process."""

    def __init__(self, *arguments, log=subprocess.DEVNULL, python=sys.executable, core=0):
        command = [python, __file__, *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        if core is None:
            use_all_cores(self.process.pid)
        else:
            choose_core(core, self.process.pid)

    def ask(self, *question):
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline() or '"ended"')

    def close(self):
        self.process.kill()
        self.process.communicate()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def wait_until_it_listens(process, port):
    """Return a connection to the port as soon as there is one."""
    end = time.perf_counter() + 60
    while process.poll() is None and time.perf_counter() < end:
        with contextlib.suppress(OSError):
            return connect(port)
        time.sleep(0.001)
    process.kill()
    process.wait()
    raise OSError("does not start")


class Clients:
    """The clients of a row at a server."""

    def __init__(self, child, port, request_list, row, constant):
        self.child, self.row, self.threads = child, row, row.name in ("sent", "slow")
        self.payloads = [request.payload() for request in request_list]
        self.connections = [connect(port) for _ in range(row.clients)]
        lengths = {ask_once(self.connections[0], request, constant) for request in request_list}
        if len(lengths) > 1:
            raise ValueError(f"{row.name} has answers of different lengths: {lengths}")
        (self.length,) = lengths

    def ask(self, seconds):
        """Return the microseconds of processor time that an answer costs the server, or what else
        the figure of the row is."""
        if self.row.waits():
            return self.ask_for_rate(seconds)
        ask = ask_in_threads if self.threads else ask_in_turn
        asked = self.connections, self.payloads, self.length
        ask(*asked, time.perf_counter() + seconds / 4)  # the windows of TCP grow only after a while
        before, began = self.child.ask(), time.perf_counter()
        answers = ask(*asked, began + seconds)
        elapsed, used = time.perf_counter() - began, self.child.ask() - before
        return answers / elapsed if self.row.is_rate() else used / answers * 1e6

    def ask_for_rate(self, seconds):
        """Return the answers in a second, or the milliseconds of the quick ones."""
        asked = self.connections, self.payloads, self.length
        ask_as_ready(*asked, time.perf_counter() + seconds / 4)
        began = time.perf_counter()
        answers, quick = ask_as_ready(*asked, began + seconds)
        elapsed = time.perf_counter() - began
        return answers / elapsed if self.row.is_rate() else statistics.median(quick) * 1e3

    def close(self):
        for connection in self.connections:
            connection.close()


# ---- measuring -----------------------------------------------------------------------------------

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def choose_core(number, pid=0):
    """Put a process on the first core or on the last, where the system lets us choose."""
    if CORES:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, {CORES[number]})


def use_all_cores(pid):
    if CORES:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, CORES)


class Bench:
    """Everybody that takes part: children are started when they are first needed, and all end
    together."""

    def __init__(self, options, directory, stack):
        self.options, self.directory, self.stack = options, directory, stack
        self.copies = {"webapp": WEBAPP, "other": options.compare}
        self.paths = {**self.copies, "plain": options.plain}
        self.children, self.ports = {}, {}

    def columns(self, row):
        """Name those that take part in a row."""
        ours = ["webapp", "other"] if self.options.compare else ["webapp"]
        if row.name.startswith("ten-"):
            return [*ours, "bottle", "flask"]
        if row.name == "look":
            return [*ours, "flask"]
        if row.base == "flask":
            return [*ours, "bottle", "falcon", "flask"]
        if row.base == "bottle":
            return [*ours, *(("bottle", "falcon", "flask")[: 1 if "plain" in row.name else 3])]
        if row.base == "best":
            return [*ours, *(who for who in PEERS if who != "plain" or self.options.plain)]
        others = []
        if row.base in ("loop", "uwsgi"):
            others = self.options.servers
        elif row.base == "waitress":
            others = ["cheroot", "gthread"]
        return [*(["base"] if row.base else []), *ours, *others]

    def measure(self, row, who, seconds):
        """Return a figure of one round."""
        if row.clients:
            return self.through_sockets(row, who, seconds)
        if row.requests:
            return self.worker(who).ask(row.name, seconds)
        if row.name == "look":
            return self.look(who)
        return self.start(row, who)

    def worker(self, who):
        return self.child(who, "--work", who, self.paths.get(who))

    def who_spools(self, row, rounds):
        """Say who keeps an upload in memory, and who puts it on the disk."""
        found = {who: self.worker(who).ask(row.name, 0) for who in rounds}
        for spooled, verb in ((False, "in memory"), (True, "on the disk")):
            names = [who for who in found if found[who] is spooled]
            if names:
                print(f"    {verb}: {', '.join(names)}")

    def child(self, key, *arguments, **options):
        if key not in self.children:
            self.children[key] = Child(*arguments, **options)
            self.stack.callback(self.children[key].close)
        return self.children[key]

    def through_sockets(self, row, who, seconds):
        request_list = row.requests[:1] if row.name == "304" else row.requests
        program = (
            f"{who} log" if row.name == "log" else f"{who} quiet" if who in self.copies else who
        )
        python, core = sys.executable, 0
        if who == "base":
            program = row.base if row.base in ("loop", "uwsgi", "waitress") else "webapp quiet"
            request_list = row.requests[-1:] if row.name == "304" else row.requests
        elif row.base == "core":
            program, core = f"{who} on all cores quiet", None
        elif row.base == "python":
            program, python = f"{who} by another Python quiet", self.options.python
        if program not in self.ports:
            self.ports[program] = port = free_port()
            log = subprocess.DEVNULL
            if "log" in program:
                log = os.open(Path(self.directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                self.stack.callback(os.close, log)
            path = self.copies.get(program.split()[0])
            options = {"log": log, "python": python, "core": core}
            child = self.child(program, "--serve", program, path, port, **options)
            wait_until_it_listens(child.process, port).close()
        clients = Clients(
            self.children[program], self.ports[program], request_list, row, program == "loop"
        )
        with contextlib.closing(clients):
            return clients.ask(seconds)

    def look(self, who):
        """Return the milliseconds of processor time for one look at the files of a program that
        lies beside 20,000 folders without modules."""
        root = Path(self.directory, "folders")
        if not root.exists():
            for numbers in itertools.product(range(27), repeat=3):
                Path(root, *map(str, numbers)).mkdir(parents=True)
            for folder, _, _ in os.walk(root):
                os.utime(folder, (1e9, 1e9))
            (root / "app.py").touch()
        source = LOOK[who if who == "flask" else "webapp"].replace(
            "FILE", repr(str(self.paths.get(who)))
        )
        command = [sys.executable, "-c", source + LOOK["time"]]
        environ = {**os.environ, "PYTHONPATH": ""}
        return float(subprocess.run(command, cwd=root, env=environ, stdout=-1, check=True).stdout)

    def start(self, row, who):
        """Return the milliseconds of processor time to the first answer (elapsed time where the
        system has no wait4).

        Webapp.py and Bottle are copied to a directory of their own: with byte code from the first
        time on, or never."""
        plain = row.name == "start-plain"
        folder = Path(self.directory, f"{row.name}-{who}")
        if not folder.exists():
            folder.mkdir()
            spec = importlib.util.find_spec("webapp" if who in self.copies else who)
            source = self.copies.get(who) or (spec and spec.origin)
            if not source:
                raise ImportError(f"{who} is not installed")
            if who in (*self.copies, "bottle"):
                shutil.copy(source, folder / f"{'bottle' if who == 'bottle' else 'webapp'}.py")
            if not plain:
                self.start(row, who)
        port, environ = free_port(), {**os.environ, "PYTHONDONTWRITEBYTECODE": "x" * plain}
        environ.pop("PYTHONPATH", None)  # `-c` finds what is in the folder
        program = SMALLEST[who].replace("PORT", str(port))
        began, nowhere = time.perf_counter(), subprocess.DEVNULL
        command = [sys.executable, "-c", program]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=nowhere, stderr=nowhere)
        choose_core(0, process.pid)
        with wait_until_it_listens(process, port) as connection:
            ask_once(connection, Request("/", "Hello"))
            elapsed = time.perf_counter() - began
            process.kill()
            if not hasattr(os, "wait4"):
                process.wait()
                return elapsed * 1e3
            _, process.returncode, used = os.wait4(process.pid, 0)
            return (used.ru_utime + used.ru_stime) * 1e3

    def rounds(self, row):
        """Measure everybody round by round; leave out those that are not installed or answer
        wrongly."""
        quick = self.options.quick
        by_clock = row.is_rate() or row.waits()
        seconds = 0.02 if quick else 0.05 if not row.clients else 1.0 if by_clock else 0.4
        rounds = {who: [] for who in self.columns(row)}
        for _ in range(1 if quick else 5 if by_clock else 11):
            for who in [*rounds]:
                try:
                    figure = self.measure(row, who, seconds)
                    if isinstance(figure, str):
                        raise ValueError(figure)
                    rounds[who].append(figure)
                except Exception as error:
                    print(f"{row.name} without {who}: {error!r}", file=sys.stderr)
                    del rounds[who]
        return rounds


# ---- tables --------------------------------------------------------------------------------------


def ratio(rounds, who, than):
    """Return the median of the ratios within the rounds, or None if one of the two has none."""
    # The clock of Windows is coarse.
    if not rounds.get(who) or not rounds.get(than) or not all(rounds[than]):
        return None
    return statistics.median(map(truediv, rounds[who], rounds[than]))


def lay_out(row, rounds, columns, compared):
    """Return a line of a table, and whether the row misses its limit."""
    medians = {who: statistics.median(figures) for who, figures in rounds.items() if figures}
    rivals = [who for who in PEERS if who in medians]
    best = min(rivals, key=medians.get, default="")
    frameworks = {"best": best, "bottle": "bottle", "flask": "flask", "": ""}
    base = frameworks.get(row.base, "base")
    found = ratio(rounds, "webapp", base)
    if row.limit < 0:
        missed, limit = medians.get("webapp", 0) < -row.limit, f">{-row.limit:,.0f}"
    elif row.least:
        missed, limit = found is not None and found < row.least, f">{row.least:.2f}"
    else:
        missed = bool(row.limit and found and found > row.limit)
        limit = f"{row.limit:.2f}" if row.limit else ""
    cells = [
        f"{medians[who]:,.{0 if medians[who] >= 1000 else 1}f}" if who in medians else ""
        for who in columns
    ]
    cells += ["" if found is None else f"{found:.2f}", limit]
    if compared:
        by = ratio(rounds, "webapp", "other")
        cells.append("" if by is None else f"{by:.2f}")
    line = f"{row.title:<31}" + "".join(f"{cell:>9}" for cell in cells)
    return line + " *" * missed, missed


def falcons(plain):
    """Yield the column and the directory of each Falcon."""
    spec = importlib.util.find_spec("falcon")
    if spec:
        yield "falcon", Path(spec.origin).parent
    if plain:
        yield "plain", Path(plain, "falcon")


def main():
    """Measure what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", metavar="NAME,...", help=f"beginnings of {', '.join(rows())}"
    )
    parser.add_argument(
        "--compare", metavar="FILE", help="another copy of webapp.py: the column 'other'"
    )
    parser.add_argument(
        "--servers", default="", metavar="NAME,...", help=f"up to three of {', '.join(SERVERS)}"
    )
    parser.add_argument(
        "--plain", metavar="DIRECTORY", help="that has a Falcon without Cython: the column 'plain'"
    )
    parser.add_argument(
        "--python", metavar="FILE", help="another Python, for the row of a hello by it"
    )
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    for name, count_of_values in (("--work", 2), ("--serve", 3)):
        parser.add_argument(name, nargs=count_of_values, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(*options.work)
    if options.serve:
        return serve(*options.serve[:2], int(options.serve[2]))
    options.servers = [name for name in options.servers.split(",") if name in SERVERS][:3]
    options.compare = options.compare and str(Path(options.compare).resolve())
    chosen = [row for row in rows().values() if row.name.startswith(tuple(options.only.split(",")))]
    if not options.python:
        chosen = [row for row in chosen if row.base != "python"]
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}; * "
        "misses its limit"
    )
    for name, folder in falcons(options.plain):
        modules = [*folder.rglob("*.so"), *folder.rglob("*.pyd")]
        print(
            f"the column {name!r} is a Falcon with {len(modules)} modules that Cython has compiled"
        )
    ours, end = ["webapp"], ["ratio", "limit"]
    if options.compare:
        ours, end = ["webapp", "other"], ["ratio", "limit", "/other"]
    peers = [who for who in PEERS if who != "plain" or options.plain]
    tables = [
        ("in the process: µs of CPU", [*ours, *peers], [row for row in chosen if not row.clients]),
        (
            "through sockets: µs of CPU",
            ["base", *ours, *options.servers],
            [row for row in chosen if row.clients and not row.waits()],
        ),
        (
            "handlers that wait: answers a s",
            ["base", *ours, "cheroot", "gthread"],
            [row for row in chosen if row.waits()],
        ),
    ]
    failed = broken = 0
    # A core of their own for the clients, which are this process.
    choose_core(-1)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "large").write_bytes(bytes(100 * 2**10))
        os.environ["BENCHMARK_FILES"] = directory
        with contextlib.ExitStack() as children:
            bench = Bench(options, directory, children)
            for title, columns, part in tables:
                if part:
                    print(f"\n{title:<31}" + "".join(f"{name:>9}" for name in [*columns, *end]))
                for row in part:
                    rounds = bench.rounds(row)
                    line, missed = lay_out(row, rounds, columns, options.compare)
                    print(line, flush=True)
                    if row.name.startswith("upload"):
                        bench.who_spools(row, rounds)
                    failed += missed
                    broken += "webapp" not in rounds
    return 1 if broken or (failed and not options.quick) else 0


if __name__ == "__main__":
    sys.exit(main())
