"""Measure webapp.py against the frameworks that are installed, and against no framework at all.

    python3 examples/benchmark.py                        # everything: several minutes
    python3 examples/benchmark.py --only hello,json      # the measurements whose names begin so
    python3 examples/benchmark.py --frameworks webapp,bottle --json
    python3 examples/benchmark.py --quick                # seconds: does it run? Its figures mean nothing.

How it measures, and why so:

- Each framework has a process of its own: none pays for the modules, objects or garbage of another.
- Rounds are interleaved: every framework is timed once, then all of them again, beginning with the next one.
  A machine that slows down slows down for everybody. A figure is the median of its rounds, a ratio the median
  of the ratios *within* the rounds, which is steadier than the ratio of two medians.
- An application is called as a server calls it, with a fresh copy of the environment; its result is consumed
  and closed. No socket is involved: that is the server's time, and the same for all.
- Every request is made once before it is timed; status, body and hooks are compared with what is expected.
  Who answers otherwise gets `-` and a line on stderr: a wrong answer has no speed.
- The garbage collector stays on, since a framework that leaves cycles behind should pay for them, but what is
  alive before a round is frozen, so that nobody pays for the size of the benchmark itself.
- Repeating until a round is long enough to measure is the warm-up. Tracebacks are formatted, then dropped.

How to read the table: microseconds per request, less is better. `bare` looks up a ready answer and does no
more: it is what the harness costs. `ratio` is webapp's figure divided by that of `against`, the fastest peer
unless something else stands there; `target` is what the project allows it to be. Carry over ratios, never
microseconds, and keep them in proportion: a handler that asks a database one question spends 500 µs on it.
"""

from __future__ import annotations

import argparse
import contextlib
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
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from operator import sub, truediv
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

Environ = dict[str, Any]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
Routes = list[tuple[str, str]]  # (pattern, methods), in the order of registration
Rounds = dict[str, list[float]]  # what each framework took, round by round

REGISTERING_MS = 0.015  # per route: 150 ms for 10,000
GROWTH_KIB = 256  # what an allocator may keep for itself without it being a leak

# --- What is asked --------------------------------------------------------------------------------

HELLO = "Hello World"
DOCUMENT = {"id": 7, "name": "Ada", "tags": ["a", "b", "c"], "active": True, "score": 1.5}
ANY_JSON = "<any JSON object>"  # every framework has an error document of its own shape
ANYTHING = "<anything>"
JSON, MULTIPART = "application/json", "multipart/form-data; boundary=limit"
TALLY = itertools.count()  # every hook takes a number, so that the harness can tell how many ran


class Sink(io.TextIOBase):
    """Take text and forget it."""

    def write(self, text: str) -> int:
        """Say that all of it was written."""
        return len(text)


class Request(NamedTuple):
    """A request, and what an application must answer to it."""

    environ: Environ
    body: bytes
    status: int
    answer: Any


class Scenario(NamedTuple):
    """Requests that are timed together; the scenarios of one group are interleaved, too."""

    name: str
    title: str
    target: float | None
    requests: list[Request]
    routes: Routes = []  # in front of the handful that every application has
    hooks: int = 0  # how many a request runs
    group: str = ""


def request(
    method: str,
    target: str,
    answer: Any = ANYTHING,
    status: int = 200,
    body: bytes = b"",
    content_type: str = "application/x-www-form-urlencoded",
    **headers: str,
) -> Request:
    """Make a request, with the environment that a server makes for a plain browser."""
    path, _, query = target.partition("?")
    environ: Environ = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": "50000",
        "HTTP_HOST": "127.0.0.1:8000",
        "HTTP_USER_AGENT": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
        "HTTP_ACCEPT": "*/*",
        "HTTP_ACCEPT_LANGUAGE": "en-GB,en;q=0.5",
        "HTTP_CONNECTION": "keep-alive",
        "HTTP_ACCEPT_ENCODING": "gzip, deflate",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": Sink(),
        "wsgi.input": io.BytesIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    if body:
        environ.update(CONTENT_TYPE=content_type, CONTENT_LENGTH=str(len(body)))
    environ.update({f"HTTP_{name.upper()}": value for name, value in headers.items()})
    return Request(environ, body, status, answer)


def upload(count: int, size: int) -> Request:
    """Make a form of `count` files of `size` random bytes each; the answer is the sum of their sizes."""
    head = (
        b'--limit\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n"
    )
    body = (head + random.Random(0).randbytes(size) + b"\r\n") * count + b"--limit--\r\n"
    return request("POST", "/upload", str(count * size), 200, body, MULTIPART)


# The REST interface of GitHub, version 3, as far as some 200 routes: a prefix (- is none), suffix:methods by
# their letters. A literal stands before the parameter it collides with, for peers that take the first fit.
METHODS = {"G": "GET", "P": "POST", "U": "PUT", "A": "PATCH", "D": "DELETE"}
GITHUB_TEXT = """
- /authorizations:GP /authorizations/{id}:GD /applications/{client_id}/tokens:D
  /applications/{client_id}/tokens/{access_token}:GD /events:G /feeds:G /networks/{owner}/{repo}/events:G
  /emojis:G /gitignore/templates:G /gitignore/templates/{name}:G /markdown:P /markdown/raw:P /meta:G
  /rate_limit:G /issues:G /repositories:G
/notifications :GU /threads/{id}:G /threads/{id}/subscription:GUD
/gists :GP /public:G /starred:G /{id}:GD /{id}/star:GUD /{id}/forks:P /{id}/comments:GP
/search :G /repositories:G /code:G /issues:G /users:G
/orgs/{org} :G /events:G /issues:G /members:G /members/{user}:GD /public_members:G
  /public_members/{user}:GUD /repos:GP /teams:GP
/teams/{id} :GD /members:G /members/{user}:GUD /repos:G /repos/{owner}/{repo}:GUD
/user :G /emails:GPD /followers:G /following:G /following/{user}:GUD /issues:G /keys:GP /keys/{id}:GD
  /orgs:G /repos:GP /starred:G /starred/{owner}/{repo}:GUD /subscriptions:G
  /subscriptions/{owner}/{repo}:GUD /teams:G
/users :G /{user}:G /{user}/events:G /{user}/events/public:G /{user}/events/orgs/{org}:G /{user}/followers:G
/users/{user} /following:G /following/{target}:G /gists:G /keys:G /orgs:G /received_events:G
  /received_events/public:G /repos:G /starred:G /subscriptions:G
/repos/{owner}/{repo} :GD /assignees:G /assignees/{assignee}:G /branches:G /branches/{branch}:G
  /collaborators:G /collaborators/{user}:GUD /comments:G /comments/{id}:GD /commits:G /commits/{sha}:G
  /commits/{sha}/comments:GP /compare/{range}:G /contents/{name}:GUD /contributors:G /downloads:G
  /downloads/{id}:GD /events:G /forks:GP /git/blobs:P /git/blobs/{sha}:G /git/commits:P /git/commits/{sha}:G
  /git/refs:GP /git/tags:P /git/tags/{sha}:G /git/trees:P /git/trees/{sha}:G /hooks:GP /hooks/{id}:GD
  /hooks/{id}/tests:P /issues:GP /issues/{number}:G /issues/{number}/comments:GP /issues/{number}/events:G
  /issues/{number}/labels:GPUD /issues/{number}/labels/{name}:D /keys:GP /keys/{id}:GD /labels:GP
  /labels/{name}:GD /languages:G /merges:P /milestones:GP /milestones/{number}:GD /notifications:GU /pulls:GP
  /pulls/{number}:GA /pulls/{number}/files:G /pulls/{number}/merge:GU /readme:G /releases:GP
  /releases/{id}:GAD /stargazers:G /stats/code_frequency:G /stats/commit_activity:G /stats/contributors:G
  /stats/participation:G /stats/punch_card:G /subscribers:G /subscription:GUD /tags:G /teams:G
"""


def github_routes() -> Routes:
    """Spell out the table."""
    blocks = [block.split() for block in re.split(r"\n(?! )", GITHUB_TEXT.strip())]
    entries = [(prefix.strip("-") + suffix).split(":") for prefix, *suffixes in blocks for suffix in suffixes]
    return [(pattern, " ".join(METHODS[letter] for letter in letters)) for pattern, letters in entries]


def github_requests(count: int = 50) -> list[Request]:
    """Ask for `count` routes that are evenly spread over the whole table."""
    routes = [(method, pattern) for pattern, methods in github_routes() for method in methods.split()]
    return [
        request(method, re.sub(r"{\w+}", "octocat", pattern), f"{method} {pattern}")
        for method, pattern in (routes[i * len(routes) // count] for i in range(count))
    ]


def numbered(kind: str, count: int, target: float | None) -> Scenario:
    """Ask for the last of `count` routes that are all siblings."""
    patterns = [f"/item{i}" + ("/{id}" if kind == "parameter" else "") for i in range(count)]
    asked = request("GET", patterns[-1].replace("{id}", "x"), f"GET {patterns[-1]}")
    return Scenario(
        f"{kind}-{count}",
        f"{count:,} routes, the last, {kind}",
        target,
        [asked],
        [(pattern, "GET") for pattern in patterns],
        group=kind,
    )


def scenarios(largest: int = 10_000) -> list[Scenario]:
    """List what is timed; a target is a ratio to the fastest peer."""
    form = b"name=Ada+Lovelace&city=Grand+Rapids%2C+MI&mail=ada%40example.org&age=36&newsletter=on"
    people = [{"id": i, "name": f"person {i}", "tags": ["x", "y"], "score": i / 8} for i in range(15)]
    document = json.dumps({"name": "Ada", "people": people}).encode()
    tables = [
        ("literal", 10, None),
        ("literal", 1_000, 0.3),
        ("literal", 10_000, 0.3),
        ("parameter", 10, None),
        ("parameter", 1_000, 0.18),
        ("parameter", 10_000, 0.07),
    ]
    return [
        Scenario("hello", "hello, text", 0.6, [request("GET", "/hello", HELLO)]),
        Scenario("json", "small JSON document", 0.55, [request("GET", "/json", DOCUMENT)]),
        Scenario("one-parameter", "one path parameter", 0.7, [request("GET", "/people/ada", "ada")]),
        Scenario("github", "GitHub table, 50 paths", 0.75, github_requests(), github_routes()),
        *(numbered(*table) for table in tables if table[1] <= largest),
        Scenario("404", "404 as JSON", 0.5, [request("GET", "/nowhere", ANY_JSON, 404, accept=JSON)]),
        Scenario("405", "405 with Allow", 0.4, [request("DELETE", "/hello", ANYTHING, 405)]),
        Scenario("hook", "exception, error hook", 0.8, [request("GET", "/taken", "taken", 409)]),
        Scenario("crash", "exception, default body, log", 1.0, [request("GET", "/crash", ANYTHING, 500)]),
        Scenario("form", "form of five fields", 1.25, [request("POST", "/form", "Grand Rapids, MI", body=form)]),
        Scenario("body", "JSON body of 1 KiB", 0.95, [request("POST", "/json", "Ada", 200, document, JSON)]),
        # webapp spools files of more than 256 KiB; the peers are told to keep all in memory where they can be
        # told. The second row therefore compares a disk with memory, and its target allows for that.
        Scenario("multipart-memory", "multipart, 4 files of 256 KiB", 1.2, [upload(4, 2**18)]),
        Scenario("multipart-spooled", "multipart, 1 file of 1 MiB", 3.0, [upload(1, 2**20)]),
        Scenario("nested", "three before, three after hooks", 0.7, [request("GET", "/a/b/c/hello", HELLO)], hooks=6),
    ]


# --- Who answers: each as its documentation says, in its fastest reasonable configuration ---------


class Taken(Exception):
    """An application's own exception, which it wants answered with a 409."""


def throw(kind: type[Exception]) -> Any:
    """Raise a new exception: one that is raised twice drags its old traceback along."""
    raise kind("out of order")


def count(*_: Any) -> None:
    """Be a hook."""
    next(TALLY)


def counting(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a handler with what a before and an after hook do."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        next(TALLY)
        result = handler(*args, **kwargs)
        next(TALLY)
        return result

    return counted


def size_of(file: Any) -> int:
    """Tell the size of an open file without reading it."""
    return int(file.seek(0, os.SEEK_END))


def angled(pattern: str) -> str:
    """Write {name} as <name>."""
    return pattern.replace("{", "<").replace("}", ">")


def each(routes: Routes) -> Iterator[tuple[str, str, str]]:
    """Yield every method, pattern, and the answer that shows that its very handler was called."""
    for pattern, methods in routes:
        for method in methods.split():
            yield method, pattern, f"{method} {pattern}"


def bare_app(routes: Routes, hooked: bool) -> App:
    """Look up a ready answer: what is left when there is no framework."""
    answers = {}
    for asked in itertools.chain.from_iterable(scenario.requests for scenario in scenarios()):
        text = asked.answer if isinstance(asked.answer, str) else json.dumps(asked.answer)
        key = asked.environ["REQUEST_METHOD"], asked.environ["PATH_INFO"]
        answers[key] = f"{asked.status} Ready", (text if text != ANY_JSON else "{}").encode()

    def app(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, body = answers[environ["REQUEST_METHOD"], environ["PATH_INFO"]]
        start_response(status, [("Allow", "GET"), ("Content-Length", str(len(body)))])
        return [body]

    return app


def webapp_app(routes: Routes, hooked: bool) -> App:
    """Build it with webapp.py."""
    from webapp import WebApp

    class Application(WebApp):
        def resolve_status_code(self, cause: Exception) -> int:
            return 409 if isinstance(cause, Taken) else super().resolve_status_code(cause)

    def saying(text: str) -> Callable[[Any], str]:
        return lambda context: text

    app = Application()
    for method, pattern, text in each(routes):
        app.route(method, pattern, saying(text))
    app.get("/hello", lambda context: HELLO)
    app.get("/json", lambda context: DOCUMENT)
    app.get("/people/{name}", lambda context, name: name)
    app.get("/crash", lambda context: throw(RuntimeError))
    app.post("/form", lambda context: context.request.form["city"])
    app.post("/json", lambda context: context.request.json["name"])
    app.post("/upload", lambda context: str(sum(file.size for file in context.request.files.getall("file"))))
    with app.path("/taken") as taken:
        taken.error(lambda context, cause, status_code: "taken")
        taken.get("", lambda context: throw(Taken))
    with app.path("/a") as a, a.path("/b") as b, b.path("/c") as c:
        for scope in (a, b, c):
            scope.before(count)
            scope.after(count)
        c.get("/hello", lambda context: HELLO)
    return app


def bottle_app(routes: Routes, hooked: bool) -> App:
    """Build it with Bottle; hooks are decorators of the route: its own are the whole application's."""
    import bottle

    bottle.BaseRequest.MEMFILE_MAX = 2**21

    class Conflict(bottle.HTTPError):  # error handlers go by status
        def __init__(self, *_: Any) -> None:
            super().__init__(409)

    def json_error(error: Any) -> str:
        bottle.response.content_type = "application/json"
        return json.dumps({"error": error.body})

    asked = bottle.request
    app = bottle.Bottle()
    for method, pattern, text in each(routes):
        app.route(angled(pattern), method, lambda text=text, **_: text)
    app.get("/hello", callback=lambda: HELLO)
    app.get("/json", callback=lambda: DOCUMENT)
    app.get("/people/<name>", callback=lambda name: name)
    app.get("/crash", callback=lambda: throw(RuntimeError))
    app.get("/taken", callback=lambda: throw(Conflict))
    app.post("/form", callback=lambda: asked.forms["city"])
    app.post("/json", callback=lambda: asked.json["name"])
    app.post("/upload", callback=lambda: str(sum(size_of(part.file) for part in asked.files.getall("file"))))
    app.get("/a/b/c/hello", callback=lambda: HELLO, apply=[counting] * 3)
    app.error(404, json_error)
    app.error(405, json_error)  # its own page is a template, and slow
    app.error(409, lambda error: "taken")
    return app


def flask_app(routes: Routes, hooked: bool) -> App:
    """Build it with Flask; hooks belong to three nested blueprints."""
    import flask

    class InMemory(flask.Request):
        def _get_file_stream(self, *args: Any, **kwargs: Any) -> Any:
            return io.BytesIO()

    def after(response: Any) -> Any:
        next(TALLY)
        return response

    asked = flask.request
    app = flask.Flask("benchmark", static_folder=None)
    app.request_class = InMemory
    for method, pattern, text in each(routes):
        app.add_url_rule(angled(pattern), text, lambda text=text, **_: text, methods=[method])
    app.add_url_rule("/hello", "hello", lambda: HELLO)
    app.add_url_rule("/json", "json", lambda: DOCUMENT)
    app.add_url_rule("/people/<name>", "people", lambda name: name)
    app.add_url_rule("/crash", "crash", lambda: throw(RuntimeError))
    app.add_url_rule("/taken", "taken", lambda: throw(Taken))
    app.post("/form")(lambda: asked.form["city"])
    app.add_url_rule("/json", "body", lambda: asked.get_json()["name"], methods=["POST"])
    app.add_url_rule(
        "/upload",
        "upload",
        methods=["POST"],
        view_func=lambda: str(sum(size_of(part.stream) for part in asked.files.getlist("file"))),
    )
    app.register_error_handler(404, lambda error: ({"error": error.name}, 404))
    app.register_error_handler(Taken, lambda error: ("taken", 409))
    a, b, c = (flask.Blueprint(name, "benchmark", url_prefix="/" + name) for name in "abc")
    c.add_url_rule("/hello", "hello", lambda: HELLO)
    for parent, blueprint in ((b, c), (a, b), (app, a)):
        blueprint.before_request(count)
        blueprint.after_request(after)
        parent.register_blueprint(blueprint)
    return app


def falcon_app(routes: Routes, hooked: bool) -> App:
    """Build it with Falcon; hooks are middleware, faster there by a third than those of one responder."""
    import falcon

    class Hooks:
        def process_request(self, req: Any, resp: Any) -> None:
            next(TALLY)

        def process_response(self, req: Any, resp: Any, resource: Any, succeeded: bool) -> None:
            next(TALLY)

    def responder(text: str) -> Callable[..., None]:
        def respond(req: Any, resp: Any, **params: str) -> None:
            resp.text = text

        return respond

    class Small:
        on_get_hello = on_get_nested = staticmethod(responder(HELLO))

        def on_get_json(self, req: Any, resp: Any) -> None:
            resp.content_type = falcon.MEDIA_JSON
            resp.media = DOCUMENT

        def on_get_people(self, req: Any, resp: Any, name: str) -> None:
            resp.text = name

        def on_get_crash(self, req: Any, resp: Any) -> None:
            throw(RuntimeError)

        def on_get_taken(self, req: Any, resp: Any) -> None:
            throw(Taken)

        def on_post_form(self, req: Any, resp: Any) -> None:
            resp.text = req.get_media()["city"]

        def on_post_json(self, req: Any, resp: Any) -> None:
            resp.text = req.get_media()["name"]

        def on_post_upload(self, req: Any, resp: Any) -> None:
            resp.text = str(sum(len(part.stream.read()) for part in req.get_media()))

    def taken(req: Any, resp: Any, error: Exception, params: Any) -> None:
        resp.status, resp.text = falcon.HTTP_409, "taken"

    app = falcon.App(media_type=falcon.MEDIA_TEXT, middleware=[Hooks() for _ in range(3 if hooked else 0)])
    for pattern, methods in routes:
        app.add_route(
            pattern,
            SimpleNamespace(**{f"on_{method.lower()}": responder(f"{method} {pattern}") for method in methods.split()}),
        )
    app.add_route("/people/{name}", Small(), suffix="people")
    app.add_route("/a/b/c/hello", Small(), suffix="nested")
    for name in ("hello", "json", "crash", "taken", "form", "upload"):
        app.add_route("/" + name, Small(), suffix=name)
    app.add_error_handler(Taken, taken)
    return app


def microdot_app(routes: Routes, hooked: bool) -> App:
    """Build it with Microdot; handlers are coroutines, since plain functions cost it a thread switch each."""
    from microdot.multipart import FileUpload, FormDataIter
    from microdot.wsgi import Microdot, Request

    Request.max_content_length = Request.max_body_length = 2**21
    FormDataIter.buffer_size = 2**16

    def coroutine(function: Callable[..., Any]) -> Callable[..., Any]:
        async def handler(*args: Any, **params: Any) -> Any:
            return function(*args, **params)

        return handler

    async def upload(request: Any) -> str:
        parts = FormDataIter(request)
        return str(sum([len(await part.read()) async for _, part in parts if isinstance(part, FileUpload)]))

    app, scope = Microdot(), Microdot()
    for method, pattern, text in each(routes):
        app.route(angled(pattern), methods=[method])(coroutine(lambda request, text=text, **_: text))
    app.get("/hello")(coroutine(lambda request: HELLO))
    app.get("/json")(coroutine(lambda request: DOCUMENT))
    app.get("/people/<name>")(coroutine(lambda request, name: name))
    app.get("/crash")(coroutine(lambda request: throw(RuntimeError)))
    app.get("/taken")(coroutine(lambda request: throw(Taken)))
    app.post("/form")(coroutine(lambda request: request.form["city"]))
    app.post("/json")(coroutine(lambda request: request.json["name"]))
    app.post("/upload")(upload)
    app.errorhandler(404)(coroutine(lambda request: ({"error": "Not Found"}, 404)))
    app.errorhandler(Taken)(coroutine(lambda request, error: ("taken", 409)))
    for _ in range(3):
        scope.before_request(coroutine(count))
        scope.after_request(coroutine(count))
    scope.get("/hello")(coroutine(lambda request: HELLO))
    app.mount(scope, "/a/b/c", local=True)
    return app


def pyramid_app(routes: Routes, hooked: bool) -> App:
    """Build it with Pyramid; hooks are decorators of the view; a method it does not know is a 404."""
    from pyramid.config import Configurator
    from pyramid.response import Response

    def add(pattern: str, view: Callable[..., Any], **options: Any) -> None:
        config.add_route(pattern, pattern)
        config.add_view(view, route_name=pattern, **options)

    config = Configurator()
    for pattern, _ in routes:
        config.add_route(pattern, pattern)
    for method, pattern, text in each(routes):
        config.add_view(lambda request, text=text: Response(text), route_name=pattern, request_method=method)
    add("/hello", lambda request: Response(HELLO), request_method="GET")
    add("/json", lambda request: DOCUMENT, renderer="json", request_method="GET")
    config.add_view(lambda request: Response(request.json_body["name"]), route_name="/json", request_method="POST")
    add("/people/{name}", lambda request: Response(request.matchdict["name"]))
    add("/crash", lambda request: throw(RuntimeError))
    add("/taken", lambda request: throw(Taken))
    add("/form", lambda request: Response(request.POST["city"]))
    add("/upload", lambda request: Response(str(sum(size_of(part.file) for part in request.POST.values()))))
    add("/a/b/c/hello", lambda request: Response(HELLO), decorator=(counting,) * 3)
    config.add_exception_view(lambda error, request: Response("taken", status=409), context=Taken)
    return config.make_wsgi_app()


BUILDERS: dict[str, Callable[[Routes, bool], App]] = {
    "bare": bare_app,
    "webapp": webapp_app,
    "bottle": bottle_app,
    "falcon": falcon_app,
    "flask": flask_app,
    "microdot": microdot_app,
    "pyramid": pyramid_app,
}
# What to import, and the smallest application, for a process that has loaded nothing else: this one has half
# of the standard library loaded, which would hide the cost of whoever loads it, too.
LEAN = {
    "bare": ("pass", "def app(environ, start): start('200 OK', []); return [b'Hello']"),
    "webapp": ("import webapp", "app = webapp.WebApp(); app.get('/hello', lambda context: 'Hello')"),
    "bottle": ("import bottle", "app = bottle.Bottle(); app.get('/hello')(lambda: 'Hello')"),
    "falcon": (
        "import falcon",
        "class Hello:\n def on_get(self, req, resp): resp.text = 'Hello'\n"
        "app = falcon.App(); app.add_route('/hello', Hello())",
    ),
    "flask": ("import flask", "app = flask.Flask('lean'); app.get('/hello')(lambda: 'Hello')"),
    "microdot": (
        "import microdot.wsgi",
        "app = microdot.wsgi.Microdot()\n@app.get('/hello')\nasync def hello(request): return 'Hello'",
    ),
    "pyramid": (
        "from pyramid.config import Configurator; from pyramid.response import Response",
        "config = Configurator(); config.add_route('hello', '/hello')\n"
        "config.add_view(lambda request: Response('Hello'), route_name='hello')\n"
        "app = config.make_wsgi_app()",
    ),
}

# --- How one framework is measured: in a worker ---------------------------------------------------


class FormattingSink(logging.Handler):
    """Format a record, which is what costs, and forget it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Format it."""
        self.format(record)


def ignore(status: str, headers: Any, exc_info: Any = None) -> None:
    """Be the start_response of a server that looks at nothing (and of which nobody wants a write())."""


def call(app: App, request: Request, start_response: Callable[..., Any] = ignore) -> bytes:
    """Serve a request as a server does."""
    environ = request.environ.copy()
    if request.body:
        environ["wsgi.input"] = io.BytesIO(request.body)
    result = app(environ, start_response)
    body = b"".join(result)
    if hasattr(result, "close"):
        result.close()
    return body


class Wrong(Exception):
    """An answer that is not the expected one. Raised by check; ends a framework's part in a scenario."""


def check(app: App, request: Request, hooks: int) -> None:
    """Raise Wrong unless the request gets the expected answer and runs the expected number of hooks."""
    started: list[Any] = []
    first = next(TALLY)
    try:
        body = call(app, request, lambda *arguments: started.extend(arguments))
    except Exception as error:
        raise Wrong(f"raises {error!r}") from error
    ran = next(TALLY) - first - 1
    if not started[0].startswith(f"{request.status} "):
        raise Wrong(f"answers {started[0]}")
    if request.status == 405 and all(name.lower() != "allow" for name, _ in started[1]):
        raise Wrong("answers 405 without Allow")
    if ran != hooks:
        raise Wrong(f"runs {ran} hooks")
    if not fits(body, request.answer):
        raise Wrong(f"answers {body[:60]!r}")


def fits(body: bytes, expected: Any) -> bool:
    """Tell whether a body is the expected one: text to the byte, JSON by its meaning."""
    if isinstance(expected, str) and expected != ANY_JSON:
        return expected in (ANYTHING, body.decode())
    document = json.loads(body)
    return isinstance(document, dict) if expected == ANY_JSON else bool(document == expected)


def resident() -> float:
    """Tell this process's resident memory in KiB: now (VmRSS) on Linux, elsewhere the most it ever was."""
    try:
        with open("/proc/self/status") as status:
            return float(next(line for line in status if line.startswith("VmRSS")).split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)


def run(app: App, requests: list[Request], repeats: int) -> float:
    """Make the requests that many times, and tell the seconds it took."""
    start = time.perf_counter()
    for _ in range(repeats):
        for request in requests:
            call(app, request)
    return time.perf_counter() - start


class Bench:
    """Measure one framework; each method is a question that the parent asks."""

    def __init__(self, framework: str, largest: int) -> None:
        """Build nothing yet: the parent says what."""
        self._build = BUILDERS[framework]
        self._scenarios = {scenario.name: scenario for scenario in scenarios(largest)}
        self._prepared: dict[str, tuple[App, int]] = {}

    def prepare(self, name: str, seconds: float) -> float:
        """Build and check an application, which takes so many ms; find how often it fits into a round."""
        scenario = self._scenarios[name]
        start = time.perf_counter()
        app = self._build(scenario.routes, scenario.hooks > 0)
        for request in scenario.requests:
            check(app, request, scenario.hooks)
        built = time.perf_counter() - start
        repeats = 1
        while (elapsed := run(app, scenario.requests, repeats)) < seconds / 4:
            repeats *= 2
        self._prepared[name] = app, max(1, round(repeats * seconds / elapsed))
        return built * 1e3

    def time(self, name: str) -> float:
        """Time one round, in microseconds per request."""
        app, repeats = self._prepared[name]
        requests = self._scenarios[name].requests
        gc.collect()
        gc.freeze()
        return run(app, requests, repeats) / repeats / len(requests) * 1e6

    def forget(self) -> None:
        """Drop the applications: a large table shall not slow down what comes after it."""
        self._prepared.clear()
        gc.unfreeze()
        gc.collect()

    def growth(self, count: int) -> float:
        """Tell by how many KiB resident memory grows over `count` mixed requests, after a tenth of them."""
        app = self._build([], False)
        mixed = []
        for scenario in self._scenarios.values():
            if not scenario.routes and not scenario.hooks and len(scenario.requests[0].body) < 2**20:
                with contextlib.suppress(Wrong):
                    check(app, scenario.requests[0], 0)
                    mixed += scenario.requests
        run(app, mixed, count // 10 // len(mixed))
        before = resident()
        run(app, mixed, count // len(mixed))
        return resident() - before

    def parser(self, title: str, size: int) -> list[float]:
        """Tell, several times, how much longer a request with ten times the input takes."""
        app = parsing_app()
        small, large = PARSERS[title](size), PARSERS[title](10 * size)
        check(app, small, 0)
        check(app, large, 0)

        def ratio() -> float:
            gc.collect()
            gc.freeze()
            # Ten small ones against one large one: intervals of one length meet the same interruptions.
            pairs = [(run(app, [small], 10), run(app, [large], 1)) for _ in range(5)]
            tens, ones = zip(*pairs)
            return 10 * min(ones) / min(tens)

        return [ratio() for _ in range(5)]


def parsing_app() -> App:
    """Build an application that reads what the path names, with its limits out of the way."""
    from webapp import WebApp

    app = WebApp(max_body_size=2**30, max_form_memory=2**30, max_fields=2**30)
    app.get("/query", lambda context: str(len(context.request.query)))
    app.post("/form", lambda context: str(len(context.request.form)))
    app.post("/json", lambda context: str(len(context.request.json)))
    app.get("/cookies", lambda context: str(len(context.request.cookies)))
    app.get("/accept", lambda context: str(context.request.accepts("image/png")))  # not kept, as accept_json is
    app.get("/range", lambda context: context.response.file(__file__))
    for pattern in ("", "/{rest:path}", "/{a}/{b:int}/c", "/a/{b}/{rest:path}", "/{a}/a/a/b"):
        app.get("/path" + pattern, lambda context: "found")
    return app


def form_of(body: bytes) -> Request:
    """Post a multipart form."""
    return request("POST", "/form", body=body + b"\r\n--limit--\r\n", content_type=MULTIPART)


# Usual input of each parser, and the sort that drives a careless one to start over at every byte.
PART = b'--limit\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
PARSERS: dict[str, Callable[[int], Request]] = {
    "query": lambda n: request("GET", "/query?" + "a=1&" * n),
    "query, only %": lambda n: request("GET", "/query?" + "%" * n),
    "form": lambda n: request("POST", "/form", body=b"a=%41&" * n),
    "JSON": lambda n: request("POST", "/json", body=b"[" + b"1," * n + b"1]", content_type=JSON),
    "JSON, only [": lambda n: request("POST", "/json", status=400, body=b"[" * n, content_type=JSON),
    "multipart": lambda n: form_of((PART + b"1\r\n") * n),
    "multipart, nearly boundaries": lambda n: form_of(PART + b"\r\n--limi" * n),
    "cookies": lambda n: request("GET", "/cookies", cookie="a=1; " * n),
    "cookies, only quotes": lambda n: request("GET", "/cookies", cookie='a="' * n),
    "Accept": lambda n: request("GET", "/accept", accept="text/html;q=0.5, " * n),
    "Accept, quotes left open": lambda n: request("GET", "/accept", accept='a/b;c="\\",' * n),
    "path": lambda n: request("GET", "/path" + "/a" * n),
    "path, only slashes": lambda n: request("GET", "/path" + "/" * n),
    "Range": lambda n: request("GET", "/range", range="bytes=" + "0-1," * n),
}


def work(framework: str, largest: int) -> None:
    """Answer questions, a line of JSON each; what the framework itself prints is dropped."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = sys.stderr = Sink()
    logging.basicConfig(handlers=[FormattingSink()])
    bench = Bench(framework, largest)
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        try:
            reply = {"reply": getattr(bench, question)(*arguments)}
        except Exception as error:
            reply = {"failure": str(error) if isinstance(error, Wrong) else repr(error)}
        replies.write(json.dumps(reply) + "\n")


# --- How frameworks are compared: in the parent ---------------------------------------------------


class Worker:
    """A framework in a process of its own; only one of them is ever at work."""

    def __init__(self, framework: str, largest: int) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", framework, str(largest)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *question: Any) -> Any:
        """Call a method of its Bench, given by name; what fails there is a RuntimeError here."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline() or '{"failure": "the process has died"}')
        if "failure" in reply:
            raise RuntimeError(reply["failure"])
        return reply["reply"]

    def close(self) -> None:
        """End it, by ending its input."""
        self._process.communicate()


class Row(NamedTuple):
    """A line of the table."""

    title: str
    unit: str
    rounds: Rounds
    against: str = ""
    ratio: float | None = None
    target: float | None = None

    def median(self, name: str) -> float | None:
        """Reduce the rounds of a framework to one figure."""
        return statistics.median(self.rounds[name]) if name in self.rounds else None


def compared(title: str, unit: str, rounds: Rounds, target: float | None = None, against: str = "") -> Row:
    """Make a row that compares webapp with one peer, the fastest by default."""
    peers = [name for name in rounds if name not in ("bare", "webapp") and against in ("", name)]
    best = min(peers, key=lambda name: statistics.median(rounds[name]), default="")
    ratio = None
    if best and "webapp" in rounds:
        ratio = statistics.median(map(truediv, rounds["webapp"], rounds[best]))
    return Row(title, unit, rounds, best, ratio, target)


def limited(title: str, unit: str, figures: dict[str, float], limit: float) -> Row:
    """Make a row that compares webapp with a fixed limit."""
    ratio = figures["webapp"] / limit if "webapp" in figures else None
    rounds = {name: [figure] for name, figure in figures.items()}
    return Row(title, unit, rounds, f"{limit:g} {unit}", ratio, 1.0)


def interleaved(keys: list[Any], count: int, measure: Callable[[Any], float]) -> dict[Any, list[float]]:
    """Measure every key once a round; each round begins with the next key."""
    rounds: dict[Any, list[float]] = {key: [] for key in keys}
    for i in range(count):
        for j in range(len(keys)):
            key = keys[(i + j) % len(keys)]
            rounds[key].append(measure(key))
    return rounds


def group_rows(workers: dict[str, Worker], group: list[Scenario], rounds: int, seconds: float) -> Iterator[Row]:
    """Time the scenarios of a group on every framework that gets them right."""
    built = {}
    for scenario, name in itertools.product(group, workers):
        try:
            built[scenario.name, name] = workers[name].ask("prepare", scenario.name, seconds)
        except RuntimeError as error:
            print(f"{name} is out of {scenario.name}: {error}", file=sys.stderr)
    times = interleaved(list(built), rounds, lambda key: workers[key[1]].ask("time", key[0]))
    for worker in workers.values():
        worker.ask("forget")
    for scenario in group:
        own = {name: times[scenario.name, name] for name in workers if (scenario.name, name) in times}
        yield compared(scenario.title, "µs", own, scenario.target)
    if group[0].group:
        yield from table_rows(group[0], group[-1], times, built)


def table_rows(
    small: Scenario, large: Scenario, times: dict[Any, list[float]], built: dict[Any, float]
) -> Iterator[Row]:
    """Compare the largest table with the smallest, and say what it took to build it."""
    if (large.name, "webapp") in times:
        ratio = statistics.median(map(truediv, times[large.name, "webapp"], times[small.name, "webapp"]))
        yield Row(f"  {len(large.routes):,} against {len(small.routes)} routes", "", {}, "itself", ratio, 1.1)
    spent = {name: took for (asked, name), took in built.items() if asked == large.name and name != "bare"}
    yield limited("  registering them, to the first answer", "ms", spent, REGISTERING_MS * len(large.routes))


def spawn(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter to its end."""
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)


def import_rows(names: list[str], rounds: int) -> Iterator[Row]:
    """Compare what an import adds to a bare interpreter, by the clock and by -X importtime."""

    def wall(name: str) -> float:
        start = time.perf_counter()
        spawn("-c", LEAN[name][0])
        return (time.perf_counter() - start) * 1e3

    def listed(name: str) -> float:
        report = spawn("-X", "importtime", "-c", LEAN[name][0]).stderr
        entries = [line.split("|") for line in report.partition("| site\n")[2].splitlines()]
        return sum(int(total) for _, total, module in entries if not module.startswith("  ")) / 1e3

    walls = interleaved(["bare", *names], rounds, wall)
    beyond = {name: list(map(sub, walls[name], walls["bare"])) for name in names}
    yield compared("import, beyond a bare interpreter", "ms", beyond, 0.6, "bottle")
    figures = interleaved(names, rounds // 2 + 1, listed)
    yield compared("import, as -X importtime says", "ms", figures, None, "bottle")


PROBE = """import io, sys
%s
bare = resident()
%s
loaded = resident()
%s
environ = dict(%r, **{"wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr, "wsgi.url_scheme": "http"})
b"".join(app(environ, lambda *arguments: None))
print(loaded - bare, resident() - bare)
"""


def memory_rows(names: list[str], rounds: int) -> Iterator[Row]:
    """Compare resident memory beyond that of the bare interpreter."""
    server = {key: value for key, value in request("GET", "/hello").environ.items() if key[:5] != "wsgi."}

    def probe(name: str) -> list[float]:
        printed = spawn("-c", PROBE % (inspect.getsource(resident), *LEAN[name], server)).stdout
        return [float(kib) / 1024 for kib in printed.split()]

    probes = {name: [probe(name) for _ in range(rounds)] for name in names}
    imported, answered = ({name: [pair[i] for pair in probes[name]] for name in names} for i in range(2))
    yield compared("memory after the import", "MiB", imported, None, "bottle")
    yield compared("memory after the first request", "MiB", answered, 0.7, "bottle")


def growth_row(names: list[str], count: int) -> Row:
    """Show what many requests leave behind, in new processes: in an old one, freed memory hides a leak."""
    grown = {}
    for name in names:
        with contextlib.closing(Worker(name, 0)) as worker:
            grown[name] = worker.ask("growth", count)
    return limited(f"growth over {count:,} mixed requests", "KiB", grown, GROWTH_KIB)


def parser_rows(worker: Worker, size: int) -> Iterator[Row]:
    """Compare what ten times the input costs with what the input costs."""
    for title in PARSERS:
        try:
            ratio = statistics.median(worker.ask("parser", title, size))
        except RuntimeError as error:
            print(f"webapp is out of {title}: {error}", file=sys.stderr)
        else:
            yield Row(f"ten times the {title}", "", {}, "a tenth", ratio, 11.0)


def measure(names: list[str], options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of the table as they are measured."""
    rounds, seconds, largest = options.rounds, options.seconds, 10_000
    if options.quick:
        rounds, seconds, largest = 3, 0.002, 1_000

    def wanted(name: str) -> bool:
        return name.startswith(tuple(options.only.split(",")))

    imported = [name for name in names if name != "bare"]
    for name in imported if wanted("import") or wanted("memory") else ():
        spawn("-c", LEAN[name][0])  # the first import compiles
    if wanted("import"):
        yield from import_rows(imported, 1 if options.quick else 11)
    if wanted("memory"):
        yield from memory_rows(imported, 1 if options.quick else 5)
    if wanted("growth"):
        yield growth_row(names, 1_000 if options.quick else 100_000)
    workers = {name: Worker(name, largest) for name in names}
    try:
        chosen = [scenario for scenario in scenarios(largest) if wanted(scenario.name)]
        for _, group in itertools.groupby(chosen, key=lambda scenario: scenario.group or scenario.name):
            yield from group_rows(workers, list(group), rounds, seconds)
        if wanted("parsers") and "webapp" in workers:
            yield from parser_rows(workers["webapp"], 100 if options.quick else 1_000)
    finally:
        for worker in workers.values():
            worker.close()


def line_of(row: Row, names: list[str]) -> str:
    """Lay out a line of the table."""
    medians = [row.median(name) for name in names]
    figures = "".join(f"{'-':>11}" if median is None else f"{median:>11,.2f}" for median in medians)
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    target = "" if row.target is None else f"{row.target:g}"
    missed = " missed" if row.ratio and row.target and row.ratio > row.target else ""
    return f"{row.title:<43} {row.unit:<3}{figures}  {row.against:<8}{ratio:>7}{target:>7}{missed}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    every = [*(scenario.name for scenario in scenarios()), "import", "memory", "growth", "parsers"]
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"beginnings of the names: {', '.join(every)}")
    parser.add_argument(
        "--frameworks",
        default=",".join(BUILDERS),
        metavar="NAME,...",
        help=f"some of {', '.join(BUILDERS)}; all that are installed, by default",
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds of a scenario")
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a round")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    parser.add_argument("--json", action="store_true", help="print one JSON document, with every round")
    return parser.parse_args()


def main() -> None:
    """Measure what the command line asks for, and print it."""
    options = arguments()
    with tempfile.TemporaryDirectory() as cache:
        # Without a cache that can be written, every import of a file compiles it.
        os.environ["PYTHONPYCACHEPREFIX"] = cache
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        report(options)


def report(options: argparse.Namespace) -> None:
    """Print the rows as they come, or one document."""
    above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, above)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))
    names = [
        name
        for name in BUILDERS
        if name in options.frameworks.split(",") and (name == "bare" or importlib.util.find_spec(name) is not None)
    ]
    machine = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
    if options.json:
        rows = [
            {**row._asdict(), "medians": {name: row.median(name) for name in row.rounds}}
            for row in measure(names, options)
        ]
        print(json.dumps({"machine": machine, "rows": rows}, indent=1))
        return
    print(f"{machine:<47}" + "".join(f"{name:>11}" for name in names) + "  against   ratio target")
    for row in measure(names, options):
        print(line_of(row, names), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        main()
