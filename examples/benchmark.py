"""Measure webapp.py: its framework beside other frameworks, its server beside other servers.

    python3 examples/benchmark.py                        # everything: some ten minutes
    python3 examples/benchmark.py --only hello,server-16 # what begins with these names; --help lists them
    python3 examples/benchmark.py --quick                # seconds: does it run? Its figures mean nothing

Whatever else is installed takes part. A line whose ratio misses its goal says so.

How it measures, and why so:

- Rounds are interleaved: everybody is measured once, then all of them again. A machine that slows down slows down for
  everybody. A figure is the median of its rounds, a ratio the median of the ratios *within* the rounds.
- What can be is measured in processor time, as rates of a shared machine swing by a factor of three.
- Answers are compared with what is expected. A wrong answer has no speed.
- In the process, an application is called as a server calls it, with a fresh copy of the environment. Each framework
  has a process of its own: none pays for another's modules or garbage. The garbage collector stays on, but what was
  alive before a round is frozen, so that nobody pays for the size of this program.
- Through sockets, server and clients have a process each, and a core each where the system lets them choose, and the
  connections are kept. The clients of quick requests ask in turn, which costs less than answering them; those of slow
  ones have a thread each. `loop` is the least that can answer: it waits in a selector, looks for an empty line, and
  sends a constant. `quiet` is webapp.py without its access log, and the figures are processor time, answers a second,
  milliseconds that they take, those of a client that asks for hello beside the others, and the longest wait for the
  slow handler in multiples of what it takes.

Carry over ratios, never microseconds, and keep them in proportion: a handler that asks a database one question spends
500 µs on it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import io
import itertools
import json
import logging
import os
import platform
import random
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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import truediv
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

# Finds webapp.py in the folder above; where it is installed, or lies beside your program, leave this out.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Rounds = dict[str, list[float]]  # who took part: the figure of each round
FILES = os.environ.get("BENCHMARK_FILES", ".")  # the directory of the file that servers send
SLOW = 0.05  # seconds that the slow handler takes
HELLO = "Hello World"
DOCUMENT = {"id": 7, "name": "Ada", "tags": ["a", "b", "c"], "active": True, "score": 1.5}
TALLY = itertools.count()  # every hook takes a number, so that it can be told how many ran

# ---- what is asked in the process ------------------------------------------------------------------------------------

BROWSER = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "Accept-Language": "en-GB,en;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}
ENVIRON = {
    **{"REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "QUERY_STRING": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80"},
    **{"SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "50000", "HTTP_HOST": "127.0.0.1"},
    **{"HTTP_" + name.upper().replace("-", "_"): value for name, value in BROWSER.items()},
    **{"wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.errors": sys.stderr, "wsgi.input": io.BytesIO()},
    **{"wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False},
}


class Request(NamedTuple):
    """A request, and what an application must answer to it: a text, a document, any document (dict), or anything."""

    path: str
    answer: Any = None
    status: int = 200
    body: bytes = b""
    fields: dict[str, str] = {}


class Case(NamedTuple):
    """Requests that are timed together, and the share that webapp may take of the time of the fastest, or of a peer."""

    name: str
    title: str
    goal: float | None
    requests: list[Request]
    against: str = ""
    hooks: int = 0  # how many a request runs


def post(path: str, answer: str, content_type: str, body: bytes) -> list[Request]:
    fields = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(len(body))}
    return [Request(path, answer, 200, body, fields)]


def upload(count: int, size: int) -> list[Request]:
    """Make a form of files of random bytes; the answer is the sum of their sizes."""
    head = b'--limit\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\nContent-Type: x/y\r\n\r\n'
    body = (head + random.Random(0).randbytes(size) + b"\r\n") * count + b"--limit--\r\n"
    return post("/upload", str(count * size), "multipart/form-data; boundary=limit", body)


def table(brackets: str) -> Iterator[tuple[str, str, str]]:
    """Yield method, pattern and answer of 200 routes, as a large API has them."""
    nouns = "issues pulls commits branches labels releases hooks keys teams forks events gists orgs feeds tags trees"
    shapes = {"": "GET POST", "/latest": "GET", "/<id>": "GET PUT DELETE", "/<id>/comments/<number>": "GET"}
    for noun in [*nouns.split(), "blobs", "refs", "notes", "stars"]:
        paths = {f"/{noun}{shape}": methods for shape, methods in shapes.items()}
        paths.update({f"/users/<user>/{noun}": "GET", f"/users/<user>/{noun}/<id>": "GET DELETE"})
        for path, methods in paths.items():
            for method in methods.split():
                yield method, path.replace("<", brackets[:1]).replace(">", brackets[1:]), f"{method} {path}"


FORM = "application/x-www-form-urlencoded"


def cases() -> list[Case]:
    """List what is timed."""
    routes = [Request(path, answer, fields={"REQUEST_METHOD": method}) for method, path, answer in table("")]
    form = b"name=Ada+Lovelace&city=Grand+Rapids%2C+MI&mail=ada%40example.org&age=36&newsletter=on"
    people = [{"id": i, "name": f"person {i}", "tags": ["x", "y"], "score": i / 8} for i in range(15)]
    document = json.dumps({"name": "Ada", "people": people}).encode()
    json_404 = Request("/nowhere", dict, 404, fields={"HTTP_ACCEPT": "application/json"})
    return [
        Case("hello", "hello", 0.6, [Request("/hello", HELLO)]),
        Case("json", "a small JSON document", 0.55, [Request("/json", DOCUMENT)]),
        Case("parameter", "a path with one parameter", 0.7, [Request("/people/ada", "ada")]),
        Case("routes", "200 routes of a large API", 0.75, routes),
        Case("404", "404 as JSON", 0.5, [json_404]),
        Case("405", "405", 0.4, [Request("/hello", None, 405, fields={"REQUEST_METHOD": "DELETE"})], "falcon"),
        Case("hook", "an exception, answered by a hook", 0.8, [Request("/taken", "taken", 409)]),
        Case("logged", "a 5xx, answered by a hook, logged", 1.0, [Request("/busy", "busy", 503)]),
        Case("crash", "an exception, default body, logged", 1.0, [Request("/crash", None, 500)]),
        Case("form", "a form of five fields", 1.1, post("/form", "36", FORM, form), "falcon"),
        Case("body", "a JSON body of 1 KiB", 0.95, post("/json", "Ada", "application/json", document), "falcon"),
        # The others keep it in memory, where they can be told to; webapp puts files beyond 256 KiB on a disk.
        Case("upload-4", "an upload of 1 MiB, in four files", 1.0, upload(4, 2**18), "falcon"),
        Case("upload-1", "an upload of 1 MiB, in one file", 1.3, upload(1, 2**20), "falcon"),
        Case("hooks", "three hooks before, three after", 0.7, [Request("/a/b/c/hello", HELLO)], hooks=6),
    ]


# ---- who answers: each as its documentation says, in its fastest reasonable configuration ----------------------------


Taken, Busy = (type(name, (Exception,), {}) for name in ("Taken", "Busy"))  # which are a 409 and a 503


def throw(kind: Any) -> Any:
    raise kind("out of order")  # a new one, as one that is raised twice drags its old traceback along


def sleep() -> str:
    time.sleep(SLOW)
    return "slept"


def item(number: int, sought: str | None) -> dict[str, Any]:
    return {"number": number, "sought": sought, "items": [1, 2, 3]}


def log(error: Any) -> None:
    """Do what webapp.py does for a 5xx; the others leave it to the application."""
    logging.getLogger("application").error("busy", exc_info=error)


def count(*_: Any) -> None:
    next(TALLY)


def size_of(file: Any) -> int:
    return int(file.seek(0, os.SEEK_END))


def webapp_app(hooked: bool = False) -> Any:
    from webapp import WebApp

    class Application(WebApp):
        def resolve_status_code(self, cause: Exception) -> int:
            return {Taken: 409, Busy: 503}.get(type(cause)) or super().resolve_status_code(cause)

    def saying(text: str) -> Callable[[Any], str]:
        return lambda context: text

    def throwing(kind: type[Exception]) -> Callable[[Any], str]:
        return lambda context: throw(kind)

    app = Application()
    for method, pattern, text in table("{}"):
        app.route(method, pattern, saying(text))
    app.get("/hello", lambda context: HELLO)
    app.get("/json", lambda context: DOCUMENT)
    app.get("/people/{name}", lambda context, name: name)
    app.get("/crash", lambda context: throw(RuntimeError))
    app.post("/form", lambda context: context.request.form["age"])
    app.post("/json", lambda context: context.request.json["name"])
    app.post("/upload", lambda context: str(sum(file.size for file in context.request.files.getall("file"))))
    for path, kind in (("/taken", Taken), ("/busy", Busy)):
        with app.path(path) as block:
            block.error(lambda context, cause, status_code, text=path[1:]: text)
            block.get("", throwing(kind))
    with app.path("/a") as a, a.path("/b") as b, b.path("/c") as c:
        for block in (a, b, c):
            block.before(count)
            block.after(count)
        c.get("/hello", lambda context: HELLO)
    app.get("/items/{number:int}", lambda context, number: item(number, context.request.query.get("sought")))
    app.get("/slow", lambda context: sleep())
    app.post("/body", lambda context: str(len(context.request.body)))
    app.static("/files", FILES)
    return app


def bottle_app(hooked: bool = False) -> Any:
    """Hooks are decorators of the route, as its own are the whole application's; error handlers go by status."""
    import bottle

    def counting(handler: Callable[[], str]) -> Callable[[], str]:
        return lambda: (count(), handler(), count())[1]

    def json_error(error: Any) -> str:  # its own page is a template, and slow
        bottle.response.content_type = "application/json"
        return json.dumps({"error": error.body})

    bottle.BaseRequest.MEMFILE_MAX = 2**21
    asked = bottle.request
    app = bottle.Bottle()
    for method, pattern, text in table("<>"):
        app.route(pattern, method, lambda text=text, **_: text)
    app.get("/hello", callback=lambda: HELLO)
    app.get("/json", callback=lambda: DOCUMENT)
    app.get("/people/<name>", callback=lambda name: name)
    app.get("/crash", callback=lambda: throw(RuntimeError))
    app.post("/form", callback=lambda: asked.forms["age"])
    app.post("/json", callback=lambda: asked.json["name"])
    app.post("/upload", callback=lambda: str(sum(size_of(part.file) for part in asked.files.getall("file"))))
    app.error(409, lambda error: "taken")
    app.error(503, lambda error: log(error) or "busy")
    for name, status in (("taken", 409), ("busy", 503)):
        app.get("/" + name, callback=lambda status=status: throw(lambda *_: bottle.HTTPError(status)))
    for status in (404, 405):
        app.error(status, json_error)
    app.get("/a/b/c/hello", callback=lambda: HELLO, apply=[counting] * 3)
    return app


def flask_app(hooked: bool = False) -> Any:
    """Hooks belong to three nested blueprints."""
    import flask

    class InMemory(flask.Request):
        def _get_file_stream(self, *args: Any, **kwargs: Any) -> Any:
            return io.BytesIO()

    asked = flask.request
    app = flask.Flask("benchmark", static_folder=None)
    app.request_class = InMemory

    def add(method: str, pattern: str, view: Callable[..., Any]) -> None:
        app.add_url_rule(pattern, f"{method} {pattern}", view, methods=[method])

    for method, pattern, text in table("<>"):
        add(method, pattern, lambda text=text, **_: text)
    add("GET", "/hello", lambda: HELLO)
    add("GET", "/json", lambda: DOCUMENT)
    add("GET", "/people/<name>", lambda name: name)
    add("GET", "/crash", lambda: throw(RuntimeError))
    add("POST", "/form", lambda: asked.form["age"])
    add("POST", "/json", lambda: asked.get_json()["name"])
    add("POST", "/upload", lambda: str(sum(size_of(part.stream) for part in asked.files.getlist("file"))))
    app.register_error_handler(Taken, lambda error: ("taken", 409))
    app.register_error_handler(Busy, lambda error: (log(error) or "busy", 503))
    add("GET", "/taken", lambda: throw(Taken))
    add("GET", "/busy", lambda: throw(Busy))
    app.register_error_handler(404, lambda error: ({"error": error.name}, 404))
    a, b, c = (flask.Blueprint(name, "benchmark", url_prefix="/" + name) for name in "abc")
    c.add_url_rule("/hello", "hello", lambda: HELLO)
    for parent, blueprint in ((b, c), (a, b), (app, a)):
        blueprint.before_request(count)
        blueprint.after_request(lambda response: count() or response)
        parent.register_blueprint(blueprint)
    return app


def falcon_app(hooked: bool = False) -> Any:
    """Hooks are middleware, faster by a third than those of one responder."""
    import falcon

    class Hooks:
        def process_request(self, req: Any, resp: Any) -> None:
            next(TALLY)

        def process_response(self, req: Any, resp: Any, resource: Any, succeeded: bool) -> None:
            next(TALLY)

    def hello(req: Any, resp: Any) -> None:
        resp.text = HELLO

    def person(req: Any, resp: Any, name: str) -> None:
        resp.text = name

    def document(req: Any, resp: Any) -> None:
        resp.content_type, resp.media = falcon.MEDIA_JSON, DOCUMENT

    def numbered(req: Any, resp: Any, number: int) -> None:
        resp.content_type, resp.media = falcon.MEDIA_JSON, item(number, req.get_param("sought"))

    def saying(make: Callable[[Any], str], status: str = falcon.HTTP_200) -> Callable[..., None]:
        def respond(req: Any, resp: Any, *_: Any, **params: str) -> None:
            resp.status, resp.text = status, make(req)

        return respond

    app = falcon.App(media_type=falcon.MEDIA_TEXT, middleware=[Hooks() for _ in range(3 if hooked else 0)])
    routes: dict[str, dict[str, Callable[..., None]]] = {}
    for method, pattern, text in table("{}"):
        routes.setdefault(pattern, {})["on_" + method.lower()] = saying(lambda req, text=text: text)
    routes["/hello"] = routes["/a/b/c/hello"] = {"on_get": hello}
    routes["/people/{name}"] = {"on_get": person}
    routes["/json"] = {"on_get": document, "on_post": saying(lambda req: req.get_media()["name"])}
    routes["/crash"] = {"on_get": saying(lambda req: throw(RuntimeError))}
    routes["/form"] = {"on_post": saying(lambda req: req.get_media()["age"])}
    routes["/upload"] = {"on_post": saying(lambda req: str(sum(len(part.stream.read()) for part in req.get_media())))}
    app.add_error_handler(Taken, saying(lambda req: "taken", falcon.HTTP_409))
    app.add_error_handler(Busy, saying(lambda req: log(True) or "busy", falcon.HTTP_503))
    routes["/taken"] = {"on_get": saying(lambda req: throw(Taken))}
    routes["/busy"] = {"on_get": saying(lambda req: throw(Busy))}
    routes["/items/{number:int}"] = {"on_get": numbered}
    routes["/slow"] = {"on_get": saying(lambda req: sleep())}
    routes["/body"] = {"on_post": saying(lambda req: str(len(req.bounded_stream.read())))}
    for pattern, responders in routes.items():
        app.add_route(pattern, SimpleNamespace(**responders))
    app.add_static_route("/files", os.path.abspath(FILES))
    return app


BUILDERS = {"webapp": webapp_app, "bottle": bottle_app, "falcon": falcon_app, "flask": flask_app}

# The smallest program with each: what is imported | the application | how it is served.
PROGRAMS = {
    line.split(" | ")[0].split()[1]: line.split(" | ")
    for line in """\
import webapp | app = webapp.WebApp(); app.get('/')(lambda context: 'Hello') | app.run(port=PORT)
import bottle | app = bottle.Bottle(); app.get('/')(lambda: 'Hello') | app.run(port=PORT)
import flask | app = flask.Flask('hello'); app.get('/')(lambda: 'Hello') | app.run(port=PORT)
import falcon | Hello = type("Hello", (), {"on_get": lambda self, req, resp: setattr(resp, "text", "Hello")}); \
app = falcon.App(); app.add_route("/", Hello()) | from wsgiref import simple_server; \
simple_server.make_server("127.0.0.1", PORT, app).serve_forever()
""".splitlines()
}
PROBE = """import io, sys, time
def resident():
    try:
        return int(open("/proc/self/statm").read().split()[1]) / 256
    except OSError:
        return 0  # where the system does not tell
memory, began = resident(), time.process_time()
{0}
imported = (time.process_time() - began) * 1e3
{1}
environ = dict({environ!r}, **{{"wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr}})
b"".join(app(environ, lambda *arguments: None))
print(imported, resident() - memory)
"""

# ---- how one framework is timed: in a process of its own -------------------------------------------------------------


class Sink(io.TextIOBase):
    """Take what is written, and forget it."""

    def write(self, text: str) -> int:
        return len(text)


def environ_of(request: Request) -> dict[str, Any]:
    return {**ENVIRON, "PATH_INFO": request.path, **request.fields}


def call(app: App, environ: dict[str, Any], body: bytes, start_response: Callable[..., Any]) -> bytes:
    """Serve a request as a server does."""
    environ = environ.copy()
    if body:
        environ["wsgi.input"] = io.BytesIO(body)
    result = app(environ, start_response)
    answer = b"".join(result)
    if hasattr(result, "close"):
        result.close()
    return answer


def check(app: App, request: Request, hooks: int) -> None:
    """Raise ValueError unless the request gets the expected answer and runs the expected number of hooks."""
    started: list[Any] = []
    before = next(TALLY)
    body = call(app, environ_of(request), request.body, lambda *arguments: started.extend(arguments))
    ran = next(TALLY) - before - 1
    answer: Any = body.decode() if isinstance(request.answer, str) else None
    if request.answer is dict or isinstance(request.answer, dict):
        answer = dict if request.answer is dict and type(json.loads(body)) is dict else json.loads(body)
    allowed = request.status != 405 or any(name.lower() == "allow" for name, _ in started[1])
    if (int(started[0][:3]), answer, ran, allowed) != (request.status, request.answer, hooks, True):
        raise ValueError(f"answers {started[0]} and {body[:60]!r}, and runs {ran} hooks")


def timed(app: App, requests: list[Request], repeats: int) -> float:
    """Tell the seconds that the requests take."""

    def start_response(status: str, headers: Any, exc_info: Any = None) -> None:
        pass

    prepared = [(environ_of(request), request.body) for request in requests]
    started = time.process_time()
    for _ in range(repeats):
        for environ, body in prepared:
            call(app, environ, body, start_response)
    return time.process_time() - started


def timer_of(framework: str) -> Callable[[str, float], float]:
    """Return what times a case for so many seconds, in microseconds per request."""
    logging.basicConfig(stream=Sink())  # formats records, which is what costs
    ENVIRON["wsgi.errors"] = Sink()
    apps = [BUILDERS[framework](hooked) for hooked in (False, True)]
    chosen = {case.name: case for case in cases()}
    repeats: dict[str, int] = {}

    def timer(name: str, seconds: float) -> float:
        case = chosen[name]
        app = apps[case.hooks > 0]
        if name not in repeats:
            for request in case.requests:
                check(app, request, case.hooks)
            tried = 1
            while (elapsed := timed(app, case.requests, tried)) < seconds / 4:
                tried *= 2
            repeats[name] = max(1, round(tried * seconds / elapsed))
        gc.collect()
        getattr(gc, "freeze", gc.collect)()  # PyPy has none
        return timed(app, case.requests, repeats[name]) / repeats[name] / len(case.requests) * 1e6

    return timer


# ---- what is asked through sockets -----------------------------------------------------------------------------------

LOGS = ("log to a file", "log to a pipe", "log to a terminal")[: 3 if hasattr(os, "openpty") else 2]


class Load(NamedTuple):
    """What so many clients ask for over and over again."""

    name: str
    title: str
    target: str
    clients: int
    servers: tuple[str, ...] = ("quiet",)
    peers: bool = False  # other servers are asked, too
    threads: bool = False  # each client has one
    head: str = ""  # a field beyond those of a browser
    body: int = 0  # bytes
    status: int = 200
    beside: str = ""  # what one more client asks for, every hundredth of a second


LOADS = [
    Load("server-1", "hello, 1 connection", "/hello", 1, ("loop", "quiet", LOGS[0])),
    Load("server-16", "hello, 16 connections", "/hello", 16, ("loop", "quiet", *LOGS), peers=True),
    Load("server-64", "hello, 64 connections", "/hello", 64, ("loop", "quiet", *LOGS)),
    Load("server-json", "path, query, JSON, 16 connections", "/items/7?sought=tea", 16, peers=True),
    Load("server-304", "304, 16 connections", "/files/large", 16, head="If-None-Match: *", status=304),
    Load("server-file", "a file of 100 KiB, 16 connections", "/files/large", 16, peers=True, threads=True),
    Load(
        "server-body",
        "1 MiB sent, 16 connections",
        "/body",
        16,
        ("loop", "quiet"),
        peers=True,
        threads=True,
        body=2**20,
    ),
    Load("server-quick", "hello, now and then", "/hello", 0, threads=True, beside="/hello"),
    Load("server-slow", "50 ms, 64 connections", "/slow", 64, peers=True, threads=True, beside="/hello"),
    Load("server-crowd", "50 ms, 200 connections", "/slow", 200, threads=True),
]
# Load, server and figure; load and server that it is divided by, if any; the goal, which a rate is to reach and all
# else is not to exceed.
GOALS: list[tuple[str, str, str, str, str, float]] = [
    *((load, "quiet", "µs", load, "loop", 3.0) for load in ("server-16", "server-64")),
    *((load, log, "µs", load, "quiet", 1.15) for load in ("server-16", "server-64") for log in LOGS),
    ("server-304", "quiet", "µs", "server-16", "quiet", 1.3),
    ("server-file", "quiet", "1/s", "server-file", "the best of the others", 1.0),
    ("server-file", "quiet", "99 %", "server-file", "the best of the others", 2.0),
    # Version 1.0 took 4.3; half of what it took beyond the loop, which reads as much and keeps nothing.
    ("server-body", "quiet", "µs", "server-body", "loop", 2.65),
    ("server-slow", "quiet", "1/s", "", "", 1200.0),
    ("server-slow", "quiet", "beside", "server-quick", "quiet", 2.0),
    ("server-crowd", "quiet", "rounds", "", "", 4.0),
]
# Other servers: their module, and what an interpreter needs to answer 64 slow requests at once with it. It finds this
# file as `benchmark`, and __getattr__ makes `falcon`.
PEERS = {
    line.split()[0]: shlex.split(line)[1:]
    for line in """\
bjoern -c 'import bjoern, benchmark; bjoern.run(benchmark.falcon, "127.0.0.1", PORT)'
fastwsgi -c 'import fastwsgi, benchmark; fastwsgi.run(benchmark.falcon, "127.0.0.1", PORT)'
uwsgidecorators -c 'import os, sys; os.execv(os.path.join(os.path.dirname(sys.executable), "uwsgi"), sys.argv)' \
 --http11-socket 127.0.0.1:PORT --threads 72 --disable-logging --eval 'import benchmark as b; application = b.falcon'
granian -m granian --interface wsgi --port PORT --blocking-threads 64 benchmark:falcon
uvicorn -m uvicorn --interface wsgi --port PORT --no-access-log benchmark:falcon
waitress -m waitress --listen 127.0.0.1:PORT --threads 64 benchmark:falcon
cheroot -c 'import benchmark, cheroot.wsgi as c; server = c.Server(("127.0.0.1", PORT), benchmark.falcon, 64); \
server.keep_alive_conn_limit = 64; server.start()'
gunicorn -m gunicorn -b 127.0.0.1:PORT -k gthread --threads 64 benchmark:falcon
""".splitlines()
}


def __getattr__(name: str) -> Any:
    """Make the application that other servers serve."""
    if name == "falcon":
        return falcon_app()
    raise AttributeError(name)


def connect(port: int, payload: bytes, status: int) -> tuple[socket.socket, int]:
    """Open a connection, ask once, and check the answer; return its length, too, which stays the same."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(payload)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(2**16) or b"\r\n\r\n"
    head, _, body = answer.partition(b"\r\n\r\n")
    if head[8:13] != b" %d " % status:
        raise ValueError(f"answers {head[:80]!r}")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    length = 0 if status == 304 else int(fields[b"content-length"])
    if length > len(body):
        receive(connection, length - len(body))
    return connection, len(head) + 4 + length


def receive(connection: socket.socket, length: int) -> None:
    while length:  # Windows may give less
        received = len(connection.recv(length, socket.MSG_WAITALL))
        if not received:
            raise ValueError("an answer broke off")
        length -= received


def ask(port: int, number: int, seconds: float) -> dict[str, float]:
    """Be the clients of a load; return how many answers came, and how many milliseconds they took."""
    load = LOADS[number]
    fields = [f"Host: 127.0.0.1:{port}", *(f"{name}: {value}" for name, value in BROWSER.items())]
    beside = "\r\n".join([f"GET {load.beside} HTTP/1.1", *fields, "", ""]).encode()
    fields += [load.head] * bool(load.head) + [f"Content-Length: {load.body}"] * bool(load.body)
    first = f"{'POST' if load.body else 'GET'} {load.target} HTTP/1.1"
    payload = "\r\n".join([first, *fields, "", ""]).encode() + bytes(load.body)
    connections = [connect(port, payload, load.status) for _ in range(load.clients)]
    clients: list[Any] = [(*each, payload, [], 0.0) for each in connections]
    if load.beside:
        clients.append((*connect(port, beside, 200), beside, [], 0.01))
    end = (began := time.perf_counter()) + seconds

    def client(connection: socket.socket, length: int, payload: bytes, waits: list[float], pause: float) -> None:
        while (start := time.perf_counter()) < end:
            connection.sendall(payload)
            receive(connection, length)
            waits.append((time.perf_counter() - start) * 1e3)
            if pause:
                time.sleep(pause)

    def in_turn(waits: list[float]) -> None:
        for connection, _ in connections:
            connection.sendall(payload)
        while (start := time.perf_counter()) < end:
            for connection, length in connections:
                receive(connection, length)
                connection.sendall(payload)
            waits += [(time.perf_counter() - start) * 1e3] * len(connections)
        for each in connections:
            receive(*each)

    if load.threads:
        with ThreadPoolExecutor(len(clients)) as pool:
            for running in [pool.submit(client, *each) for each in clients]:
                running.result()
    else:
        in_turn(clients[0][3])
    elapsed = time.perf_counter() - began
    for connection, *_ in clients:
        connection.close()
    waits = sorted(wait for each in clients if not each[4] for wait in each[3]) or [0.0]
    return {
        "answers": sum(len(each[3]) + 1 for each in clients),
        "1/s": len(waits) / elapsed,
        "50 %": waits[len(waits) // 2],
        "99 %": waits[len(waits) * 99 // 100],
        "beside": statistics.median(clients[-1][3] or [0.0]) if load.beside else 0.0,
        "rounds": waits[-1] / SLOW / 1e3,
    }


def loop(port: int) -> None:
    """Be the least that can answer: understand nothing, send a constant."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nHello World"
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    bodies: dict[Any, int] = {}  # bytes of each that are still to come
    while True:
        for key, _ in selector.select():
            connection: Any = key.fileobj
            if connection is listener:
                connection = listener.accept()[0]
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                continue
            data = connection.recv(2**16)
            if not data:
                selector.unregister(connection)
                connection.close()
            elif connection in bodies:
                bodies[connection] -= len(data)
                if not bodies[connection]:
                    del bodies[connection]
                    connection.send(answer)
            elif (end := data.find(b"\r\n\r\n")) >= 0:
                if data[:1] == b"P":
                    bodies[connection] = end + 4 - len(data) + 2**20
                else:
                    connection.send(answer)


def log_of(name: str) -> Any:
    """Open what a server logs to. A thread reads what is no file, as a person or a collector would."""
    if name not in LOGS:
        return None
    if name == "log to a file":
        return tempfile.TemporaryFile()
    reader, writer = os.pipe() if name == "log to a pipe" else os.openpty()

    def drain() -> None:
        with contextlib.suppress(OSError), open(reader, "rb", 0) as lines:
            while lines.read(2**16):
                pass

    threading.Thread(target=drain, daemon=True).start()
    return open(writer, "wb", 0)


def be(*part: Any) -> list[str]:
    """Return the arguments of an interpreter that takes a part in this: see `play`."""
    return [__file__, "--be", json.dumps(part)]


def play(part: str, *given: Any) -> None:
    """Be a server until somebody kills it; or a worker, which answers each line of input with a line of output."""
    if part == "loop":
        loop(*given)
    if part != "worker":
        webapp_app().run(port=given[0], quiet=part == "quiet")
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = Sink()
    answer: Callable[..., Any] = ask if given[0] == "clients" else timer_of(*given)
    for line in sys.stdin:
        try:
            reply: Any = answer(*json.loads(line))
        except Exception as error:
            reply = repr(error)
        replies.write(json.dumps(reply) + "\n")


@contextlib.contextmanager
def worker(name: str, core: int = 0) -> Iterator[Callable[..., Any]]:
    """Start a worker; yield what asks it a question, and says why there is no answer, which is None then."""
    process = start(core, be("worker", name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def question(whose: str, title: str, *arguments: Any) -> Any:
        process.stdin.write(json.dumps(arguments) + "\n")
        reply = json.loads(process.stdout.readline())
        if isinstance(reply, str):
            print(f"{whose} is out of {title}: {reply}", file=sys.stderr)
        return None if isinstance(reply, str) else reply

    with process:
        yield question
        process.stdin.close()


def start(core: int, arguments: list[str], **options: Any) -> Any:
    """Start an interpreter, on the first core, or on the last, where the system lets us choose."""
    process = subprocess.Popen([sys.executable, *arguments], **options)
    with contextlib.suppress(AttributeError):
        os.sched_setaffinity(process.pid, {sorted(os.sched_getaffinity(0))[core]})
    return process


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def wait_for(port: int) -> None:
    """Return as soon as somebody listens there."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)


@contextlib.contextmanager
def served(arguments: list[str], port: int, log: Any = None) -> Iterator[int]:
    """Run a server; yield its session, which all its processes belong to."""
    path = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ["PYTHONPATH"]])
    with log or open(os.devnull, "wb") as log:
        options = {"stdout": subprocess.DEVNULL, "stderr": log, "start_new_session": True}
        process = start(0, arguments, env={**os.environ, "PYTHONPATH": path}, **options)
    try:
        wait_for(port)
        yield process.pid
    finally:
        process.kill() if os.name == "nt" else os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def serving(name: str, stack: contextlib.ExitStack) -> tuple[int, int]:
    """Have a server run until the stack ends; return its port and its session."""
    port = free_port()
    arguments = [part.replace("PORT", str(port)) for part in PEERS.get(name, be(name, port))]
    return port, stack.enter_context(served(arguments, port, log_of(name)))


def spent(session: int) -> float:
    """Tell the processor time of a session in microseconds, where /proc tells it; else 0."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks += (int(fields[11]) + int(fields[12])) * (int(fields[3]) == session)
    return ticks and ticks / os.sysconf("SC_CLK_TCK") * 1e6


def print_loads(chosen: list[int], rounds: int, seconds: float) -> None:
    """Start the servers, measure loads round by round, and print them as they are measured."""
    peers = [name for name in PEERS if all(map(importlib.util.find_spec, (name, "falcon")))]
    wanted = {number: (*LOADS[number].servers, *(peers if LOADS[number].peers else ())) for number in chosen}
    measured: dict[str, dict[str, Rounds]] = {}
    with contextlib.ExitStack() as stack:
        running = {name: serving(name, stack) for name in dict.fromkeys(itertools.chain(*wanted.values()))}
        question = stack.enter_context(worker("clients", -1))
        for number, names in wanted.items():
            figures = measured[LOADS[number].name] = {}
            for _, name in itertools.product(range(rounds), names):
                port, session = running[name]
                before = spent(session)
                reply = question(name, LOADS[number].title, port, number, seconds)
                if reply is not None:
                    reply["µs"] = (spent(session) - before) / max(1, reply["answers"])
                    for key, value in reply.items():
                        figures.setdefault(name, {}).setdefault(key, []).append(value)
            print_load(LOADS[number], measured)


# ---- what is printed -------------------------------------------------------------------------------------------------


def share(own: list[float], other: list[float]) -> float:
    """Return the median of the ratios of two figures, round by round, 0 if there is none."""
    return statistics.median(map(truediv, own, other)) if own and other and all(other) else 0.0


def verdict(ratio: float, goal: float | None, rate: bool = False) -> str:
    missed = ratio and goal and (ratio < goal if rate else ratio > goal)
    return "".join(f"{value:>9,.2f}" if value else f"{'-':>9}" for value in (ratio, goal)) + " missed" * bool(missed)


def print_case(title: str, unit: str, rounds: Rounds, goal: float | None, against: str) -> None:
    """Print the medians of everybody, and what webapp takes of a peer's."""
    medians = {name: statistics.median(figures) for name, figures in rounds.items() if figures}
    peers = [name for name in medians if name != "webapp" and against in ("", name)]
    best = min(peers, key=lambda name: medians[name], default="")
    columns = "".join(f"{medians[name]:>9,.2f}" if name in medians else f"{'-':>9}" for name in BUILDERS)
    ratio = share(rounds["webapp"], rounds.get(best, []))
    print(f"{title:<42} {unit:<3}{columns}  {best:<7}{verdict(ratio, goal)}", flush=True)


def print_load(load: Load, measured: dict[str, dict[str, Rounds]]) -> None:
    """Print the medians of every server, and the ratios that there are goals for."""
    print(f"\n{load.title:<42}" + "".join(f"{figure:>10}" for figure in FIGURES))
    for name, figures in measured[load.name].items():
        medians = [statistics.median(figures[figure]) for figure in FIGURES]
        print(f"  {name:<40}" + "".join(f"{median:>10,.2f}" if median else f"{'-':>10}" for median in medians))
    for load_name, who, figure, other_load, other, goal in GOALS:
        if load_name == load.name and other_load in ("", *measured):
            own = measured[load.name].get(who, {}).get(figure, [])
            rivals = {name: each[figure] for name, each in measured.get(other_load, {}).items()}
            if other == "the best of the others":
                best = max if figure == "1/s" else min
                found = best(rivals.keys() & PEERS, key=lambda name: statistics.median(rivals[name]), default="")  # type: ignore
                rivals[other] = rivals.get(found, [])
            ratio = share(own, rivals.get(other, []) if other else [1.0] * len(own))
            title = (
                f"  {figure}: {who} / {other} {other_load * (other_load != load.name)}"
                if other
                else f"  {figure}: {who}"
            )
            print(f"{title:<72}{verdict(ratio, goal, figure == '1/s')}", flush=True)


def print_cases(names: list[str], chosen: list[Case], rounds: int, seconds: float) -> None:
    """Time cases, and print them as they are timed."""
    with contextlib.ExitStack() as stack:
        questions = {name: stack.enter_context(worker(name)) for name in names if chosen}
        for case in chosen:
            taken: Rounds = {name: [] for name in names}
            for _, name in itertools.product(range(rounds), names):
                reply = questions[name](name, case.title, case.name, seconds)
                taken[name] += [] if reply is None else [reply]
            print_case(case.title, "µs", taken, case.goal, case.against)


def print_programs(names: list[str], wanted: Callable[[str], bool], directory: str, rounds: int) -> None:
    """Measure and print what the smallest program takes."""
    taken: dict[str, Rounds] = {figure: {name: [] for name in names} for figure in ("import", "memory", "start")}
    asked = {key: value for key, value in {**ENVIRON, "PATH_INFO": "/"}.items() if isinstance(value, str)}
    for _, name in itertools.product(range(rounds), names):
        lines = PROGRAMS[name]
        probe = PROBE.format(*lines, environ=asked)
        printed = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True).stdout.split()
        taken["import"][name].append(float(printed[0]))
        taken["memory"][name].append(float(printed[1]))
        port, path = free_port(), os.path.join(directory, "hello.py")
        Path(path).write_text("\n".join(lines).replace("PORT", str(port)))
        began = time.perf_counter()
        with served([path], port):
            connect(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200)[0].close()
            taken["start"][name].append((time.perf_counter() - began) * 1e3)
    for figure, title, unit, goal in (
        ("import", "import", "ms", 0.6),
        ("memory", "memory, after the first request", "MiB", 0.7),
        ("start", "start of hello.py, to its first answer", "ms", 0.5),
    ):
        if wanted(figure):
            print_case(title, unit, taken[figure], goal, "bottle")


FIGURES = ("µs", "1/s", "50 %", "99 %", "beside", "rounds")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    every = [*(case.name for case in cases()), "import", "memory", "start", *(load.name for load in LOADS)]
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"beginnings of {', '.join(every)}")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    options = parser.parse_args()
    rounds, seconds = (1, 0.02) if options.quick else (9, 1.0)

    def wanted(name: str) -> bool:
        return name.startswith(tuple(options.only.split(",")))

    names = [name for name in BUILDERS if importlib.util.find_spec(name)]
    with tempfile.TemporaryDirectory() as directory:
        # Without a cache that can be written, every import of a file compiles it.
        os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(directory, "cache")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
        os.environ["BENCHMARK_FILES"] = directory
        Path(directory, "large").write_bytes(bytes(100 * 2**10))
        machine = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
        print(f"{machine:<46}" + "".join(f"{name:>9}" for name in BUILDERS) + "  against    ratio     goal")
        print_cases(names, [case for case in cases() if wanted(case.name)], 2 * rounds, seconds / 20)
        if any(map(wanted, ("import", "memory", "start"))):
            print_programs(names, wanted, directory, rounds)
        loads = [number for number, load in enumerate(LOADS) if wanted(load.name)]
        print_loads(loads, rounds // 2 + 1, seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be"]:
        play(*json.loads(sys.argv[2]))
    else:
        main()
