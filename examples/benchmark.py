"""Measure webapp.py: its framework beside other frameworks, its server beside other servers.

    python3 examples/benchmark.py                         # everything: some eight minutes
    python3 examples/benchmark.py --only hello,server-16  # what begins with these names; --help lists them
    python3 examples/benchmark.py --quick                 # seconds: does it run? Its figures mean nothing

Whatever else is installed takes part. A ratio stands before its goal, and what misses it says so.

How it measures, and why so:

- Rounds are interleaved: everybody is measured once, then all of them again. A machine that slows down slows down for
  everybody. A figure is the median of its rounds, a ratio the median of the ratios *within* the rounds.
- What can be is measured in processor time (µs a request), as rates of a shared machine swing by a factor of three.
- Answers are compared with what is expected. A wrong answer has no speed.
- In the process, an application is called as a server calls it, with a fresh copy of the environment. Each framework
  has a process of its own: none pays for another's modules or garbage. The garbage collector stays on, but what was
  alive before a round is frozen, so that nobody pays for the size of this program.
- Through sockets, server and clients have a process each, and a core each where the system lets them choose, and
  connections are kept. `loop` is the least that can answer: it waits in a selector, looks for an empty line, and sends
  a constant. `quiet` is webapp.py without its access log. `50 %` and `99 %` are milliseconds that a client waits.
- For the slow handler a client waits so many rounds of it: `first`, when all connections ask for the first time, at
  once, and `then`. `beside` are the milliseconds of one more client that asks for hello now and then, `alone` those
  that it had to wait just before, on the same connection, when nobody else asked.

Carry over ratios, never microseconds, and keep them in proportion: a handler that asks a database one question spends
500 µs on it.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import gc
import io
import itertools
import json
import logging
import multiprocessing
import os
import platform
import random
import re
import selectors
import shlex
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

# Finds webapp.py in the folder above; where it is installed, or lies beside your program, leave this out.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# ---- what is asked ---------------------------------------------------------------------------------------------------

HEADERS = {
    "Host": "127.0.0.1",
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "Accept-Language": "en-GB,en;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}
Sink = type("Sink", (io.TextIOBase,), {"write": lambda self, text: len(text)})  # takes what is written, and forgets it
ENVIRON = {
    **{"SCRIPT_NAME": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1"},
    **{"REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "50000", "wsgi.version": (1, 0), "wsgi.url_scheme": "http"},
    **{"wsgi.errors": Sink(), "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False},
}


class Request(NamedTuple):
    """A request, what the body of the right answer contains (spaces do not count), and its status."""

    path: str
    answer: str = ""
    status: int = 200
    method: str = "GET"
    headers: dict[str, str] = {}
    body: bytes = b""

    def environ(self):
        path, _, query = self.path.partition("?")
        environ = {**ENVIRON, "REQUEST_METHOD": self.method, "PATH_INFO": path, "QUERY_STRING": query}
        for name, value in {**HEADERS, **self.headers}.items():
            environ["HTTP_" * (not name.startswith("Content-")) + name.upper().replace("-", "_")] = value
        return {**environ, "wsgi.input": io.BytesIO(self.body)}

    def payload(self):
        lines = [f"{name}: {value}" for name, value in {**HEADERS, **self.headers}.items()]
        return "\r\n".join([f"{self.method} {self.path} HTTP/1.1", *lines, "", ""]).encode() + self.body

    def check(self, status, body):
        if status != self.status or self.answer.replace(" ", "") not in body.decode().replace(" ", ""):
            raise ValueError(f"answers {status} and {body[:60]!r}")


def post(path, answer, content_type, body):
    return Request(path, answer, 200, "POST", {"Content-Type": content_type, "Content-Length": str(len(body))}, body)


def upload(count, size):
    """Make a form of files of random bytes; the answer is the sum of their sizes."""
    head = b'--limit\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\nContent-Type: x/y\r\n\r\n'
    body = (head + random.Random(0).randbytes(size) + b"\r\n") * count + b"--limit--\r\n"
    return post("/upload", str(count * size), "multipart/form-data; boundary=limit", body)


NOUNS = "issues pulls commits branches labels releases hooks keys teams forks events gists orgs feeds tags trees blobs"
SHAPES = """GET /*|POST /*|GET /*/latest|GET /*/{id}|PUT /*/{id}|DELETE /*/{id}|GET /*/{id}/comments/{number}|\
GET /users/{user}/*|GET /users/{user}/*/{id}|DELETE /users/{user}/*/{id}"""
# Method and pattern of 200 routes, as a large API has them.
ROUTES = [s.replace("*", noun).split() for noun in f"{NOUNS} refs notes stars".split() for s in SHAPES.split("|")]

# ---- who answers: each as its documentation says, in its fastest reasonable configuration ----------------------------

HELLO = "Hello World"
DOCUMENT = {"id": 7, "name": "Ada", "tags": ["a", "b", "c"], "active": True, "score": 1.5}
SLOW = 0.05  # seconds that the slow handler takes
SIZE = methodcaller("seek", 0, os.SEEK_END)  # of a file
TALLY = itertools.count()  # every hook takes a number, so that it can be told how many ran
Taken, Busy = (type(name, (Exception,), {}) for name in ("Taken", "Busy"))  # which are a 409 and a 503


def throw(kind):
    raise kind("out of order")  # a new one, as one that is raised twice drags its old traceback along


def log(error):
    """Do what webapp.py does for a 5xx; the others leave it to the application."""
    logging.getLogger("application").error("busy", exc_info=error)


def count(*_):
    next(TALLY)


def item(number, sought):
    return {"number": number, "sought": sought, "items": [1, 2, 3]}


def webapp_app(hooked=False):
    from webapp import WebApp

    class Application(WebApp):
        def resolve_status_code(self, cause):
            return {Taken: 409, Busy: 503}.get(type(cause)) or super().resolve_status_code(cause)

    def saying(text):
        return lambda context: text

    app = Application()
    for method, pattern in ROUTES:
        app.route(method, pattern, saying(pattern))
    app.get("/hello", lambda context: HELLO)
    app.get("/json", lambda context: DOCUMENT)
    app.get("/people/{name}", lambda context, name: name)
    app.get("/crash", lambda context: throw(RuntimeError))
    app.post("/form", lambda context: context.request.form["age"])
    app.post("/json", lambda context: context.request.json["name"])
    app.post("/upload", lambda context: str(sum(file.size for file in context.request.files.getall("file"))))
    with app.path("/taken") as block:
        block.error(lambda context, cause, status_code: "taken")
        block.get("", lambda context: throw(Taken))
    with app.path("/busy") as block:
        block.error(lambda context, cause, status_code: "busy")
        block.get("", lambda context: throw(Busy))
    with app.path("/a") as a, a.path("/b") as b, b.path("/c") as c:
        for block in (a, b, c):
            block.before(count)
            block.after(count)
        c.get("/hello", lambda context: HELLO)
    app.get("/items/{number:int}", lambda context, number: item(number, context.request.query.get("sought")))
    app.get("/slow", lambda context: time.sleep(SLOW) or HELLO)
    app.post("/body", lambda context: str(len(context.request.body)))
    app.static("/files", ".")
    return app


VIEWS = [  # of Bottle and Flask, which call them alike
    ("GET", "/hello", lambda: HELLO),
    ("GET", "/json", lambda: DOCUMENT),
    ("GET", "/people/<name>", lambda name: name),
    ("GET", "/crash", lambda: throw(RuntimeError)),
    *((method, re.sub("{(.+?)}", r"<\1>", text), lambda text=text, **_: text) for method, text in ROUTES),
]


def bottle_app(hooked=False):
    """Hooks are decorators of the route, as its own are the whole application's; error handlers go by status."""
    import bottle
    from bottle import HTTPError, request

    def counting(view):
        return lambda: (count(), view(), count())[1]

    def document(error):  # its own page is a template, and slow
        bottle.response.content_type = "application/json"
        return json.dumps({"error": error.body})

    bottle.BaseRequest.MEMFILE_MAX = 2**21
    app = bottle.Bottle()
    for method, pattern, view in VIEWS:
        app.route(pattern, method, view)
    app.get("/taken", callback=lambda: throw(lambda text: HTTPError(409, text)))
    app.get("/busy", callback=lambda: throw(lambda text: HTTPError(503, text)))
    app.post("/form", callback=lambda: request.forms["age"])
    app.post("/json", callback=lambda: request.json["name"])
    app.post("/upload", callback=lambda: str(sum(SIZE(part.file) for part in request.files.getall("file"))))
    app.get("/a/b/c/hello", callback=lambda: HELLO, apply=[counting] * 3)
    app.error(409, lambda error: "taken")
    app.error(503, lambda error: log(error) or "busy")
    app.error(404, document)
    app.error(405, document)
    return app


def flask_app(hooked=False):
    """Hooks belong to three nested blueprints."""
    import flask
    from flask import request

    class InMemory(flask.Request):
        def _get_file_stream(self, *args, **kwargs):
            return io.BytesIO()

    app = flask.Flask("benchmark", static_folder=None)
    app.request_class = InMemory
    for method, pattern, view in [
        *VIEWS,
        ("GET", "/taken", lambda: throw(Taken)),
        ("GET", "/busy", lambda: throw(Busy)),
        ("POST", "/form", lambda: request.form["age"]),
        ("POST", "/json", lambda: request.get_json()["name"]),
        ("POST", "/upload", lambda: str(sum(SIZE(part.stream) for part in request.files.getlist("file")))),
    ]:
        app.add_url_rule(pattern, f"{method} {pattern}", view, methods=[method])
    app.register_error_handler(Taken, lambda error: ("taken", 409))
    app.register_error_handler(Busy, lambda error: (log(error) or "busy", 503))
    app.register_error_handler(404, lambda error: ({"error": error.name}, 404))
    a, b, c = (flask.Blueprint(name, "benchmark", url_prefix="/" + name) for name in "abc")
    c.add_url_rule("/hello", "hello", lambda: HELLO)
    for parent, blueprint in ((b, c), (a, b), (app, a)):
        blueprint.before_request(count)
        blueprint.after_request(lambda response: count() or response)
        parent.register_blueprint(blueprint)
    return app


def falcon_app(hooked=False):
    """Hooks are middleware, faster by a third than those of one responder, so only that application has them."""
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

    def document(req, resp):
        resp.content_type, resp.media = falcon.MEDIA_JSON, DOCUMENT

    def numbered(req, resp, number):
        resp.content_type, resp.media = falcon.MEDIA_JSON, item(number, req.get_param("sought"))

    def saying(make, status=falcon.HTTP_200):
        def respond(req, resp, *_, **params):
            resp.status, resp.text = status, make(req)

        return respond

    app = falcon.App(media_type=falcon.MEDIA_TEXT, middleware=[Hooks() for _ in range(3 * hooked)])
    routes = {}
    for method, pattern, responder in [
        ("GET", "/hello", hello),
        ("GET", "/a/b/c/hello", hello),
        ("GET", "/json", document),
        ("GET", "/people/{name}", person),
        ("GET", "/crash", saying(lambda req: throw(RuntimeError))),
        ("GET", "/taken", saying(lambda req: throw(Taken))),
        ("GET", "/busy", saying(lambda req: throw(Busy))),
        ("POST", "/form", saying(lambda req: req.get_media()["age"])),
        ("POST", "/json", saying(lambda req: req.get_media()["name"])),
        ("POST", "/upload", saying(lambda req: str(sum(len(part.stream.read()) for part in req.get_media())))),
        ("GET", "/items/{number:int}", numbered),
        ("POST", "/body", saying(lambda req: str(len(req.bounded_stream.read())))),
        *((method, pattern, saying(lambda req, text=pattern: text)) for method, pattern in ROUTES),
    ]:
        routes.setdefault(pattern, {})["on_" + method.lower()] = responder
    for pattern, responders in routes.items():
        app.add_route(pattern, SimpleNamespace(**responders))
    app.add_error_handler(Taken, saying(lambda req: "taken", falcon.HTTP_409))
    app.add_error_handler(Busy, saying(lambda req: log(True) or "busy", falcon.HTTP_503))
    app.add_static_route("/files", os.getcwd())
    return app


FRAMEWORKS = {"webapp": webapp_app, "bottle": bottle_app, "falcon": falcon_app, "flask": flask_app}

# Arguments of interpreters, which find this file as `benchmark`: the smallest program with each framework, our servers,
# and others that serve Falcon, with as many threads.
PROGRAMS = {
    line.partition(":")[0]: shlex.split(line.partition(":")[2])
    for line in """\
webapp: -c 'import webapp; app = webapp.WebApp(); app.get("/")(lambda context: "Hello"); app.run(port=PORT)'
bottle: -c 'import bottle; app = bottle.Bottle(); app.get("/")(lambda: "Hello"); app.run(port=PORT)'
flask: -c 'import flask; app = flask.Flask("hello"); app.get("/")(lambda: "Hello"); app.run(port=PORT)'
falcon: -c 'import falcon; from wsgiref.simple_server import make_server; \
Hello = type("Hello", (), {"on_get": lambda self, req, resp: setattr(resp, "text", "Hello")}); \
app = falcon.App(); app.add_route("/", Hello()); make_server("127.0.0.1", PORT, app).serve_forever()'
loop: -c 'import benchmark; benchmark.loop(PORT)'
quiet: -c 'import benchmark; benchmark.webapp_app().run(port=PORT, quiet=True)'
log to a file: -c 'import benchmark; benchmark.webapp_app().run(port=PORT)'
log to a pipe: -c 'import benchmark; benchmark.webapp_app().run(port=PORT)'
log to a terminal: -c 'import benchmark; benchmark.webapp_app().run(port=PORT)'
bjoern (C): -c 'import bjoern, benchmark; bjoern.run(benchmark.falcon_app(), "127.0.0.1", PORT)'
fastwsgi (C): -c 'import fastwsgi, benchmark; fastwsgi.run(benchmark.falcon_app(), "127.0.0.1", PORT)'
uWSGI (C): -c 'import os, sys; os.execv(os.path.join(os.path.dirname(sys.executable), "uwsgi"), sys.argv)' \
--http11-socket 127.0.0.1:PORT --threads 72 --disable-logging --module 'benchmark:falcon_app()'
granian (Rust): -m granian --interface wsgi --port PORT --blocking-threads 64 --factory benchmark:falcon_app
uvicorn: -m uvicorn --interface wsgi --port PORT --no-access-log --factory benchmark:falcon_app
waitress: -m waitress --listen 127.0.0.1:PORT --threads 64 --call benchmark:falcon_app
cheroot: -c 'import benchmark; from cheroot.wsgi import Server; \
server = Server(("127.0.0.1", PORT), benchmark.falcon_app(), 64); server.keep_alive_conn_limit = 64; server.start()'
gunicorn: -m gunicorn -b 127.0.0.1:PORT -k gthread --threads 64 'benchmark:falcon_app()'
""".splitlines()
}
LOGS = ("log to a file", "log to a pipe", "log to a terminal")
SERVERS = tuple(PROGRAMS)[tuple(PROGRAMS).index(LOGS[-1]) + 1 :]
PEERS = {*FRAMEWORKS, *SERVERS} - {"webapp"}


def loop(port):
    """Be the least that can answer: understand nothing, send a constant."""
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


# ---- what is measured ------------------------------------------------------------------------------------------------


class Thing(NamedTuple):
    """Something to measure. In the process its requests are timed together, through sockets each by itself."""

    name: str
    title: str
    requests: list[Request]
    # A figure of somebody, what it is divided by, if anything, and what that is not to exceed (<) or to reach (>).
    goals: list[str]
    who: tuple[str, ...] = tuple(FRAMEWORKS)
    clients: int = 0  # none: in the process
    threads: bool = False  # each of them has one; the others ask in turn, which costs less than to answer them
    hooks: int = 0  # that a request runs


@functools.cache
def things():
    """Return what is measured, by name."""
    hello, slow, large = Request("/hello", HELLO), Request("/slow", HELLO), Request("/files/large")
    document, person = Request("/json", '"name": "Ada"'), Request("/people/ada", "ada")
    routes = [Request(pattern, pattern, method=method) for method, pattern in ROUTES]
    nowhere = Request("/nowhere", '{"', 404, headers={"Accept": "application/json"})
    taken, busy, crash = Request("/taken", "taken", 409), Request("/busy", "busy", 503), Request("/crash", "", 500)
    pairs = b"name=Ada+Lovelace&city=Grand+Rapids%2C+MI&mail=ada%40example.org&age=36&newsletter=on"
    form = post("/form", "36", "application/x-www-form-urlencoded", pairs)
    people = [{"id": i, "name": f"person {i}", "tags": ["x", "y"], "score": i / 8} for i in range(15)]
    body = post("/json", "Ada", "application/json", json.dumps({"name": "Ada", "people": people}).encode())
    nested, sought = Request("/a/b/c/hello", HELLO), Request("/items/7?sought=tea", '"sought": "tea"')
    unchanged = large._replace(status=304, headers={"If-None-Match": "*"})
    sent = post("/body", "", "application/octet-stream", bytes(2**20))
    program = ["ms: webapp / bottle < 0.5", "CPU ms: webapp / bottle < 0.5"]
    kept = ["µs: quiet / loop < 3", *(f"µs: {log} / quiet < 1.15" for log in LOGS)]
    checked = ["µs: quiet / quiet /hello < 1.3"]
    served = ["µs: quiet / best < 1", "1/s: quiet / best > 1", "99 %: quiet / best < 2"]
    # Version 1.0 took 4.3 times what the loop did; the first goal is half of what it took beyond that.
    read = ["µs: quiet / loop < 2.65", "1/s: quiet / best but C > 1"]
    slept = ["1/s: quiet > 1200", "beside: quiet / alone: quiet < 2"]
    waited = ["first max: quiet < 4", "then max: quiet < 4"]
    return {
        thing.name: thing
        for thing in [
            Thing("hello", "hello", [hello], ["µs: webapp / best < 0.6"]),
            Thing("json", "a small JSON document", [document], ["µs: webapp / best < 0.55"]),
            Thing("parameter", "a path with one parameter", [person], ["µs: webapp / best < 0.7"]),
            Thing("routes", "200 routes of a large API", routes, ["µs: webapp / best < 0.75"]),
            Thing("404", "404 as JSON", [nowhere], ["µs: webapp / best < 0.5"]),
            Thing("405", "405", [Request("/hello", "", 405, "DELETE")], ["µs: webapp / falcon < 0.4"]),
            Thing("hook", "an exception, answered by a hook", [taken], ["µs: webapp / best < 0.8"]),
            Thing("logged", "a 5xx, answered by a hook, logged", [busy], ["µs: webapp / best < 1"]),
            Thing("crash", "an exception, default body, logged", [crash], ["µs: webapp / best < 1"]),
            Thing("form", "a form of five fields", [form], ["µs: webapp / falcon < 1.1"]),
            Thing("body", "a JSON body of 1 KiB", [body], ["µs: webapp / falcon < 0.95"]),
            # The others keep it in memory, where they can be told to; webapp puts files beyond 256 KiB on a disk.
            Thing("upload-4", "an upload of 1 MiB, in four files", [upload(4, 2**18)], ["µs: webapp / falcon < 1"]),
            Thing("upload-1", "an upload of 1 MiB, in one file", [upload(1, 2**20)], ["µs: webapp / falcon < 1.3"]),
            Thing("hooks", "three hooks before, three after", [nested], ["µs: webapp / best < 0.7"], hooks=6),
            Thing("start", "the smallest program, to its first answer", [], program),
            Thing("server-1", "hello, 1 connection", [hello], [], ("loop", "quiet", LOGS[0]), 1),
            Thing("server-16", "hello, 16 connections", [hello], kept, ("loop", "quiet", *LOGS, *SERVERS), 16),
            Thing("server-64", "hello, 64 connections", [hello], kept, ("loop", "quiet", *LOGS), 64),
            Thing("server-json", "path, query, JSON, 16 connections", [sought], [], ("quiet", *SERVERS), 16),
            Thing("server-304", "304, 16 connections", [unchanged, hello], checked, ("quiet",), 16),
            Thing("server-file", "a file of 100 KiB, 16 connections", [large], served, ("quiet", *SERVERS), 16, True),
            Thing("server-body", "1 MiB sent, 16 connections", [sent], read, ("loop", "quiet", *SERVERS), 16, True),
            Thing("server-slow", "50 ms, 64 connections", [slow], slept, ("quiet",), 64),
            Thing("server-crowd", "50 ms, 200 connections", [slow], waited, ("quiet",), 200),
        ]
    }


# ---- how it is measured: in the process ------------------------------------------------------------------------------


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
    if ran != hooks or (request.status == 405 and "allow" not in [name.lower() for name, _ in started[1]]):
        raise ValueError(f"runs {ran} hooks, and has the headers {started[1]}")


def timed(app, asked, repeats):
    """Tell the seconds of processor time that the requests take."""
    started = time.process_time()
    for _ in range(repeats):
        for environ, body in asked:
            call(app, environ, body)
    return time.process_time() - started


@functools.cache
def prepared(framework, name, seconds):
    """Return an application, what it is asked, and how often it can be asked in so many seconds."""
    logging.basicConfig(stream=Sink())  # formats records, which is what costs
    thing, asked, tried = things()[name], [], 1
    app = FRAMEWORKS[framework](thing.hooks > 0)
    for request in thing.requests:
        check(app, request, thing.hooks)
        asked.append((request.environ(), request.body))
    while (elapsed := timed(app, asked, tried)) < seconds / 4:
        tried *= 2
    return app, asked, max(1, round(tried * seconds / elapsed))


def ask_framework(framework, name, seconds):
    """Return the microseconds of processor time that a request takes."""
    app, asked, repeats = prepared(framework, name, seconds)
    gc.collect()
    getattr(gc, "freeze", gc.collect)()  # PyPy has none
    return {"µs": timed(app, asked, repeats) / repeats / len(asked) * 1e6}


# ---- how it is measured: through sockets -----------------------------------------------------------------------------


def spent(pid):
    """Tell the microseconds of processor time of a session, where /proc lists its processes; else 0."""
    seconds = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == pid:
                seconds += time.clock_gettime(~int(path.parent.name) << 3 | 2)  # the clock of a process, in Linux
    return seconds * 1e6


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


def ask_once(port, request):
    """Check the answer; return its length, which stays the same."""
    with connect(port) as connection:
        connection.sendall(request.payload())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(2**16) or b"\r\n\r\n"
        head, _, body = answer.partition(b"\r\n\r\n")
        length = 0 if request.status == 304 else int(re.findall(rb"(?i)\ncontent-length: *(\d+)", head)[0])
        while len(body) < length:
            body += connection.recv(2**16) or bytes(length)
    request.check(int(head[9:12]), body)
    return len(head) + 4 + length


def ask_in_turn(connections, payload, length, end):
    """Answer each answer with a request, one connection after the other; return how long each waited each time."""
    for connection in connections:
        connection.sendall(payload)
    waits, start = [], time.perf_counter()
    while start < end:
        for connection in connections:
            receive(connection, length)
            connection.sendall(payload)
        waits.append(-start + (start := time.perf_counter()))
    for connection in connections:
        receive(connection, length)
    return [[*waits, time.perf_counter() - start]] * len(connections)


def ask_in_threads(connections, *asked):
    """Do that with each connection in a thread of its own."""
    with ThreadPoolExecutor(len(connections)) as pool:
        return [waits for its in pool.map(lambda each: ask_in_turn([each], *asked), connections) for waits in its]


def ask_at_once(connections, payload, length, end):
    """Answer each answer with a request as soon as it has come; return how long each connection waited each time."""
    selector, waits = selectors.DefaultSelector(), {connection: [] for connection in connections}
    missing, asked = {}, {}

    def ask(connection):
        missing[connection], asked[connection] = length, time.perf_counter()
        connection.sendall(payload)

    for connection in connections:
        selector.register(connection, selectors.EVENT_READ)
        ask(connection)
    while selector.get_map():
        ready, now = selector.select(), time.perf_counter()
        for (connection, *_), _ in ready:
            received = len(connection.recv(missing[connection]))
            if not received:
                raise ValueError("an answer broke off")
            missing[connection] -= received
            if not missing[connection]:
                waits[connection].append(now - asked[connection])
                ask(connection) if now < end else selector.unregister(connection)
    return [*waits.values()]


def ask_now_and_then(connection, payload, length, end):
    """Ask every hundredth of a second; return the median of the milliseconds until the answers."""
    waits = []
    while not waits or time.perf_counter() < end:
        time.sleep(0.01)
        start = time.perf_counter()
        connection.sendall(payload)
        receive(connection, length)
        waits.append((time.perf_counter() - start) * 1e3)
    return statistics.median(waits)


def ask_server(pid, port, thing, request, seconds):
    """Be the clients of a thing; return what an answer costs the server, how many come a second, and the waits."""
    slow = request.path == "/slow"  # and each moment counts
    ask = ask_at_once if slow else ask_in_threads if thing.threads else ask_in_turn
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(thing.clients)]
        asked = connections, request.payload(), ask_once(port, request)
        if slow:
            hello = Request("/hello")
            quick = stack.enter_context(connect(port)), hello.payload(), ask_once(port, hello)
            alone = ask_now_and_then(*quick, time.perf_counter() + seconds / 4)
            pool = stack.enter_context(ThreadPoolExecutor(1))
            beside = pool.submit(ask_now_and_then, *quick, time.perf_counter() + seconds)
        else:
            # What a connection costs at first is another matter, and the windows of TCP grow only after a while.
            ask(*asked, thing.threads and time.perf_counter() + seconds)
        before, began = spent(pid), time.perf_counter()
        waits = ask(*asked, began + seconds)
        elapsed, used = time.perf_counter() - began, spent(pid) - before
    every, first, then = (
        sorted(itertools.chain(*part)) for part in (waits, [w[:1] for w in waits], [w[1:] for w in waits])
    )
    figures = {"µs": used / len(every), "1/s": len(every) / elapsed}
    if not slow:
        return {**figures, "50 %": statistics.median(every) * 1e3, "99 %": every[len(every) * 99 // 100] * 1e3}
    for name, its in ("first", first), ("then", then or [0.0]):
        figures[f"{name} 99 %"], figures[f"{name} max"] = its[len(its) * 99 // 100] / SLOW, its[-1] / SLOW
    return {**figures, "alone": alone, "beside": beside.result()}


# ---- who takes part --------------------------------------------------------------------------------------------------

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def choose_core(number, pid=0):
    """Have a process on the first core, or on the last, where the system lets us choose."""
    if CORES:
        os.sched_setaffinity(pid, {CORES[number]})


def end(pid):
    """Kill a process, and its session."""
    for kill in (os.kill, getattr(os, "killpg", os.kill)):
        with contextlib.suppress(OSError):
            kill(pid, 9)


@functools.cache
def guard():
    """Start what ends the processes whose numbers it is told as soon as this program ends, in whichever way."""
    code = "import benchmark, sys; [benchmark.end(int(line)) for line in [*sys.stdin]]"
    options = {"stdin": subprocess.PIPE, "start_new_session": True, "text": True, "bufsize": 1}
    return subprocess.Popen([sys.executable, "-c", code], **options)


def be_worker(core):
    choose_core(core)
    os.chdir(os.sep)  # Windows removes no directory that is somebody's current one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started it


@functools.cache
def worker(name):
    """Start a process that runs functions, one after the other."""
    pool = multiprocessing.get_context("spawn").Pool(1, be_worker, [-1 if name == "clients" else 0])
    atexit.register(pool.terminate)  # or a free-threaded interpreter may complain when it ends
    return pool


def log_of(name):
    """Open what a server logs to. A thread reads what is no file, as a person or a collector would."""
    if name not in LOGS:
        return open(os.devnull, "wb")
    if name == "log to a file":
        return tempfile.TemporaryFile()
    if name == "log to a terminal" and not hasattr(os, "openpty"):
        raise OSError("no terminals")
    reader, writer = os.pipe() if name == "log to a pipe" else os.openpty()

    def drain():
        with contextlib.suppress(OSError):
            while os.read(reader, 2**16):
                pass

    threading.Thread(target=drain, daemon=True).start()
    return open(writer, "wb", 0)


def start(name):
    """Start a program; return its process and its port as soon as it listens there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [sys.executable, *(part.replace("PORT", str(port)) for part in PROGRAMS[name])]
    with log_of(name) as log:
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
    choose_core(0, process.pid)
    end_of_patience = time.perf_counter() + 60
    while process.poll() is None and time.perf_counter() < end_of_patience:
        with contextlib.suppress(OSError):
            connect(port).close()
            return process, port
        time.sleep(0.001)
    process.kill()
    raise OSError("does not start")


@functools.cache
def serving(name):
    """Have a server run until this program ends; return the number of its process and its port."""
    process, port = start(name)
    print(process.pid, file=guard().stdin)
    return process.pid, port


def measure(thing, who, request, seconds):
    """Return the figures of a round."""
    if thing.clients:
        return worker("clients").apply(ask_server, (*serving(who), thing, request, seconds))
    if thing.requests:
        return worker(who).apply(ask_framework, (who, thing.name, seconds))
    began = time.perf_counter()
    process, port = start(who)
    ask_once(port, Request("/", "Hello"))
    figures = {"ms": (time.perf_counter() - began) * 1e3, "CPU ms": spent(process.pid) / 1e3}
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        figures["MiB"] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    end(process.pid)
    process.wait()
    return figures


# ---- what is told ----------------------------------------------------------------------------------------------------

GOAL = re.compile("(.+?): (.+?)(?: / (?:(.+): )?(.+))? ([<>]) (.+)")


def tell(thing, rounds):
    """Print the medians of everybody, and the ratios that have goals."""
    medians = {
        who: {name: statistics.median(each[name] for each in its) for name in its[0]} for who, its in rounds.items()
    }
    names = [*medians.values(), {}][0]
    print(f"\n{thing.title:<44}" + "".join(f"{name:>11}" for name in names))
    for who, figures in medians.items():
        print(f"  {who:<42}" + "".join(f"{figure:>11,.2f}" if figure else f"{'-':>11}" for figure in figures.values()))
    for goal in thing.goals:
        figure, who, than, other, sign, limit = GOAL.fullmatch(goal).groups()
        if other in ("best", "best but C"):
            rivals = [name for name in medians if name in PEERS and (other == "best" or "(C)" not in name)]
            key, pick = ("µs", min) if figure == "µs" else ("1/s", max)
            other = pick(rivals, key=lambda name: medians[name][key], default="-")
        own = [each[figure] for each in rounds.get(who, [])]
        others = [each[than or figure] for each in rounds.get(other, [])] if other else [1] * len(own)
        ratio = statistics.median(map(truediv, own, others)) if own and others and all(others) else 0
        title = f"  {figure}: {who}" + (f" / {than + ': ' if than else ''}{other}" if other else "")
        missed = ratio and (ratio > float(limit) if sign == "<" else ratio < float(limit))
        print(f"{title:<44}{ratio:>11,.2f} {sign} {float(limit):,.2f}{' missed' * bool(missed)}", flush=True)


def measure_rounds(thing, gone, quick):
    """Measure everybody round by round; whoever is not there is gone for good."""
    seconds = 0.05 if quick or not thing.clients else 1.0 if thing.requests[0].path == "/slow" else 0.4
    parts = [(who, request) for who in thing.who for request in (thing.requests if thing.clients else [None])]
    rounds = {}
    for _, (who, request) in itertools.product(range(1 if quick else 11), parts):
        label = f"{who} {request.path}" if request in thing.requests[1:] else who
        if who in gone or rounds.setdefault(label, []) is None:
            continue
        try:
            rounds[label].append(measure(thing, who, request, seconds))
        except (ImportError, OSError) as error:  # not installed, or not for this system
            print(f"without {who}: {error}")
            gone.update([who, *SERVERS] if who == "falcon" else [who])  # which is what those would serve
        except Exception as error:
            print(f"{who} is out of {thing.title}: {error!r}", file=sys.stderr)
            rounds[label] = None
    return {label: its for label, its in rounds.items() if its}


def main():
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"beginnings of {', '.join(things())}")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    options = parser.parse_args()
    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}")
    gone = set()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "large").write_bytes(bytes(100 * 2**10))
        # Without a cache that can be written, every import of a file compiles it.
        os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(directory, "cache")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])
        os.chdir(directory)
        for thing in things().values():
            if thing.name.startswith(tuple(options.only.split(","))):
                tell(thing, measure_rounds(thing, gone, options.quick))
        guard().communicate()  # which ends the others
        os.chdir(Path(__file__).parent)


if __name__ == "__main__":
    main()
