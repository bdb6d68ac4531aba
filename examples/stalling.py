"""Measure what stalling clients cost the others: does a normal request still get its answer, and how soon?

    python3 examples/stalling.py                             # every kind alone, then all of them at once: minutes
    python3 examples/stalling.py --kinds mix                 # only all of them at once
    python3 examples/stalling.py --kinds chunks,tls --seconds 15 --connections 200
    python3 examples/stalling.py --port 8000 --pid 4711      # a server of yours that runs already, on this machine

Three processes take part, so that none waits for another's turn: the server; a crowd of clients that stall, each kind
in its own way; and a normal client that asks for `/` at a steady, modest rate, over one connection that is kept and
over a new one each time. For every kind there is a new server, whose normal client is timed before the crowd comes,
then beside it. All stays on 127.0.0.1, and ends by itself.

How to read the table: milliseconds from the moment when a request was due to the last byte of its answer, so that one
that waits behind another pays for that, too; one without an answer within 5 s has `failed`, and counts as endless.
`undisturbed` is the same without a crowd. `opened` is how many connections the crowd made: who is turned away comes
again a second later. Threads, descriptors and memory are the most that the server had, memory beyond what it had
before; they come from /proc, and without one they are left out.

A line that misses a goal says so at its end, and then the program exits with status 1: an answer failed; the median
is more than twice the undisturbed one and a millisecond; threads or memory grew beyond a bound. A machine that does
something else at the same time misses the second without fault: look again before you believe it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import http.client
import itertools
import json
import math
import shutil
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

# Finds webapp.py in the folder above; where it is installed, or lies beside your program, leave this out.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from webapp import Server, WebApp

HOST = "127.0.0.1"
TIMEOUT = 5.0  # seconds, after which the normal client gives up
NOISE = 1.0  # milliseconds that a median may grow by without meaning anything
LARGE = 4 * 2**20  # bytes of a download: more than the buffers of both ends hold

# ---- how a client can stall ------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What a connection of the crowd does. It is visited once a second, and each visit does the next thing."""

    # Sent as soon as there is a connection.
    first: bytes = b""
    # Sent at the following visits, one each; the last of them again and again.
    then: tuple[bytes, ...] = ()
    # Bytes of the answer that are taken at a visit. Who takes few announces a small window, too.
    takes: int = 2**16
    # Visits after which it leaves, with a reset or as browsers do, and whether it comes again then.
    stays: float = math.inf
    resets: bool = True
    returns: bool = True
    # "" is plain; "raw" sends to the port of TLS what is written here, "full" makes a handshake first.
    tls: str = ""
    # How many there are at most.
    most: int = 10**6


def asking(path: str, **more: object) -> Kind:
    """Ask for `path`, properly; what is peculiar comes after that."""
    return Kind(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), **more)


HALF_HEAD = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: "
LENGTH = b"Content-Length: 1000\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
EXPECT = b"Expect: 100-continue\r\n"

# What follows the first two lines of a POST, and what follows that.
BODIES = {
    "length-none": (LENGTH + b"\r\n", ()),
    "length-large": (b"Content-Length: 1000000\r\n\r\n", ()),
    "length-half": (LENGTH + b"\r\n" + b"x" * 500, ()),
    "length-large-half": (b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000, ()),
    "length-drip": (LENGTH + b"\r\n", (b"x",)),
    "chunks-none": (CHUNKED + b"\r\n", ()),
    "chunks-drip": (CHUNKED + b"\r\n", (b"1\r\nx\r\n",)),
    "chunks-bad": (CHUNKED + b"\r\n", (b"1\r\nx\r\n", b"1\r\nx\r\n", b"bad\r\n")),
    "expect-length": (EXPECT + LENGTH + b"\r\n", ()),
    "expect-chunks": (EXPECT + CHUNKED + b"\r\n", ()),
}
# Where such a body goes: to no route, to one that has no POST, to one that does not look, to two that read.
PATHS = {"404": ["/nowhere"], "405": ["/"], "unread": ["/unread"], "read": ["/upload", "/json"]}


def posting(path: str, rest: bytes, then: tuple[bytes, ...]) -> Kind:
    """Send a body to `path`, or rather do not."""
    return Kind(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode() + rest, then)


def client_hello() -> bytes:
    """Make the first message of a TLS handshake."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def list_kinds() -> dict[str, list[Kind]]:
    """Name everything; the connections of the crowd take turns in what a name stands for."""
    kinds = {
        "silent": [Kind()],
        "idle": [asking("/")],
        "reset": [Kind(stays=1), Kind(HALF_HEAD, stays=1), asking("/bytes", takes=1, stays=1)],
        "pipelined": [Kind(asking("/").first * 400, takes=0)],
        "head-half": [Kind(HALF_HEAD)],
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
        "events-open": [asking("/events")],
        "events-closed-64": [asking("/events", stays=1, resets=False, returns=False, most=64)],
        "events-closed": [asking("/events", stays=1, resets=False, returns=False)],
        "events-again": [asking("/events", stays=4, resets=False)],
        "events-late": [asking("/late")],
        "events-late-closed": [asking("/late", stays=1, resets=False, returns=False)],
        "tls-silent": [Kind(tls="raw")],
        "tls-hello-half": [Kind(client_hello()[:100], tls="raw")],
        "tls-hello": [Kind(client_hello(), takes=0, tls="raw")],
        "tls-head": [Kind(HALF_HEAD, tls="full")],
        "tls-chunks": [posting("/nowhere", *BODIES["chunks-none"])._replace(tls="full")],
        "tls-slow": [asking("/bytes", takes=1, tls="full")],
        "tls-events": [asking("/events", tls="full")],
    }


class Place:
    """One of the crowd: a connection, or the wish to have one."""

    def __init__(self, kind: Kind, port: int, trusted: ssl.SSLContext) -> None:
        self.kind, self.port, self.trusted = kind, port, trusted
        self.socket: socket.socket | None = None
        self.opened = self.visits = 0

    def visit(self) -> None:
        """Open the connection, or do the next thing with it; leave where the server has closed it."""
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
            if error.errno != errno.ENOTCONN:  # not yet
                self.leave(reset=True)
        self.visits += 1

    def open(self) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        if self.kind.takes < 2**16:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.connect_ex((HOST, self.port))
        self.opened += 1
        self.visits = 0
        self.unsent, self.wrapped = self.kind.first, False

    def act(self) -> None:
        if self.kind.tls == "full" and not self.wrapped:
            self.socket.getpeername()  # raises where there is no connection yet
            self.socket = self.trusted.wrap_socket(self.socket, do_handshake_on_connect=False, server_hostname=HOST)
            self.wrapped = True
        if self.visits and self.kind.then and not self.unsent:
            self.unsent = self.kind.then[min(self.visits, len(self.kind.then)) - 1]
        if self.unsent:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        if self.visits:
            taken = self.socket.recv(self.kind.takes) if self.kind.takes else self.socket.recv(1, socket.MSG_PEEK)
            if not taken:
                raise ConnectionResetError

    def leave(self, reset: bool) -> None:
        if reset:  # so that no port stays taken for a minute
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
        self.socket = None


def stall(names: list[str], connections: int, seconds: float, port: int, tls_port: int, directory: str) -> None:
    """Be the crowd for a while; visits are spread evenly over each second."""
    every = list_kinds()
    kinds = [kind for name in names for kind in every[name]]
    trusted = ssl.create_default_context(cafile=f"{directory}/certificate.pem" if tls_port else None)
    turns = itertools.islice(itertools.cycle(kinds), connections)
    places = [Place(kind, tls_port if kind.tls else port, trusted) for kind in turns]
    print("ready", flush=True)
    started = time.monotonic()
    for turn in itertools.count():
        due = started + turn / connections
        ahead = due - time.monotonic()
        if max(due, due - ahead) >= started + seconds:
            break
        if ahead > 0.005:
            time.sleep(ahead)
        places[turn % connections].visit()
    print(sum(place.opened for place in places), flush=True)


# ---- the server ------------------------------------------------------------------------------------------------------


def make_app(directory: str) -> WebApp:
    """Have something for every kind."""
    app = WebApp()
    large = bytes(LARGE)
    never = threading.Event()

    def events(first):
        yield from first
        while True:
            never.wait(30)
            yield {"comment": "still there"}

    app.get("/", lambda context: "hello")
    app.post("/unread", lambda context: "thanks")
    app.post("/json", lambda context: context.request.json)
    app.get("/bytes", lambda context: large)
    app.get("/file", lambda context: context.response.file(f"{directory}/large.bin"))
    app.get("/endless", lambda context: itertools.repeat(bytes(2**16)))
    app.get("/events", lambda context: context.response.events(events(["welcome"])))
    app.get("/late", lambda context: context.response.events(events([])))

    @app.post("/upload")
    def upload(context):
        return str(sum(map(len, iter(lambda: context.request.stream.read(2**16), b""))))

    return app


def serve(directory: str) -> None:
    """Serve until the parent ends this process, by ending its input at the latest."""
    app, tls = make_app(directory), None
    if Path(directory, "certificate.pem").exists():
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(f"{directory}/certificate.pem", f"{directory}/key.pem")
    with contextlib.ExitStack() as stack:
        contexts = [None, tls] if tls else [None]
        servers = [stack.enter_context(Server(app, HOST, quiet=True, ssl_context=each)) for each in contexts]
        print(json.dumps([server.port for server in servers]), flush=True)
        sys.stdin.read()


def make_certificate(directory: str) -> None:
    """Make a certificate for an hour, if there is the tool for it."""
    if shutil.which("openssl"):
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
        )
        names = ["-addext", f"subjectAltName=IP:{HOST}", "-keyout", "key.pem", "-out", "certificate.pem"]
        subprocess.run([*command.split(), *names], cwd=directory, capture_output=True)


# ---- the normal client -----------------------------------------------------------------------------------------------


def ask_steadily(connect, kept: bool, seconds: float, rate: float, times: list[float]) -> None:
    """Ask for `/` at a steady rate, and note how many milliseconds each answer took; math.inf where there was none."""
    client = connect()
    due = time.perf_counter()
    end = due + seconds
    while due < end:
        ahead = due - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        begun = time.perf_counter() if ahead > 0 else due
        took = math.inf
        try:
            if time.perf_counter() < end:
                client.request("GET", "/", headers={"Connection": "keep-alive" if kept else "close"})
                with client.getresponse() as response:
                    if response.read() and response.status == 200:
                        took = (time.perf_counter() - begun) * 1000
        except (OSError, http.client.HTTPException):
            client.close()
        times.append(took)
        due += 1 / rate
    client.close()


def time_client(connect, seconds: float, rate: float) -> dict[str, list[float]]:
    """Time both ways to ask, side by side."""
    times = {"kept": [], "new": []}
    threads = [
        threading.Thread(target=ask_steadily, args=(connect, name == "kept", seconds, rate, times[name]))
        for name in times
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


class Watch:
    """Note the most threads, descriptors and KiB of memory that a process has while this runs."""

    def __init__(self, pid: int | None) -> None:
        self.directory = Path("/proc", str(pid))
        self.most = self.before = self.look()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def look(self) -> tuple[int, ...] | None:
        try:
            lines = (self.directory / "status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            return int(status["Threads"]), len(list((self.directory / "fd").iterdir())), int(status["VmRSS"].split()[0])
        except (OSError, KeyError):
            return None

    def run(self) -> None:
        while self.most and not self.ended.wait(0.5):
            self.most = tuple(map(max, self.most, self.look() or self.most))

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.ended.set()
        self.thread.join()


# ---- what is measured, and the table ---------------------------------------------------------------------------------


class Run(NamedTuple):
    """What was measured for a kind."""

    name: str
    connections: int
    opened: int
    times: dict[str, list[float]]
    undisturbed: dict[str, list[float]]
    watch: Watch


@contextlib.contextmanager
def child(*arguments: object):
    """Start this program in one of its other parts; it ends with the block."""
    command = [sys.executable, __file__, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def measure(name: str, kinds: dict[str, list[Kind]], options: argparse.Namespace, directory: str) -> Run:
    """Time the normal client of a new server, without a crowd and beside it."""
    names = (
        [each for each, (kind, *_) in kinds.items() if kind.most >= options.connections] if name == "mix" else [name]
    )
    connections = min(options.connections, *(kind.most for each in names for kind in kinds[each]))
    seconds = options.seconds * (5 if name == "mix" else 1)
    with contextlib.ExitStack() as stack:
        ports, pid = [options.port], options.pid
        if options.port is None:
            server = stack.enter_context(child("--serve", directory))
            ports, pid = json.loads(server.stdout.readline()), server.pid
        port, tls_port = (*ports, 0)[:2]

        def connect() -> http.client.HTTPConnection:
            if name.startswith("tls"):
                trusted = ssl.create_default_context(cafile=f"{directory}/certificate.pem")
                return http.client.HTTPSConnection(HOST, tls_port, timeout=TIMEOUT, context=trusted)
            return http.client.HTTPConnection(HOST, port, timeout=TIMEOUT)

        time_client(connect, min(0.3, seconds), options.rate)  # what is done for the first time takes longer
        undisturbed = time_client(connect, max(seconds / 2, 1), options.rate)
        crowd = stack.enter_context(
            child("--stall", json.dumps([names, connections, seconds, port, tls_port, directory]))
        )
        crowd.stdout.readline()
        with Watch(pid) as watch:
            times = time_client(connect, seconds, options.rate)
        return Run(name, connections, int(crowd.stdout.readline()), times, undisturbed, watch)


def summary(times: list[float]) -> list[float]:
    """Return the median, the 95th and the 99th percentile and the maximum."""
    ordered = sorted(times)
    return [ordered[round(part * (len(ordered) - 1))] for part in (0.5, 0.95, 0.99, 1)]


def ratio(run: Run, way: str) -> float:
    """Compare the medians."""
    return summary(run.times[way])[0] / summary(run.undisturbed[way])[0]


def missed(run: Run, options: argparse.Namespace) -> list[str]:
    """Name the goals that were missed."""
    goals = []
    if any(math.inf in times for times in run.times.values()):
        goals.append("failed")
    if any(summary(run.times[way])[0] > 2 * summary(run.undisturbed[way])[0] + options.noise for way in run.times):
        goals.append("median")
    if run.watch.most:
        threads, _, memory = run.watch.most
        if threads > options.max_threads:
            goals.append("threads")
        if memory - run.watch.before[2] > options.max_memory * run.connections + 4096:  # the first requests need some
            goals.append("memory")
    return goals


TITLES = (
    f"{'kind':<25}{'connections':>11}{'opened':>8}  {'client':<6}{'n':>5}{'failed':>7}"
    f"{'median':>9}{'95 %':>8}{'99 %':>8}{'max':>8}{'undisturbed':>13}{'95 %':>8}{'99 %':>8}{'max':>8}"
    f"{'ratio':>7}{'threads':>9}{'files':>7}{'MiB':>7}"
)


def lines_of(run: Run, goals: list[str]) -> list[str]:
    """Lay out two lines of the table: the connection that is kept, then new ones."""
    lines = []
    for way, times in run.times.items():
        figures = "".join(f"{figure:>8.2f}" for figure in summary(times))
        quiet = "".join(f"{figure:>8.2f}" for figure in summary(run.undisturbed[way]))
        lines.append(f"{way:<6}{len(times):>5}{times.count(math.inf):>7} {figures}     {quiet}{ratio(run, way):>7.2f}")
    threads, files, memory = run.watch.most or ("-", "-", "-")
    if run.watch.most:
        memory = f"{(memory - run.watch.before[2]) / 1024:.1f}"
    verdict = "  missed: " + ", ".join(goals) if goals else ""
    lines[0] = (
        f"{run.name:<25}{run.connections:>11}{run.opened:>8}  {lines[0]}{threads:>9}{files:>7}{memory:>7}{verdict}"
    )
    lines[1] = " " * 46 + lines[1]
    return lines


def raise_limit(connections: int) -> int:
    """Have as many descriptors as the system gives; return how many connections they are enough for."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, 10_240):  # macOS says that there is no limit, and means this
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            break
    return connections if soft < 0 else min(connections, soft - 100)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=1000, help="of the crowd (default: 1000)")
    parser.add_argument("--seconds", type=float, default=6, help="of each kind; the mix takes five times as long")
    parser.add_argument("--kinds", default="", metavar="NAME,...", help="beginnings of names, mix is the last of them")
    parser.add_argument("--rate", type=float, default=40, help="normal requests per second, of each of the two ways")
    parser.add_argument("--port", type=int, help=f"measure the server that listens there on {HOST}, without TLS")
    parser.add_argument("--pid", type=int, help="its process, whose threads and memory are to be watched")
    parser.add_argument("--noise", type=float, default=NOISE, help="milliseconds that a median may grow by anyway")
    parser.add_argument("--max-threads", type=int, default=64 + 256 + 8, help="of the server, at any time")
    parser.add_argument("--max-memory", type=int, default=256, help="KiB for each connection of the crowd")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--stall", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit status."""
    options = read_arguments(arguments)
    if options.serve:
        return serve(options.serve) or 0
    if options.stall:
        return stall(*options.stall) or 0
    options.connections = raise_limit(options.connections)
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "large.bin").write_bytes(bytes(LARGE))
        if options.port is None:
            make_certificate(directory)
        kinds = list_kinds()
        if not Path(directory, "certificate.pem").exists():
            kinds = {name: each for name, each in kinds.items() if not name.startswith("tls")}
        print(TITLES)
        for name in [name for name in [*kinds, "mix"] if name.startswith(tuple(options.kinds.split(",")))]:
            run = measure(name, kinds, options, directory)
            goals = missed(run, options)
            failed |= bool(goals)
            print(*lines_of(run, goals), sep="\n", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
