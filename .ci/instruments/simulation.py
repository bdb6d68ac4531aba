"""Run the server in a made-up world: no real socket, clock or thread, and one number, the seed,
decides everything that happens. The same seed gives the same run.

    python3 .ci/instruments/simulation.py                          # 100 worlds of each kind
    python3 .ci/instruments/simulation.py --seeds 0:1000 --kind hostile
    python3 .ci/instruments/simulation.py --kind hostile --seed 7 -v   # follow one world
    python3 .ci/instruments/simulation.py --faults                 # see "planted faults"

How does one make time, threads and sockets up?

- Threads. A made-up thread is a real one that runs only while it holds the baton. Each call of a
  lock, an event, a socket or the clock is a place where the thread gives the baton away: it says
  what it waits for, and chance chooses the next among all that need not wait. So only one thread
  runs at any time, and no two runs of a seed differ. Clients are generators in the same list; they
  need no thread, and say what they wait for by `yield`.
- Time is a number. It grows by almost nothing at each step. When everybody waits, it jumps to the
  next moment at which somebody no longer waits. So a time-out of a minute takes no time, and a
  world in which nobody waits for any moment is a deadlock.
- Sockets are two byte arrays. They take and give fewer bytes than they could, fill up, end and
  reset by chance. They keep the rule of the system that servers forget most often: a close with
  unread bytes, or bytes that arrive behind it, destroys bytes that the client has not read yet.
- The program under test notices nothing: it is loaded a second time, and its names `threading`,
  `time`, `monotonic`, `selectors`, `socket` and `os` stand for the made-up ones. Its sizes become
  small, so that small bodies cross every limit.

Each world checks all that a client or an operator could notice: see `Client._judge`, `check_end`
and what they call.
TLS is the real ssl module, because it works on bytes that something else carries. What it computes
takes time in the made-up world, too: see `TimedTLS`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import functools
import itertools
import logging
import math
import os
import random
import re
import selectors
import socket
import ssl
import sys
import tempfile
import threading
import time
import types
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# Sizes of webapp.py, by their names, and the range from which each world chooses.
SIZES = {
    "_PIECE": (60, 1500),
    "_SLICE": (400, 2500),
    "_COLLECTED": (300, 3000),
}
# Attributes of a server that are empty while no client is there.
COUNTERS = (
    "_connections",
    "_accounts.bodies.sizes",
    "_accounts.bodies.total",
    "_accounts.spooled.sizes",
    "_accounts.spooled.total",
    "_accounts.unsent",
    "_accounts.unsent_size",
    "_accounts._readers",
    "_accounts._unlimited",
    "_thread_pool._taken",
    "_thread_pool._bodies",
    "_thread_pool.spooled",
    "_thread_pool.unanswered",
    "_thread_pool.uploads",
    "_thread_pool.answered",
)
MOST_STEPS = 400_000  # of a world; beyond it, something turns in circles
MOST_FILES = 100  # the highest number of an open file that is looked for on Windows
QUICK = 0.25  # seconds that a quick request may wait while threads are free
MOMENTS = [0, 0.01, 0.1, 1, 4]  # seconds before a stop
LONG = 100  # seconds of a stop that are enough for all requests of a world
SHORT = 1  # seconds of each limit in a world of TLS
PATIENCE = 12  # seconds after which a connection that carries nothing must have ended


class Fault(Exception):
    """The world has found something that must not happen."""


class Abandoned(BaseException):
    """Ends the threads of a world in which a fault was found."""


# ---- time and threads ------------------------------------------------------------------------


def never():
    return False


class Task:
    """A made-up thread, or a client. It waits for `ready()` and for the moment `until`, and may go
    on as soon as one of them has come."""

    def __init__(self, number, name):
        self.number = number
        self.name = name
        self.wait_for(None, None, "beginning")
        self.baton = threading.Lock()
        self.baton.acquire()
        self.steps = None  # the generator of a client

    def wait_for(self, ready, until, why):
        """Wait for `ready()`, or for a moment at the latest; for its turn only without both."""
        self.ready = ready or never
        if until is None:
            until = math.inf if ready else -math.inf
        self.until = until
        self.why = why


class World:
    """Everything that a seed decides, and the list of what runs."""

    def __init__(self, seed, verbose=False):
        self.seed = seed
        self.chance = random.Random(seed)
        self.verbose = verbose
        self.now = 1000.0
        self.jumped = 0.0  # seconds in which everybody waited
        self.spent = 0.0  # seconds in which TLS computed
        self.grain = 10 ** self.chance.uniform(-7, -5)  # seconds of a step
        self.count = 0
        self.numbers = itertools.count(1)
        self.running = Task(0, "driver")
        self.tasks = [self.running]
        self.driver = self.running
        self.clients = 0  # those that have not ended
        self.threads = []  # those that were started
        self.most_threads = None  # how many may run, None without a limit
        self.fault = None
        self.sockets = []
        self.most_sockets = None
        self.refusals = 0.0  # the chance that accept() fails
        self.listener = None
        self.contexts = []  # of clients, if they speak TLS
        # Chance of its own for all that has to do with TLS.
        self.tls_chance = random.Random(f"TLS {seed}")
        self.has_quick = False  # a client that asks often is there
        self.handshake = 0.0  # seconds that the server computes for one
        self.message = 0.0  # seconds for 2 KiB of messages without bytes of a request
        self.begun = set()  # numbers of the requests that on_request() saw
        self.completed = []  # numbers of the requests that on_complete() saw
        self.streams = []  # the Blocks of streams
        self.lines = 0  # access lines
        self.stops = 0  # calls of on_stop()
        self.stopping = False  # the server has been told to
        self.scene = ""  # what all clients do: see SCENES
        self.leads = lambda: False  # tells whether the running thread leads
        self.lacks_memory = False  # a body may be a 503
        self.piece = 0  # the size _PIECE
        self.needs_files = False  # uploads need room in temporary files, and not slots

    def tell(self, text):
        if self.verbose:
            try:
                print(f"{self.now:12.6f} {self.running.name:>12}  {text}")
            except BrokenPipeError:  # the reader, such as head, has seen enough
                self.verbose = False

    def happens(self, probability):
        return self.chance.random() < probability

    def spend(self, seconds):
        """Let the one who runs compute."""
        self.now += seconds
        self.spent += seconds

    def used(self):
        """Return the seconds that a client has noticed."""
        return self.jumped + self.spent

    def fail(self, text):
        """Note the first fault; the driver raises it."""
        if self.fault is None:
            self.tell(f"FAULT {text}")
            self.fault = Fault(text)

    def pause(self, ready=None, seconds=None, why=""):
        """Let others run until `ready()`, or for so many seconds; return whether it is ready."""
        if self.fault is not None:
            raise Abandoned
        task = self.running
        task.wait_for(ready, None if seconds is None else self.now + max(0.0, seconds), why)
        self._pass_baton(task)
        if self.fault is not None:
            raise Abandoned
        return ready is None or ready()

    def _pass_baton(self, task):
        following = self._choose()
        if following is not task:
            self.running = following
            following.baton.release()
            task.baton.acquire()

    def _choose(self):
        """Take the steps of clients until chance chooses a thread, and return that."""
        while self.fault is None:
            self.count += 1
            if self.count > MOST_STEPS:
                self.fail("the world does not end: " + self.describe())
                break
            step = self.chance.random() * self.grain
            self.now += step
            now = self.now
            able = [task for task in self.tasks if task.until <= now or task.ready()]
            if not able:
                following = min(task.until for task in self.tasks)
                if following == math.inf:
                    self.fail("deadlock: " + self.describe())
                    break
                self.jumped += following - now
                self.now = following
                continue
            chosen = able[int(self.chance.random() * len(able))]
            if chosen.steps is None:
                return chosen
            self._take_step(chosen)
        return self.driver

    def _take_step(self, client):
        before, self.running = self.running, client
        try:
            ready, seconds, why = next(client.steps)
            client.wait_for(ready, None if seconds is None else self.now + seconds, why)
        except StopIteration:
            self._remove_client(client)
        except Exception as error:  # a Fault, or an answer that cannot be read at all
            self._remove_client(client)
            self.fail(f"{client.name}: {error if isinstance(error, Fault) else repr(error)}")
        self.running = before

    def _remove_client(self, client):
        self.tasks.remove(client)
        self.clients -= 1

    def describe(self):
        return "; ".join(f"{task.name} waits for {task.why or 'its turn'}" for task in self.tasks)

    def note_stop(self):
        self.stops += 1
        self.pause(lambda: False, self.chance.choice([0, 0.05, 6]), "on_stop")

    def add_client(self, name, steps):
        task = Task(next(self.numbers), name)
        task.steps = steps
        self.tasks.append(task)
        self.clients += 1

    def all_clients_have_ended(self):
        return not self.clients

    def abandon(self):
        """End all threads, one by one; each raises Abandoned where it waits."""
        if self.fault is None:
            self.fault = Fault("abandoned")
        self.tasks = [self.driver]
        for thread in self.threads:
            while thread.real.is_alive():
                self.running = thread.task
                with contextlib.suppress(RuntimeError):
                    thread.task.baton.release()
                thread.real.join(0.02)
        self.running = self.driver


class Thread:
    """threading.Thread."""

    world = None

    def __init__(self, target=None, name=None, args=(), daemon=None):
        self.target, self.args = target, args
        number = next(self.world.numbers)
        # The program numbers its threads on and on, from one world to the next.
        self.task = Task(number, re.sub(r"\d+$", str(number), name or "thread"))
        self.name = self.task.name
        self.ident = None
        self.ended = False

    def __hash__(self):  # sets of threads have the same order in each run
        return self.task.number

    def __eq__(self, other):
        return self is other

    def start(self):
        world = self.world
        world.pause(why="a new thread")
        if world.most_threads is not None:
            alive = sum(not each.ended for each in world.threads)
            if alive >= world.most_threads:
                raise RuntimeError("can't start new thread")
        self.ident = self.task.number
        world.threads.append(self)
        world.tasks.append(self.task)
        self.real = threading.Thread(target=self._run, daemon=True)
        self.real.start()
        world.tell(f"starts {self.name}")

    def _run(self):
        world, task = self.world, self.task
        task.baton.acquire()
        if world.fault is not None:
            return
        try:
            self.target(*self.args)
        except (SystemExit, Abandoned):
            pass
        except BaseException as error:
            world.fail(f"{self.name} ended by {error!r}")
        self.ended = True
        if world.fault is not None and task not in world.tasks:
            return
        world.tasks.remove(task)
        following = world._choose()
        world.running = following
        following.baton.release()

    def is_alive(self):
        return self.ident is not None and not self.ended

    def join(self, timeout=None):
        if self.ident is None:
            raise RuntimeError("cannot join thread before it is started")
        self.world.pause(lambda: self.ended, timeout, f"the end of {self.name}")


class Lock:
    """threading.Lock."""

    def __init__(self, world):
        self.world = world
        self.owner = None

    def acquire(self, blocking=True, timeout=-1):
        world = self.world
        seconds = 0 if not blocking else None if timeout < 0 else timeout
        if not world.pause(lambda: self.owner is None, seconds, "a lock"):
            return False
        self.owner = world.running
        return True

    def release(self):
        if self.world.fault is not None:
            return
        if self.owner is None:
            raise RuntimeError("release unlocked lock")
        self.owner = None
        self.world.pause(why="its turn behind a lock")

    def locked(self):
        return self.owner is not None

    def __enter__(self):
        self.acquire()
        return True

    def __exit__(self, *exc_info):
        self.release()


class RLock(Lock):
    """threading.RLock."""

    depth = 0

    def acquire(self, blocking=True, timeout=-1):
        if self.owner is not self.world.running and not super().acquire(blocking, timeout):
            return False
        self.depth += 1
        return True

    def release(self):
        self.depth -= 1
        if not self.depth:
            super().release()


class Condition:
    """threading.Condition."""

    def __init__(self, world, lock=None):
        self.world = world
        self.lock = lock or Lock(world)
        self.waiting = []
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self):
        return self.lock.__enter__()

    def __exit__(self, *exc_info):
        self.lock.__exit__(*exc_info)

    def _check(self):
        if self.lock.owner is not self.world.running and self.world.fault is None:
            raise RuntimeError("cannot use a condition without its lock")

    def wait(self, timeout=None):
        self._check()
        world, token = self.world, object()
        self.waiting.append(token)
        self.lock.owner = None
        told = world.pause(lambda: token not in self.waiting, timeout, "a condition")
        if not told:
            self.waiting.remove(token)
        world.pause(lambda: self.lock.owner is None, None, "the lock of a condition")
        self.lock.owner = world.running
        return told

    def wait_for(self, predicate, timeout=None):
        until = None if timeout is None else self.world.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - self.world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n=1):
        self._check()
        del self.waiting[: max(0, n)]

    def notify_all(self):
        self._check()
        self.waiting.clear()


class Event:
    """threading.Event."""

    def __init__(self, world):
        self.world = world
        self.value = False

    def is_set(self):
        self.world.pause(why="a look at an event")
        return self.value

    def set(self):
        self.value = True
        self.world.pause(why="its turn behind an event")

    def clear(self):
        self.value = False
        self.world.pause(why="its turn behind an event")

    def wait(self, timeout=None):
        return self.world.pause(lambda: self.value, timeout, "an event")


class MadeUp:
    """A module whose names are made up; names that are missing say so."""

    def __init__(self, name, real=None, **names):
        self.__dict__.update(names)
        self._name, self._real = name, real

    def __getattr__(self, name):
        if self._real is None:
            raise AttributeError(f"{self._name}.{name} is not made up: add it to simulation.py")
        return getattr(self._real, name)


def make_threading(world):
    main = type("MainThread", (), {"name": "driver", "ident": 10**6})()

    def current_thread():
        running = world.running
        return next((each for each in world.threads if each.task is running), main)

    return MadeUp(
        "threading",
        Thread=type("Thread", (Thread,), {"world": world}),
        Lock=functools.partial(Lock, world),
        RLock=functools.partial(RLock, world),
        Condition=functools.partial(Condition, world),
        Event=functools.partial(Event, world),
        get_ident=lambda: world.running.number or 10**6,
        current_thread=current_thread,
        main_thread=lambda: main,
    )


def make_time(world):
    def look(begin=0.0):
        world.pause(why="a look at the clock")
        return begin + world.now

    return MadeUp(
        "time",
        time,
        monotonic=look,
        perf_counter=look,
        time=functools.partial(look, 1.7e9),
        process_time=lambda: look(-world.jumped),
        sleep=lambda seconds: world.pause(lambda: False, seconds, f"{seconds} s of sleep"),
    )


# ---- sockets ---------------------------------------------------------------------------------


class Socket:
    """socket.socket: one end of a connection, of a pair, or a listener.

    `put`, `get`, `finish` and `vanish` are for clients, which do not give the baton away.
    """

    world = None
    type = socket.SOCK_STREAM

    def __init__(self, window=10**6):
        self.number = len(self.world.sockets) + 10_000
        self.world.sockets.append(self)
        self.inbox = bytearray()  # arrived, and not yet read
        self.window = window  # bytes that fit into the inbox
        self.peer = None
        self.ended = False  # the peer sends no more
        self.broken = False  # a reset has arrived
        self.shut = False  # sends no more
        self.deaf = False  # reads no more
        self.closed = False
        self.resets = False  # its close is a reset
        self.accepted = False
        self.arriving = []  # of a listener
        self.selectors = []

    def __repr__(self):
        return f"<socket {self.number}>"

    # What happened to it.

    def readable(self):
        return bool(
            self.inbox or self.ended or self.broken or self.deaf or self.arriving or self.closed
        )

    def writable(self):
        return self.broken or self.shut or self.closed or self.space() > 0

    def space(self):
        return self.peer.window - len(self.peer.inbox) if self.peer is not None else 0

    def break_off(self):
        """A reset arrives: the bytes that were not read are lost from some byte on."""
        self.broken = True
        del self.inbox[self.world.chance.randint(0, len(self.inbox)) :]

    # For clients.

    def put(self, data):
        """Send some of the bytes; return how many."""
        if self.broken:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        if self.peer.closed:
            self.break_off()
            return 0
        sent = data[: self.space()]
        self.peer.inbox += sent
        return len(sent)

    def get(self, size):
        data = bytes(self.inbox[:size])
        del self.inbox[: len(data)]
        if not data and self.broken:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        return data

    def finish(self):
        """End the own direction."""
        self.shut = True
        self.peer.ended = True

    def vanish(self, resets):
        """Close it; what the server sends later is answered by a reset."""
        self.closed = True
        if resets or self.inbox:
            self.peer.break_off()
        else:
            self.finish()

    # For the program.

    def _step(self, name, detail=""):
        self.world.pause(why=f"its turn at {self!r}.{name}")
        if self.closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self.broken and name in ("recv", "send", "getpeername"):
            if name == "recv" and self.inbox:
                return
            self.world.tell(f"{self!r}.{name}: reset")
            if name == "getpeername":
                raise OSError(errno.ENOTCONN, "not connected")
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def _portion(self, size):
        """Chance takes all, or some of it."""
        chance = self.world.chance
        if size > 1 and self.peer.is_client and chance.random() < 0.5:
            return chance.randint(1, size)
        return size

    is_client = False
    leaving = b""  # of TLS: see SecureEnd
    parts = 0  # how often recv() has taken only a part of what was there

    def recv(self, size):
        self._step("recv")
        if not self.inbox:
            if self.ended or self.deaf:
                self.world.tell(f"{self!r}.recv: end")
                return b""
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        count = self._portion(min(size, len(self.inbox)))
        self.parts += count < len(self.inbox)
        data = bytes(self.inbox[:count])
        del self.inbox[:count]
        self.world.tell(f"{self!r}.recv: {data[:60]!r} {count}")
        return data

    def send(self, data):
        self._step("send")
        if self.shut:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        data = bytes(data)
        if self.peer.closed:  # the answer to it is a reset
            self.break_off()
            return len(data)
        room = min(len(data), self.space())
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        count = self._portion(room)
        self.peer.inbox += data[:count]
        self.world.tell(f"{self!r}.send: {data[:count][:60]!r} {count} of {len(data)}")
        return count

    def accept(self):
        self._step("accept")
        world = self.world
        if self.arriving and world.happens(world.refusals):
            code = world.chance.choice([errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
            raise OSError(code, os.strerror(code))
        # A client may have left since the selector saw it. But a stop accepts until nobody waits.
        if not self.arriving or (world.happens(0.02) and not world.stopping):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        accepted = sum(each.accepted and not each.closed for each in world.sockets)
        if world.most_sockets is not None and accepted + 4 >= world.most_sockets:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        found = self.arriving.pop(0)
        found.accepted = True
        if world.happens(0.01) and found.broken:
            found.closed = True
            raise ConnectionAbortedError(errno.ECONNABORTED, "Software caused connection abort")
        world.tell(f"accept: {found!r}")
        return found, ("127.0.0.1", found.number)

    def shutdown(self, how):
        self._step("shutdown")
        if self.broken:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        self.world.tell(f"{self!r}.shutdown: {how}")
        if how != socket.SHUT_WR:
            self.deaf = True
        if how != socket.SHUT_RD and not self.shut:
            self.finish()

    def close(self):
        if self.closed:
            return
        if self.world.fault is None:
            self.world.pause(why=f"its turn at {self!r}.close")
        self.world.tell(f"{self!r}.close")
        self.closed = True
        for waiting in self.arriving:
            waiting.closed = True
            waiting.peer.break_off()
        if self.peer is None or self.peer.closed:
            return
        if self.resets or self.inbox:
            self.peer.break_off()
        elif not self.shut:
            self.finish()

    def setsockopt(self, level, option, value):
        self._step("setsockopt")
        if option == socket.SO_LINGER and level == socket.SOL_SOCKET:
            self.resets = any(value[: len(value) // 2])

    def setblocking(self, flag):
        if flag:
            self.world.fail(f"{self!r} would block")

    def getpeername(self):
        if self.peer is None:  # a listener, before the world begins
            raise OSError(errno.ENOTCONN, "not connected")
        self._step("getpeername")
        return ("127.0.0.1", self.peer.number)

    def getsockname(self):
        return ("127.0.0.1", 8000)

    def fileno(self):
        return -1 if self.closed else self.number

    def listen(self, backlog=0):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


def make_socket(world):
    kind = type("socket", (Socket,), {"world": world})

    def socketpair():
        pair = kind(100), kind(100)
        pair[0].peer, pair[1].peer = pair[1], pair[0]
        return pair

    return MadeUp(
        "socket",
        socket,
        socket=kind,
        socketpair=socketpair,
        create_server=None,
        create_connection=None,
        # Windows has none. With it a world begins with the same steps on each system.
        TCP_NOTSENT_LOWAT=getattr(socket, "TCP_NOTSENT_LOWAT", 25),
    )


class Selector:
    """selectors.DefaultSelector: it forgets a socket that is closed, and tells nobody."""

    tells_of_closed = False

    def __init__(self, world):
        self.world = world
        self.keys = {}

    def __repr__(self):
        return f"sockets {list(self.keys)}"

    def register(self, sock, events, data=None):
        if sock in self.keys:
            raise KeyError(f"{sock!r} is registered already")
        if sock.closed:
            raise ValueError(f"{sock!r} is closed")
        self.keys[sock] = selectors.SelectorKey(sock, sock.number, events, data)
        sock.selectors.append(self)
        return self.keys[sock]

    def unregister(self, sock):
        key = self.keys.pop(sock)
        sock.selectors.remove(self)
        return key

    def modify(self, sock, events, data=None):
        self.unregister(sock)
        return self.register(sock, events, data)

    def get_map(self):
        return self.keys

    def _events(self, sock, events):
        found = 0
        if events & selectors.EVENT_READ and sock.readable():
            found |= selectors.EVENT_READ
        if events & selectors.EVENT_WRITE and sock.writable():
            found |= selectors.EVENT_WRITE
        return found

    def _any(self):
        return any(self._events(sock, key.events) for sock, key in self.keys.items())

    def select(self, timeout=None):
        world = self.world
        if timeout is not None and timeout < 0:
            timeout = 0
        closed = [sock for sock in self.keys if sock.closed]
        if closed and not self.tells_of_closed:
            world.fail(f"{closed} was closed, and a selector still has it")
        world.pause(self._any, timeout, self)
        found = [
            (key, events)
            for sock, key in self.keys.items()
            if (events := self._events(sock, key.events))
        ]
        world.chance.shuffle(found)
        return found

    def close(self):
        for sock in list(self.keys):
            self.unregister(sock)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


class PollSelector(Selector):
    """selectors.PollSelector: another thread may close its socket, which is ready then."""

    tells_of_closed = True

    def select(self, timeout=None):
        if self.world.leads():
            self.world.fail("the leader waits for one client")
        return super().select(timeout)


def make_selectors(world):
    poll = functools.partial(PollSelector, world)
    return MadeUp(
        "selectors",
        selectors,
        DefaultSelector=functools.partial(Selector, world),
        PollSelector=poll,
        SelectSelector=poll,
    )


def make_os(world):
    names = {}

    def sendfile(out, file, offset, count):
        sock = world.sockets[out - 10_000]
        data = os.pread(file, count, offset)
        return sock.send(data) if data else 0

    def sysconf(name):
        limit = world.most_sockets
        return (limit or 10**6) if name == "SC_OPEN_MAX" else os.sysconf(name)

    if hasattr(os, "sendfile"):
        names["sendfile"] = sendfile
    return MadeUp("os", os, sysconf=sysconf, **names)


# ---- the application, and the right answers --------------------------------------------------


@functools.lru_cache(None)
def content(size):
    """Bytes that tell at which place they stood. Garbage may ask for any number of them."""
    size = min(size, 10_000)
    text = b"".join(b"%x." % number for number in range(size // 2 + 1))
    return text[:size]


@functools.lru_cache(None)
def encoded_events(count):
    return b"".join(b"data: %d\n\n" % each for each in range(count))


FILES = (1, 700, 5000)


class Blocks:
    """Blocks of a stream; it notes whether it was closed."""

    def __init__(self, world, items, sleep, fails=False):
        self.world = world
        self.items = iter(items)
        self.sleep = sleep
        self.fails = fails
        self.closes = 0
        world.streams.append(self)

    def __iter__(self):
        return self

    def __next__(self):
        seconds = self.world.chance.choice([0, 0, 0.001, 0.03])
        if seconds:
            self.sleep(seconds)
        for item in self.items:
            return item
        if self.fails:
            raise ValueError("planned")
        raise StopIteration

    def close(self):
        self.closes += 1


def cut_up(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


def make_app(module, folder):
    """Make the application; `current` holds the world of the moment."""

    class App(module.WebApp):
        def on_request(self, context):
            current["world"].begun.add(context.request.headers.get("X-Number"))

        def on_complete(self, context):
            current["world"].completed.append(context.request.headers.get("X-Number"))

    current = {}
    app = App(max_body_size=10**7)

    def sleep(seconds):
        module.time.sleep(seconds)

    def blocks(items, fails=False):
        return Blocks(current["world"], items, sleep, fails)

    @app.get("/bytes/{size:int}")
    def give_bytes(context, size):
        return content(size)

    @app.get("/slow/{milliseconds:int}")
    def be_slow(context, milliseconds):
        sleep(milliseconds / 1000)
        return "slow"

    @app.get("/wait/{microseconds:int}")
    def wait(context, microseconds):
        sleep(microseconds / 1e6)
        return "wait"

    @app.get("/file/{size:int}")
    def give_file(context, size):
        return context.response.file(str(Path(folder, str(size))))

    @app.get("/stream/{size:int}")
    def give_stream(context, size):
        return context.response.stream(blocks(cut_up(content(size), 250)))

    @app.get("/broken/{size:int}")
    def break_off(context, size):
        return context.response.stream(blocks(cut_up(content(size), 250), fails=True))

    @app.get("/events/{count:int}")
    def give_events(context, count):
        return context.response.events(blocks(map(str, range(count))))

    @app.get("/endless")
    def give_events_for_ever(context):
        return context.response.events(blocks(map(str, itertools.count())))

    @app.post("/echo")
    def echo(context):
        return context.request.body

    @app.post("/pieces")
    def read_in_pieces(context):
        found = b""
        while piece := context.request.stream.read(97):
            found += piece
        return found

    @app.post("/form")
    def read_form(context):
        return context.request.form["a"]

    @app.post("/fail")
    def fail_with_a_body(context):
        context.request.stream.read(1000)
        raise ValueError("planned")

    @app.post("/unread")
    def leave_it(context):
        return "unread"

    @app.get("/fail")
    def fail(context):
        raise ValueError("planned")

    def serve(environ, start_response):
        """Some paths are answered without the framework, by the steps of PEP 3333."""
        name, _, value = environ["PATH_INFO"][1:].partition("/")
        if name == "kept":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [environ["wsgi.input"].read()]
        if name not in ("plain", "written", "drawn") or not value.isdigit():
            return app(environ, start_response)
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        pieces = cut_up(content(int(value)), 250)
        if name == "plain":
            return [b"".join(pieces)]
        if name == "drawn":
            return blocks(pieces)
        for piece in pieces:
            write(piece)
        return []

    return serve, app, current


class Request(NamedTuple):
    """A request, and its right answer: the status, the body, and whether that ends properly."""

    path: str
    method: str = "GET"
    body: bytes = None
    modern: bool = True  # HTTP/1.1
    chunks: int = 0  # the size of its chunks
    expects: bool = False
    closes: bool = False
    number: str = ""

    def head(self):
        lines = [f"{self.method} {self.path} HTTP/1.{int(self.modern)}", "Host: localhost"]
        lines.append(f"X-Number: {self.number}")
        if self.closes:
            lines.append("Connection: close")
        elif not self.modern and self.number[-1:] in ("1", "3"):
            lines.append("Connection: keep-alive")
        if self.chunks:
            lines.append("Transfer-Encoding: chunked")
        elif self.body is not None:
            lines.append(f"Content-Length: {len(self.body)}")
        if self.path == "/form":
            lines.append("Content-Type: application/x-www-form-urlencoded")
        if self.expects:
            lines.append("Expect: 100-continue")
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()

    def is_plain(self):
        """Tell whether the framework never sees it."""
        return self.path.startswith(("/plain/", "/written/", "/drawn/", "/kept"))

    def has_events(self):
        return self.path.startswith("/e") and self.path != "/echo"

    def encoded_body(self):
        if not self.chunks:
            return self.body or b""
        pieces = cut_up(self.body, self.chunks)
        return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"

    def right_answer(self):
        name, _, value = self.path[1:].partition("/")
        if self.path == "/fail":
            return 500, b"500 Internal Server Error", True
        if name in ("bytes", "file", "stream", "broken", "plain", "written", "drawn"):
            return 200, content(int(value)), name != "broken" or self.method == "HEAD"
        if name == "events":
            return 200, encoded_events(int(value)), True
        if name == "endless":
            return 200, encoded_events(10_000), self.method == "HEAD"
        if name in ("echo", "pieces", "kept"):
            return 200, self.body, True
        if name == "form":
            return 200, self.body[2:], True
        return 200, name.encode(), True


class Answer(NamedTuple):
    status: int = 0
    body: bytes = b""
    complete: bool = False
    closes: bool = False
    used: int = 0  # bytes, with interim answers in front of it
    continued: bool = False  # "100 Continue" was there


class Chunks:
    """The chunks of an answer that have arrived. The next look begins behind them."""

    def __init__(self):
        self.body = b""
        self.end = None


def read_answer(data, method, ended, chunks):
    """Read the answer at the beginning of `data`. `ended`: the connection has ended properly.
    `chunks` is kept from one look at an answer to the next."""
    start = 0
    continued = False
    while True:
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            if data[start:] and not b"HTTP/1.1 ".startswith(data[start : start + 9]):
                raise Fault(f"this is no answer: {bytes(data[start : start + 60])!r}")
            return Answer(continued=continued)
        lines = data[start:end].decode("latin-1").split("\r\n")
        match = re.fullmatch(r"HTTP/1\.1 ([1-5][0-9]{2}) .*", lines[0])
        if match is None:
            raise Fault(f"this is no status line: {lines[0]!r}")
        start = end + 4
        status = int(match[1])
        if status >= 200:
            break
        if continued or status != 100:
            raise Fault(f"an interim answer too many: {lines[0]!r}")
        continued = True
    fields = dict(line.lower().split(": ", 1) for line in lines[1:])
    closes = fields.get("connection") == "close"
    body, complete, used = b"", False, len(data)
    if method == "HEAD" or status in (204, 304):
        complete, used = True, start
    elif "content-length" in fields:
        used = start + int(fields["content-length"])
        body = data[start:used]
        complete = len(data) >= used
    elif "chunked" in fields.get("transfer-encoding", ""):
        body, complete, used = read_chunks(data, chunks.end or start, chunks)
    else:
        if not closes:
            raise Fault("an answer without an end, on a connection that stays")
        body, complete = data[start:], ended
    return Answer(status, bytes(body), complete, closes, used, continued)


def is_ready(sock, readable, wants_to_send):
    return readable() or (wants_to_send and (sock.space() > 0 or sock.peer.closed))


def read_chunks(data, start, chunks):
    while (end := data.find(b"\r\n", start)) >= 0:
        if not re.fullmatch(rb"[0-9a-f]+", data[start:end]):
            raise Fault(f"this is no size of a chunk: {bytes(data[start:end])[:40]!r}")
        size = int(data[start:end], 16)
        start = end + 2
        if not size:
            return chunks.body, data[start : start + 2] == b"\r\n", start + 2
        piece = data[start : start + size]
        if len(data) < start + size + 2:
            return chunks.body + piece, False, len(data)
        if data[start + size : start + size + 2] != b"\r\n":
            raise Fault("a chunk is longer than its size")
        start += size + 2
        chunks.body += piece
        chunks.end = start
    return chunks.body, False, len(data)


# ---- TLS -------------------------------------------------------------------------------------

# A key for these worlds and nothing else. Signatures by Ed25519 always have the same size, so a
# world with TLS is the same each time, although its bytes are not.
PEM = """\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIE2MY8MycUlK9SJhjG27CX0oJM9sEjguBK8CKK/MqOcq
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBPjCB8aADAgECAhRYxHVN8OXlk9UfU9f/TbPiZf/g1TAFBgMrZXAwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNDEzMDQxM1oYDzIxMjYxMDMxMTMwNDEz
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwKjAFBgMrZXADIQDSrAMSsur/OEzQUsXJ
bEziC0p08+Dqxk4s3JQdGcrLD6NTMFEwHQYDVR0OBBYEFJulOUpYbw+oLZA9eQLQ
PKSaLk0GMB8GA1UdIwQYMBaAFJulOUpYbw+oLZA9eQLQPKSaLk0GMA8GA1UdEwEB
/wQFMAMBAf8wBQYDK2VwA0EADiq+1277Az7YJ+UCcyMiiNS6rT1GnIhe/V9ul/t3
1OQL/rfG7jkBfvyXUO587V0Xq51zd9n2EcXURzpz4fjvDg==
-----END CERTIFICATE-----
"""


class TimedTLS(ssl.SSLObject):
    """The end of the server. Two things take time: a handshake, and messages that carry nothing."""

    world = None
    has_begun = False
    incoming = None

    @classmethod
    def _create(cls, incoming, *arguments, **more):
        made = super()._create(incoming, *arguments, **more)
        made.incoming = incoming
        return made

    def do_handshake(self):
        if not self.has_begun:
            self.has_begun = True
            self.world.spend(self.world.handshake)
        super().do_handshake()

    def read(self, *arguments):
        before = self.incoming.pending
        try:
            return super().read(*arguments)
        except ssl.SSLWantReadError:
            self.world.spend(self.world.message * (before - self.incoming.pending) / 2048)
            raise


def find_key_update():
    """Find the function of OpenSSL that changes the key, because `ssl` has none; or None."""
    try:
        library = ctypes.CDLL(sys.modules["_ssl"].__file__)
        return library.SSL_key_update, library.SSL_do_handshake
    except (AttributeError, KeyError, OSError):
        return None


KEY_UPDATE = find_key_update()


def make_contexts(folder):
    """The ssl contexts of the server and of its clients, for TLS 1.3 and 1.2; the real ones."""
    path = Path(folder, "both.pem")
    path.write_text(PEM, encoding="ascii")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(str(path))
    server.sslobject_class = TimedTLS
    clients = []
    for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.maximum_version = version
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        clients.append(client)
    return server, clients


class SecureEnd:
    """The end of a client that speaks TLS; it is used as a Socket."""

    def __init__(self, sock, context):
        chance = sock.world.tls_chance
        self.record = chance.choice([1, 100, 2**14, 2**14])  # bytes of a record at most
        self.ends_tls = chance.random() < 0.5  # its end is one of TLS, and not one of the socket
        self.has_finished = False
        self.sock = sock
        self.arrived, self.encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.leaving = b""
        self.tls = context.wrap_bio(self.arrived, self.encrypted, server_hostname="localhost")
        self.ready = False  # the handshake is done
        self.ended = False  # the server has said that nothing follows
        self._shake_hands()

    @property
    def closed(self):
        return self.sock.closed

    @property
    def broken(self):
        return self.sock.broken or (self.sock.ended and not self.sock.inbox and not self.ended)

    @property
    def peer(self):
        return self.sock.peer

    @property
    def shut(self):
        return self.has_finished

    def readable(self):
        return self.ended or self.sock.readable()

    def space(self):
        """Nothing of a request can leave during the handshake, but its own messages can."""
        return self.sock.space() if self.leaving or self.ready else 0

    def _shake_hands(self):
        if not self.ready:
            try:
                self.tls.do_handshake()
                self.ready = True
            except ssl.SSLWantReadError:
                pass
        self.leaving += self.encrypted.read()

    def _flush(self):
        count = self.sock.put(self.leaving)
        self.leaving = self.leaving[count:]
        return not self.leaving

    def put(self, data):
        if not self._flush() or not self.ready:
            return 0
        for start in range(0, len(data), self.record):
            self.tls.write(data[start : start + self.record])
        self.leaving += self.encrypted.read()
        self._flush()
        return len(data)

    def update_keys(self, count):
        """Send messages that only change the key (RFC 8446 section 4.6.3)."""
        # The object of CPython begins with the pointers to a socket and to OpenSSL's own.
        address = id(self.tls._sslobj) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
        pointer = ctypes.c_void_p(ctypes.c_void_p.from_address(address).value)
        update, shake_hands = KEY_UPDATE
        for _ in range(count):
            if not update(pointer, 0) == shake_hands(pointer) == 1:
                raise Fault("the client cannot change the key")
        self.leaving += self.encrypted.read()
        self._flush()

    def send_hello(self, count):
        """Send only some bytes of the handshake; return whether all have left then."""
        sent = self.sock.put(self.leaving[:count])
        self.leaving = self.leaving[sent:]
        return not self.leaving

    def get(self, size):
        """Return bytes, b"" at the proper end, None if nothing has been decrypted yet."""
        if self.ended:
            return b""
        data = self.sock.get(size)
        if not data:  # the connection has ended, and TLS has not: RFC 9112 section 9.8
            raise ConnectionResetError(errno.ECONNRESET, "cut off")
        self.arrived.write(data)
        plain = b""
        try:
            self._shake_hands()
            while self.ready and not self.ended:
                piece = self.tls.read(2**14)
                plain += piece
                self.ended = not piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise Fault(f"the server breaks the rules of TLS: {error}") from None
        with contextlib.suppress(ConnectionResetError):
            self._flush()
        return plain or (b"" if self.ended else None)

    def finish(self):
        self.has_finished = True
        if not self.ends_tls:
            self.sock.finish()
            return
        with contextlib.suppress(ssl.SSLError):  # the server has not answered yet
            self.tls.unwrap()
        self.leaving += self.encrypted.read()
        self._flush()

    def vanish(self, resets):
        self.sock.vanish(resets)


# ---- clients ---------------------------------------------------------------------------------

REFUSALS = {400, 408, 413, 431, 501, 503, 505}


class Client:
    """A client: it sends requests, checks their answers, and behaves in one manner.

    honest   reads all it can at once, and insists on each answer
    eager    tries again when it was turned away
    slow     rests for seconds, in the middle of anything
    leaver   leaves in the middle of anything
    stuck    reads nothing before the connection ends
    idle     sends the beginning of a request, and waits for the end
    half     ends its own direction behind its requests, and waits for the end of the other
    updates  begins a request over TLS, and then sends nothing but changes of the key
    mute     begins a handshake of TLS, and sends its bytes one by one at most
    greedy   sends only so many bytes of a body, and waits for the end
    garbage  sends requests with changed, lost and repeated bytes
    """

    def __init__(self, world, name, manner, requests, quick=False):
        chance = world.chance
        self.world = world
        self.name = f"{name}-{manner}"
        self.manner = manner
        self.todo = [each._replace(number=f"{name}.{n}") for n, each in enumerate(requests)]
        self.asked = tuple(self.todo)
        self.pipelined = chance.random() < 0.5
        self.quick = quick
        self.window = chance.choice([70, 500, 3000, 10**6])
        self.is_wide = False  # nothing has to wait for room
        self.patience = chance.randint(1, 60)  # steps until a leaver leaves
        self.resets = chance.random() < 0.5
        self.gap = 0  # seconds between two pipelined requests
        self.stopped = False  # the server stops: only the answers that are `due` have to come
        self.due = ()  # numbers of requests
        self.sent = set()  # numbers of requests that were sent on this connection
        self.chunks = Chunks()  # of the answer that is arriving
        self.tries = 0
        self.rest = 0.01  # seconds before the next connection
        self.delays = [0, 0, 0.01, 1]  # seconds before the first one
        self.pause = 0  # seconds between two requests
        self.distance = 0  # seconds that the first message to it is on its way
        self.only_kept = False  # a new connection may wait
        self.begun = 0  # bytes of its body that a greedy client sends
        self.ended = False

    def steps(self):
        yield None, self.world.chance.choice(self.delays), "its time"
        while self.todo:
            sock = self._connect()
            if sock is None:
                break
            if self.manner == "updates":
                yield from self._update_keys(sock)
            elif self.manner == "mute":
                yield from self._begin_handshake(sock)
            else:
                yield from self._converse(sock)
            if self.manner == "half" and not (self.todo or self.stopped or sock.closed):
                yield from self._wait_for_end(sock)
            if not sock.closed:
                sock.vanish(resets=False)
            if not self.todo or self.manner not in ("honest", "eager"):
                break
            yield None, self.rest, "its next connection"
            self.rest = 0.01
        self.ended = True

    def stop(self, seconds):
        """Learn that the server stops, which has so many seconds for it."""
        self.stopped = True
        if seconds >= 5:
            self.due = self.world.begun.copy()
        if seconds >= LONG:
            self.due |= self.sent

    def _connect(self):
        world = self.world
        if world.listener.closed:
            return None
        kind = type(world.listener)
        there, here = kind(world.chance.choice([70, 500, 3000, 10**6])), kind(self.window)
        if self.is_wide:
            there.window = here.window = 10**6
        if self.manner == "updates":  # OpenSSL computes each key, also those that nobody reads
            there.window = min(there.window, 20_000)
        there.peer, here.peer = here, there
        here.is_client = True
        world.listener.arriving.append(there)
        world.tell(f"connects {there!r}")
        if not world.contexts:
            return here
        # Only TLS 1.3 can change the key.
        old = self.manner != "updates" and world.tls_chance.random() < 0.5
        end = SecureEnd(here, world.contexts[old])
        if self.quick:
            end.record = 2**14
        return end

    def _update_keys(self, sock):
        world, chance = self.world, self.world.tls_chance
        head, body = self._encode(self.todo[0])
        out = (head + body)[: chance.choice([0, 10, len(head), len(head + body) - 1])]
        until = None
        while not (sock.ended or sock.broken or sock.peer.closed):
            if until is not None and world.now >= until:
                raise Fault("changes of the key keep a connection open")
            try:
                if sock.readable():
                    sock.get(10**6)
                elif sock.leaving or out:
                    out = out[sock.put(out) :]
                elif sock.ready:
                    sock.update_keys(50)
                    until = until or world.now + PATIENCE
            except ConnectionResetError:
                return
            yield functools.partial(is_ready, sock, sock.readable, True), 1, "room for messages"

    def _begin_handshake(self, sock):
        world, chance = self.world, self.world.tls_chance
        count = chance.choice([0, 3, 8, 100])  # bytes
        until = world.now + PATIENCE
        while not (sock.sock.readable() or sock.peer.closed):
            if world.now >= until:
                raise Fault("a handshake that has only begun keeps a connection open")
            if sock.send_hello(count):
                raise Fault("a byte now and then keeps a connection open")
            count = chance.choice([0, 1])
            yield sock.sock.readable, 0.25, "the end of its time"

    def _wait_for_end(self, sock):
        """The client has ended its side, and has all answers: now the server ends its side."""
        while True:
            yield sock.readable, 2 * QUICK, "the end"
            if not sock.readable():
                raise Fault("a client has ended its side, and its connection stays open")
            try:
                data = sock.get(10**6)
            except ConnectionResetError:
                return
            if data:
                raise Fault(f"bytes that nobody asked for: {data[:60]!r}")
            if data is not None:
                return

    def _encode(self, request):
        head, body = request.head(), request.encoded_body()
        if self.manner == "greedy":
            return head, body[: self.begun]
        if self.manner != "garbage":
            return head, body
        chance, data = self.world.chance, bytearray(head + body)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data))
            part = bytes(data[at : at + chance.randint(0, 20)])
            data[at : at + chance.randint(0, 3)] = chance.choice(
                [b"", part, bytes([chance.randrange(256)]), b"\r\n", b"\n"]
            )
        return bytes(data), b""

    def _converse(self, sock):
        world, chance = self.world, self.world.chance
        out, held, held_at = bytearray(), b"", 0.0
        received = bytearray()
        self.chunks = Chunks()
        self.sent = set()
        asked, steps = 0, 0  # asked: requests that were sent, and have no answer yet
        asked_at = [0.0]
        is_kept = False  # the connection has had an answer
        distance = self.distance
        ended = reset = False

        def readable():
            return sock.readable() and (self.manner != "stuck" or sock.broken or sock.ended)

        while self.todo and not (ended or reset):
            if not out and not held and asked < len(self.todo) and (self.pipelined or not asked):
                if self.gap and asked:
                    yield None, self.gap, "its next request"
                head, body = self._encode(self.todo[asked])
                out += head
                if self.todo[asked].expects and self.manner != "garbage":
                    held, held_at = body, world.now
                else:
                    out += body
                asked += 1
                if self.manner == "half" and asked == len(self.todo):
                    held, out = b"", out + held
            if self.manner == "idle" and steps == self.patience:
                out.clear()
                held = b""
                asked = len(self.todo)
            if held and not out and world.now - held_at >= 1:
                out, held = out + held, b""
            can_put = bool(out or sock.leaving) and (
                sock.space() > 0 or sock.broken or sock.peer.closed
            )
            if not (can_put or readable()):
                wants = bool(out or sock.leaving)
                seconds = 1 if held and not out else 400
                before = world.now
                yield (
                    functools.partial(is_ready, sock, readable, wants),
                    seconds,
                    f"an answer to {self.todo[0].path}",
                )
                if seconds == 400 and world.now - before >= 400:
                    raise Fault(f"no answer, and no end: {self.todo[0]}")
                continue
            if distance and readable():
                yield None, distance, "the way to the client"
                distance = 0
            steps += 1
            try:
                if can_put and (not readable() or chance.random() < 0.5):
                    size = chance.choice([1, 30, 300, 10**6])
                    count = sock.put(bytes(out[:size]))
                    del out[:count]
                    world.tell(f"puts {count}")
                    if not out and not held:
                        asked_at[0] = world.used()
                        sock.peer.parts = 0
                        if not sock.leaving:
                            self.sent |= {each.number for each in self.todo[:asked]}
                        if self.manner == "half" and asked == len(self.todo) and not sock.shut:
                            sock.finish()
                else:
                    data = sock.get(chance.choice([1, 40, 400, 10**6]))
                    if data is None:
                        yield None, 0, "its turn"
                        continue
                    world.tell(f"gets {data[:60]!r} {len(data)}")
                    received += data
                    ended = not data
            except ConnectionResetError:
                world.tell("is reset")
                reset = True
            if self.manner == "garbage":
                received.clear()
            else:
                done, closes, continued = self._check(received, ended, reset, asked)
                asked -= done
                if continued and held:
                    out, held = out + held, b""
                if done and self.quick and not self.pipelined:
                    waited = world.used() - asked_at[0]
                    # Reading each part takes a turn, and a turn may hold a handshake.
                    allowed = QUICK + world.handshake * sock.peer.parts
                    if waited > allowed and (is_kept or not self.only_kept):
                        raise Fault(f"a quick request waited {waited:.3f} s")
                    is_kept = True
                    if self.pause:
                        yield None, self.pause, "a rest"
                if closes:
                    return
            if self.manner == "leaver" and steps >= self.patience:
                world.tell("leaves")
                sock.vanish(self.resets)
                return
            if self.manner == "slow" and chance.random() < 0.2:
                yield None, chance.choice([0.1, 1, 5]), "a rest"
            else:
                yield None, 0, "its turn"

    def _check(self, received, ended, reset, asked):
        """Check what has arrived; return how many answers are done, whether the connection ends,
        and whether the body was asked for."""
        done = 0
        while self.todo:
            request = self.todo[0]
            answer = read_answer(received, request.method, ended, self.chunks)
            if done >= asked and (received or answer.status):
                raise Fault(f"bytes that nobody asked for: {bytes(received[:60])!r}")
            if not (answer.complete or ended or reset):
                return done, False, answer.continued
            self._judge(request, answer)
            if not answer.complete:
                whole = request.right_answer()[2]
                due = not self.stopped or (request.number in self.due and not request.has_events())
                # A reset ends a broken answer without chunks, and destroys what nobody has read.
                some_came = bool(answer.status) or (reset and not request.modern)
                if self.manner == "honest" and due and (whole or not some_came):
                    raise Fault(f"the answer is not complete: {request} {answer}")
                self._try_again(request, cut=some_came and not whole)
                return done, True, False
            if answer.status == 503 and self.manner == "eager":
                self.rest = 10  # as Retry-After says
                self._try_again(request, cut=False)
                return done, True, False
            del received[: answer.used]
            self.chunks = Chunks()
            self.todo.pop(0)
            done += 1
            if request.has_events():  # a stop ends them, and their connection
                self.due = ()
            if answer.closes:
                self._check_last(request)
                if ended and received:
                    raise Fault(f"bytes behind the last answer: {bytes(received[:60])!r}")
                return done, True, False
        return done, True, False

    def _check_last(self, request):
        """Check that nothing that was sent before a stop stays behind the last answer.

        A record of TLS may have arrived only in part when the server looks.
        """
        may_be_followed = request.modern and not request.closes and request.body is None
        left = [each for each in self.todo if each.number in self.due]
        if left and may_be_followed and self.manner == "honest" and not self.world.contexts:
            raise Fault(f"the last answer came before that to {left[0]}")

    def _try_again(self, request, cut):
        self.due = ()  # those behind it will be sent again
        self.tries += 1
        if cut or self.stopped or self.tries > 40:
            if self.manner == "eager" and self.tries > 40:
                raise Fault(f"turned away 40 times: {request}")
            self.todo.pop(0)
        else:
            self.todo[0] = request._replace(number=f"{request.number}+")

    def _judge(self, request, answer):
        """Check the status and the bytes that came, and that a cut body does not look complete."""
        if not answer.status:
            return
        status, body, whole = request.right_answer()
        body = b"" if request.method == "HEAD" else body
        lacks_memory = self.world.lacks_memory and request.body and answer.status == 503
        if answer.status in REFUSALS and (self.manner != "honest" or lacks_memory):
            status, whole = answer.status, True
            body = f"{status} {HTTPStatus(status).phrase}".encode()
            body = b"" if request.method == "HEAD" else body
            if status == 413:
                body = b"413 Content Too Large"
        if answer.status != status:
            raise Fault(f"status {answer.status}, and {status} is right: {request}")
        if not body.startswith(answer.body):
            raise Fault(f"a wrong body: {request} {answer}")
        if answer.complete and (not whole or len(answer.body) != len(body)):
            raise Fault(
                f"a body that was cut looks complete: {len(answer.body)} of {len(body)}: {request}"
            )


# ---- worlds ----------------------------------------------------------------------------------


class Program:
    """A copy of webapp.py whose outside can be replaced, with its application."""

    numbers = itertools.count()

    def __init__(self, text=None):
        path = ROOT / "webapp.py"
        self.module = types.ModuleType(f"webapp_in_made_up_worlds_{next(self.numbers)}")
        self.module.__file__ = str(path)
        sys.modules[self.module.__name__] = self.module
        text = path.read_text(encoding="utf-8") if text is None else text
        exec(compile(text, str(path), "exec"), self.module.__dict__)
        gone = [name for name in SIZES if not hasattr(self.module, name)]
        if gone:
            raise SystemExit(f"webapp.py has no {', '.join(gone)}: mend SIZES in simulation.py")
        self.real = {
            name: getattr(self.module, name)
            for name in ("threading", "time", "monotonic", "selectors", "socket", "os", *SIZES)
        }
        # Longer than a quick request may wait, so that a leader who is not woken is noticed.
        self.module._TICK = 4 * QUICK
        self.folder = tempfile.TemporaryDirectory(prefix="webapp-")
        for size in FILES:
            Path(self.folder.name, str(size)).write_bytes(content(size))
        self.contexts = make_contexts(self.folder.name)
        self.app, framework, self.current = make_app(self.module, self.folder.name)
        self.current["world"] = World(0)
        self.module.TestClient(framework).get("/bytes/1")  # what is made once is made here

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        with contextlib.suppress(OSError):  # on Windows, a file that a fault has left open
            self.folder.cleanup()
        del sys.modules[self.module.__name__]

    @contextlib.contextmanager
    def in_world(self, world):
        """Let the names of the module stand for the made-up things."""
        clock = make_time(world)
        names = {
            "threading": make_threading(world),
            "time": clock,
            "monotonic": clock.monotonic,
            "selectors": make_selectors(world),
            "socket": make_socket(world),
            "os": make_os(world),
            **{name: world.chance.randint(*limits) for name, limits in SIZES.items()},
        }
        self.module.__dict__.update(names)
        self._renew_turns()
        self.current["world"] = TimedTLS.world = world
        world.tell(", ".join(f"{name} {names[name]}" for name in SIZES))
        loggers = [logging.getLogger("webapp"), logging.getLogger("webapp.access")]
        before = [(each.propagate, each.level, each.handlers) for each in loggers]
        try:
            for each in loggers:
                each.propagate, each.handlers = False, [Listener(world)]
                each.setLevel(logging.INFO)
            yield names["socket"].socket
        finally:
            for each, (propagate, level, handlers) in zip(loggers, before):
                each.propagate, each.handlers = propagate, handlers
                each.setLevel(level)
            self.module.__dict__.update(self.real)
            self._renew_turns()

    def _renew_turns(self):
        """Give the turns locks of the current `threading`: real ones would stop the world."""
        for name in ("_parsing", "_decoding"):
            setattr(self.module, name, type(getattr(self.module, name))())


class Listener(logging.Handler):
    """Keeps the records of the log."""

    @staticmethod
    def is_planned(record, text):
        """Tell whether it is a planned failure, or a 503 for want of a place."""
        error = record.exc_info[1] if record.exc_info else None
        return re.search("/fail|/broken|: 503", text) or getattr(error, "status_code", None) == 503

    def __init__(self, world):
        super().__init__()
        self.world = world

    def emit(self, record):
        world = self.world
        text = record.getMessage()
        world.tell(f"log: {text[:200]}")
        if record.name == "webapp.access":
            world.lines += 1
        if "the server failed" in text:
            world.fail(text[-2000:])
        elif record.levelno >= logging.ERROR and not self.is_planned(record, text):
            world.fail(f"logged: {text[-2000:]}")


def choose_request(chance, kind, manner):
    modern = chance.random() < 0.8
    size = chance.choice([0, 1, 50, 700, 2500, 6000])
    if chance.random() < 0.4:
        expects = modern and chance.random() < 0.3
        chunks = chance.choice([0, 0, 1, 16, 300]) if modern else 0
        path = chance.choice(["/echo", "/pieces", "/unread", "/form", "/kept", "/fail"])
        size = min(size, 300) if chunks == 1 else size
        body = b"a=" * (path == "/form") + content(size)
        return Request(path, "POST", body, modern, chunks, expects)
    paths = [f"/bytes/{size}"] * 3 + [
        f"/file/{chance.choice(FILES)}",
        f"/stream/{size}",
        f"/{chance.choice(['plain', 'written', 'drawn'])}/{size}",
        f"/events/{chance.randint(1, 20)}",
        # Without another thread, a slow handler keeps all others waiting.
        f"/slow/{chance.choice([1, 8, 40, 900 if kind != 'cramped' else 1])}",
        f"/broken/{max(1, size)}",
        "/fail",
    ]
    if manner == "leaver" or kind == "stopping":
        paths.append("/endless")
    method = "HEAD" if chance.random() < 0.1 else "GET"
    return Request(chance.choice(paths), method, None, modern, closes=chance.random() < 0.1)


MANNERS = {
    "honest": [["honest"], []],
    "hostile": [["honest"], ["slow", "leaver", "stuck", "idle", "half", "garbage"]],
    "crowded": [["eager"], ["slow", "leaver", "stuck", "idle", "garbage"]],
    "stopping": [["honest"], ["honest", "slow", "leaver", "stuck", "idle", "half"]],
    "waiting": [["honest"], []],
    "cramped": [["honest"], ["slow", "leaver", "stuck", "idle"]],
    "encrypted": [["honest"], ["updates", "mute", "half", "slow", "idle"]],
    "greedy": [["honest"], ["greedy"]],
}
WAITS = (300, 1000, 3000, 5000, 8000, 20_000)  # microseconds


def make_crowd(world):
    """Make clients that come at once; all their handlers wait equally long."""
    chance = world.chance
    request = Request(f"/wait/{chance.choice(WAITS)}")
    count = chance.randint(4, 12)
    crowd = [
        Client(world, f"c{number}", "honest", [request] * chance.randint(1, 12))
        for number in range(count)
    ]
    for client in crowd:
        client.delays = [0]
    return crowd


# What all clients of a world do when its server stops, and the stop_timeout of the server.
SCENES = {
    "events": [12],  # nobody asks for anything else
    "pipelines": [LONG],  # requests have arrived behind one that is answered slowly
    "loops": [LONG],  # one quick request follows the other
}


def make_scene(world):
    requests = {
        "events": [Request("/endless")],
        "pipelines": [Request("/slow/900"), Request("/bytes/50"), Request("/bytes/50")],
        "loops": [Request("/bytes/50")] * 20,
    }[world.scene]
    clients = [Client(world, f"c{number}", "honest", requests) for number in range(2)]
    for client in clients:
        client.pipelined = world.scene == "pipelines"
        client.gap = 0.002 if client.pipelined else 0
        client.delays = [0]
    return clients


def make_encrypted(world):
    """Make clients that speak TLS. Many shake hands at the same moment, and some are quick then.

    Or some change their keys on and on, which takes so long that nobody else can be quick.
    """
    chance = world.chance
    others = MANNERS["encrypted"][1]
    manners = [chance.choice(others) for _ in range(chance.randint(0, 3))]
    if KEY_UPDATE is None:
        manners = [each for each in manners if each != "updates"]
    clients = []
    if "updates" in manners:
        world.message = 0.1
    else:
        for number in range(chance.randint(1, 2)):
            clients.append(make_quick(world, f"q{number}", "honest", pause=0.05))
    moment = chance.choice([0.1, 0.5])
    for number in range(chance.choice([3, 12, 45])):
        client = Client(world, f"c{number}", "honest", [Request("/bytes/50")])
        client.delays = [moment]
        client.is_wide = True
        client.distance = chance.choice([0, SHORT / 2])
        clients.append(client)
    for number, manner in enumerate(manners):
        requests = [choose_request(chance, "encrypted", manner) for _ in range(2)]
        if manner == "updates":
            requests = [Request("/pieces", "POST", content(chance.choice([50, 6000])))]
        clients.append(Client(world, f"d{number}", manner, requests))
    return clients


def make_greedy(world):
    """Make clients that hold all slots of uploads, or what may be in temporary files, and then
    some whose uploads must find room nevertheless."""
    chance = world.chance
    needs_files = world.needs_files
    paths = ["/kept"] if needs_files else ["/echo", "/pieces", "/kept"]
    clients = []
    for number in range(2 if needs_files else chance.randint(4, 7)):
        whole = chance.choice([6000] if needs_files else [0, 6000])  # the size of its one chunk
        expects = chance.random() < 0.3
        request = Request(
            chance.choice(paths), "POST", content(6000), chunks=whole, expects=expects
        )
        client = Client(world, f"g{number}", "greedy", [request])
        begun = 3500 if needs_files else chance.randrange(world.piece // 2)
        client.begun = begun + len(b"1770\r\n") * bool(whole)
        client.delays = [0, 0.01]
        clients.append(client)
    for number in range(1 if needs_files else 2):
        requests = [
            Request(chance.choice(paths), "POST", content(6000), chunks=chance.choice([300, 6000]))
            for _ in range(chance.randint(1, 3))
        ]
        client = Client(world, f"c{number}", "honest", requests)
        client.pipelined = False
        client.delays = [3.5]  # nobody else is young then
        clients.append(client)
    return clients


def make_quick(world, name, manner, pause):
    """Make a client that asks often, and takes what it gets: only others keep it waiting."""
    client = Client(world, name, manner, [Request("/bytes/50")] * 20, quick=True)
    client.pipelined = False
    client.only_kept = True
    client.is_wide = True
    client.pause = pause
    client.delays = [0]
    return client


def make_clients(world, kind):
    if kind == "waiting":
        return make_crowd(world)
    if kind == "encrypted":
        return make_encrypted(world)
    if kind == "greedy":
        return make_greedy(world)
    chance = world.chance
    if world.scene:
        return make_scene(world)
    good, others = MANNERS[kind]
    manners = [chance.choice(good) for _ in range(chance.randint(1, 3 + 4 * (kind != "hostile")))]
    if others:
        manners += [chance.choice(others) for _ in range(chance.randint(1, 6))]
    clients = []
    for number, manner in enumerate(manners):
        requests = [choose_request(chance, kind, manner) for _ in range(chance.randint(1, 4))]
        quick = kind == "cramped" and manner == "honest"
        quick = quick or (kind == "honest" and chance.random() < 0.3)
        if quick:
            requests = [Request("/bytes/50")] * 3
        client = Client(world, f"c{number}", manner, requests, quick)
        if quick:
            client.pipelined = False
        clients.append(client)
    if world.has_quick:
        manner = "honest" if kind == "hostile" else "eager"
        clients.append(make_quick(world, "q", manner, pause=0.1))
    return clients


def prepare(world, kind, program, kind_of_socket):
    """Make the server of a world."""
    chance = world.chance
    limits = {}
    if kind == "cramped":  # the log, the watch and the leader, and at most one more
        world.most_threads = chance.choice([3, 4])
    if kind == "crowded":
        world.most_sockets = chance.randint(10, 24)
        world.refusals = chance.choice([0, 0.3])
        world.most_threads = chance.choice([4, 5, 8, 100])
        limits = {"max_waiting": chance.choice([2, 4, 1000])}
        limits["max_unsent"] = chance.choice([3000, 10**9])
    if kind in ("honest", "crowded", "hostile"):
        limits["max_collected"] = chance.choice([500, 10**6])
        # Only clients that stall can take the memory away from a body for long.
        world.lacks_memory = kind != "honest" and limits["max_collected"] == 500
    if kind == "greedy":
        world.needs_files = chance.random() < 0.5
        world.piece = program.module._PIECE
        limits = {"max_spooled": 8000} if world.needs_files else {"max_waiting": 8}
    timeouts = [0, 0.5, 5]
    if kind == "stopping":
        world.scene = chance.choice([*SCENES, *[""] * 6])
        timeouts = SCENES.get(world.scene) or [*timeouts, LONG, LONG, LONG]
    server_class = type("SmallServer", (program.module.Server,), limits)
    world.listener = kind_of_socket()
    context = None
    if chance.random() < 0.2 or kind == "encrypted":
        context, world.contexts = program.contexts
        world.handshake = world.tls_chance.choice([0, 0.003, 0.03])
        world.message = 0.004
    options = {
        "quiet": chance.random() < 0.5,
        "threads": 10 if kind == "honest" else chance.choice([1, 2, 4]),
        "header_timeout": chance.choice([2, 10]),
        "idle_timeout": chance.choice([2, 10]),
        "body_timeout": chance.choice([2, 10]),
        "write_timeout": chance.choice([2, 10]),
        "stop_timeout": chance.choice(timeouts),
        "on_stop": world.note_stop if chance.random() < 0.5 else None,
    }
    if kind == "encrypted":
        options.update(header_timeout=SHORT, idle_timeout=SHORT, body_timeout=SHORT, threads=10)
    if kind == "greedy":
        options.update(body_timeout=10, threads=10)
    if kind in ("crowded", "hostile") and world.tls_chance.random() < 0.3:
        world.has_quick = True
        world.most_threads = None
        options["threads"] = 20
    return server_class(program.app, ssl_context=context, socket=world.listener, **options)


def play(seed, kind, program, verbose=False):
    """Play one world; raise Fault if it goes wrong. Return the world."""
    world = World(f"{kind} {seed}", verbose)
    before = open_files()
    with program.in_world(world) as kind_of_socket:
        try:
            server = prepare(world, kind, program, kind_of_socket)
            clients = make_clients(world, kind)
            for client in clients:
                world.add_client(client.name, client.steps())
            if not world.contexts:
                watch_memory(world, server, program.module)
            server.start()
            world.leads = server._thread_pool.leads
            if kind == "stopping":
                moments = [world.chance.random() / 1000] if world.scene == "loops" else MOMENTS
                world.pause(lambda: False, world.chance.choice(moments), "a stop")
                for client in clients:
                    client.stop(server.stop_timeout)
            else:
                if not world.pause(world.all_clients_have_ended, 5000, "the clients"):
                    raise Fault("the clients do not end: " + world.describe())
                if kind == "waiting":
                    check_pace(world, clients, program, threads=server._thread_pool._limits[0])
                world.pause(lambda: False, 120, "time-outs")
                check_rest(world, server)
            stop(world, server)
            world.pause(world.all_clients_have_ended, 500, "the last clients")
            world.pause(lambda: all(each.ended for each in world.threads), 8, "the last threads")
            check_end(world, clients, kind, server.quiet)
        except Abandoned:
            raise world.fault from None
        finally:
            world.abandon()
            world.sockets.clear()
    if before is not None and open_files() > before:
        raise Fault("a file is left open")
    return world


def stop(world, server):
    began = world.jumped
    world.stopping = True
    server.stop()
    seconds = world.jumped - began
    # Events end when on_stop has returned.
    limit = 6 if world.scene == "events" else server.stop_timeout
    if seconds > limit + 2.5:
        raise Fault(f"the stop took {seconds} s, and {limit} are enough")


def check_pace(world, clients, program, threads):
    """The answers of a crowd take no longer than with so many threads that only answer.

    The leader waits at times, to see whether handlers still wait. Others begin no answer then.
    """
    seconds = int(clients[0].asked[0].path.rpartition("/")[2]) / 1e6
    counts = [len(client.asked) for client in clients]
    due = seconds * (sum(counts) / threads + max(counts))
    trials = 2 * (1 + due // program.module._OFFLOAD_SECONDS)
    due += trials * min(seconds, program.module._QUICK)
    if world.jumped > due:
        raise Fault(f"answers took {world.jumped:.4f} s, and {threads} threads need {due:.4f} s")


def watch_memory(world, server, module):
    """Check at each change that large bodies, but for one, have not more memory than they may.

    Nor does a thread wait for more with what it has read of its body in memory twice.
    """
    accounts = server._accounts
    bodies, count, grow = accounts.bodies, accounts.bodies.set, accounts.grow_body
    small = max(module._PIECE, module._LINES_AT_ONCE)  # of a body, which never wait
    most = server.max_collected + 4 * module._PIECE + small  # the leader receives at a time

    def watched(connection, size):
        count(connection, size)
        waiting = {each: size for each, size in bodies.sizes.items() if size > small}
        waiting.pop(accounts._unlimited, None)
        if sum(waiting.values()) > most:
            world.fail(f"bodies of {sorted(waiting.values())} bytes, and {most} may be there")

    def growing(connection, size):
        twice = len(connection.run.body._taken.getvalue())
        if twice > module._PIECE and not accounts._has_room_for(connection, size):
            world.fail(f"a thread waits for memory, and a buffer of {twice} bytes stays there")
        grow(connection, size)

    bodies.set, accounts.grow_body = watched, growing


def check_rest(world, server):
    """All clients have left long ago: nothing is counted any more."""
    for name in COUNTERS:
        value = server
        for part in name.split("."):
            if not hasattr(value, part):
                raise SystemExit(f"a Server has no {name}: mend COUNTERS in simulation.py")
            value = getattr(value, part)
        if any(value) if isinstance(value, list) else value:
            raise Fault(f"{name} is {value!r}, and no client is there")


def check_end(world, clients, kind, quiet):
    """Check that the server has left nothing behind."""
    left = [each.name for each in world.threads if not each.ended]
    if left:
        raise Fault(f"threads are left: {left}")
    ends = [each for each in world.sockets if not (each.is_client or each.closed)]
    if ends:
        raise Fault(f"sockets are left: {ends}")
    if world.stops > 1:
        raise Fault(f"on_stop was called {world.stops} times")
    if not all(each.ended for each in clients):
        raise Fault("a client was never told: " + world.describe())
    closes = [each.closes for each in world.streams]
    if set(closes) - {1}:
        raise Fault(f"streams were closed {closes} times")
    twice = [each for each in set(world.completed) if world.completed.count(each) > 1]
    if twice and kind != "hostile" and kind != "crowded":
        raise Fault(f"completed more than once: {twice}")
    if kind == "honest":
        check_notes(world, clients, quiet)


def check_notes(world, clients, quiet):
    """Each request of an honest client was completed once, and has one access line."""
    asked = [each for client in clients for each in client.asked]
    due = sorted(each.number for each in asked if not each.is_plain())
    completed = sorted(each.rstrip("+") for each in world.completed)
    if completed != due:
        raise Fault(f"completed: {completed}, and that is right: {due}")
    if world.lines != len(asked) * (not quiet):
        raise Fault(f"{world.lines} access lines for {len(asked)} requests")


def open_files():
    """How many there are, None where nobody tells."""
    if sys.platform == "win32":  # where Wine has some of its own in /dev/fd
        return sum(is_open(number) for number in range(MOST_FILES))
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return None


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


# ---- planted faults --------------------------------------------------------------------------

# Does the simulation notice anything? Each of these is a mistake that one could make: a text of
# webapp.py that stands there once, and the text that takes its place.
FAULTS = {
    "no lingering": (
        "self.linger()\n        else:",
        "return self.drop()\n        else:",
    ),
    "a place that is not given back": ("self._taken[connection.slot] -= 1", "pass"),
    "a bell that is not rung": (
        "self._server._wake()\n        return True",
        "pass\n        return True",
    ),
    "bytes of a pipelined request that are forgotten": (
        "self.buffer = data[end + 4 :]",
        "self.buffer = b''",
    ),
    "a pipelined request that waits for more bytes": (
        "if self.buffer:\n                self.parse()",
        "if False:\n                pass",
    ),
    "short writes that are taken for whole ones": (
        "view = view[moved:]",
        "view = view[len(view) if moved else 0 :]",
    ),
    "a leader that is not replaced when it waits": (
        "self._check_successor()\n                self._hand_over_lead()",
        "pass",
    ),
    "a leader that is not replaced when it is slow": (
        "return self._runs and self._number == self._seen",
        "return False",
    ),
    "a watch that is not woken": ("self._wake.notify()", "pass"),
    "a leader that answers everything itself": (
        "if self._waits == _WAITS_IN_A_ROW:",
        "if False:",
    ),
    "a pipelined request that helpers do not learn of": (
        "self._thread_pool.share()  # because requests may be pipelined behind these responses",
        "pass",
    ),
    "a lead that is given away although there is no other thread": (
        "return self._idle > 0 or self._add_thread()",
        "self._add_thread()\n        return True",
    ),
    "a helper whose answer wakes nobody because another was first": (
        "is_first = len(self.answered) == 1",
        "is_first = not len(self.answered)",
    ),
    "a deadline that never comes": ("if each.deadline <= looked]", "if False]"),
    "a file that is not closed": ("run.file.close()", "leaked.append(run.file)"),
    "a stop that waits for nobody": (
        "return waited >= limit",
        "return True",
    ),
    "events that keep a stop": (
        "return not (is_answered and self.server._events_may_end and self.run.has_events())",
        "return True",
    ),
    "a backlog that is reset at a stop": (
        "while self._accept() and monotonic() < until:\n            pass",
        "pass",
    ),
    "idle connections that a stopping server closes unseen": (
        "self.deadline = min(self.deadline, self.entered + _GRACE)",
        "self.drop()",
    ),
    "a request that a stopping server abandons before it has arrived": (
        "self.deadline = min(self.deadline, self.server._now + _SHORT_WAIT)",
        "self.drop()",
    ),
    "an answer that is the last one although another request has arrived": (
        "(not self.server._stopping or self.connection.receive_pipelined())",
        "not self.server._stopping",
    ),
    "a connection that a stop ends although its answer has promised it": (
        "nothing_follows = self.ended and not self.buffer",
        "nothing_follows = (self.ended or self.server._stopping) and not self.buffer",
    ),
    "a slow reader that is closed instead of reset": (
        "self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)",
        "pass",
    ),
    "threads that are not told": ("self._change.notify(needed)", "pass"),
    "threads that outlive the server": ("self._change.notify_all()", "pass"),
    "bytes of a body that are never given back": (
        "self.server._accounts.count_body(self.connection, 0)",
        "pass",
    ),
    "bodies that take all the memory": (
        "size <= _PIECE\n            or self._unlimited is connection",
        "True\n            or self._unlimited is connection",
    ),
    "bodies that wait for each other": (
        "self._unlimited = connection\n                    break",
        "pass",
    ),
    "a body that may exceed the limit for ever": (
        "if not size and self._unlimited is connection:",
        "if False:",
    ),
    "bytes of a temporary file that stay counted": (
        "temporary_files.callback(lambda: observer.count_spooled(-spooled, -1))",
        "pass",
    ),
    "a block that counts for its first client only": (
        "self._readers[id(block)] -= 1",
        "self._readers[id(block)] = 0",
    ),
    "a block that counts for each client": (
        "if id(block) not in self._readers:",
        "if True:",
    ),
    "received bytes that replace others": (
        "if data:\n            self.buffer += data",
        "if data:\n            self.buffer = data",
    ),
    "a HEAD with a body": (
        "if self.bodiless:\n            data = b",
        "if False:\n            data = b",
    ),
    "an unread body that is taken for a request": (
        "is_read = self.body is None or self.body.complete",
        "is_read = True",
    ),
    "a file that is sent from its beginning again": ("offset += sent or 0", "offset += 0"),
    "100 Continue again and again": (
        "body.expected = False\n            run.output",
        "run.output",
    ),
    "a result that is closed twice": (
        "for end in (self.close,",
        "hasattr(self.result, 'close') and self.result.close()\n        for end in (self.close,",
    ),
    "a listener that is abandoned for good": (
        "self._selector.register(self._listener, _READ)\n\n    # Stopping the server",
        "pass\n\n    # Stopping the server",
    ),
    "room that is made by cutting an answer": (
        "if connection.stage != _ANSWERING:\n                connection.drop()",
        "if True:\n                connection.drop()",
    ),
    "a closed socket that stays registered": (
        "self.select(0)\n        self.connections.pop",
        "self.connections.pop",
    ),
    "a connection that stays open when the server has ended": (
        "if ended:\n            connection.close()",
        "if ended:\n            pass",
    ),
    "a stream that is cut and looks complete": (
        "if run.ends_with_connection():\n                self.give_up()\n            self.drop",
        "self.drop",
    ),
    "a body without its last chunk": (
        'self.connection.send_now([b"0\\r\\n\\r\\n"], self.rate, self.block)',
        "pass",
    ),
    "a wait for the wrong event": (
        "socket.send(data)\n        except BlockingIOError:\n            self.awaited = _WRITE",
        "socket.send(data)\n        except BlockingIOError:\n            self.awaited = _READ",
    ),
    "a client that is too slow and stays": (
        "self.give_up()  # otherwise, the system would keep trying to send it",
        "return",
    ),
    "a TLS handshake of which both sides wait for the other": (
        "if self.flush():  # otherwise, the client must first read the rest of the handshake\n"
        "            self.awaited = _READ",
        "self.flush()\n        self.awaited = _READ",
    ),
    "encrypted bytes that are dropped because they do not fit": (
        "self._leaving = self._leaving[sent:]",
        'self._leaving = b""',
    ),
    "handshakes in one queue with requests": (
        "self._ready[connection.stage][connection] = None",
        "self._ready[_IDLE][connection] = None",
    ),
    "a handshake that has no end": (
        "_Stage(_SecureConnection.shake_hands, _Connection.drop,",
        "_Stage(_SecureConnection.shake_hands, _Connection.do_nothing,",
    ),
    "a hello that was answered late, and whose client has no time left": (
        "self.enter(_HANDSHAKE, self.server.header_timeout)\n            if _HELLO_RETRY",
        "pass\n            if _HELLO_RETRY",
    ),
    "a hello in pieces that waits too long for its turns": (
        "if each.stage == _HANDSHAKE:  # waiting for a turn may take longer than the limit",
        "if False:",
    ),
    "a byte now and then that keeps a handshake": (
        "self.enter(_IDLE, self.server.idle_timeout)\n        if has_bytes:",
        "self.enter(_IDLE, self.server.idle_timeout)\n        else:\n"
        "            self.enter(_HANDSHAKE, self.server.header_timeout)\n        if has_bytes:",
    ),
    "changes of the key that stop the time of a body": (
        "self.rate.moved(0, monotonic() - started)\n                is_late",
        "is_late",
    ),
    "bytes of a request that stop the time of a head": (
        "if self.receive_more(_LINES_AT_ONCE):\n            self.parse()",
        "self.receive_more(_LINES_AT_ONCE) and self.parse()\n"
        "        if self.stage in (_IDLE, _HEAD):\n"
        "            self.enter(self.stage, self.server.header_timeout)",
    ),
    "records that wait inside OpenSSL": (
        "while self._arrived.pending and not self.ended:",
        "if self._arrived.pending and not self.ended:",
    ),
    "a handshake of TLS 1.2 whose last message is forgotten": (
        "            if answer:\n                self._leaving += answer",
        "            if answer and not (self._is_complete and self._tls.version() == 'TLSv1.2'):\n"
        "                self._leaving += answer",
    ),
    "an end of TLS that is ignored": (
        "self.ended = not pieces[-1]",
        "if not pieces[-1]:\n                    break",
    ),
    "silent uploads that keep all slots": ("if body.size < _PIECE:", "if False:"),
    "an upload that is abandoned and is not told": (
        "left = 0.0 if rate.ended else until - monotonic()",
        "left = until - monotonic()",
    ),
    "an abandoned upload that counts for nothing": (
        "                self._taken[_STREAMS] += 1\n                self._taken[_UPLOADS] -= 1",
        "                self._taken[_UPLOADS] -= 1",
    ),
    "unfinished bodies that keep all temporary files": (
        "if now - each.began >= _LEAST_AGE]",
        "if False]",
    ),
    "a body that is kept beside what was read of it": (
        "if self._read == self.size:",
        "if False:",
    ),
    "a part of a body that is forgotten": (
        "self.decoded.append(piece)",
        "self.decoded = [piece]",
    ),
}


def plant(name):
    """Return the text of webapp.py with a fault."""
    text = (ROOT / "webapp.py").read_text(encoding="utf-8")
    right, wrong = FAULTS[name]
    if text.count(right) != 1:
        raise SystemExit(f"webapp.py has this text {text.count(right)} times: {right!r}")
    return text.replace(right, wrong) + "\n\nleaked = []\n"


def find_planted(name, most, kinds=tuple(MANNERS)):
    """Play worlds with a fault in them; return the first that notices it, and how, or None."""
    with Program(plant(name)) as program:
        for seed in range(most):
            for kind in kinds:
                try:
                    play(seed, kind, program)
                except Fault as fault:
                    return f"{kind} {seed}", str(fault)
    return None


# ---- the command line ------------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(description="Run the server in made-up worlds.")
    parser.add_argument("--seeds", default="0:100", help="from:to, the last is left out")
    parser.add_argument("--seed", type=int, help="one world")
    parser.add_argument("--kind", choices=[*MANNERS], help="by default all kinds")
    parser.add_argument("-v", "--verbose", action="store_true", help="follow it step by step")
    parser.add_argument(
        "--faults",
        nargs="?",
        const="",
        help="plant faults, or those with a word: are they noticed?",
    )
    parser.add_argument("--file", default=str(ROOT / "webapp.py"), help="another webapp.py")
    options = parser.parse_args(argv)
    if options.faults is not None:
        for name in filter(lambda name: options.faults in name, FAULTS):
            world, what = find_planted(name, most=400) or ("-", "nothing")
            print(f"{name:<55} {world:<12} {what[:90]}", flush=True)
        return 0
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if options.seed is None else [options.seed]
    with Program(Path(options.file).read_text(encoding="utf-8")) as program:
        return 1 if play_all(options, seeds, program) else 0


def play_all(options, seeds, program):
    """Play all worlds, and print the faults; return how many there were."""
    faults = 0
    for kind in [options.kind] if options.kind else MANNERS:
        began, steps, requests = time.process_time(), 0, 0
        found = 0
        for seed in seeds:
            try:
                world = play(seed, kind, program, options.verbose)
                steps += world.count
                requests += len(world.completed)
            except Fault as fault:
                found += 1
                print(f"--kind {kind} --seed {seed}: {str(fault)[:2000]}", flush=True)
        seconds = time.process_time() - began
        print(
            f"{kind:<9} {len(seeds):6} worlds {requests:7} requests {steps:9} steps "
            f"{seconds:7.1f} s {found:4} faults",
            flush=True,
        )
        faults += found
    return faults


if __name__ == "__main__":
    sys.exit(main())
