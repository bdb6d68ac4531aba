"""Measure what stalling clients cost the others: does a normal request still get its answer, and
how soon?

    python3 .ci/instruments/stalling.py              # each kind, then all: 12 minutes
    python3 .ci/instruments/stalling.py --kinds mix  # only all of them at once
    python3 .ci/instruments/stalling.py --kinds chunks,tls --seconds 15 --connections 200
    python3 .ci/instruments/stalling.py --port 8000 --pid 4711  # a running server
    python3 .ci/instruments/stalling.py --kinds work --compare old.py --rounds 3

Three processes take part, so that they do not wait for each other: the server, a crowd of clients
that stall (each kind in its own way), and a normal client. The normal client asks for `/` at a
steady rate, over one connection that is kept and over a new one each time. Each kind gets a new
server. Its normal client is timed before the crowd comes, and then beside it. Everything stays on
127.0.0.1 and ends by itself.

The table has a line for the connection that is kept and a line for new connections.

- `opened` is the number of connections that the crowd made. A client that is turned away comes
  again a second later.
- The times are milliseconds from the moment when a request was due to the end of its answer. A
  request without an answer after 5 s has failed. `alone` is the median without a crowd, and `ratio`
  is the median divided by it.
- The threads and the memory are the most that the server had. They come from /proc.
- Beside crowds that hold what uploads need (`upload`, `spool`), the normal client uploads something
  itself, and each upload has to be taken.
- The crowd of a kind of work does not stall. Its 64 clients ask as fast as they are answered, and
  their answers are counted. The normal client then asks for one thing after the other, so its times
  are waits of single requests, of up to 30 s.

With `--compare`, a server with another webapp.py takes turns with this one, `--rounds` times, and a
line below each kind says what part of the other's median wait and answers ours has.

A line below a kind names the goals that it missed, and then the exit status is 1: an answer failed;
the median is more than twice `alone` and a millisecond, or than the bound of a kind that is real
work; threads, memory or the log went beyond a bound. On a busy machine the median may miss its goal
without any fault of the server: measure again before you believe it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import http.client
import itertools
import json
import math
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

# Even if it is not installed; a server may need the folder of another copy.
sys.path.insert(1, os.environ.get("STALLING_WEBAPP") or str(Path(__file__).resolve().parents[2]))
import webapp
from webapp import Server, WebApp

WEBAPP = str(Path(webapp.__file__).resolve().parent)  # a folder
HOST = "127.0.0.1"
TIMEOUT = 5.0  # seconds, after which the normal client gives up
PATIENCE = 30.0  # seconds, beside a crowd that works
LARGE = 4 * 2**20  # bytes of a download: more than is under way when its reader stops
SPOOLED = 2**26  # bytes that all uploads together may have in temporary files

# ---- how a client can stall ----------------------------------------------------------------------


class Kind(NamedTuple):
    """What a connection of the crowd does. It is visited once a second, and each visit does the
    next thing."""

    # Sent as soon as there is a connection.
    first: bytes = b""
    # Sent at the following visits, one each; the last of them again and again.
    then: tuple[bytes, ...] = ()
    # Bytes of the answer that are taken at a visit. Few bytes mean a small window, too.
    takes: int = 2**16
    # Visits after which it leaves, with a reset or as browsers do, and whether it comes again then.
    stays: float = math.inf
    resets: bool = True
    returns: bool = True
    # "" is plain; "raw" sends to the port of TLS what is written here, "full" makes a handshake
    # first.
    tls: str = ""
    # Changes of the TLS key at each visit.
    updates: int = 0
    # How many there are at most.
    most: int = 10**6
    # What the normal client asks for beside it, how often in a second if that is not usual, and a
    # type and a body that it sends along; without a type in chunks.
    beside: str = "/"
    rate: float = 0
    sends: tuple[str, bytes] = ("", b"")
    # Seconds that the crowd has before the normal client is timed.
    start: float = 0
    # What else is in the environment of the server.
    environ: tuple[tuple[str, str], ...] = ()
    # KiB of the server's memory for each connection, if there is a bound of its own.
    memory: int | None = None
    # Milliseconds that the median may take beside a crowd that is real work.
    median: float = 0
    # A request that is sent over and over, as fast as it is answered: a kind of work.
    work: bytes = b""
    # What part of another copy's median wait the kept connection may have.
    share: float = math.inf


def asking(path: str, **more: object) -> Kind:
    """Ask for `path`, properly; what is peculiar comes after that."""
    return Kind(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), **more)


HALF_HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half: "
LENGTH = b"Content-Length: 1000\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
EXPECT = b"Expect: 100-continue\r\n"

# What follows the first two lines of a POST, and what follows that.
BODIES = {
    "length-none": (LENGTH + b"\r\n", ()),
    "length-large": (b"Content-Length: 1000000\r\n\r\n", ()),
    "length-half": (LENGTH + b"\r\n" + b"x" * 500, ()),
    "length-large-drip": (b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000, (b"x",)),
    "length-drip": (LENGTH + b"\r\n", (b"x",)),
    "chunks-none": (CHUNKED + b"\r\n", ()),
    "chunks-drip": (CHUNKED + b"\r\n", (b"1\r\nx\r\n",)),
    "chunks-bad": (CHUNKED + b"\r\n", (b"1\r\nx\r\n", b"1\r\nx\r\n", b"bad\r\n")),
    "expect-length": (EXPECT + LENGTH + b"\r\n", ()),
    "expect-chunks": (EXPECT + CHUNKED + b"\r\n", ()),
}
# Where such a body goes: to no route, to one that has no POST, to one that does not look, to two
# that read.
PATHS = {"404": ["/nowhere"], "405": ["/"], "unread": ["/unread"], "read": ["/upload", "/json"]}


def posting(path: str, rest: bytes, then: tuple[bytes, ...]) -> Kind:
    """Send a body to `path`, or rather do not."""
    start = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return Kind(start.encode() + rest, then)


def uploading(size: int) -> Kind:
    """Send so many bytes of one-byte chunks at each visit, behind 2 MiB in one chunk."""
    tiny = b"1\r\nx\r\n"
    large = b"200001\r\n" + bytes(2**21 + 1) + b"\r\n"
    return posting("/upload", CHUNKED + b"\r\n" + large, (tiny * (size // len(tiny)),))


def form_of(size: int) -> bytes:
    """Return a form with one file."""
    name = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n'
    return name + bytes(size) + b"\r\n--x--\r\n"


FORM = "multipart/form-data; boundary=x"


def list_uploads() -> dict[str, list[Kind]]:
    """Name the crowds that hold what uploads need: slots, temporary files, memory."""

    def form(announced: int, size: int) -> Kind:
        content = form_of(announced)
        start = f"POST /work HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\n"
        start += f"Content-Length: {len(content)}\r\n\r\n"
        return Kind(start.encode() + content[:size], (b"x",))

    beside = {"beside": "/upload", "rate": 5.0, "sends": ("application/json", bytes(2**21 + 1))}
    beside.update(median=100, start=2)
    length = b"Content-Length: 3000000\r\n"
    slots = {
        "upload-none": posting("/upload", length + b"\r\n", ()),
        "upload-expect": posting("/upload", EXPECT + length + b"\r\n", ()),
        "upload-chunks": posting("/upload", CHUNKED + b"\r\n2dc6c0\r\n", ()),
        "tls-upload": posting("/upload", length + b"\r\n", ())._replace(tls="full"),
    }
    # These keep their slots, and uploads beside them are refused; other requests are answered.
    begun = posting("/upload", length + b"\r\n" + bytes(2**16), ())
    # None of these crowds is younger than two seconds then.
    files = {"rate": 2.0, "median": 500, "start": 4.0, "memory": 2**12}
    large = {"beside": "/work", "sends": (FORM, form_of(2**23)), **files}
    chunk = posting("/mounted", CHUNKED + b"\r\n4c4b40\r\n" + bytes(2**22), (b"x",))
    # Each thread of glibc keeps memory that it has freed, unless all use the same.
    memory = {"memory": 13 * 2**16 // 10 // 49, "environ": (("MALLOC_ARENA_MAX", "1"),)}
    body = posting("/keep", b"Content-Length: 2000000\r\n\r\n" + bytes(1_900_000), (b"x",))
    return {
        **{name: [kind._replace(most=520, **beside)] for name, kind in slots.items()},
        "upload-begun": [begun._replace(most=520, median=50)],
        "spool-drip": [
            chunk._replace(most=16, beside="/mounted", sends=("", bytes(2**22)), **files)
        ],
        "spool-files": [form(2**23, 2**23)._replace(most=10, **large)],
        "spool-small": [form(3_000_000, 1_200_000)._replace(most=67, **large)],
        "collected": [body._replace(most=50, start=4, **memory)],
    }


def working(
    path: str, content_type: str = "", body: bytes = b"", share: float = math.inf
) -> list[Kind]:
    """Ask for something that takes the server's processor time."""
    start = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body:
        start = start.replace("GET", "POST")
        start += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    work = f"{start}\r\n".encode() + body
    return [Kind(work=work, most=64, median=1000, memory=2**15, share=share)]


def list_work() -> dict[str, list[Kind]]:
    """Name the kinds of work."""
    boundary, pairs = "x" * 40, [(f"name{number}", "9" * 950) for number in range(999)]
    parts = {
        kind: "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
            f"{value}\r\n"
            for name, value in pairs
        ).encode()
        + f"--{boundary}--\r\n".encode()
        for kind, more in (
            ("fields", ""),
            ("files", '; filename="a.txt"\r\nContent-Type: text/plain'),
        )
    }
    multipart = f"multipart/form-data; boundary={boundary}"
    document = json.dumps([number / 10_000 for number in range(10**4, 10**4 + 127_000)])
    form = "&".join(f"{name}=" + "%C3%A9" * 170 for name, _ in pairs).encode()
    urlencoded = "application/x-www-form-urlencoded"
    return {
        "work-json": working("/work", "application/json", document.encode(), 1 / 4),
        "work-form": working("/work", urlencoded, form, 1 / 2),
        "work-fields": working("/work", multipart, parts["fields"], 2 / 3),
        "work-files": working("/work", multipart, parts["files"], 1 / 4),
        "work-static": working("/numbers/7"),
    }


def update_keys(sock: ssl.SSLSocket, count: int) -> None:
    """Change the key so many times (RFC 8446 section 4.6.3), for which `ssl` has no function."""
    library = ctypes.CDLL(sys.modules["_ssl"].__file__)
    # The object of CPython begins with the pointers to a socket and to OpenSSL's own.
    address = id(sock._sslobj) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
    pointer = ctypes.c_void_p(ctypes.c_void_p.from_address(address).value)
    for _ in range(count):
        if library.SSL_do_handshake(pointer) != 1:  # the system takes no more
            return
        library.SSL_key_update(pointer, 0)


def client_hello() -> bytes:
    """Make the first message of a TLS handshake."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), sent, server_hostname="localhost"
        ).do_handshake()
    return sent.read()


def list_kinds() -> dict[str, list[Kind]]:
    """Name everything; the connections of the crowd take turns in what a name stands for."""
    kinds = {
        "silent": [Kind()],
        "idle": [asking("/")],
        "reset": [Kind(stays=1), Kind(HALF_HEAD, stays=1), asking("/bytes", takes=1, stays=1)],
        "pipelined": [asking("/bytes", then=(asking("/").first,), takes=0)],
        "head-half": [Kind(HALF_HEAD)],
        "head-second": [Kind(asking("/").first + HALF_HEAD)],
        "head-drip": [Kind(HALF_HEAD, (b"x",))],
        "head-lines": [Kind(b"\r", (b"\n\r",))],
    }
    for (body, parts), (where, paths) in itertools.product(BODIES.items(), PATHS.items()):
        kinds[f"{body}-{where}"] = [posting(path, *parts) for path in paths]
    for path in ("/bytes", "/file", "/endless"):
        kinds[f"slow-{path[1:]}"] = [asking(path, takes=1)]
        kinds[f"stopped-{path[1:]}"] = [asking(path, takes=0)]
    return {
        **kinds,
        **list_work(),
        **list_uploads(),
        "events-open": [asking("/events")],
        "events-closed-64": [asking("/events", stays=1, resets=False, returns=False, most=64)],
        "events-closed": [asking("/events", stays=1, resets=False, returns=False)],
        "events-again": [asking("/events", stays=4, resets=False)],
        "events-late": [asking("/late")],
        "events-late-closed": [
            asking("/late", stays=1, resets=False, returns=False, beside="/stream")
        ],
        # Nine of ten take all places, and the others are refused over and over.
        "events-refused": [*[asking("/late")] * 9, asking("/events", stays=1)],
        # So many answers that the system does not keep them all.
        "answer-stopped": [Kind(asking("/answer").first * 60, takes=0, memory=96, most=200)],
        "tiny-chunks-100": [uploading(20_000)._replace(most=100, memory=3072, median=60)],
        "tiny-chunks-200": [uploading(25_000)._replace(most=200, memory=3072, median=1000)],
        "tls-silent": [Kind(tls="raw")],
        "tls-hello-half": [Kind(client_hello()[:100], tls="raw")],
        "tls-hello": [Kind(client_hello(), takes=0, tls="raw")],
        # Ten bytes that announce 131,000; and a handshake each second, which is real work.
        "tls-hello-long": [Kind(b"\x16\x03\x01\x00\x04\x01\x01\xff\xb8", tls="raw")],
        "tls-hello-again": [Kind(client_hello(), takes=0, stays=1, tls="raw", median=100)],
        "tls-head": [Kind(HALF_HEAD, tls="full")],
        "tls-chunks": [posting("/nowhere", *BODIES["chunks-none"])._replace(tls="full")],
        "tls-slow": [asking("/bytes", takes=1, tls="full")],
        "tls-events": [asking("/events", tls="full")],
        "tls-updates": [asking("/", tls="full", updates=12_000, most=4, median=100)],
        "tls-updates-body": [
            posting("/upload", rest, ())._replace(tls="full", updates=12_000, most=4, median=100)
            for rest in (BODIES["length-half"][0], b"Content-Length: 3000000\r\n\r\nx")
        ],
    }


class Place:
    """One of the crowd: a connection, or the wish to have one."""

    def __init__(self, kind: Kind, port: int, trusted: ssl.SSLContext) -> None:
        self.kind, self.port, self.trusted = kind, port, trusted
        self.socket: socket.socket | None = None
        self.opened = self.visits = 0

    def visit(self) -> None:
        """Open the connection, or do the next thing with it; leave if the server has closed it."""
        if self.socket is None:
            if self.opened and not self.kind.returns:
                return
            self.open()
        elif self.visits >= self.kind.stays:
            self.leave(self.kind.resets)
            return
        try:
            self.act()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # which only means not yet
                self.leave(reset=True)
        self.visits += 1

    def open(self) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        if self.kind.takes < 2**16:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.connect_ex((HOST, self.port))
        self.opened += 1
        self.visits, self.unsent = 0, self.kind.first

    def act(self) -> None:
        if self.kind.tls == "full" and not isinstance(self.socket, ssl.SSLSocket):
            self.socket.getpeername()  # raises where there is no connection yet
            self.socket = self.trusted.wrap_socket(
                self.socket, do_handshake_on_connect=False, server_hostname=HOST
            )
        if self.visits and self.kind.then and not self.unsent:
            self.unsent = self.kind.then[min(self.visits, len(self.kind.then)) - 1]
        while self.unsent:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        if self.kind.updates:
            update_keys(self.socket, self.kind.updates)
        if self.visits:
            taken = (
                self.socket.recv(self.kind.takes)
                if self.kind.takes
                else self.socket.recv(1, socket.MSG_PEEK)
            )
            if not taken:
                raise ConnectionResetError

    def leave(self, reset: bool) -> None:
        if reset:  # so that no port stays taken for a minute
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
        self.socket = None


class Worker(threading.Thread):
    """One of a crowd that works: it sends a request as soon as the last one was answered."""

    def __init__(self, request: bytes, port: int) -> None:
        super().__init__(daemon=True)
        self.request, self.port = request, port
        self.opened = self.answers = 0

    def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.ask()
            time.sleep(0.1)

    def ask(self) -> None:
        with socket.create_connection((HOST, self.port), PATIENCE) as connection:
            self.opened += 1
            while True:
                connection.sendall(self.request)
                with http.client.HTTPResponse(connection) as response:
                    response.begin()
                    response.read()
                    self.answers += response.status == 200


def work(requests: list[bytes], port: int, seconds: float) -> None:
    """Be a crowd that works."""
    workers = [Worker(request, port) for request in requests]
    for worker in workers:
        worker.start()

    def answers() -> int:
        return sum(worker.answers for worker in workers)

    until = time.monotonic() + PATIENCE
    while answers() < 8 and time.monotonic() < until:  # so many bytes are still to arrive
        time.sleep(0.01)
    before = answers()
    print("ready", flush=True)
    time.sleep(seconds)
    opened = sum(worker.opened for worker in workers)
    print(json.dumps([opened, answers() - before]), flush=True)


def stall(
    names: list[str], connections: int, seconds: float, ports: list[int], directory: str
) -> None:
    """Be the crowd for a while: visit one place after the other, each once a second."""
    every = list_kinds()
    members = [kind for name in names for kind in every[name]]
    kinds = itertools.cycle(members)
    if members[0].work:
        work([kind.work for kind in itertools.islice(kinds, connections)], ports[0], seconds)
        return
    trusted = ssl.create_default_context(
        cafile=f"{directory}/certificate.pem" if len(ports) > 1 else None
    )
    places = [
        Place(kind, ports[bool(kind.tls)], trusted) for kind in itertools.islice(kinds, connections)
    ]
    print("ready", flush=True)
    started = time.monotonic()
    for turn in itertools.count():
        early = started + turn / connections - time.monotonic()
        if early > 0.005:
            time.sleep(early)
        if time.monotonic() >= started + seconds:
            break
        places[turn % connections].visit()
    print(json.dumps([sum(place.opened for place in places), 0]), flush=True)


# ---- the server ----------------------------------------------------------------------------------


def make_app(directory: str) -> WebApp:
    """Have something for every kind."""
    app = WebApp()
    large, small = bytes(LARGE), bytes(2**16)
    never = threading.Event()

    def events(*first):
        yield from first
        while True:
            never.wait(30)
            yield {"comment": "still there"}

    def size_of(stream):
        return sum(map(len, iter(lambda: stream.read(2**16), b"")))

    def read_all(environ, start_response):
        start_response("200 OK", [])
        return [b"%d" % size_of(environ["wsgi.input"])]

    def count_input(context):
        if context.request.content_type == "application/json":
            return str(len(context.request.json))
        return str(len([*context.request.form, *context.request.files]))

    app.get("/", lambda context: "hello")
    app.post("/unread", lambda context: "thanks")
    app.post("/upload", lambda context: str(size_of(context.request.stream)))
    app.post("/json", lambda context: context.request.json)
    app.post("/work", count_input)
    app.post("/keep", lambda context: str(len(context.request.body)))
    app.mount("/mounted", read_all)
    if Path(directory, "numbers").exists():
        app.static("/numbers", f"{directory}/numbers")
    app.get("/bytes", lambda context: large)
    app.get("/answer", lambda context: small)
    app.get("/stream", lambda context: iter(["hel", "lo"]))
    app.get("/file", lambda context: context.response.file(f"{directory}/large.bin"))
    app.get("/endless", lambda context: itertools.repeat(bytes(2**16)))
    app.get("/events", lambda context: context.response.events(events("welcome")))
    app.get("/late", lambda context: context.response.events(events()))
    return app


class SmallServer(Server):
    max_spooled = SPOOLED


def serve(directory: str) -> None:
    """Serve on two ports, the second with TLS, until this process is ended: at the latest by the
    end of its input."""
    app, contexts = make_app(directory), [None]
    if Path(directory, "certificate.pem").exists():
        contexts.append(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        contexts[1].load_cert_chain(f"{directory}/certificate.pem", f"{directory}/key.pem")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(SmallServer(app, HOST, quiet=True, ssl_context=each))
            for each in contexts
        ]
        print(json.dumps([server.port for server in servers]), flush=True)
        sys.stdin.read()


def prepare(directory: str, compare: str | None, *, numbers: bool) -> None:
    """Make the file to download, a folder of 50,000 files whose names have no letter, a folder with
    another copy of webapp.py, and a certificate for a day if there is the tool for it."""
    Path(directory, "large.bin").write_bytes(bytes(LARGE))
    if numbers:
        Path(directory, "numbers").mkdir()
        for number in range(50_000):
            Path(directory, "numbers", str(number)).touch()
    Path(directory, "other").mkdir()
    if compare:
        shutil.copy(compare, f"{directory}/other/webapp.py")
    if shutil.which("openssl"):
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
            " -subj /CN=x"
        )
        files = f" -addext subjectAltName=IP:{HOST} -keyout key.pem -out certificate.pem"
        subprocess.run((command + files).split(), cwd=directory, capture_output=True)


# ---- the normal client ---------------------------------------------------------------------------


class NormalClient(threading.Thread):
    """Ask for `/` at a steady rate, and note how many milliseconds each answer takes: math.inf
    without one."""

    def __init__(
        self,
        way: str,
        connection: http.client.HTTPConnection,
        kind: Kind,
        seconds: float,
        rate: float,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.is_patient = connection.timeout > TIMEOUT
        self.headers = {"Connection": {"kept": "keep-alive", "new": "close"}[way]}
        self.connection, self.rate = connection, rate
        # Not both at the same time.
        begin = time.perf_counter() + (0.5 / rate if way == "new" else 0)
        self.due = [begin + number / rate for number in range(max(1, round(seconds * rate)))]
        self.times: list[float] = []

    def run(self) -> None:
        for due in self.due:
            early = due - time.perf_counter()
            if early > 0:
                time.sleep(early)
            elif self.is_patient and -early > 1 / self.rate:
                continue  # the last answer took the time of this one
            if early > 0 or self.is_patient:
                due = time.perf_counter()  # to wake up late is no fault of the server
            timeout = self.connection.timeout
            took = self.ask(due) if time.perf_counter() - due < timeout else math.inf
            self.times.append(took if took < timeout * 1000 else math.inf)
        self.connection.close()

    def ask(self, due: float) -> float:
        try:
            content_type, body = self.kind.sends
            headers = {**self.headers, "Content-Type": content_type}
            method = "POST" if body else "GET"
            content = iter([body]) if body and not content_type else body or None
            self.connection.request(method, self.kind.beside, content, headers)
            with self.connection.getresponse() as response:
                if response.read() and response.status == 200:
                    return (time.perf_counter() - due) * 1000
        except (OSError, http.client.HTTPException):
            self.connection.close()
        return math.inf


def time_clients(connect, kind: Kind, seconds: float, rate: float) -> dict[str, list[float]]:
    """Ask both ways, side by side."""
    rate = kind.rate or rate
    clients = {way: NormalClient(way, connect(), kind, seconds, rate) for way in ("kept", "new")}
    for client in clients.values():
        client.start()
    for client in clients.values():
        client.join()
    return {way: client.times for way, client in clients.items()}


# ---- what is measured ----------------------------------------------------------------------------


class Run(NamedTuple):
    """What was measured for a kind: times by way, and two figures of the server before the crowd
    and at most."""

    name: str
    servers: int  # in the one process: the kinds of TLS have their own
    connections: int
    opened: int
    times: dict[str, list[float]]
    undisturbed: dict[str, list[float]]
    before: tuple[int, int] | None
    most: tuple[int, int] | None
    kind: Kind = Kind()
    log: float = 0  # KiB that the server wrote into its log in a second
    answers: int = 0  # of a crowd that works


def look_at(pid: int | None) -> tuple[int, int] | None:
    """Return the threads and the KiB of memory of a process."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        return int(status["Threads"]), int(status["VmRSS"].split()[0])
    except (OSError, KeyError):
        return None


@contextlib.contextmanager
def watch(pid: int | None):
    """Look at a process now and then; give a list of what was seen."""
    seen, ended = [look_at(pid)], threading.Event()

    def run():
        while seen[-1] and not ended.wait(0.5):
            seen.append(look_at(pid))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def child(*arguments: str, errors=None, folder: str = WEBAPP, **more: str):
    """Start this program in another of its parts, with the webapp.py in `folder`; it ends with the
    block."""
    command = [sys.executable, __file__, *arguments]
    environ = {**os.environ, "STALLING_WEBAPP": folder, **more}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environ,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def measure(
    name: str,
    kinds: dict[str, list[Kind]],
    options: argparse.Namespace,
    directory: str,
    folder: str,
) -> Run:
    """Time the normal client of a new server, without a crowd and beside it."""
    members, seconds = [name], options.seconds
    if name == "mix":
        members = [each for each in kinds if kinds[each][0].most >= options.connections]
        seconds *= 5
    connections = min(options.connections, *(kind.most for each in members for kind in kinds[each]))
    kind = kinds[name][0] if name in kinds else Kind()
    with contextlib.ExitStack() as stack:
        ports, pid = [options.port], options.pid
        log = stack.enter_context(tempfile.TemporaryFile())
        if options.port is None:
            server = stack.enter_context(
                child("--serve", directory, errors=log, folder=folder, **dict(kind.environ))
            )
            ports, pid = json.loads(server.stdout.readline()), server.pid

        def connect() -> http.client.HTTPConnection:
            if not name.startswith("tls"):
                timeout = PATIENCE if kind.work else TIMEOUT
                return http.client.HTTPConnection(HOST, ports[0], timeout=timeout)
            trusted = ssl.create_default_context(cafile=f"{directory}/certificate.pem")
            return http.client.HTTPSConnection(HOST, ports[1], timeout=TIMEOUT, context=trusted)

        # What is done for the first time takes longer.
        time_clients(connect, kind, min(0.3, seconds), options.rate)
        undisturbed = time_clients(connect, kind, max(1, seconds / 2), options.rate)
        crowd = stack.enter_context(
            child(
                "--stall",
                json.dumps([members, connections, seconds + kind.start, ports, directory]),
            )
        )
        crowd.stdout.readline()
        with watch(pid) as seen:
            time.sleep(kind.start)
            times = time_clients(connect, kind, seconds, options.rate)
        opened, answers = json.loads(crowd.stdout.readline())
        logged = log.seek(0, os.SEEK_END) / 1024 / seconds
    most = tuple(map(max, zip(*filter(None, seen)))) or None
    servers = len({bool(kind.tls) for each in members for kind in kinds[each]})
    return Run(
        name,
        servers,
        connections,
        opened,
        times,
        undisturbed,
        seen[0],
        most,
        kind,
        logged,
        answers,
    )


def compare(ours: list[Run], others: list[Run]) -> list[str]:
    """Say what part of the other copy's median wait and answers ours has, and what it missed."""
    ratios = {}
    for way in ours[0].times:
        wait, other = (
            summary([time for run in runs for time in run.times[way]])[0] for runs in (ours, others)
        )
        ratios[way] = wait / other if other < math.inf else float(wait == other)
    figures = [f"{ratio:.2f} of its median ({way})" for way, ratio in ratios.items()]
    counts = [[run.answers for run in runs] for runs in (ours, others)]
    goals = ["share"] if ratios["kept"] > ours[0].kind.share else []
    if any(counts[1]):
        figures.append(f"{sum(counts[0]) / sum(counts[1]):.2f} of its answers")
        goals += ["answers"] if max(counts[0]) < min(counts[1]) else []
    lines = [f"  beside the other copy: {', '.join(figures)}"]
    return [*lines, *([f"  missed: {', '.join(goals)}"] if goals else [])]


def missed(run: Run, options: argparse.Namespace) -> list[str]:
    """Name the goals that were missed."""
    goals = []
    if any(math.inf in times for times in run.times.values()):
        goals.append("failed")
    if any(
        summary(run.times[way])[0]
        > max(2 * summary(run.undisturbed[way])[0] + options.noise, run.kind.median)
        for way in run.times
    ):
        goals.append("median")
    if run.most and run.most[0] > options.max_threads * run.servers:
        goals.append("threads")
    # KiB that come anyway.
    memory = options.max_memory if run.kind.memory is None else run.kind.memory
    if run.most and run.most[1] - run.before[1] > memory * run.connections + 4096:
        goals.append("memory")
    if run.log > options.max_log:
        goals.append("log")
    return goals


# ---- the table -----------------------------------------------------------------------------------

TITLES = (
    f"{'kind':<25}{'opened':>7}  {'client':<6}{'failed':>7}"
    f"{'median':>9}{'99 %':>9}{'max':>9}{'alone':>9}{'ratio':>7}"
)


def summary(times: list[float]) -> list[float]:
    """Return the median, the 99th percentile and the maximum."""
    ordered = sorted(times)
    return [ordered[round(part * (len(ordered) - 1))] for part in (0.5, 0.99, 1)]


def lines_of(run: Run, goals: list[str]) -> list[str]:
    """Lay out the lines of the table: for the connection that is kept, for new ones, and for the
    missed goals."""
    begin, lines = f"{run.name:<25}{run.opened:>7}  ", []
    for way, times in run.times.items():
        beside, alone = summary(times), summary(run.undisturbed[way])[0]
        figures = "".join(f"{figure:>9.2f}" for figure in (*beside, alone))
        lines.append(f"{begin}{way:<6}{times.count(math.inf):>7}{figures}{beside[0] / alone:>7.2f}")
        begin = " " * len(begin)
    if run.most:
        lines.append(
            f"  at most {run.most[0]} threads, {(run.most[1] - run.before[1]) / 1024:.1f} MiB more,"
            f" {run.log:.1f} KiB of log a second"
            + (f", {run.answers} answers to the crowd" if run.kind.work else "")
        )
    return [*lines, *([f"  missed: {', '.join(goals)}"] if goals else [])]


# ---- the command line ----------------------------------------------------------------------------


def raise_limit(connections: int) -> int:
    """Have as many descriptors as the system gives; return how many connections they are enough
    for."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < connections + 100:
        soft = connections + 100 if hard < 0 else min(hard, connections + 100)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft < 0 else min(connections, soft - 100)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--connections", type=int, default=1000, help="of the crowd (default: 1000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=6, help="of each kind; the mix takes five times as long"
    )
    parser.add_argument(
        "--kinds",
        default="",
        metavar="NAME,...",
        help="beginnings of names, mix is the last of them",
    )
    parser.add_argument(
        "--rate", type=float, default=40, help="normal requests per second, of each of the two ways"
    )
    parser.add_argument(
        "--port", type=int, help=f"measure the server that listens there on {HOST}, without TLS"
    )
    parser.add_argument(
        "--pid", type=int, help="its process, whose threads and memory are to be watched"
    )
    parser.add_argument(
        "--noise", type=float, default=1, help="milliseconds that a median may grow by anyway"
    )
    # Those that answer, those that wait for a client or a block, and the server's own.
    most = 64 + 1000 + 8
    parser.add_argument("--max-threads", type=int, default=most, help="of a server, at any time")
    parser.add_argument(
        "--max-memory", type=int, default=256, help="KiB for each connection of the crowd"
    )
    parser.add_argument("--max-log", type=int, default=64, help="KiB that are logged in a second")
    parser.add_argument(
        "--compare", metavar="FILE", help="another copy of webapp.py, measured beside this one"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of each kind (default: 1)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--stall", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit status."""
    options = read_arguments(arguments)
    if options.serve or options.stall:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        return (serve(options.serve) if options.serve else stall(*options.stall)) or 0
    options.connections = raise_limit(options.connections)
    status = 0
    with tempfile.TemporaryDirectory() as directory:
        kinds = list_kinds()
        chosen = [
            name for name in [*kinds, "mix"] if name.startswith(tuple(options.kinds.split(",")))
        ]
        if options.port is None:
            prepare(directory, options.compare, numbers="work-static" in chosen)
        if not Path(directory, "certificate.pem").exists():
            kinds = {name: each for name, each in kinds.items() if not name.startswith("tls")}
            chosen = [name for name in chosen if name in kinds or name == "mix"]
        print(TITLES if chosen else f"there are no such kinds, but {', '.join(kinds)}, mix")
        copies = [WEBAPP, f"{directory}/other"] if options.compare else [WEBAPP]
        for name in chosen:
            runs: dict[str, list[Run]] = {folder: [] for folder in copies}
            for _, folder in itertools.product(range(options.rounds), copies):
                run = measure(name, kinds, options, directory, folder)
                runs[folder].append(run)
                is_ours = folder == copies[0]
                goals = missed(run, options) if is_ours else []
                status = 1 if goals else status
                shown = run if is_ours else run._replace(name=f"{name}, other")
                print(*lines_of(shown, goals), sep="\n", flush=True)
            if options.compare:
                lines = compare(*runs.values())
                status = 1 if len(lines) > 1 else status
                print(*lines, sep="\n", flush=True)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
